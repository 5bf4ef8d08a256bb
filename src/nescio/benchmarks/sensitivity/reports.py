"""Figure 2 of the paper, rank correlations with the regularisation strength, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from nescio.errors import Undefined
from nescio.metrics import spearman
from nescio.report.blocks import Blocks, SectionSpec, Story, Tabs
from nescio.report.charts.points import scatter_figure
from nescio.report.format import format_number, join_names, plural
from nescio.report.frame import Frame
from nescio.report.labels import dataset_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Index, NumberFormat, Table, decimals, metrics, table
from nescio.report.verdicts import singular_gaussians
from nescio.rows import Row

CLEAN, TURNED = "clean", "rotation"
KEY = ("dataset", "method", "trial")  # columns that identify a strength
NETWORK = (*KEY, "data_seed")
LEVEL = 0.05  # significance level of the correlation's test
EXACT = 8  # maximum number of values whose orders are all counted for a p-value
TIPS = {"method": "method", "strength": "strength", "seed": "seed"}


def points(frame: Frame) -> list[Row]:
    """One per network and measure: strength, accuracy of clean images, rAULC and AUROC of all angles together."""
    accuracy = {network: rows.first() for network, rows in _clean_rows(frame).group_by(*NETWORK)}
    auroc = {key: rows.first() for key, rows in _pooled_rows(frame, "auroc").group_by(*NETWORK, "measure")}
    return [
        dict(zip((*NETWORK, "measure"), key, strict=True))
        | {"strength": rows.first("strength"), "accuracy": accuracy[key[:-1]], "rAULC": rows.first()}
        | {"auroc": auroc.get(key), "name": rows.first("method"), "seed": rows.first("data_seed")}
        for key, rows in _pooled_rows(frame, "raulc").group_by(*NETWORK, "measure")
    ]


def _clean_rows(frame: Frame) -> Frame:
    return frame.where(metric="accuracy", shift=CLEAN)


def _pooled_rows(frame: Frame, metric: str) -> Frame:
    return frame.where(metric=metric, shift=TURNED, severity=None)


def correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Spearman's ρ and its two-sided p-value: by all orders of up to EXACT values, else by Student's t with n − 2
    degrees of freedom."""
    from scipy.special import stdtr
    from scipy.stats import rankdata

    n = len(x)
    if n < 3:
        raise Undefined("A correlation of fewer than three networks has no p-value.")
    rho = spearman(x, y)
    if n <= EXACT:
        x_ranks, y_ranks = (rankdata(values) - (n + 1) / 2 for values in (x, y))
        orders = y_ranks[np.array(list(permutations(range(n))))] @ x_ranks
        return rho, float(np.mean(np.abs(orders) >= abs(y_ranks @ x_ranks) - 1e-9))
    if abs(rho) == 1:
        return rho, 0.0
    return rho, 2 * float(stdtr(n - 2, -abs(rho) * ((n - 2) / (1 - rho**2)) ** 0.5))


def correlations(frame: Frame) -> list[Row]:
    """Rank correlations of strength with rAULC, AUROC and accuracy, over all networks of a method."""
    rows = []
    for (data, method, measure), selected in Frame(points(frame)).group_by("dataset", "method", "measure"):
        line: Row = {"dataset": data, "method": method, "measure": measure, "networks": len(selected)}
        for name in ("rAULC", "auroc", "accuracy"):
            available = selected.where(**{name: lambda value: value is not None})
            try:
                line[f"ρ {name}"], line[f"p {name}"] = correlation(available.column("trial"), available.column(name))
            except Undefined:
                continue
        by_seed = [subset.correlation("trial", "rAULC") for _, subset in selected.group_by("data_seed")]
        if seed_rhos := [rho for rho in by_seed if rho is not None]:
            line["rising"] = f"{sum(rho > 0 for rho in seed_rhos)} of {len(seed_rhos)}"
        rows.append(line)
    return rows


def idle_strengths(frame: Frame, method: str, data: str) -> list[int]:
    """Numbers (`trial`) of the strengths whose bound has no effect on any network."""
    selected = frame.where(method=method, dataset=data).facts("at_bound")
    return [trial for (trial,), subset in selected.group_by("trial") if max(subset.column("value")) == 0]


@report("sensitivity/table")
def correlation_table(frame: Frame) -> Table:
    """Spearman's correlation of strength and rAULC with its p-value; of strength and accuracy beside it."""
    names = {"rAULC": "rAULC", "auroc": "AUROC", "accuracy": "accuracy"}
    columns = [
        column
        for name, label in names.items()
        for column in (
            Column(f"ρ, {label}", f"ρ {name}", format=decimals(2, sign=True)),
            Column(f"p, {label}", f"p {name}", format=NumberFormat(".1g")),
        )
    ]
    return table(
        correlations(frame),
        "Rank correlation of regularisation strength and rAULC",
        index=("method", "dataset", Index("measure", keep=True)),
        columns=[
            *columns[:2],
            Column("rising", field="rising"),
            *columns[2:],
            Column("networks", "networks", format=COUNT),
        ],
        bold="none",
        note="Spearman's ρ of strength over all networks of a method. The smallest bound (ddu, sngp, due) is the "
        "strongest; methods without a strength (erm, mc-dropout) have factors on weight decay. p: two-sided, as if "
        "networks of one seed were independent; rising: number of seeds with a positive ρ of rAULC. rAULC and AUROC of "
        "misclassification, clean and rotated images together; accuracy of clean images",
    )


@report("sensitivity/strengths")
def every_strength(frame: Frame) -> Table:
    """Accuracy, AUROC and rAULC at every strength, and the share of layers at their bound."""
    strength = {tuple(row[name] for name in KEY): row["value"] for row in frame.facts("strength")}
    accuracy = _clean_rows(frame)
    measured = Frame([*_pooled_rows(frame, "auroc"), *_pooled_rows(frame, "raulc")])
    bounded = frame.facts("at_bound")
    unscored = [row | {"measure": name} for name in measured.unique("measure") for row in [*accuracy, *bounded]]
    means = Frame([*measured, *unscored]).summarise(["dataset", "method", "measure", "trial", "metric"], ["data_seed"])
    rows = means.with_column("strength", lambda row: strength[tuple(row[name] for name in KEY)])
    columns = metrics("accuracy", "auroc", "raulc", titles={"accuracy": "clean accuracy ↑"})
    notes = ["Strengths of a method are compared; the weakest is first"]
    if bounded:
        notes.append("Layers at their bound: the share whose spectral norm is reduced; at 0 the bound has no effect")
    return table(
        rows.sort(lambda row: frame.unique("method").index(row["method"]), "measure", "trial"),
        "Metrics at every strength",
        index=("method", "dataset", Index("measure", keep=True), Index("strength", keep=True)),
        columns=[*columns, Column("layers at their bound", where={"metric": "at_bound"})] if bounded else columns,
        format=decimals(3),
        compare_within=("dataset", "method"),
        note=". ".join([*notes, *singular_gaussians(frame)]),
    )


@report("sensitivity/fig2")
def figure_2(frame: Frame) -> Blocks:
    """Accuracy of clean images against rAULC of all angles, one point for every network (Figure 2 of the paper)."""
    caption = "One point for every network: strengths × seeds."
    options = {}
    for (data, measure), selected in Frame(points(frame)).group_by("dataset", "measure"):
        name, key = _figure_name(frame, data, measure)
        labels = f"fig2-{key}", f"Accuracy and rAULC by {name}", caption
        options[name] = [scatter_figure(*labels, selected.rows, "accuracy", "rAULC", TIPS)]
    return Tabs("Measure of uncertainty", options)


@report("sensitivity/curves")
def curves(frame: Frame) -> Blocks:
    """rAULC against the strength, for every method."""
    caption = "One point for every network. A smaller bound (of ddu, sngp, due) is stronger."
    options = {}
    for (data, method), selected in Frame(points(frame)).group_by("dataset", "method"):
        name, key = _figure_name(frame, data, method)
        labels = f"curve-{key}", f"rAULC against the strength of {name}", caption
        by_measure = [point | {"name": point["measure"]} for point in selected]
        options[name] = [scatter_figure(*labels, by_measure, "strength", "rAULC", TIPS, log=True)]
    return Tabs("Method", options)


def _figure_name(frame: Frame, data: str, name: str) -> tuple[str, str]:
    """The name of a figure and its key, with the dataset if there are several."""
    available = frame.unique("dataset")
    several = len(available) > 1
    return (f"{name}, {dataset_label(data)}", f"{name}-{available.index(data)}") if several else (name, name)


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [correlation_table(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Correlation", "Rank correlation with the strength", [correlation_table(frame), curves(frame)]),
        ("Accuracy", "Accuracy against rAULC", [figure_2(frame)]),
        ("Strengths", "Metrics at every strength", [every_strength(frame)]),
    ]
    data = join_names([dataset_label(data) for data in frame.unique("dataset")])
    return story_of(study, f"Sensitivity to regularisation strength: rAULC on {data}", _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """Methods with a significant rank correlation of strength and rAULC, each by its first measure."""
    several_datasets = len(frame.unique("dataset")) > 1
    first = [rows.rows[0] for _, rows in Frame(correlations(frame)).group_by("dataset", "method")]
    several = len({row["measure"] for row in first}) > 1
    groups: dict[str, list[str]] = {}
    for row in first:
        name = row["method"] + (f" by {row['measure']}" if several else "") + _suffix(row["dataset"], several_datasets)
        if "p rAULC" not in row:
            groups.setdefault("Too few networks for a correlation", []).append(name)
        elif row["p rAULC"] >= LEVEL:
            groups.setdefault("No significant correlation", []).append(name)
        else:
            change = "higher" if row["ρ rAULC"] > 0 else "lower"
            rho = format_number(row["ρ rAULC"], 2)
            groups.setdefault(f"Correlated with a {change} rAULC", []).append(f"{name} (ρ {rho})")
    lead = [f"{plural(len(frame.unique('method')), 'method')}, {len(frame.unique('trial'))} strengths each."]
    lead += [f"{label}: {join_names(groups[label])}." for label in sorted(groups)]
    without_effect = {
        name + _suffix(data, several_datasets): len(idle_strengths(frame, name, data))
        for (name, data), _ in frame.facts("at_bound").group_by("method", "dataset")
    }
    if counts := [f"{count} of {name}" for name, count in without_effect.items() if count]:
        text = join_names(counts)
        lead.append(f"Strengths whose bound has no effect on any network: {text}; the correlations include them.")
    accuracies = [rows.column() for _, rows in _clean_rows(frame).group_by("dataset")]
    if lost := sum(value < max(values) / 2 for values in accuracies for value in values):
        lead.append(
            f"{plural(lost, 'network')} of {sum(map(len, accuracies))} with less than half of the best clean accuracy; "
            "the correlations include them."
        )
    return lead


def _suffix(data: str, joined: bool) -> str:
    """The dataset of a method, if studies of several were joined."""
    return f" on {dataset_label(data)}" if joined else ""
