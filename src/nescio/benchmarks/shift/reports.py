"""Tables 2 and 3 and Figures 1, 3 and 4 of the paper, further tables, pictures of label maps, and the page."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace

from nescio.benchmarks.shift.lines import (
    MODEL,
    beside_scores,
    by_shift,
    clean_rows,
    common_note,
    first_measure,
    is_compared,
    level_note,
    line_table,
    over_seeds,
    panels,
    pooled_rows,
    shifted_rows,
    task_rows,
    undertrained,
)
from nescio.evaluations.base import ENTROPY, NATIVE
from nescio.evaluations.segmentation_shift import CORRUPTION
from nescio.evaluations.shift import CLEAN, RANKING
from nescio.report.blocks import Blocks, Gallery, SectionSpec, Story, Tabs, flatten
from nescio.report.charts.points import heat_figure
from nescio.report.format import count_methods, format_number, join_names, plural
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import bare_label, dataset_label, network_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, describe_best_line, story_of
from nescio.report.tables import Column, Index, Table, decimals, metrics, table
from nescio.report.verdicts import singular_gaussians
from nescio.rows import Row


def image_rows(frame: Frame) -> Frame:
    return task_rows(frame, "classification")


def pixel_rows(frame: Frame) -> Frame:
    return task_rows(frame, "segmentation")


# ---- tables of the paper


@report("shift/table2")
def table_2(frame: Frame) -> Table:
    """Clean accuracy; AUROC and rAULC of misclassification over all severities (Postels et al. 2022, Table 2)."""
    rows = image_rows(frame)
    accuracy = over_seeds(clean_rows(rows).where(metric="accuracy"))
    native = f". {NATIVE}: a method's native score, and the mutual information of an ensemble"
    return line_table(
        beside_scores(over_seeds(pooled_rows(rows)), accuracy),
        "Misclassification detection under corruption",
        metrics("accuracy", "auroc", "raulc", titles={"accuracy": "clean accuracy ↑"}),
        "AUROC and rAULC: clean images and all severities of one corruption together, "
        f"{common_note(rows, 'corruption')}{native if NATIVE in rows.unique('measure') else ''}",
        scores=True,
    )


@report("shift/table3", needs="rows of segmentation")
def table_3(frame: Frame) -> Table:
    """Clean mIoU; mIoU, AUROC and rAULC of pixels over all levels (Postels et al. 2022, Table 3)."""
    rows = pixel_rows(frame)
    pooled_means = over_seeds(pooled_rows(rows).where(measure=lambda name: name is not None))
    miou = [row | {"shift": CLEAN} for row in over_seeds(clean_rows(rows).where(metric="miou"))]
    miou += [row | {"shift": None} for row in over_seeds(pooled_rows(rows).where(metric="miou"))]
    columns = [
        Column("clean mIoU ↑", where={"metric": "miou", "shift": CLEAN}, metric="miou"),
        Column("pooled mIoU ↑", where={"metric": "miou", "shift": None}),
        *metrics("auroc", "raulc"),
    ]
    note = (
        "Pooled mIoU, AUROC and rAULC: all pixels of clean images and of all levels of one shift together, "
        f"{common_note(rows, 'shift')}"
    )
    if bound := max(rows.where(metric="bound").column(), default=0.0):
        note += f". AUROC and rAULC are computed from binned scores, with an error of at most {bound:.1g}"
    title = "Misclassification detection of pixels under shift"
    return line_table(beside_scores(pooled_means, Frame(miou)), title, columns, note, scores=True)


# ---- figures of the paper


@report("shift/fig1", needs="rows of corrupted images")
def figure_1(frame: Frame) -> Blocks:
    """Accuracy, AUROC, rAULC and ECE against severity, the mean over corruptions (Postels et al. 2022, Figure 1)."""
    shift_rows = image_rows(frame)
    rows, title = Frame([*clean_rows(shift_rows), *shifted_rows(shift_rows)]), "mean over corruptions"
    outcomes = panels(rows, "fig1", title, "accuracy", "ece")
    options = {"native score": panels(rows, "fig1", title, *RANKING)}
    entropy_rows = rows.where(measure=(None, ENTROPY))
    if NATIVE in rows.unique("measure") and entropy_rows.where(metric=RANKING):
        options |= {ENTROPY: panels(entropy_rows, f"fig1-{ENTROPY}", title, *RANKING)}
    return flatten([outcomes, Tabs("Uncertainty score", options) if len(options) > 1 else options["native score"]])


@report("shift/corruptions", needs="rows of two corruptions or more")
def every_corruption(frame: Frame) -> Blocks:
    """Figure 1 of every corruption, and rAULC of every line on every corruption."""
    rows = image_rows(frame)
    corrupted = shifted_rows(rows)
    if len(corrupted.unique("shift")) < 2:
        return None
    means = first_measure(corrupted.where(severity=None, metric="raulc")).summarise(
        [*MODEL, "shift"], over=["data_seed"]
    )
    several_datasets = len(means.unique("dataset")) > 1
    cells = [
        {"line": f"{network_label(row)}, {dataset_label(row['dataset'])}" if several_datasets else network_label(row)}
        | {"column": row["shift"].replace("_", " "), "value": row["value"], "n": row["n"]}
        for row in means
    ]
    caption = "Clean images and all severities together. More colour is better; none is chance or worse."
    heat = heat_figure(
        "heat", "rAULC on every corruption", caption, cells, "rAULC", 0.0, ("line", "corruption", "seeds")
    )
    return flatten([heat, Tabs("Corruption", by_shift(rows, corrupted, "fig1", "accuracy", *RANKING))])


def by_kind(frame: Frame) -> tuple[Frame, Frame]:
    """Rows of corruptions of five severities, and of other shifts, such as a fog by depth."""
    rows = shifted_rows(pixel_rows(frame))
    return rows.where(shift_kind=CORRUPTION), rows.where(shift_kind=lambda kind: kind != CORRUPTION)


@report("shift/fig3", needs="rows of segmentation under corruptions")
def figure_3(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels against severity, every corruption (Postels et al. 2022, Figure 3)."""
    return Tabs("Corruption", by_shift(pixel_rows(frame), by_kind(frame)[0], "fig3", "miou", *RANKING))


@report("shift/fig4", needs="rows of segmentation under a continuous shift")
def figure_4(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels over the levels of every continuous shift (Postels et al. 2022, Figure 4)."""
    figures = by_shift(pixel_rows(frame), by_kind(frame)[1], "fig4", "miou", *RANKING, numbers=True)
    return [panel for panels in figures.values() for panel in panels]


# ---- further tables


@report("shift/answers", needs="rows of corrupted images")
def prediction_metrics(frame: Frame) -> Blocks:
    """Accuracy, ECE and NLL against severity, the mean over corruptions."""
    rows = image_rows(frame)
    rows = Frame([*clean_rows(rows), *shifted_rows(rows)])
    rows = rows.where(severity=lambda level: level is not None).sort("severity")
    return [
        line_table(
            over_seeds(selected, "severity"),
            f"{bare_label(metric)} by severity",
            [Column(f"severity {level:g}" if level else CLEAN, where={"severity": level}) for level in levels],
            "Mean over corruptions",
        )
        for metric in ("accuracy", "ece", "nll")
        for selected in [rows.where(metric=metric)]
        for levels in [selected.unique("severity")]
    ]


@report("shift/levels", needs="rows of segmentation")
def every_level(frame: Frame) -> Blocks:
    """mIoU at every level of every shift."""
    rows, tables = pixel_rows(frame).where(metric="miou"), []
    for (shift,), selected in shifted_rows(rows).where(severity=lambda level: level is not None).group_by("shift"):
        levels = selected.sort("severity").unique("severity")
        heads = [Column(CLEAN, where={"shift": CLEAN})]
        heads += [Column(f"{level:g}", where={"shift": shift, "severity": level}) for level in levels]
        means = over_seeds(Frame([*clean_rows(rows), *selected]), "shift", "severity")
        title = f"mIoU at every level: {shift.replace('_', ' ')}"
        tables.append(line_table(means, title, heads, level_note(shift).removesuffix("."), spread=False))
    return tables


@report("shift/ood", needs="rows about OOD sets")
def out_of_distribution(frame: Frame) -> Table:
    """AUROC of OOD images against clean test images."""
    ood = image_rows(frame).where(evaluation="ood", metric="auroc", target=lambda name: name is not None)
    heads = [Column(f"{target} ↑", where={"target": target}) for target in ood.unique("target")]
    note = "AUROC of OOD images against clean test images"
    return line_table(over_seeds(ood, "target"), "OOD detection", heads, note, scores=True)


@report("shift/strengths", needs="two regularisation strengths or more")
def strengths(frame: Frame) -> Table | None:
    """Regularisation strengths tried, and those chosen by the NLL of validation images with the first seed."""
    rows: list[Row] = []
    for (data, method), selected in frame.where(split="val", metric="nll").group_by("dataset", "method"):
        trials = {row["trial"]: row for row in selected}.values()
        best = min(trials, key=lambda row: row["value"])["trial"]
        rows += [
            {"dataset": data, "method": method, "strength": row["strength"], "metric": "nll", "value": row["value"]}
            | {"chosen": "chosen" if row["trial"] == best else None}
            for row in trials
        ]
    if not rows:
        return None
    note = "Validation images, seed 0; the chosen strength is that of all seeds. The weakest strength is first"
    heads, index = (
        [Column("validation NLL ↓"), Column("", field="chosen")],
        ("method", "dataset", Index("strength", keep=True)),
    )
    return table(rows, "Choice of the strength", index=index, columns=heads, format=decimals(3), bold="none", note=note)


@report("shift/training", needs="networks whose training accuracy is known")
def training(frame: Frame) -> Table:
    """Training accuracy of every method: undertrained methods cannot be compared."""
    titles = {"train_accuracy": "training accuracy ↑", "at_bound": "layers at their bound"}
    rows = frame.facts(*titles).where(members=1).summarise([*MODEL[:3], "metric"], over=["data_seed"])
    notes = ["Layers at their bound: the share whose spectral norm is reduced; at 0 the bound has no effect"]
    notes = [*(notes if frame.facts("at_bound") else []), *singular_gaussians(frame)]
    columns = [Column(titles[name], where={"metric": name}) for name in titles if name in rows.unique("metric")]
    options = {"format": decimals(3), "bold": "none", "note": ". ".join(notes)}
    return table(rows, "Training of the networks", index=("method", "dataset", "backbone"), columns=columns, **options)  # type: ignore[arg-type]


# ---- pictures


def pictures(study: Study) -> Blocks:
    """Image, labels, predictions and uncertainty of every line: of a few images, clean and at the last levels."""
    options = {}
    for (shift, level, image), rows in Frame(study.pictures).group_by("shift", "severity", "image"):
        name = shift.replace("_", " ") + (f" {level:g}" if shift != CLEAN else "")
        options[f"{name}, image {image}"] = [Gallery(tuple(map(_picture, rows)), wide=True)]
    return Tabs("Images", options)


def _picture(row: Row) -> tuple[bytes, str, str]:
    """A picture, its title and its caption."""
    shows, caption = row["shows"], ""
    if shows == "prediction" and row["value"] is not None:  # None if all pixels are void
        caption = f"{row['value']:.0%} of the pixels are correct"
    elif shows == "uncertainty":
        caption = f"{row['measure'].replace('_', ' ')}: brighter is more uncertain"
    return b64decode(row["png"]), f"{network_label(row)}: {shows}" if "method" in row else shows, caption


def colour_legend(study: Study) -> Gallery:
    """The colours of the classes in the pictures; empty for studies without their names."""
    bars = dict.fromkeys(bar for row in study.pictures for bar in row.get("classes", {}).items())
    return Gallery(tuple((b64decode(bar), name, "") for name, bar in bars), wide=True)


def about_pictures(study: Study) -> str:
    """Explanations of the pictures."""
    levels = dict.fromkeys(level_note(row["shift"]) for row in study.pictures)
    scale = "Greys of uncertainty have one scale for each line: images and levels can be compared."
    return " ".join([scale, *filter(None, levels)])


# ---- the page


def first_look(study: Study) -> list[Table]:
    """The paper's tables, one for every dataset."""
    datasets = list(study.frame.group_by("dataset"))
    builders: tuple[Callable[[Frame], Table], ...] = (table_2, table_3)
    tables = [(data, table) for (data,), rows in datasets for make_table in builders if (table := make_table(rows))]
    if len(datasets) == 1:
        return [table for _, table in tables]
    return [replace(table, title=f"{dataset_label(data)}: {table.title}") for data, table in tables]


def story(study: Study) -> Story:
    frame = study.frame
    picture_blocks = pictures(study), colour_legend(study)
    sections: list[SectionSpec] = [
        ("Table", "Misclassification detection", first_look(study)),
        ("Severity", "Metrics by severity", [figure_1(frame), prediction_metrics(frame)]),
        ("Corruptions", "Metrics by corruption", [every_corruption(frame)]),
        ("Levels", "Segmentation by level", [figure_4(frame), figure_3(frame), every_level(frame)]),
        ("Pictures", "Predictions and uncertainty of pixels", [*picture_blocks], about_pictures(study)),
        ("OOD sets", "OOD detection", [out_of_distribution(frame)]),
        ("Training", "Training and choice of the strength", [training(frame), strengths(frame)]),
    ]
    data = join_names([dataset_label(name) for name in frame.unique("dataset")])
    return story_of(study, f"Misclassification detection under shift: rAULC on {data}", _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """The best method on each dataset, its difference to the others, and the undertrained methods."""
    lines = [row for _, (row, *_) in clean_rows(frame).group_by(*MODEL)]
    seeds = plural(len(frame.unique("data_seed")), "seed").lower()
    lead = [f"{count_methods(lines)}, {seeds}, {plural(len(shifted_rows(frame).unique('shift')), 'shift').lower()}."]
    for (data,), subset in frame.group_by("dataset"):
        raulc_rows = [pooled_rows(task_rows(subset, task)).where(metric="raulc") for task in subset.unique("task")]
        means = over_seeds(Frame(row for rows in raulc_rows for row in rows if is_compared(row)))
        if not means:
            continue
        best, *others = means.sort("value", reverse=True)
        runs = {f"{network_label(row)} by {row['measure']}": repetitions_of(row) for row in (best, *others)}
        lead.append(describe_best_line(f"rAULC on {dataset_label(data)}", runs))
        if entropy_rows := [row for row in others if (network_label(row), row["measure"]) == ("erm", ENTROPY)]:
            lead.append(f"rAULC of plain softmax entropy (erm): {format_number(entropy_rows[0]['value'], 3)}.")
        if subset.where(own_augmentation=True, method=best["method"]):
            lead.append(
                f"{best['method']} is trained with augmentations of its own, which may explain the difference; "
                "augment=full gives the same augmentations to all methods."
            )
    if weak := undertrained(frame):
        several_datasets = len(frame.unique("dataset")) > 1
        names = [f"{method} on {dataset_label(data)}" if several_datasets else method for data, method in weak]
        lead.append(f"Undertrained, so no finding about the method: {join_names(names)}.")
    return lead
