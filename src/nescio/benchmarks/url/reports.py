"""The figures and the table of the paper under its names, further tables, and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from nescio.report.blocks import Blocks, Figure, Panel, SectionSpec, Story
from nescio.report.charts.levels import levels_figure
from nescio.report.charts.points import dots_chart, heat_figure, scatter_figure
from nescio.report.format import count_methods, format_millions, format_number, join_names, plural
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import dataset_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, describe_best_line, story_of
from nescio.report.tables import Column, Index, Table, decimals, table
from nescio.rows import Row

TRANSFER, OWN_IMAGE, FEW_SHOT, MANY_SHOT = "transfer", "own-image", "few-shot", "many-shot"  # evaluations
CHECKPOINTS = "checkpoints"
R_AUROC, RECALL_AT_1, CROPS = "r_auroc", "recall_at_1", "crop_agreement"
CRITERIA = {R_AUROC: "R-AUROC", RECALL_AT_1: "R@1"}  # criteria for the choice of hyper-parameters
NORMAL = 1.96  # half-width of a 95 % interval in standard deviations
LINE = ("method", "backbone")
NETWORK = (*LINE, "trial", "data_seed")
LABELS = (Index("method", keep=True), "backbone")
Line = tuple[str, str]
Quantity = tuple[str, str]  # metric, split
Values = dict[tuple[object, ...], float]  # network → value
TITLES: dict[Quantity, str] = {
    (R_AUROC, "test"): "R-AUROC downstream",
    (RECALL_AT_1, "test"): "R@1 downstream",
    (CROPS, "test"): "crop agreement downstream",
    (R_AUROC, "upstream"): "R-AUROC upstream",
    (RECALL_AT_1, "upstream"): "R@1 upstream",
    (CROPS, "upstream"): "crop agreement upstream",
    ("accuracy", "upstream"): "accuracy upstream",
    ("auroc", "upstream"): "misclassification AUROC upstream",
    (R_AUROC, "human"): "R-AUROC on sets with votes",
    (CROPS, "human"): "crop agreement on sets with votes",
    ("human_alignment", "human"): "alignment with human votes",
    ("auroc", "out"): "AUROC of OOD detection: downstream against upstream images",
    (R_AUROC, "mixed"): "R-AUROC of half upstream, half downstream images",
}
SHORT = {R_AUROC: "R-AUROC", RECALL_AT_1: "R@1", CROPS: "crops", "accuracy": "accuracy", "auroc": "AUROC"}
AREA: Quantity = (R_AUROC, "test")
RECALL: Quantity = (RECALL_AT_1, "test")
PREDICTORS = (((R_AUROC, "upstream"), AREA), ((CROPS, "upstream"), AREA))
HUMAN: Quantity = (R_AUROC, "human")
ALIGNMENTS = ((HUMAN, ("human_alignment", "human")), (HUMAN, (CROPS, "human")))


# ---- rows


def line_of(row: Mapping[str, Any]) -> Line:
    return row["method"], row["backbone"]


def of_pretrained(evaluation: str) -> bool:
    """Whether an evaluation is of pretrained networks, by labels or by single images."""
    return evaluation not in (OWN_IMAGE, FEW_SHOT, MANY_SHOT, CHECKPOINTS)


def chosen_trials(frame: Frame, criterion: str = R_AUROC) -> dict[Line, Row]:
    """(method, backbone) → a row of the chosen trial, with the score that it was chosen by (`chosen_measure`)."""
    trials = [rows.rows[0] for _, rows in frame.group_by(*LINE, "trial", "chosen_by")]
    return {line_of(row): row for row in trials if criterion in str(row.get("chosen_by")).split(", ")}


def by_chosen_score(frame: Frame, criterion: str | None = None) -> Frame:
    """Rows by the score that ranks a method: of all networks, or of those that a criterion chose."""
    scores = chosen_trials(frame, RECALL_AT_1) | chosen_trials(frame)
    selected = chosen_trials(frame, criterion) if criterion else scores

    def belongs(row: Row) -> bool:
        line = line_of(row)
        if line not in selected or (criterion and row["trial"] != selected[line]["trial"]):
            return False
        return row["measure"] in (None, scores[line]["chosen_measure"])

    position = {line: number for number, line in enumerate(scores)}  # the same order and colours in all figures
    return Frame(sorted((row for row in frame if belongs(row)), key=lambda row: position[line_of(row)]))


def select(frame: Frame, quantity: Quantity, criterion: str) -> Frame:
    """Rows of one quantity of the pretrained networks that a criterion chose, by the score that ranks a method."""
    metric, split = quantity
    return by_chosen_score(frame, criterion).where(metric=metric, split=split, evaluation=of_pretrained)


def network_values(
    frame: Frame, quantities: Iterable[Quantity], criterion: str | None = None
) -> dict[Quantity, Values]:
    """Quantity → network → mean over downstream sets."""
    rows = by_chosen_score(frame, criterion).where(evaluation=of_pretrained)
    return {
        (metric, split): {
            network: sets.mean() for network, sets in rows.where(metric=metric, split=split).group_by(*NETWORK)
        }
        for metric, split in quantities
    }


def networks(values: Mapping[Quantity, Values], *quantities: Quantity) -> list[Row]:
    """One row per network that has all quantities."""
    return [
        dict(zip(NETWORK, network, strict=True))
        | {"name": network[0], "seed": network[3]}
        | {TITLES[quantity]: values[quantity][network] for quantity in quantities}
        for network in values[quantities[0]]
        if all(network in values[quantity] for quantity in quantities)
    ]


def name_of(row: Row, frame: Frame) -> str:
    """The name of a line in figures: its method, and its backbone if there are several."""
    several = len(frame.where(chosen_by=lambda names: names is not None).unique("backbone")) > 1
    return f"{row['method']}, {row['backbone']}" if several else str(row["method"])


def over_seeds(frame: Frame, quantity: Quantity, criterion: str = R_AUROC) -> list[Row]:
    """One row per method and backbone: mean, lowest and highest seed, and interval over images.

    `noise` is the variance due to the test images, which all seeds share.
    """
    rows: list[Row] = []
    for _, line_rows in select(frame, quantity, criterion).group_by(*LINE):
        (row,) = line_rows.summarise((*LINE, "metric"), over=["data_seed"])
        low, high = _interval(line_rows) or (None, None)
        image_variance = None if low is None or high is None else ((high - low) / 2 / NORMAL) ** 2
        measure = next((name for name in line_rows.unique("measure") if name), None)
        row |= {"least": min(row["values"]), "most": max(row["values"]), "measure": measure}
        rows.append(row | {"spread": None, "low": low, "high": high, "noise": image_variance})
    return rows


def rank_methods(frame: Frame, quantity: Quantity, criterion: str = R_AUROC) -> list[Row]:
    """The rows of `over_seeds`, the highest first."""
    return sorted(over_seeds(frame, quantity, criterion), key=lambda row: -row["value"])


def _interval(rows: Frame) -> tuple[float, float] | None:
    """The interval over images of the mean over sets, and the mean over seeds; None without intervals.

    Sets are independent samples, so that the squared widths of their intervals add up.
    """
    rows = rows.where(low=lambda end: end is not None)
    if not rows:
        return None
    means = [
        {end: fmean(target.column(end)) for end in ("low", "value", "high")} for _, target in rows.group_by("target")
    ]
    below, above = (math.hypot(*(mean[end] - mean["value"] for mean in means)) / len(means) for end in ("low", "high"))
    value = fmean(mean["value"] for mean in means)
    return value - below, value + above


def rows_with_labels(frame: Frame, evaluation: str, metric: str) -> Frame:
    """Rows of networks trained on a few (`few-shot`) or all (`many-shot`) labelled images of the test classes.

    The upper bound is plain training by its entropy.
    """
    rows = frame.where(measure=(None, "entropy")) if evaluation == MANY_SHOT else by_chosen_score(frame, R_AUROC)
    return rows.where(evaluation=evaluation, metric=metric)


def upper_bound(frame: Frame, metric: str) -> tuple[str, float] | None:
    rows = rows_with_labels(frame, MANY_SHOT, metric)
    return ("trained on the test classes", rows.mean()) if rows else None


# ---- figures


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the paper.

    draw          function of the rows and this specification
    panels        quantities of each panel, such as its x and y
    criterion     draw the networks that it chose; None: all networks
    bounded       draw the upper bound
    transformers  draw backbones with attention only, or the others; None: all
    """

    name: str
    title: str
    draw: Callable[[Frame, FigureSpec], Blocks]
    panels: tuple[tuple[Quantity, ...], ...]
    criterion: str | None = R_AUROC
    bounded: bool = False
    transformers: bool | None = None

    @property
    def needs(self) -> str:
        """The reason why the figure is empty."""
        if self.name in NEEDS:
            return NEEDS[self.name]
        axes = " and ".join(dict.fromkeys(TITLES[quantity] for panel in self.panels for quantity in panel))
        kind = {None: "", False: " of convolutional backbones", True: " of vision transformers"}[self.transformers]
        return f"networks{kind} with {axes}"

    def __call__(self, frame: Frame) -> Blocks:
        return self.draw(frame, self)


def draw_seeds(frame: Frame, spec: FigureSpec) -> Blocks:
    """Lowest, mean and highest seed of every method."""
    (((metric, split),),) = spec.panels
    criterion = spec.criterion or R_AUROC
    rows = rank_methods(frame, (metric, split), criterion)
    if not rows:
        return None
    columns = {"lowest seed": "least", "mean": "value", "highest seed": "most"}
    columns = columns if rows[0]["n"] > 1 else {"mean": "value"}
    points = [
        {"name": name_of(row, frame), "kind": kind, "value": row[column], "spread": None}
        for row in rows
        for kind, column in columns.items()
    ]
    title, guide = TITLES[metric, split], upper_bound(frame, metric) if spec.bounded else None
    seeds = plural(rows[0]["n"], "seed").lower()
    caption = f"{title}, {seeds} of the hyper-parameters chosen by {CRITERIA[criterion]}."
    return Figure(spec.name, spec.title, caption, partial(dots_chart, points, title, guide), points)


def draw_networks(frame: Frame, spec: FigureSpec) -> Blocks:
    """Networks as points, with rank correlations of x and y."""
    figures = []
    for number, (x, y) in enumerate(spec.panels, start=1):
        points = networks(network_values(frame, (x, y), spec.criterion), x, y)
        if spec.transformers is not None:
            points = [point for point in points if ("vit" in point["backbone"]) == spec.transformers]
        if points:
            caption = describe_correlation(Frame(points), TITLES[x], TITLES[y])
            tips = {"method": "method", "backbone": "backbone", "trial": "trial", "seed": "seed"}
            key = f"{spec.name}-{number}"
            figures.append(scatter_figure(key, spec.title, caption, points, TITLES[x], TITLES[y], tips))
    return [Panel(figures)] if figures else None


def describe_correlation(points: Frame, x: str, y: str) -> str:
    methods = {name: rows.correlation(x, y) for (name,), rows in points.group_by("method")}
    method_rhos = [f"{name} {format_number(value, 2)}" for name, value in methods.items() if value is not None]
    sentences = [f"{plural(len(points), 'network')}."]
    if (value := points.correlation(x, y)) is not None:
        sentences.append(f"Rank correlation {format_number(value, 2)}.")
    if len(methods) > 1 and method_rhos:
        sentences.append(f"Within a method: {join_names(method_rhos)}.")
    return " ".join(sentences)


def draw_choices(frame: Frame, spec: FigureSpec) -> Blocks:
    """The networks chosen by R@1 and by R-AUROC, the mean over seeds, joined by a line."""
    x, y = TITLES[RECALL], TITLES[AREA]
    points: list[Row] = []
    for criterion, label in CRITERIA.items():
        recalls, areas = (
            {line_of(row): row["value"] for row in over_seeds(frame, quantity, criterion)}
            for quantity in (RECALL, AREA)
        )
        for (method, backbone), recall in recalls.items():
            if (area := areas.get((method, backbone))) is not None:  # R-AUROC is undefined if R@1 is 1
                points.append({"name": method, "backbone": backbone, "chosen by": label, x: recall, y: area})
    links = [(pair.rows[0], pair.rows[1]) for _, pair in Frame(points).group_by("name", "backbone") if len(pair) == 2]
    if not links:
        return None
    tips = {"name": "method", "backbone": "backbone", "chosen by": "chosen by"}
    caption = "Mean over seeds. A line joins the networks that R@1 and R-AUROC choose; one point: both choose the same."
    return scatter_figure(spec.name, spec.title, caption, points, x, y, tips, links=links)


def draw_correlations(frame: Frame, spec: FigureSpec) -> Blocks:
    """Rank correlations between all quantities over all networks."""
    cells = []
    values = network_values(frame, (quantity for quantity in TITLES if quantity[1] in ("test", "upstream")))
    for first in values:
        for second in values:
            points = networks(values, first, second)
            if (value := Frame(points).correlation(TITLES[first], TITLES[second])) is not None:
                column = f"{SHORT[second[0]]} {'down' if second[1] == 'test' else 'up'}"
                cells.append({"line": TITLES[first], "column": column, "value": value, "n": len(points)})
    caption = "Spearman's correlation over all networks, hyper-parameters that were not chosen included."
    names = ("quantity", "other quantity", "networks")
    return heat_figure(spec.name, spec.title, caption, cells, "rank correlation", 0.0, names)


def draw_lengths(frame: Frame, spec: FigureSpec) -> Blocks:
    """Quantiles of the lengths of embeddings of upstream and downstream images."""
    lines = {}
    rows = by_chosen_score(frame, spec.criterion).where(metric="length").sort("quantile")
    for (*_, split), quantiles in rows.group_by(*LINE, "split"):
        name = f"{name_of(quantiles.rows[0], frame)}, {'downstream' if split == 'out' else split}"
        lines[name] = {f"{quantile:.0%}": mean for quantile, mean in quantiles.means_by("quantile").items()}
    if not lines:
        return None
    caption = "Quantiles of ‖e‖, the mean over seeds and sets. Shorter embeddings downstream allow OOD detection."
    return levels_figure(spec.name, spec.title, caption, lines, ("images of", "quantile", "length"))


def draw_shots(frame: Frame, spec: FigureSpec) -> Blocks:
    """R-AUROC and R@1 against the number of labelled images of a test class."""
    figures = []
    for metric in CRITERIA:
        lines = {
            name_of(rows.rows[0], frame): {f"{shots}": sets.mean() for (shots,), sets in rows.group_by("shots")}
            for _, rows in rows_with_labels(frame, FEW_SHOT, metric).sort("shots").group_by(*LINE)
        }
        if lines:
            title, bound = TITLES[metric, "test"], upper_bound(frame, metric)
            caption = "Training images of a test class; 0: none, the same test images. Mean over sets and seeds."
            caption += f" Level line: {bound[0]}." if bound else ""
            names, guide = ("method", "images of a class", title), bound[1] if bound else None
            figures.append(
                levels_figure(f"{spec.name}-{metric}", f"{title} {spec.title}", caption, lines, names, guide=guide)
            )
    return [Panel(figures)] if figures else None


SEEDS, POINTS = draw_seeds, draw_networks
BOTH = ((RECALL, AREA),)
FIGURES = (
    FigureSpec("fig1", "R-AUROC downstream by method", SEEDS, ((AREA,),), bounded=True),
    FigureSpec("fig2", "R@1 and R-AUROC downstream", POINTS, BOTH),
    FigureSpec("fig3", "Networks chosen by R@1 and by R-AUROC", draw_choices, BOTH),
    FigureSpec("fig4", "R-AUROC downstream against upstream results", POINTS, PREDICTORS, None),
    FigureSpec("fig5", "R-AUROC against human votes and crops", POINTS, ALIGNMENTS, None),
    FigureSpec("fig6", "R@1 downstream of networks chosen by R@1", SEEDS, ((RECALL,),), RECALL_AT_1, True),
    FigureSpec("fig7", "R@1 and R-AUROC of all hyper-parameters, convolutions", POINTS, BOTH, None, transformers=False),
    FigureSpec("fig8", "R@1 and R-AUROC of all hyper-parameters, transformers", POINTS, BOTH, None, transformers=True),
    FigureSpec("fig9", "Rank correlation of all quantities", draw_correlations, BOTH, None),
    FigureSpec("fig10", "AUROC of OOD detection by method", SEEDS, ((("auroc", "out"),),)),
    FigureSpec("fig11", "Length of embeddings upstream and downstream", draw_lengths, ((("length", "out"),),)),
    FigureSpec("fig12", "R-AUROC of a mixture of upstream and downstream images", SEEDS, (((R_AUROC, "mixed"),),)),
    FigureSpec("fig13", "after a few labelled images", draw_shots, BOTH),
)
NEEDS = {
    "fig3": "networks chosen by R-AUROC and by R@1",
    "fig9": "three networks or more with upstream and downstream rows",
    "fig11": "lengths of embeddings upstream and downstream",
    "fig13": "networks trained on a few images of the test classes",
}
for _spec in FIGURES:
    report(f"url/{_spec.name}", needs=_spec.needs)(_spec)


# ---- tables


@report("url/table1", needs="networks that were trained or embedded")
def table_1(frame: Frame) -> Table:
    """Cost of a network: parameters, seconds per epoch, milliseconds per image."""
    rows = []
    for line, line_rows in by_chosen_score(frame).where(evaluation=TRANSFER).group_by(*LINE):
        costs = {name: line_rows.facts(name) for name in ("epoch_seconds", "inference_ms")}
        means = {name: values.mean() for name, values in costs.items() if values}
        params = costs["inference_ms"].first("params")
        rows.append(dict(zip(LINE, line, strict=True)) | {"params": params, "metric": None} | means)
    heads = [
        Column("parameters", field="params", format=format_millions),
        Column("epoch (s)", field="epoch_seconds", format=decimals(1)),
        Column("an image (ms)", field="inference_ms", format=decimals(3)),
    ]
    note = "On this machine, the mean over networks; an image: embedding of the upstream set, loading included"
    return table(rows, "Cost", index=LABELS, columns=heads, bold="none", note=note)


@report("url/results", needs="networks and downstream sets")
def retrieval(frame: Frame) -> Table:
    """R-AUROC and R@1 of the chosen networks."""
    areas = rank_methods(frame, AREA)
    scores = {line_of(row): row["measure"] for row in areas}
    recalls = [row | {"low": None, "high": None} for row in over_seeds(frame, RECALL)]
    rows = [row | {"measure": scores.get(line_of(row))} for row in (*areas, *recalls)]
    spans = [
        row | {"metric": f"{row['metric']} seeds", "text": f"{row['least']:.3f} – {row['most']:.3f}"} for row in rows
    ]
    heads = [
        Column("R-AUROC ↑", where={"metric": R_AUROC}, metric=R_AUROC, format=decimals(3)),
        Column("seeds", field="text", where={"metric": f"{R_AUROC} seeds"}),
        Column("R@1 ↑", where={"metric": RECALL_AT_1}, metric=RECALL_AT_1, format=decimals(3)),
        Column("seeds ", field="text", where={"metric": f"{RECALL_AT_1} seeds"}),
    ]
    lines = (*LABELS, Index("measure", "score", keep=True))
    note = (
        "Mean over downstream sets, [95 % interval over resampled images, with fixed neighbours], lowest and highest "
        "seed"
    )
    return table([*rows, *spans], "Retrieval: R-AUROC and R@1", index=lines, columns=heads, note=note)


@report("url/measures", needs="networks and downstream sets")
def every_measure(frame: Frame) -> Table:
    """R-AUROC of every score on every downstream set, of the chosen networks."""
    areas = frame.where(metric=R_AUROC, split="test", evaluation=TRANSFER, target=lambda name: name is not None)
    trials = {(*line, row["trial"]) for line, row in chosen_trials(frame).items()}
    selected = Frame(row for row in areas if (*line_of(row), row["trial"]) in trials)
    rows = selected.summarise([*LINE, "measure", "target", "metric"], over=["data_seed"])
    lines = (*LABELS, Index("measure", "score", keep=True))
    columns, title = target_columns(rows), "R-AUROC of every score on every downstream set"
    return table(rows, title, index=lines, columns=columns, format=decimals(3))


def target_columns(rows: Frame) -> list[Column]:
    return [Column(f"{dataset_label(name)} ↑", where={"target": name}) for name in rows.unique("target")]


@report("url/own-image", needs="rows about crops")
def crop_retrieval(frame: Frame) -> Table:
    """Retrieval without labels (A.6): R@1 of a crop and its image, and R-AUROC of these."""
    crops = by_chosen_score(frame, R_AUROC).where(evaluation=OWN_IMAGE, metric=tuple(CRITERIA), split="test")
    rows = crops.summarise([*LINE, "metric"], over=["data_seed"])
    heads = [
        Column(f"{CRITERIA[metric]} ↑", where={"metric": metric}, format=decimals(3))
        for metric in (RECALL_AT_1, R_AUROC)
    ]
    note = "Crops of 10 to 75 % of the side; correct: the nearest image is the one that was cropped"
    return table(rows, "Retrieval without labels: R-AUROC and R@1 of crops", index=LABELS, columns=heads, note=note)


@report("url/human", needs="sets with several annotations per image")
def vote_correlations(frame: Frame) -> Table:
    """Rank correlation of uncertainty with the disagreement of human votes, on every set."""
    aligned = by_chosen_score(frame, R_AUROC).where(metric="human_alignment", split="human")
    rows = aligned.summarise([*LINE, "target", "metric"], over=["data_seed"])
    note = "Spearman's ρ of uncertainty and the entropy of the votes"
    title, columns = "Rank correlation of uncertainty with human votes", target_columns(rows)
    return table(rows, title, index=LABELS, columns=columns, format=decimals(3), note=note)


@report("url/search", needs="networks of several hyper-parameters")
def search(frame: Frame) -> Blocks:
    """Validation R@1 and R-AUROC of all trials, and the chosen ones."""
    rows: list[Row] = []
    selected = {label: chosen_trials(frame, criterion) for criterion, label in CRITERIA.items()}
    trials = by_chosen_score(frame).where(split="val", evaluation=TRANSFER, data_seed=0).group_by(*LINE, "trial")
    for (method, backbone, trial), values in trials:
        chosen_by = [
            label for label, lines in selected.items() if lines.get((method, backbone), {}).get("trial") == trial
        ]
        means = {metric: metric_rows.mean() for metric in CRITERIA if (metric_rows := values.where(metric=metric))}
        columns: Row = {"method": method, "backbone": backbone, "trial": trial, "metric": None}
        columns |= {"chosen": join_names(chosen_by) if chosen_by else None, "tried": values.first("hparams")}
        rows.append(columns | means)
    if len(rows) < 2:
        return None
    heads = [
        Column("R@1", field=RECALL_AT_1, format=decimals(3)),
        Column("R-AUROC", field=R_AUROC, format=decimals(3)),
        Column("chosen by", field="chosen"),
        Column("hyper-parameters", field="tried"),
    ]
    lines = (*LABELS, Index("trial", keep=True))
    note = "Validation classes, seed 0, the mean over downstream sets; trial 0 has a method's defaults"
    return table(rows, "Hyper-parameters tried", index=lines, columns=heads, bold="none", note=note)


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [retrieval(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    figures: Mapping[str, Blocks] = {spec.name: spec(frame) for spec in FIGURES}

    def several(*names: str) -> list[Blocks]:
        return [figures[name] for name in names]

    sections: list[SectionSpec] = [
        ("Results", "Retrieval of downstream classes", [retrieval(frame), *several("fig1", "fig2")]),
        ("Scores", "R-AUROC of every score", [every_measure(frame)]),
        ("Trade-off", "R@1 against R-AUROC", several("fig3", "fig7", "fig8", "fig6")),
        ("Upstream", "Upstream against downstream results", several("fig4", "fig9")),
        ("Votes", "Human votes and crops", [vote_correlations(frame), figures["fig5"], crop_retrieval(frame)]),
        ("OOD", "OOD detection of downstream images", several("fig10", "fig11", "fig12")),
        ("Few labels", "Training on a few labelled images", several("fig13")),
        ("Cost", "Cost and search", [table_1(frame), search(frame)]),
    ]
    title = f"Transferable uncertainty: R-AUROC of networks trained on {study.data}"
    return story_of(study, title, _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """The best line, its difference to the others, and the upper bound."""
    rows = rank_methods(frame, AREA)
    if not rows:
        return ["No network has an R-AUROC on downstream sets."]
    targets = [dataset_label(name) for name in frame.where(split="test").unique("target") if name]
    rows_by_name = {f"{name_of(row, frame)} by {row['measure']}": row for row in rows}
    noise = {name: row["noise"] for name, row in rows_by_name.items() if row["noise"] is not None}
    runs = {name: repetitions_of(row) for name, row in rows_by_name.items()}
    lead = [
        f"{count_methods(rows)} on {join_names(targets)}.",
        describe_best_line("R-AUROC", runs, noise=noise if len(noise) == len(rows) else None),
    ]
    if bound := upper_bound(frame, R_AUROC):
        lead.append(f"R-AUROC of a network {bound[0]}: {format_number(bound[1], 3)}.")
    return lead
