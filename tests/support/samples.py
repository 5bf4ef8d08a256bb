"""Made-up scorecards and comparisons that the tests of reports share."""

from __future__ import annotations

from typing import Any

import numpy as np

from nescio import metrics
from nescio.analysis.curves import ScoreSet
from nescio.analysis.results import Comparison, Scorecard
from nescio.rows import COLUMNS

MEASURES = ("msp", "entropy", "max_logit")
RANKED = ("auroc", "aurc", "sac@0.95", "selective_risk@0.8")


def row(metric: str, value: float, measure: str | None = None, **more: Any) -> dict[str, Any]:
    base = dict.fromkeys(COLUMNS) | {"calibrated": False, "split": "test", "n": 400}
    return base | {"metric": metric, "value": value, "measure": measure} | more


def sample_rows() -> list[dict[str, Any]]:
    rows = []
    for calibrated in (False, True):
        for metric, value in {
            "accuracy": 0.9,
            "nll": 0.4 - 0.1 * calibrated,
            "brier": 0.2,
            "ece": 0.08 - 0.05 * calibrated,
        }.items():
            rows.append(row(metric, value, calibrated=calibrated))
        for at, measure in enumerate(MEASURES):
            for metric in RANKED:
                rows.append(row(metric, 0.5 + 0.1 * at + 0.01 * calibrated, measure, calibrated=calibrated))
            rows.append(row("in_as_in", 0.95, measure, calibrated=calibrated))
            for split in ("letters", "noise"):
                for metric in ("auroc", "aupr", "fpr_at_tpr@0.95", "out_as_out"):
                    rows.append(row(metric, 0.6 + 0.1 * at, measure, split=split, calibrated=calibrated))
    rows.append(row("temperature", 1.75, calibrated=True, split="val"))
    rows.append(row("recall_at_1", 0.85))
    rows += [row("r_auroc", 0.7, measure) for measure in MEASURES]
    rows += [row("human_alignment", 0.3, measure) for measure in MEASURES]
    return rows


def sample_card(seed: int = 0, n: int = 400, name: str = "digits-svm") -> Scorecard:
    """A card as the scorecard makes it: rows, reasons, notes, and curves of simulated scores."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.1
    u = {m: np.clip(rng.beta(1, 6, n) + wrong * rng.beta(2, 4, n), 0, 1) * (1 + at) for at, m in enumerate(MEASURES)}
    out = {
        m: {s: np.clip(rng.beta(3, 4, n), 0, 1) * (1 + at) for s in ("letters", "noise")}
        for at, m in enumerate(MEASURES)
    }
    probs = np.column_stack([1 - u["msp"] / 2, u["msp"] / 2])
    labels = wrong.astype(int)
    answers = metrics.outcomes(probs, labels)
    softer = metrics.outcomes(np.column_stack([0.02 + 0.96 * probs[:, 0], 0.02 + 0.96 * probs[:, 1]]), labels)
    raw = ScoreSet(u, out, wrong, answers)
    calibrated = ScoreSet(u, {}, wrong, softer)
    reasons = [
        {"measure": "energy", "metric": None, "split": "test", "reason": "The file contains log-probabilities."},
        {
            "measure": "dempster_shafer",
            "metric": None,
            "split": "test",
            "reason": "The file contains log-probabilities.",
        },
        {"measure": None, "metric": "recall_at_1", "split": "test", "reason": "No embeddings."},
    ]
    notes = ["3 of 400 rows give their true class probability 0."]
    return Scorecard(name, sample_rows(), reasons, notes, raw, calibrated)


def sample_comparison() -> Comparison:
    rows, differences = [], []
    for metric, measure, values in (
        ("accuracy", None, (0.9, 0.89, 0.8)),
        ("auroc", "msp", (0.91, 0.88, 0.87)),
        ("aurc", "msp", (0.02, 0.021, 0.05)),
    ):
        for rank, (model, value) in enumerate(zip(("forest", "logistic", "tree"), values, strict=True), start=1):
            interval = {"low": value - 0.01, "high": value + 0.012}
            rows.append(row(metric, value, measure, method=model, rank=rank, best=rank < 3, **interval))
            if rank > 1:
                found = {
                    "model": model,
                    "best": "forest",
                    "measure": measure,
                    "metric": metric,
                    "p": 0.2,
                    "adjusted": 0.4,
                }
                differences.append(found | {"difference": value - values[0], "low": -0.03, "high": 0.01})
    models = ("forest", "logistic", "tree")
    return Comparison(models, 400, 1000, 0.95, 0, rows=rows, differences=differences)
