"""Average five networks, calibrate the ensemble, and compare it with one network."""

import numpy as np

from nescio import Predictions, compare, scorecard, stack
from nescio.analysis.calibration import temperature


def network(labels: np.ndarray, seed: int) -> Predictions:
    """Simulated outputs of one overconfident network; the errors depend on the seed."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), 6))
    return Predictions(labels=labels, logits=4 * (1.5 * np.eye(6)[labels] + noise))


rng = np.random.default_rng(0)
val, test = rng.integers(0, 6, 500), rng.integers(0, 6, 1000)
members = [network(test, seed) for seed in range(5)]
ensemble, ensemble_val = stack(members), stack([network(val, seed + 10) for seed in range(5)])

scale = temperature(ensemble_val)
print(f"temperature of the ensemble: {scale.temperature:.2f}")
card = scorecard(ensemble, val=ensemble_val)
print(f"ECE {card.value('ece'):.3f} raw, {card.value('ece', calibrated=True):.3f} calibrated")

comparison = compare({"one network": members[0], "ensemble": ensemble}, bootstrap=500)
for row in comparison.rows:
    if row["metric"] in ("nll", "auroc"):
        verdict = "best or not significantly different" if row["best"] else "significantly worse"
        print(
            f"{row['metric']:6s} {row['method']:12s} {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}] {verdict}"
        )
