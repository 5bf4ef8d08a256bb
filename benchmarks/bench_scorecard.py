"""Time of the scorecard of one large file, compared with other libraries that compute some of its numbers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tracemalloc
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _table import best_of, show

from nescio import Predictions, metrics
from nescio.analysis.results import Scorecard
from nescio.analysis.scorecard import scorecard
from nescio.measures._softmax_pass import mean_probs, prob_blocks
from nescio.metrics._calibration import classwise_ece_from_blocks

N, CLASSES, TIMES = 50_000, 1_000, 5
MEASURES = ("msp", "gap", "entropy", "max_logit", "energy", "dempster_shafer")


def large_file() -> tuple[np.ndarray, np.ndarray]:
    """Logits like those of an ImageNet network: about four of five predictions are correct, and most are confident."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=N)
    logits = rng.standard_normal((N, CLASSES), dtype=np.float32) * 1.5
    logits[np.arange(N), labels] += rng.gamma(6, 1.6, N).astype(np.float32)
    return logits, labels


def torch_uncertainty(*names: str) -> list[Any]:
    """Metric classes of torch-uncertainty, imported without the trainer that its package requires."""
    package = "torch_uncertainty"
    for suffix in ("", ".metrics", ".metrics.classification"):
        if package + suffix not in sys.modules:
            module = types.ModuleType(package + suffix)
            spec = importlib.util.find_spec(package + suffix)
            assert spec is not None
            module.__path__ = list(spec.submodule_search_locations or ())
            sys.modules[package + suffix] = module
    modules = (name.rpartition(".") for name in names)
    return [getattr(importlib.import_module(f"{package}.metrics.classification.{m}"), c) for m, _, c in modules]


def usual(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute five numbers with softmax, scikit-learn and TorchMetrics."""
    import torch
    from sklearn.metrics import log_loss, top_k_accuracy_score
    from torchmetrics.functional.classification import binary_auroc, multiclass_calibration_error

    probs = torch.softmax(torch.from_numpy(logits), 1)
    target, classes = torch.from_numpy(labels), np.arange(CLASSES)
    confidence, predicted = probs.max(1)
    return {
        "nll": log_loss(labels, probs.numpy(), labels=classes),
        "accuracy": top_k_accuracy_score(labels, probs.numpy(), k=1, labels=classes),
        "accuracy@5": top_k_accuracy_score(labels, probs.numpy(), k=5, labels=classes),
        "ece": float(multiclass_calibration_error(probs, target, CLASSES, n_bins=15, validate_args=False)),
        "auroc": float(binary_auroc(1 - confidence, (predicted != target).long(), validate_args=False)),
    }


def uncertainty(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute seven numbers with torch-uncertainty, including its softmax."""
    import torch

    aurc, augrc, brier, nll, coverage, ece, fpr = torch_uncertainty(
        "risk_coverage.AURC",
        "risk_coverage.AUGRC",
        "brier_score.BrierScore",
        "categorical_nll.CategoricalNLL",
        "risk_coverage.CovAtxRisk",
        "calibration.calibration_error.CalibrationError",
        "fpr.FPR95",
    )
    probs, target_labels = torch.softmax(torch.from_numpy(logits), 1), torch.from_numpy(labels)
    metrics_of_peer = {
        "aurc": aurc(),
        "augrc": augrc(),
        "brier": brier(num_classes=CLASSES),
        "nll": nll(),
        "sac@0.95": coverage(risk_threshold=0.05),
        "ece": ece(task="multiclass", num_classes=CLASSES, num_bins=15, validate_args=False),
    }
    values = {}
    for name, metric in metrics_of_peer.items():
        metric.update(probs, target_labels)
        values[name] = float(metric.compute())
    wrong = fpr(pos_label=1)
    confidence, predicted = probs.max(1)
    wrong.update(1 - confidence, (predicted != target_labels).long())
    values["fpr_at_tpr@0.95"] = float(wrong.compute())
    return values


def value(card: Scorecard, name: str) -> float:
    ranks = name.partition("@")[0] in ("auroc", "aurc", "augrc", "sac", "fpr_at_tpr")
    return card.value(name, "msp" if ranks else None)


def check_usual(card: Scorecard, peer: dict[str, float]) -> None:
    """Check the numbers: the peers sum in float32, and TorchMetrics has a separate bin for a confidence of 1."""
    for name, number in peer.items():
        assert abs(value(card, name) - number) < 1e-5, (name, value(card, name), number)


def check_uncertainty(card: Scorecard, peer: dict[str, float], first_error: float) -> None:
    """Check the numbers: the peer uses float32, breaks ties arbitrarily, and integrates by trapezoids over [1/n, 1]:

    peer = (n·ours - (first + last)/2) / (n - 1), where first and last are the ends of the curve.
    """
    last_error = 1 - card.value("accuracy")
    for name, number in peer.items():
        ours = value(card, name)
        if name in ("aurc", "augrc"):
            curve_start = first_error if name == "aurc" else first_error / N
            ours = (N * ours - (curve_start + last_error) / 2) / (N - 1)
        assert abs(ours - number) < 1e-4, (name, ours, number)


def check_float64(card: Scorecard, logits: np.ndarray, labels: np.ndarray) -> float:
    """The largest difference of any number on the card from SciPy's float64 softmax and the array metrics."""
    from scipy.special import logsumexp, softmax

    columns: dict[str, list[np.ndarray]] = {name: [] for name in MEASURES}
    parts = []
    for start in range(0, N, 5000):
        z, y = logits[start : start + 5000].astype(np.float64), labels[start : start + 5000]
        p = softmax(z, axis=1)
        ordered, log_sum = np.sort(p, axis=1), logsumexp(z, axis=1)
        columns["msp"].append(ordered[:, :-1].sum(1))
        columns["gap"].append(ordered[:, -2] - ordered[:, -1])
        columns["entropy"].append(-(p * np.log(p)).sum(1))
        columns["max_logit"].append(-z.max(1))
        columns["energy"].append(-log_sum)
        columns["dempster_shafer"].append(CLASSES / (CLASSES + np.exp(log_sum)))
        parts.append(metrics.outcomes(p, y))
    fields = ("predicted", "correct", "confidence", "uncertainty", "log_loss", "brier", "rank", "zero")
    outcomes = metrics.Outcomes(CLASSES, *(np.concatenate([getattr(a, f) for a in parts]) for f in fields))
    u = {name: np.concatenate(column) for name, column in columns.items()}
    largest_error = 0.0
    for row in card.rows:
        name, _, parameters = row["metric"].partition("@")
        function = metrics.registry[name].function
        values = metrics.registry[name].values
        options = {option: type(defaults[0])(parameters) for option, defaults in values.items()} if parameters else {}
        if row["measure"] not in (None, *u) or not metrics.registry[name].prepared:
            continue  # scores and metrics without an independent formula
        arguments = (outcomes,) if row["measure"] is None else (u[row["measure"]], ~outcomes.correct)
        largest_error = max(largest_error, abs(row["value"] - function(*arguments, **options)))
    assert largest_error < 1e-7, largest_error
    return largest_error


def memory(logits: np.ndarray, labels: np.ndarray) -> float:
    """Peak memory beyond the input, in megabytes."""
    predictions = Predictions(logits=logits, labels=labels)
    tracemalloc.start()
    scorecard(predictions, classwise=False)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert peak < 64, peak
    return peak


def run() -> list[dict[str, Any]]:
    warnings.filterwarnings("ignore")
    logits, labels = large_file()
    fresh = iter([Predictions(logits=logits, labels=labels) for _ in range(TIMES)])  # without cached summaries
    ours_s, card = best_of(lambda: scorecard(next(fresh), classwise=False), TIMES)
    checked_s, _ = best_of(lambda: scorecard(Predictions(logits=logits, labels=labels), classwise=False), TIMES)
    usual_s, usual_values = best_of(lambda: usual(logits, labels))
    check_usual(card, usual_values)
    uncertainty_s, peer_values = best_of(lambda: uncertainty(logits, labels), TIMES)
    most_confident = int(np.argmin(card.raw.uncertainty["msp"]))
    check_uncertainty(card, peer_values, float(card.raw.wrong[most_confident]))
    largest_error, peak = check_float64(card, logits, labels), memory(logits, labels)

    predictions = Predictions(logits=logits, labels=labels)
    class_s, classwise = best_of(lambda: classwise_ece_from_blocks(prob_blocks(predictions)))
    assert abs(classwise - metrics.classwise_ece(mean_probs(predictions), labels)) < 1e-12

    def row(work: str, peer: str, peer_s: float | None, seconds: float, target: str, note: str) -> dict[str, Any]:
        ratio = None if peer_s is None else peer_s / seconds
        names = ("work", "peer", "peer_s", "ours_s", "ratio", "target", "note")
        return dict(zip(names, (work, peer, peer_s, seconds, ratio, target, note), strict=True))

    work = f"scorecard {N:,} × {CLASSES:,} float32, {len(card.rows)} numbers"
    usual_name, uncertainty_name = "softmax, scikit-learn, TorchMetrics: 5 numbers", "torch-uncertainty: 7 numbers"
    note = f"{peak:.0f} MB beyond the input (≤ 64), {largest_error:.0e} from float64 (≤ 1e-7)"
    also = "with the checks of Predictions(…)"
    return [
        row(work, usual_name, usual_s, ours_s, "≥ 25 ×", note),
        row(work, uncertainty_name, uncertainty_s, ours_s, "≥ 5 ×", note),
        row(work, usual_name, usual_s, checked_s, "≥ 25 ×", also),
        row(work, uncertainty_name, uncertainty_s, checked_s, "≥ 5 ×", also),
        row("class-wise ECE of the same file", "", None, class_s, "", "apart"),
    ]


if __name__ == "__main__":
    show(run())
