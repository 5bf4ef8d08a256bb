"""Tables of the choice of a score, and of the choice of a model."""

from __future__ import annotations

from nescio.analysis.model_choice import ModelChoice
from nescio.analysis.score_choice import ScoreChoice
from nescio.report.format import format_millions
from nescio.report.labels import metric_label, metric_legend
from nescio.report.tables import COUNT, Cell, Formatter, NumberFormat, Table, decimals, percents
from nescio.report.verdicts import TASKS, requirement_label
from nescio.rows import Row

SCORE_TITLE = "Choice of the uncertainty score"
MAX_SCORES = 8  # maximum number of scores of the best group in the short table
FURTHER = {"accuracy": "accuracy ↑", "auroc": "AUROC ↑"}  # columns after the required metric
COSTS: dict[str, tuple[str, Formatter]] = {
    "params": ("params", format_millions),
    "input_size": ("input", NumberFormat("g")),
}


def scores_table(choice: ScoreChoice, everything: bool = True) -> Table:
    """Return the scores by AUROC on the selection rows; without `everything` only the best group and the baseline."""
    sorted_names = sorted(choice.areas, key=lambda name: -choice.areas[name])
    listed_names = sorted_names if everything else [*choice.group[:MAX_SCORES], choice.baseline]
    rows = []
    for name in (name for name in sorted_names if name in listed_names):
        cells: list[Cell | None] = [Cell(choice.areas[name], best=name in choice.group, format=decimals(4))]
        if choice.folds:
            cells.append(Cell(float(choice.chosen.get(name, 0)), format=COUNT))
        rows.append(((f"{name} (baseline)" if name == choice.baseline else name,), tuple(cells)))
    columns = [metric_label("auroc"), *([f"selected in folds (of {choice.folds})"] if choice.folds else [])]
    tuned = ", tuned on OOD rows" if choice.ood_tuned else ""
    note = (
        f"n = {choice.chosen_by:,} selection rows, on which the best score is overestimated; "
        f"scores compared: {len(sorted_names)}{tuned}; bold: not significantly different from the best"
    )
    title = f"{SCORE_TITLE}: {TASKS[choice.question]}"
    return Table(title, ("score",), tuple(columns), tuple(rows), note, metric_legend(("auroc",)))


def choice_table(choice: ModelChoice) -> Table:
    """Return one row per model, best first."""
    required, metric = choice.requirement, choice.requirement.metric
    more_metrics = {name: title for name, title in FURTHER.items() if name != metric}
    costs = {name: cost for name, cost in COSTS.items() if any(line[name] is not None for line in choice.models)}
    formats = dict.fromkeys(more_metrics, percents()) | {name: format for name, (_, format) in costs.items()}
    rows = []
    for line in choice.models:
        best = choice.attained and bool(line["best"])
        cells = [Cell(line["value"], low=line["low"], high=line["high"], best=best, format=percents())]
        cells.append(_difference(line, best))
        more_cells = [None if line[name] is None else Cell(line[name], format=style) for name, style in formats.items()]
        rows.append(((line["model"],), (*cells, *more_cells)))
    arrow = "↓" if required.accuracy is None and required.coverage is not None else "↑"
    titles = [f"{requirement_label(required)} {arrow}", "difference from the best", *more_metrics.values()]
    titles += [title for title, _ in costs.values()]
    note = (
        f"n = {choice.n:,}; uncertainty score {choice.measure}; {100 * choice.level:g} % intervals of a paired "
        "bootstrap; bold: not significantly different from the best"
    )
    return Table("Models, best first", ("model",), tuple(titles), tuple(rows), note, metric_legend((metric, "auroc")))


def _difference(line: Row, best: bool) -> Cell:
    """The difference from the best model on the same resamples, in percentage points."""
    if line["difference"] is None:
        return Cell(0.0, best=best, text="best")
    low, high = line["difference_low"], line["difference_high"]
    return Cell(line["difference"], low=low, high=high, best=best, format=NumberFormat("+.1f", 100))
