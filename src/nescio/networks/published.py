"""A table of published accuracies beside our own: wrong preprocessing is the commonest silent error."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nescio.errors import BadInput
from nescio.predictions.entries import Entry

ERRORS, SLACK = 3.0, 0.003  # standard errors, and a share for other decoders and number formats


@dataclass(frozen=True)
class Published:
    """One line of a table: the accuracy, and at which input size it was measured."""

    accuracy: float  # a share
    size: int | None = None


def read_published(path: str | Path) -> dict[str, list[Published]]:
    """Model → its lines of a CSV file with the columns `model` and `top1` (percent), as timm's results-imagenet.csv."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns, lines = set(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table: {getattr(error, 'strerror', None) or error}.") from None
    if not {"model", "top1"} <= columns:
        raise BadInput(f"{path} has no columns model and top1, as timm's results-imagenet.csv has.")
    found: dict[str, list[Published]] = {}
    for number, line in enumerate(lines, start=2):
        try:
            share = float(line["top1"]) / 100
            size = int(line["img_size"]) if line.get("img_size") else None
        except (TypeError, ValueError):
            raise BadInput(f"{path}, line {number}: top1 is {line['top1']!r}, which is not a percentage.") from None
        if not 0 <= share <= 1:
            raise BadInput(f"{path}, line {number}: top1 is {line['top1']}, which is not a percentage.")
        found.setdefault(line["model"], []).append(Published(share, size))
    return found


def published_of(entry: Entry, table: Mapping[str, list[Published]]) -> Published | None:
    """The line of a model: that of its input size, if there are several. A name without a tag is taken for its first
    weights, which old tables call so."""
    plain = entry.model.removeprefix("torchvision:")
    found = next((table[name] for name in (entry.model, plain, *_tagged(plain)) if name in table), None)
    if found is None:
        return None
    return next((each for each in found if each.size == entry.facts.get("input_size")), found[0])


def _tagged(name: str) -> tuple[str, ...]:
    """A timm name with the tag of its usual weights, which tables write out."""
    from timm.models import get_pretrained_cfg, is_model

    if "." in name or not is_model(name):
        return ()
    cfg = get_pretrained_cfg(name)
    return (f"{name}.{cfg.tag}",) if cfg is not None and cfg.tag else ()


def disagreement(entry: Entry, found: Published) -> str | None:
    """A sentence where our accuracy is further from the published one than chance explains."""
    ours, n = entry.facts.get("accuracy"), entry.facts.get("rows")
    if ours is None or not n:
        return None
    error = math.sqrt(found.accuracy * (1 - found.accuracy) / n)
    if abs(ours - found.accuracy) <= ERRORS * error + SLACK:
        return None
    size, own = entry.facts.get("input_size"), found.size
    other = f" It was published at {own} pixels, and asked at {size}." if own and size and own != size else ""
    return (
        f"{entry.model} has top-1 {ours:.2%} on {n:,} images and {found.accuracy:.2%} is published, more than chance "
        f"explains (± {ERRORS * error + SLACK:.2%}): most often the images are prepared in another way, the labels are "
        f"in another order, or the weights are others.{other}"
    )
