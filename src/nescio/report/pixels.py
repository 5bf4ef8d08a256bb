"""What counts of pixels say about a segmentation: its answers, the IoU of every class, and its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nescio.analysis.pixels import PixelCounts
from nescio.metrics import MAX_SCORES
from nescio.report.blocks import Definitions, Section, Story, flatten
from nescio.report.format import count_in_words
from nescio.report.tables import COUNT, Column, Index, decimals, metrics, table
from nescio.rows import Row


def pixel_story(counts: PixelCounts, rows: Sequence[Row], reasons: Sequence[str], name: str) -> Story:
    """`rows` and `reasons` are those of the counts."""
    overall = [{**row, "of": "all pixels"} for row in rows if "measure" not in row]
    scores = [row for row in rows if "measure" in row]
    classes = [
        {"class": str(label), "iou": float(iou), "pixels": int(counts.confusion[label].sum())}
        for label, iou in enumerate(counts.iou)
        if not math.isnan(iou)
    ]
    answers, ranked = metrics("miou", "accuracy"), metrics("auroc", "raulc", "aurc")
    by_class = [Column("IoU", "iou", format=decimals(4)), Column("pixels", "pixels", format=COUNT)]
    score = Index("measure", "score", keep=True)
    tables = [
        table(overall, "Are pixels called what they are?", index=(Index("of", ""),), columns=answers),
        table(scores, "Are wrong pixels less sure than right ones?", index=(score,), columns=ranked)
        if scores
        else None,
        table(classes, "Every class", index=("class",), columns=by_class, bold="none"),
    ]
    gaps = Definitions([("", reason) for reason in reasons], "What could not be said")
    lead = [f"{count_in_words(counts.n)} pixels count."]
    if bound := counts.bound:
        lead.append(
            f"Of a score {count_in_words(MAX_SCORES)} values are distinguished: AUROC, rAULC and AURC are exact to "
            f"± {bound:.1g}."
        )
    return Story(f"Segmentation: {name}", lead, [Section("", "", flatten([*tables, gaps]))])
