"""Time of a paired bootstrap of two models and four metrics, against a loop of scikit-learn's AUROC of one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _table import best_of, show

from nescio import Predictions, metrics
from nescio.analysis import bootstrap as _bootstrap
from nescio.analysis.comparison import compare
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.resamplers import RankingResampler, Resampler, SummaryResampler, have_numba
from nescio.measures._softmax_pass import summary

N, CLASSES, RESAMPLES, SEED = 50_000, 10, 1000, 0
METRICS = ("auroc", "aurc", "accuracy", "nll")
PEER_SHARE = 100  # number of resamples of the peer's loop, whose time is scaled to RESAMPLES


def models() -> dict[str, Predictions]:
    rng = np.random.default_rng(1)
    labels = rng.integers(CLASSES, size=N)
    predictions_of_model = {}
    for name, quality in (("a", 2.5), ("b", 2.4)):
        logits = rng.normal(size=(N, CLASSES)) + quality * np.eye(CLASSES)[labels]
        predictions_of_model[name] = Predictions(logits=logits.astype(np.float32), labels=labels)
    return predictions_of_model


def resamplers(all_predictions: dict[str, Predictions], names: tuple[str, ...]) -> list[Resampler]:
    specs = [parse_metric(name) for name in names]
    results: list[Resampler] = []
    for predictions in all_predictions.values():
        outcomes = summary(predictions).outcomes()
        results.append(SummaryResampler(outcomes, [metric for metric in specs if not metric.ranks]))
        u, ranking = summary(predictions).u["msp"], [metric for metric in specs if metric.ranks]
        results.append(RankingResampler(u, outcomes.wrong, ranking))
    return results


def check(
    all_predictions: dict[str, Predictions], samples: list[np.ndarray], resamplers_of_models: list[Resampler]
) -> None:
    """Check that resampled values equal those of scikit-learn and of the array metrics on repeated rows."""
    from sklearn.metrics import log_loss, roc_auc_score

    for number in range(3):
        counts = _bootstrap.draw_counts(N, SEED, number)
        rows = np.repeat(np.arange(N), counts)
        for model, predictions in enumerate(all_predictions.values()):
            outcomes, u = summary(predictions).outcomes(), summary(predictions).u["msp"]
            results = {}
            for resampler, values in zip(
                resamplers_of_models[2 * model : 2 * model + 2], samples[2 * model : 2 * model + 2], strict=True
            ):
                results |= dict(zip([metric.label for metric in resampler.metrics], values[number], strict=True))
            assert abs(results["auroc"] - roc_auc_score(outcomes.wrong[rows], u[rows])) < 1e-12
            assert abs(results["aurc"] - metrics.aurc(u[rows], outcomes.wrong[rows])) < 1e-12
            assert abs(results["accuracy"] - outcomes.correct[rows].mean()) < 1e-12
            logits = predictions.logits[rows, 0].astype(np.float64)
            probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            assert abs(results["nll"] - log_loss(predictions.labels[rows], probs)) < 1e-9


def run() -> list[dict[str, Any]]:
    from sklearn.metrics import roc_auc_score

    all_predictions = models()
    u = [summary(predictions).u["msp"] for predictions in all_predictions.values()]
    wrong = [summary(predictions).outcomes().wrong for predictions in all_predictions.values()]
    draws = [_bootstrap.draw_counts(N, SEED, number) for number in range(PEER_SHARE)]
    rows = [np.repeat(np.arange(N), counts) for counts in draws]

    def peer() -> list[float]:
        """Compute the AUROC of one model on rows that were resampled before."""
        return [float(roc_auc_score(wrong[0][sample], u[0][sample])) for sample in rows]

    resamplers_of_models = resamplers(all_predictions, METRICS)
    ours_s, samples = best_of(lambda: _bootstrap.resample(resamplers_of_models, N, RESAMPLES, SEED, numba=False))
    check(all_predictions, samples, resamplers_of_models)
    peer_s, values = best_of(peer)
    assert np.allclose(samples[1][:PEER_SHARE, 0], values, rtol=0, atol=1e-12)
    peer_s *= RESAMPLES / PEER_SHARE
    whole_s, _ = best_of(lambda: compare(all_predictions, metrics=METRICS, resamples=RESAMPLES))
    all_s, result = best_of(lambda: compare(all_predictions, resamples=RESAMPLES), repeats=1)

    work = f"paired bootstrap, {RESAMPLES} resamples × {N:,} rows, {len(METRICS)} metrics, 2 models"
    name = "scikit-learn AUROC alone, one model, in a loop"

    def row(work: str, seconds: float, target: str, note: str) -> dict[str, Any]:
        ratio = peer_s / seconds
        return {
            "work": work,
            "peer": name,
            "peer_s": peer_s,
            "ours_s": seconds,
            "ratio": ratio,
            "target": target,
            "note": note,
        }

    results = [
        row(work, ours_s, "≥ 12 ×", "NumPy; the peer is timed on 100 resamples, drawing not counted"),
        row(f"{work}, `compare`", whole_s, "≥ 12 ×", "with the sorts, intervals and p-values"),
        row(f"`compare`, all {len(result.rows) // 2} metrics, 2 models", all_s, "", "targets say nothing of it"),
    ]
    if have_numba():
        fast_resamplers = resamplers(all_predictions, METRICS)
        _bootstrap.resample(fast_resamplers, N, 2, SEED, numba=True)  # compiles the function
        fast_s, fast = best_of(lambda: _bootstrap.resample(fast_resamplers, N, RESAMPLES, SEED, numba=True))
        assert all(np.allclose(a, b, rtol=1e-11, atol=0) for a, b in zip(samples, fast, strict=True))
        results.append(
            row(f"{work}, numba", fast_s, "", f"used above {_bootstrap.NUMBA_WORK:.0e} rows × resamples × rankings")
        )
    return results


if __name__ == "__main__":
    show(run())
