"""Networks × scores × questions: whose trials these are, what an ensemble's scores are, and what the page states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio import measures, metrics
from nescio.benchmarks import base, shift
from nescio.benchmarks.posthoc import PRESETS, VIT, reports, steps
from nescio.benchmarks.shift.steps import groups_of as shift_groups
from nescio.errors import BadInput
from nescio.evaluations import Subject
from nescio.evaluations.engine import plan_steps
from nescio.predict import load_predictions
from nescio.predictions import stack
from nescio.report.blocks import figures_of, tables_of
from nescio.report.frame import Frame
from nescio.training import train_step
from nescio.work.launchers import make_launcher
from nescio.work.steps import Work

SMALL = PRESETS["small"]
PLAN = replace(SMALL, train_networks=(*SMALL.train_networks, "deep-ensemble/conv"), ensemble_size=2, held_out_classes=4)
PLAN = replace(PLAN, training=replace(SMALL.training, epochs=2))


@pytest.fixture(scope="module")
def study(context, use_one_thread):
    with make_launcher("local", 0) as launcher:
        study = base.run(base.registry["posthoc"], PLAN, Work(context, launcher))
    assert study.failures == []
    return study


def collect_predictions(context, line):
    """The predictions of each member of a line of the tables, by set."""
    group = steps.groups_of(PLAN, None)[line]
    (step,) = plan_steps([Subject(group, "digits", None, PLAN.limit)], [steps.evaluation_of(PLAN, None)], None).steps
    parents = iter(step.parents)
    names = ("train", "val", "test", "near:left out")
    return [{name: load_predictions(next(parents), context.store) for name in names} for _ in group.networks]


def test_shift_groups__networks_of_the_gpu_preset_are_those_of_shift():
    plan = replace(PRESETS["gpu"], data="digits", seeds=2)
    theirs = replace(shift.PRESETS["gpu"], data="digits", seeds=2, methods=("erm", "deep-ensemble"))
    theirs = [group.trials for group in shift_groups(theirs, {"erm": 0}, None)]
    ours = [group.trials for group in steps.groups_of(plan, None)]
    ours = [trials for trials in ours if (trials[0].method, trials[0].backbone) == ("erm", "resnet18")]
    assert [[train_step(t).key for t in each] for each in ours] == [
        [train_step(t).key for t in each] for each in theirs
    ]


def test_training_of__transformers_have_a_budget_of_their_own():
    plan = PRESETS["gpu"]
    assert steps.training_of(plan, "resnet18") == plan.training == shift.PRESETS["gpu"].training
    training = steps.training_of(plan, VIT)
    assert (training.optimizer, training.lr, training.epochs) == ("adamw", plan.transformer_lr, plan.transformer_epochs)


@pytest.mark.parametrize(
    ("change", "words"), [({"train_networks": ("erm",)}, "METHOD/BACKBONE"), ({"ensemble_size": 0}, "ensemble_size")]
)
def test_posthoc__a_plan_that_cannot_be_is_refused(change, words):
    with pytest.raises(BadInput, match=words):
        replace(PLAN, **change)


def test_refuse_impossible__two_classes_must_be_left():
    with pytest.raises(BadInput, match="held_out_classes"):
        steps.refuse_impossible(replace(PLAN, held_out_classes=9), None)


def test_evaluation_of__numbers_are_those_of_the_scores(study, context):
    ((dumps,), frame) = collect_predictions(context, 0), Frame(study.rows).where(method="erm", members=1)
    u, out = (measures.vim(dumps["train"])(dumps[name]) for name in ("test", "near:left out"))
    wrong = measures.summary(dumps["test"]).outcomes().wrong
    own = frame.where(measure="vim")
    assert own.where(evaluation="misclassification", metric="aurc").first() == pytest.approx(metrics.aurc(u, wrong))
    apart = metrics.auroc(np.concatenate([u, out]), np.arange(len(u) + len(out)) >= len(u))
    assert own.where(evaluation="near-ood", metric="auroc", target="left out").first() == pytest.approx(apart)
    assert own.where(evaluation="near-ood", metric="auroc", target=None).first() == pytest.approx(apart)
    assert own.where(evaluation="near-ood", metric="scod_aurc").first() == pytest.approx(
        metrics.scod_aurc(u, wrong, out)
    )
    assert own.where(evaluation="near-ood", metric="scod_aurc").first("ood_share") == 0.5
    assert (own.first("fitted_on"), frame.where(measure="pnorm_tuned").first("fitted_on")) == ("train", "val")


def test_evaluation_of__an_ensemble_has_the_mean_of_its_members_scores(study, context):
    dumps, frame = collect_predictions(context, -1), Frame(study.rows).where(members=2)
    trains, tests = ([own[name] for own in dumps] for name in ("train", "test"))
    wrong = measures.summary(stack(tests)).outcomes().wrong
    for name in ("vim", "mds_plus", "gradnorm"):
        mean = measures.over_members(name, trains, tests)
        row = frame.where(measure=name, evaluation="misclassification", metric="auroc")
        assert row.first() == pytest.approx(metrics.auroc(mean, wrong)), name
    largest = metrics.auroc(measures.msp(stack(tests)), wrong)  # of the averaged answers
    assert frame.where(measure="msp", evaluation="misclassification", metric="auroc").first() == pytest.approx(largest)
    assert frame.where(measure="mutual_information", metric="auroc")


def test_posthoc__what_is_left_out_has_its_reason(study):
    lacking = {entry["measure"]: entry["reason"] for entry in study.reasons if entry["method"] == "mc-dropout"}
    assert "last layer" in lacking["vim"]  # dropout stands between the embedding and the answers
    assert not Frame(study.rows).where(method="mc-dropout", measure="vim")


def test_areas__the_best_score_is_among_the_best(study):
    for own in reports.areas(study.frame).values():
        assert next(iter(own.values()))["best"] and "msp" in own
        assert [row["value"] for row in own.values()] == sorted((row["value"] for row in own.values()), reverse=True)


def test_story_of__the_page_holds_every_table_and_figure(study):
    story = base.story_of(study)
    titles = [made.title for made in tables_of(story)]
    assert titles[0] == reports.BEST and "Every score of deep-ensemble conv × 2" in titles
    assert {figure.key for figure in figures_of(story)} == {"scores-misclassification", "scores-near-ood"}
    assert reports.networks(study.frame).cells()[("mc-dropout conv",), "training accuracy"].value > 0.5


# ---- claims, of rows that were made up


def rows_of(network, group, values, best=(), metric="auroc"):
    about = {"method": "erm", "backbone": network, "members": 1, "data_seed": 0, "evaluation": group, "target": None}
    rows = [about | {"metric": metric, "measure": name, "value": value} for name, value in values.items()]
    verdicts = [about | {"metric": "among_best", "measure": name, "value": float(name in best)} for name in values]
    return rows + verdicts if metric == "auroc" else rows


def test_pnorm_repairs__pnorm_is_judged_where_the_softmax_is_broken():
    sound = rows_of("a", "misclassification", {"msp": 0.9, "pnorm": 0.8}, best=("msp",))
    assert reports.pnorm_repairs(Frame(sound)) == []
    broken = rows_of("b", "misclassification", {"msp": 0.7, "pnorm": 0.8}, best=("pnorm",))
    lower = rows_of("b", "misclassification", {"msp": 0.4, "pnorm": 0.3}, metric="naurc")
    (case,) = reports.pnorm_repairs(Frame(sound + broken + lower))
    assert case["network"] == "erm b" and case["holds"] and case["difference"] == pytest.approx(-0.1)
    higher = rows_of("b", "misclassification", {"msp": 0.3, "pnorm": 0.4}, metric="naurc")
    assert not reports.pnorm_repairs(Frame(broken + higher))[0]["holds"]


def test_shaping_collapses__shaping_is_judged_by_its_lowest_score():
    fine = rows_of("a", "near-ood", {"msp": 0.8, "ash": 0.75})
    fallen = rows_of("b", "far-ood", {"msp": 0.8, "ash": 0.9, "scale": 0.5})
    sound, collapsed = reports.shaping_collapses(Frame(fine + fallen))
    assert not sound["holds"] and collapsed["holds"]
    assert (collapsed["score"], collapsed["question"]) == ("scale", "far-ood")
    assert collapsed["difference"] == pytest.approx(-0.3)
    assert reports.shaping_collapses(Frame(rows_of("a", "misclassification", {"msp": 0.8, "ash": 0.1}))) == []


def test_mahalanobis_leads__mahalanobis_is_judged_on_transformers():
    of_resnet = rows_of("resnet18", "far-ood", {"msp": 0.8, "mds_plus": 0.9}, best=("mds_plus",))
    assert reports.mahalanobis_leads(Frame(of_resnet)) == []
    ahead = rows_of(VIT, "far-ood", {"msp": 0.8, "mds_plus": 0.7, "rmds_plus": 0.9}, best=("rmds_plus",))
    as_good = ("msp", "mds_plus", "gen")  # a group that cannot be told apart is no lead
    behind = rows_of(VIT, "near-ood", {"msp": 0.8, "mds_plus": 0.7, "gen": 0.75}, best=as_good)
    first, last = reports.mahalanobis_leads(Frame(ahead + behind))
    assert first["holds"] and (first["score"], first["rank"]) == ("rmds_plus", "1 of 3")
    assert not last["holds"] and (last["rank"], last["against"]) == ("3 of 3", "msp")
    sentences, cases = reports.claims(Frame(ahead + behind))
    assert "Confirmed in 1 of 2" in sentences.sentences[2] and "Not tested" in sentences.sentences[0]
    assert cases.cells()[("Mahalanobis++ leads", "near-ood"), "difference"].value == pytest.approx(-0.1)


def test_mahalanobis_leads__a_network_from_a_file_is_called_by_its_file():
    rows = rows_of("vit_tiny_patch16_224@/weights/mine.pth", "far-ood", {"msp": 0.8, "mds_plus": 0.9})
    (case,) = reports.mahalanobis_leads(Frame(rows))
    assert case["network"] == "erm mine" and case["holds"]


def test_best_scores__too_few_mistakes_are_no_verdict():
    """One mistake: no score can be told from another, so the baseline is not called beaten."""
    verdict = rows_of("a", "misclassification", {"msp": 0.7, "gen": 0.9}, best=("gen",))
    told, unknown = (reports.best_scores(Frame(rows)).cells() for rows in (verdict, verdict[:2]))
    assert str(told[("erm a", "misclassification"), "not different?"]) == "no"
    assert unknown.get((("erm a", "misclassification"), "not different?")) is None
    assert reports.pnorm_repairs(Frame(verdict[:2])) == []


def test_heat__the_heat_map_has_the_best_scores_first():
    rows = rows_of("a", "far-ood", {"gen": 0.6, "vim": 0.9, "msp": 0.7}) + rows_of(
        "b", "far-ood", {"gen": 0.8, "vim": 0.9}
    )
    (figure,) = figures_of([reports.heat(Frame(rows))])
    assert list(dict.fromkeys(cell["score"] for cell in figure.points)) == ["msp", "vim", "gen"]


def test_evaluation_of__other_sets_are_named_by_content_in_rows(tmp_path):
    """A set that has moved keeps its rows and keys."""
    arrays = {"x_test": np.zeros((4, 8, 8), np.uint8), "y_test": np.arange(4)}
    for name in ("one", "two"):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    plans = [replace(PRESETS["small"], far_ood=(f"npz:{tmp_path / name}.npz",)) for name in ("one", "two")]
    group = steps.groups_of(plans[0], None)[0]
    one, two = (steps.evaluation_of(plan, None).image_sets(Subject(group, "digits", None, 9)) for plan in plans)
    assert list(one) == list(two) and any(name.startswith("far:npz:content-") for name in one)
    assert {images.sample_size for name, images in one.items() if ":" in name} == {9}
