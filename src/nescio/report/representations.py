"""How far representations can be trusted, told to people: candidates in order, or the rows of one that stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio.analysis.ranking import LOSSES, TOLD, Candidate, Division, How, Ranked, by_paper, chance, natural, title
from nescio.measures.siblings import Scores, kind
from nescio.report.cells import Cell, Table, _digits, number
from nescio.report.charts import BINS, PAGE, PAPER, _dress, _few_ticks, _inline, intervals_figure
from nescio.report.gallery import Gallery
from nescio.report.pages import Block, Figure, Fold, Section, Story, Terms, story_page
from nescio.report.studies import _undrawn, drawable, tables_of
from nescio.report.text import csv_text, latex, markdown, tables_csv

if TYPE_CHECKING:
    from nescio.rows import Row

Array = NDArray[Any]
QUANTILES = {"lowest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "highest": 1.0}
TRUST = (
    "Dist, Norm, LL and FV depend on the scale and on the number of features of a space, which differ between "
    "candidates: they compare images of one candidate, and say little about which candidate is better. NC has no scale."
)


def write_story(story: Story, folder: str | Path, rows: Sequence[Row] | None = None) -> Path:
    """index.html, tables.md, tables.tex, tables.csv, and rows.csv where there are rows; where the page is."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = list(tables_of(story))
    texts = {"tables.md": markdown(tables), "tables.tex": latex(tables), "tables.csv": tables_csv(tables)}
    texts |= {} if rows is None else {"rows.csv": csv_text(list(rows))}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return story_page(folder / "index.html", story if drawable() else _undrawn(story))


def how_words(how: How, k: int, rows: Division, where: str = "") -> str:
    """k, the distance and the references, in a sentence."""
    few = f" each of the two halves of the rows judged against {rows.references:,} of the other" if rows.parts else ""
    few = f" {rows.references:,} of the rows as references of the others" if len(rows.parts) == 1 else few
    few = few or f" {rows.references:,} references"
    which = "Jaccard similarity" if how.similarity == "jaccard" else "overlap"
    return f"{where}{how.metric} distance, k = {k} neighbours ({which}),{few}"


# ---- candidates


def ranking_sentences(found: Ranked) -> list[str]:
    """Who comes first, who cannot be told from it, who has no NC and why, and what labels say."""
    n, said = len(found.rows.keys), []
    ranked = [each for each in found.candidates if found.row(each.name, found.nc)]
    alone = [each for each in found.candidates if each not in ranked]
    if ranked:
        first = found.row(ranked[0].name, found.nc)
        assert first is not None
        range_ = "" if first["low"] is None else f" ({number(first['low'], 3)} to {number(first['high'], 3)})"
        said.append(
            f"{ranked[0].name} is the most reliable of {len(ranked)} candidates: its siblings agree most on what a row "
            f"is like, NC {number(first['value'], 3)}{range_}."
            if len(ranked) > 1
            else f"{ranked[0].name} is the only candidate with siblings: NC {number(first['value'], 3)}{range_}."
        )
        tied = [name for name in found.group if name != ranked[0].name]
        if tied:
            said.append(f"On these {n:,} rows it cannot be told from {', '.join(tied)}.")
        elif len(ranked) > 1:
            said.append(f"On these {n:,} rows the others are behind it beyond chance.")
        said.append(f"Members without anything in common would reach about {_chance(found.how, found.k, found.rows)}.")
    if alone:
        names = ", ".join(each.name for each in alone)
        said.append(
            f"{names} {'has' if len(alone) == 1 else 'have'} no NC: a lone model has no siblings to agree with. "
            "Networks of the same algorithm, trained from other seeds, would give it one."
        )
    best = _by_truth(found)
    if best and ranked:
        same = "the same one" if best == ranked[0].name else best
        said.append(f"Downstream heads, which know the labels, do best on {same} (Brier score).")
    return said


def _by_truth(found: Ranked) -> str | None:
    rows = [row for name in found.names if (row := found.row(name, "brier")) is not None]
    return str(min(rows, key=lambda row: row["value"])["method"]) if len(rows) > 1 else None


def _chance(how: How, k: int, rows: Division) -> str:
    return number(chance(k, rows.references, how.similarity), 3)


def ranking_tables(found: Ranked, *, brief: bool = False) -> list[Table]:
    """The order by NC; what heads say; Table 3. `brief`: intervals of NC alone, for a narrow terminal."""
    tables = [_order(found, brief)]
    if found.truths:
        tables.append(_downstream(found, brief))
    if found.agreement:
        tables.append(_agreement(found, brief))
    return tables


def _order(found: Ranked, brief: bool) -> Table:
    scores = by_paper(name for each in found.scores.values() for name in each.u)
    others = [name for name in scores if name != found.nc]
    points = [name for name in ("first", "place") if name in found.metrics]
    columns = [_column(found, found.nc, bold=True), [_behind(found, each, brief) for each in found.candidates]]
    columns += [_column(found, name, brief) for name in (*points, *others)]
    columns.append([Cell(str(each.members), each.members) for each in found.candidates])
    columns.append([Cell(" ".join(map(str, each.features)), each.features[0]) for each in found.candidates])
    heads = (title(found.nc), "against the best", *map(title, (*points, *others)), "members", "features")
    note = (
        f"{len(found.rows.keys):,} rows; {how_words(found.how, found.k, found.rows)}; "
        f"{100 * found.comparison.level:g} % intervals of a paired bootstrap; bold cannot be told from the best"
    )
    told = tuple((title(name), TOLD[kind(name)][2]) for name in (found.nc, *points, *others))
    trust = (("between candidates", TRUST),) if others and len(found.candidates) > 1 else ()
    told = (*told, *trust, *missing(found))
    return Table("The candidates, most reliable first", "candidate", heads, _lines(found, columns), note, told)


def _lines(found: Ranked, columns: Sequence[Sequence[Cell | None]]) -> tuple[tuple[str, tuple[Cell | None, ...]], ...]:
    return tuple(zip(found.names, zip(*columns, strict=True), strict=True))


def _column(found: Ranked, metric: str, brief: bool = False, *, bold: bool = False) -> list[Cell | None]:
    """One quantity of every candidate, with its interval, all to the same decimals."""
    rows = [found.row(name, metric) for name in found.names]
    digits = {"nc": 4, "place": 2}.get(kind(metric)) or _digits([row["value"] for row in rows if row])

    def words(value: float) -> str:
        return f"{100 * value:.1f} %" if metric == "first" else number(value, digits)

    def cell(row: Mapping[str, Any]) -> Cell:
        text = words(row["value"])
        if row["low"] is not None and not brief:
            text += f" [{words(row['low'])}, {words(row['high'])}]"
        return Cell(text, row["value"], bold and bool(row["best"]))

    return [None if row is None else cell(row) for row in rows]


def _behind(found: Ranked, each: Candidate, brief: bool) -> Cell | None:
    row, away = found.row(each.name, found.nc), found.difference(each.name)
    if row is None or len(found.scores) < 2:
        return None
    if away is None:
        return Cell("the best", 0.0, True)
    text = f"{away['difference']:+.4f}"
    if away["low"] is not None and not brief:
        text += f" [{away['low']:+.4f}, {away['high']:+.4f}]"
    return Cell(text, away["difference"], bool(row["best"]))


def _downstream(found: Ranked, brief: bool) -> Table:
    losses = [loss for loss in LOSSES if loss in found.metrics]
    columns, heads = [_ranks(found, found.nc)], [f"place by {title(found.nc).split(' ')[0]}"]
    for loss in losses:
        columns += [_ranks(found, loss), _column(found, loss, brief, bold=True)]
        heads += [f"by {TOLD[loss][0]}", title(loss)]
    what = "every pair of classes" if found.how.tasks == "one-vs-one" else "all classes at once"
    note = f"Linear heads on the frozen features, {what}; members averaged before they are judged"
    told = tuple((title(loss), TOLD[loss][2]) for loss in losses)
    return Table("What labels say: downstream heads", "candidate", tuple(heads), _lines(found, columns), note, told)


def _ranks(found: Ranked, metric: str) -> list[Cell | None]:
    rows = [found.row(name, metric) for name in found.names]
    return [None if row is None else Cell(str(row["rank"]), row["rank"]) for row in rows]


def _agreement(found: Ranked, brief: bool) -> Table:
    losses = list(dict.fromkeys(each["loss"] for each in found.agreement))
    lines = []
    for score in dict.fromkeys(each["score"] for each in found.agreement):
        held = {each["loss"]: each for each in found.agreement if each["score"] == score}
        cells: list[Cell | None] = []
        for loss in losses:
            cells += _taus(held[loss], brief) if loss in held else [None, None]
        lines.append((f"{TOLD[kind(score)][0]}{score.removeprefix(kind(score))}", tuple(cells)))
    heads = tuple(head for loss in losses for head in (f"τ with {TOLD[loss][0]} ↑", f"means, {TOLD[loss][0]}"))
    note = (
        f"Among {', '.join(found.agreement[0]['candidates'])}: row by row, Kendall's τ between their order by a score "
        "and by downstream performance, then the mean over rows (Park et al. 2024, Table 3); means: τ of the two "
        "orders on average"
    )
    return Table("Does each score rank the candidates as labels do", "score", heads, tuple(lines), note)


def _taus(own: Mapping[str, Any], brief: bool) -> list[Cell | None]:
    around = "" if brief else f" [{own['low']:+.4f}, {own['high']:+.4f}]"
    mean = Cell(f"{own['tau']:+.4f}{around}", own["tau"])
    return [mean, None if own["average"] is None else Cell(f"{own['average']:+.2f}", own["average"])]


def missing(found: Ranked) -> list[tuple[str, str]]:
    """(which scores of whom, why), every reason once."""
    held: dict[str, tuple[list[str], list[str]]] = {}
    for name in found.names:
        for score, reason in found.scores[name].reasons.items():
            scores, names = held.setdefault(reason, ([], []))
            word = TOLD[kind(score)][0]
            scores += [word] if word not in scores else []
            names += [name] if name not in names else []
    return [(f"no {', '.join(scores)} of {', '.join(names)}", reason) for reason, (scores, names) in held.items()]


def ranking_story(found: Ranked) -> Story:
    first, *others = ranking_tables(found)
    rows = [row for row in found.comparison.rows if row["metric"] == found.nc]
    blocks: list[Block] = [first]
    if len(rows) > 1:
        words = (
            "Dots are mean values, bars their intervals. Dots in the accent colour cannot be told from the best one."
        )
        held = [row | {"metric": f"NC@{found.k}"} for row in rows]
        blocks.append(
            Figure("ranking", f"NC@{found.k}, the mean over rows", words, lambda: intervals_figure(held, None, PAGE))
        )
    sections = [Section("ranking", first.title, blocks)]
    if others:
        sections.append(Section("labels", "What labels say", others))
    if found.notes:
        sections.append(Section("notes", "What else to know", [Terms([("note", note) for note in found.notes])]))
    names = found.names
    heading = " · ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return Story(f"Which representation to trust: {heading}", ranking_sentences(found), sections)


# ---- the rows of one candidate


@dataclass(frozen=True, eq=False)
class Judged:
    """One candidate's rows and their scores."""

    candidate: Candidate
    scores: Scores
    rows: Division
    k: int
    how: How
    notes: tuple[str, ...] = ()

    @property
    def nc(self) -> Array:
        """(n,) higher = more reliable."""
        return 1 - self.scores[f"nc@{self.k}"]

    def least(self, count: int) -> Array:
        """Rows from the least reliable on; of equal ones the first."""
        return np.argsort(self.nc, kind="stable")[:count]

    def most(self, count: int) -> Array:
        return np.argsort(-self.nc, kind="stable")[:count]

    @property
    def names(self) -> list[str]:
        return by_paper(self.scores.u)


def judged_sentences(judged: Judged) -> list[str]:
    n, nc, limit = len(judged.nc), judged.nc, chance(judged.k, judged.rows.references, judged.how.similarity)
    low, middle, high = np.quantile(nc, [0.05, 0.5, 0.95])
    return [
        f"{judged.candidate.members} models, {n:,} rows: NC is {number(middle, 3)} for the row in the middle, and from "
        f"{number(low, 3)} to {number(high, 3)} for nine of ten (1: the models agree on all nearest references).",
        f"Models without anything in common would reach about {number(limit, 3)}; "
        f"{int((nc <= limit).sum()):,} rows are not above that.",
    ]


def quantile_table(judged: Judged) -> Table:
    lines = []
    for name in judged.names:
        values = np.quantile(natural(name, judged.scores.u[name]), list(QUANTILES.values()))
        digits = int(np.clip(3 - np.floor(np.log10(max(np.ptp(values), 1e-12))), 0, 6))
        lines.append((title(name), tuple(Cell(f"{value:.{digits}f}", float(value)) for value in values)))
    told = tuple((title(name), TOLD[kind(name)][2]) for name in judged.names)
    note = f"{len(judged.nc):,} rows; {how_words(judged.how, judged.k, judged.rows)}; ↑ ↓: which way is more reliable"
    return Table("How the rows are spread", "score", tuple(QUANTILES), tuple(lines), note, told)


def least_table(judged: Judged, count: int) -> Table:
    lines = []
    for row in judged.least(count):
        cells = [natural(name, judged.scores.u[name])[row] for name in judged.names]
        lines.append((str(judged.scores.index[row]), tuple(Cell(f"{value:.4g}", float(value)) for value in cells)))
    return Table("The least reliable rows", "index", tuple(map(title, judged.names)), tuple(lines))


def spread_figure(judged: Judged, palette: Mapping[str, str] = PAPER) -> Any:
    """Histogram of NC, with a line where models without anything in common would be."""
    import altair as alt

    limit = chance(judged.k, judged.rows.references, judged.how.similarity)
    top = max(float(judged.nc.max()), limit)
    pairs = judged.candidate.members * (judged.candidate.members - 1) // 2
    bins = min(BINS, max(5, judged.k * pairs // 2))  # NC takes few values where k and the pairs are few
    edges = np.linspace(0, top if top > 0 else 1, bins + 1)
    counts, _ = np.histogram(judged.nc, edges)
    bars = [
        {"low": float(low), "high": float(high), "rows": int(rows)}
        for (low, high), rows in zip(pairwise(edges), counts, strict=True)
    ]
    x = alt.X("low:Q", title=f"NC@{judged.k}: more reliable →").axis(format="~g", tickCount=_few_ticks())
    drawn = (
        alt.Chart(_inline(bars))
        .mark_bar(color=palette["accent"], binSpacing=1)
        .encode(
            x.bin("binned"),
            alt.X2("high:Q"),
            alt.Y("rows:Q", title="rows"),
            tooltip=[
                alt.Tooltip("low:Q", title="from", format=".3f"),
                alt.Tooltip("high:Q", title="to", format=".3f"),
                alt.Tooltip("rows:Q", title="rows"),
            ],
        )
    )
    mark = alt.Chart(_inline([{"low": float(limit), "text": "nothing in common"}]))
    line = mark.mark_rule(strokeDash=[5, 3], color=palette["ink"]).encode(x)
    text = mark.mark_text(align="left", baseline="top", dx=5, fontSize=12, color=palette["ink"])
    words = f"Histogram of NC of {len(judged.nc):,} rows; models without anything in common would be at {limit:.3g}."
    return _dress(alt.layer(drawn, line, text.encode(x, alt.Text("text:N"), y=alt.value(0))), palette, words)


def judged_story(judged: Judged, count: int, shown: Mapping[int, tuple[bytes, str]] | None = None) -> Story:
    """`shown`: row → (PNG, what it is called), of the least and the most reliable rows."""
    figure = Figure(
        "spread",
        f"NC@{judged.k} of every row",
        "The further right, the more of a row's nearest references the models agree on. The broken line is where "
        "models without anything in common would be.",
        lambda: spread_figure(judged, PAGE),
    )
    table, quantiles = least_table(judged, count), quantile_table(judged)
    if shown:
        least: list[Block] = [_gallery(judged, judged.least(count), shown), Fold("The same as a table", [table])]
    else:
        least = [table]
    sections = [
        Section("least", "The least reliable images" if shown else table.title, least, NEXT),
        Section("spread", quantiles.title, [figure, quantiles]),
    ]
    if shown:
        most = _gallery(judged, judged.most(count), shown)
        sections.append(Section("most", "The most reliable images, for comparison", [most]))
    absent = [(TOLD[kind(name)][0], reason) for name, reason in judged.scores.reasons.items()]
    absent += [("note", note) for note in judged.notes]
    if absent:
        sections.append(Section("missing", "What could not be said", [Terms(absent)]))
    heading = f"How far {len(judged.nc):,} representations can be trusted"
    return Story(heading, judged_sentences(judged), sections)


NEXT = (
    "The models disagree most about what these are like. Whatever is built on such representations is least sure here: "
    "look at them first, label them first, or leave them out."
)


def _gallery(judged: Judged, rows: Array, shown: Mapping[int, tuple[bytes, str]]) -> Gallery:
    held = [(*shown[int(row)], f"NC {number(float(judged.nc[row]), 3)}") for row in rows]
    return Gallery(tuple(held))


__all__ = [
    "Judged",
    "judged_story",
    "least_table",
    "quantile_table",
    "ranking_sentences",
    "ranking_story",
    "ranking_tables",
    "spread_figure",
    "write_story",
]
