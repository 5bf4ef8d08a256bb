"""The ways to name predictions that evaluate, compare and threshold share."""

import json

import numpy as np
import pytest

from nescio.api.inputs import model_names
from nescio.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("inputs"), np.random.default_rng(0)
    labels = rng.integers(0, 4, 600)
    for name, noise in (("a", 1.0), ("b", 1.2)):
        logits = 3 * np.eye(4)[labels] + noise * rng.normal(size=(600, 4))
        np.savez(folder / f"{name}.npz", labels=labels, logits=logits)
        np.savez(folder / f"{name}-trainer.npz", label_ids=labels, predictions=logits)
        np.save(folder / f"{name}-logits.npy", logits)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        lines = [f"{y},{p.argmax()},{p.max():.17g}" for y, p in zip(labels, shares, strict=True)]
        (folder / f"{name}-top.csv").write_text("\n".join(["label,predicted,confidence", *lines]))
    np.save(folder / "labels.npy", labels)
    other = rng.integers(0, 4, 300)
    np.savez(folder / "val.npz", labels=other, logits=3 * np.eye(4)[other] + rng.normal(size=(300, 4)))
    return folder


@pytest.fixture
def ask(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)

    def run(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def numbers(out):
    """(metric, measure) → value of the first file's raw rows."""
    rows = json.loads(out)["files"][0]["rows"]
    return {(row["metric"], row["measure"]): row["value"] for row in rows if not row["calibrated"]}


def test_inputs__fields_under_other_names_and_in_files_of_their_own_are_the_same_predictions(ask):
    truth = numbers(ask("evaluate", "a.npz", "--format", "json")[1])
    for words in (
        ("a-trainer.npz", "--map", "logits=predictions,labels=label_ids"),
        ("--logits", "a-logits.npy", "--labels", "labels.npy"),
        ("logits:a-logits.npy,labels:labels.npy",),
        ("mine=logits:a-logits.npy,labels:labels.npy",),
    ):
        code, out, err = ask("evaluate", *words, "--format", "json")
        assert code == 0, err
        assert numbers(out) == pytest.approx(truth), words
    promise = json.loads(ask("threshold", "a.npz", "--risk", 0.1, "--format", "json")[1])
    again = json.loads(
        ask("threshold", "--logits", "a-logits.npy", "--labels", "labels.npy", "--risk", 0.1, "--format", "json")[1]
    )
    assert promise["threshold"] == again["threshold"] and promise["coverage"] == again["coverage"]


def test_inputs__torch_files_are_read(ask, folder):
    torch = pytest.importorskip("torch")
    arrays = dict(np.load(folder / "a.npz"))
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "a.pt")
    truth = numbers(ask("evaluate", "a.npz", "--format", "json")[1])
    assert numbers(ask("evaluate", "a.pt", "--format", "json")[1]) == pytest.approx(truth)


def test_inputs__answers_with_their_confidence_will_do(ask):
    truth = numbers(ask("evaluate", "a.npz", "--format", "json")[1])
    top = numbers(ask("evaluate", "a-top.csv", "--format", "json")[1])
    for cell in (("accuracy", None), ("ece", None), ("auroc", "msp"), ("aurc", "msp"), ("sac@0.95", "msp")):
        assert top[cell] == pytest.approx(truth[cell]), cell
    code, out, _ = ask("compare", "a-top.csv", "b-top.csv", "--format", "json", "--bootstrap", 200)
    whole = json.loads(ask("compare", "a.npz", "b.npz", "--format", "json", "--bootstrap", 200)[1])
    assert code == 0

    def intervals(said):
        return {(row["method"][0], row["metric"]): row["low"] for row in said["rows"] if row["metric"] == "auroc"}

    assert intervals(json.loads(out)) == pytest.approx(intervals(whole))
    code, out, _ = ask("threshold", "a-top.csv", "--risk", 0.1)
    assert code == 0 and "'msp' is at most" in out


def test_inputs__files_have_names(ask):
    said = json.loads(ask("evaluate", "small=a.npz", "large=b.npz", "--format", "json")[1])
    assert [one["file"] for one in said["files"]] == ["small", "large"]
    said = json.loads(ask("compare", "small=a.npz", "b.npz", "--format", "json", "--bootstrap", 100)[1])
    assert {row["method"] for row in said["rows"]} == {"small", "b"}


@pytest.mark.parametrize("command", ["evaluate", "compare", "threshold"])
def test_inputs__a_random_part_of_the_rows_is_stamped_on_the_output(ask, command):
    two = ("a.npz", "b.npz", "--bootstrap", 50)
    words = {"evaluate": ("a.npz",), "compare": two, "threshold": ("a.npz", "--risk", 0.1)}[command]
    stamp = "A random sample: 200 of 600 rows (seed 3)."
    code, out, _ = ask(command, *words, "--limit", 200, "--seed", 3)
    assert code == 0 and stamp in " ".join(out.split())
    code, out, _ = ask(command, *words, "--limit", 200, "--seed", 3, "--format", "json")
    assert stamp in out
    said = json.loads(out)
    n = said["n"] if command == "threshold" else said.get("files", [said])[0]["rows"][0]["n"]
    assert n == 200
    assert "A random part" not in ask(command, *words, "--limit", 600)[1]


def test_inputs__the_page_says_that_it_shows_a_part(ask, tmp_path):
    assert ask("evaluate", "a.npz", "--limit", 100, "--output", tmp_path)[0] == 0
    assert "A random sample: 100 of 600 rows (seed 0)." in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("evaluate", "a.npz", "--val", "a.npz"), "--val and a.npz contain the same rows"),
        (("evaluate", "a.npz", "--val", "copy.npz"), "--val and a.npz contain the same rows"),
        (("evaluate", "a.npz", "--ood", "far=copy.npz"), "--ood far and a.npz contain the same rows"),
        (("evaluate", "a.npz", "--train", "val.npz", "--val", "val.npz"), "--val and --train contain the same rows"),
        (("evaluate", "a.npz", "b=a.npz"), "contain the same predictions: give files of different models."),
        (("threshold", "a.npz", "--risk", "0.1", "--val", "copy.npz"), "--val and a.npz contain the same rows"),
        (("threshold", "a.npz", "--risk", "0.1", "--test", "a.npz"), "--test and a.npz contain the same rows"),
        (("compare", "a.npz", "copy.npz"), "contain the same predictions: give files of different models."),
        (("threshold", "a.npz", "b.npz", "--risk", "0.1"), "one FILE, and 2 are given"),
        (("evaluate", "a.npz", "--logits", "a-logits.npy"), "omit FILE"),
        (("evaluate", "a-trainer.npz", "--map", "logits"), "--map: 'logits'"),
        (("evaluate", "a-trainer.npz", "--map", "logit=predictions"), "'logit' is not a known field"),
        (("evaluate", "a-trainer.npz", "--map", "logits=preds"), "there is no 'preds'"),
        (("evaluate", "--logits", "none.npy", "--labels", "labels.npy"), "none.npy"),
        (("evaluate", "a.npz", "--limit", "0"), "at least 1"),
    ],
)
def test_inputs__what_cannot_be_meant_is_one_sentence(ask, folder, words, sentence):
    arrays = dict(np.load(folder / "a.npz"))
    order = np.random.default_rng(1).permutation(600)
    np.savez(folder / "copy.npz", **{name: array[order] for name, array in arrays.items()})
    code, out, err = ask(*words)
    assert code == 2 and out == "" and sentence in err and err.count("\n") == 1


def test_inputs__several_models_are_told_apart_by_a_paired_test_or_not_at_all(ask, folder):
    """One answer of 600 is no reason to name a winner."""
    arrays = dict(np.load(folder / "a.npz"))
    wrong = int(np.flatnonzero(arrays["logits"].argmax(1) != arrays["labels"])[0])
    arrays["logits"][wrong] = 9 * np.eye(4)[arrays["labels"][wrong]]
    np.savez(folder / "one-more.npz", **arrays)
    out = " ".join(ask("evaluate", "a.npz", "one-more.npz")[1].split())
    assert "no significant difference" in out and "Accuracy: best one-more.npz" in out and "alone in" not in out
    out = " ".join(ask("evaluate", "a.npz", "val.npz")[1].split())
    assert "No verdict" in out and "different labels" in out


def overlapping(folder, shared, name="overlap.npz"):
    """Validation rows of which the first so many are rows of a.npz, under other indices."""
    a, val = np.load(folder / "a.npz"), np.load(folder / "val.npz")
    arrays = {field: np.concatenate([val[field][shared:], a[field][:shared]]) for field in ("labels", "logits")}
    np.savez(folder / name, **arrays)
    return name


def test_inputs__a_few_rows_in_common_are_counted(ask, folder):
    val = overlapping(folder, 7)
    sentence = "--val and a.npz have 7 rows in common"
    notes = json.loads(ask("evaluate", "a.npz", "--val", val, "--format", "json")[1])["files"][0]["notes"]
    assert any(sentence in note for note in notes)
    assert sentence in ask("evaluate", "a.npz", "--val", val)[1]
    assert sentence in ask("threshold", "a.npz", "--risk", 0.1, "--val", val)[1]
    assert "in common" not in ask("threshold", "a.npz", "--risk", 0.1, "--val", "val.npz")[1]


@pytest.mark.parametrize("words", [("evaluate", "a.npz", "--val"), ("threshold", "a.npz", "--risk", 0.1, "--test")])
def test_inputs__many_rows_in_common_are_refused(ask, folder, words):
    code, _, err = ask(*words, overlapping(folder, 150, "half.npz"))
    assert code == 2 and "have 150 rows in common" in err and err.count("\n") == 1


def test_inputs__rounded_rows_that_are_equal_by_chance_are_no_overlap(ask, folder):
    rng = np.random.default_rng(5)
    for name in ("round-a.npz", "round-b.npz"):
        p = rng.random(200).round(2)
        np.savez(folder / name, labels=rng.integers(0, 2, 200), probs=np.stack([1 - p, p], 1))
    code, out, _ = ask("evaluate", "round-a.npz", "--val", "round-b.npz")
    assert code == 0 and "in common" not in out


def test_model_names__a_model_of_the_store_keeps_the_tag_of_its_weights():
    assert model_names(["zoo:resnet50.a1_in1k", "b.npz"]) == ["zoo:resnet50.a1_in1k", "b"]


@pytest.mark.parametrize("threads", ["abc", "-1", "1e3", "2.0", "٣"])
def test_inputs__a_number_of_threads_that_is_none_is_a_sentence(ask, monkeypatch, threads):
    monkeypatch.setenv("NESCIO_THREADS", threads)
    code, _, said = ask("evaluate", "a.npz")
    assert code == 2 and f"NESCIO_THREADS is {threads!r}: " in said
