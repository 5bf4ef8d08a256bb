"""Calibrate the predictions in FILE on validation rows, and write them to a new file.

FILE and --val are predictions of one model, with logits or probs. --val has labels. zoo:NAME reads the model's
predictions from the store of `nescio zoo`. All other fields are copied. FILE and --val must have different rows. The
new file can be passed to every other command.

  temperature  divide all logits by one number; predicted classes stay the same (Guo et al. 2017)
  vector       scale and shift the logits of each class; predicted classes may change, and many rows are needed

examples:
  nescio calibrate test.npz --val val.npz --output calibrated.npz
  nescio calibrate test.npz --val val.npz --calibration vector --output calibrated.parquet --format json
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import realpath
from typing import Any, Literal

from nescio.commands._inputs import InputOptions, check_apart
from nescio.commands._output import TextOrJson, json_of, say
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.predictions import Predictions
from nescio.specs import assignment

SHOWN = {"ece": "ECE", "mcb": "MCB", "nll": "NLL", "brier": "Brier"}  # of the rows before and after calibration


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions to calibrate", default=(), metavar="FILE")
    val: str = option(REQUIRED)
    output: str = option(REQUIRED)
    calibration: Literal["temperature", "vector"] = option("temperature")
    seed: int = option(0)
    inputs: InputOptions = nested(InputOptions())
    format: TextOrJson = option("text")


def run(options: Options) -> int:
    from nescio.analysis.calibration import SCALERS, calibration_warning

    files = options.inputs.files(options.files)
    if len(files) > 1:
        raise BadInput("One FILE is calibrated at a time, by its own model's validation rows.")
    options.inputs.check_one_model(files[0], {"--val": options.val})
    predictions, val = (options.inputs.read(word, options.seed) for word in (files[0], options.val))
    notes = list(check_apart({files[0]: predictions}, {"--val": val}))
    if predictions.logits is not None and val.logits is not None and predictions.classes != val.classes:
        raise BadInput(
            f"--val has {val.classes} classes, {files[0]} has {predictions.classes}: they must be of one model."
        )
    if realpath(options.output) in {realpath(assignment(word)[1]) for word in (files[0], options.val)}:
        raise BadInput(f"--output names {options.output}, which is an input file: name another file.")
    scale: Any = SCALERS[options.calibration](val)
    calibrated = scale(predictions)
    written = calibrated.save(options.output)
    warning = calibration_warning(scale, val)
    plain = {
        "file": str(written),
        "method": options.calibration,
        "temperature": getattr(scale, "temperature", None),
        "rows": len(predictions),
        "before": _figures(predictions),
        "after": _figures(calibrated),
        "notes": [*notes, *([warning] if warning else [])],
    }
    say(json_of(plain) if options.format == "json" else _sentences(plain))
    return 0


def _figures(predictions: Predictions) -> dict[str, float]:
    """Calibration metrics of the labelled rows; empty without labels."""
    from nescio import metrics
    from nescio.measures import summary

    if predictions.labels is None or not summary(predictions).labelled.any():
        return {}
    answers = summary(predictions).outcomes()
    return {name: float(metrics.registry[name].function(answers)) for name in SHOWN}


def _sentences(plain: dict[str, Any]) -> str:
    scaled = plain["temperature"]
    fitted = "vector scaling" if scaled is None else f"the temperature {scaled:.4g}"
    lines = [f"{plain['file']} holds the {plain['rows']:,} rows under {fitted}."]
    if plain["before"]:
        changes = [f"{title} {plain['before'][name]:.4f} → {plain['after'][name]:.4f}" for name, title in SHOWN.items()]
        lines.append(f"Of its labelled rows: {', '.join(changes)}.")
    return "\n".join([*lines, *plain["notes"]])
