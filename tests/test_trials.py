"""Trials and their budget: what is refused, and that a trial comes back from its JSON."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import pytest

from nescio.errors import BadInput
from nescio.identity import canonical, tag, to_json, values_of
from nescio.search import HParams, choice, draw, hparam, integers, log_uniform, uniform
from nescio.trials import Training, Trial, from_json


@tag("recipe:toy-trials")
@dataclass(frozen=True)
class Toy(HParams):
    rate: float = hparam(0.1, log_uniform(1e-3, 1.0), help="learning rate of the head")
    share: float = hparam(0.5, uniform(0.0, 1.0))
    depth: int = hparam(2, integers(1, 4))
    widths: tuple[int, ...] = hparam((8,), choice((8,), (8, 8)))
    mode: Literal["a", "b"] = "a"
    limit: float | None = None


TRIAL = Trial(method="toy", hparams=Toy(), data="digits", backbone="mlp", training=Training(epochs=1))


def test_training__later_fields_leave_old_keys_alone():
    """Work that was done before the schedule could be flat at the start keeps its key."""
    assert not {"flat", "initial"} & canonical(Training()).keys()
    assert canonical(Training(warmup_flat=1, warmup_from=0.1))["flat"] == 1


def test_training__renamed_fields_leave_keys_and_seeds_alone():
    plain = canonical(Training(lr=0.3, batch_size=64))
    assert (plain["rate"], plain["batch"]) == (0.3, 64) and not {"lr", "batch_size", "step_epochs"} & plain.keys()
    assert Training(**values_of(Training, plain)) == Training(lr=0.3, batch_size=64)


def test_training_says_what_is_wrong():
    words = ({"optimizer": "adam"}, {"schedule": None})
    numbers = ({"lr": 0}, {"epochs": 0}, {"clip": -1}, {"warmup": -1}, {"warmup_flat": 1}, {"warmup_from": 2})
    for wrong in (*words, *numbers):
        with pytest.raises(BadInput, match=rf"Training\.{next(iter(wrong))} is"):
            Training(**wrong)
    for wrong in ({"momentum": 0}, {"optimizer": "adamw"}):
        with pytest.raises(BadInput, match=r"Training\.nesterov"):
            Training(nesterov=True, **wrong)
    with pytest.raises(BadInput, match="none twice"):
        dataclasses.replace(TRIAL, classes=(1, 1))
    with pytest.raises(BadInput, match="at least one"):
        dataclasses.replace(TRIAL, classes=())


@pytest.mark.parametrize(
    "trial",
    [
        TRIAL,
        dataclasses.replace(TRIAL, hparams=draw(Toy, 3), classes=(3, 1, 2), spectral=5, trial=3, data_seed=1),
        dataclasses.replace(TRIAL, training=Training(clip=1, optimizer="lamb", lr=1 / 3)),
    ],
)
def test_from_json__a_trial_comes_back_from_its_json(trial):
    again = from_json(to_json(trial), {"toy": Toy}.__getitem__)
    assert again == trial and to_json(again) == to_json(trial)


def test_from_json__a_trial_that_lacks_a_field_is_not_guessed():
    plain = json.loads(to_json(TRIAL))
    del plain["training"]["momentum"]
    with pytest.raises(BadInput, match="momentum"):
        from_json(json.dumps(plain), lambda _: Toy)
    plain = json.loads(to_json(TRIAL))
    plain["recipe"]["kind"] = "elsewhere.Toy"
    with pytest.raises(BadInput, match=r"elsewhere\.Toy"):
        from_json(json.dumps(plain), lambda _: Toy)


def test_trials__describe_names_the_columns_of_a_row():
    assert TRIAL.describe() == {
        "dataset": "digits", "backbone": "mlp", "spectral": None, "method": "toy",
        "trial": 0, "data_seed": 0, "init_seed": 0,
    }  # fmt: skip
