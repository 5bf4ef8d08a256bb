"""What scorecards and comparisons of models say: their tables, sentences, figures, and the story of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from nescio.analysis.curves import GUIDES, corp_points
from nescio.analysis.significance import best_measure
from nescio.errors import Undefined
from nescio.metrics import auroc
from nescio.report.blocks import (
    Block,
    Definitions,
    Details,
    Figure,
    Panel,
    Prose,
    Section,
    Story,
    described,
    flatten,
    tables_of,
)
from nescio.report.charts import (
    corp_chart,
    cost_chart,
    histogram_chart,
    intervals_chart,
    models_chart,
    reliability_chart,
    risk_coverage_chart,
)
from nescio.report.format import format_number, format_percent, join_names, of_hundred
from nescio.report.frame import Frame
from nescio.report.labels import (
    DEFAULT_MEASURE,
    UNNAMED_SPLITS,
    calibration_label,
    find_metric,
    group_reasons,
    measure_sort_key,
    metric_label,
    metric_legend,
    ood_label,
)
from nescio.report.score_choices import TITLE as SCORE_CHOICE
from nescio.report.score_choices import choice_of_score, scores_table
from nescio.report.tables import (
    TIE_MARK,
    Cell,
    Column,
    Index,
    Table,
    decimals,
    drop_repeated_legends,
    fit_decimals,
    table,
)
from nescio.report.text import fit_width
from nescio.rows import COLUMNS, Row
from nescio.specs import group_of

IDENTITY = COLUMNS[: COLUMNS.index("calibrated")]  # columns that say which model a row is of
HEADLINE = ("accuracy", "nll", "brier", "ece", "auroc", "aurc", "sac@0.95")  # what a summary of models shows
ESSENTIAL = (*HEADLINE, "mcb", "naurc")  # … and what the first look at one model shows

ANSWERS = "How good are the answers"
ESSENTIALS = "How good are the answers, and does it know when it is wrong"
RANKING = "Does it know when it is wrong"
DETECTION = "Does it notice what is out of distribution"
MIXTURE = "Does it withhold mistakes and what is out of distribution at once"
RETRIEVAL = "Do its embeddings find their kind"
GALLERY = "The same by scores that see the gallery, not the image alone"
HUMAN = "Does it doubt where people doubt"
OTHER = "What else was measured"
SECTIONS = (ANSWERS, RANKING, DETECTION, MIXTURE, RETRIEVAL, GALLERY, HUMAN, OTHER)
MEANING = {  # what is positive, and what u should do, where a table ranks rows
    RANKING: "The uncertainty u should be higher where the answer is wrong: positive rows are wrong answers",
    DETECTION: "The uncertainty u should be higher out of distribution: positive rows are out of distribution",
    MIXTURE: "The uncertainty u should be higher where the answer is wrong, and where none can be right",
    RETRIEVAL: "Every row looks for its nearest other row; u should be higher where that one has another label",
    GALLERY: "These compare each row with all others, which scores of the image alone cannot: judge them apart",
    HUMAN: "The uncertainty u should be higher where people's votes differ more",
}
IN_DOUBT = "calibrated (in doubt)"  # the head of numbers under a calibration that means little
VERDICTS = (  # metric, what it means, how its values are written
    ("accuracy", "Right most often", format_percent),
    ("auroc", "Knows best when it is wrong (AUROC)", format_number),
)
MISSED = ("predictions", "calibrated", "detection", "in_as_in")  # gaps that have their reason on the first screen
SUMMARY = "The models side by side"
FILES = ("--val", "--ood", "--train")  # options with files that close gaps
MORE = "Charts with --output DIR."
FIRST = ("accuracy", "auroc", "ece", "nll", "brier", "aurc", "sac@0.95")  # of a comparison on the terminal
MOST_COMPARED, MOST_NAMED = 10, 4  # models in its table, and in one of its sentences
ALL_COMPARED = "All metrics, intervals and differences with --all; charts with --output DIR."
COMPARISON = "Which differences are real"
PAGE_POINTS, LEAST_POINTS = 40_000, 50  # of all risk–coverage curves together, so that the file stays small; of one
CAPTIONS = {
    "risk": (
        "Risk–coverage curve: how many of the answers it keeps are wrong",
        "Keep only the surest answers: the further left, the fewer are kept. A model that knows when it is wrong has "
        "a line that stays near the floor until almost all answers are kept. The far left, where few answers are "
        "left, may leave the picture.",
    ),
    "reliability": (
        "Reliability diagram: is it as sure as it should be",
        "Each dot gathers answers of similar confidence; a larger dot, more answers. Below the diagonal it claims "
        "more than it keeps, above it is too modest.",
    ),
    "corp": (
        "Reliability diagram without bins: is it as sure as it should be, beyond chance",
        "The line is the rising function of confidence that fits the right and wrong answers best. Where it leaves "
        "the band, the model is miscalibrated beyond chance: a calibrated one would stay inside at nine of ten places.",
    ),
    "cost": (
        "Cost curve: what mistakes and unknown rows cost together",
        "An answer that is wrong or out of distribution costs 1, withholding one costs the price below. The lower the "
        "line, the better: at every price the threshold is the best one.",
    ),
    "histogram": (
        "How unsure it is, where it is right and where it is wrong",
        "The less the shapes overlap, the better this measure tells them apart. The outermost bars also hold what "
        "lies beyond them.",
    ),
    "models": (
        "Risk–coverage curves: how many of the answers that each model keeps are wrong",
        "A lower line is better. Where lines cross, the better model depends on how many answers must be given.",
    ),
    "intervals": (
        "Which models cannot be told from the best",
        "Dots are values, bars their intervals. Dots in the accent colour cannot be told from the best one on these "
        "rows.",
    ),
}


# ---- which question a row answers


def own_splits(rows: Iterable[Row]) -> frozenset[Any]:
    """In-distribution splits: `test`, and those whose answers are right or wrong."""
    return UNNAMED_SPLITS | {
        row.get("split") for row in rows if row["metric"] == "in_as_in" or "predictions" in _kinds(row["metric"])
    }


def _kinds(metric: str) -> tuple[str, ...]:
    part = find_metric(metric)
    return part.kinds if part else ()


def question_of(row: Row, own: frozenset[Any] = UNNAMED_SPLITS) -> str:
    """The question that a row helps to answer; `own` are the in-distribution splits."""
    kinds = _kinds(row["metric"])
    if "predictions" in kinds:
        return ANSWERS
    if "threshold" in kinds:
        return DETECTION
    if "mixture" in kinds:
        return MIXTURE
    if "ranking" in kinds or "detection" in kinds:
        return RANKING if row.get("split") in own else DETECTION
    if "retrieval" in kinds or "retrieval-ranking" in kinds:
        return GALLERY if _kind(row.get("measure")) == "gallery" else RETRIEVAL
    return HUMAN if "votes" in kinds else OTHER


def default_measure(rows: Iterable[Row]) -> str | None:
    """The measure that represents a model: the largest probability if it is there, else the first one ranked."""
    rows = list(rows)
    own = own_splits(rows)
    ranked = [row["measure"] for row in rows if row.get("measure") is not None and question_of(row, own) == RANKING]
    return DEFAULT_MEASURE if DEFAULT_MEASURE in ranked else next(iter(ranked), None)


# ---- the tables of one scorecard


def card_tables(rows: Iterable[Row], doubt: str | None = None) -> list[Table]:
    """The tables of a scorecard's rows, one question each, in the order in which a reader asks them."""
    return drop_repeated_legends(tables_of(card_blocks(rows, doubt)))


def card_blocks(rows: Iterable[Row], doubt: str | None = None) -> list[Block]:
    """The same; second looks (after calibration, of groups) are folded. `doubt`: why calibrated numbers mean little."""
    frame = Frame(rows)
    if doubt:
        frame = frame.with_column("calibrated", lambda row: IN_DOUBT if row.get("calibrated") else False)
    own = own_splits(frame)
    fitted = [
        f"temperature scaling with temperature {value:.4g}"
        for value in frame.where(metric="temperature").unique("value")
    ]
    by_question: dict[str, list[Row]] = {question: [] for question in SECTIONS}
    for row in frame.without(metric="temperature"):
        by_question[question_of(row, own)].append(row)
    return [block for question, rows in by_question.items() for block in _question(question, Frame(rows), own, fitted)]


def _question(question: str, rows: Frame, own: frozenset[Any], fitted: Sequence[str]) -> list[Block]:
    rows = rows.sort(lambda row: measure_sort_key(row.get("measure")))
    whose = [name for name in IDENTITY if len(rows.unique(name)) > 1]
    if question == ANSWERS:
        made: list[Block] = []
        for (_, group), part in rows.group_by("split", "subgroup"):
            note = ", ".join(text for text in (_counted(part), *fitted) if text)
            answers = _answers(part, whose, _title(question, part, own), note)
            made.append(answers if group is None else Details(answers.title, [answers]))
        return made
    parts = _detection_parts(rows, own) if question == DETECTION else rows.group_by("calibrated", "split", "subgroup")
    return [block for _, part in parts for block in _measures(question, part, whose, own)]


def _detection_parts(rows: Frame, own: frozenset[Any]) -> Iterable[tuple[Any, Frame]]:
    """What is accepted of the in-distribution rows stands beside what is rejected of every other set."""
    accepted = rows.where(split=own)
    others = list(rows.where(split=lambda split: split not in own).group_by("calibrated", "split", "subgroup"))
    if not others:
        return accepted.group_by("calibrated", "subgroup")

    def beside(part: Frame) -> Frame:
        return Frame(
            [
                *part,
                *accepted.where(
                    calibrated=lambda value: calibration_label(value) == calibration_label(part.first("calibrated"))
                ),
            ]
        )

    return [(key, beside(part)) for key, part in others]


def _answers(rows: Frame, whose: Sequence[str], title: str, note: str) -> Table:
    """Metrics of a model itself, raw and calibrated side by side."""
    lines = [*map(Index, whose), Index("metric", keep=True)]
    return table(rows, title, index=lines, columns="calibrated", within=whose, note=note)


def _measures(question: str, part: Frame, whose: Sequence[str], own: frozenset[Any]) -> list[Block]:
    """One line per measure; what does not depend on the measure stands in the note, or in a table of its own."""
    measured, whole = part.where(measure=lambda name: name is not None), part.where(measure=None)
    title, counted = _title(question, part, own), _counted(part)
    if (share := part.first("ood_share")) is not None and question == MIXTURE:
        counted = f"{format_percent(share)} of the rows out of distribution by weight, {counted}"
    extra = ""
    if measured and whole and not whose:
        extra = ", ".join(f"{metric_label(row['metric'])} {format_number(row['value'])}" for row in whole)
        extra, whole = f"{extra}, ", Frame()
    note = ". ".join(text for text in (MEANING.get(question, ""), f"{extra}{counted}") if text)
    blocks: list[Block] = [_answers(whole, whose, title, note)] if whole else []
    if measured:
        lines = [*map(Index, whose), Index("measure", keep=True)]
        words = metric_legend((part if extra else measured).unique("metric"))
        blocks.append(replace(table(measured, title, index=lines, note=note), legend=words))
    second_look = part.first("calibrated") or part.first("subgroup") is not None
    return [Details(title, blocks)] if second_look else blocks


def _title(question: str, part: Frame, own: frozenset[Any]) -> str:
    row = part.rows[0]
    where = [] if row.get("split") in own else [ood_label(row.get("split"))]
    where += [] if row.get("subgroup") is None else [str(row["subgroup"])]
    where += [calibration_label(row["calibrated"])] if row.get("calibrated") and question != ANSWERS else []
    return f"{question}: {', '.join(where)}" if where else question


def _counted(rows: Frame) -> str:
    counts = sorted({int(n) for n in rows.unique("n") if n is not None})
    if not counts:
        return ""
    return f"{counts[0]:,} rows" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} rows"


# ---- several models


def unique_names(cards: Sequence[Any]) -> list[str]:
    """The cards' names, told apart by a number where two are equal."""
    names: list[str] = []
    for position, card in enumerate(cards, start=1):
        name = str(getattr(card, "name", "") or f"model {position}")
        names.append(name if name not in names else f"{name} ({position})")
    return names


def summary(cards: Sequence[Any]) -> Table:
    """One line per model with the figures that most people look for first."""
    rows: list[Row] = []
    measures: dict[str, None] = {}
    for name, card in zip(unique_names(cards), cards, strict=True):
        own, measure = own_splits(card.rows), default_measure(card.rows)
        measures |= {measure: None} if measure else {}
        for row in _plain(card.rows):
            question, ranked = question_of(row, own), row.get("measure") == measure
            if question == DETECTION and ranked and row["metric"] == "auroc":
                rows.append({"model": name, "head": f"{metric_label('auroc')} {ood_label(row['split'])}"} | _seen(row))
            elif (question == ANSWERS or (question == RANKING and ranked)) and row["metric"] in HEADLINE:
                rows.append({"model": name, "head": metric_label(row["metric"])} | _seen(row))
    frame = Frame(rows)
    heads = [Column(title, where={"head": title}) for title in frame.unique("head")]
    note = f"Ranking figures by {', '.join(sorted(measures))}" if measures else ""
    made = table(frame, SUMMARY, index=("model",), columns=heads, note=note)
    return replace(made, legend=metric_legend(frame.unique("metric")))


def _seen(row: Row) -> Row:
    return {"metric": row["metric"], "value": row["value"]}


def _plain(rows: Iterable[Row]) -> list[Row]:
    """Rows of the raw model on all rows of a split."""
    return [row for row in rows if not row.get("calibrated") and row.get("subgroup") is None]


def topic(row: Row) -> str:
    """What a row of a comparison is about: the metric, by which measure, on what, after which calibration."""
    parts = [metric_label(row["metric"])]
    parts += [] if row.get("measure") is None else [str(row["measure"])]
    parts += [] if row.get("split") in UNNAMED_SPLITS else [ood_label(row["split"])]
    parts += [] if row.get("subgroup") is None else [str(row["subgroup"])]
    parts += [calibration_label(row["calibrated"])] if row.get("calibrated") else []
    return " · ".join(parts)


def model_name(row: Row) -> str:
    """Which model a row of a comparison is of."""
    return next((str(row[key]) for key in ("model", "name", "file", "method") if row.get(key) is not None), "–")


def _resampled(comparison: Any) -> str:
    """Behind which verdicts are how many resamples."""
    drawn = getattr(comparison, "resamples", None)
    return f"{drawn:,} paired resamples of {comparison.n:,} shared rows. " if drawn else ""


def comparison_tables(comparison: Any) -> list[Table]:
    """Every model's rank and value with its interval, marked where it cannot be told from the best; the differences."""
    rows = Frame(dict(row) | {"topic": topic(row), "name": model_name(row)} for row in comparison.rows)
    if not rows:
        return []
    how = _resampled(comparison)
    level = f"{100 * comparison.level:g} % interval" if getattr(comparison, "level", None) else "interval"
    note = f"{how}#rank value [{level}]; {TIE_MARK} after the rank: cannot be told from the best"
    lines = [Index("topic", "metric")]
    made = [table(rows, COMPARISON, index=lines, columns="name", within=("topic",), note=note)]
    return [*made, _differences(comparison.differences)] if comparison.differences else made


def _differences(differences: Iterable[Row]) -> Table:
    """One line per model and topic, with the decimals that fit its difference."""
    names = {"difference": "difference", "low": "from", "high": "to", "p": "p", "adjusted": "p, Holm"}
    lines = []
    for row in differences:
        forms = dict.fromkeys(names, fit_decimals([row["difference"]])) | {"p": decimals(4), "adjusted": decimals(4)}
        cells = tuple(None if row.get(name) is None else Cell(row[name], format=forms[name]) for name in names)
        lines.append(((topic(row), f"{row['model']} − {row['best']}"), cells))
    note = "Each model minus the best one, on the same resamples"
    return Table("How far from the best", ("metric", "models"), tuple(names.values()), tuple(lines), note)


# ---- sentences


def headline(card: Any) -> list[str]:
    """What the model knows, in plain sentences; what was not measured is not mentioned."""
    raw = _plain(card.rows)
    measure, own = default_measure(raw), own_splits(raw)

    def find(metric: str, where: Callable[[Row], bool]) -> Row | None:
        return next((row for row in raw if row["metric"] == metric and where(row)), None)

    def ranks(row: Row) -> bool:
        return question_of(row, own) == RANKING and row.get("measure") == measure

    sentences = []
    right = find("accuracy", lambda row: row.get("split") in own)
    if right:
        count = f" {int(right['n']):,}" if right.get("n") is not None else ""
        sentences.append(f"It is right in {format_percent(right['value'])} of{count} answers.")
    ranked = find("auroc", ranks)
    if ranked:
        chance = ", hardly different from chance" if 0.45 < ranked["value"] < 0.55 else ""
        chance = ", worse than chance" if ranked["value"] <= 0.45 else chance
        sentences.append(
            f"A wrong prediction gets a lower confidence than a right one in {of_hundred(ranked['value'])} pairs "
            f"(AUROC {format_number(ranked['value'])}){chance}."
        )
    kept = find("selective_risk@0.8", ranks)
    if kept:
        sentences.append(
            f"Abstaining on the 20 % it is least sure of brings accuracy to {format_percent(1 - kept['value'])}."
        )
    sure = _confidence(card)
    if sure is not None and right:
        gap = 100 * (sure - right["value"])
        fault = f"{'over' if gap > 0 else 'under'}-confident by {abs(gap):.1f} points"
        sentences.append(
            f"Its mean confidence is {format_percent(sure)}, {fault if abs(gap) >= 0.5 else 'as its accuracy'}."
        )
    sentences += _calibration(card)
    for row in _without_members(raw):
        if row["metric"] == "auroc" and question_of(row, own) == DETECTION and row.get("measure") == measure:
            sentences.append(
                f"On “{ood_label(row['split'])}”, which is out of distribution, it is less sure than on what it knows "
                f"in {of_hundred(row['value'])} comparisons."
            )
    return sentences


def _without_members(rows: Iterable[Row]) -> list[Row]:
    """Without out-of-distribution sets of a group, for which its means speak."""
    return [row for row in rows if not group_of(str(row.get("split")))]


def _confidence(card: Any) -> float | None:
    """The mean confidence, from the bins of the reliability diagram."""
    curve = (getattr(card, "curves", None) or {}).get("reliability", {}).get("raw")
    if curve is None:
        return None
    count, confidence, _ = curve
    total = float(sum(count))
    return sum(float(n) * float(p) for n, p in zip(count, confidence, strict=True) if n) / total if total else None


def _calibration(card: Any) -> list[str]:
    """What the calibration did to the ECE, and whether that means something."""
    raw, calibrated = (
        next((row["value"] for row in card.rows if _is_ece(row) and bool(row.get("calibrated")) == after), None)
        for after in (False, True)
    )
    if raw is None or calibrated is None:
        return []
    fitted = Frame(card.rows).where(metric="temperature").first("value")
    name = "Vector scaling" if fitted is None else f"Temperature scaling (T = {fitted:.3g})"
    change = f"lowers the ECE from {format_number(raw)} to {format_number(calibrated)}"
    if calibrated >= raw:
        change = f"does not lower the ECE ({format_number(raw)} before, {format_number(calibrated)} after)"
    doubt = getattr(card, "calibration_warning", None)
    return [f"{name} {change}.", *([doubt] if doubt else [])]


def _is_ece(row: Row) -> bool:
    return bool(row["metric"] == "ece" and row.get("subgroup") is None)


def rejection(card: Any) -> list[str]:
    """Which measure of uncertainty rejects wrong answers best, which what is out of distribution, and their equals."""
    raw = getattr(card, "raw", None)
    if raw is None:
        return []
    known, wrong, outside = raw.uncertainty, raw.wrong, raw.ood
    sentences = [] if wrong is None else _best_at("wrong answers", known, wrong)
    for split in dict.fromkeys(split for sets in outside.values() for split in sets):
        names = [name for name, sets in outside.items() if split in sets and name in known]
        if not names:
            continue
        joined = {name: np.concatenate([known[name], outside[name][split]]) for name in names}
        unknown = np.arange(len(joined[names[0]])) >= len(known[names[0]])
        sentences += _best_at(f"“{ood_label(split)}”", joined, unknown)
    return sentences


def _best_at(what: str, measures: Mapping[str, Any], positive: Any) -> list[str]:
    """The best measure, those that cannot be told from it, and the baseline where it is none of them."""
    if len(measures) < 2:
        return []
    try:
        best = best_measure(measures, positive)
    except Undefined:
        return []
    others = [name for name in sorted(best.equals, key=measure_sort_key) if name != best.name]
    names = [f"`{name}`" for name in others]
    some = join_names([*names[:4], f"{len(names) - 4} more"] if len(names) > 5 else names) if names else ""
    rest = f"; not significantly different: {some}" if names else ", significantly better than the others"
    if DEFAULT_MEASURE in measures and DEFAULT_MEASURE not in best.equals:
        rest += f"; the baseline `{DEFAULT_MEASURE}` has {format_number(auroc(measures[DEFAULT_MEASURE], positive))}"
    return [f"Best at rejecting {what}: `{best.name}` (AUROC {format_number(best.auroc)}){rest}."]


def overview(cards: Sequence[Any], comparison: Any = None, incomparable: str = "") -> list[str]:
    """Which of several models is right most often and which knows best when it is wrong, as a paired test can tell.

    incomparable  why there is no comparison
    """
    if len(cards) < 2:
        return []
    if comparison is not None:
        return verdict(comparison)
    return [f"No winner is named: {incomparable or 'the models were not compared (`nescio compare` does).'}"]


def verdict(comparison: Any, most: int | None = None) -> list[str]:
    """What a comparison says of all metrics together, of accuracy and of knowing when wrong; `most` names in each."""
    frame = Frame(comparison.rows).where(best=(True, False))
    if len({model_name(row) for row in frame}) < 2:
        return []
    sentences = []
    for metric, words, form in VERDICTS:
        if rows := frame.where(metric=metric, split=UNNAMED_SPLITS):
            sentences.append(f"{words}: {_standing(rows, form, most)}.")
    for (split,), rows in frame.where(metric="auroc").without(split=UNNAMED_SPLITS).group_by("split"):
        sentences.append(
            f"Telling {ood_label(split)} from in-distribution rows (AUROC): {_standing(rows, format_number, most)}."
        )
    return [_over_all(frame, most), *sentences]


def _standing(rows: Frame, form: Callable[[float], str], most: int | None = None) -> str:
    """The best models by one metric, told apart from the others as far as that is possible."""
    ranked = sorted(rows, key=lambda row: row["rank"])
    best = [f"{model_name(row)} ({form(row['value'])})" for row in ranked if row["best"]]
    others = [model_name(row) for row in ranked if not row["best"]]
    behind = f"; {_few(others, most)} {'is' if len(others) == 1 else 'are'} behind" if others else ""
    if len(best) == 1:
        return f"{best[0]} is best{behind}, beyond chance"
    return f"{_few(best, most)} cannot be told apart{behind}"


def _over_all(frame: Frame, most: int | None = None) -> str:
    """The verdict over all metrics: which models are never behind, and which one is ahead alone."""
    models = list(dict.fromkeys(map(model_name, frame)))
    winners = [
        [model_name(row) for row in part if row["best"]]
        for _, part in frame.group_by("metric", "measure", "split", "calibrated")
    ]
    count = f"{len(winners)} metrics" if len(winners) > 1 else "the one metric"
    among = {name: sum(name in best for best in winners) for name in models}
    leaders = [name for name in models if among[name] == len(winners)]
    if len(leaders) == len(models):
        return f"Verdict: by {count} {_few(models, most)} cannot be told apart."
    if len(leaders) > 1:
        return f"Verdict: by {count} {_few(leaders, most)} are never behind, and cannot be told apart by all of them."
    top = max(models, key=lambda name: among[name])
    if leaders:
        return f"Verdict: by {count} {top} is never behind, and ahead of all others in {winners.count([top])}."
    return f"Verdict: by {count} no model is always among the best; {top} is in {among[top]}."


def _few(names: Sequence[str], most: int | None) -> str:
    """The first names and how many more there are; None: all."""
    if most is None or len(names) <= most + 1:
        return join_names(names)
    return join_names([*names[:most], f"{len(names) - most} more"])


# ---- figures


def measures_of(curves: Mapping[str, Any]) -> list[str]:
    """The measures that a card's curves can show, the best known first."""
    names = dict.fromkeys([*curves.get("risk_coverage", {}), *curves.get("histogram", {})])
    return sorted((name for name in names if name not in GUIDES), key=measure_sort_key)


def thinned(curves: Mapping[str, Any], models: int) -> Mapping[str, Any]:
    """The same curves with fewer points where many models share the page."""
    lines = curves.get("risk_coverage") or {}
    most = max(LEAST_POINTS, PAGE_POINTS // (models * max(1, len(lines))))

    def few(values: Sequence[float]) -> list[float]:
        if len(values) <= most:
            return list(values)
        return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]

    return {**curves, "risk_coverage": {name: (few(c), few(r)) for name, (c, r) in lines.items()}}


def _figure(kind: str, key: str, chart: Callable[[], Any]) -> Figure:
    return Figure(key, *CAPTIONS[kind], chart, kind=kind)


def _card_panel(curves: Mapping[str, Any], number: int) -> Panel:
    measures = measures_of(curves)
    first = measures[0] if measures else None
    figures = []
    if risk := curves.get("risk_coverage"):
        figures.append(_figure("risk", f"risk-{number}", lambda: risk_coverage_chart(risk, first)))
    if reliability := curves.get("reliability"):
        figures.append(_figure("reliability", f"reliability-{number}", lambda: reliability_chart(reliability)))
    if corp := curves.get("corp"):
        figures.append(_figure("corp", f"corp-{number}", lambda: corp_chart(corp_points(corp))))
    if cost := curves.get("cost"):
        figures.append(_figure("cost", f"cost-{number}", lambda: cost_chart(cost(), first)))
    if histogram := curves.get("histogram"):
        figures.append(_figure("histogram", f"histogram-{number}", lambda: histogram_chart(histogram, first)))
    return Panel(figures, "Measure of uncertainty", measures)


def _models_panel(curves: Mapping[str, Mapping[str, Any]]) -> Panel:
    lines = {name: own["risk_coverage"] for name, own in curves.items() if own.get("risk_coverage")}
    measures = sorted({k: None for own in lines.values() for k in own if k not in GUIDES}, key=measure_sort_key)
    figures = [_figure("models", "models", lambda: models_chart(lines, measures[0]))] if measures else []
    return Panel(figures, "Measure", measures)


def interval_points(comparison: Any) -> list[Row]:
    """The rows of a comparison as points of a figure; without a better direction there is no best, and no point."""
    ends = ("rank", "value", "low", "high", "best")
    return [
        {"question": topic(row), "model": model_name(row)} | {name: row.get(name) for name in ends}
        for row in comparison.rows
        if row.get("best") is not None
    ]


# ---- the story


def card_story(cards: Sequence[Any], comparison: Any = None, title: str = "", incomparable: str = "") -> Story:
    """What there is to say of one model or several, and of their comparison.

    cards         scorecards: rows, reasons, notes, name, curves
    comparison    what `compare` returns
    incomparable  why there is none
    """
    names, several = unique_names(cards), len(cards) > 1
    curves = {name: thinned(_curves(card), len(cards)) for name, card in zip(names, cards, strict=True)}
    sections = []
    if several:
        sections.append(Section("", SUMMARY, [summary(cards), _models_panel(curves)]))
    compared = [] if comparison is None else [_compared(comparison)]
    models = []
    for at, (name, card) in enumerate(zip(names, cards, strict=True)):
        opening = [Prose(headline(card), lead=True)] if several else []
        blocks = [
            *opening,
            *_score_choice(card, several),
            _card_panel(curves[name], at),
            *card_blocks(card.rows, getattr(card, "calibration_warning", None)),
            *_gaps(card),
        ]
        models.append(Section(name if several else "", name if several else "", blocks, model=several))
    lead = _lead(cards, comparison, incomparable)
    lead = [*(note for note in warnings_of([*cards, comparison]) if note not in lead), *lead]
    title = title or _story_title(cards, comparison)
    return Story(title, lead, described([*sections, *(compared + models if several else models + compared)]))


def _story_title(cards: Sequence[Any], comparison: Any) -> str:
    shown = [Path(name).name for name in unique_names(cards)]
    shown = shown or [str(name) for name in getattr(comparison, "models", ())]
    return " · ".join(shown[:3]) + (" …" if len(shown) > 3 else "") or "Scorecard"


def _lead(cards: Sequence[Any], comparison: Any, incomparable: str) -> list[str]:
    if not cards:
        return verdict(comparison) if comparison is not None else []
    if len(cards) > 1:
        return overview(cards, comparison, incomparable)
    chosen = [sentence for choice in _choices(cards[0]) for sentence in choice_of_score(choice)]
    return [*headline(cards[0]), *(chosen or rejection(cards[0]))]


def _choices(card: Any) -> list[Any]:
    return getattr(card, "score_choices", None) or []


def _score_choice(card: Any, several: bool) -> list[Block]:
    """The scores that were chosen among; of one model the lead has said the rest."""
    made: list[Block] = []
    for choice in _choices(card):
        made += [*([Prose(choice_of_score(choice))] if several else []), Details(SCORE_CHOICE, [scores_table(choice)])]
    return made


def short_story(cards: Sequence[Any], comparison: Any = None, incomparable: str = "") -> Story:
    """The few things that matter first, on one screen: what spoils numbers, how good, how calibrated, which measure."""
    table = summary(cards) if len(cards) > 1 else essentials(cards[0])
    blocks: list[Block] = [replace(table, legend=()), *_short_choices(cards), Definitions(_unanswered(cards))]
    lead = _lead(cards, comparison, incomparable)
    lead = [*(note for note in warnings_of(cards) if note not in lead), *lead]
    return Story(_story_title(cards, comparison), lead, [Section("", "", flatten([*blocks, Prose(_more(cards))]))])


def short_comparison(comparison: Any) -> Story:
    """The verdict of a comparison and the metrics that most people look for first: on one screen."""
    measured = [
        row for metric in FIRST for row in comparison.rows if row["metric"] == metric and row["best"] is not None
    ]
    rows = [row | {"topic": topic(row), "model": model_name(row), "low": None, "high": None} for row in measured]
    ranks: dict[str, list[int]] = {}
    for row in rows:
        ranks.setdefault(row["model"], []).append(row["rank"])
    first = sorted(ranks, key=lambda name: fmean(ranks[name]))[:MOST_COMPARED]
    frame = Frame(row for name in first for row in rows if row["model"] == name)
    heads = [Column(title, where={"topic": title}) for title in dict.fromkeys(row["topic"] for row in rows)]
    note = f"{_resampled(comparison)}#rank value; {TIE_MARK} after the rank: not significantly different from the best"
    made = fit_width(replace(table(frame, "", index=[Index("model")], columns=heads, note=note), legend=()))
    left = [f"{len(ranks) - len(first)} more models are in the page and with --all."] if len(ranks) > len(first) else []
    lead = [*warnings_of([comparison]), *verdict(comparison, MOST_NAMED)]
    return Story(_story_title([], comparison), lead, [Section("", "", [made, Prose([*left, ALL_COMPARED])])])


def warnings_of(sources: Iterable[Any]) -> list[str]:
    """The notes of scorecards or of a comparison, each once: what spoils numbers stands before them."""
    return list(dict.fromkeys(note for source in sources for note in getattr(source, "notes", ())))


def _short_choices(cards: Sequence[Any]) -> list[Block]:
    """The best scores and the baseline; of several models, which score to use with each."""
    if len(cards) == 1:
        return [replace(scores_table(choice, everything=False), legend=()) for choice in _choices(cards[0])]
    return [
        Prose([f"{name}: {' '.join(choice_of_score(choice))}"])
        for name, card in zip(unique_names(cards), cards, strict=True)
        for choice in _choices(card)
    ]


def _main_gaps(cards: Sequence[Any]) -> list[Row]:
    """The reasons why there is no calibration, no detection and the like. Second names are none."""
    from nescio.measures import registry

    second = [part.name for part in registry.parts() if part.equivalent_to]
    reasons = [reason for card in cards for reason in card.reasons if reason["measure"] not in second]
    return [reason for reason in reasons if reason["metric"] in MISSED or _optional(reason["measure"])]


def _unanswered(cards: Sequence[Any]) -> list[tuple[str, str]]:
    """The main gaps that no further file would close."""
    return group_reasons(
        [gap for gap in _main_gaps(cards) if not any(flag in gap["reason"] for flag in FILES)], limit=3
    )


def _more(cards: Sequence[Any]) -> list[str]:
    """Which files and options would add something."""
    flags = [flag for flag in FILES if any(flag in gap["reason"] for gap in _main_gaps(cards))]
    return [f"More with {', '.join(flags)}; see --all. {MORE}" if flags else f"More: see --all. {MORE}"]


def _kind(measure: str | None) -> str | None:
    """Of a registered measure."""
    from nescio.measures import registry

    return registry[str(measure)].kind if measure in registry else None


def _optional(measure: str | None) -> bool:
    """Whether another file or option adds the measure: a fitted one, or a heavy one of a large dump."""
    from nescio.measures import registry

    return _kind(measure) == "fitted" or (measure in registry and registry[str(measure)].slow)


def essentials(card: Any) -> Table:
    """The figures of one model that most people look for first, raw and calibrated."""
    own, measure = own_splits(card.rows), default_measure(card.rows)
    doubt = getattr(card, "calibration_warning", None)
    rows = []
    for row in _without_members(Frame(card.rows).where(subgroup=None)):
        question, ranked = question_of(row, own), row.get("measure") == measure
        if question == DETECTION and ranked and row["metric"] == "auroc":
            line = f"{metric_label('auroc')} against {ood_label(row['split'])}"
        elif question == MIXTURE and ranked and row["metric"] == "scod_augrc":
            line = f"{metric_label('scod_augrc')} with {ood_label(row['split'])}"
        elif (question == ANSWERS or (question == RANKING and ranked)) and row["metric"] in ESSENTIAL:
            line = metric_label(row["metric"])
        else:
            continue
        kept = {key: row.get(key) for key in ("metric", "value", "low", "high")}
        rows.append(
            kept
            | {"line": line, "stage": IN_DOUBT if doubt and row["calibrated"] else calibration_label(row["calibrated"])}
        )
    note = f"{_counted(Frame(card.rows).where(metric='accuracy'))}; ranking by {measure}" if measure else ""
    return table(rows, ESSENTIALS, index=(Index("line", "metric"),), columns="stage", within=("line",), note=note)


def _curves(card: Any) -> Mapping[str, Any]:
    return getattr(card, "curves", None) or {}


def _compared(comparison: Any) -> Section:
    tables, points = comparison_tables(comparison), interval_points(comparison)
    topics = list(dict.fromkeys(str(point["question"]) for point in points))
    figures = [_figure("intervals", "intervals", lambda: intervals_chart(points))] if points else []
    titles = ("All values with their intervals", *(made.title for made in tables[1:]))
    folds = [Details(title, [made]) for title, made in zip(titles, tables, strict=False)]
    return Section("", COMPARISON, [Panel(figures, "Metric", topics), *folds, *_gaps(comparison)])


def _gaps(source: Any) -> list[Block]:
    missing = group_reasons(getattr(source, "reasons", ()))
    return [Definitions(missing, "What could not be said")]


def rows_of(cards: Sequence[Any], comparison: Any = None) -> list[Row]:
    """All rows; those of scorecards say which one in a last column `file`."""
    rows = [{**row, "file": name} for name, card in zip(unique_names(cards), cards, strict=True) for row in card.rows]
    return rows + ([] if comparison is None else list(comparison.rows))
