"""Table 3 and Figures 3 and 4 of the paper: segmentation; and pictures of label maps."""

from __future__ import annotations

from base64 import b64decode

from nescio.benchmarks.shift.lines import (
    LINE,
    MODEL,
    about_level,
    by_shift,
    clean,
    common_note,
    compared,
    labels,
    marked,
    name_of,
    over_runs,
    pixels,
    pooled,
    shifted,
    values_of,
)
from nescio.evaluations.segmentation_shift import CORRUPTION
from nescio.evaluations.shift import CLEAN, RANKING
from nescio.report.blocks import Blocks, Gallery, Tabs
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.studies import Study
from nescio.report.tables import Column, Index, Table, decimals, metrics, table
from nescio.rows import Row

PICTURED = "Greys of uncertainty have one scale for each line: they can be compared between images and levels."


@report("shift/table3", needs="rows of segmentation")
def table_3(frame: Frame) -> Table:
    """Clean mIoU, and mIoU, AUROC and rAULC of pixels over all levels (Postels et al. 2022, Table 3)."""
    frame = pixels(frame)
    ranked = compared(frame, pooled(frame).where(measure=lambda name: name is not None))
    answers = [row | {"shift": CLEAN} for row in compared(frame, clean(frame).where(metric="miou"))]
    answers += [row | {"shift": None} for row in compared(frame, pooled(frame).where(metric="miou"))]
    lines = dict.fromkeys(values_of(row, LINE) for row in ranked)
    unranked = dict.fromkeys((*values_of(row, MODEL), None) for row in answers)
    rows = ranked + [
        row | {"measure": measure}
        for *model, measure in [
            *lines,
            *(line for line in unranked if line[:-1] not in {selected[:-1] for selected in lines}),
        ]
        for row in answers
        if values_of(row, MODEL) == tuple(model)
    ]
    heads = [
        Column("clean mIoU ↑", where={"metric": "miou", "shift": CLEAN}, metric="miou"),
        Column("pooled mIoU ↑", where={"metric": "miou", "shift": None}),
        *metrics("auroc", "raulc"),
    ]
    bound = max(frame.where(metric="bound").column("value"), default=0.0)
    exact = f" Scores are counted, not kept: no AUROC or rAULC of a shift is off by more than {bound:.1g}."
    return table(
        marked(frame, rows),
        "Does uncertainty tell right from wrong pixels under shift?",
        index=(*labels(frame), Index("measure", keep=True)),
        columns=heads,
        format=decimals(3),
        compare_within=("dataset",),
        note="Pooled mIoU, AUROC and rAULC: all pixels of clean images and of all levels of one shift together, "
        f"{common_note(frame, 'shift')}.{exact if bound else ''} {over_runs(frame, rows)}",
    )


def by_kind(frame: Frame) -> tuple[Frame, Frame]:
    """Rows of corruptions of five severities, and of other shifts, such as a fog by depth."""
    selected = shifted(pixels(frame))
    return selected.where(shift_kind=CORRUPTION), selected.where(shift_kind=lambda kind: kind != CORRUPTION)


@report("shift/fig3", needs="rows of segmentation under corruptions")
def figure_3(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels against severity, every corruption (Postels et al. 2022, Figure 3)."""
    corrupted, _ = by_kind(frame)
    return Tabs("Corruption", by_shift(pixels(frame), corrupted, "fig3", "miou", *RANKING))


@report("shift/fig4", needs="rows of segmentation under a continuous shift")
def figure_4(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels over the levels of every continuous shift (Postels et al. 2022, Figure 4)."""
    _, continuous = by_kind(frame)
    figures = by_shift(pixels(frame), continuous, "fig4", "miou", *RANKING, numbers=True)
    return [panel for side_by_side in figures.values() for panel in side_by_side]


@report("shift/levels", needs="rows of segmentation")
def every_level(frame: Frame) -> Blocks:
    """mIoU at every level of every shift."""
    blocks, frame = [], pixels(frame)
    selected = frame.where(metric="miou")
    for (name,), every in shifted(selected).where(severity=lambda level: level is not None).group_by("shift"):
        subset = every.sort("severity")
        rows = compared(frame, Frame([*clean(selected), *subset]), "shift", "severity")
        levels = [Column(f"{level:g}", where={"shift": name, "severity": level}) for level in subset.unique("severity")]
        heads = [Column(CLEAN, where={"shift": CLEAN}), *levels]
        blocks.append(
            table(
                marked(frame, rows),
                f"mIoU at every level: {name.replace('_', ' ')}",
                index=labels(selected),
                columns=heads,
                format=decimals(3),
                compare_within=("dataset",),
                note=f"{about_level(name)} {over_runs(frame, rows, 'Mean')}".strip(),
                spread=False,
            )
        )
    return blocks


def pictures(study: Study) -> Blocks:
    """Image, labels, and every line's answers and uncertainty: of a few images, clean and at the last levels."""
    options = {}
    for (condition, level, image), selected in Frame(study.pictures).group_by("shift", "severity", "image"):
        name = condition.replace("_", " ") + (f" {level:g}" if condition != CLEAN else "")
        options[f"{name}, image {image}"] = [Gallery(tuple(_picture(row) for row in selected), wide=True)]
    return Tabs("Images", options)


def _picture(row: Row) -> tuple[bytes, str, str]:
    """A picture, what it shows, and what to say of it."""
    shows, caption = row["shows"], ""
    if shows == "prediction" and row["value"] is not None:  # None: all of it is void
        caption = f"{row['value']:.0%} of the pixels are right"
    elif shows == "uncertainty":
        caption = f"{row['measure'].replace('_', ' ')}: brighter is less sure"
    return b64decode(row["png"]), f"{name_of(row)}: {shows}" if "method" in row else shows, caption


def colour_legend(study: Study) -> Gallery:
    """Bars of the colours that stand for classes in the pictures; empty where a study does not say which do."""
    bars = dict.fromkeys(bar for row in study.pictures for bar in row.get("classes", {}).items())
    return Gallery(tuple((b64decode(bar), name, "") for name, bar in bars), wide=True)


def about_pictures(study: Study) -> str:
    """How to read the pictures, and the level of those whose numbers do not say it."""
    levels = dict.fromkeys(about_level(row["shift"]) for row in study.pictures)
    return " ".join([PICTURED, *filter(None, levels)])
