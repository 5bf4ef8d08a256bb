"""What scorecards and comparisons do in a notebook: data frames here, pictures and pages through a presenter.

Reports stand above this room, which therefore does not know them: `nescio` itself names the presenter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nescio import presenter  # gives a module with html(result), plots(result) and write(result, folder)
from nescio.errors import BadInput


class Presented:
    """Rows that can be shown, drawn, and taken over as a data frame."""

    rows: list[dict[str, Any]]

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return _package("pandas").DataFrame(self.rows)

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame."""
        return _package("polars").DataFrame(self.rows, infer_schema_length=None)

    @property
    def plot(self) -> Any:
        """Altair charts, e.g. card.plot.risk_coverage(), card.plot.reliability(), comparison.plot.intervals()."""
        return presenter().plots(self)

    def report(self, folder: str | Path) -> Path:
        """Writes the page and its tables as `--output` does; returns where the page is."""
        return Path(presenter().write(self, folder))

    def _repr_html_(self) -> str:
        return str(presenter().html(self))


def _package(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{name} is not installed: pip install {name}") from None
