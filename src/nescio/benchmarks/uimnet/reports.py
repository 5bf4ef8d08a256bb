"""Tables and figures of the UIMNET paper, each a named report, and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from nescio.analysis.selection import best_trials
from nescio.benchmarks.plans import DEEP_ENSEMBLE
from nescio.benchmarks.uimnet import SCORECARD, SEARCH
from nescio.report.blocks import Figure, SectionSpec, Story, Tabs
from nescio.report.charts.points import dots_chart, heat_figure, scatter_figure
from nescio.report.format import count_in_words, format_number, join_names, plural
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import calibration_label, group_reasons
from nescio.report.named_reports import report
from nescio.report.studies import Study, describe_best_line, story_of
from nescio.report.tables import MISSING, Column, Index, Table, decimals, metrics, percents, table
from nescio.rows import Row

IN_DISTRIBUTION = ("accuracy", "accuracy@5", "nll", "ece")
OUT_OF_DISTRIBUTION = ("auroc", "in_as_in", "out_as_out")
SHOWN = IN_DISTRIBUTION + OUT_OF_DISTRIBUTION
# AUROC on test rows is misclassification detection; here it is OOD detection
SPLIT = dict.fromkeys(SHOWN, "test") | {"auroc": "out", "out_as_out": "out"}
NAMES = {"accuracy": "ACC@1 ↑", "accuracy@5": "ACC@5 ↑", "nll": "NLL ↓", "ece": "ECE ↓", "auroc": "AUC ↑"}
NAMES |= {"in_as_in": "InAsIn ↑", "out_as_out": "OutAsOut ↑"}
OOD_NEED = "rows about classes that are out of distribution"  # rows that reports need
MODEL = ("backbone", "method", "members", "calibrated", "spectral")
LINE = (*MODEL, "measure", "metric")
DEFAULT_MEASURE = "entropy"  # measure of the paper's Table 3
ORACLE = "oracle"
NLL, AUC = "validation NLL", "AUC of OOD detection"
LABELS = (
    Index("method", "algorithm"),
    Index("members", "k"),
    Index("calibrated", "calibration", lambda value: MISSING if value is None else calibration_label(value)),
    Index("spectral", "spectral norm"),
)
# ablation → its column, and the label of a value
ABLATIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "calibration": ("calibrated", calibration_label),
    "spectral norm": ("spectral", lambda value: "off" if value is None else f"{value:g}"),
    "model size": ("backbone", str),
    "ensembling": ("members", lambda value: f"k = {value}"),
}


# ---- rows


def paper_rows(frame: Frame) -> Frame:
    """Rows of each metric on the split that the paper uses for it."""
    return Frame(row for row in frame if row["split"] == SPLIT.get(row["metric"]))


@lru_cache(maxsize=2)  # the rows of a study, and those of its lines
def means(frame: Frame) -> Frame:
    """Mean and standard deviation over data seeds of every line; averaged rows are returned unchanged."""
    if "spread" in (frame.rows or ({},))[0]:
        return frame
    return paper_rows(frame.where(evaluation=SCORECARD)).summarise(LINE, over=["data_seed"])


def measures_of(frame: Frame) -> list[str]:
    """The measures of out-of-distribution detection, the paper's first."""
    names = [name for name in means(frame).unique("measure") if name not in (None, ORACLE)]
    return sorted(names, key=lambda name: name != DEFAULT_MEASURE)


def first_measure(frame: Frame) -> str:
    return next(iter(measures_of(frame)), DEFAULT_MEASURE)


def sort_by_auc(frame: Frame, column: str) -> Frame:
    """Rows by the mean AUROC of their value of a column, the best first; those without AUROC last."""
    means = frame.where(metric="auroc").means_by(column)
    return frame.sort(lambda row: -means.get(row[column], 0.0))


def with_first_measure(frame: Frame) -> Frame:
    """The lines of all methods but the oracle, by the first measure."""
    return means(frame).without(method=ORACLE).where(measure=(None, first_measure(frame)))


def first_lines(frame: Frame) -> Frame:
    """Calibrated single networks of the first backbone, without spectral norm where that was tried; of deep-ensemble,
    which has no single networks, its only size."""
    lines = with_first_measure(frame)
    smallest_size = {method: min(rows.unique("members")) for (method,), rows in lines.group_by("method")}
    lines = Frame(row for row in lines if row["members"] == smallest_size[row["method"]])
    conditions: dict[str, Callable[[list[Any]], Any]] = {"backbone": lambda values: values[0], "calibrated": max}
    conditions["spectral"] = lambda values: min(values, key=lambda value: value or 0)
    for name, condition in conditions.items():
        if lines:
            lines = lines.where(**{name: condition(lines.unique(name))})
    return lines


# ---- the paper's tables


@report("uimnet/table2")
def table_2(frame: Frame) -> list[Table]:
    """In-distribution results (UIMNET Table 2): algorithm × k × calibration × spectral norm."""
    lines = means(frame).where(measure=None)
    return [
        _lines(f"In-distribution results, {backbone}", rows, IN_DISTRIBUTION)
        for (backbone,), rows in lines.group_by("backbone")
    ]


@report("uimnet/table3", needs=OOD_NEED)
def table_3(frame: Frame) -> Tabs:
    """Out-of-distribution results (UIMNET Table 3), one table per measure; the oracle is trained on OOD images."""
    tables: dict[str, list[Table]] = {measure: [] for measure in measures_of(frame)}
    for measure, of_backbones in tables.items():
        for (backbone,), lines in means(frame).where(measure=(measure, ORACLE)).group_by("backbone"):
            if lines.without(method=ORACLE):
                title = f"Out-of-distribution results, {backbone}, measure {measure}"
                of_backbones.append(_lines(title, lines, OUT_OF_DISTRIBUTION))
    return Tabs("Measure of uncertainty", tables)


def _lines(title: str, frame: Frame, metric_names: Sequence[str]) -> Table:
    """Lines × metrics with mean ± standard deviation; the oracle is last and never the best."""
    lines = frame.without(method=ORACLE)
    method_order, no_settings = lines.unique("method"), dict.fromkeys(("members", "calibrated", "spectral"))
    lines = lines.sort(
        lambda row: method_order.index(row["method"]), "members", "calibrated", lambda row: row["spectral"] or 0
    )
    return table(
        [*lines, *(row | no_settings for row in frame.where(method=ORACLE))],
        title,
        index=LABELS,
        columns=metrics(*metric_names, titles=NAMES),
        format=decimals(3),
        compared=lambda row: row["method"] != ORACLE,
    )


# ---- first tables


@report("uimnet/look")
def overview(frame: Frame) -> Table:
    """One line per method: its calibrated single network, with the paper's measure."""
    measure = first_measure(frame)
    titles = {"accuracy": "accuracy ↑", "ece": "ECE ↓", "auroc": "OOD AUC ↑", "out_as_out": "OOD rejected ↑"}
    first = sort_by_auc(first_lines(frame), "method")
    joint = f", and {DEEP_ENSEMBLE}, whose networks are averaged" * (DEEP_ENSEMBLE in first.unique("method"))
    note = (
        f"Calibrated single networks{joint}. OOD AUC: AUROC of {measure} of OOD against in-distribution images. OOD "
        f"rejected: share of OOD images above the 95 % quantile of {measure} on validation images"
    )
    columns = [Column(title, where={"metric": metric}) for metric, title in titles.items()]
    title = "OOD detection by method"
    return table(first, title, index=("method",), columns=columns, format=percents(), spread=False, note=note)


@report("uimnet/search", needs="two trials of a search")
def search(frame: Frame) -> Table | None:
    """Effect of the search: each method at its defaults, as selected, and over all trials."""
    trials = frame.where(evaluation=SEARCH, calibrated=False)
    if len(trials.unique("trial")) < 2:
        return None
    rows: list[Row] = []
    for names, (selected,) in best_trials(trials, 1).items():
        line = dict(zip(("method", "backbone", "spectral"), names, strict=True))
        of_line = paper_rows(trials.where(**line))
        choices = {"defaults": of_line.where(trial=0), f"selected (trial {selected})": of_line.where(trial=selected)}
        for network, networks in (choices | {"all trials": of_line}).items():
            rows += [line | {"network": network} | row for row in networks.summarise(["metric"])]
    note = (
        "Uncalibrated single networks, AUC with entropy. The selected trial has the lowest validation NLL. Mean ± "
        "standard deviation over seeds; of all trials over seeds and trials: smaller differences of methods may be "
        "chance"
    )
    lines = (Index("method", keep=True), "backbone", LABELS[-1], Index("network", "hyper-parameters"))
    columns = metrics("accuracy", "nll", "auroc", titles=NAMES)
    return table(rows, "Effect of the search", index=lines, columns=columns, format=decimals(3), bold="none", note=note)


@report("uimnet/ranking", needs=OOD_NEED)
def ranking(frame: Frame) -> Table:
    """Measures by their mean AUC over all methods, ensembles and ablations (UIMNET §8)."""
    lines = means(frame).where(metric=OUT_OF_DISTRIBUTION, measure=tuple(measures_of(frame)))
    rows = sort_by_auc(lines.summarise(["measure", "metric"]), "measure")
    heads = metrics(*OUT_OF_DISTRIBUTION, titles=NAMES)
    note = "Mean over methods, ensembles and ablations; measures that some methods lack are averaged over the others"
    return table(rows, "OOD detection by measure", columns=heads, format=decimals(3), spread=False, note=note)


@report("uimnet/effects", needs="two values of calibration, spectral norm, model size or ensemble size")
def effects(frame: Frame) -> Table:
    """Mean relative change of every metric by each ablation, all else equal (UIMNET §8)."""
    lines, rows = with_first_measure(frame), list[Row]()
    for name, (column, value_label) in ABLATIONS.items():
        values = lines.unique(column)
        if column != "backbone":  # backbones are in the order of the plan, from small to large
            values.sort(key=lambda value: value or 0)
        if len(values) > 1:
            change = f"{name} ({value_label(values[0])} → {value_label(values[-1])})"
            for (metric,), metric_rows in lines.group_by("metric"):
                changes = _changes(metric_rows, column, values[0], values[-1])
                rows += [{"change": change, "metric": metric, "value": fmean(changes)}] if changes else []
    note = (
        f"Mean relative change over methods and all other settings, OOD metrics with {first_measure(frame)}; bold is a "
        "change for the better"
    )
    columns, formatter = metrics(*SHOWN, titles=NAMES), percents(sign=True)
    return table(
        rows, "Effect of every ablation", index=("change",), columns=columns, format=formatter, bold="change", note=note
    )


def _changes(frame: Frame, column: str, before: Any, after: Any) -> list[float]:
    """(after − before) / |before| of every pair of lines that differ in this column only."""
    rest = [name for name in LINE if name != column]
    before_rows, after_rows = (
        {key: rows.first() for key, rows in frame.where(**{column: side}).group_by(*rest)} for side in (before, after)
    )
    return [(after_rows[key] - value) / abs(value) for key, value in before_rows.items() if key in after_rows and value]


# ---- figures


@report("uimnet/methods", needs=OOD_NEED)
def methods(frame: Frame) -> Figure | None:
    """AUC of each method's single network and ensemble, as in the first table; and the oracle's."""
    first = sort_by_auc(first_lines(frame).where(metric="auroc"), "method")
    if not first:
        return None
    settings = {name: first.first(name) for name in ("backbone", "calibrated", "spectral", "measure", "metric")}
    method_order = {method: number for number, method in enumerate(first.unique("method"))}
    lines = means(frame).without(method=ORACLE).where(**settings)
    points = [
        {"name": row["method"], "value": row["value"], "spread": row["spread"]}
        | {"kind": "one network" if row["members"] == 1 else f"ensemble of {row['members']}"}
        for row in lines.sort("members", lambda row: method_order.get(row["method"], len(method_order)))
    ]
    oracle = oracle_mean(frame)
    guide = (ORACLE, oracle) if oracle else None
    caption = "Dots are means over seeds; a line joins a method's single network and its ensemble."
    caption += " The dashed line is a network trained on in-distribution and OOD images." if guide else ""
    title, axis = "AUC of OOD detection by method", "AUC of OOD detection"
    data = [{"method": p["name"], "as": p["kind"], axis: p["value"], "spread": p["spread"]} for p in points]
    return Figure("methods", title, caption, lambda: dots_chart(points, axis, guide), data)


def oracle_mean(frame: Frame) -> float | None:
    """AUC of the oracle."""
    oracle = means(frame).where(method=ORACLE, metric="auroc")
    return oracle.mean() if oracle else None


@report("uimnet/heat", needs="two methods or two measures")
def heat(frame: Frame) -> Figure | None:
    """Mean AUC of every method with every measure."""
    caption = "Mean AUC over a method’s ensembles and ablations: more colour is better, 0.5 is chance."
    title, names = "AUC of OOD detection by method and measure", ("method", "measure", "lines")
    return heat_figure("heat", title, caption, heat_cells(frame), "AUC", 0.5, names)


def heat_cells(frame: Frame) -> list[Row]:
    """Cells of method × measure: mean AUC over a method's lines; the best lines and columns first."""
    lines = means(frame).without(method=ORACLE).where(metric="auroc")
    columns = sort_by_auc(lines, "measure").unique("measure")
    cells = lines.summarise(["method", "measure"])
    best = {method: -max(rows.column()) for (method,), rows in cells.group_by("method")}
    cells = cells.sort(lambda row: best[row["method"]], lambda row: columns.index(row["measure"]))
    return [{"line": row["method"], "column": row["measure"], "value": row["value"], "n": row["n"]} for row in cells]


@report("uimnet/networks", needs="the trials of a search")
def networks(frame: Frame) -> Figure | None:
    """Validation NLL against the AUC of OOD detection, one point per trained network (UIMNET, footnote 2)."""
    points = nll_against_auc(frame)
    if len(points) < 2:
        return None
    values = [point[NLL] for point in points]
    log_scale = min(values) > 0 and max(values) > 20 * min(values)
    tips = {"name": "method", "about": "network"}
    caption = "One point per network, uncalibrated, with entropy. Click on a name to see it alone."
    title = "Validation NLL and AUC of every trained network"
    return scatter_figure("networks", title, caption, points, NLL, AUC, tips, log=log_scale)


def nll_against_auc(frame: Frame) -> list[Row]:
    """The points of the figure."""
    points = []
    for key, rows in frame.where(evaluation=SEARCH).group_by("method", "backbone", "spectral", "trial", "data_seed"):
        nll, auc = rows.where(split="val", metric="nll").first(), rows.where(split="out", metric="auroc").first()
        if nll is not None and auc is not None:
            method, backbone, spectral, trial, seed = key
            bound = "" if spectral is None else f", spectral {spectral:g}"
            network = f"{backbone}{bound}, trial {trial}, data seed {seed}"
            points.append({"name": method, "about": network, NLL: nll, AUC: auc})
    return sorted(points, key=lambda point: (str(point["name"]), point["about"]))


def agreement(frame: Frame) -> str:
    """Agreement of the orders by validation NLL and by AUC over networks."""
    points = Frame(nll_against_auc(frame)).with_column(NLL, lambda point: -point[NLL])
    if (rho := points.correlation(NLL, AUC)) is None:
        return ""
    return (
        "Trials are chosen by their validation NLL, without OOD images. Spearman's correlation of the orders by "
        f"validation NLL and by AUC over {len(points)} networks: {format_number(rho, 2)}."
    )


# ---- the page


def first_look(study: Study) -> list[Table]:
    """The tables for the terminal."""
    lines = means(study.frame)
    return [overview(lines), effects(lines), ranking(lines)]


def story(study: Study) -> Story:
    """The page of a UIMNET study."""
    frame = study.frame
    lines = means(frame)
    about_oracle = "The oracle is trained to separate in-distribution from OOD images."
    first, changes, measures = first_look(study)
    sections: list[SectionSpec] = [
        ("Methods", first.title, [first, methods(lines), search(frame)]),
        ("Ablations", changes.title, [changes]),
        ("Measures", measures.title, [measures, heat(lines)]),
        ("Validation", "Validation NLL against OOD detection", [networks(frame)], agreement(frame)),
        ("Table 2", "In-distribution results (Table 2)", [table_2(lines)]),
        (
            "Table 3",
            "Out-of-distribution results (Table 3)",
            [table_3(lines)],
            about_oracle if oracle_mean(lines) else "",
        ),
    ]
    title = f"OOD detection by classifiers: AUC on {study.data}"
    reasons = [
        row for row in study.reasons if row.get("metric") is None or row.get("split") == SPLIT.get(row["metric"])
    ]
    return story_of(study, title, lead(study), sections, gaps=group_reasons(reasons))


def lead(study: Study) -> list[str]:
    """Summarize the study and its main results in sentences."""
    frame = study.frame
    lines, names = means(frame), frame.without(method=ORACLE).unique("method")
    class_names, ood_names = study.plan.get("classes"), study.plan.get("ood_classes")
    classes = f"{count_in_words(len(class_names)) if class_names else 'some'} classes of {study.data}"
    ood_text = f"{count_in_words(len(ood_names))} OOD classes" if ood_names else "OOD classes"
    sentences = [f"{plural(len(names), 'method')}, trained on {classes} and evaluated on {ood_text}."]
    if first := sort_by_auc(first_lines(lines).where(metric="auroc"), "method"):
        best, erm_row = first.first("method"), first.where(method="erm").first()
        references = {"erm": None if best == "erm" else erm_row, ORACLE: oracle_mean(lines)}
        runs = {row["method"]: repetitions_of(row) for row in first}
        sentences.append(describe_best_line("AUC of OOD detection", runs))
        if values := [f"{name} {format_number(value, 3)}" for name, value in references.items() if value is not None]:
            sentences.append(f"For comparison: {join_names(values)}.")
    measures = shared_measures(lines)
    if len(measures) > 1:
        sentences.append(describe_best_line("mean AUC of the measures that every method has", measures))
    return sentences


def shared_measures(frame: Frame) -> dict[str, dict[int, float]]:
    """Measure → seed → mean AUC over lines, of the measures that every line has."""
    lines = means(frame).without(method=ORACLE).where(metric="auroc")
    counts = Counter(lines.column("measure"))
    runs = Frame(
        {"measure": row["measure"], "seed": seed, "value": value}
        for row in lines
        if counts[row["measure"]] == max(counts.values())
        for seed, value in repetitions_of(row).items()
    )
    return {measure: rows.means_by("seed") for (measure,), rows in runs.group_by("measure")}
