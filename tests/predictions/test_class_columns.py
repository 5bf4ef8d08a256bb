"""A refusal of a file ends with the option that reads it; files that say enough are read."""

import json
import re
import shlex

import numpy as np
import pytest

from nescio.analysis.scorecard import scorecard
from nescio.cli import main
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions
from nescio.predictions.names import proposed_map

N, NAMES = 60, ("abyssinian", "beagle", "cat")
LABELS = np.arange(N) % 3
LOGITS = np.random.default_rng(0).normal(size=(N, 3)) + 2 * np.eye(3)[LABELS]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def csv(name, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    with open(name, "w") as file:
        file.write("\n".join(lines) + "\n")


def by_class(prefix="", table=PROBS, **others):
    return {**{f"{prefix}{name}": table[:, at] for at, name in enumerate(NAMES)}, **others}


def refusal(capsys, *words):
    assert main([*words]) == 2
    return capsys.readouterr().err


def accepted(capsys, *words):
    assert main([*words, "--format", "json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def option_of(sentence, flag):
    """The words from an option to the end of the command that a sentence names."""
    return shlex.split(re.search(rf"{flag} [^();]*", sentence)[0].strip().rstrip("."))


@pytest.mark.parametrize(
    "arrays",
    [{"predictions": LOGITS, "label_ids": LABELS}, {"softmax": PROBS, "y_true": LABELS, "filename": LABELS * 0}],
)
def test_class_columns__the_map_that_is_named_reads_the_file(arrays, capsys):
    arrays |= {"filename": np.array([f"{row}.jpg" for row in range(N)])} if "filename" in arrays else {}
    np.savez("a.npz", **arrays)
    proposed = re.search(r"map (\S+?)[.:]", refusal(capsys, "evaluate", "a.npz"))[1]
    rows = accepted(capsys, "evaluate", "a.npz", "--map", proposed)["files"][0]["rows"]
    assert any(row["metric"] == "accuracy" for row in rows)


def test_proposed_map__proposed_maps():
    assert proposed_map(["predictions", "label_ids"]) == "logits=predictions,labels=label_ids"
    assert proposed_map(["p_0", "p_1", "target"]) == "probs=p,labels=target"
    assert proposed_map(["logits", "target", "a b"]) == "logits=logits,labels=target"
    assert proposed_map(["entirely", "foreign"]) == ""


def test_class_columns__two_arrays_are_told_apart(capsys):
    np.save("y score.npy", PROBS)
    np.save("y_true.npy", LABELS)
    np.save("z.npy", LOGITS)
    cure = option_of(refusal(capsys, "evaluate", "y score.npy", "y_true.npy"), "--probs")
    assert cure == ["--probs", "y score.npy", "--labels", "y_true.npy"]
    accepted(capsys, "evaluate", *cure)
    assert option_of(refusal(capsys, "evaluate", "z.npy"), "--logits") == [
        "--logits",
        "z.npy",
        "--labels",
        "LABELS.npy",
    ]
    assert "--logits LOGITS.npy --labels y_true.npy" in refusal(capsys, "evaluate", "y_true.npy")


def test_class_columns__fitted_measures_are_known_in_any_case(capsys):
    embeddings = np.random.default_rng(1).normal(size=(N, 4)) + np.eye(3, 4)[LABELS]
    for name in ("a.npz", "train.npz"):
        np.savez(name, logits=LOGITS, labels=LABELS, embeddings=embeddings + len(name))
    words = ["threshold", "a.npz", "--risk", "0.9", "--measure", "KNN"]
    assert "--train FILE --save-measure knn.safetensors" in refusal(capsys, *words)
    assert accepted(capsys, *words, "--train", "train.npz", "--save-measure", "knn.safetensors")["measure"] == "knn"
    assert "omit --train" in refusal(capsys, *words[:-1], "MSP", "--train", "train.npz")


def test_predictions__percentages_of_confidence_say_what_to_divide_by():
    with pytest.raises(BadInput, match="divide percentages by 100"):
        Predictions(labels=LABELS, predicted=PROBS.argmax(1), confidence=100 * PROBS.max(1))
    with pytest.raises(BadInput) as no:
        Predictions(labels=LABELS, predicted=PROBS.argmax(1), confidence=PROBS.max(1) - 1)
    assert "100" not in str(no.value)


def test_class_columns__unknown_images_need_no_labels_though_the_map_names_them(capsys):
    np.savez("test.npz", predictions=LOGITS, label_ids=LABELS)
    np.savez("ood.npz", predictions=LOGITS[::-1] + 0.1)
    words = ["evaluate", "test.npz", "--map", "logits=predictions,labels=label_ids"]
    rows = accepted(capsys, *words, "--ood", "u=ood.npz")["files"][0]["rows"]
    assert any("u" in str(row["split"]) for row in rows)
    assert "label_ids" in refusal(capsys, *words, "--val", "ood.npz")
    np.savez("other.npz", outputs=LOGITS)
    assert "predictions" in refusal(capsys, *words, "--ood", "u=other.npz")


@pytest.mark.parametrize("prefix", ["", "prob_", "p_", "score_"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions__columns_named_by_classes_are_read(prefix, ending):
    table = by_class(prefix, label=np.array(NAMES)[LABELS])
    if ending == "csv":
        csv("a.csv", table)
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(table), "a.parquet")
    dump = Predictions.load(f"a.{ending}")
    np.testing.assert_allclose(np.exp(dump.logits[:, 0]), PROBS, atol=1e-6)
    assert dump.normalized and dump.class_names == NAMES
    np.testing.assert_array_equal(dump.labels, LABELS)


def test_predictions__the_order_of_the_columns_is_that_of_the_classes():
    order = [2, 0, 1]
    csv("a.csv", {"label": np.array(NAMES)[LABELS], **{NAMES[at]: LOGITS[:, at] for at in order}})
    dump = Predictions.load("a.csv")
    assert dump.class_names == ("cat", "abyssinian", "beagle") and not dump.normalized
    np.testing.assert_allclose(dump.logits[:, 0], LOGITS[:, order])
    np.testing.assert_array_equal(np.array(dump.class_names)[dump.labels], np.array(NAMES)[LABELS])


def test_predictions__a_class_without_rows_and_columns_that_are_none():
    csv("a.csv", by_class(true=np.array(NAMES)[LABELS % 2], place=np.arange(N) * 7.5))
    with pytest.raises(BadInput, match="prob_NAME"):
        Predictions.load("a.csv", names={"labels": "true"})
    for name, table in {
        "b": by_class("prob_", label=np.array(NAMES)[LABELS % 2]),
        "c": by_class(label=np.array(NAMES)[LABELS % 2], place=[f"{row}.jpg" for row in range(N)]),
        "d": by_class(label=np.array(NAMES)[LABELS], place=np.arange(N) * 7.5),
    }.items():
        csv(f"{name}.csv", table)
        assert Predictions.load(f"{name}.csv", names={"labels": "label"}).class_names == NAMES, name


def test_predictions__columns_named_by_numbers():
    csv("a.csv", {"label": LABELS, **{f"p_{at}": PROBS[:, at] for at in (1, 0, 2)}})
    dump = Predictions.load("a.csv")
    np.testing.assert_allclose(np.exp(dump.logits[:, 0]), PROBS)
    np.testing.assert_array_equal(dump.labels, LABELS)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [(100 * PROBS, "divide percentages by 100"), (PROBS**2, r"prob_abyssinian …, or logit_abyssinian")],
)
def test_predictions__ambiguous_columns_are_refused(table, sentence):
    csv("a.csv", by_class("", table, label=np.array(NAMES)[LABELS]))
    with pytest.raises(BadInput, match=sentence):
        Predictions.load("a.csv")


def test_class_columns__nothing_to_evaluate_is_no_success(capsys):
    np.savez("a.npz", labels=LABELS, outputs=LOGITS)
    assert "--map logits=" in refusal(capsys, "evaluate", "a.npz", "--map", "labels=labels")


def test_predictions__a_tuple_of_tensors(capsys):
    torch = pytest.importorskip("torch")
    torch.save((torch.zeros(3, 2), torch.zeros(3)), "a.pt")
    with pytest.raises(BadInput, match=r"tuple of 2 .*torch\.save\(\{'logits'"):
        Predictions.load("a.pt")


@pytest.mark.parametrize(
    ("words", "cure"),
    [(["train", "erm"], "--method erm"), (["help"], "nescio --help"), (["help", "train"], "nescio train --help")],
)
def test_class_columns__a_word_too_many_has_its_option(words, cure, capsys):
    pytest.importorskip("torch")
    assert cure in refusal(capsys, *words)


def test_class_columns__an_unknown_part_may_come_with_a_plug_in(capsys):
    pytest.importorskip("torch")
    assert "--plugin FILE.py" in refusal(capsys, "train", "--method", "my-own")


def test_threshold__what_is_not_attainable_names_what_is(capsys):
    np.savez(
        "a.npz", logits=np.tile(LOGITS, (4, 1)) + np.arange(720).reshape(240, 3) % 7 / 100, labels=np.tile(LABELS, 4)
    )
    assert main(["threshold", "a.npz", "--risk", "0.01"]) == 1
    cure = option_of(capsys.readouterr().err.rpartition("threshold with")[2].partition(" or ")[0], "--risk")
    assert float(cure[1]) > 0.01
    accepted(capsys, "threshold", "a.npz", *cure)


def test_predictions_take_named_fields():
    with pytest.raises(BadInput, match="logits=…, labels=…"):
        Predictions(LOGITS, LABELS)


def test_scorecard__a_value_of_a_scorecard_has_the_names_of_the_field():
    card = scorecard(Predictions(logits=LOGITS, labels=LABELS))
    assert card.value("Acc") == card.value("accuracy")
    assert card.value("AUROC", "MSP") == card.value("auroc", "msp")
    assert card.value("FPR95", "msp") == card.value("fpr_at_tpr@0.95", "msp")
    with pytest.raises(BadInput, match="Did you mean 'accuracy'"):
        card.value("acuracy")
    with pytest.raises(Undefined, match="There are: accuracy"):
        card.value("auroc")
