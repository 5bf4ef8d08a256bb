"""What work takes by figures: the arithmetic of networks, counted, and what nescio was seen to do in a second."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nescio import datasets
from nescio.datasets.images import ImageSet
from nescio.methods import registry as methods
from nescio.networks.models import trained
from nescio.predict import Keeping, predict_step
from nescio.protocols.costs import CORE, H200, PACES, arithmetic, by_figures, training_seconds
from nescio.training import train_step
from nescio.trials import Training, Trial
from nescio.work.steps import Context
from nescio.work.store import Store
from paths import ROOT

PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
TRIAL = Trial(
    method="erm", recipe=methods["erm"].recipe_class(), data="digits", backbone="mlp", training=Training(epochs=5)
)


@pytest.fixture
def context(tmp_path):
    return Context(Store(tmp_path), device="cpu")


def test_arithmetic_is_that_of_the_layers():
    """An MLP of 64 inputs and three layers of 100: a multiplication and an addition for every weight."""
    weights = 64 * 100 + 100 * 100 + 100 * 100
    found = arithmetic("mlp", 1, (8, 8))
    assert (found.operations, found.params, found.width) == (2 * weights, weights + 300, 100)
    assert arithmetic("resnet50", 3, (224, 224)).operations == pytest.approx(2 * 4.1e9, rel=0.01)  # He et al. 2016


def test_figures_are_those_of_the_document():
    assert f"| {H200.trained:,}/s |" in PERFORMANCE and f"| {H200.predicted:,}/s |" in PERFORMANCE
    assert f"({CORE.trained:g} against 37)" in PERFORMANCE and f"| {2 * CORE.predicted:g}/s |" in PERFORMANCE
    for method, share in PACES.items():
        line = next(line for line in PERFORMANCE.splitlines() if line.startswith("| `") and f"`{method}`" in line)
        low, *high = re.search(r"\| ([\d,–]+)/s \| [^|]*\| [^|]*\|$", line)[1].replace(",", "").split("–")
        assert int(low) - 300 <= share * H200.trained <= int(high[0] if high else low) + 300, method


def test_training_takes_as_long_as_was_seen():
    seen = arithmetic("resnet18", 3, (32, 32))
    assert training_seconds(H200, seen, 47_678) == pytest.approx(1)
    assert training_seconds(H200, seen, 47_678, "due") == pytest.approx(1 / 0.45)


def test_a_trial_takes_images_times_arithmetic_and_the_room_of_its_weights(context):
    cost = by_figures(train_step(TRIAL), context)
    images = 5 * len(datasets.splits(datasets.load("digits")).train)
    network = arithmetic("mlp", 1, (8, 8))
    assert cost.seconds == pytest.approx(3 * images * network.operations / CORE.training)
    assert cost.bytes == 4 * network.params
    more = by_figures(train_step(replace(TRIAL, training=Training(epochs=10))), context)
    assert more.seconds == pytest.approx(2 * cost.seconds)


@pytest.mark.parametrize(("keeping", "size"), [(Keeping(), 4 * (10 + 100)), (Keeping(("logits",), "float16"), 2 * 10)])
def test_a_prediction_takes_the_room_of_what_it_keeps(context, keeping, size):
    step = predict_step(trained(TRIAL), ImageSet("digits"), keeping=keeping)
    rows = len(ImageSet("digits").load())
    cost = by_figures(step, context)
    assert cost.bytes == rows * size
    assert cost.seconds == pytest.approx(rows * arithmetic("mlp", 1, (8, 8)).operations / CORE.predicting)
    step.run(context)
    assert cost.bytes <= sum(path.stat().st_size for path in step.folder(context.store).rglob("*.npy"))
