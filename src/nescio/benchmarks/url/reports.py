"""The figures and the table of the paper by its own names, what stands beside them, and the page that holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from nescio.analysis.significance import welch_t_tests
from nescio.report.blocks import Blocks, Figure, Panel, SectionSpec, Story
from nescio.report.charts import dots_chart, heat_figure, levels_figure, scatter_chart
from nescio.report.format import (
    count_in_words,
    count_methods,
    describe_best,
    format_millions,
    format_number,
    join_names,
    plural,
)
from nescio.report.frame import Frame
from nescio.report.labels import dataset_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Column, Index, Table, decimals, table
from nescio.rows import Row

TRANSFER, OWN_IMAGE, FEW_SHOT, MANY_SHOT = "transfer", "own-image", "few-shot", "many-shot"  # evaluations
CHECKPOINTS = "checkpoints"
BY_AREA, BY_RECALL = "r_auroc", "recall_at_1"  # what hyper-parameters are chosen by
ERROR, NORMAL = 0.05, 1.96  # of the test that tells two lines apart; half of a 95 % interval in deviations
LINE = ("method", "backbone")
NETWORK = (*LINE, "trial", "data_seed")
LABELS = (Index("method", keep=True), "backbone")
TITLES = {
    ("r_auroc", "test"): "R-AUROC downstream",
    ("recall_at_1", "test"): "R@1 downstream",
    ("crop_agreement", "test"): "crops less sure, downstream",
    ("r_auroc", "upstream"): "R-AUROC upstream",
    ("recall_at_1", "upstream"): "R@1 upstream",
    ("crop_agreement", "upstream"): "crops less sure, upstream",
    ("accuracy", "upstream"): "accuracy upstream",
    ("auroc", "upstream"): "AUROC of right answers, upstream",
    ("r_auroc", "human"): "R-AUROC on sets with votes",
    ("crop_agreement", "human"): "crops less sure, on sets with votes",
    ("human_alignment", "human"): "agreement with human votes",
    ("auroc", "out"): "AUROC of downstream against upstream images",
    ("r_auroc", "mixed"): "R-AUROC of half upstream, half downstream images",
}
SHORT = {
    "r_auroc": "R-AUROC",
    "recall_at_1": "R@1",
    "crop_agreement": "crops",
    "accuracy": "accuracy",
    "auroc": "AUROC",
}
Quantity = tuple[str, str]  # metric, split
DOWN: Quantity = ("r_auroc", "test")
RECALL: Quantity = ("recall_at_1", "test")


# ---- rows


def of_pretrained(evaluation: str) -> bool:
    """Whether an evaluation is of pretrained networks, by labels or by single images."""
    return evaluation not in (OWN_IMAGE, FEW_SHOT, MANY_SHOT, CHECKPOINTS)


def chosen(frame: Frame, criterion: str = BY_AREA) -> dict[tuple[Any, ...], Row]:
    """(method, backbone) → the trial that was chosen, and by which of the method's scores (`chosen_measure`)."""
    networks = [rows.rows[0] for _, rows in frame.group_by(*LINE, "trial", "chosen_by")]
    own = [row for row in networks if criterion in str(row.get("chosen_by")).split(", ")]
    return {tuple(row[name] for name in LINE): row for row in own}


def judged(frame: Frame, criterion: str | None = None) -> Frame:
    """Rows by the score that a method is judged by: of all networks, or of those that a criterion chose."""
    scores = chosen(frame, BY_RECALL) | chosen(frame)
    picked = chosen(frame, criterion) if criterion else scores

    def wanted(row: Row) -> bool:
        line = tuple(row[name] for name in LINE)
        if line not in picked or (criterion and row["trial"] != picked[line]["trial"]):
            return False
        return row["measure"] in (None, scores[line]["chosen_measure"])

    place = {line: number for number, line in enumerate(scores)}  # one order, and so one colour, in all figures
    rows = [row for row in frame if wanted(row)]
    return Frame(sorted(rows, key=lambda row: place[row["method"], row["backbone"]]))


def networks(frame: Frame, *quantities: Quantity, criterion: str | None = None) -> list[Row]:
    """One row per network that has all quantities, each the mean over downstream sets."""
    shown, made = judged(frame, criterion).where(evaluation=of_pretrained), []
    for key, own in shown.group_by(*NETWORK):
        values = {of: own.where(metric=of[0], split=of[1]) for of in quantities}
        if all(values.values()):
            named = dict(zip(NETWORK, key, strict=True)) | {"name": key[0], "seed": key[3]}
            made.append(named | {TITLES[of]: rows.mean() for of, rows in values.items()})
    return made


def name_of(row: Row, frame: Frame) -> str:
    """What figures call a line: its method, and its backbone where there are several."""
    several = len(frame.where(chosen_by=lambda names: names is not None).unique("backbone")) > 1
    return f"{row['method']}, {row['backbone']}" if several else str(row["method"])


def over_seeds(frame: Frame, of: Quantity, criterion: str) -> list[Row]:
    """One row per method and backbone: mean, lowest and highest seed, its interval over images, and `best` where it
    cannot be told from the best (`against_best`)."""
    own = judged(frame, criterion).where(metric=of[0], split=of[1], evaluation=of_pretrained)
    alike = {other["model"] for other in against_best(own) if other["adjusted"] is None or other["adjusted"] > ERROR}
    rows: list[Row] = []
    for key, part in own.group_by(*LINE):
        seeds, ends = _by_seed(part), _interval(part)
        measure = next((name for name in part.unique("measure") if name), None)
        values = seeds.values()
        rows.append(
            dict(zip(LINE, key, strict=True))
            | {"metric": of[0], "value": fmean(values), "least": min(values), "most": max(values), "n": len(seeds)}
            | {"low": ends and ends[0], "high": ends and ends[1], "measure": measure, "best": key in alike}
        )
    top = max((row["value"] for row in rows), default=0.0)
    return [row | {"best": row["best"] or row["value"] == top} for row in rows]


def against_best(rows: Frame) -> list[Row]:
    """Every line (method, backbone) against the best: Welch's t-test over seeds, with the noise of the test images."""
    parts = dict(rows.group_by(*LINE))
    noise = {}
    for line, part in parts.items():
        low, high = _interval(part) or (0.0, 0.0)
        noise[line] = ((high - low) / 2 / NORMAL) ** 2
    return welch_t_tests({line: _by_seed(part) for line, part in parts.items()}, noise) if parts else []


def _by_seed(part: Frame) -> dict[int, float]:
    return {seed: own.mean() for (seed,), own in part.group_by("data_seed")}


def _interval(part: Frame) -> tuple[float, float] | None:
    """The interval over images of the mean over sets, where rows have one: sets vary apart, so that the squared widths
    of theirs add up; means over seeds."""
    known = part.where(low=lambda end: end is not None)
    if not known:
        return None
    means = [{end: fmean(own.column(end)) for end in ("low", "value", "high")} for _, own in known.group_by("target")]
    below, above = (math.hypot(*(mean[end] - mean["value"] for mean in means)) / len(means) for end in ("low", "high"))
    value = fmean(mean["value"] for mean in means)
    return value - below, value + above


def many_shot(frame: Frame, metric: str) -> tuple[str, float] | None:
    """The upper reference: erm by its entropy, trained on other images of the test classes."""
    rows = frame.where(evaluation=MANY_SHOT, metric=metric, measure=(None, "entropy"))
    return ("trained on the test classes", rows.mean()) if rows else None


# ---- Figures 1, 6, 10 and 12: every method over its seeds


@dataclass(frozen=True)
class Dots:
    """A figure of lowest, mean and highest seed of every method."""

    name: str
    of: Quantity
    criterion: str
    title: str
    upper: bool = False  # with the upper reference


DOTS = (
    Dots("fig1", DOWN, BY_AREA, "Who knows when an embedding is wrong?", upper=True),
    Dots("fig6", RECALL, BY_RECALL, "Whose neighbours are right, chosen by R@1?", upper=True),
    Dots("fig10", ("auroc", "out"), BY_AREA, "Who tells downstream from upstream images?"),
    Dots("fig12", ("r_auroc", "mixed"), BY_AREA, "Who ranks a mixture of both?"),
)


def dots(frame: Frame, spec: Dots) -> Blocks:
    rows = sorted(over_seeds(frame, spec.of, spec.criterion), key=lambda row: -row["value"])
    if not rows:
        return None
    kinds = {"lowest seed": "least", "mean": "value", "highest seed": "most"} if rows[0]["n"] > 1 else {"mean": "value"}
    points = [
        {"name": name_of(row, frame), "kind": kind, "value": row[column], "spread": None}
        for row in rows
        for kind, column in kinds.items()
    ]
    title, guide = TITLES[spec.of], many_shot(frame, spec.of[0]) if spec.upper else None
    seeds = plural(rows[0]["n"], "seed").lower()
    words = f"{title}, {seeds} of the hyper-parameters that {_criterion(spec.criterion)} chose."
    return Figure(spec.name, spec.title, words, partial(dots_chart, points, title, guide), points)


def _criterion(name: str) -> str:
    return "R-AUROC" if name == BY_AREA else "R@1"


# ---- Figures 2, 4, 5, 7 and 8: networks as points


@dataclass(frozen=True)
class NetworkCloud:
    """A figure of networks as points, for every pair of quantities (x, y)."""

    name: str
    pairs: tuple[tuple[Quantity, Quantity], ...]
    title: str
    criterion: str | None = None  # None: every network that was trained
    transformers: bool | None = None  # backbones with attention only, or the others


CLOUDS = (
    NetworkCloud("fig2", ((RECALL, DOWN),), "Good embeddings and good uncertainty", BY_AREA),
    NetworkCloud(
        "fig4",
        ((("r_auroc", "upstream"), DOWN), (("crop_agreement", "upstream"), DOWN)),
        "Does upstream tell what happens downstream?",
    ),
    NetworkCloud(
        "fig5",
        ((("r_auroc", "human"), ("human_alignment", "human")), (("r_auroc", "human"), ("crop_agreement", "human"))),
        "Does R-AUROC go with human and with made uncertainty?",
    ),
    NetworkCloud("fig7", ((RECALL, DOWN),), "R@1 and R-AUROC of all hyper-parameters, convolutions", None, False),
    NetworkCloud("fig8", ((RECALL, DOWN),), "R@1 and R-AUROC of all hyper-parameters, transformers", None, True),
)


def clouds(frame: Frame, spec: NetworkCloud) -> Blocks:
    made = []
    for place, (x, y) in enumerate(spec.pairs):
        points = networks(frame, x, y, criterion=spec.criterion)
        if spec.transformers is not None:
            points = [point for point in points if ("vit" in point["backbone"]) == spec.transformers]
        if points:
            made.append(_cloud(f"{spec.name}-{place + 1}", spec.title, points, TITLES[x], TITLES[y]))
    return [Panel(made)] if made else None


def _cloud(key: str, title: str, points: Sequence[Row], x: str, y: str) -> Figure:
    tips = {"method": "method", "backbone": "backbone", "trial": "trial", "seed": "seed"}
    every = Frame(points).correlation(x, y)
    words = f"{plural(len(points), 'network')}." + (
        f" Rank correlation {format_number(every, 2)}." if every is not None else ""
    )
    own = {name: part for (name,), part in Frame(points).group_by("method")}
    within = {name: value for name, part in own.items() if (value := part.correlation(x, y)) is not None}
    if len(own) > 1 and within:
        words += (
            f" Within a method: {join_names([f'{name} {format_number(value, 2)}' for name, value in within.items()])}."
        )
    return Figure(key, title, words, partial(scatter_chart, points, x, y, tips=tips), list(points))


for _dots in DOTS:
    report(f"url/{_dots.name}", needs=f"networks with {TITLES[_dots.of]}")(partial(dots, spec=_dots))
for _spec in CLOUDS:
    _axes = " and ".join(dict.fromkeys(TITLES[of] for pair in _spec.pairs for of in pair))
    _kind = {None: "", False: " of convolutional backbones", True: " of vision transformers"}[_spec.transformers]
    report(f"url/{_spec.name}", needs=f"networks{_kind} with {_axes}")(partial(clouds, spec=_spec))


# ---- the other figures and the table


@report("url/fig3", needs="networks chosen by R-AUROC and by R@1")
def figure_3(frame: Frame) -> Blocks:
    """The networks chosen by R@1 and by R-AUROC, the mean over seeds, joined by a line."""
    x, y = TITLES[RECALL], TITLES[DOWN]
    points: list[Row] = []
    for criterion in (BY_AREA, BY_RECALL):
        recalls, areas = (
            {(row["method"], row["backbone"]): row["value"] for row in over_seeds(frame, of, criterion)}
            for of in (RECALL, DOWN)
        )
        for (method, backbone), recall in recalls.items():
            if (area := areas.get((method, backbone))) is not None:  # it is not defined where R@1 is never wrong
                names = {"name": method, "backbone": backbone, "chosen by": _criterion(criterion)}
                points.append(names | {x: recall, y: area})
    links = [(own.rows[0], own.rows[1]) for _, own in Frame(points).group_by("name", "backbone") if len(own) == 2]
    if not links:
        return None
    tips = {"name": "method", "backbone": "backbone", "chosen by": "chosen by"}
    words = "Mean over seeds. A line joins a method's choices by R@1 and by R-AUROC; one point: no trade-off."
    chart = partial(scatter_chart, points, x, y, tips=tips, links=links)
    return Figure("fig3", "What does choosing by the one cost the other?", words, chart, points)


@report("url/fig9", needs="three networks or more with upstream and downstream rows")
def figure_9(frame: Frame) -> Blocks:
    """Rank correlations between all quantities over all networks."""
    cells = []
    quantities = [of for of in TITLES if of[1] in ("test", "upstream")]
    for first in quantities:
        for second in quantities:
            points = networks(frame, first, second)
            if (value := Frame(points).correlation(TITLES[first], TITLES[second])) is not None:
                column = f"{SHORT[second[0]]} {'down' if second[1] == 'test' else 'up'}"
                cells.append({"line": TITLES[first], "column": column, "value": value, "n": len(points)})
    words = "Spearman's correlation over all networks, hyper-parameters that were not chosen included."
    names = ("quantity", "other quantity", "networks")
    return heat_figure("fig9", "What goes with what?", words, cells, "rank correlation", 0.0, names)


@report("url/fig11", needs="lengths of embeddings upstream and downstream")
def figure_11(frame: Frame) -> Blocks:
    """Quantiles of the lengths of embeddings of upstream and downstream images."""
    own = judged(frame, BY_AREA).where(metric="length")
    lines = {}
    for (*_, split), part in own.sort("quantile").group_by(*LINE, "split"):
        name = f"{name_of(part.rows[0], frame)}, {'downstream' if split == 'out' else split}"
        lines[name] = {f"{quantile:.0%}": at.mean() for (quantile,), at in part.group_by("quantile")}
    if not lines:
        return None
    words = "Quantiles of ‖e‖, the mean over seeds and sets; where downstream is lower, length notices other images."
    title = "Are embeddings of other images shorter?"
    return levels_figure("fig11", title, words, lines, ("images of", "quantile", "length"))


@report("url/fig13", needs="networks trained on a few images of the test classes")
def figure_13(frame: Frame) -> Blocks:
    """R-AUROC and R@1 against the number of labelled images of a test class."""
    few = judged(frame, BY_AREA).where(evaluation=FEW_SHOT)
    made = []
    for metric in (BY_AREA, BY_RECALL):
        lines = {
            name_of(part.rows[0], frame): {f"{shots}": at.mean() for (shots,), at in part.group_by("shots")}
            for _, part in few.where(metric=metric).sort("shots").group_by(*LINE)
        }
        if lines:
            title, upper = TITLES[metric, "test"], many_shot(frame, metric)
            words = "Images of a test class that were learnt; 0: none, the same test images. Mean over sets and seeds."
            words += f" Level line: {upper[0]}." if upper else ""
            names, about = ("method", "images of a class", title), f"{title} after a few labelled images"
            guide = upper[1] if upper else None
            made.append(levels_figure(f"fig13-{metric}", about, words, lines, names, guide=guide))
    return [Panel(made)] if made else None


@report("url/table1", needs="networks that were trained or embedded")
def table_1(frame: Frame) -> Table:
    """What a network costs: parameters, seconds of an epoch, milliseconds of an image."""
    rows = []
    for key, own in judged(frame).where(evaluation=TRANSFER).group_by(*LINE):
        costs = {name: own.facts(name) for name in ("epoch_seconds", "inference_ms")}
        means = {name: part.mean() for name, part in costs.items() if part}
        params = costs["inference_ms"].first("params")
        rows.append(dict(zip(LINE, key, strict=True)) | {"params": params, "metric": None} | means)
    heads = [
        Column("parameters", field="params", format=format_millions),
        Column("epoch (s)", field="epoch_seconds", format=decimals(1)),
        Column("an image (ms)", field="inference_ms", format=decimals(3)),
    ]
    note = "On this machine, the mean over networks; an image: embedding the upstream set, with its loading"
    return table(rows, "What it costs", index=LABELS, columns=heads, bold="none", note=note)


# ---- beside them


@report("url/results", needs="networks and downstream sets")
def results(frame: Frame) -> Table:
    """R-AUROC and R@1 of the chosen networks, and who cannot be told from the best."""
    areas = sorted(over_seeds(frame, DOWN, BY_AREA), key=lambda row: -row["value"])
    recalls = [row | {"low": None, "high": None} for row in over_seeds(frame, RECALL, BY_AREA)]
    scores = {tuple(row[name] for name in LINE): row["measure"] for row in areas}
    rows = [row | {"measure": scores.get(tuple(row[name] for name in LINE))} for row in (*areas, *recalls)]
    spans = [
        row | {"metric": f"{row['metric']} seeds", "text": f"{row['least']:.3f} – {row['most']:.3f}", "best": None}
        for row in rows
    ]
    heads = [
        Column("R-AUROC ↑", where={"metric": "r_auroc"}, metric="r_auroc", format=decimals(3)),
        Column("seeds", field="text", where={"metric": "r_auroc seeds"}),
        Column("R@1 ↑", where={"metric": "recall_at_1"}, metric="recall_at_1", format=decimals(3)),
        Column("seeds ", field="text", where={"metric": "recall_at_1 seeds"}),
    ]
    lines = (*LABELS, Index("measure", "score", keep=True))
    note = (
        "Mean over downstream sets and seeds, [95 % interval over resampled images, neighbours as they are], lowest "
        "and highest seed. Bold: the best, and what Welch’s test over seeds and images (5 %, Holm’s adjustment) cannot "
        "tell from it"
    )
    title = "Who knows when an embedding is wrong?"
    return table([*rows, *spans], title, index=lines, columns=heads, within=(), note=note)


@report("url/measures", needs="networks and downstream sets")
def every_measure(frame: Frame) -> Table:
    """R-AUROC of every measure on every downstream set, of the chosen networks."""
    own = frame.where(metric="r_auroc", split="test", evaluation=TRANSFER, target=lambda name: name is not None)
    trials = {(*line, row["trial"]) for line, row in chosen(frame).items()}
    shown = Frame(row for row in own if (row["method"], row["backbone"], row["trial"]) in trials)
    rows = shown.summarise([*LINE, "measure", "target", "metric"], over=["data_seed"])
    heads = [Column(f"{dataset_label(name)} ↑", where={"target": name}) for name in rows.unique("target")]
    lines = (*LABELS, Index("measure", "score", keep=True))
    note = "R-AUROC, mean ± standard deviation over seeds"
    return table(rows, "Every score on every set", index=lines, columns=heads, format=decimals(3), note=note)


@report("url/own-image", needs="rows about crops")
def own_image(frame: Frame) -> Table:
    """Without labels: is the nearest image of a crop the one that it was cut from, and does u know when not (A.6)?"""
    own = judged(frame, BY_AREA).where(evaluation=OWN_IMAGE, metric=(BY_AREA, BY_RECALL))
    rows = own.where(split="test").summarise([*LINE, "metric"], over=["data_seed"])
    heads = [
        Column("R@1 ↑", where={"metric": "recall_at_1"}, format=decimals(3)),
        Column("R-AUROC ↑", where={"metric": "r_auroc"}, format=decimals(3)),
    ]
    note = "Crops of 10 to 75 % of the side; right: the nearest image is the crop's own. Mean ± deviation over seeds"
    return table(rows, "Without labels: does a crop find its image?", index=LABELS, columns=heads, note=note)


@report("url/human", needs="sets with several annotations per image")
def human(frame: Frame) -> Table:
    """Agreement of uncertainty and of the disagreement of human votes, on every set."""
    own = judged(frame, BY_AREA).where(metric="human_alignment", split="human")
    rows = own.summarise([*LINE, "target", "metric"], over=["data_seed"])
    heads = [Column(f"{dataset_label(name)} ↑", where={"target": name}) for name in rows.unique("target")]
    note = "Spearman's ρ of u and the entropy of the votes, mean ± deviation over seeds"
    return table(rows, "Is it unsure where people are?", index=LABELS, columns=heads, format=decimals(3), note=note)


@report("url/search", needs="networks of several hyper-parameters")
def search(frame: Frame) -> Blocks:
    """Validation R@1 and R-AUROC of everything that was tried, and what was chosen."""
    rows: list[Row] = []
    picked = {by: chosen(frame, by) for by in (BY_AREA, BY_RECALL)}
    for key, own in judged(frame).where(split="val", evaluation=TRANSFER, data_seed=0).group_by(*LINE, "trial"):
        means = {name: own.where(metric=name) for name in (BY_RECALL, BY_AREA)}
        by = [_criterion(name) for name, rows_ in picked.items() if rows_.get(key[:2], {}).get("trial") == key[2]]
        line = dict(zip((*LINE, "trial"), key, strict=True)) | {
            "metric": None,
            "chosen": join_names(by) if by else None,
        }
        rows.append(
            line | {"tried": own.first("hparams")} | {name: part.mean() for name, part in means.items() if part}
        )
    if len(rows) < 2:
        return None
    heads = [
        Column("R@1", field=BY_RECALL, format=decimals(3)),
        Column("R-AUROC", field=BY_AREA, format=decimals(3)),
        Column("chosen by", field="chosen"),
        Column("hyper-parameters", field="tried"),
    ]
    lines = (*LABELS, Index("trial", keep=True))
    note = "Validation classes, seed 0, the mean over downstream sets; trial 0 are a method's defaults"
    return table(rows, "Hyper-parameters tried", index=lines, columns=heads, bold="none", note=note)


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [results(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    figure = {spec.name: dots(frame, spec) for spec in DOTS} | {spec.name: clouds(frame, spec) for spec in CLOUDS}
    traded = [figure[name] for name in ("fig7", "fig8", "fig6")]
    sections: list[SectionSpec] = [
        ("Results", "Who knows when an embedding is wrong?", [results(frame), figure["fig1"], figure["fig2"]]),
        ("Scores", "Which score, on which set?", [every_measure(frame)]),
        ("Trade-off", "Is it paid with worse embeddings?", [figure_3(frame), *traded]),
        ("Upstream", "Does upstream tell what happens downstream?", [figure["fig4"], figure_9(frame)]),
        ("People", "Is it unsure where people are, and on crops?", [human(frame), figure["fig5"], own_image(frame)]),
        ("Other images", "Are other images noticed?", [figure["fig10"], figure_11(frame), figure["fig12"]]),
        ("Few labels", "What do a few labelled images change?", [figure_13(frame)]),
        ("Cost", "What was trained, and what did it cost?", [table_1(frame), search(frame)]),
    ]
    title = f"{study.data}: whose uncertainty transfers?"
    return story_of(study, title, _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """Who leads, who cannot be told from the leader, and how far the upper reference is."""
    rows = sorted(over_seeds(frame, DOWN, BY_AREA), key=lambda row: -row["value"])
    if not rows:
        return ["No network could be judged on downstream sets."]
    first, *others = rows
    targets = [dataset_label(name) for name in frame.where(split="test").unique("target") if name]
    lead = [
        f"{count_methods(rows)} on {join_names(targets)}: {name_of(first, frame)} by {first['measure']} knows best "
        f"when an embedding is wrong, R-AUROC {format_number(first['value'], 3)}."
    ]
    if others:
        lead.append(_verdict(frame, rows))
    if upper := many_shot(frame, "r_auroc"):
        lead.append(f"A network {upper[0]} has {format_number(upper[1], 3)}.")
    return lead


def _verdict(frame: Frame, rows: Sequence[Row]) -> str:
    """How the best line stands to the others, and what says so."""
    names = {tuple(row[name] for name in LINE): name_of(row, frame) for row in rows}
    own = judged(frame, BY_AREA).where(metric=DOWN[0], split=DOWN[1], evaluation=TRANSFER)
    sentence = describe_best([other | {"model": names[other["model"]]} for other in against_best(own)])
    seeds, images = max(row["n"] for row in rows), any(row["low"] is not None for row in rows)
    basis = [f"{count_in_words(seeds)} seeds"] * (seeds > 1) + ["resampled images"] * images
    if not basis:
        return "With one seed and no resampled images, nothing says whether it is ahead by more than chance."
    return f"{sentence.removesuffix('.')} (Welch’s test over {' and '.join(basis)})."
