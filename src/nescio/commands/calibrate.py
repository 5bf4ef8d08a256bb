"""Calibrated predictions as a file: fitted on validation rows, applied to the rows of FILE, all other fields kept.

FILE and --val are predictions of one model, with logits or probs, as for `nescio evaluate`; --val has labels. zoo:NAME
takes the model's predictions from the store of `nescio zoo`. Rows that both hold are refused: a calibration must not be
judged on what it was fitted to. Every reader of predictions takes the file that is written: `nescio evaluate`,
`threshold`, `compare`, and Predictions.load. A dump of probs stays one.

  temperature  all logits divided by one number, which keeps every answer (Guo et al. 2017)
  vector       each class's logits times a number of its own, plus a bias; may change answers, needs many rows

examples:
  nescio calibrate test.npz --val val.npz --to calibrated.npz
  nescio calibrate test.npz --val val.npz --method vector --to calibrated.parquet --json
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import realpath
from typing import Any, Literal

from nescio.commands._inputs import InputOptions, check_apart
from nescio.commands._output import json_of, say
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.predictions import Predictions
from nescio.specs import assignment

SHOWN = {"ece": "ECE", "mcb": "MCB", "nll": "NLL", "brier": "Brier"}  # said of the rows before and after


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions to calibrate", default=(), metavar="FILE")
    val: str = option(REQUIRED, "labelled validation rows that it is fitted on", metavar="FILE")
    to: str = option(REQUIRED, "file for the calibrated predictions, in the format of its ending", metavar="FILE")
    method: Literal["temperature", "vector"] = option("temperature", "what is fitted")
    seed: int = option(0, "of --limit")
    inputs: InputOptions = nested(InputOptions())
    json: bool = option(False, "strict JSON, alone on stdout")


def run(options: Options) -> int:
    from nescio.analysis.scorecard import SCALERS, calibration_warning

    files = options.inputs.files(options.files)
    if len(files) > 1:
        raise BadInput("One FILE is calibrated at a time, by its own model's validation rows.")
    options.inputs.check_one_model(files[0], {"--val": options.val})
    dump, val = (options.inputs.read(word, options.seed) for word in (files[0], options.val))
    notes = list(check_apart({files[0]: dump}, {"--val": val}))
    if dump.logits is not None and val.logits is not None and dump.classes != val.classes:
        raise BadInput(f"--val has {val.classes} classes, {files[0]} has {dump.classes}: they must be of one model.")
    if realpath(options.to) in {realpath(assignment(word)[1]) for word in (files[0], options.val)}:
        raise BadInput(f"--to names {options.to}, which holds the rows as they were: name another file.")
    scale: Any = SCALERS[options.method](val)
    calibrated = scale(dump)
    place = calibrated.save(options.to)
    doubt = calibration_warning(scale, val, dump.classes)
    plain = {
        "file": str(place),
        "method": options.method,
        "temperature": getattr(scale, "temperature", None),
        "rows": len(dump),
        "before": _figures(dump),
        "after": _figures(calibrated),
        "notes": [*notes, *([doubt] if doubt else [])],
    }
    say(json_of(plain) if options.json else _sentences(plain))
    return 0


def _figures(dump: Predictions) -> dict[str, float]:
    """How calibrated the labelled rows are; nothing without labels."""
    from nescio import metrics
    from nescio.measures import summary

    if dump.labels is None or not summary(dump).known.any():
        return {}
    answers = summary(dump).outcomes()
    return {name: float(metrics.registry[name].function(answers)) for name in SHOWN}


def _sentences(plain: dict[str, Any]) -> str:
    scaled = plain["temperature"]
    fitted = "vector scaling" if scaled is None else f"the temperature {scaled:.4g}"
    lines = [f"{plain['file']} holds the {plain['rows']:,} rows under {fitted}."]
    if plain["before"]:
        changes = [f"{title} {plain['before'][name]:.4f} → {plain['after'][name]:.4f}" for name, title in SHOWN.items()]
        lines.append(f"Of its labelled rows: {', '.join(changes)}.")
    return "\n".join([*lines, *plain["notes"]])
