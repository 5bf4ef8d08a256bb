"""Files of `nescio threshold`: the abstention rule, its guarantee, and the model that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nescio.errors import BadInput
from nescio.files import read_json
from nescio.measures import FittedScore
from nescio.networks.abstaining import AbstentionRule, ExportableNetwork
from nescio.specs import STORE, source


@dataclass(frozen=True)
class ThresholdFile:
    """The guarantee in a file of `nescio threshold --format json`, and its model; empty for a plain number."""

    model: str | None = None
    weights: str | None = None  # their digest
    classes: int | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)  # risk, delta, bound, coverage …
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # view, mean and std of its predictions
    names: tuple[str, ...] = ()  # of the classes, if known
    file: Path | None = None  # of the weights, if known
    score: FittedScore | None = None

    def weights_of(self, model: str) -> Path | None:
        """The weights file that it names, if it is of this model and still exists."""
        return self.file if model == self.model and "@" not in model and self.file and self.file.is_file() else None

    def check(self, classifier: ExportableNetwork) -> None:
        """Raise BadInput unless the guarantee is for this network."""
        model = classifier.facts.get("model", "")
        advice = "set the threshold on its own predictions"
        if self.classes not in (None, classifier.classes):
            raise BadInput(
                f"The threshold was set on predictions of a model of {self.classes} classes; {model} has "
                f"{classifier.classes}: {advice}."
            )
        if self.weights is not None and self.weights != classifier.digest:
            other = "other weights of it" if self.model == model else f"{self.model}, another model"
            raise BadInput(f"The guarantee is not for {model} with these weights, but for {other}: {advice}.")
        if self.weights is None and self.model is not None and not _same_model(self.model, model):
            raise BadInput(f"The guarantee is for the model {self.model}, and {model} is exported: {advice}.")
        for key, value in self.preprocessing.items():
            current = classifier.facts.get(key)
            if isinstance(value, dict) and isinstance(current, dict):
                value = {**current, **value}  # compare only the fields of a view that the file names
            if current != value:
                raise BadInput(f"The guarantee is for another {key} of the images than that of {model}: {advice}.")


def _same_model(promised: str, exported: str) -> bool:
    """Whether two names are of one model; keys of a store may be abbreviated."""
    kind, key = source(promised)
    return exported.startswith(promised) if kind == STORE and key else exported == promised


def read_rule(
    threshold: str, temperature: float | None = None, measure: str | None = None
) -> tuple[AbstentionRule, ThresholdFile]:
    """The abstention rule in a number or in a file of `nescio threshold --format json`, with the file's guarantee."""
    try:
        value = float(threshold)
    except ValueError:
        return _rule_of_file(Path(threshold), temperature, measure)
    return AbstentionRule(value, 1.0 if temperature is None else temperature, measure or "msp"), ThresholdFile()


def _rule_of_file(file: Path, temperature: float | None, measure: str | None) -> tuple[AbstentionRule, ThresholdFile]:
    if not file.is_file():
        raise BadInput(
            f"The threshold is {str(file)!r}: neither a number nor a file of `nescio threshold --format json`."
        )
    try:
        content = read_json(file)
        rule = {key: content[key] for key in ("threshold", "temperature", "measure")}
        numbers = [rule["temperature"], 0 if rule["threshold"] is None else rule["threshold"]]
        texts = [content.get(key, "") or "" for key in ("model", "weights", "predictions")]
        if not (all(type(x) in (int, float) for x in numbers) and all(isinstance(word, str) for word in texts)):
            raise TypeError("not the types that are written")
        shares = [content[key] for key in ("risk", "delta", "bound", "coverage") if content.get(key) is not None]
        if not all(type(x) in (int, float) and 0 <= x <= 1 for x in shares):
            raise ValueError("a share must be between 0 and 1")
        counts = [content[key] for key in ("errors", "accepted", "n") if content.get(key) is not None]
        if not all(type(x) is int and x >= 0 for x in counts) or counts != sorted(counts):
            raise ValueError("errors are some of the accepted rows, and these some of n")
        if content.get("method", "") not in ("", "ltt", "sgr", "coverage"):
            raise ValueError("unknown method")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{file} is not what `nescio threshold --format json` writes.") from None
    if rule["threshold"] is None:
        raise BadInput(f"The risk of {file} is not attainable: there is no threshold to export.")
    for key, other in (("temperature", temperature), ("measure", measure)):
        if other is not None and other != rule[key]:
            raise BadInput(f"{file} has the {key} {rule[key]}, but {other} was given: its guarantee needs {rule[key]}.")
    names, weights_path = content.get("names"), content.get("weights_path")
    names = tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
    weights = Path(weights_path) if isinstance(weights_path, str) else None
    keys = ("model", "weights", "predictions", "risk", "delta", "bound", "coverage", "method", "n")
    terms = {key: content[key] for key in keys if content.get(key) is not None}
    preprocessing = {key: content[key] for key in ("view", "mean", "std") if key in content}
    return AbstentionRule(**rule), ThresholdFile(
        content.get("model"),
        content.get("weights"),
        content.get("classes"),
        terms,
        preprocessing,
        names,
        weights,
        _score_of(content, file),
    )


def _score_of(content: Mapping[str, object], file: Path) -> FittedScore | None:
    """The fitted score of a threshold, next to the threshold's file or at its original path."""
    written = content.get("score")
    if written is None:
        return None
    if not isinstance(written, dict) or not all(isinstance(written.get(key), str) for key in ("file", "sha256")):
        raise BadInput(f"{file} is not what `nescio threshold --format json` writes: its score has no file and sha256.")
    beside_it = file.parent / Path(written["file"]).name
    return FittedScore.load(beside_it if beside_it.is_file() else written["file"], written["sha256"])
