"""Time of ranking metrics of 10⁴ to 10⁷ rows, and of counts of float16 scores, compared with a sort."""

from __future__ import annotations

from typing import Any

import numpy as np
from _table import best_of

from nescio.metrics import Float16Counts, Ranking, auroc, registry

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
FILE, PEER, STREAMED = 50_000, 1_000_000, (1_000_000, 20_000_000)  # rows
NAMES = [*(m.name for m in registry.parts() if m.prepared and "ranking" in m.kinds), "risk_coverage"]


def rows_of(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    u = rng.random(n)
    return u, rng.random(n) < u / 3


def every_metric(ranking: Ranking) -> list[float]:
    """Compute all scalar ranking metrics for all values of their parameters, from one sort."""
    values = []
    for metric in registry.parts():
        if metric.prepared and "ranking" in metric.kinds:
            options = [
                {key: value} for key, options_of_metric in metric.values.items() for value in options_of_metric
            ] or [{}]
            values += [metric.function(ranking, **option) for option in options]
    return values


def times_of(n: int) -> int:
    return max(3, 300_000 // n)


def curve(seconds: dict[int, float]) -> str:
    return ", ".join(f"{n:.0e}: {s / n * 1e9:.0f}" for n, s in seconds.items()) + " ns a row"


def growth() -> list[dict[str, Any]]:
    data = {n: rows_of(n) for n in SIZES}
    functions = {name: registry[name].function for name in NAMES}
    functions["all metrics, one sort"] = lambda u, wrong: every_metric(Ranking(u, wrong))
    rows = []
    for name, metric in functions.items():
        seconds = {n: best_of(lambda metric=metric, n=n: metric(*data[n]), times_of(n))[0] for n in SIZES}
        slope = np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0]
        rows.append(
            {
                "work": f"growth of {name}",
                "peer": "",
                "peer_s": None,
                "ours_s": seconds[SIZES[-1]],
                "ratio": float(slope),
                "target": "near-linear",
                "note": f"ratio = exponent of growth; {curve(seconds)}",
            }
        )
    return rows


def against_scikit_learn() -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    u, wrong = rows_of(PEER)
    peer_s, theirs = best_of(lambda: roc_auc_score(wrong, u))
    ours_s, ours = best_of(lambda: auroc(u, wrong), 7)
    assert abs(ours - theirs) < 1e-12
    return {
        "work": f"AUROC, {PEER:,} rows",
        "peer": "scikit-learn roc_auc_score",
        "peer_s": peer_s,
        "ours_s": ours_s,
        "ratio": peer_s / ours_s,
        "target": "",
        "note": "sort included",
    }


def one_file() -> dict[str, Any]:
    all_predictions = [rows_of(FILE + i) for i in range(6)]
    ours_s, _ = best_of(lambda: [every_metric(Ranking(u, wrong)) for u, wrong in all_predictions], 9)
    return {
        "work": f"6 measures × all ranking metrics, {FILE:,} rows",
        "peer": "",
        "peer_s": None,
        "ours_s": ours_s,
        "ratio": None,
        "target": "≲ 0.04 s",
        "note": "one thread",
    }


def streaming() -> list[dict[str, Any]]:
    rows = []
    for n in STREAMED:
        u, wrong = rows_of(n)
        scores = u.astype(np.float16)
        sortable = scores.astype(np.float32)  # NumPy sorts float32 faster than float16
        peer_s, _ = best_of(lambda sortable=sortable: np.sort(sortable))
        ours_s, counts = best_of(lambda scores=scores, wrong=wrong: Float16Counts.count(scores, wrong), 5)
        assert auroc(counts.ranking()) == auroc(scores, wrong)
        rows.append(
            {
                "work": f"counts, {n:.0e} rows float16",
                "peer": "np.sort of the scores alone",
                "peer_s": peer_s,
                "ours_s": ours_s,
                "ratio": peer_s / ours_s,
                "target": "≥ 100 M rows/s",
                "note": f"{n / ours_s / 1e6:.0f} M rows/s, exact",
            }
        )
    return rows


def run() -> list[dict[str, Any]]:
    return [one_file(), against_scikit_learn(), *streaming(), *growth()]


if __name__ == "__main__":
    from _table import show

    show(run())
