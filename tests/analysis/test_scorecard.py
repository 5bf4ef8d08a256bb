"""The scorecard says everything that can be said, on the same rows, with a reason for the rest."""

import subprocess
import sys

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, measures, metrics, stack
from nescio.analysis import calibration
from nescio.analysis.calibration import temperature
from nescio.analysis.scorecard import scorecard
from nescio.report.blocks import Prose
from nescio.report.scorecards.stories import short_story
from nescio.rows import COLUMNS


def model(n=400, c=6, seed=0, scale=3.0, **more):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, c, n)
    logits = 2 * np.eye(c)[labels] + rng.normal(size=(n, c))
    embeddings = np.eye(8)[labels] * 3 + rng.normal(size=(n, 8))
    return Predictions(labels=labels, logits=scale * logits, embeddings=embeddings, **more)


@pytest.fixture(scope="module")
def full():
    out = model(150, seed=3, scale=1.0).replace(labels=None)
    return scorecard(model(), model(seed=1), model(seed=2), {"far": out}, name="m", facts={"method": "erm"})


def test_scorecard__rows_have_the_designs_columns_and_finite_numbers(full):
    for row in full.rows:
        assert tuple(row) == COLUMNS
        assert np.isfinite(row["value"]) and row["n"] > 0 and row["method"] == "erm"


def test_scorecard__every_number_is_the_metric_of_the_measure(full):
    p, out = model(), model(150, seed=3, scale=1.0)
    wrong = p.logits[:, 0].argmax(1) != p.labels
    for name in ("msp", "gap", "entropy", "max_logit", "energy", "norm"):
        u, far = getattr(measures, name)(p), getattr(measures, name)(out)
        assert full.value("auroc", name, "test") == metrics.auroc(u, wrong)
        assert full.value("aurc", name) == metrics.aurc(u, wrong)
        assert full.value("sac@0.95", name) == metrics.sac(u, wrong, 0.95)
        both, is_out = np.concatenate([u, far]), np.repeat([False, True], [len(u), len(far)])
        assert full.value("auroc", name, "far") == metrics.auroc(both, is_out)
        cut = metrics.threshold(getattr(measures, name)(model(seed=2)))
        assert full.value("in_as_in", name) == metrics.in_as_in(u, cut)
        assert full.value("out_as_out", name) == metrics.out_as_out(far, cut)
    u = measures.gmm(model(seed=1))(p)
    assert full.value("auroc", "gmm", "test") == metrics.auroc(u, wrong)
    assert full.value("recall_at_1") == metrics.recall_at_1(p.embeddings, p.labels)
    assert full.value("r_auroc", "entropy") == metrics.r_auroc(p.embeddings, p.labels, measures.entropy(p))


def test_temperature__calibrated_rows_stand_beside_raw_ones_on_the_same_rows(full):
    scaled = temperature(model(seed=2))(model())
    wrong = model().logits[:, 0].argmax(1) != model().labels
    assert full.value("nll", calibrated=True) < full.value("nll")
    assert full.value("auroc", "entropy", "test", calibrated=True) == metrics.auroc(measures.entropy(scaled), wrong)
    assert full.value("temperature", split="val", calibrated=True) == pytest.approx(1.5, rel=0.1)
    raw = {(r["measure"], r["metric"], r["split"]): r["n"] for r in full.rows if not r["calibrated"]}
    for row in full.rows:
        if row["calibrated"] and row["metric"] != "temperature":
            assert raw[row["measure"], row["metric"], row["split"]] == row["n"]


def test_scorecard__what_cannot_be_said_has_a_reason(rng):
    card = scorecard(Predictions(logits=rng.normal(size=(5, 3))))
    assert {r["metric"] for r in card.reasons} >= {"predictions", "recall_at_1", "detection", "calibrated"}
    assert all(r["reason"].endswith(".") and set(r) == {"measure", "metric", "split", "reason"} for r in card.reasons)
    with pytest.raises(Undefined, match="labels"):
        card.value("predictions")


def test_scorecard__all_right_is_a_reason_and_not_a_number():
    labels = np.arange(6) % 3
    card = scorecard(Predictions(labels=labels, logits=5 * np.eye(3)[labels]))
    with pytest.raises(Undefined):
        card.value("auroc", "entropy")
    assert card.value("accuracy") == 1 and card.value("sac@0.99", "entropy") == 1


def test_scorecard__untaught_rows_are_out_domain():
    p = model()
    mixed = p.replace(in_distribution=np.arange(len(p)) % 4 > 0)
    card = scorecard(mixed)
    assert card.value("accuracy") == metrics.accuracy(_probs(p)[mixed.in_distribution], p.labels[mixed.in_distribution])
    u = measures.entropy(p)
    known, new = u[mixed.in_distribution], u[~mixed.in_distribution]
    is_out = np.repeat([False, True], [len(known), len(new)])
    assert card.value("auroc", "entropy", "ood_rows") == metrics.auroc(np.concatenate([known, new]), is_out)


def _probs(p):
    z = np.asarray(p.logits[:, 0], float)
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_scorecard__zero_probability_rows_are_counted():
    probs = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    card = scorecard(Predictions(labels=[0, 0, 1], probs=probs))
    assert any(note.startswith("1 of 3 rows") for note in card.notes)
    with pytest.raises(Undefined, match="probabilities"):
        card.value("auroc", "energy")


def test_scorecard__an_ensemble_disagrees_and_one_draw_cannot():
    one, two = model(), model().replace(logits=model(seed=9).logits)
    card = scorecard(stack([one, two]))
    assert card.rows[0]["members"] == 2
    assert np.isfinite(card.value("auroc", "mutual_information"))
    with pytest.raises(Undefined, match="draws"):
        scorecard(one).value("auroc", "mutual_information")


def test_scorecard__groups_get_rows_of_their_own():
    p = model(groups={"severity": np.arange(400) % 3})
    card = scorecard(p, by=("severity",))
    rows = [r for r in card.rows if r["subgroup"] == "severity=1" and r["metric"] == "accuracy"]
    part = p.groups["severity"] == 1
    assert [r["value"] for r in rows] == [metrics.accuracy(_probs(p)[part], p.labels[part])]
    with pytest.raises(BadInput, match="no group named 'weather'"):
        scorecard(p, by=("weather",))


def test_scorecard__rows_without_human_votes_are_left_out_and_counted():
    votes = np.random.default_rng(0).integers(1, 9, (400, 6))
    votes[::4] = 0
    card = scorecard(model(annotations=votes))
    (row,) = (row for row in card.rows if (row["metric"], row["measure"]) == ("human_alignment", "entropy"))
    u = measures.entropy(model())
    kept = np.arange(400) % 4 > 0
    assert row["value"] == metrics.human_alignment(u[kept], votes[kept]) and row["n"] == 300
    (note,) = (note for note in card.notes if "human_alignment" in note)
    assert "100 of 400" in note
    nobody = scorecard(model(annotations=np.zeros((400, 6))))
    with pytest.raises(Undefined, match="votes"):
        nobody.value("human_alignment", "entropy")


@pytest.mark.parametrize(("shift", "words"), [(0, calibration.EDGES["right"]), (1, calibration.EDGES["wrong"])])
def test_scorecard__a_temperature_at_the_edge_is_a_note_that_says_which_edge_and_why(shift, words):
    val = Predictions(logits=np.eye(6), labels=(np.arange(6) + shift) % 6)
    card = scorecard(model(), val=val, only=["entropy"])
    assert any(words in note for note in card.notes)
    assert not any(
        "edge" in note or "temperature" in note
        for note in scorecard(model(), val=model(seed=2), only=["entropy"]).notes
    )


def test_scorecard__human_votes_and_crops():
    rng = np.random.default_rng(5)
    p = model(annotations=rng.integers(1, 9, size=(400, 6)))
    card = scorecard(p)
    assert card.value("human_alignment", "entropy") == metrics.human_alignment(measures.entropy(p), p.annotations)
    twins = np.where(np.arange(400) < 200, np.arange(400), np.arange(400) - 200)
    card = scorecard(model(groups={"twin": twins}))
    u = measures.entropy(p)
    assert card.value("crop_agreement", "entropy") == metrics.crop_agreement(u[:200], u[200:])


def test_scorecard__native_and_other_scores_are_measures():
    rng = np.random.default_rng(6)
    p = model(scores={"native": rng.random(400), "depth": rng.random(400)})
    wrong = p.logits[:, 0].argmax(1) != p.labels
    card = scorecard(p)
    assert card.value("auroc", "native") == metrics.auroc(p.scores["native"], wrong)
    assert card.value("auroc", "depth") == metrics.auroc(p.scores["depth"], wrong)
    for name in ("depth", "scores/depth"):
        alone = scorecard(p, only=(name,))
        assert {row["measure"] for row in alone.rows} == {None, "depth"}
        assert alone.value("auroc", "depth") == card.value("auroc", "depth")
    with pytest.raises(BadInput, match="'width'"):
        scorecard(p, only=("width",))


def test_scorecard__a_score_with_the_name_of_a_measure_is_told_from_it():
    p = model(scores={"entropy": np.random.default_rng(6).random(400)})
    wrong = p.logits[:, 0].argmax(1) != p.labels
    card = scorecard(p, only=("entropy", "scores/entropy"))
    assert card.value("auroc", "entropy") == metrics.auroc(measures.entropy(p), wrong)
    assert card.value("auroc", "scores/entropy") == metrics.auroc(p.scores["entropy"], wrong)
    assert measures.uncertainty("scores/entropy", p).tolist() == p.scores["entropy"].tolist()


def test_scorecard__bad_wishes():
    with pytest.raises(BadInput, match="no calibration named 'platt'"):
        scorecard(model(), calibration="platt")
    with pytest.raises(BadInput, match="classes"):
        scorecard(model(), val=model(c=5))
    with pytest.raises(BadInput, match="no measure named 'entropi'"):
        scorecard(model(), only=("entropi",))
    with pytest.raises(BadInput, match="out-of-distribution"):
        scorecard(model(in_distribution=np.zeros(400, bool)))


def test_scorecard__a_density_fitted_on_validation_sets_its_threshold_on_rows_it_has_not_seen():
    val, test = model(60, seed=2), model(400)
    card = scorecard(test, val=val, ood=model(50, seed=4).replace(labels=None), only=("gmm",))
    seen = metrics.threshold(measures.gmm(val)(val))
    assert metrics.in_as_in(measures.gmm(val)(test), seen) < 0.6  # the trap: it refuses what it should know
    assert card.value("in_as_in", "gmm") > 0.8
    cut = metrics.threshold(measures.gmm(val).leave_one_out(val))
    assert card.value("in_as_in", "gmm") == metrics.in_as_in(measures.gmm(val)(test), cut)


def test_scorecard__zero_probability_rows_are_in_the_reasons_too():
    card = scorecard(Predictions(labels=[0, 0, 1], probs=np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])))
    assert any(r["metric"] == "nll" and r["reason"].startswith("1 of 3 rows") for r in card.reasons)
    assert np.isfinite(card.value("nll"))


@pytest.mark.parametrize("name", ["test", "val", "ood_rows"])
def test_scorecard__out_domain_data_cannot_take_the_name_of_other_rows(name):
    with pytest.raises(BadInput, match=repr(name)):
        scorecard(model(), ood={name: model()})


def test_scorecard__paths_and_dicts_are_welcome(tmp_path):
    p = model()
    p.save(tmp_path / "p.npz")
    raw = {"labels": p.labels, "logits": p.logits}
    assert scorecard(tmp_path / "p.npz").value("nll") == scorecard(raw).value("nll") == scorecard(p).value("nll")
    assert np.isfinite(scorecard(raw, ood={"far": raw}).value("auroc", "entropy", "far"))


def test_scorecard__a_plug_in_that_gives_nan_becomes_a_reason(monkeypatch):
    from nescio.metrics._spec import Metric

    broken = Metric("broken", lambda u, wrong: float("nan"), ("ranking",), "higher", False)
    monkeypatch.setitem(metrics.registry._parts, "broken", broken)
    card = scorecard(model())
    assert all(np.isfinite(r["value"]) for r in card.rows)
    assert any(r["metric"] == "broken" and "not a number" in r["reason"] for r in card.reasons)


def test_scorecard__a_part_says_itself_how_a_scorecard_takes_it(monkeypatch):
    """Options of a fitted measure, a training loop, row blocks and class-wise metrics are facts of the parts' own."""
    from nescio.measures._spec import Measure
    from nescio.metrics._spec import Metric

    def far(reference, k=0):
        return lambda dump: dump.embeddings[:, 0] * (k - 300)

    def blocked(parts):
        return sum(len(labels) for _, labels in parts)

    def whole(probs, labels):
        raise AssertionError("it takes row blocks")

    fitted = Measure("far", far, "fitted", ("embeddings",), scorecard_options=lambda rows: {"k": rows})
    slow = Measure("slow", far, "tuned", ("embeddings",), trains=True)
    count = Metric("count", whole, ("predictions",), "neither", False, classwise=True, of_blocks=blocked)
    for registry, part in ((measures.registry, fitted), (measures.registry, slow), (metrics.registry, count)):
        monkeypatch.setitem(registry._parts, part.name, part)
    dump, val = model(), model(200, seed=2)
    card = scorecard(dump, val=val)
    wrong = dump.logits[:, 0].argmax(1) != dump.labels
    assert card.value("auroc", "far", "test") == metrics.auroc(-dump.embeddings[:, 0], wrong)  # k is 200 and not 0
    assert card.value("count") == len(dump)
    with pytest.raises(Undefined, match="train"):
        card.value("auroc", "slow")
    with pytest.raises(Undefined, match="count"):
        scorecard(dump, classwise=False).value("count")


def test_scorecard__a_small_validation_dump_serves_as_reference():
    card = scorecard(model(), val=model(12, seed=2), only=("knn_distance",))
    assert np.isfinite(card.value("in_as_in", "knn_distance"))


def test_scorecard__a_validation_dump_that_cannot_calibrate_costs_only_the_calibration():
    card = scorecard(model(), val=model(1, seed=2))
    assert np.isfinite(card.value("accuracy"))


def test_scorecard__a_measure_is_not_called_without_what_it_needs(monkeypatch):
    from nescio.measures import Measure, measure, uncertainty
    from nescio.measures import registry as known

    calls = []

    def mine(dump):
        calls.append(dump)
        return dump.annotations.sum(1)

    def fitted(reference):
        calls.append(reference)
        return lambda dump: dump.annotations.sum(1)

    monkeypatch.setattr(known, "_parts", dict(known._parts))
    known.add("mine", Measure("mine", mine, "plain", ("annotations",)))
    known.add("fit", Measure("fit", fitted, "fitted", ("annotations",)))
    labels = np.arange(40) % 4
    dump = Predictions(labels=labels, logits=np.random.default_rng(0).normal(size=(40, 4)))
    card = scorecard(dump, val=dump.take(np.arange(20)))
    reasons = {row["measure"]: row["reason"] for row in card.reasons if row["measure"]}
    assert reasons["mine"].startswith("mine needs annotations") and not calls
    assert reasons["fit"].startswith("fit needs annotations")
    with pytest.raises(Undefined, match="norm needs embeddings"):
        uncertainty("norm", dump)
    with pytest.raises(BadInput, match="cannot need 'pixels'"):
        measure("plain", needs=("pixels",))


def test_scorecard__a_calibration_in_doubt_says_so():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    dump = Predictions(labels=labels, logits=2 * np.eye(4)[labels] + rng.normal(size=(400, 4)))
    test, val = dump.take(np.arange(200)), dump.take(np.arange(200, 400))
    assert scorecard(test, val=val).calibration_warning is None
    few = scorecard(test, val=val.take(np.arange(20)))
    assert "only 20 " in few.calibration_warning and few.calibration_warning in few.notes
    assert "only 200 " in scorecard(test, val=val, calibration="vector").calibration_warning  # 8 parameters
    right = val.take(np.asarray(val.logits)[:, 0].argmax(1) == val.labels)
    assert scorecard(test, val=right).calibration_warning == calibration.temperature(right).note


def test_scorecard__a_first_look_with_validation_rows_imports_no_scipy(tmp_path):
    """Its import took longer than all numbers of a small file."""
    code = """
import sys
import numpy as np
from nescio import Predictions, scorecard
def dump(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 90)
    f = rng.normal(size=(90, 6)) + 2 * np.eye(3, 6)[labels]
    return Predictions(labels=labels, embeddings=f, logits=f[:, :3])
card = scorecard(dump(0), None, dump(1), {"far": dump(2)})
assert {"gaussian_mixture", "rmds", "vim"} <= {row["measure"] for row in card.rows}, card
assert card.value("temperature", split="val", calibrated=True) > 0
print([name for name in sys.modules if name.startswith("scipy")])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == "[]"


def test_scorecard__heavy_measures_of_large_dumps_are_asked_for(monkeypatch):
    monkeypatch.setattr("nescio.analysis.measure_scores.LARGE", 400 * 6 - 1)
    usual = scorecard(model())
    with pytest.raises(Undefined, match="large"):
        usual.value("auroc", "gen")
    (more,) = (block for block in short_story([usual]).sections[0].blocks if isinstance(block, Prose))
    assert "--all" in more.sentences[0]
    assert usual.value("auroc", "renyi") == scorecard(model(), slow=True).value("auroc", "renyi")
    wrong = model().logits[:, 0].argmax(1) != model().labels
    wanted = scorecard(model(), slow=True), scorecard(model(), only=["gen"]), scorecard(model(), train=model(300))
    for card in (*wanted, scorecard(model(399))):
        assert card.value("auroc", "gen") > 0.5
    assert scorecard(model(), slow=True).value("aurc", "pnorm") == metrics.aurc(measures.pnorm(model()), wrong)


def test_scorecard_gives_the_reason_of_scores_that_overflow(rng):
    labels = np.arange(60) % 3
    base = np.eye(3)[labels] + rng.normal(size=(60, 3))
    rows = {s: Predictions(labels=labels, logits=s * base, embeddings=rng.normal(size=(60, 5))) for s in (1.0, 1e300)}
    reasons = scorecard(rows[1.0], val=rows[1e300]).reasons
    assert {reason["measure"] for reason in reasons if "overflows" in reason["reason"]} == {"fdbd", "nnguide"}
