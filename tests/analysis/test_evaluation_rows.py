"""Which rows of a dump are judged."""

from __future__ import annotations

import numpy as np
import pytest

from nescio import Predictions
from nescio.analysis.evaluation_rows import in_distribution_rows
from nescio.errors import BadInput

LOGITS = np.eye(4)[[0, 1, 2, 3]]


def test_in_distribution_rows_are_of_classes_that_the_model_can_answer() -> None:
    both = Predictions(
        logits=LOGITS, labels=np.array([0, 7, 2, 3]), in_distribution=np.array([True, False, True, False])
    )
    assert in_distribution_rows(both).index.tolist() == [0, 2]
    unmarked = Predictions(logits=LOGITS, labels=np.arange(4))
    assert in_distribution_rows(unmarked) is unmarked
    without_labels = Predictions(logits=LOGITS, in_distribution=np.array([True, True, False, True]))
    assert in_distribution_rows(without_labels).index.tolist() == [0, 1, 3]
    with pytest.raises(BadInput, match="OOD"):
        in_distribution_rows(Predictions(logits=LOGITS, in_distribution=np.zeros(4, bool)))
