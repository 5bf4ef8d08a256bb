"""`nescio evaluate` with a choice of score, mixtures and groups of out-of-distribution sets."""

import json

import pytest

from nescio import Predictions
from nescio.analysis.sample import sample_predictions
from nescio.cli import main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Logits and labels alone, so that few measures apply."""
    folder = tmp_path_factory.mktemp("sample")
    for name, dump in sample_predictions(0).items():
        unknown = name == "unknown"
        light = Predictions(index=dump.index, labels=None if unknown else dump.labels, logits=dump.logits)
        light.save(folder / f"{name}.npz")
    half = Predictions.load(folder / "unknown.npz", ood=True)
    half.take(slice(0, None, 2)).save(folder / "even.npz")
    half.take(slice(1, None, 2)).save(folder / "odd.npz")
    return folder


def evaluated(capsys, *words):
    code = main(["evaluate", *map(str, words), "--format", "json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    return json.loads(out.out)["files"][0]


@pytest.mark.parametrize("commas", [False, True])
def test_evaluate__groups_of_sets_get_their_means(files, capsys, commas):
    sets = f"near:a={files / 'even.npz'}", f"near:b={files / 'odd.npz'}"
    given = ["--ood", ",".join(sets)] if commas else ["--ood", sets[0], "--ood", sets[1]]
    rows = evaluated(capsys, files / "test.npz", *given, "--ood-share", "0.2")["rows"]

    def value(split, metric):
        return next(row for row in rows if (row["split"], row["metric"], row["measure"]) == (split, metric, "msp"))

    for metric in ("auroc", "aupr", "scod_aurc", "scod_augrc", "scod_cost@0.1"):
        a, b, mean = (value(split, metric) for split in ("near:a", "near:b", "near"))
        assert mean["value"] == pytest.approx((a["value"] + b["value"]) / 2) and a["value"] != b["value"]
        assert mean["averaged"] == "near:a, near:b"
    assert value("near:a", "scod_aurc")["ood_share"] == 0.2


def test_evaluate__a_set_must_not_have_the_name_of_a_group(files, capsys):
    words = ["--ood", f"near:a={files / 'even.npz'}", "--ood", f"near={files / 'odd.npz'}"]
    assert main(["evaluate", str(files / "test.npz"), *words]) == 2
    assert "cannot be named 'near'" in capsys.readouterr().err


def test_evaluate__the_share_changes_mixtures_alone(files, capsys):
    word = f"unknown={files / 'unknown.npz'}"
    few, many = (
        {
            (row["measure"], row["metric"], row["split"]): row["value"]
            for row in evaluated(capsys, files / "test.npz", "--ood", word, "--ood-share", share)["rows"]
        }
        for share in ("0.1", "0.9")
    )
    changed = {metric for (measure, metric, split), value in few.items() if value != many[measure, metric, split]}
    assert changed == {"scod_aurc", "scod_augrc", "scod_cost@0.1", "scod_cost@0.3"}
    assert few["msp", "scod_augrc", "unknown"] < many["msp", "scod_augrc", "unknown"]
    assert few["msp", "auroc", "unknown"] == many["msp", "auroc", "unknown"]


def test_evaluate__intervals_of_mixtures(files, capsys):
    word = f"unknown={files / 'unknown.npz'}"
    rows = evaluated(capsys, files / "test.npz", "--ood", word, "--bootstrap", "40")["rows"]
    mixed = [row for row in rows if row["metric"].startswith("scod_") and row["measure"] == "msp"]
    assert len(mixed) == 4 and all(row["low"] < row["value"] < row["high"] for row in mixed)


def test_evaluate__a_choice_in_json_and_in_words(files, capsys):
    words = [files / "test.npz", "--val", files / "val.npz", "--ood", f"unknown={files / 'odd.npz'}"]
    (mistakes,) = evaluated(capsys, *words, "--choose", "mistakes")["choices"]
    assert mistakes["folds"] == 0 and mistakes["baseline"] == "msp" and mistakes["low"] < mistakes["value"]
    (nested,) = evaluated(capsys, *words, "--choose", "unknown")["choices"]
    assert nested["folds"] == 25 and not nested["ood_validation"]
    chosen = ["--val-ood", f"other={files / 'even.npz'}"]
    (marked,) = evaluated(capsys, *words, *chosen, "--choose", "unknown")["choices"]
    assert marked["folds"] == 0 and marked["ood_validation"]
    assert main(["evaluate", *map(str, words), "--choose", "both"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Score for misclassification and OOD detection: `" in said
    assert "the baseline `msp`" in said and "uncertainty score: misclassification and OOD" in said


def test_evaluate__options_of_a_choice_need_one(files, capsys):
    assert main(["evaluate", str(files / "test.npz"), "--ood-tuned", "msp"]) == 2
    assert "give --choose" in capsys.readouterr().err
    assert main(["evaluate", str(files / "test.npz"), "--ood-share", "1"]) == 2
    assert "--ood-share" in capsys.readouterr().err
    assert main(["evaluate", str(files / "test.npz"), "--choose", "unknown"]) == 2
    assert "give --ood" in capsys.readouterr().err
