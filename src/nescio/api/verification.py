"""Evidence on trained weights that a method's distinctive part has an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from nescio.api.results import Records
from nescio.api.storage import DATA
from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.rows import Row


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `verify`."""

    methods: tuple[str, ...] = argument("methods to check", default=(), metavar="METHOD", unset="all", kind="method")
    task: Literal["classification", "segmentation"] = option("classification")
    data: str = option("digits", kind="dataset")
    root: str | None = option(None, unset=DATA)
    backbone: str = option("conv")
    epochs: int | None = option(None, unset="6; 12 for methods that do not classify")
    spectral_check: float = option(1.0, "bound of the spectral norm in the check of normalisation", metavar="BOUND")


class Verification(Records):
    """One row per observation: method, evidence, passed, observed."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return int(any(not row["passed"] for row in self.rows))


def _lines(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """A line per observation, with the method's name in the first one only."""
    last = None
    for row in rows:
        name, last = "" if row["method"] == last else row["method"], row["method"]
        mark = "✓" if row["passed"] else "✗"
        yield {"method": name, "": mark, "evidence": row["evidence"], "observed": row["observed"]}


def verify(options: VerifyOptions) -> Verification:
    """Check on trained weights that the distinctive part of each method has an effect."""
    from nescio.methods import registry
    from nescio.progress import track
    from nescio.testing.evidence import observe, small_trial

    if not options.spectral_check > 0:
        raise BadInput(f"spectral_check must be above 0, not {options.spectral_check:g}.")
    dense = options.task == "segmentation"
    names = options.methods or [name for name in sorted(registry) if not (dense and registry[name].no_dense_reason)]
    trials = [
        small_trial(
            name,
            data=options.data,
            backbone=options.backbone,
            epochs=options.epochs,
            root=options.root,
            task=options.task,
        )
        for name in names
    ]
    rows = [
        {"method": trial.method, "evidence": name, "passed": evidence.passed, "observed": evidence.observed}
        for trial in track(trials, "verify", total=len(trials))
        for name, evidence in dict(observe(trial, spectral=options.spectral_check, root=options.root)).items()
    ]
    failed = sum(not row["passed"] for row in rows)
    count = f"{len(rows)} observations on {len(names)} method{'s' * (len(names) != 1)}"
    end = f"{count}: {f'{failed} failed (✗)' if failed else 'all passed'}."
    return Verification(rows, list(_lines(rows)), end)
