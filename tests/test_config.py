"""Recipes, search ranges, trials and seeds."""

import dataclasses
import json
import math
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from nescio.config import (
    Recipe,
    Training,
    Trial,
    canonical,
    choice,
    draw,
    from_json,
    hparam,
    integers,
    log_uniform,
    seed_for,
    suggest,
    to_json,
    uniform,
)
from nescio.errors import BadInput


@dataclass(frozen=True)
class Toy(Recipe):
    rate: float = hparam(0.1, log_uniform(1e-3, 1.0), help="learning rate of the head")
    share: float = hparam(0.5, uniform(0.0, 1.0))
    depth: int = hparam(2, integers(1, 4))
    widths: tuple[int, ...] = hparam((8,), choice((8,), (8, 8)))
    mode: Literal["a", "b"] = "a"
    limit: float | None = None


TRIAL = Trial(method="toy", recipe=Toy(), data="digits", backbone="mlp", training=Training(epochs=1))


def test_leaves_torch_out():
    code = "import sys, nescio.config, nescio.store; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- canonical JSON and seeds


def test_equal_values_have_equal_json():
    assert to_json({"b": (1, 2.5), "a": None}) == '{"a":null,"b":[1,2.5]}'
    assert to_json(np.float64(0.1)) == to_json(0.1) == "0.1"
    assert to_json(np.int64(3)) == "3"
    assert to_json(True) == "true"
    assert to_json(1) != to_json(1.0) != to_json("1.0")


def test_a_dataclass_is_its_name_and_all_its_fields():
    plain = canonical(Toy())
    assert plain["kind"].endswith("test_config.Toy")
    assert plain.keys() - {"kind"} == {each.name for each in dataclasses.fields(Toy)}


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", np.zeros(3), math.nan, math.inf, {1: 2}, Toy, 1j])
def test_what_json_cannot_say_exactly_is_refused(value):
    with pytest.raises(BadInput, match="recipe"):
        canonical(value)


def test_seeds_are_pinned_and_apart():
    assert seed_for("init", 0) == 5696364089584488662  # another number here means that every study starts anew
    many = {seed_for("data", "digits", i) for i in range(2000)}
    assert len(many) == 2000 and max(many) < 2**63
    assert seed_for("a", "bc") != seed_for("ab", "c") != seed_for(["a", "bc"])


# ---- recipes


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


def test_values_take_the_form_of_their_annotation():
    toy = Toy(rate=1, widths=[4, 4], limit=2)
    assert (repr(toy.rate), toy.widths, repr(toy.limit)) == ("1.0", (4, 4), "2.0")
    assert to_json(Toy(rate=1)) == to_json(Toy(rate=1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"rate": "fast"}, {"rate": math.nan}, {"rate": True}, {"depth": 1.5}, {"widths": 3}, {"widths": (1, "x")},
     {"mode": "c"}, {"limit": "x"}],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(wrong):
    with pytest.raises(BadInput, match=rf"Toy\.{next(iter(wrong))} is .* must be"):
        Toy(**wrong)


def test_a_recipe_without_its_decorator_is_refused():
    class Bare(Recipe):  # without the decorator the field would silently not be in the key
        rate: float = 0.1

    with pytest.raises(BadInput, match="@dataclass"):
        Bare()


# ---- trials


def test_training_says_what_is_wrong():
    for wrong in ({"optimizer": "adam"}, {"rate": 0}, {"epochs": 0}, {"clip": -1}, {"schedule": None}, {"warmup": -1}):
        with pytest.raises(BadInput, match=rf"Training\.{next(iter(wrong))} is"):
            Training(**wrong)
    with pytest.raises(BadInput, match="none twice"):
        dataclasses.replace(TRIAL, classes=(1, 1))
    with pytest.raises(BadInput, match="at least one"):
        dataclasses.replace(TRIAL, classes=())


@pytest.mark.parametrize(
    "trial",
    [
        TRIAL,
        dataclasses.replace(TRIAL, recipe=draw(Toy, 3), classes=(3, 1, 2), spectral=5, trial=3, data_seed=1),
        dataclasses.replace(TRIAL, training=Training(clip=1, optimizer="lamb", rate=1 / 3)),
    ],
)
def test_a_trial_comes_back_from_its_json(trial):
    again = from_json(to_json(trial), {"toy": Toy}.__getitem__)
    assert again == trial and to_json(again) == to_json(trial)


def test_a_trial_of_another_version_is_not_guessed():
    plain = json.loads(to_json(TRIAL))
    del plain["training"]["momentum"]
    with pytest.raises(BadInput, match="momentum"):
        from_json(json.dumps(plain), lambda _: Toy)
    plain = json.loads(to_json(TRIAL))
    plain["recipe"]["kind"] = "elsewhere.Toy"
    with pytest.raises(BadInput, match=r"elsewhere\.Toy"):
        from_json(json.dumps(plain), lambda _: Toy)


def test_describe_names_the_columns_of_a_row():
    assert TRIAL.describe() == {
        "dataset": "digits", "backbone": "mlp", "spectral": None, "method": "toy",
        "trial": 0, "data_seed": 0, "init_seed": 0,
    }  # fmt: skip
