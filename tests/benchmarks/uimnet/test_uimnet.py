"""The benchmark, piece by piece: which trials, how they are chosen, calibrated and averaged, and its tables."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio import measures, metrics, training
from nescio.analysis import calibration
from nescio.benchmarks import base, lineup, uimnet
from nescio.benchmarks.uimnet import PRESETS, Plan, reports, steps
from nescio.cli import main
from nescio.commands.parsing import add_options
from nescio.errors import BadInput
from nescio.identity import tag
from nescio.methods import BaseHParams, Method, Output, classifiers, registry
from nescio.methods.base import method
from nescio.options import command_of, instance_of, options_of
from nescio.predict import load_predictions
from nescio.predict import steps as predict_steps
from nescio.predictions import Predictions
from nescio.report.studies import read_study
from nescio.search import draw, hparam, searched, uniform
from nescio.trials import Training
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from nescio.work.store_errors import StoreError

pytestmark = pytest.mark.usefixtures("use_one_thread")
SEEN = (0, 1, 2, 3, 4, 5)
NEW = (6, 7, 8, 9)
PLAN = Plan(
    methods=("erm", "mc-dropout"),
    backbones=("mlp",),
    spectral_bounds=(None,),
    trials=3,
    seeds=2,
    ensemble_sizes=(1, 2),
    classes=SEEN,
    ood_classes=NEW,
    training=Training(epochs=2, batch_size=64, augment="none"),
)


def run(plan, context, watch=None):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["uimnet"], plan, Work(context, launcher, watch))


@pytest.fixture(scope="module")
def heard():
    """What those who watch hear while the study is made."""
    return []


@pytest.fixture(scope="module")
def study(context, heard):
    study = run(PLAN, context, lambda *event: heard.append(event))
    assert study.failures == []
    return study


def dump(trial, split, context):
    return load_predictions(steps.prediction_steps(trial, NEW, None, (split,))[split], context.store)


def probs(logits, temperature=1.0):
    """(n, s, c) to (n, c) in five words: the mean over draws of the softmax."""
    z = np.asarray(logits, np.float64) / temperature
    p = np.exp(z - z.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).mean(1)


def nll(trial, split, context, temperature=1.0):
    held = dump(trial, split, context)
    return -np.log(probs(held.logits, temperature)[np.arange(len(held)), held.labels]).mean()


def without_key(rows):
    """Rows without the evaluation that they are from: another measure is another evaluation."""
    return [row | {"key": None} for row in rows]


def row(study, **facts):
    """The one row with these facts."""
    facts = {"evaluation": "scorecard", "calibrated": False, "measure": None} | facts
    (found,) = [r for r in study.rows if all(r[name] == value for name, value in facts.items())]
    return found["value"]


# ---- which trials


def test_trials_of__trials_are_the_product_and_the_first_is_the_defaults():
    plan = replace(PLAN, backbones=("mlp", "conv"), spectral_bounds=(None, 5.0), methods=tuple(registry))
    trials = steps.trials_of(plan)
    assert len(trials) == len(set(trials)) == len(registry) * 2 * 2 * 3 * 2
    for each in trials:
        cls = registry[each.method].hparams_class
        assert each.hparams == (cls() if each.trial == 0 else draw(cls, each.trial))
        assert each.classes == SEEN and each.training == PLAN.training and each.init_seed == each.trial
    assert [t.trial for t in trials] == sorted(t.trial for t in trials)  # a stopped sweep has every method's defaults
    hparam_sets = {(t.method, t.trial): set() for t in trials}
    for t in trials:
        hparam_sets[t.method, t.trial].add(t.hparams)
    assert {len(each) for each in hparam_sets.values()} == {1}  # one setting over all seeds, sizes and norms
    assert len({r for (name, _), each in hparam_sets.items() if name == "erm" for r in each}) == 3


def test_trials_of__a_new_field_moves_no_other_draw(monkeypatch):
    before = {t.trial: t.hparams for t in steps.trials_of(replace(PLAN, methods=("mixup",)))}

    @dataclass(frozen=True)
    class MixupHParams(registry["mixup"].hparams_class):
        fresh: float = hparam(0.5, uniform(0, 1))

    MixupHParams.__qualname__ = "MixupHParams"  # the same hyper-parameters, one field later
    monkeypatch.setattr(registry["mixup"], "hparams_class", MixupHParams)
    after = {t.trial: t.hparams for t in steps.trials_of(replace(PLAN, methods=("mixup",)))}
    for number, hparams in before.items():
        assert {name: getattr(after[number], name) for name in searched(type(hparams))} == {
            name: getattr(hparams, name) for name in searched(type(hparams))
        }
    assert {each.fresh for each in after.values()} != {0.5}


def test_uimnet__the_paper_preset_is_the_paper():
    """UIMNET §7: ten trials, three data seeds, ResNet-18 and -50, SGD, 100 epochs of 256, rate ÷ 10 every 30 epochs."""
    plan = uimnet.PRESETS["paper"]
    assert (plan.data, plan.backbones, plan.spectral_bounds) == ("imagenet", ("resnet18", "resnet50"), (None, 5.0))
    assert (plan.trials, plan.seeds, plan.ensemble_sizes, plan.classes, plan.oracle) == (10, 3, (1, 5), None, True)
    budget = plan.training
    assert (budget.optimizer, budget.epochs, budget.batch_size) == ("sgd", 100, 256)
    assert (budget.schedule, budget.step_epochs, budget.step_factor) == ("step", 30, 0.1)
    assert set(plan.measures) == {"msp", "gap", "entropy", "jacobian", "gmm", "tta", "native"}


def planned(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, Plan, PRESETS)
    return options_of(parser.parse_args(words), Plan, PRESETS)


def test_with_names__options_reach_the_plan():
    words = "--data cifar10 --methods erm,mimo --backbones mlp,conv --spectral-bounds none,3 --trials 4 --search optuna"
    words += (
        " --seeds 1 --classes 0-2,5 --ood-classes 7 --no-oracle --epochs 9 --batch-size 32 --lr 0.2 --step-epochs 4"
    )
    words += " --schedule cosine --augment none"
    plan = planned(*words.split(), "--measures", "entropy,msp", "--ensemble-sizes", "1,3")
    assert (plan.data, plan.methods, plan.backbones, plan.spectral_bounds) == (
        "cifar10",
        ("erm", "mimo"),
        ("mlp", "conv"),
        (None, 3),
    )
    assert (plan.trials, plan.seeds, plan.search, plan.classes, plan.ood_classes) == (
        4,
        1,
        "optuna",
        (0, 1, 2, 5),
        (7,),
    )
    assert (plan.oracle, plan.measures, plan.ensemble_sizes) == (False, ("entropy", "msp"), (1, 3))
    budget = plan.training
    assert (budget.epochs, budget.batch_size, budget.lr, budget.step_epochs) == (9, 32, 0.2, 4)
    assert (budget.schedule, budget.augment) == ("cosine", "none")
    words = "--optimizer adamw --momentum 0.5 --weight-decay 0 --warmup 2 --accumulate 4"
    words += " --clip 1 --precision bf16 --compile"
    budget = planned("--preset", "demo", *words.split()).training
    assert (budget.optimizer, budget.momentum, budget.weight_decay, budget.warmup) == ("adamw", 0.5, 0.0, 2.0)
    assert (budget.accumulate, budget.clip, budget.precision, budget.compile) == (4, 1.0, "bf16", True)
    assert (budget.epochs, budget.batch_size, budget.step_epochs, budget.augment) == (15, 64, 6, "shift")  # as before
    assert planned("--preset", "paper").training == Training()
    assert planned() == planned("--methods", "all") and planned().methods == ()
    assert "knn_distance" in planned("--measures", "all").measures
    assert set(steps.with_names(planned(), None).methods) == set(classifiers())
    assert steps.with_names(planned("--methods", "erm,mimo,erm"), None).methods == ("erm", "mimo")


def test_command_of__the_command_of_a_finished_plan_gives_it_again(study):
    plan = instance_of(Plan, json.loads(json.dumps(study.plan)))
    assert plan == PLAN
    words = command_of(plan, ("nescio", "run", "uimnet"), PRESETS).split()
    assert planned(*words[3:]) == PLAN


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--methods mixpu", "'mixpu' 'mixup'"),
        ("--preset huge", "'huge' demo"),
        ("--ood-classes 3", "--ood-classes classes"),
        ("--classes 0-12", "digits 10"),
        ("--classes 0-5 --ood-classes 5-9", "Class 5"),
        ("--classes 0-9", "digits 10"),
        ("--classes a", "--classes 'a'"),
        ("--trials 0", "--trials 0 1"),
        ("--measures entrophy", "'entrophy' 'entropy'"),
        ("--ensemble-sizes 0", "ensemble"),
        ("--workers -1", "--workers"),
        ("--momentum -1", "--momentum -1.0"),
        ("--clip 0", "--clip 0.0"),
        ("--accumulate 3", "64 3"),
        ("--accumulate 64", "batch-norm"),
        ("--accumulate 3 --partition-features pixels", "64 3"),
        ("--batch-size 5000", "650 5000"),
        ("--log paper", "--log tensorboard:DIR wandb:PROJECT"),
    ],
)
def test_run__bad_input_is_one_sentence_before_any_work(words, names, tmp_path, capsys):
    code = main(["run", "uimnet", "--workers", "0", "--store", str(tmp_path / "store"), *words.split()])
    err = capsys.readouterr().err
    assert code == 2 and all(name in err for name in names.split()) and len(err.splitlines()) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("words", ["--augment warp", "--optimizer sgdd", "--precision half", "--lr much"])
def test_run__a_word_that_is_none_is_one_sentence(words, tmp_path, capsys):
    assert main(["run", "uimnet", "--store", str(tmp_path / "store"), *words.split()]) == 2
    err = capsys.readouterr().err
    assert words.split()[1] in err and len(err.splitlines()) == 1


# ---- what is said on the way


def test_trials_of__every_network_is_heard_of_when_it_is_there(study, heard, context):
    """Those who watch hear of the start, and of every network's validation NLL and cost."""
    first = [each for each in heard if each[0] == "train and predict"]
    assert first[0][:5] == ("train and predict", 0, 0, 14, None) and first[-1][1:4] == (14, 0, 14)
    found = [each[4] for each in first[1:]]
    assert all(each["images"] == (1078 if "trial" not in each else 650) // 64 * 64 * 2 for each in found)
    assert all(each["seconds"] > 0 and each["images/s"] == each["images"] / each["seconds"] for each in found)
    nlls = {each["trial"]: each["nll"] for each in found if "trial" in each}
    trials = steps.trials_of(PLAN)
    assert nlls == {training.title_of(t): pytest.approx(nll(t, "val", context), rel=1e-5) for t in trials}


# ---- guided search


def test_run__a_guided_study_runs_and_finds_itself_finished(study, context, monkeypatch):
    """The study comes first: both share a store, in which another test counts the trained networks."""
    pytest.importorskip("optuna")
    plan = replace(PLAN, methods=("erm",), search="optuna", trials=2, seeds=1, oracle=False)
    first = run(plan, context)
    assert first.failures == [] and {r["trial"] for r in first.rows if r["evaluation"] == "search"} == {0, 1}
    monkeypatch.setattr(training.steps, "fit", forbidden)
    assert run(plan, context).rows == first.rows


def test_run__a_guided_trial_that_failed_stops_nothing(tmp_path, monkeypatch):
    """One of two trials diverges: the other is selected, and the failure is listed."""
    pytest.importorskip("optuna")
    fit = training.fit

    def diverging(trial, *args):
        if trial.trial == 0:
            raise training.Diverged("The loss became nan in epoch 1.")
        return fit(trial, *args)

    monkeypatch.setattr(training.steps, "fit", diverging)
    plan = replace(PLAN, methods=("erm",), search="optuna", trials=2, seeds=1, oracle=False)
    study = run(plan, Context(Store(tmp_path), device="cpu"))
    (failure,) = study.failures
    assert "nan in epoch 1" in failure.reason
    assert {r["trial"] for r in study.rows if r["evaluation"] == "search"} == {1}


def forbidden(*_, **__):
    raise AssertionError("This must not be called.")


# ---- selection


def selected(rows, notes=None):
    """The averages that are chosen by the validation NLL in these rows."""
    work = Work(Context(None), None)
    groups = lineup.best_averages(
        steps.trials_of(PLAN), PLAN.ensemble_sizes, [row for row in rows if row["evaluation"] == "search"], work
    )
    if notes is not None:
        notes += work.notes
    return groups


def test_best_averages__selection_is_by_the_mean_validation_nll_over_data_seeds(study, context):
    trials = steps.trials_of(PLAN)
    groups = selected(study.rows)
    for name in PLAN.methods:
        mean = {
            number: fmean(nll(t, "val", context) for t in trials if (t.method, t.trial) == (name, number))
            for number in range(3)
        }
        order = sorted(mean, key=mean.get)
        for seed in range(2):
            found = [g for g in groups if g.trial.method == name and g.trial.data_seed == seed]
            assert [[t.trial for t in g.trials] for g in found] == [order[:1], order[:2]]
            assert all(t.data_seed == seed for g in found for t in g.trials)


def test_best_averages__selection_never_looks_at_a_single_seed(study):
    """Planted: trial 2 is the best of seed 0, trial 1 the best on average."""
    values = {0: (0.5, 0.5), 1: (0.4, 0.4), 2: (0.1, 0.9)}
    base = dict.fromkeys(study.rows[0]) | {"evaluation": "search", "split": "val", "metric": "nll", "calibrated": False}
    base |= {"method": "erm", "backbone": "mlp", "members": 1, "measure": None}
    rows = [base | {"trial": t, "data_seed": s, "value": v} for t, pair in values.items() for s, v in enumerate(pair)]
    groups = selected(rows)
    assert {tuple(t.trial for t in g.trials) for g in groups} == {(1,), (1, 0)}


def test_trials_of__where_trials_failed_no_group_stands_twice(study):
    """With one trial left the best two are the best one: averaged with itself it would pretend to have two seeds."""
    rows = [r for r in study.rows if r["evaluation"] == "search" and r["trial"] == 0]
    notes = []
    groups = selected(rows, notes)
    assert len(groups) == 4 and all(len(g.trials) == 1 for g in groups)
    assert any("best 2" in note for note in notes)


# ---- calibration


def test_trial_step__each_member_is_calibrated_on_its_own_validation_answers_before_the_average(study, context):
    trials = steps.trials_of(PLAN)
    alive = {t: steps.read_calibration(steps.trial_step(t, NEW, None), context.store)["temperature"] for t in trials}
    for t, temperature in alive.items():
        assert temperature == calibration.temperature(dump(t, "val", context)).temperature
        best = nll(t, "val", context, temperature)
        assert best <= min(nll(t, "val", context, temperature * f) for f in (0.9, 1.1))
    (group,) = [
        g for g in selected(study.rows)
        if (g.trial.method, g.trial.data_seed, len(g.trials)) == ("erm", 0, 2)
    ]  # fmt: skip
    own = [alive[t] for t in group.trials]
    assert steps.scales_of(group.trials, alive) == own and own[0] != own[1]
    assert steps.scales_of(group.trials, {}) == [1.0, 1.0]
    for calibrated in (False, True):
        mean = np.mean([
            probs(dump(t, "test", context).logits, s)
            for t, s in zip(group.trials, own if calibrated else [1.0, 1.0], strict=True)
        ], axis=0)  # fmt: skip
        labels = dump(group.trial, "test", context).labels
        line = {"method": "erm", "members": 2, "data_seed": 0, "calibrated": calibrated, "split": "test"}
        by_hand = -np.log(mean[np.arange(len(labels)), labels]).mean()
        assert row(study, **line, metric="nll") == pytest.approx(by_hand, rel=1e-6)
        assert row(study, **line, metric="accuracy") == (mean.argmax(1) == labels).mean()


def test_uimnet__calibration_of_single_networks_changes_no_answer_and_helps(study):
    for name in PLAN.methods:
        for seed in range(2):
            line = {"method": name, "members": 1, "data_seed": seed, "split": "test"}
            assert row(study, **line, metric="accuracy") == pytest.approx(
                row(study, **line, metric="accuracy", calibrated=True), abs=0 if name == "erm" else 0.02
            )


@pytest.mark.parametrize(("right", "reason"), [(True, "right"), (False, "wrong")])
def test_uncalibrated_notes__a_network_without_a_temperature_says_the_right_reason(right, reason, study):
    labels = np.arange(60) % 6
    logits = 4 * np.eye(6)[labels if right else (labels + 1) % 6]
    temperature, why = calibration.temperature_or_reason(
        Predictions(index=np.arange(60), labels=labels, logits=logits[:, None])
    )
    assert temperature is None and reason in why
    trials = [t for t in steps.trials_of(PLAN) if t.method == "erm"]
    (note,) = steps.uncalibrated_notes(dict.fromkeys(trials, why))
    assert "erm" in note and "temperature 1" in note and why in note
    assert not any("temperature 1" in note for note in study.notes)


# ---- measures


def test_line_step__the_jacobian_is_exact_where_the_plan_asks_for_it(study, context):
    assert any("jacobian" in note and "exact" in note for note in study.notes)  # of six classes
    group = lineup.average(steps.trials_of(PLAN)[:1], None)
    for exact in (False, True):
        step = steps.line_step(group, {}, False, replace(PLAN, exact_jacobian=exact), None)
        assert [parent.config["exact"] for parent in step.parents[:3]] == [exact] * 3
    parser = argparse.ArgumentParser()
    add_options(parser, Plan)
    assert options_of(parser.parse_args(["--exact-jacobian"]), Plan).exact_jacobian


def entropy(p):
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


def test_trials_of__an_ensembles_native_score_is_the_divergence_of_its_members(study, context):
    """Of members, not of passes: MC-dropout's ten passes are averaged inside each member."""
    for name in PLAN.methods:
        trials = [t for t in steps.trials_of(PLAN) if (t.method, t.data_seed) == (name, 1)]
        best = sorted(trials, key=lambda t: fmean(
            nll(replace(t, data_seed=s), "val", context) for s in range(2)
        ))[:2]  # fmt: skip
        u = {}
        for split in ("test", "out"):
            p = np.stack([probs(dump(t, split, context).logits) for t in best])
            u[split] = entropy(p.mean(0)) - entropy(p).mean(0)
        both = np.concatenate([u["test"], u["out"]])
        new = np.arange(len(both)) >= len(u["test"])
        found = row(study, method=name, members=2, data_seed=1, measure="native", metric="auroc", split="out")
        assert found == pytest.approx(metrics.auroc(both, new), abs=1e-3)


def test_uimnet__native_scores_of_single_networks_are_their_own(study):
    natives = {r["method"] for r in study.rows if r["measure"] == "native" and r["members"] == 1}
    assert natives == {"mc-dropout"}  # ERM has none
    assert any(each["measure"] == "native" and each["method"] == "erm" for each in study.reasons)


def test_gmm__the_gmm_is_fitted_on_validation_rows_with_their_shares(study, context):
    """u = −log Σ_c λ_c N(φ; μ_c, Σ_c) of the validation rows, not of the training rows (UIMNET §4)."""
    groups = selected(study.rows)
    for group in (g for g in groups if (g.trial.method, g.trial.data_seed) == ("erm", 0)):
        vals = [dump(t, "val", context) for t in group.trials]
        u = {
            split: np.mean(
                [measures.gmm(v)(dump(t, split, context)) for t, v in zip(group.trials, vals, strict=True)], 0
            )
            for split in ("test", "out")
        }
        both = np.concatenate([u["test"], u["out"]])
        line = {"method": "erm", "members": len(group.trials), "data_seed": 0, "measure": "gmm"}
        new = np.arange(len(both)) >= len(u["test"])
        assert row(study, **line, metric="auroc", split="out") == metrics.auroc(both, new)
        # a mixture is surer of rows that it has seen: the threshold comes from rows that it has not
        fresh = np.array([measures.gmm(val).leave_one_out(val) for val in vals])
        cut = np.quantile(fresh.mean(0), 0.95)
        assert row(study, **line, metric="in_as_in", split="test") == (u["test"] <= cut).mean()
        assert row(study, **line, metric="out_as_out", split="out") == (u["out"] > cut).mean()


def test_trials_of__the_threshold_is_the_quantile_of_the_validation_rows(study, context):
    groups = selected(study.rows)
    (group,) = [g for g in groups if (g.trial.method, g.trial.data_seed, len(g.trials)) == ("erm", 1, 1)]
    u = {split: entropy(probs(dump(group.trial, split, context).logits)) for split in ("val", "test", "out")}
    cut = np.quantile(u["val"], 0.95)
    line = {"method": "erm", "members": 1, "data_seed": 1, "measure": "entropy"}
    assert row(study, **line, metric="in_as_in", split="test") == pytest.approx((u["test"] <= cut).mean(), abs=2e-3)
    assert row(study, **line, metric="out_as_out", split="out") == pytest.approx((u["out"] > cut).mean(), abs=2e-3)


def test_uimnet__an_ensemble_has_the_parameters_of_all_its_members(study):
    one = {r["method"]: r["params"] for r in study.frame if r["members"] == 1}
    two = {(r["method"], r["params"]) for r in study.frame if r["members"] == 2}
    assert two == {(name, 2 * one[name]) for name in PLAN.methods} and min(one.values()) > 0


def test_uimnet__every_measure_meets_every_metric(study):
    found = {
        (r["measure"], r["metric"])
        for r in study.rows
        if r["evaluation"] == "scorecard" and r["method"] == "mc-dropout"
    }
    for measure in PLAN.measures:
        assert {(measure, m) for m in ("auroc", "in_as_in", "out_as_out")} <= found
    assert {(None, m) for m in ("accuracy", "accuracy@5", "ece", "nll")} <= found


# ---- the oracle


def test_oracle_trials__the_oracle_is_told_what_is_outside(study, context):
    oracles = [r for r in study.rows if r["method"] == "oracle"]
    assert sorted({r["metric"] for r in oracles}) == ["auroc", "in_as_in", "out_as_out"] and len(oracles) == 6
    assert {r["dataset"] for r in oracles} == {"digits"}
    trials = steps.oracle_trials(PLAN)
    assert {t.data for t in trials} == {"binary:digits#0,1,2,3,4,5#6,7,8,9"} and {t.backbone for t in trials} == {"mlp"}
    test, val = (dump(trials[0], split, context) for split in ("test", "val"))
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
    table = reports.table_3(study.frame).options["entropy"][0]
    assert table.rows[-1][0][0] == "oracle"


# ---- tables


def test_table_2__the_tables_are_means_and_deviations_of_the_rows(study):
    (table,) = reports.table_2(study.frame)
    assert table.index == ("algorithm", "k", "calibration") and len(table.rows) == 2 * 2 * 2
    lines = dict(table.rows)
    for name in PLAN.methods:
        for k in (1, 2):
            for calibrated in (False, True):
                cells = lines[name, str(k), "calibrated" if calibrated else "raw"]
                for cell, metric in zip(cells, ("accuracy", "accuracy@5", "nll", "ece"), strict=True):
                    line = {"method": name, "members": k, "calibrated": calibrated, "split": "test", "metric": metric}
                    values = [row(study, **line, data_seed=seed) for seed in range(2)]
                    assert (cell.value, cell.spread) == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
                    assert cell.n == 2


def test_table_3__the_appendix_has_a_table_for_every_size_and_every_measure(study):
    """The paper prints one size and one measure; all of them are made (appendices A and B)."""
    large = [r | {"backbone": "conv"} for r in study.rows if r["method"] != "oracle"]
    frame = replace(study, rows=study.rows + large).frame
    inside = [table.title for table in reports.table_2(frame)]
    assert inside == [f"In-distribution results, {size}" for size in ("mlp", "conv")]
    options = reports.table_3(frame).options
    assert set(options) == set(PLAN.measures)
    for measure, tables in options.items():
        titles = [table.title for table in tables]
        assert titles == [f"Out-of-distribution results, {size}, measure {measure}" for size in ("mlp", "conv")]


def test_effects__main_effects_are_relative_changes_of_means(study):
    table = reports.effects(study.frame)
    changes = []
    for name in PLAN.methods:
        for k in (1, 2):
            line = {"method": name, "members": k, "metric": "nll", "split": "test"}
            raw, calibrated = (
                fmean(row(study, **line, data_seed=seed, calibrated=way) for seed in range(2)) for way in (False, True)
            )
            changes.append((calibrated - raw) / raw)
    cells = dict(table.rows)
    assert set(cells) == {("calibration (raw → calibrated)",), ("ensembling (k = 1 → k = 2)",)}
    assert cells["calibration (raw → calibrated)",][2].value == pytest.approx(fmean(changes))


def test_nll_against_auc__the_plot_has_a_point_for_every_network(study, context):
    points = reports.nll_against_auc(study.frame)
    assert len(points) == 2 * 3 * 2
    trial = next(t for t in steps.trials_of(PLAN) if (t.method, t.trial, t.data_seed) == ("erm", 2, 1))
    (point,) = [p for p in points if p["name"] == "erm" and p["about"] == "mlp, trial 2, data seed 1"]
    assert point[reports.NLL] == pytest.approx(nll(trial, "val", context), rel=1e-5)
    u = [entropy(probs(dump(trial, split, context).logits)) for split in ("test", "out")]
    new = np.arange(len(u[0]) + len(u[1])) >= len(u[0])
    assert point[reports.AUC] == pytest.approx(metrics.auroc(np.concatenate(u), new), abs=1e-3)


# ---- scores of methods


@tag("recipe:two scores")
@dataclass(frozen=True)
class TwoScoresHParams(BaseHParams):
    """Nothing of its own."""


class TwoScores(Method):
    """A classifier with two uncertainties of its own: the length of its features, and minus the largest logit."""

    scores = ("length", "height")

    def forward(self, x):
        features = self.features(x)
        logits = self.head(features)
        own = {"length": -features.norm(dim=1), "height": -logits.max(1).values}
        return Output(logits[:, None], features, own)


@pytest.fixture
def two_scores():
    method("two-scores", TwoScoresHParams)(TwoScores)
    yield
    registry._parts.pop("two-scores")


def test_trials_of__every_score_of_a_method_is_a_measure_from_training_to_a_row(two_scores, tmp_path):
    context = Context(Store(tmp_path), device="cpu")
    names = ("native", "length", "height", "entropy")
    plan = replace(
        PLAN, methods=("erm", "two-scores"), trials=1, seeds=1, ensemble_sizes=(1,), oracle=False, measures=names
    )
    study = run(plan, context)
    assert study.failures == []
    trial = next(trial for trial in steps.trials_of(plan) if trial.method == "two-scores")
    own = {split: dump(trial, split, context) for split in ("test", "out")}
    assert list(own["test"].scores) == ["native", "length", "height"]
    for name in ("native", "length", "height"):
        u = [own[split].scores[name] for split in ("test", "out")]
        new = np.arange(len(u[0]) + len(u[1])) >= len(u[0])
        found = row(study, method="two-scores", measure=name, metric="auroc", split="out")
        assert found == pytest.approx(metrics.auroc(np.concatenate(u), new), abs=1e-3)
    assert row(study, method="two-scores", measure="native", metric="auroc", split="out") == row(
        study, method="two-scores", measure="length", metric="auroc", split="out"
    )  # the first is the native one
    assert {r["measure"] for r in study.rows if r["method"] == "erm"} == {None, "entropy"}
    absent = {(reason["method"], reason["measure"]) for reason in study.reasons if reason["metric"] is None}
    assert {("erm", "length"), ("erm", "height"), ("erm", "native")} <= absent
    with pytest.raises(BadInput, match="'width'"):
        run(replace(plan, measures=("width",)), context)


# ---- again, and more of it


def test_measure__a_new_measure_over_a_finished_study_asks_no_network(study, context, monkeypatch):
    @measures.measure("plain", needs=("logits",))
    def second(predictions):
        """Second largest probability: a measure that was written after the study."""
        p = probs(predictions.logits)
        return np.sort(p, 1)[:, -2]

    for module, name in (
        (training, "fit"),
        (training, "load_method"),
        (predict_steps, "build"),
        (predict_steps, "runtime_for"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    try:
        again = run(replace(PLAN, measures=(*PLAN.measures, "second")), context)
    finally:
        measures.registry._parts.pop("second")
    assert again.failures == []
    old = [r for r in again.rows if r["measure"] != "second"]
    assert without_key(old) == without_key(study.rows) and {
        r["metric"] for r in again.rows if r["measure"] == "second"
    } >= {"auroc"}


def test_uimnet__a_study_is_told_again_from_the_store(study, context):
    kept = [read_study(run.folder) for run in context.store.runs() if run.stage == "study"]
    assert any(each.rows == study.rows and each.plan["trials"] == 3 for each in kept)


# ---- dividing the classes

DIVIDED = replace(PLAN, classes=None, ood_classes=None, methods=("erm",), trials=1, seeds=1, oracle=False)


def test_run__classes_are_divided_once_and_the_tree_is_kept(tmp_path, monkeypatch):
    plan, context = replace(DIVIDED, partition_features="pixels"), Context(Store(tmp_path), device="cpu")
    first = run(plan, context)
    inside, outside = first.plan["classes"], first.plan["ood_classes"]
    assert len(inside) == len(outside) and not set(inside) & set(outside)
    kept = json.loads(next(tmp_path.glob("evaluate/*/partition.json")).read_text())
    assert tuple(kept["inside"]) == inside and kept["features"] == "pixels"
    monkeypatch.setattr(steps, "pixel_means", forbidden)
    assert run(plan, context).rows == first.rows


def test_reference__a_reference_network_divides_by_its_features(tmp_path):
    from nescio import datasets
    from nescio.datasets.partition import class_means, imagenot

    plan, context = replace(DIVIDED, partition_features="reference"), Context(Store(tmp_path), device="cpu")
    found = run(plan, context).plan
    trial = steps.reference(plan)
    assert trial.classes is None and trial.method == "erm"
    seen = load_predictions(steps.prediction_steps(trial, None, None, ("train",))["train"], context.store)
    assert len(seen) == 1078  # the training rows, without those held out
    expected = imagenot(datasets.load("digits"), class_means(seen.embeddings, seen.labels), "reference")
    assert (found["classes"], found["ood_classes"]) == (expected.inside, expected.outside)


def test_run__a_reference_network_that_fails_is_said(tmp_path, monkeypatch):
    def broken(*_):
        raise training.Diverged("The loss became nan in epoch 1; a smaller learning rate may help.")

    monkeypatch.setattr(training.steps, "fit", broken)
    with pytest.raises(StoreError, match="nan in epoch 1"):
        run(replace(DIVIDED, partition_features="reference"), Context(Store(tmp_path), device="cpu"))


def test_uimnet__what_cannot_be_done_is_refused():
    for field, value in (("partition_features", "sounds"), ("search", "luck")):
        with pytest.raises(BadInput, match=f"Plan.{field}.*'{value}'"):
            replace(PLAN, **{field: value})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--backbones", "nope"), "'nope'"),
        (("--backbones", "mlp,nope"), "'nope'"),
        (("--classes", "3"), "two classes"),
        (("--spectral-bounds", "0"), "above 0"),
        (("--methods", "simclr"), "simclr"),
        (("--partition", "nowhere.json"), "nowhere.json"),
        (("--partition", "{partition}", "--classes", "0-5"), "omit --classes"),
        (("--partition", "{partition}", "--data", "npz:nothing.npz"), "nothing.npz"),
    ],
)
def test_imagenot__what_no_trial_could_do_is_refused_before_any_work(words, sentence, tmp_path, capsys):
    partition = tmp_path / "imagenot.json"
    assert main(["imagenot", "--data", "digits", "--output", str(partition)]) == 0
    capsys.readouterr()
    words = [word.format(partition=partition) for word in words]
    code = main(["run", "uimnet", "--methods", "erm", "--workers", "0", "--store", str(tmp_path / "store"), *words])
    said = capsys.readouterr().err
    assert code == 2 and sentence in said and said.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_imagenot__a_partition_file_says_which_classes_are_in(tmp_path, capsys):
    from nescio.datasets.partition import Partition

    path = tmp_path / "p.json"
    assert main(["imagenot", "--data", "digits", "--output", str(path)]) == 0
    made = Partition.load(path)
    plan = replace(DIVIDED, partition=str(path))
    assert planned("--partition", str(path)).partition == str(path)
    with make_launcher("local", 0) as launcher:
        found = steps.with_classes(plan, Work(Context(Store(tmp_path), device="cpu"), launcher), forbidden)
    assert (found.classes, found.ood_classes, found.partition) == (made.inside, made.outside, None)
