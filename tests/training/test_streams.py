"""Batches of training images: sizes, and their division between processes."""

from dataclasses import replace

import pytest
import torch

from nescio.errors import BadInput
from tests.support.trainings import QUICK, fitted, trial_of

torch.set_num_threads(1)


# ---- budget


def test_streams__parts_of_a_batch_are_the_batch():
    """Without batch-norm and random draws a batch in two parts gives the same step."""
    whole, parts = (fitted(trial_of(training=replace(QUICK, accumulate=count))) for count in (1, 2))
    different = fitted(trial_of(training=replace(QUICK, batch_size=64)))
    for name, tensor in whole.state_dict().items():
        assert torch.allclose(tensor, parts.state_dict()[name], atol=1e-4)
    assert not torch.allclose(whole.head.weight, different.head.weight, atol=1e-2)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (replace(QUICK, batch_size=4096), "fewer than one batch"),
        (replace(QUICK, batch_size=100, accumulate=3), "equal parts"),
    ],
)
def test_streams__impossible_batches_are_sentences(plan, sentence):
    with pytest.raises(BadInput, match=sentence):
        fitted(trial_of(training=plan))
