"""Two examples that are worked out, not measured: what each metric makes of made-up models (appendices A and C)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nescio import metrics
from nescio.protocols.pretrained import USUAL, figure_name, wide
from nescio.report.blocks import Figure
from nescio.report.charts import KEPT, WRONG, models_figure
from nescio.report.frame import Frame
from nescio.report.named import report
from nescio.report.tables import Table, decimals
from nescio.rows import Row

EXAMPLE = 1000  # rows of the examples: every share in them is a whole number of rows
CONSTANT = {"model A": 0.9, "model B": 0.5}  # error rates of two models that are always equally sure (appendix C)
Curve = tuple[Any, Any]  # coverages, risks


@report("selective/investment")
def investment(frame: Frame | None = None) -> Table:
    """The investment example (§1, appendix A): what each metric says of a sure model and of one that knows its errors.

    Model A is right in 95 % and always 0.95 sure; model B is right in 40 %, 0.6 sure when it is and 0.4 when it is not.
    """
    rows = []
    for name, accuracy, sure, unsure in (("model A", 0.95, 0.95, 0.95), ("model B", 0.40, 0.6, 0.4)):
        right = np.arange(EXAMPLE) < round(EXAMPLE * accuracy)
        top = np.where(right, sure, unsure)
        probs = np.stack([top, (1 - top) / 2, (1 - top) / 2], axis=1)
        answers, ranked = metrics.answers(probs, np.where(right, 0, 1)), metrics.Ranking(1 - top, ~right)
        rows.append(
            {
                "model": name,
                "accuracy ↑": metrics.accuracy(answers),
                "AUROC ↑": metrics.auroc(ranked),
                "SAC@0.96 ↑": metrics.sac(ranked, accuracy=0.96),
                "AURC ↓": metrics.aurc(ranked),
                "E-AURC ↓": metrics.e_aurc(ranked),
                "NLL ↓": metrics.nll(answers),
                "Brier ↓": metrics.brier(answers),
                "ECE ↓": metrics.ece(answers),
            }
        )
    note = (
        f"{EXAMPLE:,} rows, three classes. Model B knows exactly when it is wrong: AUROC, SAC and E-AURC see it, the "
        "others prefer model A. The paper prints 0.12 for model B's AURC, which no definition gives"
    )
    title = "Two investment advisers (appendix A)"
    return wide(rows, title, "model", form=decimals(4), note=note, explain=("auroc", "sac"))


@report("selective/e-aurc")
def e_aurc(frame: Frame | None = None) -> Table:
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
    return wide(rows, "E-AURC depends on the accuracy (appendix C)", "model", form=decimals(4), note=note)


def constant(risk: float, best: bool) -> metrics.Ranking:
    """The ranking of a model that is equally sure of every answer, or of its best possible version."""
    wrong = np.arange(EXAMPLE) >= round(EXAMPLE * (1 - risk))
    return metrics.Ranking(wrong if best else np.zeros(EXAMPLE), wrong)


@report("selective/fig11")
def fig_11(frame: Frame | None = None) -> Figure:
    """Risk–coverage curves of two models that are always equally sure (Figure 11)."""
    return _constant_figure("fig11", False, "Two models that cannot rank their answers")


@report("selective/fig12")
def fig_12(frame: Frame | None = None) -> Figure:
    """Risk–coverage curves of the best possible versions of those two models (Figure 12)."""
    return _constant_figure("fig12", True, "The same two models with the best possible order")


def _constant_figure(key: str, best: bool, title: str) -> Figure:
    curves = {
        f"{name}, right in {100 * (1 - risk):g} %": metrics.risk_coverage(constant(risk, best))
        for name, risk in CONSTANT.items()
    }
    return curves_block(key, title, f"{figure_name(key)}: an example that is worked out, not measured.", curves)


def curves_block(key: str, title: str, words: str, curves: Mapping[str, Curve]) -> Figure:
    """Risk–coverage curves of models over one another, and their points for a table."""
    plain = {name: (list(map(float, at)), list(map(float, risk))) for name, (at, risk) in curves.items()}
    points: list[Row] = [
        {"model": name, KEPT: coverage, WRONG: risk}
        for name, curve in plain.items()
        for coverage, risk in zip(*curve, strict=True)
    ]
    shown = {name: {USUAL: curve} for name, curve in plain.items()}
    return Figure(key, title, words, lambda: models_figure(shown, USUAL), points)
