"""I have a model's outputs: what do they say about its uncertainty?"""

import numpy as np

from nescio import Predictions, measures, metrics, scorecard

rng = np.random.default_rng(0)
labels = rng.integers(0, 10, 2000)
logits = 3 * np.eye(10)[labels] + 2 * rng.normal(size=(2000, 10))  # your model's outputs go here

predictions = Predictions(labels=labels, logits=logits)
card = scorecard(predictions)
print(card)
print(f"accuracy {card.value('accuracy'):.3f}, ECE {card.value('ece'):.3f}")

u = measures.entropy(predictions)  # (n,), higher = less sure
wrong = logits.argmax(1) != labels
print(f"a wrong answer is less sure than a right one in {100 * metrics.auroc(u, wrong):.0f} of 100 pairs")
print(f"to be right 95 % of the time it may answer {100 * metrics.sac(u, wrong, 0.95):.0f} % of the questions")
