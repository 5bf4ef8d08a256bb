"""Calibration of saved predictions on validation rows."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import realpath
from typing import Literal

from nescio.api.inputs import InputOptions, Source, check_apart, name_of, path_of
from nescio.api.results import ApiResult
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.predictions import Predictions
from nescio.rows import Row

TITLES = {"ece": "ECE", "mcb": "MCB", "nll": "NLL", "brier": "Brier"}  # of the rows before and after calibration


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of `calibrate`."""

    files: tuple[Source, ...] = argument("predictions to calibrate", default=(), metavar="FILE")
    val: Source = option(REQUIRED)
    output: str | None = option(None, unset="no file")
    calibration: Literal["temperature", "vector"] = option("temperature")
    seed: int = option(0)
    inputs: InputOptions = nested(InputOptions())


@dataclass(repr=False)
class CalibratedPredictions(ApiResult):
    """Calibrated predictions, with metrics of their labelled rows before and after.

    file         written file, if any
    temperature  None of vector scaling
    """

    predictions: Predictions
    method: str
    temperature: float | None
    before: dict[str, float]
    after: dict[str, float]
    notes: list[str]
    file: str | None = None

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return [{"metric": name, "before": value, "after": self.after[name]} for name, value in self.before.items()]

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> list[str]:
        fitted = "vector scaling" if self.temperature is None else f"the temperature {self.temperature:.4g}"
        lines = [f"{self.file or 'The result'} contains the {len(self.predictions):,} rows under {fitted}."]
        if self.before:
            pairs = [f"{title} {self.before[name]:.4f} → {self.after[name]:.4f}" for name, title in TITLES.items()]
            lines.append(f"Of its labelled rows: {', '.join(pairs)}.")
        return [*lines, *self.notes]

    def show(self, brief: bool = True) -> None:
        print("\n".join(self.sentences()))

    def plain(self) -> dict[str, object]:
        names = ("file", "method", "temperature", "before", "after", "notes")
        return {name: getattr(self, name) for name in names} | {"rows": len(self.predictions)}


def calibrate(options: CalibrateOptions) -> CalibratedPredictions:
    """Calibrate predictions on validation rows of the same model."""
    from nescio.analysis.calibration import SCALERS, calibration_warning

    files = options.inputs.files(options.files)
    if len(files) > 1:
        raise BadInput("One FILE is calibrated at a time, by its own model's validation rows.")
    (file,) = files
    options.inputs.check_one_model(file, {"val": options.val})
    predictions, val = (options.inputs.read(source, options.seed) for source in (file, options.val))
    name = name_of(file)
    notes = list(check_apart({name: predictions}, {"val": val}))
    if predictions.logits is not None and val.logits is not None and predictions.classes != val.classes:
        raise BadInput(f"val has {val.classes} classes, {name} has {predictions.classes}: they must be of one model.")
    if options.output and realpath(options.output) in {realpath(path_of(source)) for source in (file, options.val)}:
        raise BadInput(f"output names {options.output}, which is an input file: name another file.")
    scale = SCALERS[options.calibration](val)
    calibrated = scale(predictions)
    warning = calibration_warning(scale, val)
    return CalibratedPredictions(
        calibrated,
        options.calibration,
        getattr(scale, "temperature", None),
        _metrics(predictions),
        _metrics(calibrated),
        [*notes, *([warning] if warning else [])],
        str(calibrated.save(options.output)) if options.output else None,
    )


def _metrics(predictions: Predictions) -> dict[str, float]:
    """Calibration metrics of the labelled rows; empty without labels."""
    from nescio import metrics
    from nescio.measures import summary

    if predictions.labels is None or not summary(predictions).labelled.any():
        return {}
    outcomes = summary(predictions).outcomes()
    return {name: float(metrics.registry[name].function(outcomes)) for name in TITLES}
