"""Segmentation: accuracy and mIoU, IoU per class, and misclassification detection by pixel scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nescio.analysis.pixels import PixelCounts
from nescio.metrics import MAX_SCORES
from nescio.report.blocks import Definitions, Section, Story, flatten
from nescio.report.tables import COUNT, Column, Index, decimals, metrics, table
from nescio.rows import Row


def pixel_story(counts: PixelCounts, rows: Sequence[Row], reasons: Sequence[str], name: str) -> Story:
    """Return the page of a segmentation; `rows` and `reasons` are those of the counts."""
    overall_rows = [{**row, "pixels": "all"} for row in rows if "measure" not in row]
    scores = [row for row in rows if "measure" in row]
    classes = [
        {"class": str(label), "iou": float(iou), "pixels": int(counts.confusion[label].sum())}
        for label, iou in enumerate(counts.iou)
        if not math.isnan(iou)
    ]
    overall_metrics, rankings = metrics("miou", "accuracy"), metrics("auroc", "raulc", "aurc")
    by_class = [Column("IoU", "iou", format=decimals(4)), Column("pixels", "pixels", format=COUNT)]
    score = Index("measure", "score", keep=True)
    tables = [
        table(overall_rows, "Accuracy and mIoU", index=(Index("pixels", ""),), columns=overall_metrics),
        table(scores, "Misclassification detection of pixels", index=(score,), columns=rankings) if scores else None,
        table(classes, "IoU per class", index=("class",), columns=by_class, bold="none"),
    ]
    gaps = Definitions([("", reason) for reason in reasons], "Not computed")
    lead = [f"n = {counts.n:,} pixels."]
    if bound := counts.bound:
        lead.append(f"Scores are counted at {MAX_SCORES:,} values: AUROC, rAULC and AURC are exact to ± {bound:.1g}.")
    return Story(f"Segmentation: {name}", lead, [Section("", "", flatten([*tables, gaps]))])
