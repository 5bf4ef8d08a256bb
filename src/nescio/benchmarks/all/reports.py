"""Reports of `run all`: leaderboard, profiles of methods, trade-offs, correlations, and inapplicable evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from statistics import fmean

from nescio import evaluations
from nescio.benchmarks.all.leaderboard import (
    ENTROPY,
    NATIVE,
    Leaderboard,
    Line,
    Standing,
    line_of,
    questions,
    rows_by_evaluation,
)
from nescio.errors import Undefined
from nescio.metrics import spearman
from nescio.report.blocks import Blocks, Details, Figure, SectionSpec, Story, Tabs
from nescio.report.charts.points import heat_chart, scatter_chart
from nescio.report.format import format_number
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Index, Table, decimals, table, table_from_records
from nescio.rows import Row

PREFERENCES = {"method's score": (NATIVE, ENTROPY, "norm"), "entropy": (ENTROPY,), "msp": ("msp",)}
METHOD_SCORE = "method's score"
NOTE = (
    "Mean over seeds. Bold: the best, and what is not significantly different from it (paired t-test over seeds, "
    "Holm's correction, 5 %). Mean rank: 0 is the best of every question, 1 the worst; ± half of its 95 % interval "
    "over seeds. Undertrained lines have no rank"
)


@lru_cache(maxsize=8)
def leaderboard_of(frame: Frame, scores: tuple[str, ...] = PREFERENCES[METHOD_SCORE]) -> Leaderboard:
    """The leaderboard of the rows of a study."""
    columns = questions(evaluations.registry[name] for name in evaluations.registry)
    undertrained = frozenset(line_of(row) for row in frame.where(undertrained=True))
    return Leaderboard(frame, columns, scores, undertrained)


def line_label(line: Line, lines: Iterable[Line]) -> str:
    """A line by its method, and by backbone and size where others share them."""
    method, backbone, members = line
    others = [other for other in lines if other != line and other[0] == method]
    more = [backbone] if any(other[1] != backbone for other in others) else []
    more += [f"{members} networks"] if members > 1 else []
    return f"{method} ({', '.join(more)})" if more else method


# ---- the leaderboard


@report("all/leaderboard")
def leaderboard(frame: Frame) -> Blocks:
    """Every line under every question, by mean rank, for each choice of the uncertainty score."""
    return Tabs("Score", {name: [leaderboard_table(frame, scores)] for name, scores in PREFERENCES.items()})


def leaderboard_table(frame: Frame, scores: tuple[str, ...] = PREFERENCES[METHOD_SCORE]) -> Table:
    """The leaderboard as a table: mean rank first, then every question."""
    board = leaderboard_of(frame, scores)
    rows: list[Row] = []
    for line in board.lines:
        label = line_label(line, board.lines)
        if line in board.mean_ranks:
            mean, half, _ = board.mean_ranks[line]
            rows.append({"line": label, "column": "rank", "value": mean, "spread": half, "best": False})
        else:
            rows.append({"line": label, "column": "why", "value": reason_without_rank(line, board)})
        rows += [
            {"line": label, "column": number, "value": standing.mean, "spread": standing.spread}
            | {"best": standing.best, "values": tuple(standing.values.values()), "keys": standing.keys}
            | {"over": "data_seed", "n": len(standing.values)}
            for number, (_, standings) in enumerate(board.standings.items())
            if (standing := standings.get(line)) is not None
        ]
    columns = [
        Column("mean rank ↓", where={"column": "rank"}, format=decimals(2), better="neither"),
        Column("no rank because", where={"column": "why"}),
    ]
    columns += [
        Column(question.title, where={"column": number}, format=decimals(3))
        for number, question in enumerate(board.standings)
    ]
    title = "Leaderboard"
    return table(rows, title, index=(Index("line", "method", keep=True),), columns=columns, bold="none", note=NOTE)


def reason_without_rank(line: Line, board: Leaderboard) -> str:
    """Why a line has no mean rank."""
    if line in board.undertrained:
        return "undertrained"
    return f"answers {sum(line in standings for standings in board.standings.values())} questions"


@report("all/questions")
def questions_table(frame: Frame) -> Table:
    """The best line of every question, and how many are not significantly different from it."""
    board = leaderboard_of(frame)
    records = []
    for question, standings in board.standings.items():
        best = [line for line, standing in standings.items() if standing.best]
        first = min(best, key=lambda line: standings[line].rank or 0) if best else None
        records.append(
            {
                "question": question.title,
                "method": line_label(first, board.lines) if first else None,
                "value": standings[first].mean if first else None,
                "as good": len(best) - 1 if best else None,
                "of": len(standings),
            }
        )
    formats = {"as good": COUNT, "of": COUNT, "value": decimals(3)}
    note = "As good: further methods that are not significantly different from the best"
    return table_from_records(records, "The best of every question", "question", formats=formats, note=note)


# ---- a profile of every method


@report("all/profiles")
def profiles(frame: Frame) -> Blocks:
    """One method at a time: its value, rank and significance under every question, and its evidence of activity."""
    board = leaderboard_of(frame)
    options: dict[str, list[Table]] = {}
    for line in board.lines:
        records = [
            {
                "question": question.title,
                "value": standing.mean,
                "± over seeds": standing.spread,
                "best line": max(other.mean for other in standings.values())
                if question.headline.better == "higher"
                else min(other.mean for other in standings.values()),
                "place": standing.rank,
                "of": sum(other.rank is not None for other in standings.values()),
                "score": standing.score or "",
                "group of the best": "yes" if standing.best else "no",
            }
            for question, standings in board.standings.items()
            if (standing := standings.get(line)) is not None
        ]
        formats = {"place": decimals(1), "of": COUNT}
        blocks = [table_from_records(records, "Every question", "question", formats=formats)]
        evidence = rows_by_evaluation(frame).get("activity", Frame()).where(method=line[0], backbone=line[1])
        if line[2] == 1 and len(evidence):
            blocks.append(activity_table(evidence))
        options[line_label(line, board.lines)] = blocks
    return Tabs("Method", options)


def activity_table(evidence: Frame) -> Table:
    """Every observation, and in how many networks it was passed."""
    records = [
        {"evidence": name, "passed": sum(group.column()), "networks": len(group)}
        for (name,), group in evidence.group_by("measure")
    ]
    return table_from_records(records, "Evidence of activity", "evidence", formats={"passed": COUNT, "networks": COUNT})


# ---- trade-offs


@report("all/tradeoffs")
def tradeoffs(frame: Frame) -> Blocks:
    """Accuracy against every question, and the time of an image against it."""
    board = leaderboard_of(frame)
    accuracy = next((q for q in board.standings if q.headline.metric == "accuracy" and not q.headline.by_score), None)
    cost = {line_of(row): row["inference_ms"] for row in frame if row.get("inference_ms") is not None}
    options: dict[str, list[Figure]] = {}
    for number, (question, standings) in enumerate(board.standings.items()):
        figures = []
        if accuracy is not None and question != accuracy:
            x = {line: standing.mean for line, standing in board.standings[accuracy].items()}
            figures += _scatter(f"accuracy-{number}", accuracy.title, question.title, x, standings, board.lines)
        figures += _scatter(
            f"cost-{number}", "milliseconds per image ↓", question.title, cost, standings, board.lines, log=True
        )
        if figures:
            options[question.title] = figures
    return Tabs("Question", options)


def _scatter(
    key: str,
    x_title: str,
    y_title: str,
    x: dict[Line, float],
    standings: dict[Line, Standing],
    lines: Sequence[Line],
    log: bool = False,
) -> list[Figure]:
    points = [
        {"name": line[0], "method": line_label(line, lines), x_title: x[line], y_title: standing.mean}
        for line, standing in standings.items()
        if line in x
    ]
    if len(points) < 2:
        return []
    chart = partial(scatter_chart, points, x_title, y_title, tips={"method": "method"}, log=log)
    shown = [{name: value for name, value in point.items() if name != "name"} for point in points]
    return [Figure(key, f"{y_title.rstrip(' ↑↓')} and {x_title.rstrip(' ↑↓')}", "One point per method.", chart, shown)]


# ---- correlations


@report("all/correlations")
def correlations(frame: Frame) -> Blocks:
    """Whether methods that are good at one question are good at another."""
    board = leaderboard_of(frame)
    cells = [
        {"line": first.title, "column": second.title, "value": rho, "n": count}
        for (first, second), (rho, count) in board.correlations.items()
    ]
    if not cells:
        return None
    chart = partial(heat_chart, cells, "Spearman's ρ", -1.0, ("question", "question ", "methods"), ".2f")
    caption = "Spearman's correlation over methods; every number is signed so that higher is better."
    figure = Figure("correlations", "Are methods good at everything?", caption, chart, cells)
    by_score = score_correlations(frame)
    return [figure] if by_score is None else [figure, by_score]


@report("all/score-correlations")
def score_correlations(frame: Frame) -> Table | None:
    """Whether two uncertainty scores order the methods alike, under the first number of every question."""
    board = leaderboard_of(frame)
    records = []
    for question in (question for question in board.standings if question.headline.by_score):
        headline = question.headline
        rows = rows_by_evaluation(frame)[question.evaluation].where(metric=headline.metric, **headline.columns)
        means = {
            score: {line_of(group.rows[0]): group.mean() for _, group in own.group_by("method", "backbone", "members")}
            for (score,), own in rows.group_by("measure")
        }
        against = means.get(ENTROPY, {})
        for score, own in means.items():
            both = [line for line in own if line in against]
            if score in (None, ENTROPY) or len(both) < 3:
                continue
            try:
                rho = spearman([own[line] for line in both], [against[line] for line in both])
            except Undefined:
                continue
            better = fmean(own[line] > against[line] for line in both)
            records.append(
                {"question": question.title, "score": score, "ρ with entropy": rho, "above entropy": better}
                | {"models": len(both)}
            )
    return table_from_records(records, "Do scores order methods alike?", "question", "score") if records else None


# ---- tables of single evaluations


@report("all/evaluations")
def evaluation_tables(frame: Frame) -> Tabs:
    """The numbers of every evaluation, by line."""
    options = {}
    for name in evaluations.registry:
        if own := evaluation_table(frame, name):
            options[name] = [own]
    return Tabs("Evaluation", options)


def evaluation_table(frame: Frame, name: str) -> Table | None:
    """The pooled numbers of one evaluation: metrics as columns, methods and scores as rows."""
    rows = rows_by_evaluation(frame).get(name, Frame()).where(severity=None, shots=None)
    if not len(rows):
        return None
    kept = rows.summarise(
        ["method", "backbone", "members", "split", "target", "shift", "measure", "calibrated", "metric"],
        over=["data_seed"],
    )
    index = ("method", "backbone", Index("members", "networks"), "measure", "split", "target", "shift", "calibrated")
    return table(kept, evaluations.registry[name].question, index=index, columns="metric")


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [leaderboard_table(study.frame), questions_table(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Leaderboard", "Which method is best, at what?", [leaderboard(frame), questions_table(frame)]),
        ("Profiles", "One method at a time", [profiles(frame)]),
        ("Trade-offs", "What does it cost?", [tradeoffs(frame)]),
        ("Correlations", "Are methods good at everything?", [correlations(frame)]),
        ("Evaluations", "Every evaluation", [Details("Every number", [evaluation_tables(frame)])]),
    ]
    return story_of(study, f"{study.data}: every method under every question", _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """Numbers first: what was compared, the best by mean rank, and the best of every question."""
    board = leaderboard_of(frame)
    ranked = [line for line in board.lines if line in board.mean_ranks]
    seeds = len(frame.where(metric="accuracy").unique("data_seed"))
    lead = [f"{len(board.lines)} methods, {len(board.standings)} questions, {seeds} seeds."]
    if ranked:
        best, (mean, half, _) = ranked[0], board.mean_ranks[ranked[0]]
        interval = f" ± {format_number(half, 2)}" if half is not None else ""
        lead.append(f"Lowest mean rank: {line_label(best, board.lines)}, {format_number(mean, 2)}{interval}.")
    return lead
