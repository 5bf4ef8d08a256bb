"""Tables of pretrained models in the form of timm's results-imagenet.csv: accuracies, parameters, input sizes.

A published accuracy stands beside our own, because wrong preprocessing is the commonest silent error.
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

ERRORS, SLACK = 3.0, 0.003  # standard errors, and a share for other decoders and number formats
COLUMNS = {"top1": ("accuracy", 0.01), "param_count": ("params", 1e6), "img_size": ("size", 1)}


@dataclass(frozen=True)
class PublishedFacts:
    """One line of a table: what it has of a model."""

    accuracy: float | None = None  # a share …
    size: int | None = None  # … measured on images of this side
    params: int | None = None


Table = Mapping[str, Sequence[PublishedFacts]]


def read_published(path: str | Path, *needed: str) -> dict[str, list[PublishedFacts]]:
    """Model → its lines of a CSV file with the columns model, top1 (percent), param_count (millions) and img_size.

    needed  columns beside `model` that the file must have
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


def _number(path: str | Path, number: int, line: Mapping[str, Any], column: str, scale: float) -> float | None:
    text = (line.get(column) or "").replace(",", "")
    if not text:
        return None
    try:
        return float(text) * scale
    except ValueError:
        raise BadInput(f"{path}, line {number}: {column} is {text!r}, which is not a number.") from None


def published_of(dump: ModelPredictions, table: Table) -> PublishedFacts | None:
    """The line of a model: that of its input size, if there are several. A name without a tag is taken for its first
    weights, which old tables call so."""
    plain = NetworkName.of(dump.model).name
    lines = next((table[name] for name in (dump.model, plain, *_tagged(plain)) if name in table), None)
    if lines is None:
        return None
    return next((line for line in lines if line.size == dump.facts.get("input_size")), lines[0])


def _tagged(name: str) -> tuple[str, ...]:
    """A timm name with the tag of its usual weights, which tables write out."""
    from timm.models import get_pretrained_cfg, is_model

    if "." in name or not is_model(name):
        return ()
    cfg = get_pretrained_cfg(name)
    return (f"{name}.{cfg.tag}",) if cfg is not None and cfg.tag else ()


def with_facts(dumps: Sequence[ModelPredictions], path: str | None = None) -> list[ModelPredictions]:
    """The dumps with the family of each model, and the sizes that a table has of models that do not say their own."""
    table = read_published(path) if path else {}
    known = []
    for dump in dumps:
        facts: dict[str, Any] = {"family": family(dump.model)}
        for line in table.get(dump.model, ()):
            facts |= {name: n for name, n in (("params", line.params), ("input_size", line.size)) if n is not None}
        known.append(replace(dump, facts={**facts, **dump.facts}))
    return known


def with_published_accuracies(dumps: Sequence[ModelPredictions], path: str) -> tuple[list[ModelPredictions], list[str]]:
    """The dumps with the accuracies that a table publishes, and a sentence for each that ours is far from."""
    table, known, notes = read_published(path, "top1"), [], list[str]()
    for dump in dumps:
        line = published_of(dump, table)
        if line is None or line.accuracy is None:
            notes.append(f"{path} has no line for {dump.model}.")
        else:
            dump = replace(dump, facts={**dump.facts, "published_accuracy": line.accuracy})
            notes += [sentence] if (sentence := accuracy_warning(dump, line)) else []
        known.append(dump)
    return known, notes


def accuracy_warning(dump: ModelPredictions, line: PublishedFacts) -> str | None:
    """A sentence where our accuracy is further from the published one than chance explains."""
    ours, n = dump.facts.get("accuracy"), dump.facts.get("rows")
    if ours is None or line.accuracy is None or not n:
        return None
    error = math.sqrt(line.accuracy * (1 - line.accuracy) / n)
    if abs(ours - line.accuracy) <= ERRORS * error + SLACK:
        return None
    size, own = dump.facts.get("input_size"), line.size
    other = f" It was published at {own} pixels, and evaluated at {size}." if own and size and own != size else ""
    return (
        f"{dump.model} has top-1 {ours:.2%} on {n:,} images and {line.accuracy:.2%} is published, more than chance "
        f"explains (± {ERRORS * error + SLACK:.2%}): most often the images are prepared in another way, the labels are "
        f"in another order, or the weights are others.{other}"
    )
