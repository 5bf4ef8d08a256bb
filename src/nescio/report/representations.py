"""Reliability of representations: candidates in order, or the rows of one candidate by reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nescio.analysis.representations.candidates import EvaluationRows
from nescio.analysis.representations.downstream import LOSSES
from nescio.analysis.representations.ranking import (
    QUANTITIES,
    CandidateRanking,
    RowScoreOptions,
    in_paper_order,
    paper_value,
    score_title,
)
from nescio.arrays.types import Array
from nescio.measures import ComponentChoice
from nescio.measures.siblings import kind
from nescio.report.blocks import Blocks, Definitions, Details, Figure, Gallery, SectionSpec, Story, sections_of
from nescio.report.charts.curves import bars_chart
from nescio.report.charts.points import intervals_chart
from nescio.report.charts.style import Chart
from nescio.report.format import format_interval, format_number
from nescio.report.tables import COUNT, Column, Formatter, Index, NumberFormat, Table, decimals, percents, table
from nescio.report.verdicts import ties_sentence
from nescio.rows import Row

BINS = 30  # maximum number of bins of the histogram
DIFFERENCE = "difference from the best"
QUANTILES = {"lowest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "highest": 1.0}
FORMS: dict[str, Formatter] = {"nc": decimals(4), "first": percents(1), "place": decimals(2)}
TRUST = (
    "Dist, Norm, LL and FV depend on the scale and the number of features, which differ between candidates. "
    "Compare them between images of one candidate only. NC has no scale."
)
NEXT = (
    "The models disagree most on the neighbours of these. Predictions from these representations are least reliable: "
    "inspect them first, label them first, or leave them out."
)


def conditions(scoring: RowScoreOptions, k: int, rows: EvaluationRows) -> str:
    """Describe k, the distance and the references."""
    if len(rows.splits) == 1:
        against = f"{rows.references:,} of the rows as references"
    elif rows.splits:
        against = f"two halves of the rows, each with {rows.references:,} references from the other"
    else:
        against = f"{rows.references:,} references"
    similarity = "Jaccard similarity" if scoring.similarity == "jaccard" else "overlap"
    return f"{scoring.distance} distance, k = {k} neighbours ({similarity}), {against}"


def _cell_row(line: str, head: str, value: float | str | None, interval: Row | None = None, best: bool = False) -> Row:
    """A row for one cell: its labels, value and interval, and whether it is bold."""
    ends = {name: (interval or {}).get(name) for name in ("low", "high")}
    return {"line": line, "head": head, "value": value, "best": best, **ends}


def _table(
    rows: Sequence[Row], title: str, line: str, forms: Mapping[str, Formatter | None], note: str, brief: bool
) -> Table:
    """A table of entries; `line` is the title of the index, `forms` maps columns to number formats."""
    heads = [Column(name, where={"head": name}, format=form) for name, form in forms.items()]
    return table(rows, title, index=(Index("line", line),), columns=heads, note=note, bold="none", spread=not brief)


def components_tables(choices: Mapping[str, ComponentChoice]) -> list[Table]:
    """Return the held-out likelihoods that selected the components of LL, by candidate."""
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
        "Mean log-likelihood of held-out references under a mixture, first network of each candidate. Bold: the "
        "fewest components within one standard error of the best, which LL uses"
    )
    title = "Held-out likelihood by number of components"
    return table(rows, title, index=lines, columns=heads, note=note, bold="none", format=decimals(2))


def _explained(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((score_title(name), QUANTITIES[kind(name)].meaning) for name in names)


# ---- candidates


def ranking_sentences(ranked: CandidateRanking) -> list[str]:
    """Return sentences on the most reliable candidates, those without NC, and the best by labels."""
    n, sentences = len(ranked.rows.keys), list[str]()
    with_nc = [name for name in ranked.names if ranked.row(name, ranked.nc)]
    without_nc = [name for name in ranked.names if name not in with_nc]
    if with_nc:
        first = ranked.row(with_nc[0], ranked.nc)
        assert first is not None
        subject = with_nc[0] if len(ranked.names) == 1 else f"Most reliable of {len(with_nc)}: {with_nc[0]}"
        sentences.append(
            f"{subject}, NC {format_interval(first['value'], first['low'], first['high'])}, chance "
            f"{format_number(ranked.chance, 3)}, n = {n:,}."
        )
        equals = [name for name in ranked.group if name != with_nc[0]]
        sentences += [ties_sentence(equals)] if len(with_nc) > 1 else []
    if with_nc == ranked.names and len(with_nc) == 1:
        sentences += _row_sentences(ranked, with_nc[0])
    if without_nc:
        sentences.append(f"No NC: {', '.join(without_nc)}. NC needs networks of the same method with other seeds.")
    briers = {name: row["value"] for name in ranked.names if (row := ranked.row(name, "brier")) is not None}
    if len(briers) > 1 and with_nc:
        best = min(briers, key=lambda name: briers[name])
        sentences.append(f"Best by the Brier score of downstream heads: {best}, {format_number(briers[best], 3)}.")
    return sentences


def ranking_tables(ranked: CandidateRanking, *, brief: bool = False, list_rows: int = 0) -> list[Table]:
    """Return the order by NC, the rows of a single candidate, downstream heads; `brief` hides intervals."""
    tables = [_order_table(ranked, brief)]
    if len(ranked.names) == 1:
        tables.append(quantile_table(ranked, ranked.names[0]))
        if list_rows and ranked.nc_of(ranked.names[0]) is not None:
            tables.append(least_table(ranked, ranked.names[0], list_rows))
    if ranked.losses:
        tables.append(_downstream_table(ranked, brief))
    if ranked.agreement:
        tables.append(_agreement_table(ranked, brief))
    return [*tables, *components_tables(ranked.choices)]


def _value(ranked: CandidateRanking, name: str, metric: str, *, bold: bool = False) -> Row:
    """One quantity of a candidate, with its interval."""
    row = ranked.row(name, metric) or {}
    return _cell_row(name, score_title(metric), row.get("value"), row, bold and bool(row.get("best")))


def _order_table(ranked: CandidateRanking, brief: bool) -> Table:
    names = in_paper_order(name for scores in ranked.scores.values() for name in scores.u)
    other_names: list[str] = [name for name in ("first", "place") if name in ranked.metrics]
    other_names += [name for name in names if name != ranked.nc]
    formats: dict[str, Formatter | None] = {score_title(ranked.nc): FORMS["nc"], DIFFERENCE: _difference}
    formats |= {score_title(name): FORMS.get(name) for name in other_names} | {"members": COUNT, "features": None}
    rows: list[Row] = []
    for candidate in ranked.candidates:
        name = candidate.name
        rows += [_value(ranked, name, ranked.nc, bold=True), _difference_from_best(ranked, name)]
        rows += [_value(ranked, name, metric) for metric in other_names]
        rows.append(_cell_row(name, "members", candidate.members))
        rows.append(_cell_row(name, "features", " ".join(map(str, candidate.features))))
    note = (
        f"n = {len(ranked.rows.keys):,}; {conditions(ranked.scoring, ranked.k, ranked.rows)}; "
        f"{100 * ranked.comparison.level:g} % intervals of a paired bootstrap; bold: not "
        f"significantly different from the best"
    )
    trust = (("between candidates", TRUST),) if names[1:] and len(ranked.candidates) > 1 else ()
    result = _table(rows, "Candidates, most reliable first", "candidate", formats, note, brief)
    return replace(result, legend=(*_explained([ranked.nc, *other_names]), *trust, *missing(ranked)))


def _difference(value: float) -> str:
    return decimals(4, sign=True)(value) if value else "best"


def _difference_from_best(ranked: CandidateRanking, name: str) -> Row:
    """The difference of the NC of a candidate from the best."""
    row, away, column = ranked.row(name, ranked.nc), ranked.difference(name), DIFFERENCE
    if row is None or len(ranked.scores) < 2:
        return _cell_row(name, column, None)
    if away is None:
        return _cell_row(name, column, 0.0, best=True)
    return _cell_row(name, column, away["difference"], away, bool(row["best"]))


def _downstream_table(ranked: CandidateRanking, brief: bool) -> Table:
    losses = [loss for loss in LOSSES if loss in ranked.metrics]
    ranks = {ranked.nc: f"rank by {score_title(ranked.nc).split(' ')[0]}"}
    ranks |= {loss: f"rank by {LOSSES[loss].word}" for loss in losses}
    formats: dict[str, Formatter | None] = {ranks[ranked.nc]: COUNT}
    for loss in losses:
        formats |= {ranks[loss]: COUNT, score_title(loss): None}
    rows: list[Row] = []
    for name in ranked.names:
        rows += [_cell_row(name, head, (ranked.row(name, metric) or {}).get("rank")) for metric, head in ranks.items()]
        rows += [_value(ranked, name, loss, bold=True) for loss in losses]
    tasks = "every pair of classes" if ranked.downstream_tasks == "one-vs-one" else "all classes at once"
    note = f"Linear heads on the frozen features, {tasks}; predictions of members averaged"
    result = _table(rows, "Downstream heads", "candidate", formats, note, brief)
    return replace(result, legend=_explained(losses))


def _agreement_table(ranked: CandidateRanking, brief: bool) -> Table:
    formats: dict[str, Formatter | None] = {}
    rows: list[Row] = []
    for entry in ranked.agreement:
        score, loss = entry["score"], LOSSES[entry["loss"]].word
        line, tau, means = score_title(score).split(" ")[0], f"τ with {loss} ↑", f"means, {loss}"
        formats |= {tau: decimals(4, sign=True), means: decimals(2, sign=True)}
        rows += [_cell_row(line, tau, entry["tau"], entry), _cell_row(line, means, entry["average"])]
    note = (
        f"Candidates: {', '.join(ranked.agreement[0]['candidates'])}. Mean over rows of Kendall's τ between the orders "
        "by a score and by downstream loss (Park et al. 2024, Table 3). means: τ of the orders by mean values"
    )
    return _table(rows, "Agreement of scores with downstream heads", "score", formats, note, brief)


def missing(ranked: CandidateRanking) -> list[tuple[str, str]]:
    """Return (scores of candidates, reason) of missing scores, each reason once."""
    scores: dict[str, dict[str, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for name in ranked.names:
        for score, reason in ranked.scores[name].reasons.items():
            scores.setdefault(reason, {})[QUANTITIES[kind(score)].word] = None
            names.setdefault(reason, {})[name] = None
    return [
        (f"no {', '.join(missing_scores)} of {', '.join(names[reason])}", reason)
        for reason, missing_scores in scores.items()
    ]


def ranking_story(
    ranked: CandidateRanking, list_rows: int = 0, pictures: Mapping[int, tuple[bytes, str]] | None = None
) -> Story:
    """Return the page of a ranking; of a single candidate it also shows the least and the most reliable rows.

    pictures  row → (PNG, name) of these rows
    """
    order = _order_table(ranked, brief=False)
    points = [
        {"question": f"NC@{ranked.k}", "model": row["method"], **row}
        for row in ranked.comparison.rows
        if row["metric"] == ranked.nc
    ]
    figure = Figure(
        "ranking",
        f"Mean NC@{ranked.k}",
        "Means with intervals. The accent colour marks candidates that are not significantly different from the best.",
        lambda: intervals_chart(points),
    )
    sections: list[SectionSpec] = [("ranking", order.title, [order, figure if len(points) > 1 else None])]
    if len(ranked.names) == 1:
        sections += _row_sections(ranked, ranked.names[0], list_rows, pictures)
    downstream = [_downstream_table(ranked, False)] if ranked.losses else []
    downstream += [_agreement_table(ranked, False)] if ranked.agreement else []
    sections += [
        ("labels", "Downstream heads", downstream),
        ("components", "Components of LL's mixture", components_tables(ranked.choices)),
        ("notes", "Notes", [Definitions([("note", note) for note in ranked.notes])]),
    ]
    heading = " · ".join(ranked.names[:4]) + (" …" if len(ranked.names) > 4 else "")
    return Story(f"Reliability of representations: {heading}", ranking_sentences(ranked), sections_of(sections))


# ---- the rows of one candidate


def _row_sentences(ranked: CandidateRanking, name: str) -> list[str]:
    """Return quantiles of NC over the rows, and the number of rows at chance."""
    nc = ranked.nc_of(name)
    assert nc is not None
    low, middle, high = (format_number(value, 3) for value in np.quantile(nc, [0.05, 0.5, 0.95]))
    return [
        f"NC over rows: median {middle}, 5 % quantile {low}, 95 % quantile {high}.",
        f"Rows at or below chance: {int((nc <= ranked.chance).sum()):,}.",
    ]


def quantiles(ranked: CandidateRanking, name: str, score: str) -> dict[str, float]:
    """Return the quantiles of a score over the rows, in the unit of the paper."""
    values = np.quantile(paper_value(score, ranked.scores[name].u[score]), list(QUANTILES.values()))
    return dict(zip(QUANTILES, values.tolist(), strict=True))


def quantile_table(ranked: CandidateRanking, name: str) -> Table:
    """Return the quantiles of all scores over the rows."""
    scores = in_paper_order(ranked.scores[name].u)
    rows = [
        _cell_row(score_title(score), column, value)
        for score in scores
        for column, value in quantiles(ranked, name, score).items()
    ]
    note = f"n = {len(ranked.rows.keys):,}; {conditions(ranked.scoring, ranked.k, ranked.rows)}; arrows: more reliable"
    lines = (Index("line", "score"),)
    result = table(
        rows, "Quantiles over the rows", index=lines, columns="head", compare_within=("line",), note=note, bold="none"
    )
    return replace(result, legend=_explained(scores))


def least_table(ranked: CandidateRanking, name: str, count: int) -> Table:
    """Return the least reliable rows."""
    scores = ranked.scores[name]
    rows = [
        _cell_row(str(scores.index[row]), score_title(score), float(paper_value(score, scores.u[score])[row]))
        for row in ranked.rows_by_nc(name, count)
        for score in in_paper_order(scores.u)
    ]
    lines = (Index("line", "index"),)
    return table(rows, "Least reliable rows", index=lines, columns="head", format=NumberFormat(".4g"), bold="none")


def _spread_chart(ranked: CandidateRanking, nc: Array) -> Chart:
    """Histogram of NC over the rows, with the NC by chance."""
    highest, members = max(float(nc.max()), ranked.chance), ranked.candidates[0].members
    bins = min(BINS, max(5, ranked.k * members * (members - 1) // 4))  # NC takes few values if k and the pairs are few
    edges = np.linspace(0, highest if highest > 0 else 1, bins + 1).tolist()
    description = f"Histogram of NC of {len(nc):,} rows; chance at {ranked.chance:.3g}."
    return bars_chart(nc.tolist(), edges, f"NC@{ranked.k}: more reliable →", ("chance", ranked.chance), description)


def _row_sections(
    ranked: CandidateRanking, name: str, count: int, pictures: Mapping[int, tuple[bytes, str]] | None
) -> list[SectionSpec]:
    """Return the sections about the rows of one candidate."""
    nc, quantile_table_of_rows = ranked.nc_of(name), quantile_table(ranked, name)
    if nc is None:
        return [("spread", quantile_table_of_rows.title, [quantile_table_of_rows])]
    figure = Figure(
        "spread",
        f"NC@{ranked.k} of every row",
        "NC is the share of a row's nearest references on which the models agree. The dashed line is chance.",
        lambda: _spread_chart(ranked, nc),
    )
    table_of_least = least_table(ranked, name, count)
    least: list[Blocks] = [table_of_least]
    most: list[Blocks] = []
    figures: list[Blocks] = [figure, quantile_table_of_rows]
    if pictures:

        def gallery(rows: Array) -> Gallery:
            return Gallery(tuple((*pictures[int(row)], f"NC {format_number(float(nc[row]), 3)}") for row in rows))

        least = [gallery(ranked.rows_by_nc(name, count)), Details("Table", [table_of_least])]
        most = [gallery(ranked.rows_by_nc(name, count, most=True))]
    noun = "images" if pictures else "rows"
    return [
        ("least", f"Least reliable {noun}", least, NEXT),
        ("spread", quantile_table_of_rows.title, figures),
        ("most", f"Most reliable {noun}, for comparison", most),
    ]
