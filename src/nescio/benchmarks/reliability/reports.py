"""The tables and figures of Park et al. 2024: a candidate is a method on a backbone, a setting is data → target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from nescio.analysis.representations.agreement import CHOSEN, COMPONENTS, HELD_OUT, MEMBERS, NEIGHBOURS, STAR
from nescio.analysis.representations.candidates import layer_warnings
from nescio.analysis.representations.downstream import ACCURACIES
from nescio.analysis.representations.downstream import LOSSES as HEADS
from nescio.measures.siblings import SCORES
from nescio.report.blocks import Block, Blocks, Figure, SectionSpec, Story, collapse_tables
from nescio.report.charts.levels import levels_figure
from nescio.report.charts.points import heat_figure
from nescio.report.format import count_in_words, format_number, plural
from nescio.report.frame import Frame
from nescio.report.labels import ARROWS, dataset_label, metric_legend
from nescio.report.named_reports import report
from nescio.report.representations import likelihood_table
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Index, Table, decimals, table
from nescio.rows import Row

LOSSES = ("entropy", "brier")  # in the paper's order
USUAL = "brier"
COSINE, EUCLIDEAN = "cosine", "euclidean"
METHODS = {"simclr": "SimCLR", "byol": "BYOL", "moco": "MoCo"}
ORDER = [f"{name}{star}" for name in SCORES for star in ("", STAR)]
NO_REFERENCES = ("norm", "fv")  # scores without references, which do not vary over samples of references
AXES = {MEMBERS: "networks", NEIGHBOURS: "neighbours", COMPONENTS: "components"}
MAX_CANDIDATES = 6  # maximum number of candidates whose figures the page shows; tables show more
WHICH = "Correlation of scores with downstream performance"
TRUTH = "Brier score, with labels"
WORTH = "Downstream performance of the representations"
NOT_STORED = "Linear-probe and k-NN accuracies were not stored before version 4 of the benchmark"
TAU_AXIS = "Kendall’s τ"
OF_TAUS: dict[str, Callable[[Sequence[float]], Any]] = {"mean τ ↑": fmean, "lowest τ ↑": min}
TAU = (
    "Kendall's τ between a score and the downstream performance of every test image, each score signed so that higher "
    "is more reliable"
)
ALONE = (
    "Kendall's τ with minus the Brier score of each network alone. A star marks the score of the network alone; the "
    "others use all siblings"
)


# ---- rows to means

LINE = ("candidate", "backbone", "setting", "transfer", "method", "distance", "measure", "metric")


def with_settings(frame: Frame) -> Frame:
    """Rows with the names of their setting and candidate, and whether the setting is a transfer."""

    def named(row: Row) -> Row:
        data, target = dataset_label(row["dataset"]), dataset_label(row["target"])
        setting = data if row["dataset"] == row["target"] else f"{data} → {target}"
        candidate = f"{method_word(row['method'])}, {row['backbone']}, {setting}"
        return row | {"setting": setting, "candidate": candidate, "transfer": row["dataset"] != row["target"]}

    return Frame(map(named, frame))


def over_samples(frame: Frame, sweep: str | None = None, by: Sequence[str] = LINE) -> Frame:
    """Mean and standard deviation over samples of references, for whole candidates; `sweep`: the varied number."""
    ensembles = with_settings(frame).where(init_seed=None, sweep=sweep, measure=lambda name: name is not None)
    means = ensembles.summarise(by, over=["draw"])
    return means.with_column("spread", lambda row: None if row["measure"] in NO_REFERENCES else row["spread"])


def over_members(frame: Frame) -> Frame:
    """Mean and standard deviation over single networks, each the mean over samples of references (appendix C.2)."""
    alone = with_settings(frame).where(init_seed=lambda seed: seed is not None)
    return alone.summarise(LINE, over=["init_seed"])


def sweep_distance(frame: Frame) -> str:
    """The distance of the sweeps and of the summary: cosine if available."""
    distances = frame.unique("distance")
    return COSINE if COSINE in distances or EUCLIDEAN not in distances else EUCLIDEAN


def method_word(method: Any) -> str:
    return METHODS.get(method, str(method))


def score_word(measure: str) -> str:
    """nc → NC, ll* → LL*."""
    return SCORES[measure.removesuffix(STAR)].word + STAR * measure.endswith(STAR)


# ---- Tables 1 to 9: agreement of scores with downstream performance


def correlations(
    means: Frame, title: str, losses: Sequence[str] = LOSSES, metric: str = "kendall", **options: Any
) -> list[Table]:
    """One table per backbone: method and score against settings and losses; the best of a method's column is bold."""
    names = {f"{metric}_{loss}": loss for loss in losses}
    selected, tables = means.where(metric=tuple(names)), list[Table]()
    methods = selected.unique("method")
    selected = selected.sort(lambda row: methods.index(row["method"]), lambda row: ORDER.index(row["measure"]))
    lines = [Index("method", format=method_word)] if any(methods) else []
    lines.append(Index("measure", "score", score_word, keep=True))
    options = {"note": TAU, "compare_within": ("method",)} | options
    for (backbone,), group in selected.group_by("backbone"):
        columns = [
            Column(f"{setting} {loss}", where={"setting": setting, "metric": name}, better="higher", format=decimals(4))
            for setting in means.where(backbone=backbone).unique("setting")
            for name, loss in names.items()
        ]
        tables.append(table(group, f"{title}, {backbone}", index=lines, columns=columns, **options))
    return tables


def _tables(
    number: int, title: str, *, transfer: bool, distance: str = COSINE, by_seed: bool = False, spread: bool = True
) -> Callable[[Frame], list[Table]]:
    """Registers one of the paper's tables of correlations; `by_seed`: of single networks."""
    data = "other data" if transfer else "the pre-training data"

    @report(f"reliability/table{number}", needs=f"{data} as target, and {distance.capitalize()} distances")
    def tables(frame: Frame) -> list[Table]:
        means = (over_members if by_seed else over_samples)(frame).where(transfer=transfer, distance=distance)
        losses, note = ((USUAL,), ALONE) if by_seed else (LOSSES, TAU)
        return correlations(means, f"{title} (Table {number})", losses=losses, note=note, spread=spread)

    return tables


table_1 = _tables(1, "In-distribution", transfer=False, spread=False)
table_2 = _tables(2, "Transfer", transfer=True, spread=False)
table_4 = _tables(4, "In-distribution", transfer=False)
table_5 = _tables(5, "In-distribution, unnormalised", transfer=False, distance=EUCLIDEAN)
table_6 = _tables(6, "Transfer", transfer=True)
table_7 = _tables(7, "Transfer, unnormalised", transfer=True, distance=EUCLIDEAN)
table_8 = _tables(8, "Single networks, in-distribution", transfer=False, by_seed=True)
table_9 = _tables(9, "Single networks, transfer", transfer=True, by_seed=True)


@report("reliability/table3", needs="two methods or more, and cosine distances")
def table_3(frame: Frame, losses: Sequence[str] = LOSSES) -> list[Table]:
    """Ranking of the candidates by a score for each test image, against that by performance (Table 3)."""
    note = (
        "For every test image, Kendall's τ between the ranking of the methods by a score and by downstream "
        "performance, the mean over images"
    )
    means = over_samples(frame).where(distance=COSINE, method=None)
    return correlations(means, "Ranking the candidates (Table 3)", losses=losses, metric="ranking", note=note)


# ---- Figures 2, 4 and 5: ensemble size and number of neighbours


def sweeps(frame: Frame, over: str) -> list[Frame]:
    """The rows of every candidate in a sweep; `size` is the varied k, M or C, also for scores without it."""
    column = {MEMBERS: "members", NEIGHBOURS: "k", COMPONENTS: "components"}[over]
    rows_by_brier = frame.where(metric=f"kendall_{USUAL}")
    means = over_samples(rows_by_brier, over, (*LINE, column)).with_column("size", lambda row: int(row[column]))
    level = over_samples(rows_by_brier.where(distance=sweep_distance(frame))).without(measure=("nc", "dist"))
    candidates = []
    for (candidate,), group in means.group_by("candidate"):
        rows = list(group)
        if over == NEIGHBOURS:  # a score without neighbours is a horizontal line
            rows += [row | {"size": k} for row in level.where(candidate=candidate) for k in group.unique("size")]
        candidates.append(Frame(rows).sort(lambda row: ORDER.index(row["measure"]), "size"))
    return candidates


def sweep_blocks(candidates: Sequence[Frame], sweep: str, figure: str) -> list[Block]:
    """A figure of each candidate, then their tables; `figure` is its name in the paper."""
    figures, tables = list[Block](), list[Block]()
    note = f"Kendall's τ with minus the Brier score, over {AXES[sweep]}"
    note += "; the Brier score is that of all networks for every M" if sweep == MEMBERS else ""
    caption = f"{figure}. Kendall’s τ with minus the Brier score against the number of {AXES[sweep]}, {sweep}."
    key = figure.lower().replace("ure ", "")
    lines = (Index("measure", "score", score_word),)
    for number, rows in enumerate(candidates):
        title, name = rows.first("candidate"), f"{key}-{sweep.lower()}{number}"
        curves = {
            score_word(measure): {str(row["size"]): row["value"] for row in line}
            for (measure,), line in rows.group_by("measure")
        }
        figures.append(levels_figure(name, title, caption, curves, ("score", sweep, TAU_AXIS), guide=0.0))
        sizes = sorted(rows.unique("size"))
        columns = [Column(f"{sweep} = {size}", where={"size": size}, format=decimals(4)) for size in sizes]
        title = f"{title} ({figure})"
        tables.append(table(rows, title, index=lines, columns=columns, note=note, bold="none", spread=False))
    return [*figures, *tables]


@report("reliability/fig2", needs="a sweep over k or over M")
def fig_2(frame: Frame) -> list[Block]:
    """τ against M and against k, of the first candidate in-distribution and the first in transfer (Figure 2)."""
    blocks: list[Block] = []
    for over in (MEMBERS, NEIGHBOURS):
        first: dict[bool, Frame] = {}
        for rows in sweeps(frame, over):
            first.setdefault(rows.first("transfer"), rows)
        blocks += sweep_blocks([first[setting] for setting in sorted(first)], over, "Figure 2")
    return sorted(blocks, key=lambda block: isinstance(block, Table))


@report("reliability/fig4", needs="a sweep over M")
def fig_4(frame: Frame) -> list[Block]:
    """τ against the number of networks of an ensemble, of every candidate in every setting (Figure 4)."""
    return sweep_blocks(sweeps(frame, MEMBERS), MEMBERS, "Figure 4")


@report("reliability/fig5", needs="a sweep over k")
def fig_5(frame: Frame) -> list[Block]:
    """τ against the number of neighbours, of every candidate in every setting (Figure 5)."""
    return sweep_blocks(sweeps(frame, NEIGHBOURS), NEIGHBOURS, "Figure 5")


@report("reliability/components", needs="mixtures of two numbers of components or more")
def components(frame: Frame) -> list[Block]:
    """Held-out likelihood of LL's mixtures, by which the number of components is chosen, and τ for each number."""
    swept_rows = with_settings(frame.where(sweep=COMPONENTS))
    choice_of = {key: group.first() for key, group in swept_rows.where(metric=CHOSEN).group_by("candidate", "distance")}
    rows = [
        row | {"best": row["components"] == choice_of[row["candidate"], row["distance"]]}
        for row in swept_rows.where(metric=HELD_OUT)
    ]
    likelihoods = [likelihood_table(rows, ("candidate", "distance"))] if rows else []
    return [*likelihoods, *sweep_blocks(sweeps(frame, COMPONENTS), COMPONENTS, "Components")]


# ---- summaries


def taus(frame: Frame, distance: str, loss: str = USUAL) -> dict[str, list[float]]:
    """Score → τ of every candidate in every setting."""
    means = over_samples(frame.where(distance=distance, metric=f"kendall_{loss}"))
    return {measure: own.column() for (measure,), own in means.group_by("measure")}


@report("reliability/summary", needs="scores of a candidate")
def summary(frame: Frame) -> Table:
    """One line per score: mean and lowest τ over all candidates, and the number of positive τ."""
    distance = sweep_distance(frame)
    note = (
        "Kendall's τ with the downstream performance of every test image (minus the Brier score, minus the entropy), "
        f"over all candidates and settings, {distance} distance, each score signed so that higher is more reliable. "
        "Above 0: the number of candidates with a positive τ"
    )
    taus_by_loss = {loss: taus(frame, distance, loss) for loss in (USUAL, "entropy")}
    overview = _by_score(taus_by_loss, WHICH, note, OF_TAUS | {"above 0 ↑": _tally})
    entries = [SCORES[measure] for measure in by_mean(taus_by_loss[USUAL])]
    return replace(overview, legend=(*((score.word, score.meaning) for score in entries), *metric_legend(["kendall"])))


Taus = Mapping[str, Sequence[float]]  # of every candidate in every setting, by score


def by_mean(side: Taus) -> list[str]:
    """Scores by their mean τ, the best first."""
    return sorted(side, key=lambda measure: -fmean(side[measure]))


def _by_score(columns: Mapping[str, Taus], title: str, note: str, statistics: Mapping[str, Any] = OF_TAUS) -> Table:
    """One line per score, in the order of the first column of taus; cells are statistics of its τ."""
    rows = [
        {"measure": measure, "head": f"{title_of_taus}: {label}", "value": statistic(values[measure])}
        for measure in by_mean(next(iter(columns.values())))
        for title_of_taus, values in columns.items()
        for label, statistic in statistics.items()
        if measure in values
    ]
    lines = (Index("measure", "score", score_word),)
    heads = [
        Column(f"{title_of_taus}: {label}", where={"head": f"{title_of_taus}: {label}"}, format=decimals(3))
        for title_of_taus in columns
        for label in statistics
    ]
    return table(rows, title, index=lines, columns=heads, note=note, bold="none")


def _tally(values: Sequence[float]) -> str:
    return f"{sum(value > 0 for value in values)} of {len(values)}"


@report("reliability/robustness", needs="cosine and Euclidean distances")
def robustness(frame: Frame) -> Table | None:
    """Unit vectors and cosines against raw vectors and Euclidean distances (§4.5)."""
    sides = {distance: taus(frame, distance) for distance in (COSINE, EUCLIDEAN)}
    note = "Kendall's τ with minus the Brier score, over all candidates and settings; the norm is the same in both"
    return _by_score(sides, "Cosine and Euclidean distance", note) if all(sides.values()) else None


@report("reliability/downstream", needs="downstream losses")
def downstream(frame: Frame) -> Table:
    """NC, accuracies, and mean losses of the heads of every candidate."""
    candidates, quantities = with_settings(frame), {"nc": SCORES["nc"]} | ACCURACIES | HEADS
    accuracies, losses = candidates.where(metric=tuple(ACCURACIES)), candidates.where(metric=tuple(HEADS), measure=None)
    nc = over_samples(frame.where(metric="mean", measure="nc", distance=sweep_distance(frame)))
    rows = [row | {"metric": "nc", "value": 1 - row["value"]} for row in nc]
    rows += [*accuracies.summarise(LINE, over=["init_seed"]), *losses]
    heads = [
        Column(f"{quantity.word} {ARROWS[quantity.better]}", where={"metric": name}, format=decimals(4))
        for name, quantity in quantities.items()
    ]
    heads.append(Column("M", "members", where={"metric": USUAL}, format=COUNT))
    notes = ["NC uses no labels, the other columns do"]
    if accuracies:
        k = accuracies.where(metric="knn_accuracy").first("k")
        notes.append(f"Linear probe and k-NN: k = {k:g}")
    elif rows:
        notes.append(NOT_STORED)
    notes.append("Losses: of the averaged predictions of M networks, over test images and tasks")
    if len(losses.unique("members")) > 1:
        notes.append("M differs, and a larger M lowers the losses")
    lines = (Index("method", format=method_word), "backbone", "setting")
    result = table(rows, WORTH, index=lines, columns=heads, note=". ".join(notes), bold="none")
    legend = [(head.title, quantity.meaning) for head, quantity in zip(heads, quantities.values(), strict=False)]
    return replace(result, legend=tuple(entry for entry in legend if entry[0] in result.columns))


@report("reliability/choices", needs="two methods or more")
def choices(frame: Frame) -> Table:
    """The method with the best mean score over test images, against the best by mean Brier score (§4.3)."""
    labelled = with_settings(frame).where(measure=None, metric=USUAL).with_column("measure", lambda row: TRUTH)
    means = over_samples(frame.where(metric="mean", distance=sweep_distance(frame)))
    titles = {TRUTH: TRUTH} | {name: score_word(name) for name in SCORES}
    rows: list[Row] = []
    for (setting, backbone), performance in labelled.group_by("setting", "backbone"):
        every = Frame([*performance, *means.where(setting=setting, backbone=backbone, measure=tuple(titles))])
        chosen_methods = {
            name: min(group, key=lambda row: row["value"])["method"] for (name,), group in every.group_by("measure")
        }
        for name, method in chosen_methods.items() if len(performance) > 1 else ():
            line = {"by": name, "of": f"{setting}, {backbone}", "text": method_word(method)}
            rows.append(line | {"best": name != TRUTH and method == chosen_methods[TRUTH]})
    sorted_rows = Frame(rows).sort(lambda row: list(titles).index(row["by"]))
    columns = [Column(name, "text", where={"of": name}) for name in sorted_rows.unique("of")]
    note = "The method with the best mean over test images. Bold: the choice by a score equals that by the Brier score"
    lines = (Index("by", format=titles.__getitem__),)
    return table(sorted_rows, "Method chosen by each score", index=lines, columns=columns, note=note)


@report("reliability/heat", needs="two scores or more")
def heat(frame: Frame) -> Blocks:
    """τ with minus the Brier score of every candidate, setting and score."""
    means = over_samples(frame.where(distance=sweep_distance(frame), metric=f"kendall_{USUAL}"))
    cells = [
        {"line": row["candidate"], "column": score_word(row["measure"]), "value": row["value"], "n": row["n"]}
        for _, group in means.group_by("candidate")
        for row in group.sort(lambda row: ORDER.index(row["measure"]))
    ]
    caption = "Kendall’s τ with minus the Brier score: more colour is better, 0 is chance."
    names = ("candidate", "score", "samples of references")
    return heat_figure("heat", "Kendall’s τ of every candidate and score", caption, cells, TAU_AXIS, 0.0, names)


# ---- the page


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    frame = study.frame
    means = over_samples(frame.where(distance=sweep_distance(frame)))
    return [
        downstream(frame),
        summary(frame),
        *correlations(means.without(method=None), "Candidates", losses=(USUAL,)),
        *table_3(frame, (USUAL,)),
    ]


def training_data(frame: Frame) -> str:
    """The pre-training data."""
    return ", ".join(dict.fromkeys(map(dataset_label, frame.unique("dataset"))))


def lead(frame: Frame) -> list[str]:
    """Summarize the study and its main results in sentences."""
    methods = frame.where(metric=f"kendall_{USUAL}").unique("method")
    members = sorted(frame.where(measure=None, metric=USUAL).unique("members"), reverse=True)
    networks = " or ".join(map(count_in_words, members))
    sentences = [
        f"{plural(len(methods), 'method')} trained without labels on {training_data(frame)}, {networks} networks each."
    ]
    taus_by_score = taus(frame, sweep_distance(frame))
    means = {measure: fmean(values) for measure, values in taus_by_score.items()}
    best = max(means, key=lambda name: means[name], default="nc")
    for name in dict.fromkeys((best, "nc", "fv")):
        if name in means:
            label = f"{'Highest mean τ: ' if name == best and len(means) > 1 else ''}{score_word(name)}"
            sentences.append(
                f"{label}, mean τ = {format_number(means[name], 2)}, positive in {_tally(taus_by_score[name])} cases."
            )
    return [*sentences, *layer_warnings((), frame.unique("backbone"))]


def story(study: Study) -> Story:
    """The page of a study of representations."""
    frame, plan = study.frame, study.plan
    conditions = f"NC uses the {plan['k']} nearest of {plan['reference_size']:,} references." if "k" in plan else ""
    distance = [robustness(frame), *table_5(frame), *table_7(frame)]
    single_tables = [*table_8(frame), *table_9(frame)]
    sections: list[SectionSpec] = [
        ("Downstream", WORTH, [downstream(frame)]),
        ("Scores", WHICH, [summary(frame), heat(frame)]),
        ("In distribution", "On the pre-training data (Tables 1 and 4)", table_4(frame)),
        ("Transfer", "On other data (Tables 2 and 6)", table_6(frame)),
        ("Choice", "Choice of the method (Table 3)", [choices(frame), *table_3(frame)]),
        ("Distance", "Cosine and Euclidean distance (Tables 5 and 7)", distance),
        ("One network", "The reliability of single networks (Tables 8 and 9)", single_tables),
        ("Networks", "Number of networks (Figures 2 and 4)", _few_figures(fig_4(frame)), conditions),
        ("Neighbours", "Number of neighbours (Figures 2 and 5)", _few_figures(fig_5(frame))),
        ("Components", "Number of mixture components", _few_figures(components(frame))),
    ]
    title = f"Reliability of representations: Kendall’s τ of scores on {training_data(frame)}"
    return story_of(study, title, lead(frame), sections)


def _few_figures(blocks: Sequence[Block]) -> list[Block]:
    """Figures of a few candidates, and collapsed tables of all."""
    figures = [block for block in blocks if isinstance(block, Figure)]
    return collapse_tables([*figures[:MAX_CANDIDATES], *(block for block in blocks if isinstance(block, Table))])
