"""Reports of `run all`: leaderboard, profiles of methods, trade-offs, correlations, and tables of all evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from statistics import fmean

from nescio import evaluations
from nescio.benchmarks.all.leaderboard import (
    ENTROPY,
    LINE,
    NATIVE,
    Leaderboard,
    Line,
    line_of,
    questions,
    rows_by_evaluation,
)
from nescio.errors import Undefined
from nescio.metrics import spearman
from nescio.report.blocks import Blocks, Details, Figure, SectionSpec, Story, Tabs, flatten
from nescio.report.charts.points import heat_figure, scatter_figure
from nescio.report.format import format_number
from nescio.report.frame import Frame
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Index, Table, decimals, table, table_from_records
from nescio.rows import Row

SCORES = {"native score": (NATIVE, ENTROPY, "norm"), "entropy": (ENTROPY,), "msp": ("msp",)}  # in order of preference
DEFAULT = SCORES["native score"]
NOTE = (
    "Mean rank: 0 is the best of every question, 1 the worst; ± half of its 95 % interval over seeds. Undertrained "
    "lines have no rank"
)


@lru_cache(maxsize=8)
def leaderboard_of(frame: Frame, scores: tuple[str, ...] = DEFAULT) -> Leaderboard:
    """The leaderboard of the rows of a study."""
    columns = questions(evaluations.registry[name] for name in evaluations.registry)
    undertrained = frozenset(line_of(row) for row in frame.where(undertrained=True))
    return Leaderboard(frame, columns, scores, undertrained)


def line_label(line: Line, lines: Iterable[Line]) -> str:
    """Name of a line: its method, and its backbone and size if other lines have the same method."""
    method, backbone, members = line
    same_method = [candidate for candidate in lines if candidate != line and candidate[0] == method]
    details = [backbone] if any(candidate[1] != backbone for candidate in same_method) else []
    details += [f"{members} networks"] if members > 1 else []
    return f"{method} ({', '.join(details)})" if details else method


# ---- the leaderboard


@report("all/leaderboard")
def leaderboard(frame: Frame) -> Blocks:
    """Leaderboard of all lines by mean rank, for each choice of the uncertainty score."""
    return Tabs("Score", {name: [leaderboard_table(frame, scores)] for name, scores in SCORES.items()})


def leaderboard_table(frame: Frame, scores: tuple[str, ...] = DEFAULT) -> Table:
    """The leaderboard as a table: mean rank first, then every question."""
    board = leaderboard_of(frame, scores)
    rows: list[Row] = []
    for line in board.lines:
        label = {"line": line_label(line, board.lines), "ranked": line not in board.undertrained}
        if line in board.mean_ranks:
            mean, half_width, _ = board.mean_ranks[line]
            rows.append(label | {"column": "rank", "value": mean, "spread": half_width})
        else:
            rows.append(label | {"column": "why", "value": reason_without_rank(line, board)})
        for number, standings in enumerate(board.standings.values()):
            if line in standings:
                rows.append(standings[line] | label | {"column": number})
    columns = [
        Column("mean rank ↓", where={"column": "rank"}, format=decimals(2), better="neither"),
        Column("no rank because", where={"column": "why"}),
    ]
    columns += [
        Column(question.title, where={"column": number}, format=decimals(3))
        for number, question in enumerate(board.standings)
    ]
    index = (Index("line", "method", keep=True),)
    return table(rows, "Leaderboard", index=index, columns=columns, compared=lambda row: row["ranked"], note=NOTE)


def reason_without_rank(line: Line, board: Leaderboard) -> str:
    """Reason why a line has no mean rank."""
    if line in board.undertrained:
        return "undertrained"
    return f"only {sum(line in standings for standings in board.standings.values())} questions"


@report("all/questions")
def questions_table(frame: Frame) -> Table:
    """The best line of every question, and how many are not significantly different from it."""
    board = leaderboard_of(frame)
    records: list[Row] = []
    for question, standings in board.standings.items():
        best = {line: row for line, row in standings.items() if row["among_best"]}
        top_line = min(best, key=lambda line: best[line]["rank"], default=None)
        records.append(
            {
                "question": question.title,
                "method": line_label(top_line, board.lines) if top_line else None,
                "value": standings[top_line]["value"] if top_line else None,
                "not different": len(best) - 1 if best else None,
                "of": len(standings),
            }
        )
    formats = {"not different": COUNT, "of": COUNT, "value": decimals(3)}
    note = "Not different: further methods that are not significantly different from the best"
    return table_from_records(records, "The best of every question", "question", formats=formats, note=note)


# ---- a profile of every method


@report("all/profiles")
def profiles(frame: Frame) -> Blocks:
    """The value, rank and significance of one method for every question, and its evidence of activity."""
    board = leaderboard_of(frame)
    options: dict[str, list[Table]] = {}
    for line in board.lines:
        records = [
            {
                "question": question.title,
                "value": standings[line]["value"],
                "± over seeds": standings[line]["spread"],
                "best line": (max if question.headline.better == "higher" else min)(
                    row["value"] for row in standings.values()
                ),
                "rank": standings[line]["rank"],
                "of": sum(row["rank"] is not None for row in standings.values()),
                "score": standings[line]["score"] or "",
                "not different from the best": "yes" if standings[line]["among_best"] else "no",
            }
            for question, standings in board.standings.items()
            if line in standings
        ]
        formats = {"rank": decimals(1), "of": COUNT}
        blocks = [table_from_records(records, "Every question", "question", formats=formats)]
        evidence = rows_by_evaluation(frame).get("activity", Frame()).where(method=line[0], backbone=line[1])
        if line[2] == 1 and evidence:
            observations = [
                {"evidence": name, "passed": sum(group.column()), "networks": len(group)}
                for (name,), group in evidence.group_by("measure")
            ]
            counts = {"passed": COUNT, "networks": COUNT}
            blocks.append(table_from_records(observations, "Evidence of activity", "evidence", formats=counts))
        options[line_label(line, board.lines)] = blocks
    return Tabs("Method", options)


# ---- trade-offs


@report("all/tradeoffs")
def tradeoffs(frame: Frame) -> Blocks:
    """Every question against accuracy, and against the milliseconds per image."""
    board = leaderboard_of(frame)
    accuracy = next((q for q in board.standings if q.headline.metric == "accuracy" and not q.headline.by_score), None)
    cost = {line_of(row): row["inference_ms"] for row in frame if row.get("inference_ms") is not None}
    options: dict[str, list[Figure]] = {}
    for number, (question, standings) in enumerate(board.standings.items()):
        y = {line: row["value"] for line, row in standings.items()}
        labels = {line: line_label(line, board.lines) for line in y}
        figures = []
        if accuracy is not None and question != accuracy:
            x_values = {line: row["value"] for line, row in board.standings[accuracy].items()}
            figures += _scatter(f"accuracy-{number}", (accuracy.title, x_values), (question.title, y), labels)
        figures += _scatter(f"cost-{number}", ("milliseconds per image ↓", cost), (question.title, y), labels, log=True)
        if figures:
            options[question.title] = figures
    return Tabs("Question", options)


Axis = tuple[str, Mapping[Line, float]]  # title, values


def _scatter(key: str, x: Axis, y: Axis, labels: Mapping[Line, str], log: bool = False) -> list[Figure]:
    """One point per line; nothing for fewer than two."""
    points = [
        {"name": line[0], "method": labels[line], x[0]: x[1][line], y[0]: value}
        for line, value in y[1].items()
        if line in x[1]
    ]
    if len(points) < 2:
        return []
    title = f"{y[0].rstrip(' ↑↓')} and {x[0].rstrip(' ↑↓')}"
    return [scatter_figure(key, title, "One point per method.", points, x[0], y[0], {"method": "method"}, log=log)]


# ---- correlations


@report("all/correlations")
def correlations(frame: Frame) -> Blocks:
    """Rank correlations between questions over methods."""
    cells = [
        {"line": first.title, "column": second.title, "value": rho, "n": count}
        for (first, second), (rho, count) in leaderboard_of(frame).correlations.items()
    ]
    caption = "Spearman's correlation over methods; every number is signed so that higher is better."
    names = ("question", "question ", "methods")
    title = "Rank correlation of questions"
    figure = heat_figure("correlations", title, caption, cells, "Spearman's ρ", -1.0, names)
    return flatten([figure, score_correlations(frame)]) if figure else None


@report("all/score-correlations")
def score_correlations(frame: Frame) -> Table | None:
    """Rank correlation of every score with entropy over methods, for the headline of every question."""
    records: list[Row] = []
    for question in leaderboard_of(frame).standings:
        headline = question.headline
        if not headline.by_score:
            continue
        rows = rows_by_evaluation(frame)[question.evaluation].where(metric=headline.metric, **headline.columns)
        means = {
            score: {line_of(group.rows[0]): group.mean() for _, group in score_rows.group_by(*LINE)}
            for (score,), score_rows in rows.group_by("measure")
        }
        entropy = means.get(ENTROPY, {})
        for score, values in means.items():
            common_lines = [line for line in values if line in entropy]
            if score in (None, ENTROPY) or len(common_lines) < 3:
                continue
            try:
                rho = spearman([values[line] for line in common_lines], [entropy[line] for line in common_lines])
            except Undefined:
                continue
            share_above = fmean(values[line] > entropy[line] for line in common_lines)
            record = {"question": question.title, "score": score, "ρ with entropy": rho, "above entropy": share_above}
            records.append(record | {"models": len(common_lines)})
    title = "Rank correlation of scores over methods"
    return table_from_records(records, title, "question", "score") if records else None


# ---- tables of single evaluations


@report("all/evaluations")
def evaluation_tables(frame: Frame) -> Tabs:
    """The numbers of every evaluation, by line."""
    tables = {name: evaluation_table(frame, name) for name in evaluations.registry}
    return Tabs("Evaluation", {name: [made] for name, made in tables.items() if made})


def evaluation_table(frame: Frame, name: str) -> Table | None:
    """The pooled numbers of one evaluation: metrics as columns, methods and scores as rows."""
    rows = rows_by_evaluation(frame).get(name, Frame()).where(severity=None, shots=None)
    if not rows:
        return None
    columns = ("split", "target", "shift", "calibrated")
    means = rows.summarise([*LINE, *columns, "measure", "metric"], over=["data_seed"])
    index = ("method", "backbone", Index("members", "networks"), "measure", *columns)
    return table(means, evaluations.registry[name].question, index=index, columns="metric")


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [leaderboard_table(study.frame), questions_table(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Leaderboard", "Mean ranks, and the best of every question", [leaderboard(frame), questions_table(frame)]),
        ("Profiles", "One method at a time", [profiles(frame)]),
        ("Trade-offs", "Accuracy and cost", [tradeoffs(frame)]),
        ("Correlations", "Rank correlation of questions", [correlations(frame)]),
        ("Evaluations", "Every evaluation", [Details("Every number", [evaluation_tables(frame)])]),
    ]
    return story_of(study, f"Methods under every question: mean rank on {study.data}", _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """Numbers of methods, questions and seeds, and the best by mean rank."""
    board = leaderboard_of(frame)
    seeds = len(frame.where(metric="accuracy").unique("data_seed"))
    lead = [f"{len(board.lines)} methods, {len(board.standings)} questions, {seeds} seeds."]
    if board.mean_ranks:
        best = board.lines[0]
        mean, half_width, _ = board.mean_ranks[best]
        interval = f" ± {format_number(half_width, 2)}" if half_width is not None else ""
        lead.append(f"Lowest mean rank: {line_label(best, board.lines)}, {format_number(mean, 2)}{interval}.")
    return lead
