"""Add a metric and a measure: a registered function appears on every scorecard."""

import numpy as np

from nescio import Predictions, scorecard
from nescio.measures import measure
from nescio.metrics import metric
from nescio.testing import check_measure, check_metric


@metric("ranking", better="higher")
def accuracy_of_confident_half(u, wrong):
    """Accuracy of the most confident half of the rows, ties averaged."""
    from nescio.metrics import selective_risk

    return 1 - selective_risk(u, wrong, 0.5)


@measure("plain", needs=("logits",))  # without logits it is not called
def second_probability(predictions):
    """Probability of the second most probable class."""
    from nescio.measures import gap, msp

    return 1 - msp(predictions) + gap(predictions)


print(*check_metric("accuracy_of_confident_half"), sep="\n")
print(*check_measure("second_probability"), sep="\n")

rng = np.random.default_rng(0)
labels = rng.integers(0, 5, 500)
card = scorecard(Predictions(labels=labels, logits=3 * np.eye(5)[labels] + 2 * rng.normal(size=(500, 5))))
print(f"accuracy of the confident half: {card.value('accuracy_of_confident_half', 'second_probability'):.3f}")
