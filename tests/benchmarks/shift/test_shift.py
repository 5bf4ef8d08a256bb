"""The benchmark, piece by piece: which networks, which strength, what is pooled, and what stands on the page."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from nescio import datasets, measures, metrics
from nescio.benchmarks import base, lineup
from nescio.benchmarks.lineup import refuse_classification
from nescio.benchmarks.shift import PRESETS, Plan, reports, steps
from nescio.benchmarks.shift import lines as shift_lines
from nescio.cli import main
from nescio.datasets.corruptions import CORRUPTIONS, Corruption
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.evaluations import average_predictions
from nescio.evaluations.ood import MOST
from nescio.evaluations.scoring import rank_rows, rank_sets
from nescio.evaluations.shift import RANKING, CorruptionShift
from nescio.methods import registry as methods
from nescio.networks.models import build, network_of_trial
from nescio.predict import inputs, load_predictions, predict_step
from nescio.predict import steps as predict_steps
from nescio.predictions import stack
from nescio.report.blocks import figures_of, tables_of
from nescio.report.frame import Frame
from nescio.report.labels import metric_legend
from nescio.report.studies import read_study
from nescio.rows import RowBuilder
from nescio.runtime import runtime_for
from nescio.training import facts_of, title_of, train_step
from nescio.trials import Training
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.shift_trials import shift_trials
from tests.support.warm import Warm
from tests.support.zoo_help import checkpoint, pack

pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("use_one_thread")
NAMES = {1: "erm", 2: "deep-ensemble"}  # by the number of networks
OPTIONS = (
    *(
        "run",
        "shift",
        "--methods",
        "erm,ddu,mc-dropout,deep-ensemble",
        "--backbone",
        "mlp",
        "--seeds",
        "2",
        "--strengths",
        "3",
    ),
    *("--ensemble-sizes", "2", "--corruptions", "gaussian_noise,contrast", "--severities", "1,5", "--epochs", "2"),
    *("--workers", "0", "--device", "cpu"),
)
PLAN = replace(
    PRESETS["small"],
    methods=("erm", "ddu", "mc-dropout", "deep-ensemble"),
    backbone="mlp",
    strengths=3,
    ensemble_sizes=(2,),
    corruptions=("gaussian_noise", "contrast"),
    severities=(1, 5),
    training=replace(PRESETS["small"].training, epochs=2),
)


def run(plan, context):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["shift"], plan, Work(context, launcher))


@pytest.fixture(scope="module")
def calls():
    """What was computed while the study was made."""
    return {"built": [], "corrupted": []}


@pytest.fixture(scope="module")
def study(context, place, calls):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 8, 8, 1), np.uint8), np.arange(40) % 3
    np.savez(place / "noise.npz", x_train=images[:20], y_train=labels[:20], x_test=images[20:], y_test=labels[20:])
    build, apply = predict_steps.build, Corruption.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict_steps, "build", lambda *words: calls["built"].append(words[0]) or build(*words))
        patch.setattr(Corruption, "apply", lambda self, *rest: calls["corrupted"].append(self) or apply(self, *rest))
        predict_steps._last_built.cache_clear()
        inputs._changed_images.clear()
        study = run(replace(PLAN, ood=(f"npz:{place / 'noise.npz'}",)), context)
    assert study.failures == []
    return study


def dump(trial, context, change=None, split="test", **more):
    images = ImageSet("digits", split, change=change, **more)
    return load_predictions(predict_step(network_of_trial(trial), images, output_spec=steps.OUTPUTS), context.store)


def value(study, **facts):
    """The one number with these facts."""
    (found,) = [row for row in study.frame if all(row[name] == wanted for name, wanted in facts.items())]
    return found["value"]


def lines(plan=PLAN, **numbers):
    return shift_trials(plan, {"erm": 0, "ddu": 1, "mc-dropout": 0} | numbers)


# ---- which networks


def test_shift__data_and_init_seeds_move_with_the_run_and_ensembles_are_disjoint():
    members = {}
    for trials in lines(replace(PLAN, seeds=3, ensemble_sizes=(2, 4))):
        assert {trial.data_seed for trial in trials} == {trials[0].data_seed}
        members[trials[0].method, len(trials), trials[0].data_seed] = [trial.init_seed for trial in trials]
    assert members["erm", 4, 0] == [0, 1000, 2000, 3000] and members["erm", 2, 1] == [1, 1001]
    assert members["ddu", 1, 2] == [2]
    every = [seed for (_, size, _), seeds in members.items() if size == 4 for seed in seeds]
    assert len(every) == len(set(every)) == 12
    assert not any(method != "erm" and size > 1 for method, size, _ in members)
    assert {size for _, size, _ in members} == {1, 2, 4}


def test_shift__more_runs_and_members_train_no_network_again():
    few = {trial for trials in lines(replace(PLAN, seeds=2, ensemble_sizes=())) for trial in trials}
    more = {trial for trials in lines(replace(PLAN, seeds=3, ensemble_sizes=(2, 4))) for trial in trials}
    assert few < more


@pytest.mark.parametrize("name", ["erm", "ddu", "mc-dropout"])
def test_shift__a_trained_head_keeps_its_digits_in_bf16(name, study, context):
    """As that of a pretrained network: entropies of three digits would be tied."""
    (trial,) = next(trials for trials in lines() if trials[0].method == name)
    module, _ = build(network_of_trial(trial), context.store, replace(runtime_for("cpu"), precision="bf16"))
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = module(torch.rand(20, 1, 8, 8)).logits
    assert logits.dtype == torch.float32 and (logits != logits.bfloat16()).float().mean() > 0.9


def test_plain_trial__a_method_that_compares_views_has_augmentations_of_its_own():
    """On images that were only moved, contrastive training would have next to nothing to learn."""
    kinds = {name: steps.plain_trial(PLAN, name).training.augment for name in ("erm", "dcu", "dcs")}
    assert kinds == {"erm": "shift", "dcu": "full", "dcs": "shift"}


def test_training__rows_say_whether_a_bound_acts_and_whether_gaussians_are_singular(study):
    facts = study.frame.where(split="test", data_seed=0).facts("at_bound", "rows_per_feature").where(method="ddu")
    assert 0 <= facts.where(metric="at_bound").first() <= 1
    assert facts.where(metric="rows_per_feature").first() == pytest.approx(100 / 100, rel=0.3)  # of a class of digits
    assert not study.frame.where(method="erm").facts("at_bound")
    made = reports.training(study.frame)
    assert list(made.columns) == ["training accuracy ↑", "layers at their bound"]
    few = [row | {"rows_per_feature": row.get("rows_per_feature") and 0.18} for row in study.frame]
    assert "0.18 training rows" in reports.training(type(study.frame)(few)).note
    many = [row | {"rows_per_feature": row.get("rows_per_feature") and 9.0} for row in study.frame]
    assert "singular" not in reports.training(type(study.frame)(many)).note


def test_table_2__a_line_with_two_networks_in_one_run_is_refused(study):
    """As of two studies, one of which chose another strength."""
    other = [row | {"trial": 2} for row in study.frame if row["method"] == "ddu"]
    with pytest.raises(BadInput, match="ddu with seed 0 on digits"):
        reports.table_2(type(study.frame)([*study.frame, *other]))


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_shift__a_measure_that_is_not_finite_costs_its_own_rows_alone(number):
    rows = RowBuilder({"method": "erm", "members": 1, "split": "test"})
    u = {"native": np.array([0.1, number, 0.3, 0.2]), "entropy": np.array([0.1, 0.4, 0.3, 0.2])}
    rank_rows(u, np.array([False, True, True, False]), RANKING, rows)
    rank_sets(u, u, ("auroc",), rows, target="noise")
    assert {row["measure"] for row in rows.rows} == {"entropy"} and len(rows.rows) == 3
    assert {entry["measure"] for entry in rows.reasons} == {"native"} and "finite" in rows.reasons[0]["reason"]


def test_shift__reasons_say_of_which_line_and_where():
    rows = RowBuilder({"method": "erm", "members": 5, "split": "test"}, reported=("method", "members"))
    rows.attempt(
        "auroc",
        partial(metrics.auroc, [0.1, 0.2], [False, False]),
        2,
        measure="entropy",
        shift="contrast",
        severity=1.0,
    )
    (entry,) = rows.reasons
    named = {"method": "erm", "members": 5, "measure": "entropy", "metric": "auroc", "shift": "contrast"}
    assert entry == named | {"severity": 1.0, "split": "test", "reason": entry["reason"]}


def test_shift__other_methods_can_be_averaged_too():
    plan = replace(PLAN, methods=PLAN.methods[:3], ensemble_methods=("ddu", "mc-dropout"))
    sizes = {(trials[0].method, len(trials)) for trials in lines(plan)}
    assert sizes == {("erm", 1), ("ddu", 1), ("mc-dropout", 1), ("ddu", 2), ("mc-dropout", 2)}


@pytest.mark.parametrize("name", [name for name in methods if methods[name].strength_hparam])
def test_strength_of__strengths_run_from_the_weakest_to_the_strongest(name):
    trials = [lineup.with_strength(steps.plain_trial(PLAN, name), number, 4) for number in range(4)]
    values = [lineup.strength_of(trial) for trial in trials]
    assert [trial.trial for trial in trials] == [0, 1, 2, 3] and len(set(values)) == 4
    assert values == sorted(values, reverse=methods[name].strength_direction == "smaller")
    assert lineup.with_strength(trials[0], 0, 1) == trials[0]  # one strength: as it is


@pytest.mark.parametrize("name", [name for name in methods if methods[name].strength_hparam])
def test_strength_of__a_methods_own_strength_is_among_those_that_are_tried(name):
    plain = steps.plain_trial(PLAN, name)
    tried = [lineup.strength_of(lineup.with_strength(plain, number, 3, default=True)) for number in range(3)]
    assert lineup.strength_of(plain) in tried and len(set(tried) - set(methods[name].strength_grid(3))) <= 1
    assert tried == sorted(tried, reverse=methods[name].strength_direction == "smaller")


def test_with_strength__the_chosen_strength_has_the_lowest_validation_nll(study, context):
    losses = []
    for number in range(3):
        trial = lineup.with_strength(steps.plain_trial(PLAN, "ddu"), number, 3, default=True)
        held = dump(trial, context, split="val")
        p = np.exp(np.asarray(held.logits[:, 0], np.float64))
        losses.append(-np.log((p / p.sum(1, keepdims=True))[np.arange(len(held)), held.labels]).mean())
        assert losses[-1] == pytest.approx(value(study, split="val", method="ddu", trial=number, metric="nll"))
    tested = {row["trial"] for row in study.frame if row["method"] == "ddu" and row["split"] == "test"}
    assert tested == {int(np.argmin(losses))} and len(set(losses)) == 3
    chosen = [labels[-1] for labels, cells in reports.strengths(study.frame).rows if cells[1] is not None]
    assert chosen == [f"{(12, 3, 0.5)[int(np.argmin(losses))]:g}"]  # its default of 3 in place of 2.45


def test_choose_strengths__one_strength_is_the_default_and_none_is_tried(context):
    with make_launcher("local", 0) as launcher:
        work = Work(context, launcher)
        assert steps.choose_strengths(replace(PLAN, strengths=1), work) == {"erm": 0, "ddu": 0, "mc-dropout": 0}
    assert work.rows == []
    (ddu,) = {
        trial.hparams for trials in lines(replace(PLAN, strengths=1)) for trial in trials if trial.method == "ddu"
    }
    assert ddu == methods["ddu"].hparams_class()


# ---- what is said of them


def by_hand(member_dumps):
    """(entropy, wrong) of an average of members."""
    z = np.concatenate([np.asarray(each.logits, np.float64) for each in member_dumps], 1)
    p = np.exp(z - z.max(-1, keepdims=True))
    p = (p / p.sum(-1, keepdims=True)).mean(1)
    return -(p * np.log(p)).sum(1), p.argmax(1) != member_dumps[0].labels


@pytest.mark.parametrize("size", [1, 2])
def test_corruption__pooling_is_clean_and_all_severities_of_a_corruption_together(study, context, size):
    (trials,) = [each for each in lines() if (each[0].method, each[0].data_seed, len(each)) == ("erm", 1, size)]
    facts = {"method": NAMES[size], "members": size, "data_seed": 1, "split": "test"}
    pooled = []
    for name in PLAN.corruptions:
        u, wrong = [], []
        for change in (None, Corruption(name, 1), Corruption(name, 5)):
            here = by_hand([dump(trial, context, change) for trial in trials])
            level = {"shift": change.name, "severity": change.severity} if change else {"shift": "clean"}
            assert value(study, **facts, **level, metric="accuracy") == pytest.approx(1 - here[1].mean())
            auroc = metrics.auroc(*here)
            assert value(study, **facts, **level, metric="auroc", measure="entropy") == pytest.approx(auroc, abs=1e-6)
            u.append(here[0])
            wrong.append(here[1])
        expected = metrics.raulc(np.concatenate(u), np.concatenate(wrong))
        found = value(study, **facts, shift=name, severity=None, metric="raulc", measure="entropy")
        assert found == pytest.approx(expected, abs=1e-6)
        pooled.append(found)
    mean = shift_lines.pooled_rows(study.frame).where(
        method=NAMES[size], members=size, data_seed=1, metric="raulc", measure="entropy"
    )
    assert mean.first() == pytest.approx(fmean(pooled)) and pooled[0] != pooled[1]


def test_mutual_information__an_ensemble_of_one_is_its_member_and_one_of_two_has_its_mutual_information(study, context):
    first, second = next(trials for trials in lines() if len(trials) == 2)
    a, b = dump(first, context), dump(second, context)
    assert average_predictions([a]) is a
    both = average_predictions([a, b])
    assert np.array_equal(both.scores["native"], measures.mutual_information(stack([a, b])))
    same = average_predictions([a, a])
    assert np.allclose(measures.entropy(same), measures.entropy(a)) and np.allclose(same.scores["native"], 0, atol=1e-6)


def test_shift__a_method_without_a_score_of_its_own_says_so_and_has_the_entropy(study):
    assert {row["measure"] for row in study.frame if row["method"] == "erm" and row["members"] == 1} == {
        None,
        "entropy",
    }
    assert any(row["method"] == "erm" and row["measure"] == "native" for row in study.reasons)
    assert {row["measure"] for row in study.frame if row["method"] == "ddu"} == {None, "native", "entropy"}


def test_image_set__images_of_another_set_against_clean_ones(study, context, place):
    (trial,) = lines()[0]
    data = f"npz:{place / 'noise.npz'}"
    images = ImageSet(data, "all_ood", limit=MOST)
    out = load_predictions(predict_step(network_of_trial(trial), images, output_spec=steps.OUTPUTS), context.store)
    u, others = by_hand([dump(trial, context)])[0], measures.entropy(out)
    assert len(others) == 40
    wins = (others[:, None] > u).mean() + (others[:, None] == u).mean() / 2
    facts = {"method": "erm", "members": 1, "data_seed": 0, "metric": "auroc"}
    assert value(study, **facts, evaluation="ood", target=data) == pytest.approx(wins, abs=1e-6)


def test_shift__every_corruption_is_computed_once_and_every_network_built_once_per_evaluation(study, calls):
    corrupted = [(change.name, change.severity) for change in calls["corrupted"]]
    blocks = -(-len(ImageSet("digits").load()) // inputs.BATCH["cpu"])
    assert len(corrupted) == 2 * 2 * blocks  # two corruptions at two severities, not once for each of ten networks
    networks = [network.name for network in calls["built"]]
    # shift and OOD; the first seed's ddu is built for its validation images too
    assert len(networks) <= 2 * len(set(networks)) + 3 and len(set(networks)) == 3 * 2 + 2 + 2


def test_shift__what_has_no_room_is_computed_again(monkeypatch, context, study):
    (trial,) = lines()[0]
    shown = ImageSet("digits", change=Corruption("fog", 2)).load()
    network, here = network_of_trial(trial), runtime_for("cpu")
    inputs._changed_images.clear()
    monkeypatch.setattr(inputs, "CPU_CACHE_BYTES", 0)
    first = [x for x, _ in inputs.input_batches(network, shown, context.store, here, 200)]
    assert inputs._changed_images == {}
    monkeypatch.setattr(inputs, "CPU_CACHE_BYTES", shown.images.backing.read(shown.images.rows).nbytes)
    again = [x for x, _ in inputs.input_batches(network, shown, context.store, here, 100)]
    assert len(inputs._changed_images) == 1
    kept = [x for x, _ in inputs.input_batches(network, shown, context.store, here, 300)]
    assert torch.equal(torch.cat(first), torch.cat(again)) and torch.equal(torch.cat(first), torch.cat(kept))
    other = ImageSet("digits", change=Corruption("fog", 3)).load()
    list(inputs.input_batches(network, other, context.store, here, 300))
    assert len(inputs._changed_images) == 1  # full


# ---- published files


def test_run__published_files_give_the_rows_of_predicting_their_arrays(tmp_path):
    context = Context(Store(tmp_path / "store"), device="cpu")
    rng, n = np.random.default_rng(0), 30
    labels = np.arange(2 * n) % 3
    images = (80 * labels[:, None, None, None] + rng.integers(0, 60, (2 * n, 8, 8, 3))).astype(np.uint8)
    clean = {"x_train": images[:n], "y_train": labels[:n], "y_test": labels[n:]}
    np.savez(tmp_path / "clean.npz", **clean, x_test=images[n:])
    (tmp_path / "C").mkdir()
    np.save(tmp_path / "C" / "labels.npy", np.tile(labels[n:], 5))
    files = {name: rng.integers(0, 256, (5 * n, 8, 8, 3), np.uint8) // 2 + np.tile(images[n:], (5, 1, 1, 1)) // 2
             for name in ("contrast", "spatter")}  # fmt: skip
    for name, array in files.items():
        np.save(tmp_path / "C" / f"{name}.npy", array)
    data = f"npz:{tmp_path / 'clean.npz'}"
    plan = replace(
        PLAN, methods=("erm",), seeds=1, strengths=1, ensemble_sizes=(), data=data, corruption_files=str(tmp_path / "C")
    )
    plan = replace(
        plan, corruptions=tuple(files), training=replace(plan.training, batch_size=8), reference_accuracy=None
    )
    found = run(plan, context)
    (trial,) = shift_trials(plan, {"erm": 0})[0]
    for name, array in files.items():
        for severity in plan.severities:
            other = tmp_path / f"{name}-{severity}.npz"
            np.savez(other, **clean, x_test=array[(severity - 1) * n : severity * n])
            step = predict_step(network_of_trial(trial), ImageSet(f"npz:{other}"), output_spec=steps.OUTPUTS)
            step.run(context)
            u, wrong = by_hand([load_predictions(step, context.store)])
            facts = {"shift": name, "severity": severity, "split": "test"}
            assert 0 < wrong.mean() < 1 and value(found, **facts, metric="accuracy") == pytest.approx(1 - wrong.mean())
            expected = metrics.raulc(u, wrong)
            assert value(found, **facts, metric="raulc", measure="entropy") == pytest.approx(expected, abs=1e-6)
    again = run(replace(plan, networks=(f"store:{train_step(trial).key}",)), context)
    assert [row["value"] for row in again.rows] == [row["value"] for row in found.rows]
    with pytest.raises(BadInput, match="no corruption named"):
        run(replace(plan, corruptions=("rain",)), context)


# ---- networks that did not learn


def test_undertrained_networks_are_marked_and_keep_their_rows(study, context):
    trial = steps.plain_trial(PLAN, "erm")
    learnt = facts_of(train_step(trial), context.store)["train_accuracy"]
    easy = run(replace(PLAN, reference_accuracy=0.01), context)
    assert shift_lines.undertrained(easy.frame) == [] and not any("undertrained" in note for note in easy.notes)
    hard = run(replace(PLAN, methods=("erm",), reference_accuracy=min(1.0, learnt + 0.06)), context)
    assert shift_lines.undertrained(hard.frame) == [("digits", "erm")]
    assert any("undertrained" in note for note in hard.notes)
    assert len([row for row in hard.rows if row["metric"] == "raulc"]) > 0
    assert any("undertrained" in labels[0] for labels, _ in reports.table_2(hard.frame).rows)
    assert any("Undertrained" in sentence for sentence in reports.story(hard).lead)


@pytest.mark.parametrize(
    ("reaches", "data", "low"),
    [
        (None, "digits", ["erm", "ddu", "mc-dropout"]),  # by what was seen on these images, however short the budget
        (None, "npz:mine.npz", ["ddu"]),  # nothing was seen on these: by erm of the study
        (0.5, "digits", []),
    ],
)
def test_plan__what_plain_training_reaches_is_that_of_the_data(reaches, data, low):
    rows = [
        {"network": f"{method} {accuracy}", "method": method, "members": 1, "train_accuracy": accuracy}
        for method, accuracy in (("erm", 0.80), ("ddu", 0.70), ("mc-dropout", 0.78), ("erm", 0.82))
    ]
    work = Work(Context(Store("nowhere")), None)
    work.networks = rows
    steps.add_notes(Plan(data=data, reference_accuracy=reaches), work)
    assert list(dict.fromkeys(row["method"] for row in rows if row.get("undertrained"))) == low
    assert all(f"{name} is undertrained" in " ".join(work.notes) for name in low)
    assert any("0.810, the median" in note for note in work.notes) == (data != "digits")


def test_story__a_method_is_undertrained_on_one_data_and_not_on_the_other(study):
    """As duq is in the paper, on CIFAR-100 alone."""
    rows = [row | {"undertrained": None} for row in study.frame]
    other = [row | {"dataset": "npz:other.npz", "undertrained": row["method"] == "ddu" or None} for row in rows]
    both = Frame(rows + other)
    labels = {labels[:2] for labels, _ in reports.table_2(both).rows}
    assert ("ddu", "digits") in labels and ("ddu (undertrained)", "npz:other.npz") in labels
    assert ("ddu", "npz:other.npz") not in labels
    assert reports.story(replace(study, rows=both.rows, networks=[])).lead[-1].endswith("method: ddu on other.")


# ---- networks that exist already


@pytest.mark.usefixtures("offline")
def test_run__a_checkpoint_of_ones_own_is_not_trained(tmp_path, capsys):
    file = checkpoint(tmp_path / "mine.safetensors", "test_resnet", num_classes=10)
    data = pack(tmp_path / "val.npz", n=12, classes=10)
    words = ["--data", f"npz:{data}", "--networks", f"test_resnet@{file}", "--corruptions", "fog,contrast"]
    words += [
        "--severities",
        "2",
        "--workers",
        "0",
        "--device",
        "cpu",
        "--store",
        str(tmp_path / "store"),
        "--format",
        "json",
    ]
    assert main(["run", "shift", *words]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["backbone"] for row in rows} == {f"test_resnet@{file}"}
    assert {row["shift"] for row in rows} == {"clean", "fog", "contrast", "all"}
    assert not (tmp_path / "store" / "train").exists()
    assert not list((tmp_path / "store").rglob("*.png"))  # no corrupted image on the disk


def test_run__a_trial_of_the_store_gives_the_rows_it_had(study, context):
    key = train_step(lines()[0][0]).key
    again = run(replace(PLAN, networks=(f"store:{key}",)), context)
    facts = {"method": "erm", "members": 1, "metric": "raulc", "shift": "contrast", "severity": None}
    assert value(again, **facts) == value(study, data_seed=0, measure="entropy", **facts)


def test_run__networks_of_ones_own_are_lines_of_their_own(study, context):
    """Two of one method are not averaged as runs of it; rows name the data of the plan."""
    keys = [f"store:{train_step(members[0]).key}" for members in lines()[:2]]
    both = run(replace(PLAN, networks=tuple(keys)), context)
    assert {row["method"] for row in both.rows} == {f"erm {key}" for key in keys}
    facts = {"metric": "accuracy", "shift": "clean"}
    alone = [value(study, method="erm", members=1, data_seed=seed, **facts) for seed in (0, 1)]
    assert [value(both, method=f"erm {key}", **facts) for key in keys] == alone
    assert len(reports.table_2(both.frame).rows) == 2


def test_run__a_trial_of_the_store_is_shown_a_set_of_test_images_alone(study, context, place):
    digits = datasets.load("digits").test
    np.savez(place / "test.npz", x_test=digits.pixels, y_test=digits.labels)
    key = train_step(lines()[0][0]).key
    alone = run(replace(PLAN, data=f"npz:{place / 'test.npz'}", ood=(), networks=(f"store:{key}",)), context)
    facts = {"method": "erm", "members": 1, "data_seed": 0, "metric": "accuracy"}
    for level in ({"shift": "clean"}, {"shift": "contrast", "severity": 5.0}):
        assert value(alone, **facts, **level) == value(study, **facts, **level)


def test_run__networks_of_other_classes_are_refused(context, place, study):
    key = train_step(lines()[0][0]).key
    asked = replace(PLAN, data=f"npz:{place / 'noise.npz'}", networks=(f"store:{key}",))
    with pytest.raises(BadInput, match=r"digits, whose classes \(0, 1, 2 …\).* npz:"):
        run(asked, context)


def test_table_2__without_a_ranking_answers_are_shown(study):
    bare = Frame(row for row in study.frame if row["measure"] is None)
    assert reports.table_2(bare).rows


def test_prediction_metrics__tables_of_answers_mark_what_is_undertrained(study):
    """Here ddu alone."""
    rows = [row | {"undertrained": row["method"] == "ddu" or None} for row in study.frame]
    made = reports.prediction_metrics(Frame(rows))
    names = {labels[0] for each in made for labels, _ in each.rows}
    assert "ddu (undertrained)" in names and "ddu" not in names
    bold = {labels[0] for each in made for labels, cells in each.rows if any(cell.best for cell in cells)}
    assert bold and "ddu (undertrained)" not in bold


# ---- refusals


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": "scenes@32"}, "scenes@32.*segmentation"),
        ({"ensemble_methods": ("sngpp",)}, "ensemble_methods has sngpp"),
        ({"methods": ("simclr",)}, "simclr learns features without labels"),
        ({"measures": ("entropie",)}, "entropie"),
        ({"measures": ("kernel",)}, "kernel"),  # of duq, which is not there
        ({"corruptions": ("rain",)}, "no corruption named 'rain'"),
        ({"severities": (6,)}, "severity from 1 to 5"),
        ({"ensemble_sizes": (1,)}, "ensemble_sizes must be at least 2"),
        ({"reference_accuracy": 97.0}, "reference_accuracy is 97"),
        ({"backbone": "resnet1"}, "no backbone named"),
    ],
)
def test_run__what_cannot_be_done_is_refused_before_any_work(tmp_path, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(replace(PLAN, **change), Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()


# ---- through the command


def test_corruption_shift__the_presets_are_what_they_say():
    assert PRESETS["paper"].backbone == "resnet50" and PRESETS["paper"].seeds == 5
    gpu = PRESETS["gpu"]
    expected = Training(
        lr=0.4,
        warmup=4.0,
        weight_decay=5e-4,
        epochs=20,
        batch_size=512,
        schedule="cosine",
        nesterov=True,
        border="reflect",
    )
    assert (gpu.data, gpu.backbone, gpu.seeds, gpu.training) == ("cifar10", "resnet18", 3, expected)
    every = [(change.name, change.severity) for change in CorruptionShift().changes("digits", None)]
    assert every == [(name, severity) for name in CORRUPTIONS for severity in (1, 2, 3, 4, 5)]


def test_report__the_command_shows_the_table_and_writes_the_page(study, place, capsys, monkeypatch):
    monkeypatch.setattr("nescio.report.pages.can_draw", lambda: False)
    assert main([*OPTIONS, "--store", str(place / "store"), "--output", str(place / "page")]) == 0
    assert "rAULC" in capsys.readouterr().out and (place / "page" / "index.html").is_file()
    kept = read_study(place / "page")
    pooled = [row for row in kept.rows if row["metric"] == "raulc" and row["severity"] is None]
    measured = 1 + 2 + 2 + 2  # scores of erm, ddu, mc-dropout and two erm
    assert len(pooled) == 2 * (2 + 1) * measured  # seeds × (corruptions and their mean)
    assert (
        main(["report", str(place / "store"), "--only", "shift/table2,shift/answers", "--output", str(place / "r")])
        == 0
    )
    assert "clean accuracy" in (place / "r" / "table2.md").read_text()


@pytest.mark.slow
def test_shift__a_killed_run_goes_on_and_ends_alike(study, tmp_path):
    warm = Warm(tmp_path)
    try:
        small = [
            *OPTIONS,
            "--methods",
            "erm,deep-ensemble",
            "--severities",
            "5",
            "--strengths",
            "1",
            "--store",
            tmp_path / "store",
        ]
        for kill in ("rename 3", "rename 9", "replaced 30"):
            assert warm.run(*small, kill=kill)[0] == -signal.SIGKILL
        code, command = warm.run(*small, "--format", "json")
        assert code == 0, command.err
        rows = [row for row in json.loads(command.out) if row["shift"] == "contrast" and row["severity"] == 5]
    finally:
        warm.close()
    names = ("method", "members", "data_seed", "shift", "severity", "measure", "metric")
    undisturbed = {tuple(row[name] for name in names): row["value"] for row in study.frame}
    assert len(rows) > 10
    for row in rows:
        assert row["value"] == undisturbed[tuple(row[name] for name in names)]


# ---- reports


def test_table_2__undertrained_methods_are_not_among_the_best(study):
    """However high they are."""
    rows = [row | {"undertrained": None} for row in study.frame]
    for row in rows:
        if row["method"] == "ddu" and row["metric"] == "raulc":
            row["value"] = 0.99

    def bold(frame):
        return {labels[0] for labels, cells in reports.table_2(frame).rows if cells[2].best}

    assert bold(Frame(rows)) == {"ddu"}
    marked = Frame(row | {"undertrained": row["method"] == "ddu" or None} for row in rows)
    assert bold(marked) and not any("ddu" in name for name in bold(marked))


def test_table_2_is_the_mean_and_deviation_over_runs(study):
    runs = [
        row["value"]
        for row in shift_lines.pooled_rows(study.frame).where(method="ddu", metric="raulc", measure="native")
    ]
    cells = reports.table_2(study.frame).cells()
    cell = cells[("ddu (undertrained)", "1", "native"), "rAULC ↑"]
    assert cell.value == pytest.approx(fmean(runs)) and cell.spread == pytest.approx(stdev(runs)) and len(runs) == 2
    clean = [cells[(name, "1", measure), "clean accuracy ↑"].value for name, measure in (
        ("ddu (undertrained)", "native"), ("ddu (undertrained)", "entropy"),
    )]  # fmt: skip
    assert clean[0] == clean[1]


def test_shifted_rows__figure_1_has_every_line_at_every_severity(study):
    own = Frame([*shift_lines.clean_rows(study.frame), *shift_lines.shifted_rows(study.frame)])
    curves = shift_lines.curves(own, "accuracy")
    assert set(curves) == {"erm", "ddu", "mc-dropout", "deep-ensemble × 2"}
    assert all(list(line) == ["clean", "1", "5"] for line in curves.values())
    rows = own.where(method="ddu", metric="accuracy", severity=5.0)
    assert curves["ddu"]["5"] == pytest.approx(rows.mean()) and len(rows) == 2 * 2


def test_every_corruption__curves_of_two_datasets_stand_apart(study):
    fewer = [row for row in study.frame if row["shift"] != "contrast"]
    both = Frame([*study.frame, *(row | {"dataset": "npz:other.npz", "value": 0.5 * row["value"]} for row in fewer)])
    first, second, _ = reports.figure_1(both)
    assert [figure.title.split(", ")[1] for figure in (first.figures[0], second.figures[0])] == ["digits", "other"]
    clean = [[p["accuracy"] for p in panel.figures[0].points if p["severity"] == "clean"] for panel in (first, second)]
    assert clean[1] == pytest.approx([0.5 * accuracy for accuracy in clean[0]]) and len(clean[0]) == 4
    heat, choice = reports.every_corruption(both)
    assert {"ddu (undertrained), digits", "ddu (undertrained), other"} <= {cell["line"] for cell in heat.points}
    assert {name: len(panels) for name, panels in choice.options.items()} == {"gaussian noise": 2, "contrast": 1}
    assert reports.story(replace(study, rows=both.rows))  # no figure has the key of another


def test_story__the_story_holds_every_table_and_figure(study):
    story = reports.story(study)
    titles = [table.title for table in tables_of(story)]
    assert len(titles) == 7 and len(figures_of(story)) == 2 + 2 * 2 + 1 + 2 * 3
    assert all(figure.chart() for figure in figures_of(story)[:2])
    assert len(reports.out_of_distribution(study.frame).columns) == 1


def test_with_strength__hyper_parameters_of_one_method_can_be_fixed():
    plan = replace(PLAN, hparams=("ddu.lr=0.5", "mir.weight=3"))  # mir is not compared
    ddu, erm = (steps.plain_trial(plan, name) for name in ("ddu", "erm"))
    assert ddu == replace(steps.plain_trial(PLAN, "ddu"), hparams=replace(ddu.hparams, lr=0.5))
    assert erm == steps.plain_trial(PLAN, "erm")
    assert lineup.with_strength(ddu, 2, 3).hparams.lr == 0.5


def test_with_strength__the_bound_of_every_layer_can_be_fixed_too():
    plain = {name: steps.plain_trial(PLAN, name) for name in ("due", "erm")}
    assert (plain["due"].spectral, plain["erm"].spectral) == (3.0, None)
    plan = replace(PLAN, hparams=("due.spectral=12", "due.lr=2", "erm.spectral=0.7"))
    fixed = {name: steps.plain_trial(plan, name) for name in ("due", "erm")}
    assert (fixed["due"].spectral, fixed["due"].hparams.lr, fixed["erm"].spectral) == (12.0, 2, 0.7)
    off = steps.plain_trial(replace(PLAN, hparams=("due.spectral=none",)), "due", 0, 0)
    assert off == replace(plain["due"], spectral=None)
    assert lineup.with_strength(fixed["due"], 2, 3).spectral == 0.5  # the search has the last word
    with pytest.raises(BadInput, match=r".*ddu\.bound=2"):  # rows name that one
        steps.plain_trial(replace(PLAN, hparams=("ddu.spectral=2",)), "ddu", 0, 0)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("lr=3", "METHOD.FIELD"),
        ("ddo.lr=3", "ddu"),
        ("ddu.weigh_decay=3", "weight_decay"),
        ("ddu.lr=-1", "lr"),
        ("due.spectral=x", "^due.spectral is a number above 0, or none, not 'x'.$"),
        ("due.spectral=0", "spectral"),
    ],
)
def test_refuse_classification__hyper_parameters_that_do_not_exist_are_refused(word, reason):
    with pytest.raises(BadInput, match=reason):
        refuse_classification("shift", "digits", PLAN.trained, (word,), PLAN.backbone, PLAN.training, None)


def test_plan__plain_training_reaches_what_its_networks_do_and_not_the_luckiest_of_them():
    rows = [
        {"network": f"{members} {accuracy}", "method": "erm", "members": members, "train_accuracy": accuracy}
        for accuracy, members in ((0.42, 1), (0.44, 1), (0.50, 1), (0.41, 5))  # of five the lowest
    ]
    work = Work(Context(Store("nowhere")), None)
    work.networks = rows
    steps.add_notes(Plan(data="npz:mine.npz"), work)
    assert not any("undertrained" in row for row in rows)
    assert "0.440, the median" in " ".join(work.notes)


def words_of(frame, measures):
    """Of the figures of a frame with other measures: name → other name, or None for rows that are left out."""
    rows = [row | {"measure": measures.get(row["measure"], row["measure"])} for row in frame]
    kept = Frame(row for row in rows if (row["measure"] is None) == (row["metric"] not in ("auroc", "raulc")))
    return {
        figure.caption for figure in figures_of(reports.figure_1(kept)) if figure.title.startswith(("AUROC", "rAULC"))
    }


def test_figure_1__captions_say_by_what_curves_are_ranked(study):
    assert words_of(study.frame, {}) == {"By the native score, or by entropy if there is none.", "By entropy."}
    assert words_of(study.frame, {"native": None, "entropy": "msp"}) == {"By msp."}
    assert words_of(study.frame.where(method="ddu"), {"entropy": None}) == {"By the native score."}
    several = words_of(study.frame, {"native": "density"})
    assert several == {"By the first measure of each line: entropy and density."}


def test_first_measure__every_line_has_a_curve_by_a_measure_that_it_has(study):
    """erm alone lacks the first measure of the others."""
    rows = [row | {"measure": "density"} if row["measure"] == "native" else row for row in study.frame]
    own = Frame([*shift_lines.clean_rows(Frame(rows)), *shift_lines.shifted_rows(Frame(rows))])
    first = {row["method"]: row["measure"] for row in shift_lines.first_measure(own.where(metric="auroc", members=1))}
    assert first == {"erm": "entropy", "ddu": "density", "mc-dropout": "density"}
    assert set(shift_lines.curves(own, "raulc")) == {"erm", "ddu", "mc-dropout", "deep-ensemble × 2"}


def test_pooled_rows__means_are_over_the_corruptions_that_every_line_has(study):
    """A network that answers all images of a corruption right has no rAULC there: without it the others' mean would be
    over harder images."""
    frame = study.frame
    whole = {
        line: part.mean()
        for line, part in shift_lines.pooled_rows(frame).where(metric="raulc").group_by(*shift_lines.LINE)
    }
    lost = frame.without(method="ddu", metric="raulc", shift="contrast", severity=None, data_seed=0)
    made = {
        line: part.mean()
        for line, part in shift_lines.pooled_rows(lost).where(metric="raulc").group_by(*shift_lines.LINE)
    }
    noise = frame.where(metric="raulc", shift="gaussian_noise", severity=None)
    assert (
        made == {line: pytest.approx(part.mean()) for line, part in noise.group_by(*shift_lines.LINE)} and made != whole
    )
    auroc = [shift_lines.pooled_rows(rows).where(metric="auroc").column() for rows in (frame, lost)]
    assert auroc[0] == auroc[1]  # of which nothing is missing
    assert "one corruption (without contrast" in reports.table_2(lost).note
    assert "over two corruptions" in reports.table_2(frame).note


def test_curves_are_means_over_what_every_line_has(study):
    lost = study.frame.without(method="ddu", metric="raulc", shift="contrast", severity=5.0)
    points = shift_lines.curves(Frame([*shift_lines.clean_rows(lost), *shift_lines.shifted_rows(lost)]), "raulc")["erm"]
    assert points["5"] == pytest.approx(
        lost.where(
            method="erm", members=1, metric="raulc", measure="entropy", shift="gaussian_noise", severity=5.0
        ).mean()
    )


def test_curves__a_curve_of_one_corruption_keeps_what_each_line_has(study):
    """Nothing is averaged over corruptions there: a network that is always right costs its own point alone."""
    own = study.frame.where(shift=("clean", "contrast")).without(method="ddu", metric="raulc", severity=5.0)
    lines = shift_lines.curves(own, "raulc")
    assert set(lines["erm"]) == {"clean", "1", "5"} and set(lines["ddu"]) == {"clean", "1"}


def test_table_2__lines_judged_by_other_images_are_refused(study):
    rows = [
        row | {"n": row["n"] // 2} if row["method"] == "ddu" and row["severity"] is None else row for row in study.frame
    ]
    with pytest.raises(BadInput, match=r"digits .*: gaussian_noise and clean"):
        reports.table_2(Frame(rows))


def learnt(study):
    """The study, as if its networks had learnt."""
    return replace(study, networks=[row | {"undertrained": None} for row in study.networks])


def test_story__the_lead_says_what_cannot_be_told_from_the_best(study):
    study = learnt(study)
    assert "not tested: two seeds." in " ".join(reports.story(study).lead)
    values = {
        ("erm", 1, "entropy"): (0.9, 0.7, 0.8, 0.6),
        ("deep-ensemble", 2, "entropy"): (0.8, 0.8, 0.7, 0.69),
    }  # the rest: 0.5

    def value(row, run):
        if row["metric"] != "raulc" or row["severity"] is not None:
            return row["value"]
        return values.get((row["method"], row["members"], row["measure"]), [0.5] * 4)[run]

    first = [row for row in study.frame if row["data_seed"] == 0]
    rows = [row | {"data_seed": run, "value": value(row, run)} for run in range(4) for row in first]
    lead = " ".join(reports.story(replace(study, rows=rows)).lead)
    assert "erm by entropy, 0.750. It is not significantly different from deep-ensemble × 2 by" in lead


def test_story__the_lead_says_that_the_best_has_augmentations_of_its_own(context):
    """dcu compares views of an image: what leads may be its augmentations."""
    plan = replace(PLAN, methods=("erm", "dcu"), seeds=1, strengths=1, ensemble_sizes=(), reference_accuracy=0.01)
    made = run(replace(plan, training=replace(plan.training, epochs=1)), context)
    assert made.frame.where(own_augmentation=True).unique("method") == ["dcu"]
    pooled = [row for row in made.rows if row["metric"] == "raulc" and row["severity"] is None]

    def lead_of(best):
        values = {id(row): 0.9 if row["method"] == best and row["measure"] == "entropy" else 0.5 for row in pooled}
        rows = [row | {"value": values.get(id(row), row["value"])} for row in made.rows]
        return " ".join(reports.story(replace(made, rows=rows)).lead)

    assert "dcu is trained with augmentations" in lead_of("dcu")
    assert "augmentations" not in lead_of("erm")
    alike = replace(plan, methods=("dcu",), training=replace(plan.training, epochs=1, augment="full"))
    assert not run(alike, context).frame.where(own_augmentation=True)


def test_title_of__networks_of_one_ensemble_have_titles_of_their_own():
    members = shift_trials(replace(PLAN, methods=("erm", "deep-ensemble"), ensemble_sizes=(3,)), {"erm": 0})
    titles = {title_of(trial) for trials in members for trial in trials}
    assert len(titles) == 6 and "erm, mlp, trial 0, data seed 1, initial seed 2001" in titles


@pytest.mark.parametrize("benchmark", ["shift", "sensitivity"])
def test_work__a_study_without_measures_is_refused_before_any_work(benchmark, context):
    known = base.registry[benchmark]
    with pytest.raises(BadInput, match="measures is empty"):
        known.run(replace(known.presets["small"], measures=()), Work(context, None))


def test_task_rows__an_ensemble_has_the_colour_of_its_method(study):
    (figure, *_) = figures_of(reports.figure_1(learnt(study).frame))
    layers = [layer["encoding"] for layer in figure.chart().to_dict()["layer"]]
    scales = [next(layer[name]["scale"] for layer in layers if name in layer) for name in ("color", "strokeDash")]
    colours, dashes = (dict(zip(scale["domain"], scale["range"], strict=True)) for scale in scales)
    assert colours["deep-ensemble × 2"] == colours["erm"] != colours["mc-dropout"]
    assert dashes["deep-ensemble × 2"] != dashes["erm"] == dashes["mc-dropout"]
    assert "ddu (undertrained)" in shift_lines.curves(shift_lines.task_rows(study.frame, "classification"), "accuracy")


def test_table_2_says_members_and_what_plain_accuracy_is(study):
    made = reports.table_2(study.frame)
    assert made.index == ("method", "members", "measure")
    sentence = dict(made.legend)["clean accuracy ↑"]
    assert sentence.startswith("Share of rows whose most probable class is the label")
    assert "k most probable" in dict(metric_legend(["accuracy", "accuracy@5"]))["accuracy ↑"]


def test_table_2__numbers_of_corruptions_are_written_as_words_are(study):
    assert "over two corruptions" in reports.table_2(study.frame).note
    one = study.frame.without(shift="contrast")
    assert "over one corruption" in reports.table_2(one).note


def test_undertrained__notes_say_what_is_bold_only_where_something_is(study):
    """On digits all networks of the study are undertrained."""
    assert len(shift_lines.undertrained(study.frame)) == 4
    made = [
        reports.table_2(study.frame),
        *reports.prediction_metrics(study.frame),
        reports.out_of_distribution(study.frame),
    ]
    assert not any(cell.best for each in made for cell in each.cells().values())
    assert all("over two seeds" in each.note and "Bold" not in each.note for each in made)
    trained = Frame(row | {"undertrained": None} for row in study.frame)
    assert "Bold: the best; fewer than three seeds" in reports.table_2(trained).note


def test_table_2__a_single_network_that_existed_has_its_name_in_the_table(study):
    rows = [row | {"method": "pretrained", "backbone": "resnet50@mine.pt"} for row in study.frame.where(method="ddu")]
    made = reports.table_2(Frame(rows).where(split="test"))
    assert made.index == ("method", "backbone", "measure")
    assert {labels[1] for labels, _ in made.rows} == {"resnet50@mine.pt"}
