"""A scorecard over shards holds the numbers of the whole dump's, and says what it leaves out."""

import json

import numpy as np
import pytest

from nescio.analysis.scorecard import scorecard
from nescio.analysis.shard_scores import ALL_ROWS, FITTED, scorecard_of_shards
from nescio.api import inputs
from nescio.cli import main
from nescio.errors import BadInput
from nescio.metrics import _score_counts
from nescio.predictions import Predictions

ADDED_UP = {"rtol": 1e-12}  # sums of floats in another order; counts are exact
LEFT_OUT = {"mcb", "dsc", "unc", "classwise_ece", "classwise_mcb", "top_k_mcb@5"}
MIXTURES = {"scod_aurc", "scod_augrc", "scod_cost@0.1", "scod_cost@0.3"}


def dump(n=900, seed=0, draws=1, **more):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 7, n)
    logits = rng.normal(size=(n, draws, 7))
    logits[np.arange(n), :, labels] += 1.5
    scores = {"native": rng.normal(size=n), "logdet": rng.normal(size=n)}
    return Predictions(labels=labels, logits=logits.astype(np.float16), scores=scores, index=np.arange(n), **more)


def shards(whole, size):
    return [whole.take(slice(start, start + size)) for start in range(0, len(whole), size)]


def values(card):
    return {(row["measure"], row["metric"], row["split"]): (row["value"], row["n"]) for row in card.rows}


@pytest.mark.parametrize(("draws", "size"), [(1, 100), (3, 250), (1, 899)])
def test_scorecard_of_shards__the_numbers_are_those_of_the_whole_dump(draws, size):
    test, far = dump(draws=draws), dump(300, 1, draws)
    outside = Predictions(logits=far.logits, scores=far.scores, in_distribution=False)
    whole = values(scorecard(test, ood={"far": outside}))
    made = values(scorecard_of_shards(shards(test, size), {"far": shards(outside, size)}))
    assert {metric for _, metric, _ in whole.keys() - made.keys()} == LEFT_OUT | MIXTURES
    assert not made.keys() - whole.keys() and len(made) > 100
    for key, (value, n) in made.items():
        assert n == whole[key][1], key
        if key[0] is None:
            np.testing.assert_allclose(value, whole[key][0], err_msg=str(key), **ADDED_UP)
        else:
            assert value == whole[key][0], key


def test_scorecard_of_shards__rows_that_were_not_in_training_are_detected_though_a_shard_has_only_such():
    in_distribution = np.arange(900) >= 300
    test = dump(in_distribution=in_distribution)
    whole, made = (values(card) for card in (scorecard(test), scorecard_of_shards(shards(test, 100))))
    assert made["msp", "auroc", "ood_rows"] == whole["msp", "auroc", "ood_rows"]
    assert made["entropy", "augrc", "test"] == whole["entropy", "augrc", "test"]
    np.testing.assert_allclose(made[None, "nll", "test"], whole[None, "nll", "test"], **ADDED_UP)
    with pytest.raises(BadInput, match="out-of-distribution"):
        scorecard_of_shards([test.take(slice(0, 300))])


def test_scorecard_of_shards__what_is_left_out_has_its_reason_and_what_is_rounded_its_bound(monkeypatch):
    monkeypatch.setattr(_score_counts, "MAX_SCORES", 64)
    test = dump()
    card, whole = scorecard_of_shards(shards(test, 300)), values(scorecard(test))
    reasons = {(row["measure"], row["metric"]): row["reason"] for row in card.reasons}
    assert reasons[None, "mcb"] == ALL_ROWS and reasons["mahalanobis", None] == FITTED
    (note,) = card.notes
    bound = float(note.split()[-1].rstrip("."))
    for (measure, metric, split), (value, _) in values(card).items():
        if metric in ("auroc", "aurc", "augrc"):
            assert abs(value - whole[measure, metric, split][0]) <= 1.05 * bound


def test_scorecard_of_shards__a_measure_that_one_shard_lacks_is_lost_alone():
    parts = shards(dump(), 300)
    parts[1] = parts[1].replace(scores={"native": parts[1].scores["native"]})
    made = values(scorecard_of_shards(parts))
    assert ("native", "auroc", "test") in made and ("logdet", "auroc", "test") not in made


# ---- the command


@pytest.fixture
def folder(tmp_path):
    for number, shard in enumerate(shards(dump(), 200)):
        shard.save(tmp_path / "shards" / f"{number}.npz")
    dump().save(tmp_path / "whole.npz")
    return tmp_path


def told(capsys, *words):
    assert main(["evaluate", *map(str, words), "--format", "json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    return file


def test_evaluate__a_folder_of_shards_is_evaluated_as_one_file(folder, capsys):
    assert told(capsys, folder / "shards")["rows"] == told(capsys, folder / "whole.npz")["rows"]


def test_evaluate__a_large_folder_is_read_shard_by_shard(folder, capsys, monkeypatch):
    whole = told(capsys, folder / "whole.npz")["rows"]
    monkeypatch.setattr(inputs, "AT_ONCE", 0)
    rows = told(capsys, folder / "shards", "--ood", f"far={folder / 'whole.npz'}")["rows"]
    wanted = {(row["measure"], row["metric"]): row["value"] for row in whole}
    inside = [row for row in rows if row["split"] == "test"]
    for row in inside:
        assert row["value"] == pytest.approx(wanted[row["measure"], row["metric"]], rel=1e-12)
    assert len(inside) > 50 and any(row["split"] == "far" for row in rows)
    assert main(["evaluate", str(folder / "shards")]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["evaluate", str(folder / "shards"), "--val", str(folder / "whole.npz")]) == 2
    assert "--val" in capsys.readouterr().err
