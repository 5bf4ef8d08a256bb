"""nescio: predictive uncertainty of image models, evaluated."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it: importing typing would take as long as all the rest
if TYPE_CHECKING:
    from typing import Any

    from nescio.analysis.comparison import compare
    from nescio.analysis.scorecard import scorecard
    from nescio.analysis.transfer import transfer
    from nescio.errors import BadInput, Undefined
    from nescio.predictions import Predictions, join, stack

__version__ = "0.1.0"
__all__ = ["BadInput", "Predictions", "Undefined", "__version__", "compare", "join", "scorecard", "stack", "transfer"]

_HOMES = {  # of what is imported when it is first used: `import nescio` loads nothing else
    **dict.fromkeys(("BadInput", "Undefined"), "nescio.errors"),
    **dict.fromkeys(("Predictions", "join", "stack"), "nescio.predictions"),
    "compare": "nescio.analysis.comparison",
    "scorecard": "nescio.analysis.scorecard",
    "transfer": "nescio.analysis.transfer",
}


_WITH_CHARTS = ("compare", "scorecard")  # their results have charts and pages


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nescio' has no attribute {name!r}")
    if name in _WITH_CHARTS:
        import_module("nescio.analysis.results").use_renderer(lambda: import_module("nescio.report.notebook"))
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
