"""Tables of pretrained models in the form of timm's results-imagenet.csv: accuracies, parameters, input sizes.

Published accuracies are compared with measured ones: wrong preprocessing is the most common silent error.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from nescio.errors import BadInput
from nescio.files import read_text
from nescio.networks.families import family
from nescio.predictions.model_predictions import ModelPredictions
from nescio.specs import NetworkName

ERRORS, SLACK = 3.0, 0.003  # tolerance: standard errors, plus a share for other decoders and number formats
COLUMNS = {"top1": ("accuracy", 0.01), "param_count": ("params", 1e6), "img_size": ("size", 1)}


@dataclass(frozen=True)
class PublishedFacts:
    """One line of a table of published results."""

    accuracy: float | None = None  # from 0 to 1
    size: int | None = None  # height and width of its images
    params: int | None = None


Table = Mapping[str, Sequence[PublishedFacts]]


def read_published(path: str | Path, *needed: str) -> dict[str, list[PublishedFacts]]:
    """Model → its lines of a CSV file with the columns model, top1 (percent), param_count (millions) and img_size.

    needed  columns that the file must have, in addition to `model`
    """
    try:
        reader = csv.DictReader(StringIO(read_text(path, "utf-8-sig"), newline=""))
        columns, lines = set(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table: {getattr(error, 'strerror', None) or error}.") from None
    if missing := {"model", *needed} - columns:
        names = " and ".join(sorted({"model", *needed}, key=lambda name: name != "model"))
        raise BadInput(f"{path} has no column named {min(missing)}; it needs {names}, as timm's results-imagenet.csv.")
    table: dict[str, list[PublishedFacts]] = {}
    for number, line in enumerate(lines, start=2):
        facts = {fact: _number(path, number, line, column, scale) for column, (fact, scale) in COLUMNS.items()}
        if facts["accuracy"] is not None and not 0 <= facts["accuracy"] <= 1:
            raise BadInput(f"{path}, line {number}: top1 is {line['top1']}, which is not a percentage.")
        whole = {name: None if facts[name] is None else round(facts[name]) for name in ("size", "params")}
        table.setdefault(line["model"], []).append(PublishedFacts(facts["accuracy"], **whole))
    return table


def _number(path: str | Path, number: int, line: Mapping[str, str | None], column: str, scale: float) -> float | None:
    text = (line.get(column) or "").replace(",", "")
    if not text:
        return None
    try:
        return float(text) * scale
    except ValueError:
        raise BadInput(f"{path}, line {number}: {column} is {text!r}, which is not a number.") from None


def published_of(model: ModelPredictions, table: Table) -> PublishedFacts | None:
    """The line of a model; if there are several, that of its input size.

    A name without a tag means the first weights, as in old tables.
    """
    plain = NetworkName.parse(model.model).name
    lines = next((table[name] for name in (model.model, plain, *_tagged(plain)) if name in table), None)
    if lines is None:
        return None
    return next((line for line in lines if line.size == model.facts.get("input_size")), lines[0])


def _tagged(name: str) -> tuple[str, ...]:
    """A timm name with the tag of its default weights."""
    from timm.models import get_pretrained_cfg, is_model

    if "." in name or not is_model(name):
        return ()
    cfg = get_pretrained_cfg(name)
    return (f"{name}.{cfg.tag}",) if cfg is not None and cfg.tag else ()


def with_facts(models: Sequence[ModelPredictions], path: str | None = None) -> list[ModelPredictions]:
    """The models with their families, and with sizes from a table if they have none."""
    table = read_published(path) if path else {}
    completed = []
    for model in models:
        facts: dict[str, Any] = {"family": family(model.model)}
        for line in table.get(model.model, ()):
            facts |= {name: n for name, n in (("params", line.params), ("input_size", line.size)) if n is not None}
        completed.append(replace(model, facts={**facts, **model.facts}))
    return completed


def with_published_accuracies(
    models: Sequence[ModelPredictions], path: str
) -> tuple[list[ModelPredictions], list[str]]:
    """The models with published accuracies, and a note for each that differs from the measured one."""
    table, completed, notes = read_published(path, "top1"), [], list[str]()
    for model in models:
        line = published_of(model, table)
        if line is None or line.accuracy is None:
            notes.append(f"{path} has no line for {model.model}.")
        else:
            model = replace(model, facts={**model.facts, "published_accuracy": line.accuracy})
            notes += [sentence] if (sentence := accuracy_warning(model, line)) else []
        completed.append(model)
    return completed, notes


def accuracy_warning(model: ModelPredictions, line: PublishedFacts) -> str | None:
    """A note if the measured accuracy differs from the published one by more than chance explains."""
    accuracy, n = model.facts.get("accuracy"), model.facts.get("rows")
    if accuracy is None or line.accuracy is None or not n:
        return None
    error = math.sqrt(line.accuracy * (1 - line.accuracy) / n)
    if abs(accuracy - line.accuracy) <= ERRORS * error + SLACK:
        return None
    size, published_size = model.facts.get("input_size"), line.size
    other = (
        f" It was published at {published_size} pixels, and evaluated at {size}."
        if published_size and size and published_size != size
        else ""
    )
    return (
        f"{model.model} has top-1 {accuracy:.2%} on {n:,} images, but {line.accuracy:.2%} is published: more than "
        f"chance explains (± {ERRORS * error + SLACK:.2%}). Most often the preprocessing, the order of labels "
        f"or the weights differ.{other}"
    )
