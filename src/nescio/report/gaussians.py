"""A note about class Gaussians that are fitted to too few training rows."""

from __future__ import annotations

from nescio.report.format import format_number, join_names
from nescio.report.frame import Frame
from nescio.report.labels import dataset_label

FEW = 2  # training rows of a class for each feature


def singular_gaussians(frame: Frame) -> list[str]:
    """One sentence for each dataset whose classes have so few training rows that Gaussians are singular, or nearly."""
    few = frame.facts("rows_per_feature").where(value=lambda rows: rows < FEW)
    sentences = []
    for (data,), networks in few.group_by("dataset"):
        least = min(networks.column("value"))
        singular = "are singular" if least < 1 else "are nearly singular"
        sentences.append(
            f"{dataset_label(data)}: the smallest class has {format_number(least, 2)} training rows for each feature, "
            f"so that the class Gaussians of {join_names(networks.unique('method'))} {singular}: their densities "
            "measure little more than the distance of a row to the span of a class's rows"
        )
    return sentences
