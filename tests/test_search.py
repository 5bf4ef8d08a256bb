"""Recipes and their search ranges: what trials draw, and what Optuna may suggest."""

import dataclasses
import math
import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from nescio.identity import tag
from nescio.search import Recipe, choice, draw, hparam, integers, log_uniform, searched, suggest, uniform


@tag("recipe:toy-search")
@dataclass(frozen=True)
class Toy(Recipe):
    rate: float = hparam(0.1, log_uniform(1e-3, 1.0), help="learning rate of the head")
    share: float = hparam(0.5, uniform(0.0, 1.0))
    depth: int = hparam(2, integers(1, 4))
    widths: tuple[int, ...] = hparam((8,), choice((8,), (8, 8)))
    mode: Literal["a", "b"] = "a"
    limit: float | None = None


def test_trial_zero_is_the_defaults_and_draws_stay_in_range():
    assert draw(Toy, 0) == Toy()
    drawn = [draw(Toy, trial) for trial in range(1, 400)]
    assert drawn == [draw(Toy, trial) for trial in range(1, 400)]
    assert all(1e-3 <= each.rate <= 1 and 0 <= each.share <= 1 for each in drawn)
    assert {each.depth for each in drawn} == {1, 2, 3, 4}
    assert {each.widths for each in drawn} == {(8,), (8, 8)}
    assert {each.mode for each in drawn} == {"a"}
    # uniform in the logarithm: half of the draws lie below the geometric middle
    assert np.mean([each.rate < 10**-1.5 for each in drawn]) == pytest.approx(0.5, abs=0.1)
    assert np.mean([each.share for each in drawn]) == pytest.approx(0.5, abs=0.06)
    # fields have streams of their own
    assert abs(np.corrcoef([math.log(each.rate) for each in drawn], [each.share for each in drawn])[0, 1]) < 0.2
    assert draw(Toy, 1, seed=1) != draw(Toy, 1, seed=0)


def test_a_new_field_does_not_move_the_draws_of_the_others():
    before = dataclasses.make_dataclass(
        "Grown", [("rate", float, hparam(0.1, uniform(0.0, 1.0)))], bases=(Recipe,), frozen=True
    )
    after = dataclasses.make_dataclass(
        "Grown",
        [("first", float, hparam(0.1, uniform(0.0, 1.0))), ("rate", float, hparam(0.1, uniform(0.0, 1.0)))],
        bases=(Recipe,),
        frozen=True,
    )
    assert [draw(before, trial).rate for trial in range(9)] == [draw(after, trial).rate for trial in range(9)]


def test_draws_need_only_random():
    class Rng:
        def random(self):
            return 0.999999999

    assert integers(1, 4).draw(Rng()) == 4
    assert choice("x", "y").draw(Rng()) == "y"
    assert integers(3, 3).draw(random.Random(0)) == 3


def test_optuna_suggests_every_searched_field():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = [suggest(Toy, study.ask()) for _ in range(40)]
    assert {each.depth for each in seen} == {1, 2, 3, 4}
    assert {each.widths for each in seen} == {(8,), (8, 8)}
    assert all(1e-3 <= each.rate <= 1 for each in seen) and len({each.rate for each in seen}) == 40


def test_fields_that_methods_share_are_drawn_alike():
    """Trial n compares methods, not the learning rates that each happened to draw."""
    from nescio.methods import registry

    shared = {}
    for cls in registry.parts():
        for name, search in searched(cls.recipe_class).items():
            shared.setdefault((name, search), []).append(cls.recipe_class)
    assert len(shared["rate", searched(registry["erm"].recipe_class)["rate"]]) > 8
    for (name, _), recipes in shared.items():
        for trial in range(1, 6):
            assert len({getattr(draw(recipe, trial), name) for recipe in recipes}) == 1
    assert len({draw(registry["erm"].recipe_class, trial).rate for trial in range(6)}) == 6
