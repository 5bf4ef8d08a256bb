"""Abstention thresholds with a guaranteed maximum selective risk, from saved predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from nescio import measures
from nescio.analysis.thresholds import GuaranteedThreshold, ThresholdOutcome, guarantee_threshold
from nescio.api.inputs import InputOptions, Source, check_apart, name_of
from nescio.api.results import ApiResult, status
from nescio.errors import BadInput
from nescio.files import write_file
from nescio.options import argument, nested, option
from nescio.provenance import current_provenance
from nescio.rows import Row


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    """Options of `threshold`."""

    files: tuple[Source, ...] = argument("labelled predictions that set the threshold", default=(), metavar="FILE")
    risk: float | None = option(None)
    coverage: float | None = option(None)
    delta: float = option(0.05, "probability that the guarantee fails", metavar="D")
    measure: str = option("msp")
    guarantee: Literal["ltt", "sgr", "both"] = option("ltt", "test that gives the guarantee for --risk")
    temperature: float | None = option(None, unset="1, or fitted")
    fit_temperature: bool = option(False, "fit the temperature to --val, or else to --fit-rows of FILE")
    val: Source | None = option(None)
    fit_rows: int | None = option(None, unset="a tenth, at most 5000")
    seed: int = option(0)
    test: Source | None = option(None)
    train: Source | None = option(None)
    save_measure: str | None = option(
        None, "file to write the fitted measure to, for `nescio export`", metavar="FILE.safetensors"
    )
    inputs: InputOptions = nested(InputOptions())


@dataclass(repr=False)
class AbstentionThreshold(ApiResult):
    """The threshold with its guarantee; without one if the risk is not attainable.

    origin    model, weights and preprocessing of the predictions
    check     coverage and risk on the rows of `test`
    score     file of the fitted measure, and what it contains
    """

    guarded: GuaranteedThreshold
    origin: dict[str, object]
    ood_rows: int = 0
    check: ThresholdOutcome | None = None
    score: dict[str, str] = field(default_factory=dict)
    score_facts: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def attainable(self) -> bool:
        return self.guarded.guarantee.attainable

    @property
    def threshold(self) -> float | None:
        """Abstain above this uncertainty; None if the risk is not attainable."""
        return self.guarded.guarantee.threshold

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        guarantee, names = self.guarded.guarantee, ("threshold", "risk", "delta", "bound", "n", "accepted", "errors")
        return [
            {"measure": self.guarded.measure, "temperature": self.guarded.temperature}
            | {name: getattr(guarantee, name) for name in names}
            | {"coverage": guarantee.coverage}
        ]

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return 0 if self.attainable else 1

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> list[str]:
        from nescio.report.thresholds import guarantee_sentences, refusal_sentences

        if not self.attainable:
            return [refusal_sentences(self.guarded)]
        fitted = [f"{self.score['file']} contains the fitted score: {self.score_facts}."] if self.score else []
        return [*guarantee_sentences(self.guarded, self.ood_rows, self.check), *fitted, *self.notes]

    def show(self, brief: bool = True) -> None:
        if self.attainable:
            print("\n".join(self.sentences()))
        else:
            status(f"nescio threshold: {self.sentences()[0]}")

    def plain(self) -> dict[str, object]:
        from nescio.report.thresholds import coverage_estimates, shortage_sentence

        guarded, guarantee = self.guarded, self.guarded.guarantee
        plain = {**self.origin, "ood_rows": self.ood_rows, "notes": self.notes}
        plain |= {"score": self.score} if self.score else {}
        plain |= {"attainable": guarantee.attainable, "threshold": guarantee.threshold}
        plain |= {name: getattr(guarded, name) for name in ("measure", "temperature", "fitted")}
        omitted = ("threshold", "level", "smallest_limit")
        plain |= {name: value for name, value in asdict(guarantee).items() if name not in omitted}
        plain["coverage"] = guarantee.coverage
        if not guarantee.attainable:
            plain |= {"smallest_limit": guarantee.smallest_limit, "reason": shortage_sentence(guarded)}
        if len(guarded.guarantees) > 1:
            plain["guarantees"] = [{**asdict(one), "coverage": one.coverage} for one in guarded.guarantees]
        if guarantee.risk is not None:
            estimates = coverage_estimates(guarded).values()
            plain["more_rows"] = [{"rows": rows, "coverage": coverage} for rows, coverage in estimates]
        if self.check is not None:
            plain["check"] = {**asdict(self.check), "coverage": self.check.coverage, "risk": self.check.risk}
        return plain

    def save(self, file: str | Path) -> Path:
        """Write the file that `export` takes as its threshold."""
        from nescio.report.text import json_text

        return write_file(file, json_text(self.plain()))


def threshold(options: ThresholdOptions) -> AbstentionThreshold:
    """Find the abstention threshold that guarantees a maximum selective risk."""
    if (options.risk is None) == (options.coverage is None):
        raise BadInput("Give risk or coverage, and not both.")
    files = options.inputs.files(options.files)
    if len(files) > 1:
        raise BadInput(f"A threshold is set on one FILE, and {len(files)} are given.")
    (file,) = files
    options.inputs.check_one_model(file, {"val": options.val, "test": options.test, "train": options.train})
    predictions = options.inputs.read(file, options.seed)
    val, check, train = (
        options.inputs.read(source, options.seed) if source else None
        for source in (options.val, options.test, options.train)
    )
    measure = measures.canonical(options.measure, predictions)
    _check_fitted(options, measure, train is not None)
    fitted = None if train is None else measures.fit(measure, train)
    score = measures.portable(measure, fitted) if options.save_measure else None
    shared = check_apart({name_of(file): predictions}, {"val": val, "test": check})
    predictions = predictions.replace(notes=(*predictions.notes, *shared))
    guarded = guarantee_threshold(
        predictions,
        risk=options.risk,
        coverage=options.coverage,
        delta=options.delta,
        measure=measure,
        method=options.guarantee,
        temperature=_temperature(options),
        val=val,
        fit_rows=options.fit_rows,
        seed=options.seed,
        score=fitted,
    )
    attainable = guarded.guarantee.attainable
    if attainable and fitted is not None and not score and measure in measures.PORTABLE:
        command = _rerun_hint(f"--save-measure {measure}.safetensors")
        status(f"nescio threshold: `nescio export` needs the fitted score as a file: {command}.")
    saved = {}
    if score and options.save_measure:
        saved = {"file": options.save_measure, "sha256": score.save(options.save_measure)}
    return AbstentionThreshold(
        guarded,
        {
            "file": file if isinstance(file, str) else file.name,
            **options.inputs.origin(file),
            "classes": predictions.classes,
        },
        0 if predictions.in_distribution is None else int((~predictions.in_distribution).sum()),
        guarded.evaluate(check) if check is not None and attainable else None,
        saved,
        score.contents if score else "",
        [*predictions.notes],
    )


def _check_fitted(options: ThresholdOptions, measure: str, trained: bool) -> None:
    """Refuse a fitted measure without training rows, and training rows without one."""
    kind = measures.registry[measure].kind if measure in measures.registry else "plain"
    if kind == "fitted" and not trained:
        save = f" --save-measure {measure}.safetensors" if measure in measures.PORTABLE else ""
        hint = _rerun_hint(f"--train FILE{save}")
        raise BadInput(f"The measure {measure!r} is fitted to training rows: {hint}.")
    if kind != "fitted" and trained:
        raise BadInput(f"The measure {measure!r} is not fitted to training rows: omit train and save_measure.")
    if options.save_measure and not trained:
        raise BadInput("save_measure needs training rows: give train and save_measure, or neither.")


def _temperature(options: ThresholdOptions) -> float | str:
    """The temperature, or "fit"."""
    fit = options.fit_temperature or options.val is not None
    if fit and options.temperature is not None:
        raise BadInput("temperature has no effect with a fitted temperature: leave it out.")
    return "fit" if fit else 1.0 if options.temperature is None else options.temperature


def _rerun_hint(more: str) -> str:
    """Suggest to repeat the typed command with further options."""
    typed = current_provenance().command
    return f"write `{typed} {more}`" if typed else f"add `{more}`"
