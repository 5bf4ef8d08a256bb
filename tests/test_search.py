"""Hyper-parameters and their search ranges: what trials draw, and what Optuna may suggest."""

import dataclasses
import math
import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from nescio.identity import tag
from nescio.search import (
    STARTUP,
    HParams,
    choice,
    draw,
    extended,
    guided,
    hparam,
    integers,
    log_uniform,
    searched,
    suggest,
    uniform,
)


@tag("recipe:toy-search")
@dataclass(frozen=True)
class Toy(HParams):
    rate: float = hparam(0.1, log_uniform(1e-3, 1.0), help="learning rate of the head")
    share: float = hparam(0.5, uniform(0.0, 1.0))
    depth: int = hparam(2, integers(1, 4))
    widths: tuple[int, ...] = hparam((8,), choice((8,), (8, 8)))
    mode: Literal["a", "b"] = "a"
    limit: float | None = None


def test_draw__trial_zero_is_the_defaults_and_draws_stay_in_range():
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


def test_draw__a_new_field_does_not_move_the_draws_of_the_others():
    before = dataclasses.make_dataclass(
        "Grown", [("rate", float, hparam(0.1, uniform(0.0, 1.0)))], bases=(HParams,), frozen=True
    )
    after = dataclasses.make_dataclass(
        "Grown",
        [("first", float, hparam(0.1, uniform(0.0, 1.0))), ("rate", float, hparam(0.1, uniform(0.0, 1.0)))],
        bases=(HParams,),
        frozen=True,
    )
    assert [draw(before, trial).rate for trial in range(9)] == [draw(after, trial).rate for trial in range(9)]


def test_integers__draws_need_only_random():
    class Rng:
        def random(self):
            return 0.999999999

    assert integers(1, 4).draw(Rng()) == 4
    assert choice("x", "y").draw(Rng()) == "y"
    assert integers(3, 3).draw(random.Random(0)) == 3


def test_suggest__optuna_suggests_every_searched_field():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = [suggest(Toy, study.ask()) for _ in range(40)]
    assert {each.depth for each in seen} == {1, 2, 3, 4}
    assert {each.widths for each in seen} == {(8,), (8, 8)}
    assert all(1e-3 <= each.rate <= 1 for each in seen) and len({each.rate for each in seen}) == 40


def test_searched__fields_that_methods_share_are_drawn_alike():
    """Trial n compares methods, not the learning rates that each happened to draw."""
    from nescio.methods import registry

    shared = {}
    for cls in registry.parts():
        for name, search in searched(cls.hparams_class).items():
            shared.setdefault((name, search), []).append(cls.hparams_class)
    assert len(shared["lr", searched(registry["erm"].hparams_class)["lr"]]) > 8
    for (name, _), hparam_sets in shared.items():
        for trial in range(1, 6):
            assert len({getattr(draw(hparams, trial), name) for hparams in hparam_sets}) == 1
    assert len({draw(registry["erm"].hparams_class, trial).lr for trial in range(6)}) == 6


# ---- guided search


@tag("recipe:guided")
@dataclass(frozen=True)
class Guided(HParams):
    width: int = hparam(2, choice(1, 2, 3))
    depth: float = hparam(0.5, uniform(0.0, 1.0))


def replay(evaluate, rounds=16):
    """The hyper-parameters that were suggested, round by round."""
    hparam_sets = []

    def note(number, suggested):
        assert number == len(hparam_sets)
        hparam_sets.append(dict(suggested))
        return {line: evaluate(number, hparams) for line, hparams in suggested.items()}

    guided({("a", None): Guided, ("b", 5.0): Guided}, rounds, note)
    return hparam_sets


def test_guided_rounds_are_replayed_and_learn_from_those_before():
    """What is suggested is a function of the results: the same again, and others where the results are others."""
    pytest.importorskip("optuna")

    def high(number, hparams):
        return (hparams.depth - 0.8) ** 2 + 0.1 * hparams.width

    first = replay(high)
    assert len(first) == 16 and set(first[0].values()) == {Guided()}  # defaults, a choice among numbers included
    assert any(each["a", None] != each["b", 5.0] for each in first)  # each is searched on its own
    assert replay(high) == first and replay(high, 5) == first[:5]
    other = replay(lambda number, hparams: (hparams.depth - 0.2) ** 2)
    assert [a == b for a, b in zip(first, other, strict=True)] == [number < STARTUP for number in range(16)]
    late = [each["a", None].depth for each in first[STARTUP:]]
    assert abs(np.median(late) - 0.8) < abs(np.median([each["a", None].depth for each in other[STARTUP:]]) - 0.8)


def test_guided__a_guided_round_that_failed_says_nothing_and_stops_nothing():
    pytest.importorskip("optuna")
    assert len(replay(lambda number, hparams: None if number == 1 else 0.5)) == 16


def test_log_uniform__a_grid_runs_from_low_to_high_in_equal_ratios():
    values = log_uniform(0.01, 100.0).grid(5)
    assert values == (0.01, 0.1, 1.0, 10.0, 100.0)
    assert log_uniform(0.5, 12.0).grid(3)[1] == pytest.approx((0.5 * 12) ** 0.5, rel=1e-5)


# ---- ranges that are extended


@tag("recipe:toy-bounds")
@dataclass(frozen=True)
class Bounded(HParams):
    rate: float = hparam(0.1, log_uniform(0.01, 1.0))
    share: float = hparam(0.5, uniform(0.2, 0.9))

    def check(self):
        self.require_min(0.2, "share")


@pytest.mark.parametrize(
    ("search", "value", "wider"),
    [
        (uniform(0.0, 1.0), 0.97, (0.0, 2.0)),
        (uniform(0.0, 1.0), 0.04, (-1.0, 1.0)),
        (uniform(0.0, 1.0), 0.06, None),
        (log_uniform(0.01, 1.0), 0.012, (0.0001, 1.0)),
        (log_uniform(0.01, 1.0), 0.05, None),  # near in the number, not in its logarithm
        (uniform(8.0, 64.0), 9.0, (4.0, 64.0)),  # positive numbers stay positive …
        (uniform(10.0, 12.0), 10.0, (8.0, 12.0)),
        (uniform(-8.0, 8.0), -8.0, (-24.0, 8.0)),  # … others need not
        (log_uniform(10.0, 1000.0), 10.0, (0.1, 1000.0)),
        (integers(1, 4), 4, (1, 7)),
        (integers(4, 16), 4, (2, 16)),
        (choice(1, 2), 2, None),
    ],
)
def test_uniform__a_range_goes_as_far_again_beyond_the_bound_that_the_best_is_near(search, value, wider):
    beyond = search.beyond(value)
    assert wider is None if beyond is None else (beyond.low, beyond.high) == pytest.approx(wider)


def test_extended__a_range_is_not_extended_to_what_the_hparams_refuses():
    ranges = searched(Bounded)
    assert extended(Bounded(rate=0.1, share=0.21), ranges) is None  # the hyper-parameters takes no 0.1
    wider = extended(Bounded(rate=0.99, share=0.21), ranges)
    assert wider["rate"].high == pytest.approx(100) and wider["share"] is ranges["share"]


def test_guided__only_lines_whose_best_is_at_a_bound_are_tried_further():
    tried = {"edge": [], "inside": []}

    def evaluate(number, hparam_sets):
        for line, hparams in hparam_sets.items():
            tried[line].append((number, hparams.rate))
        goal = {"edge": 30.0, "inside": 0.1}
        return {line: abs(math.log(hparams.rate / goal[line])) for line, hparams in hparam_sets.items()}

    ranges = guided(dict.fromkeys(tried, Bounded), 12, evaluate, more=6)
    assert [number for number, _ in tried["inside"]] == list(range(12))
    assert [number for number, _ in tried["edge"]] == list(range(18))
    assert max(rate for number, rate in tried["edge"] if number < 12) <= 1 < max(rate for _, rate in tried["edge"])
    assert ranges["edge"]["rate"].high == pytest.approx(100) and ranges["inside"]["rate"].high == 1
