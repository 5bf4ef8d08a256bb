"""Adding a metric and a measure: a function with a sentence and a decorator, and it stands on every scorecard."""

import numpy as np

from nescio import Predictions, scorecard
from nescio.measures import measure
from nescio.metrics import metric
from nescio.testing import check_measure, check_metric


@metric("ranking", better="higher")
def surest_half_right(u, wrong):
    """Share of right answers among the half that is surest, ties averaged."""
    from nescio.metrics import selective_risk

    return 1 - selective_risk(u, wrong, 0.5)


@measure("plain", needs=("logits",))  # without logits it is not called
def second_thoughts(predictions):
    """Probability of the runner-up."""
    from nescio.measures import gap, msp

    return 1 - msp(predictions) + gap(predictions)


print(*check_metric("surest_half_right"), sep="\n")
print(*check_measure("second_thoughts"), sep="\n")

rng = np.random.default_rng(0)
labels = rng.integers(0, 5, 500)
card = scorecard(Predictions(labels=labels, logits=3 * np.eye(5)[labels] + 2 * rng.normal(size=(500, 5))))
print(f"surest half right: {card.value('surest_half_right', 'second_thoughts'):.3f}")
