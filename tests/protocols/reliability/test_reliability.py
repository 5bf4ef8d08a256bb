"""The protocol of representation reliability: from networks to rows, from rows to the paper's tables."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy.stats import kendalltau

from reference import load, note

pytest.importorskip("torch")
import torch

from nescio import datasets, training
from nescio.commands import _run_reliability as command
from nescio.errors import BadInput, Undefined
from nescio.heads import probability_performance
from nescio.measures.siblings import scores_of
from nescio.metrics import kendall
from nescio.predictions import Predictions
from nescio.protocols import reliability
from nescio.protocols._networks import Place, dump, train_key
from nescio.protocols.reliability import Candidate, Look, Plan, Truth, candidates, evaluate, look_key, reports, truth_of
from nescio.report import studies as _study
from nescio.report.cells import JOINT, Table
from nescio.report.pages import Figure
from nescio.trials import Training
from nescio.work.store import Store

PLAN = Plan(
    methods=("simclr", "moco"),
    members=3,
    references=200,
    seeds=2,
    k=10,
    ks=(1, 10, 50, 1000),
    components=4,
    training=Training(epochs=2, batch=128, augment="full", schedule="cosine"),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(str(tmp_path_factory.mktemp("reliability") / "store"), device="cpu")


@pytest.fixture(scope="module")
def study(place):
    found = reliability.run(PLAN, place, workers=0)
    assert found.failures == []
    return found


@pytest.fixture(scope="module")
def candidate(study):
    return candidates(study.plan)[0]


def seen(candidate, look, place):
    return [dump(look_key(trial, look, place), place) for trial in candidate.trials]


def references(candidate, seed, place):
    return seen(candidate, Look("digits", "train", PLAN.references, seed), place)


def one(rows, **wanted):
    (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found["value"]


# ---- the small real run


def test_every_row_is_there(study):
    """Candidates × distances × samples × scores × losses, the cosine's sweeps, every member alone, the rankings."""
    rows = study.rows
    main = [r for r in rows if r["group"] in ("cosine", "euclidean") and r["init_seed"] is None and r["method"]]
    kinds = ("kendall_brier", "kendall_entropy", "kendall_variance")
    assert len([r for r in main if r["metric"] in kinds]) == 2 * 2 * 2 * 5 * 3
    alone = [r for r in rows if r["init_seed"] is not None]
    assert len(alone) == 2 * 2 * 2 * 3 * (5 + 3) * 2
    assert {r["measure"] for r in alone} == {"nc", "dist", "dist*", "norm", "norm*", "ll", "ll*", "fv"}
    assert {r["metric"] for r in alone} == {"kendall_brier", "kendall_entropy"}  # one network does not vary
    swept = {(r["group"], r["measure"]) for r in rows if r["group"] and r["group"][:2] in ("k ", "M ")}
    ks = {(f"k {k}", name) for k in (1, 10, 50) for name in ("nc", "dist")}  # 1000 is more than there are
    sizes = {(f"M {m}", name) for m in (2, 3) for name in ("nc", "dist", "norm", "ll", "fv")}
    assert swept == ks | sizes | {("M 1", name) for name in ("dist", "norm", "ll")}
    assert len([r for r in rows if r["metric"].startswith("ranking_")]) == 2 * 2 * 5 * 3
    assert study.reasons == [] and study.notes == []
    assert {(r["protocol"], r["dataset"], r["split"], r["backbone"]) for r in rows} == {
        ("reliability", "digits", "digits", "conv")
    }


def test_sweeps_meet_the_main_rows(study):
    for method in PLAN.methods:
        for seed in range(PLAN.seeds):
            for name in ("nc", "dist", "norm", "ll", "fv"):
                asked = {"method": method, "data_seed": seed, "measure": name, "metric": "kendall_brier"}
                whole = one(study.rows, group="cosine", init_seed=None, **asked)
                assert one(study.rows, group="M 3", **asked) == whole
            asked = {"method": method, "data_seed": seed, "metric": "kendall_brier"}
            nc = one(study.rows, group="cosine", init_seed=None, measure="nc", **asked)
            assert one(study.rows, group="k 10", measure="nc", **asked) == nc
            dist = one(study.rows, group="cosine", init_seed=None, measure="dist", **asked)
            assert one(study.rows, group="k 1", measure="dist", **asked) == dist


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


def test_rows_are_kendalls_tau_with_what_separate_heads_say(study, candidate, place):
    """The whole road once more by other means: scikit-learn's heads one by one, sets of neighbours, SciPy's τ."""
    train, tests = (seen(candidate, Look("digits", split), place) for split in ("train", "test"))
    brier, entropy = brute_truth(train, tests)
    refs = references(candidate, 0, place)
    found = []
    for ref, test in zip(refs, tests, strict=True):
        a, b = (x.embeddings / np.linalg.norm(x.embeddings, axis=1, keepdims=True) for x in (test, ref))
        found.append([set(row) for row in np.argsort(-(a.astype(float) @ b.astype(float).T), axis=1)[:, : PLAN.k]])
    nc = [np.mean([len(x & y) / len(x | y) for x, y in combinations(row, 2)]) for row in zip(*found, strict=True)]
    norm = np.mean([np.linalg.norm(x.embeddings, axis=1) for x in tests], axis=0)
    for name, score in (("nc", nc), ("norm", norm)):
        for loss, values in (("brier", brier), ("entropy", entropy)):
            tau = kendalltau(score, -values).statistic
            asked = {"method": "simclr", "group": "cosine", "data_seed": 0, "init_seed": None, "measure": name}
            assert one(study.rows, metric=f"kendall_{loss}", **asked) == pytest.approx(tau, abs=0.002)
    assert one(study.rows, method="simclr", metric="brier", measure=None) == pytest.approx(brier.mean(), abs=1e-5)


def test_members_are_averaged_before_they_are_judged(study, candidate, place):
    """The Brier score of a mean is below the mean of Brier scores wherever members differ: (·)² is convex."""
    folder = reliability._truth_evaluation(candidate, "digits", "one-vs-one", place).folder(Store(place.store))
    truth = Truth.load(folder)
    assert truth.own["brier"].shape == (3, 599) and set(truth.losses) == {"brier", "entropy", "variance"}
    assert (truth.losses["brier"] < truth.own["brier"].mean(axis=0) + 1e-15).all()
    assert truth.losses["brier"].mean() < truth.own["brier"].mean() - 1e-4
    # and by exactly the variance: mean of squares less square of mean, over both classes of every pair
    np.testing.assert_allclose(
        truth.own["brier"].mean(axis=0) - truth.losses["brier"], truth.losses["variance"], atol=1e-12
    )


def test_a_second_run_trains_nothing_and_says_the_same(study, place, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a network is trained again")

    monkeypatch.setattr(training, "fit", refuse)
    heard = []
    again = reliability.run(PLAN, place, workers=0, say=lambda *each: heard.append(each))
    assert again.rows == study.rows and not again.failures and heard == []
    # another k is another question to the same embeddings
    other = reliability.run(replace(PLAN, k=20, scores=("nc",), distances=("euclidean",)), place, workers=0)
    assert not other.failures and {row["measure"] for row in other.rows} == {None, "nc"}
    assert {row["group"] for row in other.rows} >= {"euclidean", "k 10", "M 2"}  # no cosine: its sweeps are shown


def test_references_are_the_same_rows_for_all_members_and_were_learnt_from(study, place):
    learnt = set(datasets.splits(datasets.load("digits")).train.index.tolist())
    samples = []
    for seed in range(PLAN.seeds):
        dumps = [each for c in candidates(study.plan) for each in references(c, seed, place)]
        assert all(np.array_equal(each.index, dumps[0].index) for each in dumps)
        assert len(dumps[0]) == PLAN.references and set(dumps[0].index.tolist()) <= learnt
        samples.append(dumps[0].index)
    assert not np.array_equal(*samples)
    embeddings = [each.embeddings for each in references(candidates(study.plan)[0], 0, place)]
    assert not np.allclose(embeddings[0], embeddings[1])  # members are other networks


def test_a_sample_is_a_function_of_its_seed():
    first = reliability.sample(1000, 50, 7)
    assert np.array_equal(first, reliability.sample(1000, 50, 7)) and len(set(first)) == 50
    assert not np.array_equal(first, reliability.sample(1000, 50, 8))
    assert np.array_equal(reliability.sample(5, 5, 0), np.arange(5))


def test_members_differ_in_their_seed_alone():
    found = candidates(replace(PLAN, methods=("simclr", "byol"), backbones=("mlp", "conv")))
    assert len(found) == 4 and [len(each.trials) for each in found] == [3] * 4
    for each in found:
        assert [trial.init_seed for trial in each.trials] == [0, 1, 2]
        assert len({replace(trial, init_seed=0) for trial in each.trials}) == 1


def test_evaluation_from_dumps_alone_gives_the_rows_of_the_study(study, candidate, place):
    train, tests = (seen(candidate, Look("digits", split), place) for split in ("train", "test"))
    refs = [references(candidate, seed, place) for seed in range(PLAN.seeds)]
    facts = reliability._facts(candidate, "digits", place)
    rows, reasons = evaluate(refs, tests, truth_of(train, tests), study.plan, facts)

    def plain(row):
        return tuple(value for name, value in row.items() if name != "value")

    own = {plain(row): row["value"] for row in study.rows if row["method"] == "simclr"}
    assert reasons == [] and {plain(row) for row in rows} == set(own)
    assert all(row["value"] == pytest.approx(own[plain(row)], abs=1e-12) for row in rows)


def test_rankings_are_the_mean_tau_of_every_image(study, place):
    group = candidates(study.plan)
    tests = [seen(c, Look("digits", "test"), place) for c in group]
    trains = [seen(c, Look("digits", "train"), place) for c in group]
    losses = [truth_of(a, b).losses["brier"] for a, b in zip(trains, tests, strict=True)]
    scores = [
        scores_of(references(c, 1, place), t, k_nc=(10,), components=4) for c, t in zip(group, tests, strict=True)
    ]
    for name, key in (("nc", "nc@10"), ("dist", "dist@1"), ("fv", "fv")):
        taus = [
            kendalltau([s[key][row] for s in scores], [loss[row] for loss in losses]).statistic for row in range(599)
        ]
        expected = np.nanmean(taus)
        asked = {"metric": "ranking_brier", "measure": name, "group": "cosine", "data_seed": 1}
        assert one(study.rows, **asked) == pytest.approx(expected)
        (row,) = [r for r in study.rows if all(r[a] == b for a, b in asked.items())]
        assert row["n"] == np.isfinite(taus).sum() and row["method"] is None


def test_a_member_that_fails_costs_itself_alone(tmp_path, monkeypatch):
    fit = training.fit

    def fragile(trial, *rest):
        if trial.init_seed == 1 and trial.method == "moco":
            raise RuntimeError("it broke")
        return fit(trial, *rest)

    monkeypatch.setattr(training, "fit", fragile)
    plan = replace(PLAN, seeds=1, distances=("cosine",), scores=("nc", "dist"), ks=(), backbones=("mlp",))
    found = reliability.run(plan, Place(str(tmp_path / "store"), device="cpu"), workers=0)
    assert [failure.reason for failure in found.failures] == ["RuntimeError: it broke"]
    assert found.notes == ["moco, mlp, digits: 2 of 3 members are there."]
    whole = [row for row in found.rows if row["measure"] == "nc" and row["init_seed"] is None and row["method"]]
    members = {row["method"]: row["members"] for row in whole if row["group"] == "cosine"}
    assert members == {"simclr": 3, "moco": 2}
    assert {r["init_seed"] for r in found.rows if r["method"] == "moco" and r["init_seed"] is not None} == {0, 2}


def test_a_worker_that_dies_is_noted_at_its_network(tmp_path):
    place = Place(str(tmp_path / "store"), device="cpu")
    (trial, *_), looks = candidates(PLAN)[0].trials, reliability.looks_of(PLAN, "digits")
    reliability._embed_died("It was killed.", trial, looks, place)
    (noted,) = Store(place.store).runs()
    assert (noted.stage, noted.key, noted.reason) == ("train", train_key(trial, place), "It was killed.")


@pytest.mark.slow
def test_two_workers_make_the_rows_of_one(study, tmp_path, capsys):
    """The same command in worker processes, from nothing to the page; then once more, in which nothing is left."""
    words = reports.command_of(_study.told(study).plan).split()[3:]
    words += ["--ks", "1,10,50,1000", "--store", str(tmp_path / "store"), "--device", "cpu", "--workers", "2"]
    assert command.run(parsed(*words)) == 0
    found = _study.read_study(tmp_path / "store" / "report")
    assert len(found.rows) == len(study.rows)
    assert all(a["value"] == pytest.approx(b["value"], abs=1e-3) for a, b in zip(found.rows, study.rows, strict=True))
    capsys.readouterr()
    assert command.run(parsed(*words)) == 0
    assert capsys.readouterr().err == ""  # no stage has anything to say


@pytest.mark.slow
def test_a_machine_that_cannot_draw_tells_the_study_all_the_same(study, place, tmp_path):
    words = reports.command_of(_study.told(study).plan).split()[3:]
    words += ["--ks", "1,10,50,1000", "--store", place.store, "--device", "cpu", "--workers", "0"]
    code = (
        "import sys; sys.modules |= dict.fromkeys(('altair', 'vl_convert', 'optuna', 'tyro'))\n"
        "import argparse\nfrom nescio.commands import _run_reliability as command\n"
        "parser = argparse.ArgumentParser()\ncommand.configure(parser)\n"
        f"sys.exit(command.run(parser.parse_args({[*words, '--report', str(tmp_path)]})))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert "The figures are left out" in (tmp_path / "index.html").read_text()


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


def test_transfer_and_a_lone_network(tmp_path, other):
    """Pre-training on digits, heads on another set; a single network has no NC and no FV, and the study says why."""
    plan = Plan(
        settings=(("digits", other),),
        methods=("simclr",),
        backbones=("mlp",),  # it takes images of one size only
        members=1,
        references=100,
        seeds=1,
        k=5,
        ks=(),
        distances=("cosine",),
        components=3,
        training=PLAN.training,
    )
    place = Place(str(tmp_path / "store"), device="cpu")
    found = reliability.run(plan, place, workers=0)
    assert not found.failures
    assert {(row["dataset"], row["split"], row["n"]) for row in found.rows} == {("digits", other, 90)}
    assert {row["measure"] for row in found.rows} == {None, "dist", "norm", "ll"}
    assert {row["metric"] for row in found.rows if row["measure"] is None} == {"brier", "entropy"}
    reasons = {each["measure"]: each["reason"] for each in found.reasons}
    assert reasons.keys() == {"nc", "fv"} and all("two or more siblings" in each for each in reasons.values())
    (only,) = candidates(plan)
    assert [len(each) for each in seen(only, Look("digits", "train", 100, 0), place)] == [100]
    told = _study.told(found)
    assert not reports.table_1(found.rows) and reports.table_2(found.rows)[0].heads == (
        "digits → three entropy",
        "digits → three brier",
    )
    assert reports.story(told).sections


def test_targets_are_brought_to_the_size_that_the_networks_know(other):
    small = reliability.images_of(Look(other, "test"), 8, None)
    whole = datasets.load(other).test
    assert small.pixels.shape == (90, 8, 8, 1) and small.pixels.dtype == np.uint8
    assert np.array_equal(small.labels, whole.labels) and np.array_equal(small.index, whole.index)
    assert abs(float(small.pixels.mean()) - float(whole.pixels.mean())) < 3
    same = reliability.images_of(Look(other, "test"), 12, None)
    assert np.array_equal(same.pixels, whole.pixels)
    some = reliability.resized(whole.take(np.array([5, 3])), 12, 24)
    assert some.pixels.shape == (2, 24, 24, 1) and np.array_equal(some.labels, whole.labels[[5, 3]])
    flat = replace(whole, held=datasets.base.Pixels(lambda: np.full((90, 12, 12, 1), 77, np.uint8)))
    assert (reliability.resized(flat, 12, 20).pixels == 77).all()


# ---- the truth


def test_the_original_code_gives_the_same_truth():
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


def test_rows_are_joined_by_their_keys():
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
    plan = replace(PLAN, k=5, ks=(), distances=("cosine",), components=2)
    facts = {"method": "mine", "split": "there", "backbone": "b"}
    truth = truth_of(train, tests)
    rows, _ = evaluate([refs], tests, truth, plan, facts)
    order = rng.permutation(30)
    shuffled = [tests[0], tests[1].take(order), tests[2]]
    mixed = Truth(
        truth.index[order],
        {name: loss[order] for name, loss in truth.losses.items()},
        {name: loss[:, order] for name, loss in truth.own.items()},
    )
    again, _ = evaluate([refs], shuffled, mixed, plan, facts)
    values, others = ([row["value"] for row in found if row["measure"]] for found in (rows, again))
    np.testing.assert_allclose(values, others)
    np.testing.assert_allclose(truth_of(train, shuffled).losses["brier"], truth.losses["brier"])
    tensors = truth_of(train, tests, device=torch.device("cpu"))  # as on a GPU
    for name, loss in truth.losses.items():
        np.testing.assert_allclose(tensors.losses[name], loss, atol=1e-4)
    with pytest.raises(BadInput, match="asked about other rows"):
        evaluate([refs], [each.take(np.arange(29)) for each in tests], truth, plan, facts)
    with pytest.raises(Undefined, match="no labels"):
        truth_of(train, [each.replace(labels=None) for each in tests])


def test_a_score_that_never_varies_has_a_reason_and_no_row():
    rng = np.random.default_rng(0)
    tests = [Predictions(embeddings=rng.normal(size=(20, 3))) for _ in range(2)]
    refs = [Predictions(embeddings=rng.normal(size=(6, 3))) for _ in range(2)]
    truth = Truth(tests[0].index, {"brier": rng.random(20)}, {"brier": rng.random((2, 20))})
    plan = replace(PLAN, k=6, ks=(), distances=("cosine",), scores=("nc", "norm"))  # all references: always the same
    rows, reasons = evaluate([refs], tests, truth, plan, {"method": "mine"})
    assert {row["measure"] for row in rows if row["metric"] == "kendall_brier"} == {"norm", "norm*"}
    assert {each["measure"] for each in reasons} == {"nc"} and "same value in every row" in reasons[0]["reason"]


# ---- rows to tables


def made_rows(seed=0, seeds=3, members=2):
    """Random rows of a study of two settings, two backbones, two methods."""
    rng = np.random.default_rng(seed)
    rows = []
    for data, target in (("cifar10", "cifar10"), ("tiny", "cifar10")):
        for backbone in ("resnet18", "resnet50"):
            for method in ("simclr", "moco"):
                facts = {"dataset": data, "split": target, "backbone": backbone, "method": method, "version": 1}
                facts |= {"protocol": "reliability", "init_seed": None, "members": members, "data_seed": None}
                for loss in ("brier", "entropy", "variance"):
                    rows.append(facts | {"group": None, "measure": None, "metric": loss, "value": rng.random()})
                for group in ("cosine", "euclidean", "k 1", "k 10", "M 1", "M 2"):
                    for name in ("nc", "dist", "norm", "ll", "fv"):
                        if (group[0] == "k" and name not in ("nc", "dist")) or (
                            group == "M 1" and name in ("nc", "fv")
                        ):
                            continue
                        fixed = rng.uniform(-1, 1)
                        for data_seed in range(seeds):
                            for loss in ("brier", "entropy"):
                                value = fixed if name in ("norm", "fv") else rng.uniform(-1, 1)
                                own = {"group": group, "measure": name, "metric": f"kendall_{loss}", "value": value}
                                rows.append(facts | own | {"data_seed": data_seed})
                                if group == "cosine":
                                    for member in range(members):
                                        for star in ("", "*") if name in ("dist", "norm", "ll") else ("",):
                                            own = own | {"measure": name + star, "value": rng.uniform(-1, 1)}
                                            single = {"init_seed": member, "data_seed": data_seed, "members": 1}
                                            rows.append(facts | own | single)
            for name in ("nc", "fv"):
                for data_seed in range(seeds):
                    facts = {"dataset": data, "split": target, "backbone": backbone, "method": None, "version": 1}
                    own = {"measure": name, "metric": "ranking_brier", "value": rng.uniform(-1, 1), "group": "cosine"}
                    more = {"init_seed": None, "data_seed": data_seed, "members": None, "protocol": "reliability"}
                    rows.append(facts | own | more)
    return rows


def values(rows, **wanted):
    return [row["value"] for row in rows if all(row[name] == value for name, value in wanted.items())]


def cells(table):
    return {
        (name, head): cell for name, own in table.lines for head, cell in zip(table.heads, own, strict=True) if cell
    }


@pytest.mark.parametrize(
    ("name", "data", "group", "spread"),
    [
        ("table1", "cifar10", "cosine", False),
        ("table2", "tiny", "cosine", False),
        ("table4", "cifar10", "cosine", True),
        ("table5", "cifar10", "euclidean", True),
        ("table6", "tiny", "cosine", True),
        ("table7", "tiny", "euclidean", True),
    ],
)
def test_tables_are_means_and_deviations_over_samples(name, data, group, spread):
    """One table a backbone; in-distribution and transfer apart; Norm and FV know no references, and so no spread."""
    rows = made_rows()
    found = reports.REPORTS[name](rows)
    assert len(found) == 2
    head = "cifar10" if data == "cifar10" else "tiny → cifar10"
    for table, backbone in zip(found, ("resnet18", "resnet50"), strict=True):
        assert table.title.endswith(backbone) and f"(Table {name[-1]})" in table.title
        assert table.heads == (f"{head} entropy", f"{head} brier") and table.labels == 2
        assert [line for line, _ in table.lines] == [
            JOINT.join((m, s)) for m in ("SimCLR", "MoCo") for s in ("NC", "Dist", "Norm", "LL", "FV")
        ]
        shown = cells(table)
        for method, title in (("simclr", "SimCLR"), ("moco", "MoCo")):
            for loss in ("entropy", "brier"):
                column = {}
                for measure, word in reports.WORDS.items():
                    asked = {"dataset": data, "backbone": backbone, "method": method, "group": group}
                    own = values(rows, metric=f"kendall_{loss}", measure=measure, init_seed=None, **asked)
                    assert len(own) == 3
                    cell = shown[JOINT.join((title, word)), f"{head} {loss}"]
                    assert cell.value == pytest.approx(fmean(own))
                    around = f" ± {stdev(own):.4f}" if spread and measure not in ("norm", "fv") else ""
                    assert cell.text == f"{fmean(own):.4f}{around}".replace("−", "-")
                    column[measure] = cell
                best = max(column.values(), key=lambda cell: cell.value)
                assert [cell.best for cell in column.values()] == [cell is best for cell in column.values()]


def test_table_3_ranks_the_candidates_of_one_backbone():
    rows = made_rows()
    tables = reports.table_3(rows)
    assert [table.labels for table in tables] == [1, 1]
    for table, backbone in zip(tables, ("resnet18", "resnet50"), strict=True):
        for (word, head), cell in cells(table).items():
            data = "tiny" if "→" in head else "cifar10"
            own = values(rows, dataset=data, backbone=backbone, measure=word.lower(), metric="ranking_brier")
            assert cell.value == pytest.approx(fmean(own))
            assert cell.text.endswith(f"± {stdev(own):.4f}") == (word == "NC")


@pytest.mark.parametrize(("name", "data"), [("table8", "cifar10"), ("table9", "tiny")])
def test_single_networks_are_averaged_over_samples_and_spread_over_networks(name, data):
    rows = made_rows(members=4)
    for table, backbone in zip(reports.REPORTS[name](rows), ("resnet18", "resnet50"), strict=True):
        assert [line for line, _ in table.lines][:8] == [
            JOINT.join(("SimCLR", word)) for word in ("NC", "Dist", "Dist*", "Norm", "Norm*", "LL", "LL*", "FV")
        ]
        for (line, _), cell in cells(table).items():
            title, word = line.split(JOINT)
            asked = {"dataset": data, "backbone": backbone, "method": title.lower(), "measure": word.lower()}
            own = [
                fmean(values(rows, metric="kendall_brier", group="cosine", init_seed=member, **asked))
                for member in range(4)
            ]
            assert cell.value == pytest.approx(fmean(own))
            assert cell.text.endswith(f" ± {stdev(own):.4f}")


@pytest.mark.parametrize(("name", "over"), [("fig4", "M"), ("fig5", "k")])
def test_figures_sweep_every_candidate_and_draw_scores_without_k_level(name, over):
    rows = made_rows()
    found = reports.sweeps(rows, over)
    assert len(found) == 8
    for sweep in found:
        asked = {"dataset": sweep.setting.data, "backbone": sweep.backbone, "method": sweep.method}
        asked |= {"metric": "kendall_brier", "init_seed": None}
        for measure, word in reports.WORDS.items():
            line = sweep.lines[word]
            for level in ("1", "10") if over == "k" else ("1", "2"):
                group = f"{over} {level}"
                if over == "k" and measure not in ("nc", "dist"):
                    group = "cosine"
                own = values(rows, group=group, measure=measure, **asked)
                assert (level in line) == bool(own)
                if own:
                    assert line[level] == pytest.approx(fmean(own))
    blocks = reports.REPORTS[name](rows)
    figures = [block for block in blocks if isinstance(block, Figure)]
    tables = [block for block in blocks if isinstance(block, Table)]
    assert len(figures) == len(tables) == 8 and len({each.key for each in figures}) == 8
    assert tables[0].heads == (("M = 1", "M = 2") if over == "M" else ("k = 1", "k = 10"))


def test_figure_2_shows_one_candidate_in_distribution_and_one_in_transfer():
    blocks = reports.fig_2(made_rows())
    assert [type(block) for block in blocks] == [Figure] * 4 + [Table] * 4
    titles = ["SimCLR, resnet18, cifar10", "SimCLR, resnet18, tiny → cifar10"]
    assert [block.title for block in blocks[:4]] == titles * 2
    assert [block.title for block in blocks[4:]] == [f"{each} (Figure 2)" for each in titles * 2]


def test_the_summary_counts_where_a_score_points_the_right_way():
    rows = made_rows()
    table = reports.summary(rows)
    order = []
    for (word, head), cell in cells(table).items():
        loss, what = head.split(": ")
        measure = word.lower()
        taus = [
            fmean(
                values(
                    rows,
                    dataset=data,
                    backbone=backbone,
                    method=method,
                    group="cosine",
                    metric=f"kendall_{loss}",
                    measure=measure,
                    init_seed=None,
                )
            )
            for data in ("cifar10", "tiny")
            for backbone in ("resnet18", "resnet50")
            for method in ("simclr", "moco")
        ]
        if what.startswith("mean"):
            assert cell.value == pytest.approx(fmean(taus))
            order += [cell.value] * (loss == "brier")
        elif what.startswith("lowest"):
            assert cell.value == pytest.approx(min(taus))
        else:
            assert cell.text == f"{sum(tau > 0 for tau in taus)} of 8"
    assert order == sorted(order, reverse=True) and len(order) == 5


def test_a_score_takes_the_method_with_the_lowest_mean_uncertainty():
    rows = made_rows()
    table = reports.choices(rows)
    assert table.heads[0] == "cifar10, resnet18" and len(table.heads) == 4
    for (line, head), cell in cells(table).items():
        place, backbone = head.split(", ")
        asked = {"dataset": "tiny" if "→" in place else place, "backbone": backbone}
        brier = {m: one(rows, method=m, metric="brier", **asked) for m in ("simclr", "moco")}
        u = brier if line == reports.TRUTH else {}
        for method in () if u else ("simclr", "moco"):
            u[method] = fmean(values(rows, method=method, measure=line.lower(), metric="mean", **asked))
        taken = min(u, key=u.get)
        assert cell.text == reports.METHODS[taken]
        assert cell.best == (taken == min(brier, key=brier.get) and line != reports.TRUTH)
    assert not reports.choices([row for row in rows if row["method"] != "moco"]).lines  # one alone is no choice


def test_the_distance_table_has_both_sides_or_none():
    rows = made_rows()
    found = cells(reports.robustness(rows))
    for group in ("cosine", "euclidean"):
        taus = [
            mean.value
            for line, mean in reports.over_samples(rows).items()
            if line[3:] == (group, "ll", "kendall_brier")
        ]
        assert found["LL", f"{group}: mean τ ↑"].value == pytest.approx(fmean(taus))
    assert not reports.robustness([row for row in rows if row["group"] != "euclidean"]).lines


def test_one_sample_has_no_spread_and_nothing_is_no_table():
    rows = made_rows(seeds=1)
    assert all("±" not in cell.text for table in reports.table_4(rows) for cell in cells(table).values())
    for name, report in reports.REPORTS.items():
        assert not any(getattr(block, "lines", ()) for block in report([])), name


# ---- the page and the command


def test_the_page_tells_every_table_and_can_be_told_again(study, tmp_path, monkeypatch):
    told = _study.told(study)
    story = reports.story(told)
    shown = " ".join(table.title for table in _study.tables_of(story))
    for title in ("Table 3", "Table 4", "Table 5", "Table 8", "Figure 4", "Figure 5"):
        assert title in shown
    assert "which has seen no label" in " ".join(story.lead)
    page = _study.write_study(study, tmp_path)
    assert _study.read_study(tmp_path).rows == told.rows and "fig4-m0" in page.read_text()
    monkeypatch.setattr(_study, "drawable", lambda: False)  # a GPU machine has no Altair
    bare = _study.write_study(study, tmp_path / "bare")
    assert "fig4-m0" not in bare.read_text() and "The figures are left out" in bare.read_text()
    assert [table.title for table in reports.first_look(told)][:2] == [reports.WHICH, "Candidates, conv"]


def test_the_command_of_a_page_parses_to_its_plan(study):
    words = reports.command_of(_study.told(study).plan).split()
    assert words[:3] == ["nescio", "run", "reliability"]
    plan = command.plan_of(parsed(*words[3:], "--ks", "1,10,50,1000"))
    assert replace(plan, ks=study.plan.ks) == study.plan
    words = reports.command_of(_study.told(replace_plan(study, reliability.PRESETS["paper"])).plan).split()
    assert command.plan_of(parsed(*words[3:])) == reliability.PRESETS["paper"]
    uneven = replace(study.plan, members=5, others=(("moco", 3),))
    words = reports.command_of(_study.told(replace_plan(study, uneven)).plan).split()
    assert replace(command.plan_of(parsed(*words[3:])), ks=uneven.ks) == uneven
    assert reports.command_of({}) == ""


def replace_plan(study, plan):
    return replace(study, plan=plan)


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(words)


def test_options_become_the_plan():
    assert command.plan_of(parsed()) == reliability.PRESETS["small"]
    plan = command.plan_of(
        parsed("--data", "cifar10,cifar100", "--methods", "moco,simclr", "--members", "5", "--k", "7", "--epochs", "3")
    )
    assert plan.settings == (("cifar10", "cifar10"), ("cifar100", "cifar100"))
    assert (plan.methods, plan.members, plan.k, plan.training.epochs) == (("moco", "simclr"), 5, 7, 3)
    plan = command.plan_of(parsed("--data", "a,b", "--targets", "x,y", "--scores", "nc,fv", "--ks", "1-3"))
    assert plan.settings == (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"))
    assert plan.scores == ("nc", "fv") and plan.ks == (1, 2, 3)
    plan = command.plan_of(parsed("--members", "5,moco=3,byol=2"))
    assert (plan.members, plan.others) == (5, (("moco", 3), ("byol", 2)))
    assert [len(each.trials) for each in candidates(plan)] == [5, 2, 3]
    assert command.plan_of(parsed("--members", "moco=2")).members == reliability.PRESETS["small"].members
    with pytest.raises(BadInput, match="such as 5, or 5,moco=3, not 'moco'"):
        command.plan_of(parsed("--members", "moco"))
    with pytest.raises(BadInput, match="no preset named 'large'"):
        command.plan_of(parsed("--preset", "large"))
    with pytest.raises(BadInput, match="simclrr"):
        command.plan_of(parsed("--methods", "simclrr"))


def test_every_default_is_named_in_help():
    parser = argparse.ArgumentParser()
    command.configure(parser)
    small, paper = (reliability.PRESETS[name] for name in ("small", "paper"))
    said = {action.dest: action.help or "" for action in parser._actions}
    for name in ("members", "references", "k"):
        assert f"small: {getattr(small, name)}" in said[name] and f"paper: {getattr(paper, name)}" in said[name]
    for name in ("seeds", "k_dist", "components", "similarity", "tasks"):
        assert f"default: {getattr(small, name)}" in said[name], name
    for name in ("methods", "distances", "scores", "ks"):
        assert f"default: {','.join(map(str, getattr(small, name)))}" in said[name], name
    parser.format_help()


def test_the_paper_preset_is_the_paper():
    plan = reliability.PRESETS["paper"]
    assert (plan.members, plan.references, plan.seeds, plan.k, plan.k_dist) == (10, 5000, 5, 100, 1)
    assert plan.methods == ("simclr", "byol", "moco") and plan.backbones == ("resnet18", "resnet50")
    assert plan.ks == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) and plan.distances == ("cosine", "euclidean")
    assert plan.sources == {
        "cifar10": ["cifar10"],
        "cifar100": ["cifar100"],
        "tiny-imagenet": ["cifar10", "cifar100", "stl10"],
    }
    assert plan.tasks == "one-vs-one" and plan.components == 20 and plan.similarity == "jaccard"


def test_the_command_shows_a_finished_study_without_training(study, place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("a network is trained again"))
    words = reports.command_of(_study.told(study).plan).split()[3:]
    words += ["--ks", "1,10,50,1000", "--store", place.store, "--device", "cpu", "--workers", "0"]
    assert command.run(parsed(*words, "--report", str(tmp_path / "report"))) == 0
    out = capsys.readouterr().out
    assert reports.WHICH in out and "SimCLR · NC" in out
    assert (tmp_path / "report" / "index.html").is_file() and (tmp_path / "report" / "rows.parquet").is_file()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": 0}, "--members must be at least 1, not 0"),
        ({"k_dist": 0}, "--k-dist must be at least 1"),
        ({"ks": (0, 5)}, "--ks holds 0"),
        ({"others": (("byol", 2),)}, "--members byol=2: name a method of --methods"),
        ({"others": (("moco", 0),)}, "--members moco=0: .* at least one network"),
        ({"distances": ("manhattan",)}, "--distances knows no 'manhattan'. There are: cosine, euclidean"),
        ({"scores": ()}, "--scores names none"),
        ({"scores": ("entropy",)}, "--scores knows no 'entropy'"),
        ({"similarity": "dice"}, "--similarity is jaccard or overlap, not 'dice'"),
        ({"tasks": "regression"}, "--tasks is one-vs-one or multiclass"),
        ({"methods": ()}, "nothing to train"),
        ({"k": 201}, "k is 201, but digits has only 200 references"),
        ({"training": Training(batch=128, augment="none")}, "without augmentation they are the same"),
        ({"backbones": ("convv",)}, "no backbone named 'convv'"),
    ],
)
def test_bad_plans_are_refused_before_any_work(tmp_path, change, words):
    with pytest.raises(BadInput, match=words):
        reliability.run(replace(PLAN, **change), Place(str(tmp_path / "store"), device="cpu"), workers=0)
    assert not (tmp_path / "store").exists()


def test_channels_must_fit(tmp_path):
    colour = {name: np.zeros((4, 8, 8, 3), np.uint8) for name in ("x_train", "x_test")}
    np.savez(tmp_path / "colour.npz", **colour, y_train=[0, 1, 0, 1], y_test=[0, 1, 0, 1])
    plan = replace(PLAN, settings=(("digits", f"npz:{tmp_path}/colour.npz"),))
    with pytest.raises(BadInput, match="3 channel"):
        reliability.run(plan, Place(str(tmp_path / "store"), device="cpu"), workers=0)


def test_more_references_than_images_are_all_of_them(study, place):
    from nescio.protocols._evaluations import Study

    held = Study(PLAN)
    reliability._check_possible(replace(PLAN, references=5000), place, held)
    chosen = reliability.images_of(reliability.Look("digits", "train", 5000), 8, place.root)
    assert len(chosen) == 1078
    assert held.notes == [
        "digits has 1,078 training images, and all of them are references: samples of references do not differ."
    ]


def test_a_small_set_does_not_take_references_from_a_large_one(place, tmp_path):
    """Each pre-training set has as many as it can."""
    from nescio.protocols._evaluations import Study

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 8, 8, 1), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    few = f"npz:{tmp_path / 'few.npz'}"
    plan = replace(PLAN, settings=(("digits", "digits"), (few, few)), references=200)
    study = Study(plan)
    reliability._check_possible(replace(plan, k=20, training=replace(plan.training, batch=16)), place, study)
    counts = [len(reliability.images_of(reliability.looks_of(plan, data)[0], 8, place.root)) for data in plan.sources]
    assert counts[0] == 200 > counts[1] > 20 and len(study.notes) == 1


def test_methods_that_need_labels_are_refused(place):
    from nescio.protocols._evaluations import Study

    with pytest.raises(BadInput, match="without labels, and erm needs them"):
        reliability._check_possible(replace(PLAN, methods=("erm",)), place, Study(PLAN))


def test_k_beyond_the_references_is_left_out_of_the_sweep():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    truth = truth_of(train, tests)
    rows, _ = reliability.evaluate([refs], tests, truth, Plan(k=10, scores=("nc",)), {"method": "mine"})
    swept = {row["group"] for row in rows if str(row["group"]).startswith("k ")}
    assert swept == {"k 1", "k 2", "k 5", "k 10", "k 20", "k 50"}


def test_a_member_that_says_one_thing_has_no_scores_and_spoils_no_ranking():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    still = [[Predictions(embeddings=np.ones((len(side[0]), 5)))] * 2 for side in (refs, tests)]
    rows, reasons = reliability.evaluate([still[0]], still[1], truth_of(train, tests), Plan(k=10), {"method": "mine"})
    assert not [row for row in rows if row["measure"]]
    assert {each["measure"] for each in reasons} == {"nc", "dist", "norm", "ll", "fv"}
    assert "has collapsed" in reasons[0]["reason"]
    truth, own = truth_of(train, tests), {"nc": np.ones(40)}
    worse = Truth(truth.index, {name: loss + 1 for name, loss in truth.losses.items()}, truth.own)
    rows, _ = reliability.ranking_rows([{}, own, {"nc": 1 + own["nc"]}], [truth, truth, worse], {})
    assert next((row["metric"], row["value"]) for row in rows) == ("ranking_brier", 1.0)


def test_regression_is_a_collection_of_tasks():
    refs, tests, train = (_members_of(rows) for rows in (60, 40, 80))
    numbers = tuple(side[0].embeddings[:, :2] for side in (train, tests))
    truth = truth_of(train, tests, "regression", numbers=numbers)
    assert set(truth.losses) == {"squared_error", "variance"} and set(truth.own) == {"squared_error"}
    assert truth.own["squared_error"][0].mean() < 1e-3 < truth.own["squared_error"][1].mean()  # its own features
    rows, _ = reliability.evaluate([refs], tests, truth, Plan(k=10, scores=("nc",)), {"method": "mine"})
    assert "kendall_squared_error" in {row["metric"] for row in rows}
    with pytest.raises(Undefined, match="Regression needs the numbers"):
        truth_of(train, tests, "regression")


def _members_of(rows):
    """Three members' embeddings of some rows of three classes."""
    rng = np.random.default_rng(rows)
    labels = np.arange(rows) % 3
    return [Predictions(embeddings=2 * np.eye(5)[labels] + rng.normal(size=(rows, 5)), labels=labels) for _ in range(3)]


def test_no_torch_is_imported_to_tell_a_study():
    code = "import sys, nescio.protocols.reliability.reports; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_candidate_says_what_it_is(candidate):
    assert candidate.title == "simclr, conv, digits" and candidate.data == "digits"
    assert isinstance(candidate, Candidate)
