"""Graded out-of-distribution detection: every step against its plain definition, and the whole on dumps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from nescio import Predictions, measures, metrics
from nescio.analysis.evaluation_rows import uncertainty_of
from nescio.analysis.graded_ood import severity_windows, split_ood_classes
from nescio.arrays.npz import read_npz
from nescio.benchmarks import cood
from nescio.benchmarks.cood import Plan
from nescio.errors import BadInput, Undefined
from nescio.predictions.pairs import PairedPredictions, pair_from_files, pairs_from_store
from nescio.report.studies import Study
from nescio.rows import COLUMNS
from nescio.work.store import Store
from tests.support import fake_zoo
from tests.support.brute_grades import brute_auroc, brute_grades
from tests.support.fake_zoo import keep

SMALL = Plan(estimation_images=6, test_images=4)


# ---- one model's dumps, with known severities

CLASSES, SEEN, IMAGES = 24, 4, 12


def sure(margin: Any, c: int = SEEN) -> Any:
    """Logits whose largest probability is 1/(1 + (c − 1)·exp(−margin))."""
    margin = np.asarray(margin, float)
    logits = np.zeros((len(margin), c))
    logits[:, 1] = margin
    return logits


def dumps(seed: int = 0, spread: float = 0.3, flip: bool = False) -> tuple[Predictions, Predictions]:
    """In-data of 4 classes, and 24 out-classes of which class y has the mean margin y/6 (or the reverse)."""
    rng = np.random.default_rng(seed)
    margin = np.abs(rng.normal(3, 1, 80))
    labels = np.where(rng.random(80) < 0.85, 1, rng.integers(0, SEEN, 80))
    labels[:SEEN] = range(SEEN)
    inside = Predictions(logits=sure(margin), labels=labels, in_distribution=True, index=np.arange(80))
    kinds = np.repeat(np.arange(CLASSES), IMAGES)
    order = np.random.default_rng(9).permutation(len(kinds))
    kinds = kinds[order]
    level = (CLASSES - 1 - kinds if flip else kinds) / 6
    outside = Predictions(
        logits=sure(level + spread * rng.normal(size=len(kinds))),
        labels=kinds,
        in_distribution=False,
        index=1000 + order,
    )
    return inside, outside


def saved(folder: Path, name: str, *sides: Predictions, **others: Predictions) -> PairedPredictions:
    paths = [folder / f"{name}-{side}.npz" for side in ("in", "out", *others)]
    for dump, path in zip((*sides, *others.values()), paths, strict=True):
        dump.save(path)
    pair = pair_from_files(name, str(paths[0]), str(paths[1]), dict(zip(others, map(str, paths[2:]), strict=True)))
    assert pair.model == pair.in_distribution.model == name
    return pair


def graded(plan: Plan, pairs: Any, store: Store, names: Any = None, workers: int = 0, watch: Any = None) -> Study:
    return fake_zoo.study("cood", plan, store, lambda work: cood.grade_models(plan, pairs, names, work), workers, watch)


def group(row: Any) -> str | None:
    return row["target"] if row["severity"] is None else f"severity {row['severity']:g}"


def values(rows: Any, **facts: Any) -> dict[str | None, float]:
    """Group → value of the rows with these facts."""
    return {group(row): row["value"] for row in rows if all(row[name] == value for name, value in facts.items())}


def severities(rows: Any, model: str = "a", measure: str = "msp", metric: str = "auroc") -> list[float]:
    found = values(rows, backbone=model, measure=measure, metric=metric, split="out")
    return [found[f"severity {level}"] for level in range(11)]


def outside_confidence(outside: Predictions) -> np.ndarray:
    """The largest softmax of every row."""
    assert outside.logits is not None
    return softmax(outside.logits[:, 0].astype(float), axis=-1).max(-1)


def test_grade_models__known_severities_give_known_groups_and_exact_aurocs(tmp_path: Path) -> None:
    inside, outside = dumps(spread=0.01)
    study = graded(SMALL, [saved(tmp_path, "a", inside, outside)], Store(tmp_path / "store"))
    assert study.failures == [] and all(row.keys() == set(COLUMNS) for row in study.rows)
    found = severities(study.rows)
    assert found == sorted(found, reverse=True) and found[0] > 0.99 and found[-1] < found[0] - 0.2
    u_in, u_out = measures.msp(inside), measures.msp(outside)
    division = split_ood_classes(outside.labels, outside.index, 6, 4)
    plain = brute_grades(u_in, u_out, division, 4, 11)
    assert [group for group, _ in plain] == [set(range(at, at + 4)) for at in severity_windows(21)]
    assert found == [auroc for _, auroc in plain]
    means = severities(study.rows, metric="severity")
    for level, (group, _) in enumerate(plain):
        rows = [row for y in group for row in division.estimation[division.classes.tolist().index(y)]]
        assert means[level] == pytest.approx(outside_confidence(outside)[rows].mean(), abs=1e-6)
    assert means == sorted(means)
    chosen = read_npz(next((tmp_path / "store" / "evaluate").glob("*/classes.npz")))
    own = [outside_confidence(outside)[rows].mean() for rows in division.estimation]
    np.testing.assert_allclose(chosen["severity.msp"], own, atol=1e-6)
    row = next(row for row in study.rows if row["severity"] == 3 and row["metric"] == "auroc")
    assert row["n"] == 80 + 4 * 4 and row["benchmark"] == "cood" and row["method"] == "pretrained"


def test_step__groups_are_rebuilt_for_every_measure(tmp_path: Path) -> None:
    """Classes whose rest is spread are unsure by entropy and sure by softmax; each κ gets its own hard classes."""
    inside, _ = dumps()
    kinds = np.repeat(np.arange(20), 10)
    peak = np.where(kinds < 10, 0.70 + 0.002 * kinds, 0.60 + 0.002 * kinds)
    probs = np.zeros((200, SEEN))
    probs[:, 0] = peak
    probs[kinds < 10, 1:] = ((1 - peak[kinds < 10]) / 3)[:, None]  # sure, the rest spread: entropy 0.94
    probs[kinds >= 10, 1] = 1 - peak[kinds >= 10]  # less sure, one other class: entropy 0.66
    outside = Predictions(probs=probs, labels=kinds, in_distribution=False)
    inside = Predictions(probs=measures_probs(inside), labels=inside.labels, in_distribution=True)
    pair = saved(tmp_path, "a", inside, outside)
    store = Store(tmp_path / "store")
    study = graded(SMALL, [pair], store)
    held = read_npz(cood._step(SMALL, pair, ()).folder(store) / cood.CLASSES)
    hard = {κ: set(held[f"order.{κ}"][-4:].tolist()) for κ in ("msp", "entropy")}
    assert hard["msp"] <= set(range(10)) and hard["entropy"] <= set(range(10, 20))
    for κ in ("msp", "entropy"):
        u_in, u_out = (getattr(measures, κ)(each) for each in (inside, outside))
        plain = brute_grades(u_in, u_out, split_ood_classes(kinds, np.arange(200), 6, 4), 4, 11)
        assert severities(study.rows, measure=κ) == [auroc for _, auroc in plain]


def measures_probs(dump: Predictions) -> Any:
    z = np.exp(np.asarray(dump.logits)[:, 0])
    return z / z.sum(1, keepdims=True)


def test_grade_models__mc_dropout_is_the_entropy_of_the_mean_softmax(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    inside, outside = dumps()

    def with_passes(dump: Predictions) -> tuple[Predictions, Any]:
        noisy = np.asarray(dump.logits) + rng.normal(size=(len(dump), 30, SEEN))
        p = np.exp(noisy)
        mean = (p / p.sum(-1, keepdims=True)).mean(1)
        return dump.replace(variants={"mc-dropout": np.log(mean)}), -(mean * np.log(mean)).sum(1)

    (inside, h_in), (outside, h_out) = with_passes(inside), with_passes(outside)
    assert np.allclose(uncertainty_of(inside, "mc-dropout"), h_in, rtol=1e-9)
    study = graded(SMALL, [saved(tmp_path, "a", inside, outside)], Store(tmp_path / "store"))
    u_in, u_out = (uncertainty_of(each, "mc-dropout") for each in (inside, outside))
    plain = brute_grades(u_in, u_out, split_ood_classes(outside.labels, outside.index, 6, 4), 4, 11)
    assert severities(study.rows, measure="mc-dropout") == [auroc for _, auroc in plain]
    mean = np.asarray(inside.variants["mc-dropout"])  # its κ judges its own answers, as benchmark `selective` does
    own = metrics.auroc(u_in, mean.argmax(1) != inside.labels)
    assert values(study.rows, split="test", measure="mc-dropout", metric="auroc")[None] == own
    assert np.allclose(u_out, h_out) and severities(study.rows, measure="mc-dropout") != severities(study.rows)


def test_grade_models__without_dropout_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Undefined, match="dropout"):
        uncertainty_of(dumps()[0], "mc-dropout")
    study = graded(SMALL, [saved(tmp_path, "a", *dumps())], Store(tmp_path / "store"))
    assert {row["measure"] for row in study.rows} == {None, "msp", "entropy"}
    (reason,) = study.reasons
    assert (reason["backbone"], reason["measure"], reason["split"]) == ("a", "mc-dropout", "out")


def test_grade_models__facts_and_in_domain_rows(tmp_path: Path) -> None:
    inside, outside = dumps()
    pair = saved(tmp_path, "a", inside, outside)
    facts = {"params": 25_557_032, "input_size": [3, 224, 288], "embedding_size": 2048, "dropout": True}
    pair = replace(pair, in_distribution=replace(pair.in_distribution, facts=facts, data="imagenet:x"))
    study = graded(SMALL, [pair], Store(tmp_path / "store"))
    own = {row["metric"]: row for row in study.frame if row["split"] == "test" and row["measure"] is None}
    wrong = np.asarray(inside.labels) != 1
    assert own["accuracy"]["value"] == pytest.approx(1 - wrong.mean()) and own["accuracy"]["n"] == 80
    assert (own["accuracy"]["input_size"], own["accuracy"]["embedding_size"]) == (288, 2048)
    assert {row["params"] for row in study.frame} == {25_557_032} and own["accuracy"]["dataset"] == "imagenet:x"
    found = values(study.rows, split="test", measure="entropy", metric="auroc")[None]
    assert found == metrics.auroc(measures.entropy(inside), wrong)
    assert study.frame.facts("out_classes", "window").unique("value") == [24, 4]


def test_grade_models__a_fixed_set_stands_beside_the_severities(tmp_path: Path) -> None:
    inside, outside = dumps()
    fixed = dumps(seed=7)[1].take(slice(0, 31))
    pair = saved(tmp_path, "a", inside, outside, **{"imagenet-o": fixed})
    study = graded(SMALL, [pair], Store(tmp_path / "store"))
    u_in, u = measures.msp(inside), measures.msp(fixed)
    found = values(study.rows, measure="msp", metric="auroc", split="out")["imagenet-o"]
    assert found == float(brute_auroc(u_in, u))
    with pytest.raises(BadInput, match="cannot be named 'severity 3'"):
        graded(SMALL, [replace(pair, extra_ood={"severity 3": pair.ood})], Store(tmp_path / "store"))


def test_grade_models__rows_of_the_other_side_are_left_aside(tmp_path: Path) -> None:
    """One dump of both kinds of rows may be given twice: `in_distribution` says which are which."""
    inside, outside = dumps()
    both = Predictions(
        logits=np.concatenate([inside.logits, outside.logits]),
        labels=np.concatenate([inside.labels, outside.labels]),
        in_distribution=np.concatenate([inside.in_distribution, outside.in_distribution]),
        index=np.concatenate([inside.index, outside.index]),
    )
    store = Store(tmp_path / "store")
    apart = graded(SMALL, [saved(tmp_path, "a", inside, outside)], store)
    mixed = graded(SMALL, [saved(tmp_path, "b", both, both)], store)
    assert severities(apart.rows, "a") == severities(mixed.rows, "b")


def test_grade_models__out_labels_are_class_ids_of_their_own(tmp_path: Path) -> None:
    """A file that does not say `in_distribution` may hold labels that no answer of the model has."""
    inside, outside = dumps()
    paths = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(paths[0], logits=inside.logits[:, 0], labels=inside.labels)
    np.savez(paths[1], logits=outside.logits[:, 0], labels=outside.labels, index=outside.index)
    study = graded(SMALL, [pair_from_files("a", *map(str, paths))], Store(tmp_path / "store"))
    whole = graded(SMALL, [saved(tmp_path, "a", inside, outside)], Store(tmp_path / "other"))
    assert study.failures == [] and severities(study.rows) == severities(whole.rows)


def test_grade_models__without_in_labels_the_severities_are_still_there(tmp_path: Path) -> None:
    inside, outside = dumps()
    bare = Predictions(logits=inside.logits)
    study = graded(SMALL, [saved(tmp_path, "a", bare, outside)], Store(tmp_path / "store"))
    whole = graded(SMALL, [saved(tmp_path, "b", inside, outside)], Store(tmp_path / "store"))
    assert severities(study.rows, "a") == severities(whole.rows, "b")  # 4 answers, 4 in-classes
    assert not values(study.rows, metric="accuracy") and "accuracy" in {row["metric"] for row in study.reasons}


# ---- the study


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_grade_models__a_second_run_reads_what_is_there(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [saved(tmp_path, name, *dumps(seed)) for seed, name in enumerate("ab")]
    first = graded(SMALL, pairs, store)
    monkeypatch.setattr(cood, "split_ood_classes", None)  # any work would call it
    second = graded(SMALL, pairs, store)
    assert second.rows == first.rows and second.failures == [] and second.notes == first.notes
    third = graded(SMALL, [*pairs, saved(tmp_path, "c", *dumps(3))], store)
    assert [failure.name for failure in third.failures] == ["c"]


def test_grade_models__a_failure_costs_one_model(tmp_path: Path, store: Store) -> None:
    inside, outside = dumps()
    few = saved(tmp_path, "few", inside, outside.take(slice(0, 60)))
    bare = saved(tmp_path, "bare", inside, Predictions(logits=outside.logits))
    five = Predictions(logits=sure(np.ones(240), 5), labels=np.arange(240) % 24, in_distribution=False)
    other = saved(tmp_path, "other", inside, five)
    study = graded(SMALL, [few, bare, saved(tmp_path, "good", inside, outside), other], store)
    assert {row["backbone"] for row in study.rows} == {"good"}
    reasons = {failure.name: failure.reason for failure in study.failures}
    assert "has 10 images (6 " in reasons["few"]
    assert "by their labels" in reasons["bare"]
    assert "has 5 classes" in reasons["other"]
    assert {each.reason for each in store.runs() if each.state == "failed"} == set(reasons.values())


def test_step__every_choice_is_in_the_key(tmp_path: Path, store: Store) -> None:
    """A key that leaves out one field serves stale results."""
    pair = saved(tmp_path, "a", *dumps(), fixed=dumps(2)[1])
    facts = {"params": 3, "input_size": 224, "embedding_size": 7}
    pair = replace(pair, in_distribution=replace(pair.in_distribution, facts=facts))

    def key(plan: Plan = SMALL, pair: PairedPredictions = pair, refused: tuple[int, ...] = ()) -> str:
        return cood._step(plan, pair, refused).key

    plans = [replace(SMALL, **{name: value}) for name, value in CHANGED.items()]
    keys = [key(), *(key(plan) for plan in plans), key(refused=(1,)), key(refused=(2,))]
    keys.append(key(pair=replace(pair, in_distribution=replace(pair.in_distribution, model="b"))))
    keys.append(key(pair=replace(pair, extra_ood={})))
    keys += [key(pair=replace(pair, extra_ood={"renamed": pair.extra_ood["fixed"]}))]
    for side in ("in_distribution", "ood"):
        entry = getattr(pair, side)
        keys += [
            key(pair=replace(pair, **{side: replace(entry, **change)}))
            for change in ({"key": "x"}, {"data": "y"}, {"sample": (9, 0)}, {"sample": (9, 1)})
        ]
    for name in facts:
        keys.append(key(pair=replace(pair, in_distribution=replace(pair.in_distribution, facts=facts | {name: 9}))))
    assert len(set(keys)) == len(keys)
    left = {name for name in Plan.__dataclass_fields__ if name not in CHANGED}
    inputs = {"pair", "data", "ood_data", "extra_ood", "limit"}  # what comes of them are the dumps
    names = {"hierarchy", "data_names", "ood_names"}  # what comes of them is `refused`
    assert left == inputs | names


CHANGED = {
    "estimation_images": 5,
    "test_images": 3,
    "severity_levels": 5,
    "group_classes": 3,
    "measures": ("entropy",),
    "seed": 1,
}


@pytest.mark.usefixtures("light")
def test_grade_models__workers_give_the_same_rows(tmp_path: Path, store: Store) -> None:
    pairs = [saved(tmp_path, name, *dumps(seed)) for seed, name in enumerate("ab")]
    said: list[tuple[Any, ...]] = []
    one = graded(SMALL, pairs, store, workers=0, watch=lambda *what: said.append(what))
    two = graded(SMALL, pairs, Store(tmp_path / "other"), workers=1)
    assert one.rows == two.rows and said[-1][:4] == ("grade OOD classes", 2, 0, 2)


def test_step__in_classes_and_their_kin_are_removed(tmp_path: Path, store: Store) -> None:
    """Out-class 5 is an in-class, 6 is above one, 7 is below one, 8 is a sister; 23 is in a tree of its own."""
    (tmp_path / "is_a.txt").write_text("o6 i0\ni0 o7\no6 o8\nx o23\n")
    names = [f"i{y}" for y in range(SEEN)], [f"o{y}" if y != 5 else "i2" for y in range(CLASSES)]
    pair = saved(tmp_path, "a", *dumps())
    plan = replace(SMALL, hierarchy=str(tmp_path / "is_a.txt"))
    study = graded(plan, [pair], store, names=names)
    assert study.frame.facts("out_classes").unique("value") == [21]
    held = read_npz(cood._step(plan, pair, (5, 6, 7)).folder(store) / cood.CLASSES)
    assert held["classes"].tolist() == [y for y in range(CLASSES) if y not in (5, 6, 7)]
    assert any(note.startswith("3 of 24 out-classes") for note in study.notes)
    assert any("23 of the 28" in note for note in study.notes)  # it knows o6, i0, o7, o8, o23
    bare = graded(SMALL, [pair], store, names=names)
    assert bare.frame.facts("out_classes").unique("value") == [23]
    assert graded(SMALL, [pair], store).notes == [] != bare.notes
    with pytest.raises(BadInput, match="hierarchy needs"):
        graded(plan, [pair], store)


def test_grade_models__notes_say_what_was_left_out_and_what_shrank(tmp_path: Path, store: Store) -> None:
    inside, outside = dumps()
    labels = np.asarray(outside.labels)
    four = np.flatnonzero(labels < 4)
    short = np.concatenate([four, np.flatnonzero(labels == 20)[:5]])
    study = graded(SMALL, [saved(tmp_path, "a", inside, outside.take(short))], store)
    assert study.frame.facts("out_classes", "window").unique("value") == [4, 2]
    text = " ".join(study.notes)
    assert "1 of 5 out-classes" in text
    assert "a group has 2 classes" in text and "group_classes" in text
    assert "3 windows of 2, fewer than the 11 severities" in text
    asked = graded(replace(SMALL, group_classes=2, severity_levels=3), [saved(tmp_path, "b", inside, outside)], store)
    assert asked.notes == [] and asked.frame.facts("window").unique("value") == [2]


def test_grade_models__overlap_counts_classes_of_any_and_of_every_model(tmp_path: Path, store: Store) -> None:
    """Two models that rank the classes alike and one that ranks them in reverse (appendix M.8)."""
    sides = [dumps(0, 0.01), dumps(1, 0.01), dumps(2, 0.01, flip=True)]
    pairs = [saved(tmp_path, name, *each) for name, each in zip("abc", sides, strict=True)]
    study = graded(SMALL, pairs, store)
    union = values(study.rows, metric="union", measure="msp")
    shared = values(study.rows, metric="intersection", measure="msp")
    for level, at in enumerate(severity_windows(21)):
        own, turned = set(range(at, at + 4)), {23 - y for y in range(at, at + 4)}
        assert union[f"severity {level}"] == len(own | turned)
        assert shared[f"severity {level}"] == len(own & turned)
    assert all(row["n"] == 3 and row["backbone"] is None for row in study.rows if row["metric"] == "union")
    alone = graded(SMALL, pairs[:1], store)
    assert not values(alone.rows, metric="union")


def test_grade_models__images_that_fool_many_models_alike_are_listed(tmp_path: Path, store: Store) -> None:
    """All models call image 5000 of the hardest class 2; every other hard image is answered in turn (Fig. 27)."""
    inside, outside = dumps(0, 0.01)
    division = split_ood_classes(outside.labels, outside.index, 6, 4)
    hard = division.test[-4:].ravel()  # classes 20 to 23
    image = int(division.test[23][1])
    pairs = []
    for at, name in enumerate("abc"):
        logits = np.asarray(outside.logits).copy()
        for place, row in enumerate(hard):
            logits[row, 0] = np.roll(logits[row, 0], (place + at) % 4 if row != image else 1)
        turned = np.random.default_rng(at).permutation(len(outside))  # the order of rows must not matter
        pairs.append(saved(tmp_path, name, inside, outside.replace(logits=logits).take(turned)))
    names = ["cat", "dog", "fox squirrel", "cow"], [f"o{y}" for y in range(CLASSES)]
    rows = [row for row in graded(SMALL, pairs, store, names=names).rows if row["metric"] == "agreeing_models"]
    words = ("image", "image_class", "predicted_class")
    assert [(*(row[word] for word in words), row["value"], row["n"]) for row in rows] == [
        (str(outside.index[image]), "o23", "fox squirrel", 3.0, 3)
    ]
    plain = [row for row in graded(SMALL, pairs, store).rows if row["metric"] == "agreeing_models"]
    assert [[row[word] for word in words] for row in plain] == [[str(outside.index[image]), "23", "2"]]


def test_grade_models__the_study_is_kept_in_the_store(tmp_path: Path, store: Store) -> None:
    from nescio.rows import from_parquet

    study = graded(SMALL, [saved(tmp_path, "a", *dumps())], store)
    (kept,) = [each for each in store.runs() if each.stage == "study"]
    assert from_parquet(kept.folder / "rows.parquet") == study.rows
    assert json.loads((kept.folder / "plan.json").read_text())["plan"]["estimation_images"] == 6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"estimation_images": 0}, r"estimation_images .*at least 1"),
        ({"test_images": -1}, r"test_images .*at least 1"),
        ({"severity_levels": 1}, r"severity_levels .*at least 2"),
        ({"group_classes": 0}, r"group_classes .*at least 1"),
        ({"measures": ()}, "Plan.measures"),
        ({"measures": ("knn_distance",)}, "cannot grade one network"),
        ({"measures": ("entropi",)}, "entropy"),
    ],
)
def test_grade_models__bad_plans(change: dict[str, Any], sentence: str, store: Store) -> None:
    with pytest.raises(BadInput, match=sentence):
        graded(replace(SMALL, **change), [], store)


def test_grade_models__bad_pairs(tmp_path: Path, store: Store) -> None:
    pair = saved(tmp_path, "a", *dumps())
    with pytest.raises(BadInput, match="to grade"):
        graded(SMALL, [], store)
    with pytest.raises(BadInput, match="named a:"):
        graded(SMALL, [pair, pair], store)
    swapped = replace(pair, in_distribution=pair.ood, ood=pair.in_distribution)
    reasons = [failure.reason for failure in graded(SMALL, [swapped], store).failures]
    assert len(reasons) == 1 and "in-distribution data" in reasons[0]
    same = replace(pair, ood=pair.in_distribution)
    (failure,) = graded(SMALL, [same], store).failures
    assert "every row as in_distribution" in failure.reason


# ---- pairs of the store


def zoo(store: Store, model: str, data: str, dump: Predictions, outside: bool) -> None:
    keep(store, model, data, dump, outside, params=5)


def test_grade_models__pairs_of_a_store_are_the_models_that_answered_both(tmp_path: Path, store: Store) -> None:
    for seed, model in enumerate(("b", "a", "lonely")):
        inside, outside = dumps(seed)
        zoo(store, model, "digits", inside, False)
        if model != "lonely":
            zoo(store, model, "cifar100", outside, True)
        if model == "a":
            zoo(store, model, "hard", outside.take(slice(0, 40)), True)
    pairs, notes = pairs_from_store(store, "digits", "cifar100", {"imagenet-o": "hard"})
    assert [pair.model for pair in pairs] == ["a", "b"]
    assert [set(pair.extra_ood) for pair in pairs] == [{"imagenet-o"}, set()]
    assert len(notes) == 2 and "lonely" in notes[0] and "b, lonely" in notes[1]
    study = graded(SMALL, pairs, store)
    assert study.failures == [] and {row["params"] for row in study.frame if row["backbone"]} == {5}
    assert severities(study.rows, "b") != severities(study.rows, "a")
    with pytest.raises(BadInput, match="nescio zoo MODEL"):
        pairs_from_store(store, "digits", "nothing")
