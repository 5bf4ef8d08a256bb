"""Evaluate the uncertainty of a model from its outputs."""

import numpy as np

from nescio import Predictions, measures, metrics, scorecard

rng = np.random.default_rng(0)
labels = rng.integers(0, 10, 2000)
logits = 3 * np.eye(10)[labels] + 2 * rng.normal(size=(2000, 10))  # replace by your model's outputs

predictions = Predictions(labels=labels, logits=logits)
card = scorecard(predictions)
print(card)
print(f"accuracy {card.value('accuracy'):.3f}, ECE {card.value('ece'):.3f}")

u = measures.entropy(predictions)  # (n,), higher = more uncertain
wrong = logits.argmax(1) != labels
print(f"AUROC of errors: {metrics.auroc(u, wrong):.3f}")
print(f"coverage at a selective accuracy of 95 %: {metrics.sac(u, wrong, 0.95):.3f}")
