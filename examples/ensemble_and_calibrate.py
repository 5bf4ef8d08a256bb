"""Five networks are better than one: stack them, calibrate them, compare them."""

import numpy as np

from nescio import Predictions, compare, scorecard, stack
from nescio.analysis.calibration import temperature


def network(labels: np.ndarray, seed: int) -> Predictions:
    """Stands for a trained network: the same images, other mistakes, too sure of itself."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), 6))
    return Predictions(labels=labels, logits=4 * (1.5 * np.eye(6)[labels] + noise))


rng = np.random.default_rng(0)
val, test = rng.integers(0, 6, 500), rng.integers(0, 6, 1000)
members = [network(test, seed) for seed in range(5)]
ensemble, ensemble_val = stack(members), stack([network(val, seed + 10) for seed in range(5)])

scale = temperature(ensemble_val)
print(f"the ensemble wants a temperature of {scale.temperature:.2f}")
card = scorecard(ensemble, val=ensemble_val)
print(f"ECE {card.value('ece'):.3f} raw, {card.value('ece', calibrated=True):.3f} calibrated")

comparison = compare({"one network": members[0], "ensemble": ensemble}, resamples=500)
for row in comparison.rows:
    if row["metric"] in ("nll", "auroc"):
        best = "cannot be told from the best" if row["best"] else "behind"
        print(f"{row['metric']:6s} {row['method']:12s} {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}] {best}")
