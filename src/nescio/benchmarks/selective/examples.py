"""Two examples that are worked out, not measured: what each metric makes of made-up models (appendices A and C)."""

from __future__ import annotations

import math

import numpy as np

from nescio import metrics
from nescio.analysis.metric_specs import parse_metric
from nescio.report.blocks import Figure
from nescio.report.charts.curves import curves_figure
from nescio.report.frame import Frame
from nescio.report.labels import metric_label
from nescio.report.named_reports import report
from nescio.report.tables import Table, decimals, table_from_records

EXAMPLE = 1000  # rows of the examples: every share in them is a whole number of rows
CONSTANT = {"model A": 0.9, "model B": 0.5}  # error rates of two models that are always equally sure (appendix C)
RANKING = ("auroc", "sac@0.96", "aurc", "e_aurc")
SHOWN = ("accuracy", *RANKING, "nll", "brier", "ece")


@report("selective/investment")
def investment(_: Frame | None = None) -> Table:
    """The investment example (§1, appendix A): what each metric says of a sure model and of one that knows its errors.

    Model A is right in 95 % and always 0.95 sure; model B is right in 40 %, 0.6 sure when it is and 0.4 when it is not.
    """
    rows = []
    for name, accuracy, high, low in (("model A", 0.95, 0.95, 0.95), ("model B", 0.40, 0.6, 0.4)):
        right = np.arange(EXAMPLE) < round(EXAMPLE * accuracy)
        top = np.where(right, high, low)
        probs = np.stack([top, (1 - top) / 2, (1 - top) / 2], axis=1)
        answers, ranked = metrics.outcomes(probs, np.where(right, 0, 1)), metrics.Ranking(1 - top, ~right)
        values = {metric: parse_metric(metric)(ranked if metric in RANKING else answers) for metric in SHOWN}
        rows.append({"model": name} | {metric_label(metric): value for metric, value in values.items()})
    note = (
        f"{EXAMPLE:,} rows, three classes. Model B knows exactly when it is wrong: AUROC, SAC and E-AURC see it, the "
        "others prefer model A. The paper prints 0.12 for model B's AURC, which no definition gives"
    )
    return table_from_records(
        rows, "Two investment advisers", "model", format=decimals(4), note=note, explain=("auroc", "sac")
    )


@report("selective/e-aurc")
def e_aurc(_: Frame | None = None) -> Table:
    """The E-AURC example (appendix C): two models that cannot rank, and what E-AURC makes of their accuracies."""
    rows = []
    for name, risk in CONSTANT.items():
        flat, best = constant(risk, False), constant(risk, True)
        rows.append(
            {
                "model": name,
                "accuracy": 1 - risk,
                "AUROC": metrics.auroc(flat),
                "AURC": metrics.aurc(flat),
                "best AURC": metrics.aurc(best),
                "its limit": risk + (1 - risk) * math.log(1 - risk),
                "E-AURC": metrics.e_aurc(flat),
                "E-AURC in the paper": risk - risk**2 / 2,
            }
        )
    note = (
        f"{EXAMPLE:,} rows. Neither model ranks its answers at all, and E-AURC still tells them apart: it depends on "
        "the accuracy. The paper takes r²/2 for the best AURC, which is not the area under that curve; with exact "
        "numbers E-AURC prefers model A, not model B"
    )
    return table_from_records(rows, "E-AURC depends on the accuracy", "model", format=decimals(4), note=note)


def constant(risk: float, best: bool) -> metrics.Ranking:
    """The ranking of a model that is equally sure of every answer, or of its best possible version."""
    wrong = np.arange(EXAMPLE) >= round(EXAMPLE * (1 - risk))
    return metrics.Ranking(wrong if best else np.zeros(EXAMPLE), wrong)


def constant_figure(_: Frame | None = None, *, name: str, best: bool, title: str) -> Figure:
    """Risk–coverage curves of the two models that are always equally sure, or of their best possible versions."""
    curves = {
        f"{model}, right in {100 * (1 - risk):g} %": metrics.risk_coverage(constant(risk, best))
        for model, risk in CONSTANT.items()
    }
    return curves_figure(name, title, "An example that is worked out, not measured.", curves)
