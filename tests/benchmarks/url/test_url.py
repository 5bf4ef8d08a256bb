"""The benchmark, piece by piece: what is measured, what is chosen, what is learnt further, what stands on the page."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from nescio import datasets, metrics, training
from nescio.benchmarks import base, lineup, model_search
from nescio.benchmarks.url import PAPER, PRESETS, VIT, Plan, reports, steps
from nescio.cli import main
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.layers.uncertainty_head import UncertaintyHead
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import OutputSpec, load_predictions, predict_step
from nescio.report.blocks import figures_of, tables_of
from nescio.report.frame import Frame
from nescio.report.named_reports import find_report, report_names
from nescio.report.studies import read_study
from nescio.testing.evidence import small_trial
from nescio.training import train_step
from nescio.trials import from_plain
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.retrieval import recall_by_loops
from tests.support.zoo_help import checkpoint, pack

pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("use_one_thread")
FIGURES = {f"fig{number}" for number in range(1, 14)} | {"table1"}


@pytest.fixture(scope="module")
def votes(place):
    """Forty grey images of 8 × 8 with human votes."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 8, 8), np.uint8), np.arange(40) % 4
    np.savez(place / "votes.npz", x_test=images, y_test=labels, annotations_test=rng.integers(0, 9, (40, 4)) + 1)
    return f"npz:{place / 'votes.npz'}"


@pytest.fixture(scope="module")
def plan(votes):
    small = PRESETS["small"]
    return replace(
        small,
        methods=("erm", "simclr"),
        backbones=("mlp",),
        annotated=(votes,),
        trials=2,
        extension=0,
        seeds=2,
        shots=(1,),
        bootstrap=20,
        training=replace(small.training, epochs=1),
    )


def run(plan, context):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["url"], plan, Work(context, launcher))


@pytest.fixture(scope="module")
def study(plan, context):
    study = run(plan, context)
    assert study.failures == []
    return study


def value(study, **facts):
    """The one number with these facts."""
    (found,) = [row for row in study.frame if all(row[name] == wanted for name, wanted in facts.items())]
    return found["value"]


def network(study, context, method="erm", trial=0, seed=0):
    for run_ in context.store.runs():
        if run_.stage == "train":
            found = from_plain(
                context.store.record("train", run_.key)["config"], lambda name: methods[name].hparams_class
            )
            facts = (found.method, found.trial, found.data_seed, found.data)
            if facts == (method, trial, seed, "digits"):
                return network_of_trial(found)
    raise AssertionError("there is no such network")


def dump(network, context, images):
    return load_predictions(predict_step(network, images, output_spec=OutputSpec(precision="float32")), context.store)


# ---- what is measured


def test_url__results_of_a_network_follow_from_its_predictions(study, context):
    own = network(study, context)
    test = dump(own, context, ImageSet("part:digits#7-9", "all_ood"))
    assert set(test.labels.tolist()) == {7, 8, 9}
    p = np.exp(np.asarray(test.logits[:, 0], np.float64))
    p /= p.sum(1, keepdims=True)
    recall, area = recall_by_loops(test.embeddings, test.labels, -(p * np.log(p)).sum(1))
    facts = {"method": "erm", "trial": 0, "data_seed": 0, "target": "digits", "split": "test", "evaluation": "transfer"}
    assert value(study, **facts, metric="recall_at_1") == pytest.approx(recall)
    assert value(study, **facts, metric="r_auroc", measure="entropy") == pytest.approx(area, abs=1e-4)
    (row,) = [r for r in study.rows if all(r[k] == v for k, v in (facts | {"metric": "recall_at_1"}).items())]
    assert row["low"] < row["value"] < row["high"] and row["n"] == len(test)


def test_downstream_separates_trained_validation_and_test_classes(plan):
    small = steps.downstream("digits", plan, None)
    assert (plan.classes, small.val, small.test) == ((0, 1, 2, 3, 4), (5, 6), (7, 8, 9))
    named = steps.downstream("digits#5,7#8-9", plan, None)
    assert (named.val, named.test) == ((5, 7), (8, 9))
    assert steps.downstream("digits#8-9", replace(plan, trials=1), None).val == ()


def test_downstream_keeps_the_test_classes_of_a_set_divided_by_classes(plan, place):
    x, y = np.zeros((12, 8, 8), np.uint8), np.arange(12) // 2
    np.savez(place / "classes.npz", x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
    found = steps.downstream(f"npz:{place / 'classes.npz'}", plan, None)
    assert (found.val, found.test) == ((2, 3), (4, 5))


def test_run__note_tied_names_a_constant_score(study, plan, context, monkeypatch):
    assert not any("one value" in note for note in study.notes)
    dead = replace(
        plan, methods=("elk",), annotated=(), trials=1, seeds=1, checkpoints=1, shots=(), upper_bound=False, bootstrap=0
    )
    monkeypatch.setattr(UncertaintyHead, "forward", lambda self, e: 0 * self.layers(e).squeeze(-1) + 0.01)
    notes = [note for note in run(dead, context).notes if "one value" in note]
    (note,) = notes
    assert all(name in note for name in ("inverse_kappa of elk", "upstream", "digits"))


def test_crop__crops_and_human_votes_of_a_network(study, context, votes):
    own = network(study, context, "simclr")
    images = ImageSet(f"part:{votes}#0-3", "all_ood")
    whole, crop = (dump(own, context, replace(images, change=change)) for change in (None, Crop()))
    u, u_crop = (-np.linalg.norm(each.embeddings.astype(float), axis=1) for each in (whole, crop))
    facts = {"method": "simclr", "trial": 0, "data_seed": 0, "target": votes, "split": "human", "measure": "norm"}
    aligned = metrics.human_alignment(u, images.load().images.annotations)
    assert value(study, **facts, metric="human_alignment") == pytest.approx(aligned)
    assert value(study, **facts, metric="crop_agreement") == pytest.approx(np.mean(u_crop > u))


def test_table_1__upstream_rows_and_costs(study, context):
    own = network(study, context)
    test = dump(own, context, ImageSet("digits", "test", (0, 1, 2, 3, 4)))
    right = test.logits[:, 0].argmax(1) == test.labels
    facts = {"method": "erm", "trial": 0, "data_seed": 0, "split": "upstream"}
    assert value(study, **facts, metric="accuracy") == pytest.approx(right.mean())
    assert set(test.labels.tolist()) == {0, 1, 2, 3, 4}
    costs = study.frame.where(**facts, evaluation="transfer")
    seconds = training.facts_of(train_step(own.trial), context.store)["seconds"]
    assert costs.facts("epoch_seconds").first() == pytest.approx(seconds)
    assert costs.facts("inference_ms").first() > 0
    cells = reports.table_1(study.frame).cells()
    built = training.build(own.trial, datasets.load("digits"), 0)
    assert cells[("erm",), "parameters"].value == sum(weight.numel() for weight in built.parameters())


# ---- what is chosen


def test_chosen_trials__networks_are_chosen_by_validation_classes_once_by_each_criterion(study):
    for method, measure in (("erm", "entropy"), ("simclr", "norm")):
        val = {"method": method, "split": "val", "data_seed": 0, "target": "digits", "evaluation": "transfer"}
        areas = [value(study, **val, trial=trial, metric="r_auroc", measure=measure) for trial in (0, 1)]
        recalls = [value(study, **val, trial=trial, metric="recall_at_1") for trial in (0, 1)]
        for criterion, values in (("r_auroc", areas), ("recall_at_1", recalls)):
            row = reports.chosen_trials(study.frame, criterion)[method, "mlp"]
            assert row["trial"] == int(np.argmax(values))
            seeds = study.frame.where(method=method, trial=row["trial"], evaluation="transfer", split="test")
            assert set(seeds.unique("data_seed")) == {0, 1}


def test_search_report_lists_every_trial_with_its_values(study, context):
    hparam_sets = [context.store.record("train", run_.key)["config"] for run_ in context.store.runs("train")]
    rates = {f"{plain['recipe']['rate']:.3g}" for plain in hparam_sets if plain["method"] == "erm"}
    cells = reports.search(study.frame).cells().items()
    words = {labels: str(cell) for (labels, head), cell in cells if head == "hyper-parameters"}
    assert len(words) == 4
    assert rates == {text.split(",")[0].removeprefix("lr ") for (name, *_), text in words.items() if name == "erm"}


def rows_of(*numbers):
    """Rows of one network: (target, R@1, {score: R-AUROC}) each."""
    facts = {"method": "erm", "evaluation": "transfer", "split": "val"}
    rows = []
    for target, recall, areas in numbers:
        rows.append(facts | {"target": target, "metric": "recall_at_1", "measure": None, "value": recall})
        rows += [
            facts | {"target": target, "metric": "r_auroc", "measure": name, "value": area}
            for name, area in areas.items()
        ]
    return rows


def test_criterion_values_are_means_of_the_best_score_above_the_minimum_recall():
    rows = rows_of(("a", 0.2, {"jsd": 0.9, "entropy": 0.5}), ("b", 0.06, {"jsd": 0.3, "entropy": 0.6}))
    found = steps.criterion_values(rows, {"method": "erm"}, ("entropy", "jsd"), "val", 0.1)
    assert found == {"r_auroc": (pytest.approx(0.6), "jsd"), "recall_at_1": (pytest.approx(0.13), "jsd")}
    assert steps.criterion_values(rows, {"method": "erm"}, ("entropy", "jsd"), "val", 0.14) is None
    undefined = rows_of(("a", 0.2, {"entropy": 0.9}), ("b", 0.5, {}))  # R-AUROC of b is not defined
    assert steps.criterion_values(undefined, {"method": "erm"}, ("entropy",), "val", 0.1) == {
        "recall_at_1": (0.35, "entropy")
    }


def test_choose_by_recall_needs_no_r_auroc(context):
    facts = {trial: {"method": "erm", "backbone": "mlp", "trial": trial} for trial in (0, 1)}
    results = {0: {"r_auroc": (0.7, "entropy"), "recall_at_1": (0.9, "entropy")}, 1: {"recall_at_1": (1.0, "entropy")}}
    with make_launcher("local", 0) as launcher:
        work = Work(context, launcher)
        assert model_search.choose(facts, results, steps.CRITERIA, work) == {"r_auroc": 0, "recall_at_1": 1}
    recall = {"method": "erm", "backbone": "mlp", "data_seed": 0, "split": "test", "metric": "recall_at_1"}
    recall |= {"evaluation": "transfer", "measure": None}
    rows = [recall | {"trial": trial, "value": value} for trial, value in ((0, 0.9), (1, 1.0))]
    rows.append(recall | {"metric": "r_auroc", "trial": 0, "value": 0.6, "measure": "entropy"})
    chosen = {entry["trial"]: entry for entry in work.networks}
    names = ("chosen_by", "chosen_measure")
    frame = Frame(row | {name: chosen[row["trial"]][name] for name in names} for row in rows)
    (row,) = reports.over_seeds(frame, reports.RECALL, "recall_at_1")
    assert row["value"] == 1.0 and find_report("url/fig3").blocks(frame) == []  # the one without R-AUROC is no point


def test_ranking_scores_are_those_of_the_paper():
    assert steps.ranking_scores("sngp") == ("scores/entropy",)
    assert steps.ranking_scores("erm") == steps.ranking_scores(None) == ("entropy",)
    assert steps.ranking_scores("simclr") == ("norm",)


@pytest.fixture
def url_study(plan, context, monkeypatch):
    """UrlStudy of a plan, whose networks are neither trained nor evaluated."""
    monkeypatch.setattr(steps.UrlStudy, "finish", lambda study, trials: {trial: trial for trial in trials})
    with make_launcher("local", 0) as launcher:
        yield lambda **changes: steps.UrlStudy(
            configured := replace(plan, methods=("erm",), **changes),
            [steps.downstream(text, configured, None) for text in configured.downstream],
            Work(context, launcher),
        )


@pytest.mark.parametrize(("goal", "trials"), [(30.0, 15), (1.0, 12)])
def test_url_study__search_is_extended_beyond_a_bound_with_the_best_value(url_study, monkeypatch, goal, trials):
    """The best learning rate is `goal`, beyond or inside the range from 0.3 to 3."""
    evaluated = []

    def validated(study, trial):
        evaluated.append(trial)
        return dict.fromkeys(steps.CRITERIA, (-abs(np.log(trial.hparams.lr / goal)), "entropy"))

    monkeypatch.setattr(steps.UrlStudy, "validated", validated)
    study = url_study(trials=12, extension=3)
    (best,) = study.search()
    assert len(evaluated) == trials and any("extended" in note for note in study.work.notes) == (trials > 12)
    assert (best.hparams.lr > 3.0) == (trials > 12)


def test_url_study__search_without_validation_classes_uses_the_first_score(url_study, monkeypatch):
    """A method is ranked by its first score, whatever the others reach on test classes."""
    seen = []

    def undefined(rows, columns, scores, split, least):
        seen.append((split, scores))
        return {"recall_at_1": (1.0, scores[0])}

    monkeypatch.setattr(steps, "ranking_scores", lambda method: ("entropy", "jsd"))
    monkeypatch.setattr(steps, "criterion_values", undefined)
    for text in ("digits#7-9", "digits#5-6#7-9"):
        url_study(trials=1, downstream=(text,)).search()
    first, second = ("test", ("entropy",)), ("val", ("entropy", "jsd"))
    assert seen == [first, second, first]  # the last because R-AUROC of validation classes is not defined


@pytest.mark.parametrize(("recall", "chosen"), [(0.09, False), (0.11, True)])
def test_columns_of__search_with_one_trial_skips_a_network_below_the_minimum_recall(
    url_study, monkeypatch, recall, chosen
):
    def finish(study, trials):
        columns = lineup.columns_of(trials[0]) | {
            "target": "x",
            "split": "val",
            "evaluation": "transfer",
            "measure": None,
        }
        study.work.rows.append(columns | {"metric": "recall_at_1", "value": recall})
        study.work.rows.append(columns | {"metric": "r_auroc", "measure": "entropy", "value": 0.6})
        return {trial: trial for trial in trials}

    monkeypatch.setattr(steps.UrlStudy, "finish", finish)
    study = url_study(trials=1, checkpoints=1, downstream=("digits#5-6#7-9",))
    assert bool(study.search()) == chosen and bool(study.work.notes) != chosen


def test_average__subject_has_the_trained_classes_upstream(url_study, plan):
    trial = steps.trial_of(replace(plan, classes=(5, 6, 7, 8, 9)), ("erm", "mlp"), methods["erm"].hparams_class(), 0)
    images = url_study(networks=("store:3f2a",)).subject(lineup.average([trial], None)).test_images
    assert set(images.load().labels.tolist()) == {0, 1, 2, 3, 4} and images.classes == (5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    ("learnt", "val", "test"), [((5, 6, 7, 8, 9), (0, 1), (2, 3, 4)), ((0, 1, 8, 9), (2, 3), (4, 5, 6, 7))]
)
def test_downstream_omits_the_classes_of_a_network_of_the_store(plan, learnt, val, test):
    trial = steps.trial_of(replace(plan, classes=learnt), ("erm", "mlp"), methods["erm"].hparams_class(), 0)
    given = replace(plan, networks=("store:3f2a",), validation_share=0.4)
    found = steps.downstream("digits", given, None, [lineup.average([trial], None)])
    assert (found.val, found.test) == (val, test)
    other = steps.downstream(
        plan.annotated[0], given, None, [lineup.average([trial], None)]
    )  # other images: all of their classes
    assert {*other.val, *other.test} == {0, 1, 2, 3}
    every = lineup.average([replace(trial, classes=None)], None)
    with pytest.raises(BadInput, match="downstream"):
        steps.downstream("digits", given, None, [every])


def test_ranking_scores__training_stops_at_the_epoch_that_is_best_on_validation_classes(tmp_path, plan):
    """Of three; what is embedded further, and learns further, are the weights of that epoch."""
    budget = replace(plan.training, epochs=3, lr=0.02)
    early = replace(
        plan, methods=("mc-dropout",), checkpoints=3, trials=1, upper_bound=False, annotated=(), training=budget
    )
    context = Context(Store(tmp_path), device="cpu")
    found = run(early, context)
    for seed in (0, 1):
        val = found.frame.where(data_seed=seed, split="val")
        areas = val.where(metric="r_auroc", measure=steps.ranking_scores("mc-dropout"))
        best = {name: max(own.column("value")) for (name,), own in areas.group_by("epoch")}
        assert set(best) == {1, 2, 3, None}
        (epoch,) = val.facts("stopped_epoch").unique("value")
        assert best[None] == pytest.approx(best[epoch]) and best[None] == max(best.values())
    hparam_sets = [context.store.record("train", run_.key)["config"] for run_ in context.store.runs("train")]
    trials = [from_plain(hparams, lambda name: methods[name].hparams_class) for hparams in hparam_sets]
    ends = {row["data_seed"]: row["value"] for row in found.frame.facts("stopped_epoch")}
    first = [trial for trial in trials if not trial.start and ends[trial.data_seed] == (trial.stop or 3)]
    further = {trial.start for trial in trials if trial.start}
    assert len(first) == 2 and further == {f"store:{train_step(trial).key}" for trial in first}


def test_trial_of_has_the_fixed_hyper_parameters(plan):
    fixed = replace(plan, methods=("sngp",), hparams=("sngp.bound=100", "sngp.width=64"))
    trial = steps.trial_of(fixed, ("sngp", "mlp"), methods["sngp"].hparams_class(), 0)
    assert (trial.hparams.bound, trial.hparams.width) == (100, 64)
    assert (
        steps.trial_of(fixed, ("erm", "mlp"), methods["erm"].hparams_class(), 0).hparams
        == methods["erm"].hparams_class()
    )
    for words, sentence in (("bound=100", "such as sngp"), ("sngp.bond=1", "no setting 'bond'"), ("sngq.x=1", "sngq")):
        with pytest.raises(BadInput, match=sentence):
            steps.refuse_impossible(replace(plan, hparams=(words,)), None)


@pytest.mark.parametrize("name", ["short", "scratch"])
def test_url__presets_with_reduced_budgets_have_every_method(name):
    reduced = PRESETS[name]
    assert set(reduced.methods) == {*PAPER, "losspred-order"} and (reduced.trials, reduced.seeds) == (1, 2)
    assert reduced.training.optimizer == "adamw" and reduced.training.augment == "full"


# ---- labelled images


def test_further_training_starts_from_the_network_and_omits_test_images(plan, context, study):
    own = network(study, context).trial
    (downstream,) = [steps.downstream(text, plan, None) for text in plan.downstream]
    start = f"store:{train_step(own).key}"
    further, target = steps.further_training(own, downstream, 1, start, None)
    assert further.start == start and further.hparams == own.hparams
    trained = ImageSet(further.data, "train", further.classes).load()
    assert len(trained) == 3 and not set(trained.index) & set(target.images.load().index)
    few = study.frame.where(evaluation="few-shot", metric="recall_at_1", method="erm")
    assert few.unique("shots") == [0, 1] and set(few.unique("data_seed")) == {0, 1}
    assert len(set(few.column("n"))) == 1  # the same test images, with and without labels learnt


def test_url__many_shot_trains_on_test_classes(study):
    many = study.frame.where(evaluation="many-shot", metric="recall_at_1")
    assert set(many.unique("method")) == {"erm"} and set(many.unique("data_seed")) == {0, 1}
    assert many.unique("dataset") == ["digits"]


# ---- reports


def test_url__reports_have_every_figure_and_the_table_of_the_paper(study):
    assert set(report_names("url")) >= FIGURES
    empty = {name for name in FIGURES if not find_report(f"url/{name}").blocks(study.frame)}
    assert empty == {"fig8"}  # no transformer was trained
    shown = [row | {"backbone": "vit_tiny"} for row in study.frame]
    assert find_report("url/fig8").blocks(Frame(shown)) and not find_report("url/fig7").blocks(Frame(shown))


def test_over_seeds__results_have_means_over_seeds_and_significance_marks():
    def rows(method, values, half):
        facts = {
            "method": method,
            "backbone": "b",
            "trial": 0,
            "split": "test",
            "evaluation": "transfer",
            "target": "x",
        }
        wide = [
            facts
            | {"metric": "r_auroc", "measure": "u", "data_seed": seed, "value": v, "low": v - half, "high": v + half}
            for seed, v in enumerate(values)
        ]
        return [row | {"chosen_by": "r_auroc", "chosen_measure": "u"} for row in wide]

    frame = Frame([*rows("a", [0.64, 0.66], 0.01), *rows("b", [0.5, 0.66], 0.01), *rows("c", [0.2, 0.21], 0.01)])
    found = {row["method"]: row for row in reports.over_seeds(frame, ("r_auroc", "test"), "r_auroc")}
    assert (found["b"]["value"], found["b"]["least"], found["b"]["most"]) == pytest.approx((0.58, 0.5, 0.66))

    def bold(rows):
        cells = reports.retrieval(rows).cells()
        return {labels[0] for (labels, head), cell in cells.items() if head == "R-AUROC ↑" and cell.best}

    assert bold(frame) == {"a", "b"} and "Welch's t-test" in reports.retrieval(frame).note
    wide = Frame([*rows("a", [0.64, 0.66], 0.01), *rows("c", [0.5, 0.52], 0.2)])  # few images: no difference is certain
    assert bold(wide) == {"a", "c"}
    assert "not significantly different from b by u (Welch's" in " ".join(reports._lead(frame))
    apart = " ".join(reports._lead(Frame([*rows("a", [0.64, 0.66], 0.01), *rows("c", [0.2, 0.21], 0.01)])))
    assert "c by u, is +0.445 [0." in apart
    ranges = Frame([*rows("a", [0.6, 0.7], 0.01), *rows("c", [0.5, 0.52], 0.01)])  # apart in range, but by two seeds
    assert bold(ranges) == {"a", "c"}
    three = Frame([*rows("a", [0.6, 0.7, 0.8], 0.1), *rows("c", [0.5, 0.61, 0.7], 0.1)])  # common seeds: a paired test
    assert bold(three) == {"a"} and "paired t-test over seeds" in reports.retrieval(three).note
    single = Frame(row | {"low": None, "high": None} for row in (*rows("a", [0.6], 0), *rows("c", [0.5], 0)))
    assert "not tested" in " ".join(reports._lead(single)) and bold(single) == {"a"}


def test_interval__the_interval_of_a_mean_over_sets_is_narrower_than_theirs():
    """Images of two sets are drawn apart: the variance of their mean is a quarter of the sum."""
    rng = np.random.default_rng(0)
    drawn = {"x": 0.6 + 0.03 * rng.normal(size=20000), "y": 0.7 + 0.04 * rng.normal(size=20000)}
    ends = {target: np.quantile(values, (0.025, 0.975)) for target, values in drawn.items()}
    rows = [
        {"target": target, "data_seed": seed, "value": values.mean(), "low": ends[target][0], "high": ends[target][1]}
        for target, values in drawn.items()
        for seed in (0, 1)
    ]
    due = np.quantile((drawn["x"] + drawn["y"]) / 2, (0.025, 0.975))
    assert reports._interval(Frame(rows)) == pytest.approx(due, abs=1e-3)
    assert reports._interval(Frame(row for row in rows if row["target"] == "x")) == pytest.approx(ends["x"])


def test_networks__methods_stand_in_one_order_in_all_figures(study):
    frame = Frame(reversed(study.frame.rows))
    order = list(reports.chosen_trials(frame, "recall_at_1"))
    for quantities in ((reports.RECALL, reports.AREA), (("crop_agreement", "upstream"), reports.AREA)):
        points = Frame(reports.networks(reports.network_values(frame, quantities), *quantities))
        assert [key for key, _ in points.group_by("method", "backbone")] == order


def test_networks__correlations_of_figures_are_those_of_their_points(study):
    quantities = ("r_auroc", "upstream"), ("r_auroc", "test")
    points = reports.networks(reports.network_values(study.frame, quantities), *quantities)
    assert len(points) == len({tuple(p[name] for name in reports.NETWORK) for p in points}) >= 4
    x, y = "R-AUROC upstream", "R-AUROC downstream"
    expected = metrics.spearman([p[x] for p in points], [p[y] for p in points])
    assert Frame(points).correlation(x, y) == pytest.approx(expected)
    facts = {
        "method": "erm",
        "trial": 0,
        "data_seed": 0,
        "split": "test",
        "evaluation": "transfer",
        "metric": "r_auroc",
    }
    (point,) = [p for p in points if (p["method"], p["trial"], p["seed"]) == ("erm", 0, 0)]
    assert point[y] == pytest.approx(value(study, **facts, measure="entropy"))


def test_story_has_all_figures_and_tables(study):
    story = reports.story(study)
    keys = {figure.key.split("-")[0] for figure in figures_of(story)}
    assert keys >= FIGURES - {"fig8", "table1"}
    tables = reports.retrieval(study.frame), reports.table_1(study.frame)
    assert {table.title for table in tables} <= {table.title for table in tables_of(story)}


# ---- the command


def test_run__a_second_run_trains_nothing_and_gives_the_same_rows(study, plan, context, monkeypatch):
    monkeypatch.setattr(training.steps, "fit", None)
    assert run(plan, context).rows == study.rows


HERE = ("--bootstrap", "0", "--workers", "0", "--device", "cpu")
WORDS = ("--backbones", "mlp", "--epochs", "1", "--no-upper-bound", *HERE)


def test_url__from_the_command_line_to_the_page(tmp_path, capsys):
    words = ["run", "url", "--methods", "mc-dropout", "--trials", "1", "--seeds", "1", "--shots", "1", *WORDS]
    assert main([*words, "--store", str(tmp_path / "store"), "--output", str(tmp_path / "page")]) == 0
    assert "R-AUROC ↑" in capsys.readouterr().out
    assert (tmp_path / "page" / "index.html").is_file()
    kept = read_study(tmp_path / "page")
    assert {row["method"] for row in kept.rows} == {"mc-dropout"}
    only = ["report", str(tmp_path / "store"), "--only", "url/table1", "--output", str(tmp_path / "one")]
    assert main(only) == 0 and (tmp_path / "one" / "table1.csv").is_file()


@pytest.mark.parametrize("name", ["ddu", "byol"])
def test_ranking_scores__methods_without_classes_or_with_densities_are_evaluated(name, tmp_path, plan):
    tiny = replace(plan, methods=(name,), trials=1, seeds=1, shots=(), upper_bound=False, annotated=(), bootstrap=0)
    found = run(tiny, Context(Store(tmp_path), device="cpu"))
    assert found.failures == []
    (row,) = reports.over_seeds(found.frame, ("r_auroc", "test"), "r_auroc")
    assert row["measure"] in steps.ranking_scores(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(methods))
def test_url__every_method_is_evaluated(name, tmp_path, plan):
    test_ranking_scores__methods_without_classes_or_with_densities_are_evaluated(name, tmp_path, plan)


def test_retrieval__existing_networks_are_evaluated_without_training(tmp_path, capsys):
    file = checkpoint(tmp_path / "net.safetensors", "test_resnet", num_classes=1000)
    data, other = pack(tmp_path / "val.npz", 12, 1000), pack(tmp_path / "other.npz", 12, 3, "test", 1)
    words = ["run", "url", "--data", f"npz:{data}", "--downstream", f"npz:{other}", "--validation-share", "0"]
    words += ["--networks", f"test_resnet@{file}", *HERE, "--store", str(tmp_path / "store"), "--format", "json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    test = [
        row
        for row in rows
        if row["split"] == "test" and row["metric"] == "recall_at_1" and row["evaluation"] == "transfer"
    ]
    assert [row["n"] for row in test] == [12] and not (tmp_path / "store" / "train").exists()
    assert {row["chosen_by"] for row in rows} == {", ".join(steps.CRITERIA)}
    (line,) = reports.retrieval(Frame(rows)).rows
    assert line[0] == ("pretrained", "entropy")


def test_budget__preset_paper_has_the_budget_of_the_paper():
    paper = PRESETS["paper"]
    assert paper.methods == PAPER and len(PAPER) == 11 and (paper.trials, paper.seeds, paper.min_recall) == (10, 3, 0.1)
    assert (paper.downstream, paper.input_sizes) == (("cub200", "cars196", "sop"), (224, 256))
    assert paper.shots == (1, 2, 5, 10) and len(paper.annotated) == 5
    budget = {(m, b): steps.budget(paper, m, b) for m in ("erm", "infonce", "hib") for b in paper.backbones}
    batches = {key: (own.accumulate, own.batch_size // own.accumulate) for key, own in budget.items()}
    assert batches["erm", "resnet50:max"] == (16, 128) and batches["infonce", VIT] == batches[
        "hib", "resnet50:max"
    ] == (21, 96)
    assert batches["hib", VIT] == (43, 48)
    own = budget["erm", "resnet50:max"]
    assert (own.optimizer, own.epochs, own.warmup_flat, own.warmup, own.schedule) == ("lamb", 32, 1.0, 5.0, "cosine")
    assert steps.data_of(paper, VIT, None) == "imagenet@256"
    hparams = methods["mc-infonce"].hparams_class()
    assert steps.trial_of(paper, ("mc-infonce", VIT), hparams, 0).hparams.average == "losses"  # equation 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"downstream": ()}, "at least one downstream set"),
        ({"validation_share": 1.0}, "validation_share is 1"),
        ({"shots": (0,)}, "shots must be at least 1"),
        ({"starts": ("file:a", "file:b")}, "2 entries for 1 backbones"),
        ({"batches": ("hib=21",)}, "PARTSxIMAGES"),
    ],
)
def test_plan_refuses(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        replace(Plan(), **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"downstream": ("digits#7-9",)}, "validation classes"),
        ({"downstream": ("digits#6-7#7-9",)}, "Class 7"),
        ({"downstream": ("digits#1#2#3",)}, "DATA#VALIDATION#TEST"),
        ({"classes": None}, "classes of digits"),
        ({"measures": ("entropie",)}, "entropie"),
    ],
)
def test_run__refused_before_any_work(plan, context, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(replace(plan, **change), context)


def test_refuse_trained_classes__classes_that_an_existing_network_was_trained_on_are_refused():
    group = lineup.average([replace(small_trial("erm"), classes=(0, 1, 2, 3))], None)
    steps.refuse_trained_classes("digits", {5, 6}, None, [group])
    with pytest.raises(BadInput, match=r"Class 3 .*erm.* digits#4-9"):
        steps.refuse_trained_classes("digits", {3, 4}, None, [group])
