"""The choice of a model: verdicts and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nescio.analysis.model_choice import ModelChoice, Requirement, count_reasons
from nescio.report.format import format_interval, format_millions, format_percent
from nescio.report.labels import metric_legend
from nescio.report.tables import Cell, Formatter, NumberFormat, Table, percents

FURTHER = {"accuracy": "accuracy ↑", "auroc": "AUROC ↑"}  # columns after the required metric
COSTS: dict[str, tuple[str, Formatter]] = {
    "params": ("params", format_millions),
    "input_size": ("input", NumberFormat("g")),
}


def choice_sentences(choice: ModelChoice) -> list[str]:
    """Return the chosen model with its value, the models that are not significantly different, and what is missing."""
    required, near = choice.requirement, choice.closest
    if near is not None and required.accuracy is not None:
        sentences = [
            f"No model has an accuracy of {100 * required.accuracy:g} % at any coverage; closest: {near['model']} with "
            f"{format_percent(near['accuracy'])} at {format_percent(near['coverage'])} coverage."
        ]
    else:
        first = choice.models[0]
        size = f" ({format_millions(first['params'])} parameters)" if first["params"] else ""
        value = format_interval(first["value"], first["low"], first["high"], format_percent)
        sentences = [f"Choose {first['model']}{size}: {_metric(required)} {value}, n = {choice.n:,}."]
        sentences += _others(first, choice.models[1:], choice)
    if choice.omitted:
        sentences.append(f"Omitted: {count_reasons(choice.omitted)}.")
    return sentences


def _metric(required: Requirement) -> str:
    """The metric of a requirement."""
    if required.accuracy is not None:
        return f"coverage at {100 * required.accuracy:g} % accuracy"
    return "AUROC" if required.coverage is None else f"error rate at {100 * required.coverage:g} % coverage"


def _others(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]], choice: ModelChoice) -> list[str]:
    """Table of the other models against the chosen one."""
    if not others:
        return []
    tied = [line for line in others if line["best"]]
    sentences = ["All others are significantly worse."]
    if tied:
        sentences = [f"Not significantly different: {', '.join(line['model'] for line in tied)}."]
        sized = [line for line in (first, *tied) if line["params"]]
        small = min(sized, key=lambda line: line["params"], default=first)
        if small is not first:
            sentences.append(f"Smallest of these: {small['model']} ({format_millions(small['params'])} parameters).")
    if choice.candidates > len(choice.models):
        sentences.append(f"Compared: the {len(choice.models)} best of {choice.candidates} models (--compare-top).")
    return sentences


def choice_table(choice: ModelChoice) -> Table:
    """Return one row per model, best first."""
    required, metric = choice.requirement, choice.requirement.metric
    further = {name: title for name, title in FURTHER.items() if name != metric}
    costs = {name: cost for name, cost in COSTS.items() if any(line[name] is not None for line in choice.models)}
    rows = []
    for line in choice.models:
        best = choice.attained and bool(line["best"])
        value = Cell(line["value"], low=line["low"], high=line["high"], best=best, format=percents())
        cells: list[Cell | None] = [value, _difference(line, best)]
        cells += [_cell(line[name], percents()) for name in further]
        cells += [_cell(line[name], format) for name, (_, format) in costs.items()]
        rows.append(((line["model"],), tuple(cells)))
    arrow = "↓" if required.accuracy is None and required.coverage is not None else "↑"
    titles = [f"{_metric(required)} {arrow}", "difference from the best", *further.values()]
    titles += [title for title, _ in costs.values()]
    note = (
        f"n = {choice.n:,}; uncertainty score {choice.measure}; {100 * choice.level:g} % intervals of a paired "
        "bootstrap; bold: not significantly different from the best"
    )
    return Table("Models, best first", ("model",), tuple(titles), tuple(rows), note, metric_legend((metric, "auroc")))


def _cell(value: float | None, format: Formatter) -> Cell | None:
    return None if value is None else Cell(value, format=format)


def _difference(line: Mapping[str, Any], best: bool) -> Cell:
    """The difference from the best model on the same resamples, in percentage points."""
    if line["difference"] is None:
        return Cell(0.0, best=best, text="best")
    low, high = line["difference_low"], line["difference_high"]
    return Cell(line["difference"], low=low, high=high, best=best, format=NumberFormat("+.1f", 100))
