"""The tables and figures of Park et al. 2024, each a named report, and the page that holds them.

A candidate is one method on one backbone; a setting is pre-training data → target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from nescio.measures.siblings import SCORES
from nescio.protocols.base import registry
from nescio.protocols.reliability import MEMBERS, NAME, NEIGHBOURS, STAR
from nescio.report.blocks import Block, Figure, Made, SectionParts, Story, fold_tables
from nescio.report.charts import heat_figure, level_points, levels_figure
from nescio.report.frame import Frame
from nescio.report.named import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Cell, Column, Head, Table, decimals, table
from nescio.report.words import count, data_name, legend, number, plural
from nescio.rows import Row

LOSSES = ("entropy", "brier")  # in the paper's order
USUAL = "brier"
COSINE, EUCLIDEAN = "cosine", "euclidean"
METHODS = {"simclr": "SimCLR", "byol": "BYOL", "moco": "MoCo"}
ORDER = [f"{name}{star}" for name in SCORES for star in ("", STAR)]
NO_REFERENCES = ("norm", "fv")  # they never look at a reference: no spread over samples of references
AXES = {MEMBERS: "networks", NEIGHBOURS: "neighbours"}
MOST = 6  # candidates whose figures the page shows; of more it shows the tables
WHICH = "Which score knows what a representation is worth?"
TRUTH = "Brier score, with labels"
TAU_AXIS = "Kendall’s τ"
OF_TAUS: dict[str, Callable[[Sequence[float]], Any]] = {"mean τ ↑": fmean, "lowest τ ↑": min}
TAU = (
    "Kendall's τ between a score and the downstream performance of every test image, each score signed so that higher "
    "is more reliable"
)
SAMPLES = f"{TAU}: mean ± standard deviation over samples of references"
ALONE = (
    "Kendall's τ with minus the Brier score of each network alone: mean ± standard deviation over networks. A star "
    "marks the network's own score; the others are those of all siblings"
)


# ---- rows to means

LINE = ("candidate", "backbone", "setting", "transfer", "method", "condition", "measure", "metric")


def with_settings(frame: Frame) -> Frame:
    """Rows with their setting and their candidate in words, and whether the setting is one of transfer."""

    def named(row: Row) -> Row:
        data, target = data_name(row["dataset"]), data_name(row["target"])
        setting = data if row["dataset"] == row["target"] else f"{data} → {target}"
        candidate = f"{method_word(row['method'])}, {row['backbone']}, {setting}"
        return row | {"setting": setting, "candidate": candidate, "transfer": row["dataset"] != row["target"]}

    return Frame(map(named, frame))


def over_samples(frame: Frame, group: str | None = None, by: Sequence[str] = LINE) -> Frame:
    """Mean and standard deviation over samples of references, of whole candidates; `group`: a sweep."""
    whole = with_settings(frame).where(init_seed=None, group=group, measure=lambda name: name is not None)
    means = whole.summarise(by, over=["sample"])
    return means.with_column("spread", lambda row: None if row["measure"] in NO_REFERENCES else row["spread"])


def over_members(frame: Frame) -> Frame:
    """Mean and standard deviation over single networks, each the mean over samples of references (appendix C.2)."""
    alone = with_settings(frame).where(init_seed=lambda seed: seed is not None)
    return alone.summarise(LINE, over=["init_seed"])


def swept(frame: Frame) -> str:
    """The distance whose sweeps were kept and that the summary shows: cosine, where there is one."""
    distances = frame.values("condition")
    return COSINE if COSINE in distances or EUCLIDEAN not in distances else EUCLIDEAN


def method_word(method: Any) -> str:
    return METHODS.get(method, str(method))


def score_word(measure: str) -> str:
    """nc → NC, ll* → LL*."""
    return SCORES[measure.removesuffix(STAR)].word + STAR * measure.endswith(STAR)


# ---- Tables 1 to 9: how a score and the downstream performance agree


def correlations(
    means: Frame,
    title: str,
    *,
    losses: Sequence[str] = LOSSES,
    metric: str = "kendall",
    note: str = SAMPLES,
    around: bool = True,
) -> list[Table]:
    """One table per backbone: method and score against settings and losses; the best of a method's column is bold."""
    names = {f"{metric}_{loss}": loss for loss in losses}
    shown, tables = means.where(metric=tuple(names)), list[Table]()
    methods = shown.values("method")
    shown = shown.sort(lambda row: methods.index(row["method"]), lambda row: ORDER.index(row["measure"]))
    lines = (Column("method", word=method_word), Column("measure", "score", score_word, keep=True))
    for (backbone,), own in shown.by("backbone"):
        heads = [
            Head(f"{setting} {loss}", where={"setting": setting, "metric": name}, better="higher", form=decimals(4))
            for setting in means.where(backbone=backbone).values("setting")
            for name, loss in names.items()
        ]
        labels = lines if any(methods) else lines[1:]
        within = ("method",)
        tables.append(
            table(own, f"{title}, {backbone}", lines=labels, heads=heads, note=note, within=within, around=around)
        )
    return tables


def _tables(
    number: int, title: str, *, transfer: bool, condition: str = COSINE, alone: bool = False, around: bool = True
) -> Callable[[Frame], list[Table]]:
    """Registers one of the paper's tables of correlations; `alone`: of single networks."""
    data, distance = "other data" if transfer else "the pre-training data", condition.capitalize()

    @report(f"reliability/table{number}", needs=f"{data} as target, and {distance} distances")
    def tables(frame: Frame) -> list[Table]:
        means = (over_members if alone else over_samples)(frame).where(transfer=transfer, condition=condition)
        losses, note = ((USUAL,), ALONE) if alone else (LOSSES, SAMPLES if around else TAU)
        return correlations(means, f"{title} (Table {number})", losses=losses, note=note, around=around)

    return tables


table_1 = _tables(1, "In-distribution", transfer=False, around=False)
table_2 = _tables(2, "Transfer", transfer=True, around=False)
table_4 = _tables(4, "In-distribution", transfer=False)
table_5 = _tables(5, "In-distribution, unnormalised", transfer=False, condition=EUCLIDEAN)
table_6 = _tables(6, "Transfer", transfer=True)
table_7 = _tables(7, "Transfer, unnormalised", transfer=True, condition=EUCLIDEAN)
table_8 = _tables(8, "Single networks, in-distribution", transfer=False, alone=True)
table_9 = _tables(9, "Single networks, transfer", transfer=True, alone=True)


@report("reliability/table3", needs="two methods or more, and cosine distances")
def table_3(frame: Frame, losses: Sequence[str] = LOSSES) -> list[Table]:
    """How a score ranks the candidates for each test image, against their real ranking (Table 3)."""
    note = (
        "For every test image, Kendall's τ between the ranking of the methods by a score and by downstream "
        "performance; mean over images, ± standard deviation over samples of references"
    )
    means = over_samples(frame).where(condition=COSINE, method=None)
    return correlations(means, "Ranking the candidates (Table 3)", losses=losses, metric="ranking", note=note)


# ---- Figures 2, 4 and 5: ensemble size and number of neighbours


def sweeps(frame: Frame, over: str) -> list[Frame]:
    """The rows of every candidate in a sweep over "k" or "M"; `size` is k or M, also of scores without k."""
    column = {NEIGHBOURS: "level", MEMBERS: "members"}[over]
    usual = frame.where(metric=f"kendall_{USUAL}")
    means = over_samples(usual, over, (*LINE, column)).with_column("size", lambda row: int(row[column]))
    level = over_samples(usual.where(condition=swept(frame))).without(measure=("nc", "dist"))
    candidates = []
    for (candidate,), own in means.by("candidate"):
        rows = list(own)
        if over == NEIGHBOURS:  # a score without neighbours is a level line
            rows += [row | {"size": k} for row in level.where(candidate=candidate) for k in own.values("size")]
        candidates.append(Frame(rows).sort(lambda row: ORDER.index(row["measure"]), "size"))
    return candidates


def sweep_blocks(candidates: Sequence[Frame], over: str, figure: int) -> list[Block]:
    """A figure of each candidate, then their tables."""
    figures, tables = list[Block](), list[Block]()
    note = f"Kendall's τ with minus the Brier score, over {AXES[over]}"
    note += "; the Brier score is that of all networks, whatever M" if over == MEMBERS else ""
    words = f"Figure {figure}. Kendall’s τ with minus the Brier score against the number of {AXES[over]}, {over}."
    lines = (Column("measure", "score", score_word),)
    for place, rows in enumerate(candidates):
        title, curves = rows.one("candidate"), dict[str, dict[str, float]]()
        for row in rows:
            curves.setdefault(score_word(row["measure"]), {})[str(row["size"])] = row["value"]
        chart = partial(levels_figure, curves, TAU_AXIS, guide=0.0)
        points = level_points(curves, "score", over, TAU_AXIS)
        figures.append(Figure(f"fig{figure}-{over.lower()}{place}", title, words, chart, points))
        sizes = sorted(rows.values("size"))
        heads = [Head(f"{over} = {size}", where={"size": size}, form=decimals(4)) for size in sizes]
        numbered = f"{title} (Figure {figure})"
        tables.append(table(rows, numbered, lines=lines, heads=heads, note=note, mark="none", around=False))
    return [*figures, *tables]


@report("reliability/fig2", needs="a sweep over k or over M")
def fig_2(frame: Frame) -> list[Block]:
    """τ against M and against k, of the first candidate in-distribution and the first in transfer (Figure 2)."""
    blocks: list[Block] = []
    for over in AXES:
        first: dict[bool, Frame] = {}
        for rows in sweeps(frame, over):
            first.setdefault(rows.one("transfer"), rows)
        blocks += sweep_blocks([first[side] for side in sorted(first)], over, 2)
    return sorted(blocks, key=lambda block: isinstance(block, Table))


@report("reliability/fig4", needs="a sweep over M")
def fig_4(frame: Frame) -> list[Block]:
    """τ against the number of networks of an ensemble, of every candidate in every setting (Figure 4)."""
    return sweep_blocks(sweeps(frame, MEMBERS), MEMBERS, 4)


@report("reliability/fig5", needs="a sweep over k")
def fig_5(frame: Frame) -> list[Block]:
    """τ against the number of neighbours, of every candidate in every setting (Figure 5)."""
    return sweep_blocks(sweeps(frame, NEIGHBOURS), NEIGHBOURS, 5)


# ---- what a first reader wants to know


def taus(frame: Frame, condition: str, loss: str = USUAL) -> dict[str, list[float]]:
    """Score → τ of every candidate in every setting."""
    means = over_samples(frame.where(condition=condition, metric=f"kendall_{loss}"))
    return {measure: own.column() for (measure,), own in means.by("measure")}


@report("reliability/summary", needs="scores of a candidate")
def summary(frame: Frame) -> Table:
    """One line per score: how well it knew, on average and at worst, and how often it pointed the right way."""
    condition, rows = swept(frame), dict[str, Row]()
    for loss in (USUAL, "entropy"):
        for measure, values in taus(frame, condition, loss).items():
            row = rows.setdefault(measure, {"measure": measure})
            row |= {f"{loss}: {what}": of(values) for what, of in (OF_TAUS | {"above 0 ↑": _above}).items()}
    ordered = sorted(rows.values(), key=lambda row: -row.get(f"{USUAL}: mean τ ↑", -1.0))
    note = (
        "Kendall's τ with the downstream performance of every test image (minus the Brier score, minus the entropy), "
        f"over all candidates and settings, {condition} distance, each score signed so that higher is more reliable. "
        "Above 0: where the score points the right way"
    )
    known = tuple((SCORES[row["measure"]].word, SCORES[row["measure"]].meaning) for row in ordered)
    return replace(_by_score(ordered, WHICH, note), legend=known + legend(["kendall"]))


def _by_score(rows: Sequence[Row], title: str, note: str) -> Table:
    """One line per score; a row holds the score and the value of every head."""
    names = dict.fromkeys(name for row in rows for name in row if name != "measure")
    heads = [Head(name, name, form=decimals(3)) for name in names]
    return table(rows, title, lines=(Column("measure", "score", score_word),), heads=heads, note=note, mark="none")


def _above(values: Sequence[float]) -> str:
    return f"{sum(value > 0 for value in values)} of {len(values)}"


@report("reliability/robustness", needs="cosine and Euclidean distances")
def robustness(frame: Frame) -> Table:
    """Unit vectors and cosines against raw vectors and Euclidean distances (§4.5)."""
    sides = {distance: taus(frame, distance) for distance in (COSINE, EUCLIDEAN)}
    rows = [
        {"measure": measure}
        | {f"{distance}: {what}": of(side[measure]) for distance, side in sides.items() for what, of in OF_TAUS.items()}
        for measure in SCORES
        if all(measure in side for side in sides.values())
    ]
    note = "Kendall's τ with minus the Brier score, over all candidates and settings; the norm is the same in both"
    return _by_score(rows, "Does the distance matter?", note)


@report("reliability/downstream", needs="downstream losses")
def downstream(frame: Frame) -> Table:
    """How good the representations are: mean losses of the heads over test images, averages of the members."""
    losses = ("brier", "entropy", "variance")
    note = (
        "Means over test images and tasks of the networks' averaged answers: the lower, the better the representation"
    )
    lines = (Column("method", word=method_word, keep=True), Column("backbone", keep=True), Column("setting", keep=True))
    heads = [Head(f"{loss} ↓", where={"metric": loss}, form=decimals(4)) for loss in losses]
    rows = with_settings(frame).where(measure=None, metric=losses)
    title = "What the representations are worth"
    return table(rows, title, lines=lines, heads=heads, note=note, mark="none", around=False)


@report("reliability/choices", needs="two methods or more")
def choices(frame: Frame) -> Table:
    """Which method each score would take by its mean over test images, against the best by mean Brier score (§4.3)."""
    labelled = with_settings(frame).where(measure=None, metric=USUAL).with_column("measure", lambda row: TRUTH)
    means = over_samples(frame.where(metric="mean", condition=swept(frame)))
    taken: dict[str, dict[str, str]] = {}  # setting and backbone → score → method
    for (setting, backbone), truth in labelled.by("setting", "backbone"):
        if len(truth) > 1:
            rows = [*truth, *means.where(setting=setting, backbone=backbone)]
            choice = {
                name: min(own, key=lambda row: row["value"])["method"] for (name,), own in Frame(rows).by("measure")
            }
            taken[f"{setting}, {backbone}"] = choice

    def cell(head: str, name: str) -> Cell | None:
        method = taken[head].get(name)
        best = name != TRUTH and method == taken[head][TRUTH]
        return None if method is None else Cell(text=method_word(method), best=best)

    names = [name for name in (TRUTH, *SCORES) if any(name in choice for choice in taken.values())]
    words = {name: score_word(name) if name in SCORES else name for name in names}
    lines = tuple(((words[name],), tuple(cell(head, name) for head in taken)) for name in names)
    note = "The method with the best mean over test images; bold where a score, without labels, takes it as well"
    return Table("Which method each score would take", ("by",), tuple(taken), lines, note)


@report("reliability/heat", needs="two scores or more")
def heat(frame: Frame) -> Made:
    """τ with minus the Brier score of every candidate, setting and score."""
    means = over_samples(frame.where(condition=swept(frame), metric=f"kendall_{USUAL}"))
    cells = [
        {"line": row["candidate"], "column": score_word(row["measure"]), "value": row["value"], "n": row["n"]}
        for _, own in means.by("candidate")
        for row in own.sort(lambda row: ORDER.index(row["measure"]))
    ]
    if len(cells) < 2:
        return None
    names = ("candidate", "score", "samples of references")
    return Figure(
        "heat",
        "Every candidate with every score",
        "Kendall’s τ with minus the Brier score: more colour is better, 0 is guessing.",
        lambda: heat_figure(cells, TAU_AXIS, 0.0, names),
        cells,
    )


# ---- the whole


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    frame = study.frame
    means = over_samples(frame.where(condition=swept(frame)))
    return [
        summary(frame),
        *correlations(means.without(method=None), "Candidates", losses=(USUAL,)),
        *table_3(frame, (USUAL,)),
    ]


def lead(frame: Frame) -> list[str]:
    """What was done and what came out, in plain sentences."""
    methods = frame.where(metric=f"kendall_{USUAL}").values("method")
    members = sorted(frame.where(measure=None).values("members"), reverse=True)
    data = ", ".join(dict.fromkeys(map(data_name, frame.values("dataset"))))
    networks = " or ".join(map(count, members))
    sentences = [f"{plural(len(methods), 'method')} learnt {data} without labels, {networks} networks each."]
    of_score = taus(frame, swept(frame))
    means = {measure: fmean(values) for measure, values in of_score.items()}
    if "nc" in means:
        sentence = (
            "Neighbourhood consistency, which has seen no label, goes with downstream performance in "
            f"{_above(of_score['nc'])} cases (mean τ = {number(means['nc'], 2)})"
        )
        if "fv" in means:
            sentence += f", feature variance in {_above(of_score['fv'])} (mean τ = {number(means['fv'], 2)})"
        sentences.append(f"{sentence}.")
    best = max(means, key=lambda name: means[name], default="nc")
    if best != "nc" and len(means) > 1:
        sentences.append(f"Here {score_word(best)} knows more than NC: mean τ = {number(means[best], 2)}.")
    return sentences


def story(study: Study) -> Story:
    """The page of a study of representations."""
    frame, plan = study.frame, study.plan
    fixed = f"NC looks at the {plan['k']} nearest of {plan['references']:,} references." if "k" in plan else ""
    single = [*table_8(frame), *table_9(frame)]
    distance = [robustness(frame), *table_5(frame), *table_7(frame)]
    choice = [choices(frame), *table_3(frame), downstream(frame)]
    sections: list[SectionParts] = [
        ("Which score?", WHICH, [summary(frame), heat(frame)]),
        ("In distribution", "On the data they learnt from (Tables 1 and 4)", table_4(frame)),
        ("Transfer", "On other data (Tables 2 and 6)", table_6(frame)),
        ("Choice", "Which method should one take? (Table 3)", choice),
        ("Distance", "Does the distance matter? (Tables 5 and 7)", distance),
        ("One network", "The reliability of single networks (Tables 8 and 9)", single),
        ("Networks", "How many networks? (Figures 2 and 4)", _few_figures(fig_4(frame)), fixed),
        ("Neighbours", "How many neighbours? (Figures 2 and 5)", _few_figures(fig_5(frame))),
    ]
    learnt = ", ".join(dict.fromkeys(map(data_name, frame.values("dataset"))))
    return story_of(study, f"{learnt}: which representations can be trusted?", lead(frame), sections, command=command)


def _few_figures(blocks: Sequence[Block]) -> list[Block]:
    """Figures of a few candidates, and all numbers behind folds."""
    figures = [block for block in blocks if isinstance(block, Figure)]
    return fold_tables([*figures[:MOST], *(block for block in blocks if isinstance(block, Table))])


def command(plan: dict[str, Any]) -> str:
    """The command that runs a plan again; version 2 had pairs of data and target, and `others` for `members_of`."""
    if "settings" in plan:
        plan = dict(plan)
        settings, others = plan.pop("settings"), plan.pop("others", ())
        pairs = [f"{data}={target}" for data, target in settings]
        targets = pairs if any(data != target for data, target in settings) else []
        plan |= {"data": list(dict.fromkeys(data for data, _ in settings)), "targets": targets, "members_of": others}
    return registry[NAME].command(plan)
