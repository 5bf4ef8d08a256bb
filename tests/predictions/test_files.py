"""What cannot be used is refused in one sentence: what is wrong, where, what to do."""

import os
import re

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, join, measures, metrics, stack
from tests.support.malformed import LABELS, LOGITS, MALFORMED, PROBS, N, changed, pickled_folder

GOOD = Predictions(labels=LABELS, logits=LOGITS, embeddings=LOGITS)
U = np.arange(6.0)
WRONG = np.array([0, 1, 0, 1, 0, 1], bool)
TEXT = Predictions(labels=LABELS, logits=LOGITS, index=list("abcdef"))
FLAT = Predictions(labels=LABELS, logits=LOGITS, embeddings=changed(LOGITS, 2, 0))
BARE = Predictions(labels=LABELS)
DRAWS = Predictions(logits=np.stack([LOGITS, LOGITS], 1))


def sentence(no):
    text = str(no)
    assert text and "\n" not in text and text.endswith("."), text
    return text


def one_sentence(no):
    text = sentence(no)
    assert not re.search(r"[.?!] [A-Z]", text), f"more than one sentence: {text}"
    return text


def test_files__there_are_enough_kinds_and_every_one_has_its_own_name():
    names = [name for name, _, _ in MALFORMED]
    assert len(names) == len(set(names)) >= 60


@pytest.mark.parametrize(("build", "pattern"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_files(tmp_path, build, pattern):
    path = build(tmp_path)
    with pytest.raises(BadInput) as no:
        Predictions.load(path)
    text = one_sentence(no.value)
    assert text.startswith(f"{path}: ")
    assert re.search(pattern, text.removeprefix(f"{path.parent}{os.sep}")), text


class Trap:
    """Would leave a file behind if anything unpickled it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("as_folder", [False, True])
def test_files__no_pickle_is_ever_loaded(tmp_path, as_folder):
    sprung = tmp_path / "sprung"
    trap = [Trap(sprung)] * N
    if as_folder:
        path = GOOD.save(tmp_path / "dump")
        pickled_folder(path, trap)
    else:
        path = tmp_path / "preds.npz"
        np.savez(path, labels=np.array(trap, object))
    with pytest.raises(BadInput, match=r"labels.* Python objects, .* pickle"):
        Predictions.load(path)
    assert not sprung.exists()


PREDICTIONS = [
    ("ragged rows", lambda: Predictions(logits=[[1, 2], [3]]), "of different lengths"),
    (
        "objects",
        lambda: Predictions(logits=np.array([[1, None]], object)),
        r"logits must be numbers, got Python objects",
    ),
    ("text", lambda: Predictions(logits=[["a", "b"]]), r"logits .*numbers, got text"),
    ("scores not named", lambda: Predictions(scores=[1, 2, 3]), "be a mapping"),
    ("name not printable", lambda: Predictions(scores={"a\nb": [1]}), r"scores.*name 'a\\nb'"),
    ("name not text", lambda: Predictions(scores={3: [1]}), r"scores.*name 3"),
    ("group of objects", lambda: Predictions(groups={"g": [None, 1]}), r"groups/g has shape \(2,\) of Python objects"),
    ("NaN group", lambda: Predictions(groups={"g": [1.0, np.nan]}), r"groups/g.*.*finite.*row 1"),
    ("huge label", lambda: Predictions(labels=np.array([1 << 63], np.uint64)), r"labels contains 9223372036854775808"),
    ("dict given twice", lambda: Predictions.load({"scores": {"a": [1]}, "scores/a": [2]}), r"scores/.*is given twice"),
    ("dict of nothing", lambda: Predictions.load({}), r"The predictions are empty"),
    ("a number as a file", lambda: Predictions.load(3), "read from int"),
    ("replace by bad probs", lambda: GOOD.replace(probs=2 * PROBS), "sum to one"),
    ("select no such row", lambda: GOOD.select([0, 77]), r"index.*row 77: 1 of the 2"),
    ("select by text", lambda: GOOD.select(["a"]), r"One.*other numbers"),
    ("select nothing", lambda: GOOD.select([]), r"No keys are given"),
    ("take no such row", lambda: GOOD.take([6]), r"There is no row 6: there are 6 rows"),
    ("take a row twice", lambda: GOOD.take([1, 1]), r"index contains 1 more than once"),
    ("take nothing", lambda: GOOD.take(np.zeros(6, bool)), r"There are no rows"),
    ("take by a short mask", lambda: GOOD.take([True]), r"The mask has shape \(1,\), there are 6 rows"),
    ("take by fractions", lambda: GOOD.take([0.5]), r"rows has dtype float64"),
    ("stack nothing", lambda: stack([]), r"There.*nothing to stack"),
    ("stack without logits", lambda: stack([GOOD, BARE]), r"Member 1 has no logits"),
    ("stack other classes", lambda: stack([GOOD, Predictions(logits=np.eye(6))]), r"Member 1 has 6 classes"),
    ("stack other rows", lambda: stack([GOOD, GOOD.take(slice(5))]), r"Member 1.*member 0"),
    ("stack other keys", lambda: stack([GOOD, TEXT]), r"One index is text"),
    ("stack other labels", lambda: stack([GOOD, GOOD.replace(labels=LABELS[::-1])]), r"Member 1 has other labels"),
    ("stack without labels", lambda: stack([GOOD, GOOD.replace(labels=None)]), r"Member 1 has other labels"),
    (
        "stack other in_distribution",
        lambda: stack([GOOD, GOOD.replace(in_distribution=False)]),
        r"Member 1 has other in_distribution",
    ),
    ("stack logs on logits", lambda: stack([GOOD, GOOD.replace(probs=PROBS)]), r"Some.*members .*logits"),
    ("join nothing", lambda: join(), r"There.*nothing to join"),
    ("join strangers", lambda: join(GOOD, GOOD.replace(index=U + 10)), r"The.*common"),
    ("join other keys", lambda: join(GOOD, TEXT), r"One index is text"),
]
SAVES = [
    ("draws in a csv", DRAWS, "a.csv", r"a \..*csv.* 2 draws: save a folder, \.npz or \.safetensors"),
    ("draws in a parquet", DRAWS, "a.parquet", r"a \..*parquet.* 2 draws"),
    ("members in a csv", stack([GOOD]), "a.csv", r"a \..*table cannot"),
    ("text in safetensors", TEXT, "a.safetensors", r"index is text, which \.safetensors"),
    ("numbers as text in a csv", TEXT.replace(index=list("123456")), "a.csv", "text that looks"),
    ("unknown suffix", GOOD, "a.mat", r"\.mat: use a folder"),
    ("a folder over a file", GOOD, "file", "of that name"),
    ("a folder over other things", GOOD, "busy", "than predictions"),
    ("below a file", GOOD, "file/a.npz", r"cannot be written: (File exists|Not a directory)"),
]


@pytest.mark.parametrize(("call", "pattern"), [case[1:] for case in PREDICTIONS], ids=[case[0] for case in PREDICTIONS])
def test_files__predictions(call, pattern):
    with pytest.raises(BadInput) as no:
        call()
    assert re.search(pattern, one_sentence(no.value)), no.value


@pytest.mark.parametrize(("held", "name", "pattern"), [case[1:] for case in SAVES], ids=[case[0] for case in SAVES])
def test_files__saves(tmp_path, held, name, pattern):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput) as no:
        held.save(tmp_path / name)
    text = one_sentence(no.value)
    assert text.startswith(str(tmp_path / name)) and re.search(pattern, text), text
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["busy", "file"]
    assert (tmp_path / "file").read_text() == (tmp_path / "busy" / "thesis.txt").read_text() == "mine"


RANKING = ["auroc", "aupr", "fpr_at_tpr", "gamma", "risk_coverage", "aurc", "e_aurc", "augrc", "aulc", "raulc"]
ANSWERS = ["accuracy", "nll", "brier", "ece", "classwise_ece"]


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize(
    ("u", "wrong", "pattern"),
    [
        (changed(U, 3, np.nan), WRONG, r"u .*row 3|nan"),
        (changed(U, 3, np.inf), WRONG, r"u .*row 3|inf"),
        (U[:5], WRONG, r"5 .*6|6 .*5"),
        (U[:0], WRONG[:0], r"empty|no rows"),
        (U[:, None], WRONG, r"shape"),
        (U, WRONG + 0.5, r"truth|True|0 and 1"),
        (np.array(list("abcdef")), WRONG, r"number"),
    ],
    ids=["NaN", "infinite", "short", "empty", "matrix", "truth by degrees", "text"],
)
def test_files__ranking_metrics(name, u, wrong, pattern):
    with pytest.raises(BadInput) as no:
        getattr(metrics, name)(u, wrong)
    assert re.search(pattern, sentence(no.value)), no.value


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("probs", "labels", "pattern"),
    [
        (PROBS[:5], LABELS, r"labels has 6 rows, probs has 5"),
        (PROBS, LABELS + 1, r"labels contains 3"),
        (PROBS, LABELS - 1, r"labels contains -1"),
        (PROBS, LABELS + 0.5, r"labels"),
        (changed(PROBS, (2, 0), np.nan), LABELS, r"probs .*row 2"),
        (PROBS - changed(np.zeros((6, 3)), (0, 1), 1), LABELS, r"probs .*negative.*row 0"),
        (2 * PROBS, LABELS, "sum to one"),
        (PROBS[:, 0], LABELS, r"probs has shape \(6,\)"),
        (PROBS[:0], LABELS[:0], r"no rows"),
        (np.ones((6, 1)), np.zeros(6, int), r"one class only"),
    ],
    ids=["short", "high", "low", "half", "NaN", "negative", "sum", "flat", "empty", "one class"],
)
def test_files__answer_metrics(name, probs, labels, pattern):
    with pytest.raises(BadInput) as no:
        getattr(metrics, name)(probs, labels)
    assert re.search(pattern, sentence(no.value)), no.value


OTHERS = [
    ("unknown metric", BadInput, lambda: metrics.registry["aurok"], r"no metric named 'aurok'.*'auroc'"),
    ("unknown measure", BadInput, lambda: measures.registry["entropi"], r"no measure named 'entropi'.*'entropy'"),
    ("top 0", BadInput, lambda: metrics.accuracy(PROBS, LABELS, k=0), r"k is 0"),
    ("top 1.5", BadInput, lambda: metrics.accuracy(PROBS, LABELS, k=1.5), r"k is 1\.5"),
    ("top of too many", Undefined, lambda: metrics.accuracy(PROBS, LABELS, k=4), r"3 classes"),
    ("no bins", BadInput, lambda: metrics.ece(PROBS, LABELS, bins=0), r"bins is 0"),
    ("unknown bins", BadInput, lambda: metrics.ece(PROBS, LABELS, scheme="depth"), r"scheme is 'depth'"),
    ("TPR above one", BadInput, lambda: metrics.fpr_at_tpr(U, WRONG, tpr=1.5), r"tpr is 1\.5"),
    ("accuracy above one", BadInput, lambda: metrics.sac(U, WRONG, accuracy=2), r"accuracy is 2"),
    ("no coverage", BadInput, lambda: metrics.selective_risk(U, WRONG, coverage=0), r"coverage is 0"),
    ("no coverages", BadInput, lambda: metrics.aurc_over(U, WRONG, coverages=()), r"coverages is empty"),
    ("level above one", BadInput, lambda: metrics.threshold(U, level=95), r"level is 95"),
    ("threshold of NaN", BadInput, lambda: metrics.threshold(changed(U, 1, np.nan)), r"row 1"),
    ("NaN threshold", BadInput, lambda: metrics.in_as_in(U, np.nan), r"threshold is nan"),
    ("all out", Undefined, lambda: metrics.auroc(U, np.ones(6, bool)), "rows are positive"),
    ("none out", Undefined, lambda: metrics.auroc(U, np.zeros(6, bool)), "rows are negative"),
    ("no positive", Undefined, lambda: metrics.aupr(U, np.zeros(6, bool)), r"no positive row"),
    ("one class of FPR", Undefined, lambda: metrics.fpr_at_tpr(U, np.ones(6, bool)), "rows are positive"),
    ("gamma of a constant", Undefined, lambda: metrics.gamma(np.ones(6), WRONG), "differs in u"),
    ("all right", Undefined, lambda: metrics.raulc(U, np.zeros(6, bool)), "predictions are right"),
    ("all wrong", Undefined, lambda: metrics.raulc(U, np.ones(6, bool)), "predictions are wrong"),
    ("no right answer", Undefined, lambda: metrics.aulc(U, np.ones(6, bool)), "prediction is right"),
    ("constant ranks", Undefined, lambda: metrics.kendall(U, np.ones(6)), "in every row"),
    ("constant correlation", Undefined, lambda: metrics.spearman(np.ones(6), U), "in every row"),
    ("pairs of two lengths", BadInput, lambda: metrics.kendall(U, U[:5]), r"6 and 5 rows"),
    ("crops of other images", BadInput, lambda: metrics.crop_agreement(U, U[:5]), r"u has 6 rows, u_cropped has 5"),
    ("votes of no one", Undefined, lambda: metrics.human_alignment(U, np.zeros((6, 3))), r"No.*has human votes"),
    ("zero-norm embeddings", BadInput, lambda: metrics.recall_at_1(FLAT.embeddings, LABELS), r"length.*row 2"),
    ("unknown distance", BadInput, lambda: metrics.recall_at_1(LOGITS, LABELS, metric="cosin"), r"'cosin'"),
    ("recall of one row", Undefined, lambda: metrics.recall_at_1(LOGITS[:1], LABELS[:1]), r"a single row"),
    ("recall of other rows", BadInput, lambda: metrics.recall_at_1(LOGITS, LABELS[:5]), r"5 .*6|6 .*5"),
    ("R-AUROC of other rows", BadInput, lambda: metrics.r_auroc(LOGITS, LABELS, U[:5]), r"u has shape \(5,\)"),
    ("masks of two shapes", BadInput, lambda: metrics.miou(np.ones((2, 2), int), np.ones(3, int), 3), r"shape"),
    ("mask of an unknown class", BadInput, lambda: metrics.miou(LABELS, LABELS + 7, 3), r"labels contains \d+"),
    ("mask of void", Undefined, lambda: metrics.miou(LABELS, LABELS * 0, 3, void=0), r"no pixel"),
    ("measure without logits", Undefined, lambda: measures.msp(BARE), r"no logits"),
    ("energy of probs", Undefined, lambda: measures.energy(Predictions(probs=PROBS)), r"probabilities"),
    ("largest logit of probs", Undefined, lambda: measures.max_logit(Predictions(probs=PROBS)), r"probabilities"),
    ("norm of nothing", Undefined, lambda: measures.norm(BARE), r"norm .*embeddings"),
    ("no native score", Undefined, lambda: measures.native(GOOD), "score named native"),
    ("density of nothing", Undefined, lambda: measures.gmm(BARE), r"no embeddings"),
    ("density without classes", Undefined, lambda: measures.mahalanobis(GOOD.replace(labels=None)), r"no labels"),
    ("density of other features", BadInput, lambda: measures.gmm(GOOD)(DRAWS.replace(embeddings=np.eye(6))), r"6 feat"),
    ("more parts than rows", BadInput, lambda: measures.gaussian_mixture(GOOD, components=7), r"7 components"),
    ("no direction", BadInput, lambda: measures.vmf_mixture(FLAT, components=2), r"only.*row 2|length zero"),
    ("no neighbours", BadInput, lambda: measures.knn_distance(GOOD, k=0)(GOOD), r"k is 0"),
    ("more neighbours than rows", BadInput, lambda: measures.knn_distance(GOOD, k=7)(GOOD), r"k is 7"),
    (
        "one member",
        Undefined,
        lambda: measures.neighborhood_inconsistency([GOOD], [GOOD], k=2),
        "least two members",
    ),
]


@pytest.mark.parametrize(("kind", "call", "pattern"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_files__metrics_and_measures(kind, call, pattern):
    with pytest.raises(kind) as no:
        call()
    assert type(no.value) is kind and isinstance(no.value, ValueError)
    assert re.search(pattern, sentence(no.value)), no.value
