"""The tables and figures of Park et al. 2024, each a named function of rows, and the page that tells them.

`REPORTS` holds them by the paper's names (`table1` … `table9`, `fig2`, `fig4`, `fig5`), and `nescio report ROWS --only
table3` writes those that are asked for. A candidate is one method on one backbone; a setting is pre-training data →
target.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from nescio.measures.siblings import SCORES
from nescio.protocols.reliability import LOSSES, PAPER, STAR
from nescio.protocols.uimnet.reports import _count
from nescio.report import Cell, Table
from nescio.report.boxes import level_points, levels_figure
from nescio.report.cells import JOINT, grouped, legend, number
from nescio.report.charts import PAGE, heat_figure
from nescio.report.pages import Block, Figure, Fold, Section, Story, Terms
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.studies import Told

USUAL = "brier"
SHOWN = ("entropy", "brier")  # in the paper's order
COSINE, EUCLIDEAN = "cosine", "euclidean"
METHODS = {"simclr": "SimCLR", "byol": "BYOL", "moco": "MoCo"}
WORDS = {"nc": "NC", "dist": "Dist", "norm": "Norm", "ll": "LL", "fv": "FV"}
STARRED = tuple(f"{name}{star}" for name in SCORES for star in ("", STAR))
WHOLE = ("norm", "fv")  # they never look at a reference: no spread over samples of references
KNOWN = {
    "NC": "neighbourhood consistency: the mean over pairs of networks of how alike their nearest references are",
    "Dist": "minus the distance to the nearest references",
    "Norm": "the length of the representation",
    "LL": "its log-density among the references",
    "FV": "minus the variance of the representation between networks",
}
DIGITS = 4
MOST = 6  # candidates whose figures the page shows; of more it shows the tables


# ---- rows to means


@dataclass(frozen=True)
class Mean:
    value: float
    spread: float | None = None
    n: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, order=True)
class Setting:
    """Where networks learnt, and where their representations were put to use."""

    data: str
    target: str

    @property
    def transfer(self) -> bool:
        return self.data != self.target

    def __str__(self) -> str:
        return f"{named(self.data)} → {named(self.target)}" if self.transfer else named(self.data)


Line = tuple[str, Setting, str | None, str, str, str]  # backbone, setting, method, group, measure, metric


def line_of(row: Row) -> Line:
    setting = Setting(row["dataset"], row["split"])
    return row["backbone"], setting, row["method"], row["group"], row["measure"], row["metric"]


def over_samples(rows: Iterable[Row]) -> dict[Line, Mean]:
    """Mean and standard deviation over samples of references, of whole candidates."""
    held: dict[Line, list[float]] = {}
    for row in rows:
        if row["init_seed"] is None and row["group"] is not None:
            held.setdefault(line_of(row), []).append(row["value"])
    found = {line: Mean.of(values) for line, values in held.items()}
    return {line: replace(mean, spread=None) if line[4] in WHOLE else mean for line, mean in found.items()}


def over_members(rows: Iterable[Row]) -> dict[Line, Mean]:
    """Mean and standard deviation over single networks, each the mean over samples of references (appendix C.2)."""
    held: dict[Line, dict[int, list[float]]] = {}
    for row in rows:
        if row["init_seed"] is not None:
            held.setdefault(line_of(row), {}).setdefault(row["init_seed"], []).append(row["value"])
    return {line: Mean.of([fmean(values) for values in own.values()]) for line, own in held.items()}


def named(spec: str) -> str:
    """npz:PATH/tiny.npz@32 → tiny at 32 pixels."""
    place, _, size = spec.partition("@")
    name = PurePath(place.partition(":")[2] or place).stem
    return f"{name} at {size} pixels" if size else name


def word(measure: str) -> str:
    return WORDS.get(measure.removesuffix(STAR), measure) + STAR * measure.endswith(STAR)


def speaks(lines: Iterable[Line]) -> str:
    """The distance whose sweeps were kept and that the summary shows: cosine, where there is one."""
    groups = _each(lines, 3)
    return COSINE if COSINE in groups or EUCLIDEAN not in groups else EUCLIDEAN


def _each(lines: Iterable[Line], place: int) -> list[Any]:
    """What stands at one place of the lines, each once, as they come."""
    return list(dict.fromkeys(line[place] for line in lines))


# ---- Tables 1, 2 and 4 to 9: how a score and the downstream performance agree


def correlations(
    means: Mapping[Line, Mean],
    title: str,
    *,
    transfer: bool | None,
    group: str = COSINE,
    losses: Sequence[str] = SHOWN,
    spread: bool = True,
    metric: str = "kendall",
    note: str = "",
) -> list[Table]:
    """One table a backbone: method and score against settings and losses; the best of a method's column is bold.

    `transfer`: settings whose target is another set, or is the same; None: both.
    """
    wanted = {f"{metric}_{loss}": loss for loss in losses}
    held = {
        line: mean
        for line, mean in means.items()
        if line[3] == group and line[5] in wanted and transfer in (None, line[1].transfer)
    }
    tables = []
    for backbone in _each(held, 0):
        own = {line: mean for line, mean in held.items() if line[0] == backbone}
        columns = [(setting, name) for setting in _each(own, 1) for name in wanted]
        methods, several = _each(own, 2), any(line[2] for line in own)
        lines = []
        for method in methods:
            block = {(line[4], line[1], line[5]): mean for line, mean in own.items() if line[2] == method}
            best = {column: _best(block, column) for column in columns}
            for measure in sorted({each for each, _, _ in block}, key=STARRED.index):
                cells = tuple(_cell(block.get((measure, *column)), best[column], spread) for column in columns)
                name = JOINT.join((METHODS.get(method, method), word(measure))) if several else word(measure)
                lines.append((name, cells))
        heads = tuple(f"{setting} {wanted[name]}" for setting, name in columns)
        corner = JOINT.join(("method", "score")) if several else "score"
        tables.append(Table(f"{title}, {backbone}", corner, heads, tuple(lines), note, labels=2 if several else 1))
    return tables


def _best(block: Mapping[tuple[str, Setting, str], Mean], column: tuple[Setting, str]) -> str | None:
    """The highest value of a column as printed; None where there is nothing to choose."""
    texts = {number(m.value, DIGITS): m.value for (_, *own), m in block.items() if tuple(own) == column}
    return max(texts, key=lambda text: texts[text]) if len(texts) > 1 else None


def _cell(mean: Mean | None, best: str | None, spread: bool) -> Cell | None:
    if mean is None:
        return None
    text = number(mean.value, DIGITS)
    around = f" ± {number(mean.spread, DIGITS)}" if spread and mean.spread is not None else ""
    return Cell(text + around, mean.value, text == best)


TAU = (
    "Kendall's τ between a score and the downstream performance of every test image, each score signed so that higher "
    "is more reliable"
)
SAMPLES = f"{TAU}: mean ± standard deviation over samples of references"
MEMBERS = (
    "Kendall's τ with minus the Brier score of each network alone: mean ± standard deviation over networks. A star "
    "marks the network's own score; the others are those of all siblings"
)


def table_1(rows: Iterable[Row]) -> list[Table]:
    """Correlation with downstream performance on the pre-training data itself, unit vectors (Table 1)."""
    return correlations(over_samples(rows), "In-distribution (Table 1)", transfer=False, spread=False, note=TAU)


def table_2(rows: Iterable[Row]) -> list[Table]:
    """Correlation with downstream performance on other data, unit vectors (Table 2)."""
    return correlations(over_samples(rows), "Transfer (Table 2)", transfer=True, spread=False, note=TAU)


def table_3(rows: Iterable[Row]) -> list[Table]:
    """How a score ranks the candidates for each test image, against their real ranking (Table 3)."""
    note = (
        "For every test image, Kendall's τ between the ranking of the methods by a score and by downstream "
        "performance; mean over images, ± standard deviation over samples of references"
    )
    title = "Ranking the candidates (Table 3)"
    return correlations(over_samples(rows), title, transfer=None, metric="ranking", note=note)


def table_4(rows: Iterable[Row]) -> list[Table]:
    """Table 1 with standard deviations over samples of references (Table 4)."""
    return correlations(over_samples(rows), "In-distribution (Table 4)", transfer=False, note=SAMPLES)


def table_5(rows: Iterable[Row]) -> list[Table]:
    """In-distribution correlation with raw, unnormalised representations (Table 5)."""
    title = "In-distribution, unnormalised (Table 5)"
    return correlations(over_samples(rows), title, transfer=False, group=EUCLIDEAN, note=SAMPLES)


def table_6(rows: Iterable[Row]) -> list[Table]:
    """Table 2 with standard deviations over samples of references (Table 6)."""
    return correlations(over_samples(rows), "Transfer (Table 6)", transfer=True, note=SAMPLES)


def table_7(rows: Iterable[Row]) -> list[Table]:
    """Transfer correlation with raw, unnormalised representations (Table 7)."""
    title = "Transfer, unnormalised (Table 7)"
    return correlations(over_samples(rows), title, transfer=True, group=EUCLIDEAN, note=SAMPLES)


def table_8(rows: Iterable[Row]) -> list[Table]:
    """Correlation with the reliability of a single network, in-distribution (Table 8)."""
    title = "Single networks, in-distribution (Table 8)"
    return correlations(over_members(rows), title, transfer=False, losses=(USUAL,), note=MEMBERS)


def table_9(rows: Iterable[Row]) -> list[Table]:
    """Correlation with the reliability of a single network, transfer (Table 9)."""
    title = "Single networks, transfer (Table 9)"
    return correlations(over_members(rows), title, transfer=True, losses=(USUAL,), note=MEMBERS)


# ---- Figures 2, 4 and 5: ensemble size and number of neighbours


@dataclass(frozen=True)
class Sweep:
    """τ with minus the Brier score of one candidate in one setting: {score: {k or M: τ}}."""

    backbone: str
    setting: Setting
    method: str
    lines: dict[str, dict[str, float]]

    @property
    def title(self) -> str:
        return f"{METHODS.get(self.method, self.method)}, {self.backbone}, {self.setting}"


def sweeps(rows: Iterable[Row], over: str) -> list[Sweep]:
    """The candidates' sweeps over "k" or "M". Scores that have no k are level lines there."""
    means = over_samples(row for row in rows if row["metric"] == f"kendall_{USUAL}")
    groups = sorted((g for g in _each(means, 3) if g.startswith(f"{over} ")), key=lambda g: int(g[len(over) :]))
    levels = [group.removeprefix(f"{over} ") for group in groups]
    found = []
    for backbone, setting, method in dict.fromkeys(line[:3] for line in means if line[3] in groups):
        lines: dict[str, dict[str, float]] = {}
        for measure in SCORES:
            at = {
                level: means[line].value
                for level, group in zip(levels, groups, strict=True)
                if (line := (backbone, setting, method, group, measure, f"kendall_{USUAL}")) in means
            }
            fixed = means.get((backbone, setting, method, speaks(means), measure, f"kendall_{USUAL}"))
            if not at and over == "k" and fixed is not None:
                at = dict.fromkeys(levels, fixed.value)
            if at:
                lines[word(measure)] = at
        found.append(Sweep(backbone, setting, str(method), lines))
    return found


AXES = {"M": "networks", "k": "neighbours"}


def sweep_table(sweep: Sweep, over: str, figure: int) -> Table:
    heads = list(dict.fromkeys(level for line in sweep.lines.values() for level in line))
    heads.sort(key=int)

    def cell(value: float | None) -> Cell | None:
        return None if value is None else Cell(number(value, DIGITS), value)

    lines = tuple((name, tuple(cell(line.get(head)) for head in heads)) for name, line in sweep.lines.items())
    note = f"Kendall's τ with minus the Brier score, over {AXES[over]}" + (
        "; the Brier score is that of all networks, whatever M" if over == "M" else ""
    )
    title = f"{sweep.title} (Figure {figure})"
    return Table(title, "score", tuple(f"{over} = {head}" for head in heads), lines, note)


def _drawn(sweep: Sweep, over: str, figure: int, place: int) -> Figure:
    words = f"Figure {figure}. Kendall’s τ with minus the Brier score against the number of {AXES[over]}, {over}."
    return Figure(
        f"fig{figure}-{over.lower()}{place}",
        sweep.title,
        words,
        lambda: levels_figure(sweep.lines, "Kendall’s τ", guide=0.0, palette=PAGE),
        level_points(sweep.lines, "score", over, "Kendall’s τ"),
    )


def _sweep_blocks(found: Sequence[Sweep], over: str, figure: int) -> list[Block]:
    drawn: list[Block] = [_drawn(sweep, over, figure, place) for place, sweep in enumerate(found)]
    return [*drawn, *(sweep_table(sweep, over, figure) for sweep in found)]


def fig_2(rows: Sequence[Row]) -> list[Block]:
    """τ against M and against k, of the first candidate in-distribution and the first in transfer (Figure 2)."""
    blocks: list[Block] = []
    for over in AXES:
        first: dict[bool, Sweep] = {}
        for sweep in sweeps(rows, over):
            first.setdefault(sweep.setting.transfer, sweep)
        blocks += _sweep_blocks([first[side] for side in sorted(first)], over, 2)
    return sorted(blocks, key=lambda block: isinstance(block, Table))


def fig_4(rows: Sequence[Row]) -> list[Block]:
    """τ against the number of networks of an ensemble, of every candidate in every setting (Figure 4)."""
    return _sweep_blocks(sweeps(rows, "M"), "M", 4)


def fig_5(rows: Sequence[Row]) -> list[Block]:
    """τ against the number of neighbours, of every candidate in every setting (Figure 5)."""
    return _sweep_blocks(sweeps(rows, "k"), "k", 5)


# ---- what a first reader wants to know


def verdicts(rows: Iterable[Row], group: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Score → loss → τ of every candidate in every setting."""
    found: dict[str, dict[str, list[float]]] = {}
    means = over_samples(rows)
    for (_, _, _, own, measure, metric), mean in means.items():
        if own == (group or speaks(means)) and metric.startswith("kendall_"):
            found.setdefault(measure, {}).setdefault(metric.removeprefix("kendall_"), []).append(mean.value)
    return found


def summary(rows: Sequence[Row]) -> Table:
    """One line a score: how well it knew, on average and at worst, and how often it pointed the right way."""
    found = verdicts(rows)
    lines = []
    for measure in sorted(found, key=lambda name: -fmean(found[name].get(USUAL, [-1.0]))):
        cells: list[Cell | None] = []
        for loss in SHOWN[::-1]:
            values = found[measure].get(loss)
            if values is None:
                cells += [None, None, None]
                continue
            right = sum(value > 0 for value in values)
            cells += [_tau(fmean(values)), _tau(min(values)), Cell(f"{right} of {len(values)}", right / len(values))]
        lines.append((word(measure), tuple(cells)))
    heads = tuple(f"{loss}: {what}" for loss in SHOWN[::-1] for what in ("mean τ ↑", "lowest τ ↑", "above 0 ↑"))
    note = (
        "Kendall's τ with the downstream performance of every test image (minus the Brier score, minus the entropy), "
        f"over all candidates and settings, {speaks(over_samples(rows))} distance. Above 0: where the score points the "
        "right way"
    )
    present = tuple((name, sentence) for name, sentence in KNOWN.items() if any(name == line for line, _ in lines))
    return Table(WHICH, "score", heads, tuple(lines), note, present + legend(["kendall"]))


WHICH = "Which score knows what a representation is worth?"


def _tau(value: float) -> Cell:
    return Cell(number(value, 3), value)


def robustness(rows: Sequence[Row]) -> Table:
    """Unit vectors and cosines against raw vectors and Euclidean distances (§4.5)."""
    sides = {group: verdicts(rows, group) for group in (COSINE, EUCLIDEAN)}
    lines = []
    if all(sides.values()):
        for measure in (name for name in SCORES if all(name in side for side in sides.values())):
            values = [side[measure].get(USUAL, []) for side in sides.values()]
            lines.append((word(measure), tuple(c for v in values if v for c in (_tau(fmean(v)), _tau(min(v))))))
    heads = tuple(f"{group}: {what}" for group in sides for what in ("mean τ ↑", "lowest τ ↑"))
    note = "Kendall's τ with minus the Brier score, over all candidates and settings; the norm is the same in both"
    return Table("Does the distance matter?", "score", heads, tuple(lines), note)


def downstream(rows: Iterable[Row]) -> Table:
    """How good the representations are: mean losses of the heads over test images, averages of the members."""
    held: dict[tuple[str, str, Setting], dict[str, Row]] = {}
    for row in rows:
        if row["measure"] is None and row["metric"] in LOSSES:
            setting = Setting(row["dataset"], row["split"])
            held.setdefault((row["method"], row["backbone"], setting), {})[row["metric"]] = row
    heads = [loss for loss in LOSSES if any(loss in own for own in held.values())]

    def cell(row: Row | None) -> Cell | None:
        return None if row is None else Cell(number(row["value"], DIGITS), row["value"])

    lines = tuple(
        (
            JOINT.join((METHODS.get(method, method), backbone, str(setting))),
            tuple(cell(own.get(loss)) for loss in heads),
        )
        for (method, backbone, setting), own in held.items()
    )
    note = (
        "Means over test images and tasks of the networks' averaged answers: the lower, the better the representation"
    )
    corner = JOINT.join(("method", "backbone", "setting"))
    return Table("What the representations are worth", corner, tuple(f"{h} ↓" for h in heads), lines, note, labels=3)


def choices(rows: Sequence[Row]) -> Table:
    """Which method each score would take by its mean over test images, against the best by mean Brier score (§4.3)."""
    means, found = over_samples(rows), dict[tuple[str, Setting], dict[str, dict[str, float]]]()
    for (backbone, setting, method, group, measure, metric), mean in means.items():
        if metric == "mean" and group == speaks(means):
            found.setdefault((backbone, setting), {}).setdefault(measure, {})[str(method)] = mean.value
    for row in rows:
        if row["measure"] is None and row["metric"] == USUAL:
            at = row["backbone"], Setting(row["dataset"], row["split"])
            found.setdefault(at, {}).setdefault(TRUTH, {})[row["method"]] = row["value"]
    columns = {at: {name: min(u, key=lambda m: u[m]) for name, u in own.items()} for at, own in found.items()}
    columns = {at: own for at, own in columns.items() if len(found[at].get(TRUTH, ())) > 1}

    def cell(at: tuple[str, Setting], name: str) -> Cell | None:
        own = columns[at].get(name)
        right = own == columns[at][TRUTH]
        return None if own is None else Cell(METHODS.get(own, own), float(right), right and name != TRUTH)

    names = [name for name in (TRUTH, *SCORES) if any(name in own for own in columns.values())]
    lines = tuple((WORDS.get(name, name), tuple(cell(at, name) for at in columns)) for name in names)
    note = "The method with the best mean over test images; bold where a score, without labels, takes it as well"
    heads = tuple(f"{setting}, {backbone}" for backbone, setting in columns)
    return Table("Which method each score would take", "by", heads, lines, note)


TRUTH = "Brier score, with labels"


def heat(rows: Iterable[Row]) -> list[Row]:
    """Cells of the picture candidate and setting × score: τ with minus the Brier score."""
    means = over_samples(rows)
    held = [line for line in means if line[3] == speaks(means) and line[5] == f"kendall_{USUAL}"]
    held.sort(key=lambda line: SCORES.index(line[4]))
    order = list(dict.fromkeys(line[:3] for line in held))
    return [
        {
            "line": f"{METHODS.get(str(line[2]), line[2])}, {line[0]}, {line[1]}",
            "column": word(line[4]),
            "value": means[line].value,
            "n": means[line].n,
        }
        for line in sorted(held, key=lambda line: order.index(line[:3]))
    ]


# ---- the whole


Report = Callable[[Sequence[Row]], Sequence[Block]]
REPORTS: dict[str, Report] = {
    **{f"table{n}": made for n, made in enumerate((table_1, table_2, table_3, table_4, table_5), start=1)},
    **{f"table{n}": made for n, made in enumerate((table_6, table_7, table_8, table_9), start=6)},
    "fig2": fig_2,
    "fig4": fig_4,
    "fig5": fig_5,
    "summary": lambda rows: [summary(rows)],
    "choices": lambda rows: [choices(rows)],
    "downstream": lambda rows: [downstream(rows)],
}


def first_look(told: Told) -> list[Table]:
    """The tables for the terminal."""
    means = over_samples(told.rows)
    brief = correlations(means, "Candidates", transfer=None, group=speaks(means), losses=(USUAL,), note=SAMPLES)
    found = [summary(told.rows), *brief, *_only(table_3(told.rows), USUAL)]
    return [table for table in found if table.lines]


def _only(tables: Iterable[Table], loss: str) -> list[Table]:
    """The columns of one loss."""
    found = []
    for table in tables:
        at = [place for place, head in enumerate(table.heads) if head.endswith(f" {loss}")]
        lines = tuple((name, tuple(cells[place] for place in at)) for name, cells in table.lines)
        found.append(replace(table, heads=tuple(table.heads[place] for place in at), lines=lines))
    return found


def lead(told: Told) -> list[str]:
    """What was done and what came out, in plain sentences."""
    lines = [line for line in over_samples(told.rows) if line[5].startswith("kendall_")]
    methods, settings = _each(lines, 2), _each(lines, 1)
    members = dict.fromkeys(row["members"] for row in told.rows if row["measure"] is None)
    who = f"{_count(len(methods)).capitalize()} method{'s' if len(methods) != 1 else ''}"
    where = ", ".join(dict.fromkeys(named(setting.data) for setting in settings))
    networks = " or ".join(map(_count, sorted(members, reverse=True)))
    sentences = [f"{who} learnt {where} without labels, {networks} networks each."]
    found = verdicts(told.rows)
    nc, fv = (found.get(name, {}).get(USUAL) for name in ("nc", "fv"))
    if nc:
        sentences.append(
            f"Neighbourhood consistency, which has seen no label, goes with downstream performance in {_of(nc)} "
            f"cases (mean τ = {number(fmean(nc), 2)})"
        )
        sentences[-1] += f", feature variance in {_of(fv)} (mean τ = {number(fmean(fv), 2)})." if fv else "."
    means = {name: fmean(own[USUAL]) for name, own in found.items() if own.get(USUAL)}
    if len(means) > 1:
        best = max(means, key=lambda name: means[name])
        if best != "nc":
            sentences.append(f"Here {word(best)} knows more than NC: mean τ = {number(means[best], 2)}.")
    if told.failures:
        n = len(told.failures)
        sentences.append(f"{_count(n).capitalize()} piece{'s' if n != 1 else ''} of work failed: see below.")
    return sentences


def _of(values: Sequence[float]) -> str:
    return f"{sum(value > 0 for value in values)} of {len(values)}"


def story(told: Told) -> Story:
    """The page of a study of representations."""
    rows, sections = told.rows, list[Section]()

    def section(link: str, title: str, blocks: Iterable[Block], words: str = "") -> None:
        held = [block for block in blocks if not isinstance(block, Table) or block.lines]
        if held:
            sections.append(Section(link, title, held, words))

    cells = heat(rows)
    picture = Figure(
        "heat",
        "Every candidate with every score",
        "Kendall’s τ with minus the Brier score: more colour is better, 0 is guessing.",
        lambda: heat_figure(cells, "Kendall’s τ", 0.0, PAGE),
    )
    section("Which score?", WHICH, [summary(rows), *([picture] if len(cells) > 1 else [])])
    section("In distribution", "On the data they learnt from (Tables 1 and 4)", table_4(rows))
    section("Transfer", "On other data (Tables 2 and 6)", table_6(rows))
    section("Choice", "Which method should one take? (Table 3)", [choices(rows), *table_3(rows), downstream(rows)])
    section(
        "Distance", "Does the distance matter? (Tables 5 and 7)", [robustness(rows), *table_5(rows), *table_7(rows)]
    )
    section("One network", "The reliability of single networks (Tables 8 and 9)", [*table_8(rows), *table_9(rows)])
    section("Networks", "How many networks? (Figures 2 and 4)", _shown(fig_4(rows)), _fixed(told))
    section("Neighbours", "How many neighbours? (Figures 2 and 5)", _shown(fig_5(rows)))
    section("Failures", "What failed", [Terms(told.failures)] if told.failures else [])
    missing = grouped(told.reasons)
    section("Gaps", "What could not be said", [Terms(missing)] if missing or told.notes else [], " ".join(told.notes))
    learnt = ", ".join(dict.fromkeys(named(row["dataset"]) for row in rows))
    return Story(f"{learnt}: which representations can be trusted?", lead(told), sections, told.footer(command_of))


def _shown(blocks: Sequence[Block]) -> list[Block]:
    """Figures of a few candidates, and all numbers behind folds."""
    figures = [block for block in blocks if isinstance(block, Figure)]
    tables = [Fold(block.title, [block]) for block in blocks if isinstance(block, Table)]
    return [*figures[:MOST], *tables]


def _fixed(told: Told) -> str:
    k = told.plan.get("k")
    return f"NC looks at the {k} nearest of {told.plan.get('references'):,} references." if k else ""


def command_of(plan: Mapping[str, Any]) -> str:
    """The command that runs a plan again."""
    if not plan:
        return ""
    settings = [tuple(pair) for pair in plan.get("settings") or ()]
    sources, targets = (list(dict.fromkeys(pair[side] for pair in settings)) for side in (0, 1))
    words = ["nescio", "run", "reliability"]
    if settings == list(PAPER):
        words += ["--preset", "paper"]
    else:
        words += ["--data", ",".join(sources)]
        if any(data != target for data, target in settings):
            words += ["--targets", ",".join(targets)]
    listed = {
        name: ",".join(map(str, plan.get(name) or ())) for name in ("methods", "backbones", "distances", "scores")
    }
    plain = ("members", "references", "seeds", "k", "k_dist", "components", "similarity", "tasks")
    training = plan.get("training") or {}
    options = listed | {name: plan.get(name) for name in plain}
    others = [f"{method}={count}" for method, count in plan.get("others") or ()]
    options["members"] = ",".join(map(str, [options["members"] or "", *others])).strip(",")
    options |= {
        name: training.get(name) for name in ("epochs", "batch", "rate", "decay", "warmup", "schedule", "augment")
    }
    for name, value in options.items():
        if value not in (None, ""):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
