"""What work takes by figures: the arithmetic of networks, counted, and what nescio was seen to do in a second."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from nescio import datasets
from nescio.benchmarks import base, costs, reliability, uimnet, url
from nescio.benchmarks.costs import CORE, H200, PACES, arithmetic, estimated, training_seconds
from nescio.datasets.image_set import ImageSet
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import OutputSpec, predict_step
from nescio.training import train_step
from nescio.trials import Training, Trial
from nescio.work.dry_run import DryRun
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context
from nescio.work.store import Store
from tests.support.paths import ROOT

FIGURES = json.loads((ROOT / "benchmarks" / "results.json").read_text("utf-8"))
TRIAL = Trial(
    method="erm", hparams=methods["erm"].hparams_class(), data="digits", backbone="mlp", training=Training(epochs=5)
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


def figures(machine, work, peer=None):
    """(lowest, highest) of the one record of that machine, work and peer."""
    (record,) = (
        each
        for each in FIGURES
        if (each["machine"], each.get("peer")) == (machine, peer)
        and work in each["work"]
        and "graph" not in each["work"]
    )
    return record["value"], record.get("high", record["value"])


def test_costs__machines_have_the_figures_of_the_benchmarks():
    assert figures("H200", "`erm`", "bare resident loop") == (H200.trained, H200.trained)
    assert figures("H200", "ResNet-50, 224 pixels", "bare forward") == (H200.predicted, H200.predicted)
    assert figures("1 core", "ResNet-18", "`--threads 2`")[0] == CORE.trained
    assert figures("2 cores", "second model", "bare forward")[0] == 2 * CORE.predicted


@pytest.mark.parametrize("method", PACES)
def test_costs__paces_are_the_figures_of_the_benchmarks(method):
    peer = "bare step of two views" if method in ("simclr", "moco", "byol") else "`erm`"
    low, high = figures("H200", f"`{method}`", peer)
    assert low - 300 <= PACES[method] * H200.trained <= high + 300


def test_training_seconds__training_takes_as_long_as_was_seen():
    seen = arithmetic("resnet18", 3, (32, 32))
    assert training_seconds(H200, seen, 47_678) == pytest.approx(1)
    assert training_seconds(H200, seen, 47_678, "due") == pytest.approx(1 / 0.45)


def test_arithmetic__a_trial_takes_images_times_arithmetic_and_the_room_of_its_weights(context, monkeypatch):
    monkeypatch.setattr(costs, "SHORT", 0.0)  # no epoch is measured
    cost = estimated(train_step(TRIAL), context)
    images = 5 * len(datasets.split_dataset(datasets.load("digits")).train)
    network = arithmetic("mlp", 1, (8, 8))
    assert cost.seconds == pytest.approx(3 * images * network.operations / CORE.training)
    assert cost.bytes == 4 * network.params
    more = estimated(train_step(replace(TRIAL, training=Training(epochs=10))), context)
    assert more.seconds == pytest.approx(2 * cost.seconds)


@pytest.mark.parametrize(
    ("output_spec", "size"), [(OutputSpec(), 4 * (10 + 100)), (OutputSpec(("logits",), "float16"), 2 * 10)]
)
def test_estimated__a_prediction_takes_the_room_of_what_it_keeps(context, output_spec, size):
    step = predict_step(network_of_trial(TRIAL), ImageSet("digits"), output_spec=output_spec)
    rows = len(ImageSet("digits").load())
    cost = estimated(step, context)
    assert cost.bytes == rows * size
    seconds = rows * arithmetic("mlp", 1, (8, 8)).operations / CORE.predicting
    assert cost.seconds == pytest.approx(costs.PREDICTION + seconds)
    step.run(context)
    assert cost.bytes <= sum(path.stat().st_size for path in step.folder(context.store).rglob("*.npy"))


def test_estimated__short_epochs_are_measured_and_count_for_all_epochs(context, monkeypatch):
    monkeypatch.setattr(costs, "_epochs", {})
    monkeypatch.setattr(costs, "_train_once", lambda trial, context: (0.5, 2.0))
    assert estimated(train_step(TRIAL), context).seconds == pytest.approx(0.5 + 5 * 2.0)


def test_train_once__time_that_other_processes_took_is_not_of_an_epoch(context, monkeypatch):
    """A training that waits for a core is as long as one that does not."""

    def waiting(*_):
        time.sleep(0.2)
        return None, {"seconds": 0.2}

    monkeypatch.setattr(costs, "fit", waiting)
    before, epoch = costs._train_once(TRIAL, context)
    assert 0 <= before < 0.05 and 0 <= epoch < 0.1


def test_train_once__an_epoch_that_is_measured_leaves_nothing(context):
    before, epoch = costs._train_once(TRIAL, context)
    assert before > 0 and epoch > 0 and not list(context.store.root.rglob("*"))


@pytest.mark.parametrize(
    ("module", "changes", "stages"),
    [
        (
            uimnet,
            {"methods": ("erm", "deep-ensemble"), "ensemble_sizes": (1, 3), "spectral_bounds": (None,)},
            {"line": 12},
        ),
        (
            uimnet,
            {"methods": ("erm",), "ensemble_sizes": (1,), "spectral_bounds": (None,), "partition_features": "pixels"},
            {"partition": 1, "line": 4},
        ),
        (url, {"methods": ("erm",), "trials": 1, "seeds": 2, "shots": (1,)}, {}),
        (reliability, {"methods": ("simclr", "byol"), "seeds": 2, "reference_samples": 2}, {"ranking": 1}),
    ],
    ids=["uimnet", "uimnet divided by a tree", "url", "reliability"],
)
def test_estimated__a_rehearsal_holds_what_results_choose_and_every_step_has_a_cost(
    module, changes, stages, context, monkeypatch
):
    """uimnet: single networks, averages of three trials and deep ensembles, raw and calibrated, of two data seeds."""
    monkeypatch.setattr(costs, "_train_once", lambda trial, context: (0.5, 2.0))
    known = base.registry[module.NAME]
    rehearsal = DryRun(context, make_launcher("local", 0))
    known.run(replace(known.presets["small"], **changes, backbones=("mlp",)), rehearsal)
    steps = rehearsal.steps.values()
    assert all(estimated(step, context).seconds > 0 for step in steps)
    for name, count in stages.items():
        assert (
            sum(
                isinstance(step.config, dict) and name in (step.config.get("step"), step.config.get("kind"))
                for step in steps
            )
            == count
        )
    if module is url:  # two seeds without shots and with one, the upper reference of two seeds, and the chosen networks
        assert sum(step.stage == "train" for step in steps) >= 2 + 2 + 2
    assert not context.store.root.exists() or not list(context.store.root.rglob("*"))
