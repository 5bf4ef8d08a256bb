"""The protocol, piece by piece: which trials, how they are chosen, calibrated and averaged, and what the tables say."""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from nescio import measures, metrics, predict, training
from nescio.analysis import calibrate
from nescio.cli import main
from nescio.commands import _run_uimnet as command
from nescio.commands._study import Lines
from nescio.errors import BadInput
from nescio.methods import Learning, Method, classifiers, registry
from nescio.protocols import _networks, uimnet
from nescio.protocols._networks import Place, dump_key
from nescio.protocols._networks import dump as dump_of_key
from nescio.protocols.uimnet import Plan
from nescio.protocols.uimnet import reports as tables
from nescio.search import choice, draw, hparam, searched, uniform
from nescio.trials import Training
from nescio.work.store import Store, StoreError

SEEN = (0, 1, 2, 3, 4, 5)
NEW = (6, 7, 8, 9)
PLAN = Plan(
    methods=("erm", "mc-dropout"),
    backbones=("mlp",),
    spectral=(None,),
    trials=3,
    seeds=2,
    members=(1, 2),
    inside=SEEN,
    outside=NEW,
    training=Training(epochs=2, batch=64, augment="none"),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(str(tmp_path_factory.mktemp("uimnet") / "store"), device="cpu")


@pytest.fixture(scope="module")
def heard():
    """What is said while the study is made."""
    return []


@pytest.fixture(scope="module")
def study(place, heard):
    found = uimnet.run(PLAN, place, workers=0, say=lambda *each: heard.append(each))
    assert found.failures == []
    return found


def dump(trial, split, place):
    return dump_of_key(dump_key(trial, split, NEW, place), place)


def probs(logits, temperature=1.0):
    """(n, s, c) to (n, c) in five words: the mean over draws of the softmax."""
    z = np.asarray(logits, np.float64) / temperature
    p = np.exp(z - z.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).mean(1)


def nll(trial, split, place, temperature=1.0):
    held = dump(trial, split, place)
    return -np.log(probs(held.logits, temperature)[np.arange(len(held)), held.labels]).mean()


def row(study, **facts):
    """The one row with these facts."""
    facts = {"group": None, "calibrated": False, "measure": None} | facts
    (found,) = [r for r in study.rows if all(r[name] == value for name, value in facts.items())]
    return found["value"]


# ---- which trials


def test_trials_are_the_product_and_the_first_is_the_defaults():
    plan = replace(PLAN, backbones=("mlp", "conv"), spectral=(None, 5.0), methods=tuple(registry))
    trials = uimnet.trials_of(plan)
    assert len(trials) == len(set(trials)) == len(registry) * 2 * 2 * 3 * 2
    for each in trials:
        cls = registry[each.method].recipe_class
        assert each.recipe == (cls() if each.trial == 0 else draw(cls, each.trial))
        assert each.classes == SEEN and each.training == PLAN.training and each.init_seed == each.trial
    assert [t.trial for t in trials] == sorted(t.trial for t in trials)  # a stopped sweep has every method's defaults
    recipes = {(t.method, t.trial): set() for t in trials}
    for t in trials:
        recipes[t.method, t.trial].add(t.recipe)
    assert {len(each) for each in recipes.values()} == {1}  # one setting over all seeds, sizes and norms
    assert len({r for (name, _), each in recipes.items() if name == "erm" for r in each}) == 3


def test_a_new_field_moves_no_other_draw(monkeypatch):
    before = {t.trial: t.recipe for t in uimnet.trials_of(replace(PLAN, methods=("mixup",)))}

    @dataclass(frozen=True)
    class MixupRecipe(registry["mixup"].recipe_class):
        fresh: float = hparam(0.5, uniform(0, 1))

    MixupRecipe.__qualname__ = "MixupRecipe"  # the same recipe, one field later
    monkeypatch.setattr(registry["mixup"], "recipe_class", MixupRecipe)
    after = {t.trial: t.recipe for t in uimnet.trials_of(replace(PLAN, methods=("mixup",)))}
    for number, recipe in before.items():
        assert {name: getattr(after[number], name) for name in searched(type(recipe))} == {
            name: getattr(recipe, name) for name in searched(type(recipe))
        }
    assert {each.fresh for each in after.values()} != {0.5}


def test_the_paper_preset_is_the_paper():
    """UIMNET §7: ten trials, three data seeds, ResNet-18 and -50, SGD, 100 epochs of 256, rate ÷ 10 every 30 epochs."""
    plan = uimnet.PRESETS["paper"]
    assert (plan.data, plan.backbones, plan.spectral) == ("imagenet", ("resnet18", "resnet50"), (None, 5.0))
    assert (plan.trials, plan.seeds, plan.members, plan.inside, plan.oracle) == (10, 3, (1, 5), None, True)
    budget = plan.training
    assert (budget.optimizer, budget.epochs, budget.batch) == ("sgd", 100, 256)
    assert (budget.schedule, budget.every, budget.factor) == ("step", 30, 0.1)
    assert set(plan.measures) == {"largest", "gap", "entropy", "jacobian", "gmm", "tta", "native"}


def asked(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.plan_of(parser.parse_args(words))


def test_options_reach_the_plan():
    words = "--data cifar10 --methods erm,mimo,erm --backbones mlp,conv --spectral none,3 --trials 4 --search optuna"
    words += " --seeds 1 --in 0-2,5 --out 7 --no-oracle --epochs 9 --batch 32 --rate 0.2 --every 4"
    words += " --schedule cosine --augment none"
    plan = asked(*words.split(), "--measures", "entropy,largest", "--members", "1,3")
    assert (plan.data, plan.methods, plan.backbones, plan.spectral) == (
        "cifar10",
        ("erm", "mimo"),
        ("mlp", "conv"),
        (None, 3),
    )
    assert (plan.trials, plan.seeds, plan.search, plan.inside, plan.outside) == (4, 1, "optuna", (0, 1, 2, 5), (7,))
    assert (plan.oracle, plan.measures, plan.members) == (False, ("entropy", "largest"), (1, 3))
    budget = plan.training
    assert (budget.epochs, budget.batch, budget.rate, budget.every) == (9, 32, 0.2, 4)
    assert (budget.schedule, budget.augment) == ("cosine", "none")
    words = "--optimizer adamw --momentum 0.5 --decay 0 --warmup 2 --accumulate 4 --clip 1 --precision bf16 --compile"
    budget = asked("--preset", "demo", *words.split()).training
    assert (budget.optimizer, budget.momentum, budget.decay, budget.warmup) == ("adamw", 0.5, 0.0, 2.0)
    assert (budget.accumulate, budget.clip, budget.precision, budget.compile) == (4, 1.0, "bf16", True)
    assert (budget.epochs, budget.batch, budget.every, budget.augment) == (15, 64, 6, "shift")  # as before
    assert asked("--preset", "paper").training == Training()
    assert set(asked().methods) == set(classifiers()) and "knn_distance" in asked("--measures", "all").measures


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--methods erk", "There is no method named 'erk'. Did you mean 'erm'?"),
        ("--preset huge", "There is no preset named 'huge'"),
        ("--out 3", "--out goes with --in"),
        ("--in 0-12", "digits has no class 10: they run from 0 to 9."),
        ("--in 0-5 --out 5-9", "Class 5 is named twice"),
        ("--in 0-9", "nothing is left to be outside"),
        ("--in a", "'a' is not a list of class numbers"),
        ("--trials 0", "--trials must be at least 1, not 0."),
        ("--measures entrophy", "There is no measure named 'entrophy'. Did you mean 'entropy'?"),
        ("--members 0", "An ensemble has at least one member."),
        ("--workers -1", "--workers is a number of processes"),
        ("--momentum -1", "Training.momentum is -1.0: it must be at least 0."),
        ("--clip 0", "Training.clip is 0.0: it must be above 0."),
        ("--accumulate 3", "A batch of 64 cannot be cut into 3 equal parts."),
        ("--accumulate 64", "too small: batch-norm needs two rows"),
        ("--accumulate 3 --features pixels", "A batch of 64 cannot be cut into 3 equal parts."),
        ("--batch 5000", "There are 650 training rows, fewer than one batch of 5000"),
        ("--log paper", "--log takes tensorboard:DIR or wandb:PROJECT"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(words, sentence, tmp_path, capsys):
    code = main(["run", "uimnet", "--workers", "0", "--store", str(tmp_path / "store"), *words.split()])
    err = capsys.readouterr().err
    assert code == 2 and sentence in err and len(err.splitlines()) == 1 and not (tmp_path / "store").exists()


@pytest.mark.parametrize("words", ["--augment warp", "--optimizer sgdd", "--precision half", "--rate much"])
def test_a_word_that_is_none_is_one_sentence(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "uimnet", "--store", str(tmp_path / "store"), *words.split()])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and words.split()[1] in err and len(err.splitlines()) == 1


# ---- what is said on the way


def test_every_network_is_heard_of_when_it_is_there(study, heard, place):
    """Those who watch hear of the start, and of every network's validation NLL and cost."""
    first = [each for each in heard if each[0] == "train and predict"]
    assert first[0] == ("train and predict", 0, 0, 14, None) and first[-1][1:4] == (14, 0, 14)
    found = [each[4] for each in first[1:]]
    assert all(each["images"] == (1078 if "trial" not in each else 650) // 64 * 64 * 2 for each in found)
    assert all(each["seconds"] > 0 and each["images/s"] == each["images"] / each["seconds"] for each in found)
    nlls = {each["trial"]: each["nll"] for each in found if "trial" in each}
    trials = uimnet.trials_of(study.plan)
    assert nlls == {uimnet.title(t): pytest.approx(nll(t, "val", place), rel=1e-5) for t in trials}


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("nescio.commands._study.time.monotonic", lambda: self.now)


def test_lines_tell_pace_and_time_left(monkeypatch, capsys):
    clock, heard = Clock(monkeypatch), []
    lines = Lines(2, heard.append)
    lines("train", 0, 0, 4, None)
    clock.now += 40
    lines("train", 1, 1, 4, None)  # it failed: no images
    clock.now += 60
    lines("train", 2, 1, 4, {"trial": "erm", "nll": 0.5, "images": 3000, "seconds": 2.0, "images/s": 1500.0})
    clock.now += 30
    assert str(lines) == "2 of 4, 1 failed, 3,000 images/s, 0:00:30 left"  # two workers; 60 s at its word, 30 s ago
    lines("train", 4, 1, 4, {"images": 1000, "seconds": 2.0, "images/s": 500.0})
    lines("train", 0, 0, 1, None)  # the next round of a search
    assert capsys.readouterr().err.splitlines() == [
        "train: 0 of 4",
        "train: 1 of 4, 1 failed, 0:01:07 left",
        "train: 2 of 4, 1 failed, 3,000 images/s, 0:01:00 left",
        "train: 4 of 4, 1 failed, 2,000 images/s",
        "train: 0 of 1",
    ]
    assert [(each["step"], each["trial"], each["nll"]) for each in heard] == [(1, "erm", 0.5)]


def test_the_time_left_knows_that_others_are_on_their_way(monkeypatch):
    clock, lines = Clock(monkeypatch), Lines(11)
    lines("train", 0, 0, 11)
    clock.now += 120
    lines("train", 1, 0, 11)
    assert str(lines) == "1 of 11, 0:01:40 left"  # not twenty minutes


def test_a_bar_on_a_terminal_tells_the_same(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock = Clock(monkeypatch)
    with closing(Lines(1)) as lines:
        lines("train", 0, 0, 3)
        clock.now += 60
        lines("train", 1, 0, 3, {"images": 500, "seconds": 2.0, "images/s": 250.0})
    drawn = sys.stderr.getvalue()
    assert "0 of 3" in drawn and "1 of 3, 250 images/s, 0:02:00 left" in drawn


# ---- guided search


@dataclass(frozen=True)
class GuidedRecipe(Learning):
    width: int = hparam(2, choice(1, 2, 3))
    depth: float = hparam(0.5, uniform(0.0, 1.0))


def test_guided_trials_are_replayed_and_learn_from_those_before(monkeypatch, place):
    """Optuna's trials are a function of the results: the same again, and others where the results are others."""
    pytest.importorskip("optuna")
    monkeypatch.setitem(
        registry._parts, "guided", type("Guided", (Method,), {"recipe_class": GuidedRecipe, "name": "guided"})
    )
    plan = replace(PLAN, methods=("guided",), trials=16, search="optuna")
    monkeypatch.setattr(uimnet, "_validation_nll", lambda t, *_: (t.recipe.depth - 0.8) ** 2 + 0.1 * t.recipe.width)
    rounds = []
    first = uimnet._guided(plan, place, rounds.append)
    assert [len(each) for each in rounds] == [2] * 16 and [t for each in rounds for t in each] == first
    assert {t.recipe for t in first if t.trial == 0} == {GuidedRecipe()}  # defaults, a choice among numbers included
    assert uimnet._guided(plan, place, lambda trials: None) == first
    assert uimnet._guided(replace(plan, trials=5), place, lambda trials: None) == [t for t in first if t.trial < 5]
    monkeypatch.setattr(uimnet, "_validation_nll", lambda t, *_: (t.recipe.depth - 0.2) ** 2)
    other = uimnet._guided(plan, place, lambda trials: None)
    same = {a.trial for a, b in zip(first, other, strict=True) if a == b}
    assert same == set(range(uimnet.STARTUP))  # from then on the results have their say

    def failing(trial, *_):
        return None if trial.trial == 1 else 0.5

    monkeypatch.setattr(uimnet, "_validation_nll", failing)  # a trial that failed teaches nothing and stops nothing
    assert len(uimnet._guided(plan, place, lambda trials: None)) == 32


def test_a_guided_study_runs_and_finds_itself_finished(place, monkeypatch):
    pytest.importorskip("optuna")
    plan = replace(PLAN, methods=("erm",), search="optuna", trials=2, seeds=1, oracle=False)
    first = uimnet.run(plan, place, workers=0)
    assert first.failures == [] and {r["trial"] for r in first.rows if r["group"] == "trial"} == {0, 1}
    monkeypatch.setattr(uimnet, "train_and_predict", forbidden)
    again = uimnet.run(plan, place, workers=0)
    assert again.rows == first.rows


def forbidden(*_, **__):
    raise AssertionError("This must not be called.")


# ---- selection


def test_selection_is_by_the_mean_validation_nll_over_data_seeds(study, place):
    trials = uimnet.trials_of(study.plan)
    alive = dict.fromkeys(trials)
    groups = uimnet.chosen(study.plan, alive, study)
    for name in PLAN.methods:
        mean = {
            number: fmean(nll(t, "val", place) for t in trials if (t.method, t.trial) == (name, number))
            for number in range(3)
        }
        order = sorted(mean, key=mean.get)
        for seed in range(2):
            found = [g for g in groups if g.first.method == name and g.data_seed == seed]
            assert [[t.trial for t in g.trials] for g in found] == [order[:1], order[:2]]
            assert all(t.data_seed == seed for g in found for t in g.trials)


def test_selection_never_looks_at_a_single_seed(study):
    """Planted: trial 2 is the best of seed 0, trial 1 the best on average."""
    values = {0: (0.5, 0.5), 1: (0.4, 0.4), 2: (0.1, 0.9)}
    base = dict.fromkeys(study.rows[0]) | {"group": "trial", "split": "val", "metric": "nll", "calibrated": False}
    base |= {"method": "erm", "backbone": "mlp", "members": 1, "measure": None}
    rows = [base | {"trial": t, "data_seed": s, "value": v} for t, pair in values.items() for s, v in enumerate(pair)]
    alive = {t: 2.0 for t in uimnet.trials_of(PLAN) if t.method == "erm"}
    groups = uimnet.chosen(PLAN, alive, uimnet.Study(PLAN, rows))
    assert {tuple(t.trial for t in g.trials) for g in groups} == {(1,), (1, 0)}


def test_where_trials_failed_no_group_stands_twice(study):
    """With one trial left the best two are the best one: averaged with itself it would pretend to have two seeds."""
    rows = [r for r in study.rows if r["group"] == "trial" and r["trial"] == 0]
    alive = {t: 1.5 for t in uimnet.trials_of(PLAN) if t.trial == 0}
    poor = uimnet.Study(PLAN, rows)
    groups = uimnet.chosen(PLAN, alive, poor)
    assert len(groups) == 4 and all(len(g.trials) == 1 for g in groups)
    assert any("the best 2 were asked for and 1 can be compared" in note for note in poor.notes)


# ---- calibration


def test_each_member_is_calibrated_on_its_own_validation_answers_before_the_average(study, place):
    trials = uimnet.trials_of(study.plan)
    alive = {t: uimnet._temperature(uimnet._answers(t, study.plan.outside, place), Store(place.store)) for t in trials}
    for t, temperature in alive.items():
        assert temperature == calibrate.temperature(dump(t, "val", place)).temperature
        best = nll(t, "val", place, temperature)
        assert best <= min(nll(t, "val", place, temperature * f) for f in (0.9, 1.1))
    (group,) = [
        g for g in uimnet.chosen(study.plan, alive, study)
        if (g.first.method, g.data_seed, len(g.trials)) == ("erm", 0, 2)
    ]  # fmt: skip
    own = [alive[t] for t in group.trials]
    assert group.scales(True) == own and group.scales(False) == [1.0, 1.0] and own[0] != own[1]
    for calibrated in (False, True):
        mean = np.mean([
            probs(dump(t, "test", place).logits, s) for t, s in zip(group.trials, group.scales(calibrated), strict=True)
        ], axis=0)  # fmt: skip
        labels = dump(group.first, "test", place).labels
        line = {"method": "erm", "members": 2, "data_seed": 0, "calibrated": calibrated, "split": "test"}
        by_hand = -np.log(mean[np.arange(len(labels)), labels]).mean()
        assert row(study, **line, metric="nll") == pytest.approx(by_hand, rel=1e-6)
        assert row(study, **line, metric="accuracy") == (mean.argmax(1) == labels).mean()


def test_calibration_of_single_networks_changes_no_answer_and_helps(study):
    for name in PLAN.methods:
        for seed in range(2):
            line = {"method": name, "members": 1, "data_seed": seed, "split": "test"}
            assert row(study, **line, metric="accuracy") == pytest.approx(
                row(study, **line, metric="accuracy", calibrated=True), abs=0 if name == "erm" else 0.02
            )


# ---- measures


def entropy(p):
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


def test_an_ensembles_native_score_is_the_divergence_of_its_members(study, place):
    """Of members, not of passes: MC-dropout's ten passes are averaged inside each member."""
    for name in PLAN.methods:
        trials = [t for t in uimnet.trials_of(study.plan) if (t.method, t.data_seed) == (name, 1)]
        best = sorted(trials, key=lambda t: fmean(
            nll(replace(t, data_seed=s), "val", place) for s in range(2)
        ))[:2]  # fmt: skip
        u = {}
        for split in ("test", "out"):
            p = np.stack([probs(dump(t, split, place).logits) for t in best])
            u[split] = entropy(p.mean(0)) - entropy(p).mean(0)
        both = np.concatenate([u["test"], u["out"]])
        new = np.arange(len(both)) >= len(u["test"])
        found = row(study, method=name, members=2, data_seed=1, measure="native", metric="auroc", split="out")
        assert found == pytest.approx(metrics.auroc(both, new), abs=1e-3)


def test_native_scores_of_single_networks_are_their_own(study):
    natives = {r["method"] for r in study.rows if r["measure"] == "native" and r["members"] == 1}
    assert natives == {"mc-dropout"}  # ERM has none
    assert any(each["measure"] == "native" and each["method"] == "erm" for each in study.reasons)


def test_the_gmm_is_fitted_on_validation_rows_with_their_shares(study, place):
    """u = −log Σ_c λ_c N(φ; μ_c, Σ_c) of the validation rows, not of the training rows (UIMNET §4)."""
    groups = uimnet.chosen(study.plan, dict.fromkeys(uimnet.trials_of(study.plan)), study)
    for group in (g for g in groups if (g.first.method, g.data_seed) == ("erm", 0)):
        vals = [dump(t, "val", place) for t in group.trials]
        u = {
            split: np.mean([measures.gmm(v)(dump(t, split, place)) for t, v in zip(group.trials, vals, strict=True)], 0)
            for split in ("test", "out")
        }
        both = np.concatenate([u["test"], u["out"]])
        line = {"method": "erm", "members": len(group.trials), "data_seed": 0, "measure": "gmm"}
        new = np.arange(len(both)) >= len(u["test"])
        assert row(study, **line, metric="auroc", split="out") == metrics.auroc(both, new)
        # a mixture is surer of rows that it has seen: the threshold comes from rows that it has not
        halves = [np.arange(first, len(vals[0]), 2) for first in (0, 1)]
        fresh = np.empty((len(vals), len(vals[0])))
        for member, val in zip(fresh, vals, strict=True):
            for own, others in (halves, halves[::-1]):
                member[own] = measures.gmm(val.take(others))(val.take(own))
        cut = np.quantile(fresh.mean(0), 0.95)
        assert row(study, **line, metric="in_as_in", split="test") == (u["test"] <= cut).mean()
        assert row(study, **line, metric="out_as_out", split="out") == (u["out"] > cut).mean()


def test_the_threshold_is_the_quantile_of_the_validation_rows(study, place):
    groups = uimnet.chosen(study.plan, dict.fromkeys(uimnet.trials_of(study.plan)), study)
    (group,) = [g for g in groups if (g.first.method, g.data_seed, len(g.trials)) == ("erm", 1, 1)]
    u = {split: entropy(probs(dump(group.first, split, place).logits)) for split in ("val", "test", "out")}
    cut = np.quantile(u["val"], 0.95)
    line = {"method": "erm", "members": 1, "data_seed": 1, "measure": "entropy"}
    assert row(study, **line, metric="in_as_in", split="test") == pytest.approx((u["test"] <= cut).mean(), abs=2e-3)
    assert row(study, **line, metric="out_as_out", split="out") == pytest.approx((u["out"] > cut).mean(), abs=2e-3)


def test_an_ensemble_has_the_parameters_of_all_its_members(study, place):
    one = {r["method"]: r["params"] for r in study.rows if r["members"] == 1}
    two = {(r["method"], r["params"]) for r in study.rows if r["members"] == 2}
    assert two == {(name, 2 * one[name]) for name in PLAN.methods} and min(one.values()) > 0


def test_every_measure_meets_every_metric(study):
    found = {(r["measure"], r["metric"]) for r in study.rows if r["group"] is None and r["method"] == "mc-dropout"}
    for measure in PLAN.measures:
        assert {(measure, m) for m in ("auroc", "in_as_in", "out_as_out")} <= found
    assert {(None, m) for m in ("accuracy", "accuracy@5", "ece", "nll")} <= found


# ---- the oracle


def test_the_oracle_is_told_what_is_outside(study, place):
    oracles = [r for r in study.rows if r["method"] == "oracle"]
    assert sorted({r["metric"] for r in oracles}) == ["auroc", "in_as_in", "out_as_out"] and len(oracles) == 6
    assert {r["dataset"] for r in oracles} == {"digits"}
    trials = uimnet.oracle_trials(study.plan)
    assert {t.data for t in trials} == {"binary:digits#0,1,2,3,4,5#6,7,8,9"} and {t.backbone for t in trials} == {"mlp"}
    test, val = (dump_of_key(dump_key(trials[0], split, None, place), place) for split in ("test", "val"))
    u, new = probs(test.logits)[:, 1], test.labels == 1
    line = {"method": "oracle", "measure": "oracle", "data_seed": 0}
    assert row(study, **line, metric="auroc") == pytest.approx(metrics.auroc(u, new), abs=1e-6)
    cut = np.quantile(probs(val.logits)[val.labels == 0, 1], 0.95)
    assert row(study, **line, metric="out_as_out") == pytest.approx((u[new] > cut).mean(), abs=2e-3)
    told = fmean(r["value"] for r in oracles if r["metric"] == "auroc")
    blind = max(
        row(study, method=m, members=1, data_seed=0, measure="entropy", metric="auroc", split="out")
        for m in PLAN.methods
    )
    assert told > blind
    assert tables.table_3(study.rows, "mlp").lines[-1][0].startswith("oracle")


# ---- tables


def test_the_tables_are_means_and_deviations_of_the_rows(study):
    table = tables.table_2(study.rows, "mlp")
    lines = {tuple(table.split(name)): cells for name, cells in table.lines}
    assert len(lines) == 2 * 2 * 2
    for name in PLAN.methods:
        for k in (1, 2):
            for calibrated in (False, True):
                cells = lines[name, str(k), "calibrated" if calibrated else "raw"]
                for cell, metric in zip(cells, ("accuracy", "accuracy@5", "nll", "ece"), strict=True):
                    line = {"method": name, "members": k, "calibrated": calibrated, "split": "test", "metric": metric}
                    values = [row(study, **line, data_seed=seed) for seed in range(2)]
                    assert cell.value == pytest.approx(fmean(values))
                    assert cell.text == f"{fmean(values):.3f} ± {stdev(values):.3f}"


def test_the_appendix_has_a_table_for_every_size_and_every_measure(study):
    """The paper prints one size and one measure; all of them are made (appendices A and B)."""
    from nescio.report.studies import Told, story_of, tables_of

    large = [r | {"backbone": "conv"} for r in study.rows if r["method"] != "oracle"]
    titles = [table.title for table in tables_of(story_of(Told(study.rows + large)))]
    for size in ("mlp", "conv"):
        assert f"In-domain results, {size}" in titles
        for measure in PLAN.measures:
            assert f"Out-domain results, {size}, measure {measure}" in titles
    assert len(titles) == len(set(titles))


def test_main_effects_are_relative_changes_of_means(study):
    table = dict(tables.main_effects(study.rows).lines)
    changes = []
    for name in PLAN.methods:
        for k in (1, 2):
            line = {"method": name, "members": k, "metric": "nll", "split": "test"}
            raw, calibrated = (
                fmean(row(study, **line, data_seed=seed, calibrated=way) for seed in range(2)) for way in (False, True)
            )
            changes.append((calibrated - raw) / raw)
    assert table["calibration (raw → calibrated)"][2].value == pytest.approx(fmean(changes))
    assert set(table) == {"calibration (raw → calibrated)", "ensembling (k = 1 → k = 2)"}


def test_the_plot_has_a_point_for_every_network(study, place):
    points = tables.nll_against_auc(study.rows)
    assert len(points) == 2 * 3 * 2
    trial = next(t for t in uimnet.trials_of(study.plan) if (t.method, t.trial, t.data_seed) == ("erm", 2, 1))
    (point,) = [p for p in points if p["name"] == "erm" and p["about"] == "mlp, trial 2, data seed 1"]
    assert point[tables.NLL] == pytest.approx(nll(trial, "val", place), rel=1e-5)
    u = [entropy(probs(dump(trial, split, place).logits)) for split in ("test", "out")]
    new = np.arange(len(u[0]) + len(u[1])) >= len(u[0])
    assert point[tables.AUC] == pytest.approx(metrics.auroc(np.concatenate(u), new), abs=1e-3)


# ---- again, and more of it


def test_a_new_measure_over_a_finished_study_asks_no_network(study, place, monkeypatch):
    @measures.measure("plain", needs=("logits",))
    def second(predictions):
        """Second largest probability: a measure that was written after the study."""
        p = probs(predictions.logits)
        return np.sort(p, 1)[:, -2]

    asking = ((training, "fit"), (training, "load_method"), (predict, "load_method"))
    for module, name in (*asking, (uimnet, "runtime_of"), (_networks, "runtime_of")):
        monkeypatch.setattr(module, name, forbidden)
    try:
        again = uimnet.run(replace(PLAN, measures=(*PLAN.measures, "second")), place, workers=0)
    finally:
        measures.registry._parts.pop("second")
    assert again.failures == []
    old = [r for r in again.rows if r["measure"] != "second"]
    assert old == study.rows and {r["metric"] for r in again.rows if r["measure"] == "second"} >= {"auroc"}


def test_a_study_is_told_again_from_the_store(study, place, tmp_path):
    from nescio.report.studies import read_study

    runs = [each for each in Store(place.store).runs() if each.stage == "study"]
    held = [read_study(each.folder) for each in runs]
    assert any(each.rows == study.rows and each.plan["trials"] == 3 for each in held)


# ---- dividing the classes


def test_classes_are_divided_once_and_the_tree_is_kept(tmp_path, monkeypatch):
    plan = replace(
        PLAN, inside=None, outside=None, features="pixels", methods=("erm",), trials=1, seeds=1, oracle=False
    )
    place = Place(str(tmp_path), device="cpu")
    first = uimnet.run(plan, place, workers=0)
    inside, outside = first.plan.inside, first.plan.outside
    assert len(inside) == len(outside) and not set(inside) & set(outside)
    held = json.loads(next(tmp_path.glob("evaluate/*/partition.json")).read_text())
    assert tuple(held["inside"]) == inside and held["features"] == "pixels"
    monkeypatch.setattr(uimnet, "_partition_task", forbidden)
    assert uimnet.run(plan, place, workers=0).rows == first.rows


def test_a_reference_network_divides_by_its_features(tmp_path):
    plan = replace(
        PLAN, inside=None, outside=None, features="reference", methods=("erm",), trials=1, seeds=1, oracle=False
    )
    place = Place(str(tmp_path), device="cpu")
    found = uimnet.run(plan, place, workers=0).plan
    from nescio.datasets.partition import class_means, imagenot

    trial = uimnet.reference(plan)
    assert trial.classes is None and trial.method == "erm"
    held = dump_of_key(dump_key(trial, "train", None, place), place)
    from nescio import datasets

    expected = imagenot(datasets.load("digits"), class_means(held.embeddings, held.labels), "reference")
    assert (found.inside, found.outside) == (expected.inside, expected.outside)


def test_a_reference_network_that_fails_is_said(tmp_path, monkeypatch):
    def broken(*_):
        raise training.Diverged("The loss became nan in epoch 1; a smaller learning rate may help.")

    monkeypatch.setattr(training, "fit", broken)
    plan = replace(PLAN, inside=None, outside=None, features="reference")
    with pytest.raises(StoreError, match="The classes could not be divided: The loss became nan"):
        uimnet.run(plan, Place(str(tmp_path), device="cpu"), workers=0)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(BadInput, match="reference or pixels"):
        uimnet._partitioned(replace(PLAN, features="sounds"), Place("nowhere"), forbidden)
    with pytest.raises(BadInput, match="random or optuna"):
        replace(PLAN, search="luck").check()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--backbones", "nope"), "no backbone named 'nope'"),
        (("--backbones", "mlp,nope"), "no backbone named 'nope'"),
        (("--in", "3"), "At least two classes"),
        (("--spectral", "0"), "above 0"),
        (("--partition", "nowhere.json"), "nowhere.json"),
        (("--partition", "{partition}", "--in", "0-5"), "leave --in"),
        (("--partition", "{partition}", "--data", "npz:nothing.npz"), "nothing.npz"),
    ],
)
def test_what_no_trial_could_do_is_refused_before_any_work(words, sentence, tmp_path, capsys):
    from nescio.cli import main

    partition = tmp_path / "imagenot.json"
    assert main(["imagenot", "--data", "digits", "--to", str(partition)]) == 0
    capsys.readouterr()
    words = [word.format(partition=partition) for word in words]
    code = main(["run", "uimnet", "--methods", "erm", "--workers", "0", "--store", str(tmp_path / "store"), *words])
    said = capsys.readouterr().err
    assert code == 2 and sentence in said and said.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_a_partition_file_says_which_classes_are_in(tmp_path):
    import argparse

    from nescio.cli import main
    from nescio.commands._run_uimnet import configure, plan_of
    from nescio.datasets.partition import Partition

    assert main(["imagenot", "--data", "digits", "--to", str(tmp_path / "p.json")]) == 0
    parser = argparse.ArgumentParser()
    configure(parser)
    plan = plan_of(parser.parse_args(["--partition", str(tmp_path / "p.json")]))
    held = Partition.load(tmp_path / "p.json")
    assert (plan.inside, plan.outside) == (held.inside, held.outside)
