"""The model that was chosen, those that are as good, and what was left out: sentences and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nescio.analysis.model_choice import ModelChoice, Requirement, count_reasons
from nescio.report.format import format_millions, format_percent
from nescio.report.labels import metric_legend
from nescio.report.tables import Cell, NumberFormat, Table, percents

BESIDE = {"accuracy": "right ↑", "auroc": "AUROC ↑"}  # shown beside what is required
COSTS = {"params": ("params", format_millions), "input_size": ("input", NumberFormat("g"))}


def choice_sentences(chosen: ModelChoice) -> list[str]:
    """The choice, those that cannot be told from it, and what was left out, in plain words."""
    required, near = chosen.requirement, chosen.closest
    if near is not None and required.accuracy is not None:
        sentences = [
            f"No model keeps an accuracy of {100 * required.accuracy:g} % at any coverage. {near['model']} is closest: "
            f"{format_percent(near['accuracy'])} of the surest {format_percent(near['coverage'])} of "
            "its answers are right."
        ]
    else:
        first = chosen.models[0]
        size = f" ({format_millions(first['params'])} parameters)" if first["params"] else ""
        low, high = first["low"], first["high"]
        interval = "" if low is None else f" ({100 * low:.1f} to {100 * high:.1f} %)"
        sentences = [f"Choose {first['model']}{size}: {_gives(required, first['value'])}{interval}."]
        sentences += _others(first, chosen.models[1:], chosen)
    if chosen.left_out:
        sentences.append(f"Left out: {count_reasons(chosen.left_out)}.")
    return sentences


def _gives(required: Requirement, value: float) -> str:
    """What the chosen model gives."""
    if required.accuracy is not None:
        return (
            f"it answers {format_percent(value)} of the images with {100 * required.accuracy:g} % of "
            "those answers right"
        )
    if required.coverage is not None:
        return f"of the {100 * required.coverage:g} % of the images that it answers, {format_percent(value)} are wrong"
    return f"it is less sure of the wrong one in {format_percent(value)} of the pairs of a wrong and a right answer"


def _others(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]], chosen: ModelChoice) -> list[str]:
    """How the other models stand to the chosen one."""
    if not others:
        return []
    tied = [line for line in others if line["best"]]
    sentences = [f"On these {chosen.n:,} images the others are behind it beyond chance."]
    if tied:
        names = ", ".join(line["model"] for line in tied)
        sentences = [f"On these {chosen.n:,} images it cannot be told from {names}."]
        sized = [line for line in (first, *tied) if line["params"]]
        small = min(sized, key=lambda line: line["params"], default=first)
        if small is not first:
            sentences.append(
                f"The smallest of them is {small['model']} ({format_millions(small['params'])} parameters)."
            )
    if chosen.candidates > len(chosen.models):
        sentences.append(f"Compared are the {len(chosen.models)} best of {chosen.candidates} models (--compare-top).")
    return sentences


def choice_table(chosen: ModelChoice) -> Table:
    """One line per model, the best first."""
    metric = chosen.requirement.metric
    beside = {name: head for name, head in BESIDE.items() if name != metric}
    costs = {name: cost for name, cost in COSTS.items() if any(line[name] is not None for line in chosen.models)}
    lines = []
    for line in chosen.models:
        best = chosen.attained and bool(line["best"])
        cells: list[Cell | None] = [
            Cell(line["value"], low=line["low"], high=line["high"], best=best, format=percents())
        ]
        cells.append(_behind(line, best))
        cells += [_cell(line[name], percents()) for name in beside]
        cells += [_cell(line[name], form) for name, (_, form) in costs.items()]
        lines.append(((line["model"],), tuple(cells)))
    heads = (_head(chosen.requirement), "against the best", *beside.values(), *(head for head, _ in costs.values()))
    note = (
        f"{chosen.n:,} images; answers withheld by {chosen.measure}; {100 * chosen.level:g} % intervals of a paired "
        "bootstrap; bold cannot be told from the best"
    )
    return Table("The models, best first", ("model",), heads, tuple(lines), note, metric_legend((metric, "auroc")))


def _head(required: Requirement) -> str:
    if required.accuracy is not None:
        return f"answers at {100 * required.accuracy:g} % right ↑"
    return "AUROC ↑" if required.coverage is None else f"wrong of {100 * required.coverage:g} % answered ↓"


def _cell(value: float | None, form: Any) -> Cell | None:
    return None if value is None else Cell(value, format=form)


def _behind(line: Mapping[str, Any], best: bool) -> Cell:
    """How far from the best, on the same resamples."""
    if line["difference"] is None:
        return Cell(0.0, best=best, text="the best")
    low, high = line["difference_low"], line["difference_high"]
    return Cell(line["difference"], low=low, high=high, best=best, format=NumberFormat("+.1f", 100))
