"""Tables of scorecards and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from nescio.report.blocks import Block, Details, tables_of
from nescio.report.format import format_number, format_percent
from nescio.report.frame import Frame
from nescio.report.labels import (
    UNNAMED_SPLITS,
    calibration_label,
    measure_sort_key,
    metric_label,
    metric_legend,
    ood_label,
)
from nescio.report.scorecards.questions import (
    ESSENTIAL_METRICS,
    GALLERY,
    HEADLINE_METRICS,
    HUMAN,
    MISCLASSIFICATION,
    MIXTURE,
    OOD,
    PREDICTIONS,
    QUESTIONS,
    RETRIEVAL,
    Splits,
    default_measure,
    in_distribution_splits,
    model_name,
    plain_rows,
    question_of,
    unique_names,
    without_members,
)
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

if TYPE_CHECKING:
    from nescio.analysis.results import Comparison, Scorecard

MODEL_COLUMNS = COLUMNS[: COLUMNS.index("calibrated")]  # columns that identify a model
SHORT_METRICS = ("accuracy", "auroc", "ece", "nll", "brier", "aurc", "sac@0.95")  # of a comparison on the terminal
ESSENTIALS = "Main metrics"
SUMMARY = "Summary of the models"
COMPARISON = "Comparison of the models"
DIFFERENCES = "Differences from the best model"
DIFFERENCES_NOTE = "Each model minus the best one, on the same resamples"
UNRELIABLE = "calibrated (unreliable)"  # column of calibrated numbers if the calibration has a warning
POSITIVES = {  # question → its positive rows
    MISCLASSIFICATION: "Positive rows: misclassified",
    OOD: "Positive rows: out-of-distribution",
    MIXTURE: "Positive rows: misclassified or out-of-distribution",
    RETRIEVAL: "Positive rows: those whose nearest other row has another label",
    GALLERY: "These scores compare each row with all others. Do not compare them with scores of single images",
    HUMAN: "The uncertainty should be higher where the annotators disagree more",
}
MAX_MODELS = 10  # maximum number of models in the short table of a comparison


def resampling_note(comparison: Comparison, *, intervals: bool = False) -> str:
    """Return the note of a table of ranks."""
    cells = f"#rank value [{100 * comparison.level:g} % interval]" if intervals else "#rank value"
    counts = f"{comparison.resamples:,} paired resamples, n = {comparison.n:,}. " if comparison.resamples else ""
    return f"{counts}{cells}; {TIE_MARK} after the rank: not significantly different from the best"


# ---- one scorecard


def scorecard_tables(rows: Iterable[Row], warning: str | None = None) -> list[Table]:
    """Return the tables of a scorecard's rows in the order of the questions."""
    return drop_repeated_legends(tables_of(scorecard_blocks(rows, warning)))


def scorecard_blocks(rows: Iterable[Row], warning: str | None = None) -> list[Block]:
    """Return the tables of a scorecard's rows; those of calibrated predictions and of groups are collapsed.

    warning  why calibrated numbers are unreliable
    """
    frame = Frame(rows)
    if warning:
        frame = frame.with_column("calibrated", lambda row: UNRELIABLE if row.get("calibrated") else False)
    splits = in_distribution_splits(frame)
    temperatures = [f"temperature {value:.4g}" for value in frame.where(metric="temperature").unique("value")]
    by_question: dict[str, list[Row]] = {question: [] for question in QUESTIONS}
    for row in frame.without(metric="temperature"):
        by_question[question_of(row, splits)].append(row)
    return [
        block
        for question, answers in by_question.items()
        for block in _question_blocks(question, Frame(answers), splits, temperatures)
    ]


def _question_blocks(question: str, rows: Frame, splits: Splits, temperatures: Sequence[str]) -> list[Block]:
    rows = rows.sort(lambda row: measure_sort_key(row.get("measure")))
    labels = [name for name in MODEL_COLUMNS if len(rows.unique(name)) > 1]
    if question == PREDICTIONS:
        blocks: list[Block] = []
        for (_, group), members in rows.group_by("split", "subgroup"):
            note = ", ".join(text for text in (_row_count(members), *temperatures) if text)
            group_table = _metrics_table(members, labels, _title(question, members, splits), note)
            blocks.append(group_table if group is None else Details(group_table.title, [group_table]))
        return blocks
    groups = _ood_groups(rows, splits) if question == OOD else rows.group_by("calibrated", "split", "subgroup")
    return [block for _, members in groups for block in _measure_blocks(question, members, labels, splits)]


def _ood_groups(rows: Frame, splits: Splits) -> Iterable[tuple[object, Frame]]:
    """One group per OOD set, each with the shares of in-distribution rows that are accepted."""
    accepted = rows.where(split=splits)
    sets = list(rows.where(split=lambda split: split not in splits).group_by("calibrated", "split", "subgroup"))
    if not sets:
        return accepted.group_by("calibrated", "subgroup")

    def with_accepted(members: Frame) -> Frame:
        stage = calibration_label(members.first("calibrated"))
        return Frame([*members, *accepted.where(calibrated=lambda value: calibration_label(value) == stage)])

    return [(key, with_accepted(members)) for key, members in sets]


def _metrics_table(rows: Frame, labels: Sequence[str], title: str, note: str) -> Table:
    """Metrics of the predictions, with raw and calibrated ones side by side."""
    index = [*map(Index, labels), Index("metric", keep=True)]
    return table(rows, title, index=index, columns="calibrated", compare_within=labels, note=note)


def _measure_blocks(question: str, rows: Frame, labels: Sequence[str], splits: Splits) -> list[Block]:
    """One table row per measure; metrics without a measure are in the note, or in a table of their own."""
    measure_rows, other_rows = rows.where(measure=lambda name: name is not None), rows.where(measure=None)
    title, note = _title(question, rows, splits), _row_count(rows)
    if (ood_share := rows.first("ood_share")) is not None and question == MIXTURE:
        note = f"{format_percent(ood_share)} OOD by weight, {note}"
    one_table = bool(measure_rows and other_rows and not labels)
    if one_table:
        values = ", ".join(f"{metric_label(row['metric'])} {format_number(row['value'])}" for row in other_rows)
        note, other_rows = f"{values}, {note}", Frame()
    note = ". ".join(text for text in (POSITIVES.get(question, ""), note) if text)
    blocks: list[Block] = [_metrics_table(other_rows, labels, title, note)] if other_rows else []
    if measure_rows:
        index = [*map(Index, labels), Index("measure", keep=True)]
        legend = metric_legend((rows if one_table else measure_rows).unique("metric"))
        blocks.append(replace(table(measure_rows, title, index=index, note=note), legend=legend))
    collapsed = rows.first("calibrated") or rows.first("subgroup") is not None
    return [Details(title, blocks)] if collapsed else blocks


def _title(question: str, rows: Frame, splits: Splits) -> str:
    row = rows.rows[0]
    names = [] if row.get("split") in splits else [ood_label(row.get("split"))]
    names += [] if row.get("subgroup") is None else [str(row["subgroup"])]
    names += [calibration_label(row["calibrated"])] if row.get("calibrated") and question != PREDICTIONS else []
    return f"{question}: {', '.join(names)}" if names else question


def _row_count(rows: Frame) -> str:
    counts = sorted({int(n) for n in rows.unique("n") if n is not None})
    if not counts:
        return ""
    return f"n = {counts[0]:,}" if len(counts) == 1 else f"n = {counts[0]:,} to {counts[-1]:,}"


def essentials(card: Scorecard) -> Table:
    """Return the main metrics of one model, raw and calibrated."""
    splits, measure = in_distribution_splits(card.rows), default_measure(card.rows)
    rows = []
    for row in without_members(Frame(card.rows).where(subgroup=None)):
        question, is_ranking = question_of(row, splits), row.get("measure") == measure
        if question == OOD and is_ranking and row["metric"] == "auroc":
            label = f"{OOD}, {ood_label(row['split'])}: {metric_label('auroc')}"
        elif question == MIXTURE and is_ranking and row["metric"] == "scod_augrc":
            label = f"{metric_label('scod_augrc')} with {ood_label(row['split'])}"
        elif question == PREDICTIONS and row["metric"] in ESSENTIAL_METRICS:
            label = metric_label(row["metric"])
        elif question == MISCLASSIFICATION and is_ranking and row["metric"] in ESSENTIAL_METRICS:
            label = f"{MISCLASSIFICATION}: {metric_label(row['metric'])}"
        else:
            continue
        calibrated = (
            UNRELIABLE if card.calibration_warning and row["calibrated"] else calibration_label(row["calibrated"])
        )
        values = {key: row.get(key) for key in ("metric", "value", "low", "high")}
        rows.append(values | {"label": label, "stage": calibrated})
    count = _row_count(Frame(card.rows).where(metric="accuracy"))
    note = ", ".join(text for text in (count, f"uncertainty score {measure}" if measure else "") if text)
    return table(
        rows, ESSENTIALS, index=(Index("label", "metric"),), columns="stage", compare_within=("label",), note=note
    )


# ---- several models


def summary(cards: Sequence[Scorecard]) -> Table:
    """Return the headline metrics, one row per model."""
    rows: list[Row] = []
    measures: dict[str, None] = {}
    for name, card in zip(unique_names(cards), cards, strict=True):
        splits, measure = in_distribution_splits(card.rows), default_measure(card.rows)
        measures |= {measure: None} if measure else {}
        for row in plain_rows(card.rows):
            question, is_ranking = question_of(row, splits), row.get("measure") == measure
            label = metric_label(row["metric"])
            value = {"model": name, "metric": row["metric"], "value": row["value"]}
            if question == OOD and is_ranking and row["metric"] == "auroc":
                rows.append(value | {"column": f"{label} {ood_label(row['split'])}"})
            elif (question == PREDICTIONS or (question == MISCLASSIFICATION and is_ranking)) and (
                row["metric"] in HEADLINE_METRICS
            ):
                rows.append(value | {"column": label})
    frame = Frame(rows)
    columns = [Column(title, where={"column": title}) for title in frame.unique("column")]
    note = f"Uncertainty score: {', '.join(sorted(measures))}" if measures else ""
    result = table(frame, SUMMARY, index=("model",), columns=columns, note=note)
    return replace(result, legend=metric_legend(frame.unique("metric")))


def comparison_label(row: Row) -> str:
    """Return the metric of a row of a comparison, with its measure, OOD set, group and calibration."""
    labels = [metric_label(row["metric"])]
    labels += [] if row.get("measure") is None else [str(row["measure"])]
    labels += [] if row.get("split") in UNNAMED_SPLITS else [ood_label(row["split"])]
    labels += [] if row.get("subgroup") is None else [str(row["subgroup"])]
    labels += [calibration_label(row["calibrated"])] if row.get("calibrated") else []
    return " · ".join(labels)


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return ranks and values of all models with intervals, and the differences from the best model."""
    rows = Frame(dict(row) | {"label": comparison_label(row), "name": model_name(row)} for row in comparison.rows)
    if not rows:
        return []
    note = resampling_note(comparison, intervals=True)
    values = table(
        rows, COMPARISON, index=[Index("label", "metric")], columns="name", compare_within=("label",), note=note
    )
    return [values, _differences(comparison.differences)] if comparison.differences else [values]


def _differences(differences: Iterable[Row]) -> Table:
    """One row per model and metric, with decimals that fit its difference."""
    names = {"difference": "difference", "low": "from", "high": "to", "p": "p", "adjusted": "p, Holm"}
    rows = []
    for row in differences:
        formats = dict.fromkeys(names, fit_decimals([row["difference"]])) | dict.fromkeys(
            ("p", "adjusted"), decimals(4)
        )
        cells = tuple(None if row.get(name) is None else Cell(row[name], format=formats[name]) for name in names)
        rows.append(((comparison_label(row), f"{row['model']} − {row['best']}"), cells))
    return Table(DIFFERENCES, ("metric", "models"), tuple(names.values()), tuple(rows), DIFFERENCES_NOTE)


def short_comparison_table(comparison: Comparison) -> tuple[Table, int]:
    """Return the first metrics of the best models as far as they fit the terminal, and the number of other models."""
    measured = [
        row for name in SHORT_METRICS for row in comparison.rows if row["metric"] == name and row["best"] is not None
    ]
    rows = [
        row | {"label": comparison_label(row), "model": model_name(row), "low": None, "high": None} for row in measured
    ]
    ranks: dict[str, list[int]] = {}
    for row in rows:
        ranks.setdefault(row["model"], []).append(row["rank"])
    models = sorted(ranks, key=lambda name: fmean(ranks[name]))[:MAX_MODELS]
    frame = Frame(row for name in models for row in rows if row["model"] == name)
    columns = [Column(title, where={"label": title}) for title in dict.fromkeys(row["label"] for row in rows)]
    result = table(frame, "", index=[Index("model")], columns=columns, note=resampling_note(comparison))
    return fit_width(replace(result, legend=())), len(ranks) - len(models)
