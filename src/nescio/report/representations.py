"""How far representations can be trusted, for people: candidates in order, or the rows of one that stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nescio.analysis.representations.candidates import EvaluationRows
from nescio.analysis.representations.downstream import LOSSES
from nescio.analysis.representations.ranking import QUANTITIES, CandidateRanking, score_title
from nescio.analysis.representations.row_scores import (
    RowScoreOptions,
    RowScores,
    chance_nc,
    in_paper_order,
    paper_value,
)
from nescio.arrays.types import Array
from nescio.measures import ComponentChoice
from nescio.measures.siblings import kind
from nescio.report.blocks import Blocks, Definitions, Details, Figure, Gallery, SectionSpec, Story, sections_of
from nescio.report.charts import bars_chart, intervals_chart
from nescio.report.format import format_number
from nescio.report.tables import COUNT, Column, Formatter, Index, NumberFormat, Table, decimals, percents, table
from nescio.rows import Row

BINS = 30  # of the histogram
QUANTILES = {"lowest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "highest": 1.0}
FORMS: dict[str, Formatter] = {"nc": decimals(4), "first": percents(1), "place": decimals(2)}
TRUST = (
    "Dist, Norm, LL and FV depend on the scale and on the number of features of a space, which differ between "
    "candidates: they compare images of one candidate, and say little about which candidate is better. NC has no scale."
)
NEXT = (
    "The models disagree most about what these are like. Whatever is built on such representations is least sure here: "
    "look at them first, label them first, or omit them."
)


def conditions(scoring: RowScoreOptions, k: int, rows: EvaluationRows) -> str:
    """k, the distance and the references, in words."""
    if len(rows.parts) == 1:
        against = f"{rows.references:,} of the rows as references of the others"
    elif rows.parts:
        against = f"each of the two halves of the rows judged against {rows.references:,} of the other"
    else:
        against = f"{rows.references:,} references"
    similarity = "Jaccard similarity" if scoring.similarity == "jaccard" else "overlap"
    return f"{scoring.distance} distance, k = {k} neighbours ({similarity}), {against}"


def _entry(
    line: str, head: str, value: float | str | None, interval: Mapping[str, Any] | None = None, best: bool = False
) -> Row:
    """A row of a table: where it stands, its value, its interval (low and high of a row), whether it is bold."""
    ends = {name: (interval or {}).get(name) for name in ("low", "high")}
    return {"line": line, "head": head, "value": value, "best": best, **ends}


def _table(
    rows: Sequence[Row], title: str, line: str, forms: Mapping[str, Formatter | None], note: str, brief: bool
) -> Table:
    """A table of entries; `line` is what a line is, `forms` how the numbers of each head are written."""
    heads = [Column(name, where={"head": name}, format=form) for name, form in forms.items()]
    return table(rows, title, index=(Index("line", line),), columns=heads, note=note, bold="none", spread=not brief)


def components_tables(choices: Mapping[str, ComponentChoice]) -> list[Table]:
    """Why LL's mixtures have their components: held-out likelihoods, by candidate; none where nothing was chosen."""
    rows = [
        {"candidate": name, "components": count, "value": value, "best": count == choice.components}
        for name, choice in choices.items()
        for count, value in choice.log_likelihoods.items()
    ]
    return [likelihood_table(rows, ("candidate",))] if rows else []


def likelihood_table(rows: Sequence[Row], lines: Sequence[str | Index]) -> Table:
    """Held-out likelihoods by number of components (`components`); the chosen one is `best`."""
    heads = [
        Column(f"C = {size:g}", where={"components": size}) for size in sorted({row["components"] for row in rows})
    ]
    note = (
        "Mean log-likelihood of references under a mixture that has not seen them, of the first network of each "
        "candidate; bold is the fewest components within one standard error of the best, which LL has"
    )
    title = "How likely unseen references are"
    return table(rows, title, index=lines, columns=heads, note=note, bold="none", format=decimals(2))


def _explained(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((score_title(name), QUANTITIES[kind(name)].meaning) for name in names)


# ---- candidates


def ranking_sentences(ranked: CandidateRanking) -> list[str]:
    """Who comes first, who cannot be told from it, who has no NC and why, and what labels say."""
    n, sentences = len(ranked.rows.keys), list[str]()
    with_nc = [name for name in ranked.names if ranked.row(name, ranked.nc)]
    alone = [name for name in ranked.names if name not in with_nc]
    if with_nc:
        first = ranked.row(with_nc[0], ranked.nc)
        assert first is not None
        interval = (
            "" if first["low"] is None else f" ({format_number(first['low'], 3)} to {format_number(first['high'], 3)})"
        )
        nc = f"NC {format_number(first['value'], 3)}{interval}."
        tied = [name for name in ranked.group if name != with_nc[0]]
        if len(with_nc) == 1:
            sentences.append(f"{with_nc[0]} is the only candidate with siblings: {nc}")
        else:
            sentences.append(
                f"{with_nc[0]} is the most reliable of {len(with_nc)} candidates: its siblings agree most on what a "
                f"row is like, {nc}"
            )
            behind = f"it cannot be told from {', '.join(tied)}" if tied else "the others are behind it beyond chance"
            sentences.append(f"On these {n:,} rows {behind}.")
        level = chance_nc(ranked.k, ranked.rows.references, ranked.scoring.similarity)
        sentences.append(f"Members without anything in common would reach about {format_number(level, 3)}.")
    if alone:
        sentences.append(
            f"{', '.join(alone)} {'has' if len(alone) == 1 else 'have'} no NC: a lone model has no siblings to agree "
            "with. Networks of the same algorithm, trained from other seeds, would give it one."
        )
    briers = {name: row["value"] for name in ranked.names if (row := ranked.row(name, "brier")) is not None}
    if len(briers) > 1 and with_nc:
        best = min(briers, key=lambda name: briers[name])
        same = "the same one" if best == with_nc[0] else best
        sentences.append(f"Downstream heads, which know the labels, do best on {same} (Brier score).")
    return sentences


def ranking_tables(ranked: CandidateRanking, *, brief: bool = False) -> list[Table]:
    """The order by NC; what heads say; Table 3. `brief`: without intervals, for a narrow terminal."""
    tables = [_order_table(ranked, brief)]
    if ranked.losses:
        tables.append(_downstream_table(ranked, brief))
    if ranked.agreement:
        tables.append(_agreement_table(ranked, brief))
    return [*tables, *components_tables(ranked.choices)]


def _value(ranked: CandidateRanking, name: str, metric: str, *, bold: bool = False) -> Row:
    """One quantity of a candidate, with its interval."""
    row = ranked.row(name, metric) or {}
    return _entry(name, score_title(metric), row.get("value"), row, bold and bool(row.get("best")))


def _order_table(ranked: CandidateRanking, brief: bool) -> Table:
    scores = in_paper_order(name for own in ranked.scores.values() for name in own.u)
    others: list[str] = [name for name in ("first", "place") if name in ranked.metrics]
    others += [name for name in scores if name != ranked.nc]
    forms: dict[str, Formatter | None] = {score_title(ranked.nc): FORMS["nc"], "against the best": _difference}
    forms |= {score_title(name): FORMS.get(name) for name in others} | {"members": COUNT, "features": None}
    rows: list[Row] = []
    for candidate in ranked.candidates:
        name = candidate.name
        rows += [_value(ranked, name, ranked.nc, bold=True), _behind(ranked, name)]
        rows += [_value(ranked, name, metric) for metric in others]
        rows.append(_entry(name, "members", candidate.members))
        rows.append(_entry(name, "features", " ".join(map(str, candidate.features))))
    note = (
        f"{len(ranked.rows.keys):,} rows; {conditions(ranked.scoring, ranked.k, ranked.rows)}; "
        f"{100 * ranked.comparison.level:g} % intervals of a paired bootstrap; bold cannot be told from the best"
    )
    trust = (("between candidates", TRUST),) if scores[1:] and len(ranked.candidates) > 1 else ()
    made = _table(rows, "The candidates, most reliable first", "candidate", forms, note, brief)
    return replace(made, legend=(*_explained([ranked.nc, *others]), *trust, *missing(ranked)))


def _difference(value: float) -> str:
    return decimals(4, sign=True)(value) if value else "the best"


def _behind(ranked: CandidateRanking, name: str) -> Row:
    """How far the NC of a candidate is from the best."""
    row, away, head = ranked.row(name, ranked.nc), ranked.difference(name), "against the best"
    if row is None or len(ranked.scores) < 2:
        return _entry(name, head, None)
    if away is None:
        return _entry(name, head, 0.0, best=True)
    return _entry(name, head, away["difference"], away, bool(row["best"]))


def _downstream_table(ranked: CandidateRanking, brief: bool) -> Table:
    losses = [loss for loss in LOSSES if loss in ranked.metrics]
    places = {ranked.nc: f"place by {score_title(ranked.nc).split(' ')[0]}"}
    places |= {loss: f"by {LOSSES[loss].word}" for loss in losses}
    forms: dict[str, Formatter | None] = {places[ranked.nc]: COUNT}
    for loss in losses:
        forms |= {places[loss]: COUNT, score_title(loss): None}
    rows: list[Row] = []
    for name in ranked.names:
        rows += [_entry(name, head, (ranked.row(name, metric) or {}).get("rank")) for metric, head in places.items()]
        rows += [_value(ranked, name, loss, bold=True) for loss in losses]
    tasks = "every pair of classes" if ranked.tasks == "one-vs-one" else "all classes at once"
    note = f"Linear heads on the frozen features, {tasks}; members averaged before they are judged"
    made = _table(rows, "What labels say: downstream heads", "candidate", forms, note, brief)
    return replace(made, legend=_explained(losses))


def _agreement_table(ranked: CandidateRanking, brief: bool) -> Table:
    forms: dict[str, Formatter | None] = {}
    rows: list[Row] = []
    for entry in ranked.agreement:
        score, loss = entry["score"], LOSSES[entry["loss"]].word
        line, tau, means = score_title(score).split(" ")[0], f"τ with {loss} ↑", f"means, {loss}"
        forms |= {tau: decimals(4, sign=True), means: decimals(2, sign=True)}
        rows += [_entry(line, tau, entry["tau"], entry), _entry(line, means, entry["average"])]
    note = (
        f"Among {', '.join(ranked.agreement[0]['candidates'])}: row by row, Kendall's τ between their order by a score "
        "and by downstream performance, then the mean over rows (Park et al. 2024, Table 3); means: τ of the two "
        "orders on average"
    )
    return _table(rows, "Does each score rank the candidates as labels do", "score", forms, note, brief)


def missing(ranked: CandidateRanking) -> list[tuple[str, str]]:
    """(which scores of whom, why), every reason once."""
    scores: dict[str, dict[str, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for name in ranked.names:
        for score, reason in ranked.scores[name].reasons.items():
            scores.setdefault(reason, {})[QUANTITIES[kind(score)].word] = None
            names.setdefault(reason, {})[name] = None
    return [(f"no {', '.join(words)} of {', '.join(names[reason])}", reason) for reason, words in scores.items()]


def ranking_story(ranked: CandidateRanking) -> Story:
    """The page of a ranking."""
    first, *others = ranking_tables(ranked)
    likely = components_tables(ranked.choices)
    points = [
        {"question": f"NC@{ranked.k}", "model": row["method"], **row}
        for row in ranked.comparison.rows
        if row["metric"] == ranked.nc
    ]
    figure = Figure(
        "ranking",
        f"NC@{ranked.k}, the mean over rows",
        "Dots are mean values, bars their intervals. Dots in the accent colour cannot be told from the best one.",
        lambda: intervals_chart(points),
    )
    sections: list[SectionSpec] = [
        ("ranking", first.title, [first, figure if len(points) > 1 else None]),
        ("labels", "What labels say", others[: len(others) - len(likely)]),
        ("components", "How many components LL's mixture has", likely),
        ("notes", "What else to know", [Definitions([("note", note) for note in ranked.notes])]),
    ]
    heading = " · ".join(ranked.names[:4]) + (" …" if len(ranked.names) > 4 else "")
    return Story(f"Which representation to trust: {heading}", ranking_sentences(ranked), sections_of(sections))


# ---- the rows of one candidate


def scored_sentences(scored: RowScores) -> list[str]:
    """How the rows are spread, and what chance would give."""
    low, middle, high = np.quantile(scored.nc, [0.05, 0.5, 0.95])
    return [
        f"{scored.candidate.members} models, {len(scored.nc):,} rows: NC is "
        f"{format_number(middle, 3)} for the row in the "
        f"middle, and from {format_number(low, 3)} to {format_number(high, 3)} for nine of ten (1: "
        "the models agree on all nearest "
        "references).",
        f"Models without anything in common would reach about {format_number(scored.chance, 3)}; "
        f"{int((scored.nc <= scored.chance).sum()):,} rows are not above that.",
    ]


def quantiles(scored: RowScores, name: str) -> dict[str, float]:
    """Quantiles of a score over the rows, as the paper has it."""
    values = np.quantile(paper_value(name, scored.scores.u[name]), list(QUANTILES.values()))
    return dict(zip(QUANTILES, values.tolist(), strict=True))


def quantile_table(scored: RowScores) -> Table:
    """How every score is spread over the rows."""
    rows = [
        _entry(score_title(name), head, value)
        for name in scored.names
        for head, value in quantiles(scored, name).items()
    ]
    note = (
        f"{len(scored.nc):,} rows; {conditions(scored.scoring, scored.k, scored.rows)}; ↑ ↓: which way is more reliable"
    )
    lines = (Index("line", "score"),)
    made = table(rows, "How the rows are spread", index=lines, columns="head", within=("line",), note=note, bold="none")
    return replace(made, legend=_explained(scored.names))


def least_table(scored: RowScores, count: int) -> Table:
    """The rows that can be trusted least."""
    rows = [
        _entry(str(scored.scores.index[row]), score_title(name), float(paper_value(name, scored.scores.u[name])[row]))
        for row in scored.least(count)
        for name in scored.names
    ]
    lines = (Index("line", "index"),)
    return table(rows, "The least reliable rows", index=lines, columns="head", format=NumberFormat(".4g"), bold="none")


def spread_figure(scored: RowScores) -> Any:
    """Histogram of NC, with a line where models without anything in common would be."""
    top = max(float(scored.nc.max()), scored.chance)
    pairs = scored.candidate.members * (scored.candidate.members - 1) // 2
    bins = min(BINS, max(5, scored.k * pairs // 2))  # NC takes few values where k and the pairs are few
    edges = np.linspace(0, top if top > 0 else 1, bins + 1).tolist()
    words = (
        f"Histogram of NC of {len(scored.nc):,} rows; models without anything in common would be at "
        f"{scored.chance:.3g}."
    )
    guide = ("nothing in common", scored.chance)
    return bars_chart(scored.nc.tolist(), edges, f"NC@{scored.k}: more reliable →", guide, words)


def scored_story(scored: RowScores, count: int, pictures: Mapping[int, tuple[bytes, str]] | None = None) -> Story:
    """The page of one candidate's rows.

    pictures  row → (PNG, its name), of the least and the most reliable rows
    """
    figure = Figure(
        "spread",
        f"NC@{scored.k} of every row",
        "The further right, the more of a row's nearest references the models agree on. The broken line is where "
        "models without anything in common would be.",
        lambda: spread_figure(scored),
    )
    least: list[Blocks] = [least_table(scored, count)]
    most: list[Blocks] = []
    if pictures:
        rows = Details("The same as a table", [least_table(scored, count)])
        least = [_gallery(scored, scored.least(count), pictures), rows]
        most = [_gallery(scored, scored.most(count), pictures)]
    gaps = [(QUANTITIES[kind(name)].word, reason) for name, reason in scored.scores.reasons.items()]
    gaps += [("note", note) for note in scored.notes]
    what = "images" if pictures else "rows"
    spread: list[Blocks] = [figure, quantile_table(scored), *components_tables({"": scored.choice})]
    sections: list[SectionSpec] = [
        ("least", f"The least reliable {what}", least, NEXT),
        ("spread", "How the rows are spread", spread),
        ("most", f"The most reliable {what}, for comparison", most),
        ("missing", "What could not be said", [Definitions(gaps)]),
    ]
    heading = f"How far {len(scored.nc):,} representations can be trusted"
    return Story(heading, scored_sentences(scored), sections_of(sections))


def _gallery(scored: RowScores, rows: Array, pictures: Mapping[int, tuple[bytes, str]]) -> Gallery:
    return Gallery(tuple((*pictures[int(row)], f"NC {format_number(float(scored.nc[row]), 3)}") for row in rows))
