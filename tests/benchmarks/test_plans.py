"""Parts of plans: a deep ensemble is a line of its own, with the same hyper-parameters and other initial seeds."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
from nescio import measures
from nescio.benchmarks import posthoc, sensitivity, shift, uimnet, url
from nescio.benchmarks.base import registry
from nescio.benchmarks.lineup import average
from nescio.benchmarks.plans import DEEP_ENSEMBLE, registered_methods, trained_methods
from nescio.benchmarks.posthoc.steps import groups_of as posthoc_groups
from nescio.errors import BadInput
from nescio.evaluations import average_predictions
from nescio.metrics import retrieved
from nescio.predictions import Predictions
from tests.support.shift_trials import sensitivity_trials, shift_trials

METHODS = ("erm", DEEP_ENSEMBLE)


def alike_but_for_the_seed(trials, size):
    assert len(trials) == size == len({trial.init_seed for trial in trials})
    assert len({replace(trial, init_seed=0) for trial in trials}) == 1


def test_trained_methods__names_and_what_is_trained_for_them():
    assert registered_methods(("Deep-Ensembles", "erm", "deep-ensemble")) == (DEEP_ENSEMBLE, "erm")
    assert trained_methods((DEEP_ENSEMBLE, "sngp")) == ("erm", "sngp")
    assert trained_methods(("sngp",)) == ("sngp",)


@pytest.mark.parametrize("module", [shift, sensitivity, posthoc, url], ids=lambda module: module.NAME)
def test_posthoc_groups__none_is_trained_unasked(module):
    plan = registry[module.NAME].presets["small"]
    assert DEEP_ENSEMBLE not in str(plan)
    if module is shift:
        assert {len(trials) for trials in shift_trials(plan, dict.fromkeys(plan.trained, 0))} == {1}
    if module is posthoc:
        assert {len(group.trials) for group in posthoc_groups(plan, None)} == {1}


def test_plan__in_shift():
    plan = shift.Plan(methods=METHODS, ensemble_sizes=(3,), seeds=2)
    lines = shift_trials(plan, dict.fromkeys(plan.trained, 0))
    assert [average(trials, None).columns["method"] for trials in lines] == ["erm"] * 2 + [DEEP_ENSEMBLE] * 2
    for trials in lines[2:]:
        alike_but_for_the_seed(trials, 3)


def test_plan__in_sensitivity():
    plan = sensitivity.Plan(methods=METHODS, ensemble_size=3, seeds=1, strengths=2)
    lines = sensitivity_trials(plan)
    assert [average(trials, None).columns["method"] for trials in lines] == ["erm"] * 2 + [DEEP_ENSEMBLE] * 2
    for one, several in zip(lines[:2], lines[2:], strict=True):
        alike_but_for_the_seed(several, 3)
        assert one[0] == several[0], "the first member is the network that stands alone"


def test_posthoc_groups__in_posthoc():
    plan = posthoc.Plan(train_networks=("erm/mlp", "deep-ensemble/mlp"), ensemble_size=4)
    one, several = (tuple(group.trials) for group in posthoc_groups(plan, None))
    alike_but_for_the_seed(several, 4)
    assert average(several, None).columns | {"backbone": "mlp"} == average(several, None).columns
    assert one[0] == several[0] and average(several, None).columns["method"] == DEEP_ENSEMBLE


def test_plan__in_uimnet_networks_of_other_trials_are_no_deep_ensemble():
    plain = shift_trials(shift.Plan(methods=METHODS, ensemble_sizes=(2,)), {"erm": 0})[-1]
    searched = (plain[0], replace(plain[1], trial=1))
    assert average(plain, None).columns["method"] == DEEP_ENSEMBLE
    assert average(searched, None).columns["method"] == "erm"
    with pytest.raises(BadInput, match="1,5"):
        uimnet.Plan(methods=METHODS, ensemble_sizes=(1,))


def test_plans__cosines_of_an_ensemble_are_means_of_its_members_cosines():
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 3
    dumps = [
        Predictions(logits=rng.normal(size=(12, 1, 3)), labels=labels, embeddings=rng.normal(size=(12, width)))
        for width in (4, 6)
    ]

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    whole = average_predictions(dumps)
    cosines = [unit(np.asarray(dump.embeddings)) @ unit(np.asarray(dump.embeddings)).T for dump in dumps]
    own = unit(np.asarray(whole.embeddings))
    assert own @ own.T == pytest.approx(np.mean(cosines, axis=0), abs=1e-6)
    lengths = np.mean([np.linalg.norm(dump.embeddings, axis=1) for dump in dumps], axis=0)
    assert np.linalg.norm(whole.embeddings, axis=1) == pytest.approx(lengths, rel=1e-6)
    assert retrieved(np.asarray(whole.embeddings), labels).shape == (12,)
    assert np.array_equal(measures.uncertainty("native", whole), whole.scores["native"])
    assert average_predictions(dumps[:1]) is dumps[0]


@pytest.mark.parametrize("field, value", [("seeds", 1001), ("trials", 100_001), ("ensemble_sizes", (2, 1001))])
def test_plan__network_plan_refuses_numbers_that_collide_or_never_end(field, value):
    with pytest.raises(BadInput, match=field):
        uimnet.Plan(**{field: value})
