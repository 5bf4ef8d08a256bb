"""Selective prediction over many models: every number of a row and of a report again, by its definition."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from nescio.analysis.evaluation_rows import NO_DROPOUT, resolve_measure
from nescio.benchmarks import selective
from nescio.benchmarks.base import registry
from nescio.benchmarks.pretrained import models_of
from nescio.benchmarks.selective import Plan, reports
from nescio.cli import main
from nescio.errors import BadInput, Undefined
from nescio.networks import families, regimes
from nescio.predictions import Predictions
from nescio.report.blocks import Figure, figures_of
from nescio.report.frame import Frame
from nescio.report.named_reports import registry as all_reports
from nescio.report.named_reports import report_names, run_reports
from nescio.report.pages import chart_data as texts_of
from nescio.report.studies import Study, print_story, write_story
from nescio.work.store import Store
from tests.support import fake_zoo
from tests.support.fake_zoo import DATA, NAMES, WITH_DROPOUT, answers, entry, zoo


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return zoo(tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("selective") / "store")


def judge(plan, models, store, **how):
    return fake_zoo.study("selective", plan, store, lambda work: selective.evaluate_models(plan, models, work), **how)


def blocks_of(name, study):
    return all_reports[f"selective/{name}"].blocks(study.frame)


@pytest.fixture(scope="module")
def study(held, store):
    found = judge(Plan(), held, store)
    assert found.failures == []
    return found


def softmax(z, temperature=1.0):
    e = np.exp(np.asarray(z, np.float64) / temperature)
    return e / e.sum(-1, keepdims=True)


def value(rows, metric, measure=None, calibrated=False, coverage=None):
    found = [
        row["value"]
        for row in rows
        if (row["metric"], row["measure"], row["calibrated"], row["coverage"])
        == (metric, measure, calibrated, coverage)
    ]
    assert len(found) == 1, (metric, measure, calibrated, len(found))
    return found[0]


# ---- one model's rows, by their definitions


def ece_of(probs, labels, bins=15):
    top, right = probs.max(1), probs.argmax(1) == labels
    total = 0.0
    for b in range(bins):
        inside = (top > b / bins) & (top <= (b + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    return total


def risks_of(u, wrong):
    """Selective risk after 1, 2 … n rows; u has no ties here."""
    order = np.argsort(u)
    return np.cumsum(wrong[order]) / np.arange(1, len(u) + 1)


def check_ranking(rows, u, wrong, measure, calibrated):
    n, risks, e = len(u), risks_of(u, wrong), int(wrong.sum())
    best = np.maximum(0, np.arange(1, n + 1) - (n - e)) / np.arange(1, n + 1)
    expected = {
        "auroc": roc_auc_score(wrong, u),
        "aurc": risks.mean(),
        "e_aurc": risks.mean() - best.mean(),
        "aurc_over": fmean(risks[math.ceil(round(share * n, 6)) - 1] for share in np.arange(1, 11) / 10),
    }
    for accuracy in (0.9, 0.95, 0.99):
        kept = [i for i in range(1, n + 1) if round(risks[i - 1] * i) <= (1 - accuracy) * i + 1e-9]
        expected[f"sac@{accuracy}"] = max(kept, default=0) / n
    for share in (0.5, 0.8):
        expected[f"selective_risk@{share}"] = risks[math.ceil(share * n) - 1]
    for metric, number in expected.items():
        assert value(rows, metric, measure, calibrated) == pytest.approx(number, abs=1e-9), metric
    for step in range(1, 21):
        risk = value(rows, "selective_risk", measure, calibrated, step / 20)
        assert risk == pytest.approx(risks[math.ceil(round(step / 20 * n, 6)) - 1], abs=1e-12)


def test_temperature_split__the_rows_of_a_model_are_their_definitions(held, study):
    each = next(entry for entry in held if entry.model == "vgg11.tv_in1k")
    rows, dump = [row for row in study.rows if row["backbone"] == each.model], each.load()
    fit, test = selective.temperature_split(dump, Plan())
    assert (len(fit), len(test)) == (50, 450)
    z, y = dump.logits[:, 0].astype(np.float64), dump.labels

    def loss(t):
        return -np.log(softmax(z[fit], t)[np.arange(len(fit)), y[fit]]).mean()

    best = minimize_scalar(lambda x: loss(np.exp(x)), bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    temperature = value(rows, "temperature", calibrated=True)
    assert temperature == pytest.approx(np.exp(best.x), rel=1e-4)
    for calibrated, t in ((False, 1.0), (True, temperature)):
        p = softmax(z[test], t)
        own = p[np.arange(len(test)), y[test]]
        right = p.argmax(1) == y[test]
        assert value(rows, "accuracy", calibrated=calibrated) == pytest.approx((z.argmax(1) == y).mean())
        assert value(rows, "accuracy@5", calibrated=calibrated) == pytest.approx(
            fmean(label in np.argsort(-row)[:5] for row, label in zip(z, y, strict=True))
        )
        assert value(rows, "nll", calibrated=calibrated) == pytest.approx(-np.log(own).mean(), rel=1e-6)
        one_hot = np.eye(p.shape[1])[y[test]]
        assert value(rows, "brier", calibrated=calibrated) == pytest.approx(
            ((p - one_hot) ** 2).sum(1).mean(), rel=1e-6
        )
        assert value(rows, "ece", calibrated=calibrated) == pytest.approx(ece_of(p, y[test]), abs=1e-6)
        check_ranking(rows, 1 - p.max(1), ~right, "msp", calibrated)
        check_ranking(rows, -(p * np.log(p)).sum(1), ~right, "entropy", calibrated)
    p = np.exp(dump.variants["mc-dropout"][test])
    right = p.argmax(1) == y[test]
    whole = dump.variants["mc-dropout"].argmax(1) == y
    assert value(rows, "accuracy", "mc-dropout") == pytest.approx(whole.mean())
    check_ranking(rows, -(p * np.log(p)).sum(1), ~right, "mc-dropout", False)
    networks = study.frame.where(backbone=each.model)
    assert networks.unique("input_size") == [224] and networks.unique("params") == [each.facts["params"]]
    assert {(row["benchmark"], row["dataset"], row["method"], row["members"]) for row in rows} == {
        ("selective", DATA, "pretrained", 1)
    }


def test_selective_benchmark__raw_and_calibrated_are_judged_on_the_same_rows_and_the_fit_is_on_others(study):
    by = {}
    for row in study.rows:
        if row["metric"] in ("accuracy", "auroc", "ece"):
            by.setdefault((row["backbone"], row["metric"], row["measure"]), {})[row["calibrated"]] = row
    for (_, metric, measure), pair in by.items():
        assert {row["n"] for row in pair.values()} == {500 if metric == "accuracy" else 450}  # one accuracy of a model
        assert all(row["low"] < row["value"] < row["high"] for row in pair.values())
        if measure != "mc-dropout":
            assert set(pair) == {False, True}
            if metric == "accuracy":  # one temperature changes no answer
                assert pair[False]["value"] == pair[True]["value"]
    assert {(row["n"], row["split"]) for row in study.rows if row["metric"] == "temperature"} == {(50, "val")}


def test_temperature_split__intervals_of_coverage_and_ece_follow_a_bootstrap_over_rows(held, study):
    """Coverage: percentiles. ECE: below its value there is room for the bias of few rows."""
    each = next(entry for entry in held if entry.model == "vgg11.tv_in1k")
    dump, random = each.load(), np.random.default_rng(1)
    _, test = selective.temperature_split(dump, Plan())
    p = softmax(dump.logits[test, 0].astype(np.float64), 1.0)
    right, coverages, eces = p.argmax(1) == dump.labels[test], [], []
    for _ in range(400):
        drawn = random.integers(len(test), size=len(test))
        ends = np.flatnonzero(np.diff(np.sort(-p.max(1)[drawn]), append=np.inf)) + 1  # copies of a row are ties
        risks = risks_of(1 - p.max(1)[drawn], ~right[drawn])
        coverages.append(max((end for end in ends if risks[end - 1] <= 0.1 + 1e-9), default=0) / len(test))
        eces.append(ece_of(p[drawn], dump.labels[test][drawn]))
    rows = {
        row["metric"]: row for row in study.frame.where(backbone=each.model, calibrated=False, measure=(None, "msp"))
    }
    sac, ece = rows["sac@0.9"], rows["ece"]
    assert [sac["low"], sac["high"]] == pytest.approx(np.quantile(coverages, [0.025, 0.975]), abs=0.05)
    assert 0 <= ece["low"] < ece["value"] < ece["high"]
    assert ece["high"] - ece["low"] >= np.ptp(np.quantile(eces, [0.025, 0.975])) - 0.01


def test_selective_benchmark__entropy_has_no_ece_and_mc_dropout_neither(study):
    assert {row["measure"] for row in study.rows if row["metric"] in ("ece", "nll", "brier")} == {None}
    why = [row["reason"] for row in study.reasons if (row["measure"], row["metric"]) == ("entropy", "ece")]
    assert why == [selective.NO_ECE]


def test_selective_benchmark__mc_dropout_is_where_dropout_was(study):
    assert {row["backbone"] for row in study.rows if row["measure"] == "mc-dropout"} == set(WITH_DROPOUT)
    assert not any(row["calibrated"] for row in study.rows if row["measure"] == "mc-dropout")
    why = [row["reason"] for row in study.reasons if row["measure"] == "mc-dropout"]
    assert why == [NO_DROPOUT]


def test_rows_of__temperature_finds_what_the_logits_were_scaled_by(tmp_path):
    """Labels drawn from the softmax itself ask for T = 1; the same logits times 3 ask for 3 times as much."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(4000, 6)) * 1.5
    labels = np.array([rng.choice(6, p=p) for p in softmax(z)])
    found = []
    for scale in (1.0, 3.0):
        dump = Predictions(logits=z * scale, labels=labels)
        rows = selective.rows_of(Plan(), entry("m", dump, tmp_path / f"{scale}.npz")).rows
        found.append(value(rows, "temperature", calibrated=True))
        assert value(rows, "ece", calibrated=True) < 0.03
    assert found[1] == pytest.approx(3 * found[0], rel=1e-4) and found[0] == pytest.approx(1, abs=0.2)


def test_rows_of_untaught_classes_are_left_out(tmp_path):
    dump = answers(3, n=500)
    in_distribution = np.ones(600, bool)
    in_distribution[500:] = False
    more = Predictions(
        logits=np.concatenate([dump.logits[:, 0], np.zeros((100, 8), np.float16)]),
        labels=np.concatenate([dump.labels, np.full(100, 99)]),
        index=np.concatenate([dump.index, 10_000 + np.arange(100)]),
        in_distribution=in_distribution,
    )
    one = selective.rows_of(Plan(), entry("m", dump, tmp_path / "a.npz")).rows
    assert selective.rows_of(Plan(), entry("m", more, tmp_path / "b.npz")).rows == one


# ---- the division


def dump_of(labels, index=None):
    return Predictions(labels=labels, logits=np.zeros((len(labels), 2 + max(labels))), index=index)


def test_temperature_split__five_thousand_of_fifty_thousand_are_five_of_every_class():
    dump = Predictions(labels=np.arange(50_000) % 1000, logits=np.broadcast_to(np.float32(0), (50_000, 1000)))
    fit, test = selective.temperature_split(dump, Plan())
    assert len(fit) == 5000 and len(test) == 45_000
    assert np.array_equal(np.sort(np.concatenate([fit, test])), np.arange(50_000))
    assert (np.bincount(dump.labels[fit]) == 5).all()
    assert not np.array_equal(fit, selective.temperature_split(dump, Plan(seed=1))[0])
    assert np.array_equal(fit, selective.temperature_split(dump, Plan())[0])
    assert len(selective.temperature_split(dump, Plan(fit_rows=700))[0]) == 700


@pytest.mark.parametrize("counts", [(1000, 500, 70, 3), (1,) * 510, (1000, 1), (499,), (500,)])
def test_temperature_split__every_class_gives_its_share(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    fit, test = selective.temperature_split(dump_of(labels), Plan())
    n = len(labels)
    assert len(fit) == (n // 10 if n >= 500 else 0) and len(fit) + len(test) == n and not set(fit) & set(test)
    for label, count in enumerate(counts):
        assert abs((labels[fit] == label).sum() - len(fit) * count / n) < 1


def test_temperature_split__the_division_goes_by_index_not_by_order():
    rng = np.random.default_rng(0)
    labels, index = rng.integers(5, size=600), np.char.add("img", rng.permutation(600).astype(str))
    one = dump_of(labels, index)
    shuffled = one.take(rng.permutation(600))
    for part in (0, 1):
        chosen = [dump.index[selective.temperature_split(dump, Plan())[part]] for dump in (one, shuffled)]
        assert set(chosen[0]) == set(chosen[1])


def test_rows_of__too_few_rows_are_judged_raw_and_say_why(tmp_path):
    made = selective.rows_of(Plan(), entry("m", answers(1, n=499), tmp_path / "m.npz"))
    rows, reasons = made.rows, made.reasons
    assert {row["calibrated"] for row in rows} == {False} and {row["n"] for row in rows} == {499}
    assert [row["reason"] for row in reasons if row["metric"] == "calibrated"] == [selective.TOO_FEW]


def test_rows_of__a_model_that_is_always_right_has_no_temperature_and_no_auroc(tmp_path):
    labels = np.arange(600) % 4
    dump = Predictions(
        labels=labels, logits=5.0 * np.eye(4)[labels] + np.random.default_rng(0).normal(size=(600, 4)) / 9
    )
    made = selective.rows_of(Plan(), entry("m", dump, tmp_path / "m.npz"))
    rows, reasons = made.rows, made.reasons
    assert value(rows, "accuracy") == 1 and value(rows, "sac@0.99", "msp") == 1
    assert {row["calibrated"] for row in rows} == {False}
    why = {(row["measure"], row["metric"]): row["reason"] for row in reasons}
    assert why[None, "calibrated"].startswith("Every validation prediction")
    assert "auroc" not in {row["metric"] for row in rows}
    assert ("msp", "auroc") in why and (None, "accuracy@5") in why


# ---- the benchmark


def test_evaluate_models__a_second_run_judges_nothing_again(held, store, study, monkeypatch):
    monkeypatch.setattr(selective, "rows_of", lambda *_: pytest.fail("it was judged again"))
    again = judge(Plan(), held, store)
    assert again.rows == study.rows and again.reasons == study.reasons
    assert len(list((store.root / "study").iterdir())) == 1


def test_step__what_changes_the_numbers_changes_the_key(held, store):
    one = held[0]
    keys = {
        selective._step(plan, each).key
        for plan, each in (
            (Plan(), one),
            (Plan(seed=1), one),
            (Plan(accuracies=(0.9,)), one),
            (Plan(), replace(one, key="another dump")),
            (Plan(), replace(one, facts={**one.facts, "params": 5})),
            (Plan(), replace(one, model="another name")),
        )
    }
    assert len(keys) == 6
    assert selective._step(Plan(), replace(one, facts={**one.facts, "weights": "x"})).key in keys
    assert selective._step(Plan(files=("a.npz",), data="x", facts="f.csv"), one).key in keys


def test_evaluate_models__a_broken_dump_costs_one_model(tmp_path):
    held = zoo(tmp_path, NAMES[:3])
    bad = entry("no labels", Predictions(logits=np.ones((5, 3))), tmp_path / "bad.npz")
    seen = []
    store = Store(tmp_path / "store")
    study = judge(Plan(), [held[0], bad, *held[1:]], store, watch=lambda *counts: seen.append(counts[:4]))
    assert {row["backbone"] for row in study.rows} == set(NAMES[:3])
    (failure,) = study.failures
    assert failure.name == "no labels" and "no labels" in failure.reason
    assert ("evaluate models", 4, 1, 4) in seen
    assert "One step failed" in " ".join(registry["selective"].story(study).lead)


def test_evaluate_models__models_of_several_sets_are_refused(held, store):
    with pytest.raises(BadInput, match="set of images"):
        judge(Plan(), [held[0], replace(held[1], data="npz:others")], store)
    with pytest.raises(BadInput, match="given twice"):
        judge(Plan(), [held[0], held[0]], store)
    with pytest.raises(BadInput, match="to compare"):
        judge(Plan(), [], store)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"fit_rows": 1}, "at least 50 rows"),
        ({"measures": ("gmm",)}, "no measure named 'gmm'"),
        ({"accuracies": (99,)}, "99"),
        ({"curve": (0.0,)}, r"\b0\b"),
    ],
)
def test_plan__a_plan_that_makes_no_sense_is_refused(plan, said):
    with pytest.raises(BadInput, match=said):
        Plan(**plan)


# ---- reports: the same numbers from the rows, by other means


def frame(study):
    """model → its numbers, from the rows alone."""
    found = {}
    for row in study.frame:
        if row["evaluation"] == "scorecard":
            own = found.setdefault(row["backbone"], {"params": row.get("params")})
            own["input_size", None, False] = row.get("input_size")
            own[row["metric"], row["measure"], row["calibrated"]] = row["value"]
    return found


def cells(table, *line):
    (found,) = [own for labels, own in table.rows if labels == line]
    return dict(zip(table.columns, found, strict=True))


def rho(pairs):
    x, y = zip(*pairs, strict=True)
    return spearmanr(x, y).statistic


def test_table_1_is_spearman_by_family(study):
    table, models = reports.table_1(study.frame), frame(study)
    groups = {"all models": list(models)}
    for name in models:
        groups.setdefault(families.paper_name(families.family(name)), []).append(name)
    shown = {label: own for label, own in groups.items() if len(own) >= 3}
    assert table.rows[0][0] == ("all models",)
    assert {name for (name,), _ in table.rows} == set(shown)
    assert {"ViT", "DeiT", "DeiT distilled", "XCiT", "XCiT distilled", "EfficientNet", "VGG"} <= set(shown)
    for label, own in shown.items():
        line = cells(table, label)
        assert line["models"].value == len(own)
        for factor, of in (
            ("Accuracy", lambda m: m["accuracy", None, False]),
            ("#Parameters", lambda m: m["params"]),
            ("Input Size", lambda m: m.get(("input_size", None, False))),
        ):
            have = [models[name] for name in own if of(models[name]) is not None]
            for quality, sign, key in (("AUROC", 1, ("auroc", "msp", False)), ("-ECE", -1, ("ece", None, False))):
                cell = line[f"{quality} & {factor}"]
                if len({of(m) for m in have}) == 1:
                    assert cell is None, (label, factor)  # a dash: the input size does not vary
                else:
                    assert cell.value == pytest.approx(rho([(sign * m[key], of(m)) for m in have])), (label, factor)
                    assert str(cell) == f"{cell.value:.2f}".replace("-0.00", "0.00")
    few = sorted(label for label, own in groups.items() if len(own) < 3)
    assert few and all(label in table.note for label in few)
    assert cells(table, "ViT")["AUROC & Input Size"] is not None and cells(table, "VGG")["AUROC & Input Size"] is None


def test_agreement_is_the_correlation_of_auroc_and_ece(study):
    table, models = reports.agreement(study.frame), frame(study)
    pairs = [(m["auroc", "msp", False], m["ece", None, False]) for m in models.values()]
    assert cells(table, "all models")["AUROC & ECE"].value == pytest.approx(rho(pairs))
    own = [pair for name, pair in zip(models, pairs, strict=True) if families.family(name) == "xcit"]
    assert cells(table, "XCiT")["AUROC & ECE"].value == pytest.approx(rho(own)) and len(own) == 3


def test_table_2_is_mc_dropout_beside_the_softmax(study):
    table, models = reports.table_2(study.frame), frame(study)
    assert [labels for labels, _ in table.rows] == [
        (model, method) for model in NAMES if model in WITH_DROPOUT for method in ("vanilla", "MC-dropout")
    ]
    for model in WITH_DROPOUT:
        plain, under = cells(table, model, "vanilla"), cells(table, model, "MC-dropout")
        for head, metric in (("accuracy ↑", "accuracy"), ("AUROC ↑", "auroc"), ("SAC@0.99 ↑", "sac@0.99")):
            a = models[model][metric, None if metric == "accuracy" else "msp", False]
            b = models[model][metric, "mc-dropout", False]
            assert plain[head].value == pytest.approx(a) and under[head].value == pytest.approx(b)
            assert str(plain[head]) == f"{100 * a:.2f}"
            assert (plain[head].best, under[head].best) == (a > b, b > a)
    assert "ECE" not in " ".join(table.columns)


def expected_gains(study):
    """(regime, model) → relative improvements of AUROC and ECE, from the committed table."""
    models, found = frame(study), {}
    canonical = {regimes.timm_name(name): name for name in models}
    for pair in regimes.regime_table():
        a, b = canonical.get(pair.model), canonical.get(pair.counterpart)
        if a and b:
            found[pair.regime, a] = gain(models[b], models[a])
    for name, own in models.items():
        found["temperature scaling", name] = gain(own, own, after=True)
        if name in WITH_DROPOUT:
            before, after = own["auroc", "msp", False], own["auroc", "mc-dropout", False]
            found["MC-dropout", name] = ((after - before) / before, None)
    return found


def gain(before, after_model, after=False):
    a, b = before["auroc", "msp", False], after_model["auroc", "msp", after]
    e, f = before["ece", None, False], after_model["ece", None, after]
    return (b - a) / a, (e - f) / e


def test_improvements_are_relative_to_the_models_own_counterpart(study):
    expected, found = expected_gains(study), reports.improvements(models_of(study.frame))
    assert {(row["kind"], row["model"]) for row in found} == set(expected)
    assert {row["kind"] for row in found} == {
        *("distillation", "pruning with distillation", "pretraining", "semi-supervised", "weakly supervised"),
        *("adversarial", "temperature scaling", "MC-dropout"),
    }
    for row in found:
        auroc, ece = expected[row["kind"], row["model"]]
        assert row["auroc"] == pytest.approx(auroc)
        assert row["ece"] is None if ece is None else row["ece"] == pytest.approx(ece)
    than = {row["model"]: row["than"] for row in found if row["kind"] == "semi-supervised"}
    assert than["tf_efficientnet_b0_ns"] == "tf_efficientnet_b0.aa_in1k"
    assert than["swsl_resnet50"] == "resnet50.tv_in1k" and than["ssl_resnet18"] == "resnet18.tv_in1k"


def test_regime_table__the_regime_table_and_figures_3_and_4_are_those_improvements(study):
    expected, table = expected_gains(study), reports.regime_table(study.frame)
    for place, (name, figure) in enumerate((("AUROC", "fig3"), ("ECE", "fig4"))):
        drawn = points(study, figure)
        for kind in {kind for kind, _ in expected}:
            own = {m: gains[place] for (k, m), gains in expected.items() if k == kind and gains[place] is not None}
            line = cells(table, kind)
            if not own:
                assert kind == "MC-dropout" and line["ECE mean"] is None
                continue
            assert line[f"{name} mean"].value == pytest.approx(fmean(own.values()))
            assert line[f"{name} median"].value == pytest.approx(median(own.values()))
            assert line[f"{name} better"].value == pytest.approx(fmean(v > 0 for v in own.values()))
            shown = {row["model"]: float(row["value"]) for row in drawn if row["kind"] == kind}
            assert shown == pytest.approx(own, rel=1e-3, abs=1e-6)


def test_temperature_table__the_temperature_table_and_figures_16_and_17(study):
    models = frame(study)
    gains = {m: g for (kind, m), g in expected_gains(study).items() if kind == "temperature scaling"}
    warmth = {name: own["temperature", None, True] for name, own in models.items()}
    table = reports.temperature_table(study.frame)
    parts = {
        "all": list(models),
        "T < 1": [m for m in models if warmth[m] < 1],
        "T > 1": [m for m in models if warmth[m] > 1],
    }
    assert all(parts.values()) and [name for (name,), _ in table.rows] == list(parts)
    for part, own in parts.items():
        line = cells(table, part)
        assert line["models"].value == len(own)
        for place, name in enumerate(("AUROC", "ECE")):
            assert line[f"{name} better"].value == pytest.approx(fmean(gains[m][place] > 0 for m in own))
            assert line[f"{name} ρ with T"].value == pytest.approx(rho([(warmth[m], gains[m][place]) for m in own]))
    for place, figure in enumerate(("fig16", "fig17")):
        drawn = {row["model"]: (float(row["x"]), float(row["y"])) for row in points(study, figure)}
        assert set(drawn) == set(models)
        for name, (x, y) in drawn.items():
            assert x == pytest.approx(warmth[name], rel=1e-3)
            assert y == pytest.approx(100 * gains[name][place], rel=1e-3, abs=1e-4)


def chart(study, name):
    (block,) = blocks_of(name, study)
    assert isinstance(block, Figure) and block.key == name
    return block.chart()


def chart_data(spec):
    """Every table of points in a chart."""
    return [list(csv.DictReader(io.StringIO(text))) for text in texts_of(spec)]


def points(study, name):
    data = chart_data(chart(study, name).to_dict(validate=False))
    return next((rows for rows in data if "dot" in rows[0]), max(data, key=len))


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("fig1", ("auroc", "msp", False), ("ece", None, False)),
        ("fig8", ("auroc", "msp", False), ("ece", None, False)),
        ("fig15", ("auroc", "msp", True), ("ece", None, True)),
        ("fig5", ("accuracy", None, False), ("sac@0.99", "msp", False)),
        ("fig9", "params", ("auroc", "msp", False)),
        ("fig10", "params", ("ece", None, False)),
        ("fig18", "params", ("sac@0.99", "msp", False)),
    ],
)
def test_selective_benchmark__a_cloud_holds_every_model_at_its_numbers(study, name, x, y):
    def shown(key, number):
        return -math.log10(number) if key[0] == "ece" else number

    expected = {
        model: (shown(x, own[x]), shown(y, own[y]))
        for model, own in frame(study).items()
        if own[x] is not None and own[y] is not None
    }
    drawn = {row["model"]: row for row in points(study, name)}
    assert set(drawn) == set(expected) and len(drawn) >= len(NAMES) - 1
    for model, (a, b) in expected.items():
        assert (float(drawn[model]["x"]), float(drawn[model]["y"])) == pytest.approx((a, b), rel=1e-3, abs=1e-5)
    assert (
        drawn["deit_tiny_distilled_patch16_224"]["dot"] == "1" and drawn["deit_tiny_patch16_224.fb_in1k"]["dot"] == "0"
    )
    assert drawn["ecaresnet50d_pruned.miil_in1k"]["dot"] == "1"  # its teacher was itself
    assert drawn["vit_base_patch16_224.augreg_in1k"]["name"] == "ViT"
    assert drawn["regnety_160.deit_in1k"]["name"] == "others"


def test_pareto__the_pareto_table_names_the_models_of_every_front(study):
    table, models = reports.pareto(study.frame), frame(study)
    for cost, of_cost, sign in (
        ("parameters", lambda m: m["params"], -1),
        ("accuracy", lambda m: m["accuracy", None, False], 1),
    ):
        for good, of_good in (
            ("AUROC", lambda m: m["auroc", "msp", False]),
            ("ECE", lambda m: -m["ece", None, False]),
            ("SAC@0.99", lambda m: m["sac@0.99", "msp", False]),
        ):
            known = {n: (sign * of_cost(m), of_good(m)) for n, m in models.items() if of_cost(m) is not None}
            best = {
                n for n, p in known.items() if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in known.values())
            }
            listed = {name for (name,), own in table.rows if f"{good} by {cost}" in own[-1].text}
            assert listed == best, (cost, good)


def test_risk_coverage__figure_2_shows_the_best_the_worst_and_one_that_accuracy_misjudges(study):
    models = frame(study)
    ranked = sorted(models, key=lambda m: -models[m]["auroc", "msp", False])
    best, last, *others = reports.curve_models(models_of(study.frame), reports.risk_coverage(study.frame))
    assert [best, last] == [ranked[0], ranked[-1]]
    worst = models[ranked[-1]]
    for model in others:
        own = models[model]
        assert own["accuracy", None, False] < worst["accuracy", None, False]
        assert own["sac@0.95", "msp", False] > worst["sac@0.95", "msp", False]
    spec = chart(study, "fig2").to_dict(validate=False)
    row = next(row for row in max(chart_data(spec), key=len) if float(row["coverage"]) == 0.5)
    drawn = [
        value([r for r in study.rows if r["backbone"] == m], "selective_risk", "msp", False, 0.5)
        for m in (ranked[0], ranked[-1])
    ]
    assert [float(row["risk0"]), float(row["risk1"])] == pytest.approx(drawn, abs=1e-4)


def test_curve_models__the_third_curve_is_of_a_less_accurate_model_that_covers_more():
    """The paper's case: ViT-B/32-SAM is right less often than EfficientNet-V2-XL and reaches 95 % all the same."""

    def rows(name, accuracy, auroc, sac):
        base = {"backbone": name, "params": 1, "calibrated": False, "split": "test", "measure": "msp", "n": 9}
        values = {"auroc": auroc, "sac@0.95": sac, "sac@0.99": sac / 2}
        made = [base | {"metric": "accuracy", "measure": None, "value": accuracy}]
        made += [base | {"metric": metric, "value": value} for metric, value in values.items()]
        curve = base | {"metric": "selective_risk", "evaluation": "risk-coverage"}
        return [*made, curve | {"coverage": 0.5, "value": 0.1}, curve | {"coverage": 1.0, "value": 1 - accuracy}]

    frame = Frame(
        [
            *rows("best", 0.87, 0.88, 0.8),
            *rows("sam", 0.73, 0.85, 0.5),
            *rows("weaker", 0.70, 0.84, 0.3),
            *rows("covers less", 0.60, 0.80, 0.0),
            *rows("xl", 0.86, 0.77, 0.0),
        ]
    )
    assert list(reports.curve_models(models_of(frame), reports.risk_coverage(frame)).items()) == [
        ("best", "best AUROC"),
        ("xl", "worst AUROC"),
        ("sam", "less accurate"),
    ]
    assert "accuracy than xl" in reports.fig_2(frame).caption


def test_selective_benchmark__figures_13_and_14_join_counterparts_and_teachers(study):
    spec = chart(study, "fig13").to_dict(validate=False)
    pairs = [p for p in regimes.pairs(frame(study)) if "distillation" in p.regime and p.counterpart]
    links = next(rows for rows in chart_data(spec) if "x2" in rows[0])
    drawn = {row["model"]: row for row in next(rows for rows in chart_data(spec) if "dot" in rows[0])}
    assert len(pairs) == 7 == len(links)
    for pair, link in zip(pairs, links, strict=True):
        before, after = drawn[pair.counterpart], drawn[pair.model]
        assert (link["x"], link["y"], link["x2"], link["y2"]) == (before["x"], before["y"], after["x"], after["y"])
        assert (before["dot"], after["dot"]) == ("0", "1")
    assert drawn["ecaresnet50d_pruned.miil_in1k"]["name"] == "its own teacher"
    drawn = {row["model"]: row["name"] for row in points(study, "fig14")}
    assert drawn["regnety_160.deit_in1k"] == "teacher" and drawn["xcit_nano_12_p16_224_dist"] == "XCiT"
    assert "ecaresnet50d_pruned.miil_in1k" not in drawn and len(drawn) == 7


# ---- told to people


def test_scores__the_table_for_a_newcomer(study):
    table, models = reports.scores(study.frame), frame(study)
    names = [name for (name,), _ in table.rows]
    assert names == sorted(models, key=lambda m: (-models[m]["auroc", "msp", False], m))
    line = cells(table, names[0])
    own = models[names[0]]
    assert line["accuracy ↑"].value == own["accuracy", None, False] and line["AUROC ↑"].best
    assert line["ECE ↓"].value == own["ece", None, False] and line["ECE, T ↓"].value == own["ece", None, True]
    assert line["coverage@95 ↑"].value == own["sac@0.95", "msp", False]
    assert line["coverage@99 ↑"].value == own["sac@0.99", "msp", False]
    assert cells(table, "my own net")["params"] is None
    for head, better in (("accuracy ↑", max), ("ECE ↓", min), ("coverage@99 ↑", max)):
        column = [cells(table, name)[head] for name in names]
        best = better(column, key=lambda cell: cell.value)  # those that are written alike are bold alike
        assert {cell.value_text for cell in column if cell.best} == {best.value_text}
    assert "500 images" in table.note and "450 for" in table.note and "50 other" in table.note
    assert len(reports.scores(study.frame, 5).rows) == 5 and "The 5 best of" in reports.scores(study.frame, 5).note


def test_evaluate_models__other_accuracies_are_told_as_they_were_asked(held, tmp_path):
    study = judge(Plan(accuracies=(0.8,), measures=("msp",)), held[:4], Store(tmp_path))
    assert {row["measure"] for row in study.rows} == {None, "msp"}
    table = reports.scores(study.frame)
    assert "coverage@80 ↑" in table.columns and "coverage@99 ↑" not in table.columns
    assert reports.strictest(models_of(study.frame)) == 0.8
    assert "coverage at 80 % accuracy" in json.dumps(chart(study, "fig5").to_dict(validate=False))


def test_lead__nobody_is_right_most_often_where_nobody_is_right(study):
    rows = [row | {"value": 0.0} if row["metric"] == "accuracy" else row for row in study.rows]
    words = " ".join(reports.lead(replace(study, rows=rows)))
    assert "No model" in words and "Highest accuracy" not in words


def test_temperature_split__winners_are_named_with_a_paired_verdict(tmp_path):
    """One image more of 450 makes a model the first, and chance does as well; on the same images that shows."""
    good = answers(0, 500, scale=1.0)
    twin, flat = good.logits.copy(), good.logits.copy()
    right = np.flatnonzero(good.logits[:, 0].argmax(1) == good.labels)
    twin[right[0], 0] = -twin[right[0], 0]
    flat[right[:60], 0] = -flat[right[:60], 0]
    dumps = {"first": good, "twin": good.replace(logits=twin), "behind": good.replace(logits=flat)}
    models = [entry(name, dump, tmp_path / f"{name}.npz") for name, dump in dumps.items()]
    study = judge(Plan(), models, Store(tmp_path / "a"))
    (sentence,) = [text for text in reports.lead(study) if text.startswith("Highest accuracy")]
    assert sentence.endswith("from twin.")

    apart = judge(Plan(), [models[0], models[2]], Store(tmp_path / "b"))
    (sentence,) = [text for text in reports.lead(apart) if text.startswith("Highest accuracy")]
    (row,) = apart.frame.where(metric="difference", criterion="accuracy")
    accuracy = models_of(apart.frame).get("accuracy")
    assert (row["reference"], row["backbone"]) == ("first", "behind")
    assert row["value"] == pytest.approx(accuracy["behind"] - accuracy["first"]) and row["high"] < 0
    shown = [f"{-number:.3f}" for number in (row["value"], row["high"], row["low"])]
    assert sentence.endswith("behind, is +{} [{}, {}].".format(*shown))
    assert "paired bootstrap" in reports.lead(apart)[-1]
    by_hand = np.random.default_rng(1)
    kept = selective.temperature_split(good, Plan())[1]
    gaps = [np.equal(dump.logits[kept, 0].argmax(1), good.labels[kept]) for dump in (dumps["first"], dumps["behind"])]
    lost = gaps[0].astype(float) - gaps[1]
    means = [lost[by_hand.integers(len(lost), size=len(lost))].mean() for _ in range(1000)]
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([-row["high"], -row["low"]], abs=0.006)


def test_evaluate_models__winners_that_were_not_compared_are_called_so(study, tmp_path):
    """Rows of older studies hold no pairs; files of other images share none."""
    rows = [row for row in study.rows if row["metric"] not in ("difference", "adjusted_p")]
    assert "not tested" in reports.lead(replace(study, rows=rows))[-1]
    first = study.rows[0]["backbone"]
    alone = replace(study, rows=[row for row in rows if row["backbone"] == first])
    words = " ".join(reports.lead(alone))
    assert "Accuracy:" in words and reports.AXIS in words and f"zoo:{first}" in words
    assert not any(word in words for word in ("Highest", "tested"))
    one, other = answers(0, 500), answers(1, 400)
    dumps = {"one": one, "other": other.replace(index=other.index + 100_000)}
    models = [entry(name, dump, tmp_path / f"{name}.npz") for name, dump in dumps.items()]
    found = judge(Plan(), models, Store(tmp_path / "store"))
    assert not found.failures and "not tested" in reports.lead(found)[-1]
    assert any("not be compared" in reason["reason"] for reason in found.reasons)
    assert reports.lead(found)[0].startswith("Two pretrained models, 400 to 500 images")
    assert "400 to 500 images each" in reports.scores(found.frame).note


def test_lead__the_lead_says_who_is_best_at_what(study):
    models = frame(study)
    words = " ".join(reports.lead(study))
    assert f"{len(NAMES)} pretrained models, 500 images" in words
    for metric, measure in (("accuracy", None), ("sac@0.99", "msp")):
        best = max(models, key=lambda m: models[m][metric, measure, False])
        assert best in words


def test_selective_benchmark__the_page_holds_every_report(study, tmp_path, capsys):
    story = registry["selective"].story(study)
    html = write_story(study, story, tmp_path / "page").read_text()
    for name in report_names("selective"):
        for block in blocks_of(name, study):
            assert block.title in html, name
            if isinstance(block, Figure):
                assert f'id="{name}"' in html
    assert (tmp_path / "page" / "rows.parquet").is_file() and "http://" not in html.split("<script")[0]
    print_story(study, story, registry["selective"].first_look(study))
    out = capsys.readouterr().out
    assert reports.TITLE in out and "MC-dropout" in out


def test_selective_benchmark__every_kind_of_chart_is_valid(study):
    for name in ("fig1", "fig3", "fig5", "fig13", "fig16"):
        chart(study, name).to_dict(validate=True)


def test_evaluate_models__reports_without_their_rows_are_empty_not_wrong(held, tmp_path):
    study = judge(Plan(), [e for e in held if e.model == "my own net"], Store(tmp_path))
    empty = {name for name in report_names("selective") if not blocks_of(name, study)}
    clouds = {"fig1", "fig5", "fig9", "fig10", "fig13", "fig14", "fig15", "fig18"}  # one model is no cloud
    assert {"table1", "table2", "agreement", *clouds} <= empty
    assert not empty & {"models", "temperature"}
    assert write_story(study, registry["selective"].story(study), tmp_path / "page").is_file()


@pytest.mark.parametrize("twin", ["aa twin", "zz twin"])
def test_evaluate_models__two_models_that_tie_are_compared(held, tmp_path, twin):
    first = next(model for model in held if model.model == "my own net")
    study = judge(Plan(), [first, replace(first, model=twin)], Store(tmp_path))
    lead = registry["selective"].story(study).lead
    assert reports.UNTESTED not in lead and reports.TESTED in lead


def test_report__single_reports_by_name(study, store, tmp_path, capsys):
    assert main(["report", str(store.root), "--only", "table1,fig5, fig3", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "XCiT distilled" in out and "table1.md" in out
    assert {file.name for file in tmp_path.iterdir()} == {
        *("table1.md", "table1.tex", "table1.csv"),
        *("fig5.svg", "fig5-points.csv", "fig3.svg", "fig3-points.csv"),
    }
    svg = (tmp_path / "fig5.svg").read_text()
    assert svg.startswith("<svg") and "var(--" not in svg and "coverage at 99 % accuracy" in svg
    rows = list(csv.DictReader((tmp_path / "fig5-points.csv").read_text("utf-8").splitlines()))
    numbers = frame(study)
    assert {row["model"] for row in rows} == set(NAMES)
    for row in rows:  # called as the axes, and nothing rounded
        own = numbers[row["model"]]
        assert float(row["accuracy"]) == own["accuracy", None, False]
        assert float(row["coverage at 99 % accuracy"]) == own["sac@0.99", "msp", False]
        assert (int(row["parameters"]) if row["parameters"] else None) == own["params"]
    changes = list(csv.DictReader((tmp_path / "fig3-points.csv").read_text("utf-8").splitlines()))
    assert [*changes[0]] == ["regime", "model", "compared with", "AUROC improvement"]
    made = [(row["kind"], row["model"], row["auroc"]) for row in reports.improvements(models_of(study.frame))]
    shown = [(row["regime"], row["model"], float(row["AUROC improvement"])) for row in changes]
    assert shown == [each for each in made if each[2] is not None]
    table = list(csv.DictReader((tmp_path / "table1.csv").read_text("utf-8").splitlines()))
    expected = cells(reports.table_1(study.frame), "ViT")["AUROC & Accuracy"].value
    (cell,) = [row for row in table if (row["row"], row["column"]) == ("ViT", "AUROC & Accuracy")]
    assert float(cell["value"]) == expected


def test_selective_benchmark__every_figure_says_what_it_shows(study):
    for name in report_names("selective"):
        for figure in figures_of(blocks_of(name, study)):
            assert figure.points and "model" in figure.points[0], name
            assert not {"x", "y", "size", "dot", "said"} & {*figure.points[0]}, name


def test_evaluate_models__an_empty_report_says_what_it_needs(held, tmp_path, capsys):
    store = Store(tmp_path / "store")
    judge(Plan(), [e for e in held if e.model == "my own net"], store)
    needed = {
        "table1": "3 models or more",
        "table2": "mc-dropout",
        "agreement": "3 models or more",
        "fig9": "number of parameters",
        "fig13": "deit_tiny_distilled_patch16_224.fb_in1k",
        "fig14": "regnety_160.deit_in1k",
    }
    for name, words in needed.items():
        assert main(["report", str(store.root), "--only", name, "--output", str(tmp_path)]) == 1
        assert words in capsys.readouterr().err, name
    assert main(["report", str(store.root), "--only", "fig13,models", "--output", str(tmp_path)]) == 0
    study = judge(Plan(), [e for e in held if e.model == "my own net"], store)
    empty = {name for name in report_names("selective") if not blocks_of(name, study)}
    assert empty and all(all_reports[f"selective/{name}"].needs for name in empty)


def test_pairs__the_examples_in_the_reasons_are_pairs():
    pairs = regimes.pairs(
        re.findall(r"[a-z]\w+\.\w+", " ".join(all_reports[f"selective/fig{n}"].needs for n in (13, 14)))
    )
    assert any(pair.counterpart for pair in pairs) and any(pair.teacher for pair in pairs)


def test_report__single_reports_in_other_forms(study, store, tmp_path, capsys):
    assert main(["report", str(store.root), "--only", "agreement", "--format", "json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert table["lines"][0]["architecture"] == "all models" and len(table["lines"]) > 5
    assert main(["report", str(store.root), "--only", "agreement", "--format", "latex"]) == 0
    assert r"\begin{tabular}" in capsys.readouterr().out


def test_report__an_unknown_name_lists_what_there_is(study, store, tmp_path, capsys):
    assert main(["report", str(store.root), "--only", "fig99"]) == 2
    err = capsys.readouterr().err
    assert "no report named 'fig99'" in err and "table1" in err and "fig18" in err
    with pytest.raises(BadInput, match="of another package"):
        run_reports([Study(benchmark="of another package", version=1, rows=[])], ["fig1"])


def test_selective_benchmark__a_ranking_needs_the_dropout_answers(held):
    with pytest.raises(Undefined, match="dropout"):
        resolve_measure(held[0].load(), "mc-dropout")
    dump, measure = resolve_measure(held[0].load(), "gap")
    assert measure == "gap" and dump.logits is not None


def test_selective_benchmark__rows_need_no_torch():
    code = (
        "import sys, nescio.benchmarks.selective, nescio.benchmarks.selective.reports, nescio.commands.choose; "
        "sys.exit(str({'torch', 'timm', 'altair', 'pandas', 'sklearn', 'scipy.stats'} & set(sys.modules) or ''))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""
