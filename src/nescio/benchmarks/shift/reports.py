"""Table 2 and Figure 1 of the paper, further tables of classification, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nescio.benchmarks.shift import pixel_reports
from nescio.benchmarks.shift.lines import (
    LINE,
    MODEL,
    TESTED,
    by_shift,
    clean,
    common_note,
    compared,
    first_measure,
    has_native,
    images,
    labels,
    marked,
    name_of,
    over_runs,
    panels,
    pooled,
    shifted,
    undertrained,
    values_of,
    without_undertrained,
)
from nescio.evaluations.base import ENTROPY, NATIVE
from nescio.evaluations.shift import CLEAN, RANKING
from nescio.report.blocks import Blocks, SectionSpec, Story, Tabs, flatten
from nescio.report.charts.points import heat_figure
from nescio.report.format import count_methods, format_number, join_names, plural
from nescio.report.frame import Frame
from nescio.report.gaussians import singular_gaussians
from nescio.report.labels import bare_label, dataset_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Column, Index, Table, decimals, metrics, table
from nescio.rows import Row

# ---- the paper's table and figure

NAMED = 3  # lines, in the lead


@report("shift/table2")
def table_2(frame: Frame) -> Table:
    """Clean accuracy, and AUROC and rAULC of right against wrong over all severities (Postels et al. 2022, Table 2)."""
    frame = images(frame)
    rows = compared(frame, pooled(frame))
    accuracy = {values_of(row, MODEL): row for row in compared(frame, clean(frame).where(metric="accuracy"))}
    ranked = dict.fromkeys(values_of(row, LINE) for row in rows)
    unranked = [(*model, None) for model in accuracy if model not in {line[:-1] for line in ranked}]
    rows += [accuracy[tuple(model)] | {"measure": measure} for *model, measure in [*ranked, *unranked]]
    about_native = f"{NATIVE}: a method's native score, and the mutual information of an ensemble. "
    native_note = about_native if has_native(frame) else ""
    return table(
        marked(frame, rows),
        "Does uncertainty tell right from wrong under corruption?",
        index=(*labels(frame), Index("measure", keep=True)),
        columns=metrics("accuracy", "auroc", "raulc", titles={"accuracy": "clean accuracy ↑"}),
        format=decimals(3),
        compare_within=("dataset",),
        note="AUROC and rAULC of wrong against right answers: clean images and all severities of one corruption "
        f"together, {common_note(frame, 'corruption')}. {native_note}{over_runs(frame, rows)}",
    )


@report("shift/fig1", needs="rows of corrupted images")
def figure_1(frame: Frame) -> Blocks:
    """Accuracy, AUROC, rAULC and ECE against severity, the mean over corruptions (Postels et al. 2022, Figure 1)."""
    selected, low = Frame([*clean(images(frame)), *shifted(images(frame))]), undertrained(frame)
    title = "mean over corruptions"
    right = panels(selected, "fig1", title, "accuracy", "ece", low=low)
    ranked = {"own score": panels(selected, "fig1", title, *RANKING, low=low)}
    if has_native(selected) and (others := selected.where(measure=(None, ENTROPY))).where(metric=RANKING):
        ranked |= {ENTROPY: panels(others, f"fig1-{ENTROPY}", title, *RANKING, low=low)}
    return flatten([right, Tabs("Ranked by", ranked) if len(ranked) > 1 else ranked["own score"]])


@report("shift/corruptions", needs="rows of two corruptions or more")
def every_corruption(frame: Frame) -> Blocks:
    """Figure 1 of every corruption, and rAULC of every line on every corruption at a glance."""
    selected = shifted(images(frame))
    if len(selected.unique("shift")) < 2:
        return None
    options = by_shift(images(frame), selected, "fig1", "accuracy", *RANKING)
    means = first_measure(selected.where(severity=None, metric="raulc")).summarise(
        [*MODEL, "shift"], over=["data_seed"]
    )
    several = len(means.unique("dataset")) > 1
    cells = [
        {"line": f"{name_of(row)}, {dataset_label(row['dataset'])}" if several else name_of(row)}
        | {"column": row["shift"].replace("_", " "), "value": row["value"], "n": row["n"]}
        for row in marked(frame, list(means))
    ]
    caption = "Clean images and all severities together. More colour is better; none is chance or worse."
    names = ("line", "corruption", "runs")
    heat = heat_figure("heat", "rAULC on every corruption", caption, cells, "rAULC", 0.0, names)
    return flatten([heat, Tabs("Corruption", options)])


# ---- beside them


@report("shift/answers", needs="rows of corrupted images")
def answers(frame: Frame) -> Blocks:
    """Accuracy, ECE and NLL against severity, the mean over corruptions."""
    frame = images(frame)
    selected = Frame([*clean(frame), *shifted(frame)]).where(severity=lambda level: level is not None)
    blocks = []
    for metric in ("accuracy", "ece", "nll"):
        subset = selected.where(metric=metric).sort("severity")
        heads = [
            Column(f"severity {level:g}" if level else CLEAN, where={"severity": level})
            for level in subset.unique("severity")
        ]
        rows = compared(frame, subset, "severity")
        note = f"Mean over corruptions. {over_runs(frame, rows)}"
        title, lines, form = f"{bare_label(metric)} by severity", labels(frame), decimals(3)
        displayed = marked(frame, rows)
        blocks.append(
            table(displayed, title, index=lines, columns=heads, format=form, compare_within=("dataset",), note=note)
        )
    return blocks


@report("shift/ood", needs="rows about OOD sets")
def out_of_distribution(frame: Frame) -> Table:
    """AUROC of images of other sets against clean test images."""
    ood = frame.where(evaluation="ood", metric="auroc", target=lambda name: name is not None)
    rows = compared(frame, ood, "target")
    heads = [Column(f"{target} ↑", where={"target": target}) for target in Frame(rows).unique("target")]
    title = "Does uncertainty tell images of other sets from test images?"
    lines = (*labels(frame), Index("measure", keep=True))
    note = f"AUROC against clean test images. {over_runs(frame, rows)}"
    selected = marked(frame, rows)
    return table(
        selected, title, index=lines, columns=heads, format=decimals(3), compare_within=("dataset",), note=note
    )


@report("shift/strengths", needs="two regularisation strengths or more")
def strengths(frame: Frame) -> Blocks:
    """Which strength of each method's regularisation was chosen, by the NLL of validation images in run 0."""
    rows: list[Row] = []
    for (data, method), selected in frame.where(split="val").group_by("dataset", "method"):
        tried = selected.where(metric="nll")
        losses, values = ({row["trial"]: row[name] for row in tried} for name in ("value", "strength"))
        best = min(losses, key=lambda trial: losses[trial])
        for trial, loss in losses.items():
            row = {"dataset": data, "method": method, "strength": values[trial], "metric": "nll", "value": loss}
            rows.append(row | {"chosen": "chosen" if trial == best else None})
    if not rows:
        return None
    note = "Run 0; the strength with the lowest NLL of validation images is that of all runs. From the weakest on"
    heads = [Column("validation NLL ↓"), Column("", field="chosen")]
    lines = ("method", "dataset", Index("strength", keep=True))
    return table(rows, "Strengths tried", index=lines, columns=heads, format=decimals(3), bold="none", note=note)


@report("shift/training", needs="networks whose training accuracy is known")
def training(frame: Frame) -> Blocks:
    """Training accuracy of every method: undertrained methods cannot be compared."""
    titles = {"train_accuracy": "training accuracy ↑", "at_bound": "layers at their bound"}
    rows = frame.facts(*titles).where(members=1).summarise([*MODEL[:3], "metric"], over=["data_seed"])
    notes = ["Layers at their bound: the share that the spectral norm holds back; at 0 it does nothing"]
    notes = [*(notes if frame.facts("at_bound") else []), *singular_gaussians(frame)]
    heads = [Column(titles[name], where={"metric": name}) for name in titles if name in rows.unique("metric")]
    lines, title = labels(frame)[:3], "What the networks learnt"
    return table(rows, title, index=lines, columns=heads, format=decimals(3), bold="none", note=". ".join(notes))


# ---- the page


def first_look(study: Study) -> list[Table]:
    """The paper's tables, one for every dataset."""
    datasets = list(study.frame.group_by("dataset"))
    pairs = [(data, make(rows)) for (data,), rows in datasets for make in (table_2, pixel_reports.table_3)]
    tables = [(data, paper_table) for data, paper_table in pairs if paper_table]
    if len(datasets) == 1:
        return [paper_table for _, paper_table in tables]
    return [replace(paper_table, title=f"{dataset_label(data)}: {paper_table.title}") for data, paper_table in tables]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Table", "Does uncertainty tell right from wrong?", first_look(study)),
        ("Severity", "What happens as images get worse?", [figure_1(frame), answers(frame)]),
        ("Corruptions", "Is it the same for every corruption?", [every_corruption(frame)]),
        (
            "Levels",
            "What happens as the shift grows?",
            [pixel_reports.figure_4(frame), pixel_reports.figure_3(frame), pixel_reports.every_level(frame)],
        ),
        (
            "Pictures",
            "What does it look like?",
            [pixel_reports.pictures(study), pixel_reports.colour_legend(study)],
            pixel_reports.about_pictures(study),
        ),
        ("Other sets", "Are images of other sets noticed?", [out_of_distribution(frame)]),
        ("Training", "What was trained?", [training(frame), strengths(frame)]),
    ]
    title = (
        f"{join_names([dataset_label(data) for data in frame.unique('dataset')])}: who knows what is wrong under shift?"
    )
    return story_of(study, title, _lead(frame), sections)


def _alike(best: Row, alike: Sequence[Row]) -> str:
    """The test of a line's lead over the next one."""
    if best["n"] < TESTED:
        return f" ({plural(best['n'], 'run').lower()}: no test)"
    names = [f"{name_of(row)} by {row['measure']}" for row in alike]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED + 1 else []
    return f"; {join_names([*names[: NAMED if more else None], *more])} not significantly different" if names else ""


def _lead(frame: Frame) -> list[str]:
    """The best methods, their lead, and the undertrained methods."""
    lines = [row for _, (row, *_) in clean(frame).group_by(*MODEL)]
    conditions = shifted(frame).unique("shift")
    runs = plural(len(frame.unique("data_seed")), "run").lower()
    lead = [f"{count_methods(lines)}, {runs}, {plural(len(conditions), 'shift').lower()}."]
    for (data,), subset in frame.group_by("dataset"):
        selected = Frame(compared(frame, pooled(subset).where(metric="raulc")))
        if not (trained := without_undertrained(frame, selected)):
            continue
        best, *others = trained.sort("value", reverse=True)
        lead.append(
            f"On {dataset_label(data)}, {name_of(best)} ranks right above wrong answers best, by {best['measure']}: "
            f"rAULC {format_number(best['value'], 3)}{_alike(best, [row for row in others if row['best']])}."
        )
        if plain := [row for row in others if (name_of(row), row["measure"]) == ("erm", ENTROPY)]:
            lead.append(f"Plain softmax entropy (erm) has {format_number(plain[0]['value'], 3)}.")
        if subset.where(own_augmentation=True, method=best["method"]):
            lead.append(
                f"{best['method']} is trained with augmentations of its own, which may be what leads: the setting "
                "augment=full gives the same to all."
            )
    if low := undertrained(frame):
        several = len(frame.unique("dataset")) > 1
        names = [f"{method} on {dataset_label(data)}" if several else method for data, method in low]
        lead.append(f"Undertrained, and no finding about the method: {join_names(names)}.")
    return lead
