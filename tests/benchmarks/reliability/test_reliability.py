"""The benchmark of representation reliability: from networks to rows; the command that runs it, and its page."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.support.reference import load, note

pytest.importorskip("torch")
import torch

from nescio import datasets, training
from nescio.analysis.representations.agreement import add_rankings, evaluate
from nescio.analysis.representations.downstream import DownstreamLosses, downstream_losses, probe_accuracy
from nescio.benchmarks import base, lineup
from nescio.benchmarks.reliability import PRESETS, Plan, reports, steps
from nescio.benchmarks.reliability.steps import by_candidate, trials_of
from nescio.cli import main
from nescio.commands.parsing import add_options
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput, Undefined
from nescio.evaluations.reliability import SCORES
from nescio.heads import probability_performance
from nescio.measures import choose_components
from nescio.measures.siblings import sibling_scores
from nescio.metrics import kendall
from nescio.networks.models import network_of_trial
from nescio.options import options_of
from nescio.predict import EMBEDDINGS, load_predictions, predict_step
from nescio.predictions import Predictions
from nescio.predictions.columns import from_npz
from nescio.report import pages
from nescio.report.blocks import tables_of
from nescio.report.studies import read_study, write_story
from nescio.rows import RowBuilder
from nescio.trials import Training
from nescio.work.local import LocalWorkers
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.paths import page_of

pytestmark = pytest.mark.usefixtures("use_one_thread")
PLAN = Plan(
    methods=("simclr", "moco"),
    seeds=3,
    reference_size=200,
    reference_samples=2,
    k=10,
    ks=(1, 10, 50, 1000),
    components=(2, 4),
    training=Training(epochs=2, batch_size=128, augment="full", schedule="cosine"),
)


def context_in(folder):
    return Context(Store(folder / "store"), device="cpu")


def run(plan, context, watch=None, workers=0):
    with LocalWorkers(workers) as launcher:
        return base.run(base.registry["reliability"], plan, Work(context, launcher, watch))


@pytest.fixture(scope="module")
def study(context):
    found = run(PLAN, context)
    assert found.failures == []
    return found


@pytest.fixture(scope="module")
def candidate():
    return candidates_of(PLAN)[0]


def candidates_of(plan):
    """The trials of every candidate."""
    groups = [lineup.average([trial], None) for trial in trials_of(plan)]
    return [[group.trial for group in networks] for networks in by_candidate(groups).values()]


def embeddings(trials, images, context):
    steps = [predict_step(network_of_trial(trial), images, output_spec=EMBEDDINGS) for trial in trials]
    return [load_predictions(step, context.store) for step in steps]


def references(trials, sample, context, plan=PLAN):
    images = ImageSet("digits", "train", sample_size=plan.reference_size, sample_seed=sample)
    return embeddings(trials, images, context)


def head_sets(target):
    return ImageSet(target, "train_val"), ImageSet(target, "test")


def train_and_tests(trials, context):
    return [embeddings(trials, images, context) for images in head_sets("digits")]


def evaluated(refs, tests, losses, plan, **facts):
    """(rows, reasons) of one candidate."""
    results = RowBuilder({"method": "mine"} | facts)
    evaluate(refs, tests, losses, plan, results)
    return results.rows, results.reasons


def one(rows, **wanted):
    (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found["value"]


# ---- the small real run


def test_reliability__every_row_is_there(study):
    """Candidates × distances × samples × scores × losses, the cosine's sweeps, every member alone, the rankings."""
    rows = study.rows
    main = [r for r in rows if r["sweep"] is None and r["init_seed"] is None and r["method"]]
    assert {r["distance"] for r in main if r["measure"]} == {"cosine", "euclidean"}
    kinds = ("kendall_brier", "kendall_entropy", "kendall_variance")
    assert len([r for r in main if r["metric"] in kinds]) == 2 * 2 * 2 * 5 * 3
    accuracies = [r for r in rows if r["metric"] in ("probe_accuracy", "knn_accuracy")]
    assert {(r["method"], r["init_seed"], r["metric"], r["k"]) for r in accuracies} == {
        (method, member, metric, level)
        for method in PLAN.methods
        for member in range(3)
        for metric, level in (("probe_accuracy", None), ("knn_accuracy", 20))
    }
    alone = [r for r in rows if r["init_seed"] is not None and r not in accuracies]
    assert len(alone) == 2 * 2 * 2 * 3 * (5 + 3) * 2
    assert {r["measure"] for r in alone} == {"nc", "dist", "dist*", "norm", "norm*", "ll", "ll*", "fv"}
    assert {r["metric"] for r in alone} == {"kendall_brier", "kendall_entropy"}  # one network does not vary
    assert {r["distance"] for r in rows if r["sweep"] in ("k", "M")} == {"cosine"}
    likely = {(r["method"], r["distance"], r["components"]) for r in rows if r["metric"] == "held_out_likelihood"}
    assert likely == {(m, c, n) for m in PLAN.methods for c in ("cosine", "euclidean") for n in (2, 4)}
    mixtures = {(r["metric"], r["components"], r["draw"]) for r in rows if (r["sweep"], r["draw"]) == ("C", 0)}
    assert mixtures == {(kind, n, 0) for kind in kinds for n in (2, 4)}
    swept = {(r["k"], r["measure"]) for r in rows if r["sweep"] == "k"}
    assert swept == {(k, name) for k in (1, 10, 50) for name in ("nc", "dist")}  # 1000 is more than there are
    sizes = {(r["members"], r["measure"]) for r in rows if r["sweep"] == "M"}
    several = {(m, name) for m in (2, 3) for name in ("nc", "dist", "norm", "ll", "fv")}
    assert sizes == several | {(1, name) for name in ("dist", "norm", "ll")}
    levels = {(r["measure"], r["k"]) for r in main if r["k"] and r["measure"] != "ll"}
    assert levels == {("nc", 10), ("dist", 1)}
    assert {r["draw"] for r in main if r["measure"]} == {0, 1}
    assert len([r for r in rows if r["metric"].startswith("ranking_")]) == 2 * 2 * 5 * 3
    assert study.reasons == [] and study.notes == []
    assert {(r["benchmark"], r["version"], r["dataset"], r["target"], r["backbone"]) for r in rows} == {
        ("reliability", 5, "digits", "digits", "conv")
    }


def test_reliability__sweeps_meet_the_main_rows(study):
    for method in PLAN.methods:
        for sample in range(PLAN.reference_samples):
            about = {"method": method, "draw": sample, "distance": "cosine", "metric": "kendall_brier"}
            main = {
                name: one(study.rows, sweep=None, init_seed=None, measure=name, **about)
                for name in ("nc", "dist", "norm", "ll", "fv")
            }
            for name, value in main.items():
                assert one(study.rows, sweep="M", members=3, measure=name, **about) == value
            assert one(study.rows, sweep="k", k=10, measure="nc", **about) == main["nc"]
            assert one(study.rows, sweep="k", k=1, measure="dist", **about) == main["dist"]


def brute_truth(train, tests):
    """scikit-learn's converged heads, one by one: Brier of the members' mean probability, over the C − 1 pairs."""
    from sklearn.linear_model import LogisticRegression

    y, answers = train[0].labels, tests[0].labels
    brier, entropy = np.zeros((2, len(answers)))
    for a, b in combinations(np.unique(y), 2):
        rows, asked = np.isin(y, (a, b)), np.isin(answers, (a, b))
        p = np.mean(
            [
                LogisticRegression(C=1.0, tol=1e-8, solver="newton-cholesky")
                .fit(t.embeddings[rows].astype(float), y[rows] == b)
                .predict_proba(e.embeddings[asked].astype(float))[:, 1]
                for t, e in zip(train, tests, strict=True)
            ],
            axis=0,
        )
        brier[asked] += 2 * (p - (answers[asked] == b)) ** 2
        entropy[asked] -= p * np.log(p) + (1 - p) * np.log(1 - p)
    c = len(np.unique(y))
    return brier / (c - 1), entropy / (c - 1)


def test_reliability__rows_are_kendalls_tau_with_what_separate_heads_say(study, candidate, context):
    """The whole road once more by other means: scikit-learn's heads one by one, sets of neighbours, SciPy's τ."""
    train, tests = train_and_tests(candidate, context)
    brier, entropy = brute_truth(train, tests)
    refs = references(candidate, 0, context)
    found = []
    for ref, test in zip(refs, tests, strict=True):
        a, b = (x.embeddings / np.linalg.norm(x.embeddings, axis=1, keepdims=True) for x in (test, ref))
        found.append([set(row) for row in np.argsort(-(a.astype(float) @ b.astype(float).T), axis=1)[:, : PLAN.k]])
    nc = [np.mean([len(x & y) / len(x | y) for x, y in combinations(row, 2)]) for row in zip(*found, strict=True)]
    norm = np.mean([np.linalg.norm(x.embeddings, axis=1) for x in tests], axis=0)
    for name, score in (("nc", nc), ("norm", norm)):
        for loss, values in (("brier", brier), ("entropy", entropy)):
            tau = kendalltau(score, -values).statistic
            about = {"method": "simclr", "distance": "cosine", "sweep": None, "draw": 0, "init_seed": None}
            assert one(study.rows, metric=f"kendall_{loss}", measure=name, **about) == pytest.approx(tau, abs=0.002)
    assert one(study.rows, method="simclr", metric="brier", measure=None) == pytest.approx(brier.mean(), abs=1e-5)


def test_reliability__members_are_averaged_before_they_are_judged(study, candidate, context):
    """The Brier score of a mean is below the mean of Brier scores wherever members differ: (·)² is convex."""
    key = next(row["key"] for row in study.rows if (row["method"], row["metric"]) == ("simclr", "brier"))
    truth = DownstreamLosses.from_arrays(from_npz(context.store.path("evaluate", key) / SCORES))
    assert truth.members["brier"].shape == (3, 599) and set(truth.ensemble) == {"brier", "entropy", "variance"}
    assert (truth.ensemble["brier"] < truth.members["brier"].mean(axis=0) + 1e-15).all()
    assert truth.ensemble["brier"].mean() < truth.members["brier"].mean() - 1e-4
    # and by exactly the variance: mean of squares less square of mean, over both classes of every pair
    np.testing.assert_allclose(
        truth.members["brier"].mean(axis=0) - truth.ensemble["brier"], truth.ensemble["variance"], atol=1e-12
    )


def test_run__a_second_run_trains_nothing_and_says_the_same(study, context, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a network is trained again")

    monkeypatch.setattr(training.steps, "fit", refuse)
    heard = []
    again = run(PLAN, context, lambda *counts: heard.append(counts))
    assert again.rows == study.rows and not again.failures and heard == []
    # another k is another question to the same embeddings
    other = run(replace(PLAN, k=20, scores=("nc",), distances=("euclidean",)), context)
    assert not other.failures and {row["measure"] for row in other.rows} == {None, "nc"}
    # no cosine: its own sweeps are kept
    assert {(row["distance"], row["sweep"]) for row in other.rows if row["measure"] and row["method"]} == {
        ("euclidean", group) for group in (None, "k", "M")
    }


def test_reliability__accuracies_are_those_of_scikit_learn(study, candidate, context):
    """A converged softmax regression, and the votes of the nearest by cosine, of every network."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler

    train, tests = train_and_tests(candidate, context)
    about = {"method": "simclr", "init_seed": 1}
    known, rows = (np.asarray(side[1].embeddings, float) for side in (train, tests))
    scaler = StandardScaler().fit(known)
    probe = LogisticRegression(tol=1e-6, max_iter=2000).fit(scaler.transform(known), train[1].labels)
    expected = (probe.predict(scaler.transform(rows)) == tests[1].labels).mean()
    assert one(study.rows, metric="probe_accuracy", **about) == pytest.approx(expected, abs=0.004)
    votes = KNeighborsClassifier(PLAN.k_accuracy, metric="cosine").fit(known, train[1].labels)
    expected = (votes.predict(rows) == tests[1].labels).mean()
    assert one(study.rows, metric="knn_accuracy", k=20, **about) == pytest.approx(expected, abs=0.002)
    other = one(study.rows, metric="probe_accuracy", method="simclr", init_seed=0)
    assert other != one(study.rows, metric="probe_accuracy", **about)


def test_reliability__a_probe_does_not_favour_the_space_of_larger_scale(candidate, context):
    train, tests = (side[0] for side in train_and_tests(candidate, context))
    scaled = [dump.replace(embeddings=np.asarray(dump.embeddings) * 0.05) for dump in (train, tests)]
    assert probe_accuracy(*scaled) == pytest.approx(probe_accuracy(train, tests), abs=0.002)


def test_reliability__components_are_chosen_by_held_out_likelihood(study, candidate, context):
    refs = references(candidate, 0, context)
    for distance in PLAN.distances:
        about = {"method": "simclr", "distance": distance, "measure": "ll"}
        choice = choose_components(refs[0], PLAN.components, metric=distance)
        assert one(study.rows, metric="components", **about) == choice.components
        for count, value in choice.log_likelihoods.items():
            assert one(study.rows, metric="held_out_likelihood", components=count, **about) == pytest.approx(value)
        main = [r for r in study.rows if r["metric"] == "mean" and all(r[a] == b for a, b in about.items())]
        assert {row["components"] for row in main} == {choice.components}
    _, tests = train_and_tests(candidate, context)
    about = {"method": "simclr", "draw": 0, "metric": "kendall_brier", "distance": "cosine", "measure": "ll"}
    for count in PLAN.components:
        u = sibling_scores(refs, tests, k_nc=(10,), components=count)["ll"]
        truth = downstream_losses(*train_and_tests(candidate, context)).ensemble["brier"]
        assert one(study.rows, sweep="C", components=count, **about) == pytest.approx(kendall(u, truth), abs=1e-9)


def test_by_candidate__references_are_the_same_rows_for_all_members_and_were_learnt_from(study, context):
    learnt = set(datasets.split_dataset(datasets.load("digits")).train.index.tolist())
    samples = []
    for sample in range(PLAN.reference_samples):
        dumps = [dump for own in candidates_of(PLAN) for dump in references(own, sample, context)]
        assert all(np.array_equal(dump.index, dumps[0].index) for dump in dumps)
        assert len(dumps[0]) == PLAN.reference_size and set(dumps[0].index.tolist()) <= learnt
        samples.append(dumps[0].index)
    assert not np.array_equal(*samples)
    embeddings = [dump.embeddings for dump in references(candidates_of(PLAN)[0], 0, context)]
    assert not np.allclose(embeddings[0], embeddings[1])  # members are other networks


def test_by_candidate__members_differ_in_their_seed_alone():
    candidates = candidates_of(replace(PLAN, methods=("simclr", "byol"), backbones=("mlp", "conv")))
    assert len(candidates) == 4
    for trials in candidates:
        assert [trial.init_seed for trial in trials] == [0, 1, 2]
        assert len({replace(trial, init_seed=0) for trial in trials}) == 1


def test_evaluate_gives_the_rows_of_the_study(study, candidate, context):
    train, tests = train_and_tests(candidate, context)
    refs = [references(candidate, sample, context) for sample in range(PLAN.reference_samples)]
    rows, reasons = evaluated(refs, tests, downstream_losses(train, tests), PLAN, method="simclr")
    columns = ("metric", "measure", "distance", "draw", "members", "init_seed", "sweep", "k", "components", "n")

    def values(entries):
        return {tuple(row[name] for name in columns): row["value"] for row in entries}

    scores = [row for row in study.rows if row["method"] == "simclr" and "accuracy" not in row["metric"]]
    assert reasons == [] and len(rows) == len(scores)
    assert values(rows) == pytest.approx(values(scores), abs=1e-12)


def test_trials_of__rankings_are_the_mean_tau_of_every_image(study, context):
    group = candidates_of(PLAN)
    both = [train_and_tests(own, context) for own in group]
    losses = [downstream_losses(train, tests).ensemble["brier"] for train, tests in both]
    scores = [
        sibling_scores(references(own, 1, context), tests, k_nc=(10,), components=0)
        for own, (_, tests) in zip(group, both, strict=True)
    ]
    for name, key in (("nc", "nc@10"), ("dist", "dist@1"), ("fv", "fv")):
        taus = [
            kendalltau([s[key][row] for s in scores], [loss[row] for loss in losses]).statistic for row in range(599)
        ]
        expected = np.nanmean(taus)
        asked = {"metric": "ranking_brier", "measure": name, "distance": "cosine", "draw": 1}
        assert one(study.rows, **asked) == pytest.approx(expected)
        (row,) = [r for r in study.rows if all(r[a] == b for a, b in asked.items())]
        assert row["n"] == np.isfinite(taus).sum() and row["method"] is None


def test_run__a_member_that_fails_costs_itself_alone(tmp_path, monkeypatch):
    fit = training.fit

    def fragile(trial, *rest):
        if trial.init_seed == 1 and trial.method == "moco":
            raise RuntimeError("it broke")
        return fit(trial, *rest)

    monkeypatch.setattr(training.steps, "fit", fragile)
    plan = replace(PLAN, reference_samples=1, distances=("cosine",), scores=("nc", "dist"), ks=(), backbones=("mlp",))
    found = run(plan, context_in(tmp_path))
    assert [failure.reason for failure in found.failures] == ["RuntimeError: it broke"]
    assert found.notes[0] == "moco, mlp, digits: 2 of 3 networks are there."
    assert "by their first 2 networks each" in found.notes[1] and "simclr, mlp, digits has 3." in found.notes[1]
    whole = [row for row in found.rows if row["measure"] == "nc" and row["init_seed"] is None and row["method"]]
    members = {row["method"]: row["members"] for row in whole if row["sweep"] is None}
    assert members == {"simclr": 2, "moco": 2}
    seeds = {(r["method"], r["init_seed"]) for r in found.rows if r["init_seed"] is not None and r["measure"]}
    assert seeds == {("simclr", 0), ("simclr", 1), ("moco", 0), ("moco", 2)}
    good = {(r["method"], r["init_seed"]) for r in found.rows if r["metric"] == "probe_accuracy"}
    assert good == seeds | {("simclr", 2)}  # how good a network is does not depend on its siblings


def test_reliability__a_worker_that_dies_is_noted_at_its_network(tmp_path, candidate):
    context = context_in(tmp_path)
    step = predict_step(network_of_trial(candidate[0]), head_sets("digits")[1], output_spec=EMBEDDINGS)
    step.record_death(context.store, "It was killed.")
    (noted,) = context.store.runs()
    key = training.train_step(candidate[0]).key
    assert (noted.stage, noted.key, noted.reason) == ("train", key, "It was killed.")


def words_of(study, context):
    """The command of a study, in this store."""
    words = base.registry["reliability"].command(study.plan).split()[1:]
    return [*words, "--store", str(context.store.root), "--device", "cpu"]


@pytest.mark.slow
def test_reliability__two_workers_make_the_rows_of_one(study, tmp_path, capsys):
    """The same command in worker processes, from nothing to the page; then once more, in which nothing is left."""
    words = [*words_of(study, context_in(tmp_path)), "--workers", "2"]
    assert main(words) == 0
    found = read_study(page_of(tmp_path / "store", "reliability"))
    assert len(found.rows) == len(study.rows)
    assert all(a["value"] == pytest.approx(b["value"], abs=1e-3) for a, b in zip(found.rows, study.rows, strict=True))
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().err == ""  # no stage has anything to say


@pytest.mark.slow
def test_reliability__a_machine_that_cannot_draw_reports_the_study_all_the_same(study, context, tmp_path):
    words = [*words_of(study, context), "--workers", "0", "--output", str(tmp_path)]
    code = (
        "import sys; sys.modules |= dict.fromkeys(('altair', 'vl_convert', 'optuna'))\n"
        "import nescio.report.pages as pages; pages.can_draw = lambda: False\n"
        f"from nescio.cli import main\nsys.exit(main({words}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert pages.UNDRAWN[:20] in (tmp_path / "index.html").read_text()


# ---- transfer


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Digits of three classes, at 12 pixels: another set, of another size."""
    found = datasets.load("digits")
    arrays = {}
    for split in ("train", "test"):
        images = getattr(found, split)
        few = np.flatnonzero(images.labels < 3)[:90]
        arrays[f"x_{split}"] = np.kron(images.pixels[few][..., 0], np.ones((1, 2, 2), np.uint8))[:, 2:14, 2:14]
        arrays[f"y_{split}"] = images.labels[few]
    path = tmp_path_factory.mktemp("other") / "three.npz"
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_plan__transfer_and_a_lone_network(tmp_path, other):
    """Pre-training on digits, heads on another set; a single network has no NC and no FV, and the study says why."""
    plan = Plan(
        downstream=(other,),
        methods=("simclr",),
        backbones=("mlp",),  # it takes images of one size only
        seeds=1,
        reference_size=100,
        reference_samples=1,
        k=5,
        ks=(),
        distances=("cosine",),
        components=(3,),
        training=PLAN.training,
    )
    context = context_in(tmp_path)
    found = run(plan, context)
    assert not found.failures
    judged = [row for row in found.rows if row["sweep"] != "C"]
    assert {(row["dataset"], row["target"], row["n"]) for row in judged} == {("digits", other, 90)}
    assert {row["measure"] for row in found.rows} == {None, "dist", "norm", "ll"}
    accuracies = {"probe_accuracy", "knn_accuracy"}
    assert {row["metric"] for row in found.rows if row["measure"] is None} == {"brier", "entropy"} | accuracies
    reasons = {each["measure"]: each["reason"] for each in found.reasons}
    assert reasons.keys() == {"nc", "fv"} and all("siblings" in each for each in reasons.values())
    (only,) = candidates_of(plan)
    assert [len(dump) for dump in references(only, 0, context, plan)] == [100]
    assert not reports.table_1(found.frame) and reports.table_2(found.frame)[0].columns == (
        "digits → three entropy",
        "digits → three brier",
    )
    assert reports.story(found).sections


def test_trials_of__targets_are_brought_to_the_size_that_the_networks_know(other, tmp_path):
    """Images of another size are resized before a network sees them; those of its own size stay as they are."""
    from nescio.datasets import pixel_cache
    from nescio.predict import with_view_of

    network = network_of_trial(trials_of(PLAN)[0])
    images = with_view_of(head_sets(other)[1], network)
    assert (images.view.size, images.view.channels) == (8, 1)
    whole = images.load()
    pixels = np.load(pixel_cache.cache_pixels(whole, images.view, Store(tmp_path)))
    assert pixels.shape == (90, 8, 8, 1) and pixels.dtype == np.uint8
    own = datasets.load(other).test
    assert np.array_equal(whole.labels, own.labels) and np.array_equal(whole.index, own.index)
    assert abs(float(pixels.mean()) - float(own.pixels.mean())) < 3
    same = head_sets("digits")[1]
    assert with_view_of(same, network) == same


# ---- the truth


def test_reliability__the_original_code_gives_the_same_truth():
    """Stored one-vs-one answers of three models, the target class first: Brier, and the entropy in bits there."""
    ref, said = load("repreli_reliability"), note("repreli_reliability")["kendall"]
    p, labels = ref["ovo_prob_target_first"], ref["labels"]
    wrong = np.stack([np.delete(p[:, :, row, 1], labels[row], axis=1) for row in range(len(labels))], axis=1)
    found = probability_performance(wrong[..., None])
    np.testing.assert_allclose(-found["brier"], ref["ens_brier"], atol=1e-12)
    np.testing.assert_allclose(-found["entropy"], ref["ens_pred_entropy"] * np.log(2), atol=1e-12)
    # u is minus a reliability: its τ with a loss is the reliability's τ with minus the loss
    assert kendall(-ref["score"], -found["brier"]) == pytest.approx(said["cont_brier-tau"])
    assert kendall(-ref["score_ties"], -found["entropy"]) == pytest.approx(said["ties_pred_entropy-tau"], abs=1e-9)


def test_reliability__rows_are_joined_by_their_keys():
    """Members whose dumps hold the rows in another order, and a truth in yet another, mean the same."""
    rng = np.random.default_rng(0)
    labels, answers = np.arange(60) % 3, np.arange(30) % 3
    train, tests, refs = [], [], []
    for _ in range(3):
        turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        made = [np.eye(4)[y] * 1.5 + rng.normal(size=(len(y), 4)) for y in (labels, answers)]
        train.append(Predictions(embeddings=made[0] @ turn, labels=labels))
        tests.append(Predictions(embeddings=made[1] @ turn, labels=answers))
        refs.append(Predictions(embeddings=made[0] @ turn))
    plan = replace(PLAN, k=5, ks=(), distances=("cosine",), components=(2,))
    truth = downstream_losses(train, tests)
    rows, _ = evaluated([refs], tests, truth, plan)
    order = rng.permutation(30)
    shuffled = [tests[0], tests[1].take(order), tests[2]]
    mixed = DownstreamLosses(
        truth.index[order],
        {name: loss[order] for name, loss in truth.ensemble.items()},
        {name: loss[:, order] for name, loss in truth.members.items()},
    )
    again, _ = evaluated([refs], shuffled, mixed, plan)
    values, others = ([row["value"] for row in found if row["measure"]] for found in (rows, again))
    np.testing.assert_allclose(values, others)
    np.testing.assert_allclose(downstream_losses(train, shuffled).ensemble["brier"], truth.ensemble["brier"])
    tensors = downstream_losses(train, tests, put=partial(torch.tensor, device="cpu"))  # as on a GPU
    for name, loss in truth.ensemble.items():
        np.testing.assert_allclose(tensors.ensemble[name], loss, atol=1e-4)
    with pytest.raises(BadInput, match="index differs"):
        evaluated([refs], [each.take(np.arange(29)) for each in tests], truth, plan)
    with pytest.raises(Undefined, match="labels"):
        downstream_losses(train, [each.replace(labels=None) for each in tests])


def test_reliability__a_score_that_never_varies_has_a_reason_and_no_row():
    rng = np.random.default_rng(0)
    tests = [Predictions(embeddings=rng.normal(size=(20, 3))) for _ in range(2)]
    refs = [Predictions(embeddings=rng.normal(size=(6, 3))) for _ in range(2)]
    truth = DownstreamLosses(tests[0].index, {"brier": rng.random(20)}, {"brier": rng.random((2, 20))})
    plan = replace(PLAN, k=6, ks=(), distances=("cosine",), scores=("nc", "norm"))  # all references: always the same
    rows, reasons = evaluated([refs], tests, truth, plan)
    assert {row["measure"] for row in rows if row["metric"] == "kendall_brier"} == {"norm", "norm*"}
    assert {each["measure"] for each in reasons} == {"nc"} and "every row" in reasons[0]["reason"]


# ---- the page and the command


def test_first_look__the_page_holds_every_table_and_can_be_written_again(study, tmp_path, monkeypatch):
    story = reports.story(study)
    shown = " ".join(table.title for table in tables_of(story))
    for title in ("Table 3", "Table 4", "Table 5", "Table 8", "Figure 4", "Figure 5"):
        assert title in shown
    assert "NC, mean τ = " in " ".join(story.lead)
    page = write_story(study, story, tmp_path)
    again = read_study(tmp_path)
    assert again.rows == study.rows and "fig4-m0" in page.read_text()
    assert reports.story(again).lead == story.lead
    monkeypatch.setattr(pages, "can_draw", lambda: False)  # a GPU machine has no Altair
    bare = write_story(study, story, tmp_path / "bare")
    assert "fig4-m0" not in bare.read_text() and pages.UNDRAWN[:20] in bare.read_text()
    assert [table.title for table in reports.first_look(study)][:2] == [reports.WORTH, reports.WHICH]


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, Plan, PRESETS)
    return options_of(parser.parse_args(words), Plan, PRESETS)


def test_presets__the_command_of_a_page_parses_to_its_plan():
    uneven = replace(PLAN, seeds=5, method_seeds=(("moco", 3),))
    for plan in (PLAN, uneven, *PRESETS.values()):
        words = base.registry["reliability"].command(asdict(plan)).split()
        assert words[:3] == ["nescio", "run", "reliability"]
        assert parsed(*words[3:]) == plan


def test_by_candidate__options_become_the_plan():
    assert parsed() == PRESETS["small"]
    words = [
        "--pretraining-data",
        "cifar10,cifar100",
        "--methods",
        "moco,simclr",
        "--seeds",
        "5",
        "--k",
        "7",
        "--epochs",
        "3",
    ]
    plan = parsed(*words)
    assert plan.sources == {"cifar10": ["cifar10"], "cifar100": ["cifar100"]}
    assert (plan.methods, plan.seeds, plan.k, plan.training.epochs) == (("moco", "simclr"), 5, 7, 3)
    plan = parsed("--pretraining-data", "a,b", "--downstream", "x,y", "--scores", "nc,fv", "--ks", "1-3")
    assert plan.sources == {"a": ["x", "y"], "b": ["x", "y"]}
    assert plan.scores == ("nc", "fv") and plan.ks == (1, 2, 3)
    assert parsed("--pretraining-data", "a,b", "--downstream", "b=x,y").sources == {"a": ["y"], "b": ["x"]}
    plan = parsed("--seeds", "5", "--method-seeds", "moco=3,byol=2")
    assert (plan.seeds, plan.method_seeds) == (5, (("moco", 3), ("byol", 2)))
    assert [len(trials) for trials in candidates_of(plan)] == [5, 2, 3]
    assert parsed("--method-seeds", "moco=2").seeds == PRESETS["small"].seeds
    with pytest.raises(BadInput, match="moco=3"):
        parsed("--method-seeds", "moco")
    with pytest.raises(BadInput, match="preset 'large'"):
        parsed("--preset", "large")
    with pytest.raises(BadInput, match="simclrr"):
        trials_of(parsed("--methods", "simclrr"))


def test_reliability__every_default_is_named_in_help():
    parser = argparse.ArgumentParser()
    add_options(parser, Plan, PRESETS)
    small, paper = (PRESETS[name] for name in ("small", "paper"))
    help_of = {action.dest: action.help or "" for action in parser._actions}
    for name in ("seeds", "reference_size", "k"):
        assert getattr(small, name) != getattr(paper, name)
        assert f"default: {getattr(small, name)}" in help_of[name]
    for name in ("reference_samples", "k_dist", "k_accuracy", "similarity", "tasks"):
        assert f"default: {getattr(small, name)}" in help_of[name], name
    for name in ("methods", "distances", "scores", "ks", "components"):
        assert f"default: {','.join(map(str, getattr(small, name)))}" in help_of[name], name
    parser.format_help()


def test_reliability__the_paper_preset_is_the_paper():
    plan = PRESETS["paper"]
    assert (plan.seeds, plan.reference_size, plan.reference_samples, plan.k, plan.k_dist) == (10, 5000, 5, 100, 1)
    assert plan.methods == ("simclr", "byol", "moco") and plan.backbones == ("resnet18", "resnet50")
    assert plan.ks == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) and plan.distances == ("cosine", "euclidean")
    assert plan.sources == {
        "cifar10": ["cifar10"],
        "cifar100": ["cifar100"],
        "tiny-imagenet": ["cifar10", "cifar100", "stl10"],
    }
    assert plan.tasks == "one-vs-one" and plan.similarity == "jaccard"


def test_reliability__the_command_shows_a_finished_study_without_training(
    study, context, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(training.steps, "fit", lambda *_: pytest.fail("a network is trained again"))
    assert main([*words_of(study, context), "--workers", "0", "--output", str(tmp_path / "report")]) == 0
    out = capsys.readouterr().out
    assert reports.WHICH in out and "SimCLR" in out
    assert (tmp_path / "report" / "index.html").is_file() and (tmp_path / "report" / "rows.parquet").is_file()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reference_samples": 0}, "reference_samples is 0"),
        ({"k_dist": 0}, "k_dist is 0"),
        ({"ks": (0, 5)}, "ks contains 0"),
        ({"method_seeds": (("byol", 2),)}, "method_seeds has byol=2"),
        ({"method_seeds": (("moco", 0),)}, "method_seeds has moco=0"),
        ({"downstream": ("x=digits",)}, "downstream has x=digits"),
        ({"distances": ("manhattan",)}, "distances is .'manhattan',.*cosine or euclidean"),
        ({"scores": ()}, "scores is empty"),
        ({"scores": ("entropy",)}, "scores is .'entropy',.*nc or dist"),
        ({"similarity": "dice"}, "similarity is 'dice'.*jaccard or overlap"),
        ({"tasks": "regression"}, "tasks is 'regression'.*one-vs-one or multiclass"),
        ({"methods": ()}, "methods is empty"),
        ({"k": 201}, "k is 201, but digits has only 200 references"),
        ({"training": Training(batch_size=128, augment="none")}, "without augmentation they are the same"),
        ({"backbones": ("convv",)}, "no backbone named 'convv'"),
    ],
)
def test_run__bad_plans_are_refused_before_any_work(tmp_path, change, words):
    with pytest.raises(BadInput, match=words):
        run(replace(PLAN, **change), context_in(tmp_path))
    assert not (tmp_path / "store").exists()


def test_run__channels_must_fit(tmp_path):
    colour = {name: np.zeros((4, 8, 8, 3), np.uint8) for name in ("x_train", "x_test")}
    np.savez(tmp_path / "colour.npz", **colour, y_train=[0, 1, 0, 1], y_test=[0, 1, 0, 1])
    with pytest.raises(BadInput, match="3 channel"):
        run(replace(PLAN, downstream=(f"npz:{tmp_path}/colour.npz",)), context_in(tmp_path))


def work_in(context):
    return Work(context, LocalWorkers(0))


def test_check_possible__more_references_than_images_are_all_of_them(context):
    plan, work = replace(PLAN, reference_size=5000), work_in(context)
    steps.check_possible(plan, work)
    (size,) = work.notes
    assert "1,078" in size and "digits" in size


def test_check_possible__a_small_set_does_not_take_references_from_a_large_one(context, tmp_path):
    """Each pre-training set has as many as it can."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 8, 8, 1), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    plan, work = (
        replace(PLAN, pretraining_data=("digits", f"npz:{tmp_path / 'few.npz'}"), reference_size=200),
        work_in(context),
    )
    steps.check_possible(replace(plan, k=20, training=replace(plan.training, batch_size=16)), work)
    counts = [len(ImageSet(data, "train", sample_size=plan.reference_size).load()) for data in plan.sources]
    assert counts[0] == 200 > counts[1] > 20 and len(work.notes) == 1


def test_check_possible__methods_that_need_labels_are_refused(context):
    with pytest.raises(BadInput, match="erm needs them"):
        steps.check_possible(replace(PLAN, methods=("erm",)), work_in(context))


def test_plan__k_beyond_the_references_is_left_out_of_the_sweep():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    truth = downstream_losses(train, tests)
    rows, _ = evaluated([refs], tests, truth, Plan(k=10, scores=("nc",)))
    assert {row["k"] for row in rows if row["sweep"] == "k"} == {1, 2, 5, 10, 20, 50}


def test_plan__a_member_that_says_one_thing_has_no_scores_and_spoils_no_ranking():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    still = [[Predictions(embeddings=np.ones((len(side[0]), 5)))] * 2 for side in (refs, tests)]
    rows, reasons = evaluated([still[0]], still[1], downstream_losses(train, tests), Plan(k=10))
    assert not [row for row in rows if row["metric"] == "mean" or row["metric"].startswith("kendall")]
    assert {each["measure"] for each in reasons} == {"nc", "dist", "norm", "ll", "fv"}
    assert "has collapsed" in reasons[0]["reason"]
    truth, own = downstream_losses(train, tests), {"nc": np.ones(40)}
    worse = DownstreamLosses(truth.index, {name: loss + 1 for name, loss in truth.ensemble.items()}, truth.members)
    results = RowBuilder({"method": None})
    add_rankings([{}, own, {"nc": 1 + own["nc"]}], [truth, truth, worse], results)
    assert next((row["metric"], row["value"]) for row in results.rows) == ("ranking_brier", 1.0)


def test_plan__regression_is_a_collection_of_tasks():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    numbers = tuple(side[0].embeddings[:, :2] for side in (train, tests))
    truth = downstream_losses(train, tests, "regression", numbers=numbers)
    assert set(truth.ensemble) == {"squared_error", "variance"} and set(truth.members) == {"squared_error"}
    assert (
        truth.members["squared_error"][0].mean() < 1e-3 < truth.members["squared_error"][1].mean()
    )  # its own features
    rows, _ = evaluated([refs], tests, truth, Plan(k=10, scores=("nc",)))
    assert "kendall_squared_error" in {row["metric"] for row in rows}
    with pytest.raises(Undefined, match="numbers"):
        downstream_losses(train, tests, "regression")


def _members_of(rows):
    """Three members' embeddings of some rows of three classes."""
    rng = np.random.default_rng(rows)
    labels = np.arange(rows) % 3
    return [Predictions(embeddings=2 * np.eye(5)[labels] + rng.normal(size=(rows, 5)), labels=labels) for _ in range(3)]


def test_reliability__no_torch_is_imported_to_report_a_study():
    code = "import sys, nescio.benchmarks.reliability.reports; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
