"""What people really have is read: rounded, binary, named, masked, top-1, given twice; with a note where it matters."""

import warnings

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from nescio import BadInput, Predictions, stack
from nescio.analysis.scorecard import scorecard
from nescio.measures import summary
from nescio.predictions import same_rows, shared_rows

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(50, 4))
LABELS = RNG.integers(0, 4, 50)


# ---- rounded probabilities


@pytest.mark.parametrize(("classes", "decimals"), [(10, 3), (10, 2), (1000, 3), (1000, 4), (4, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs__rounded_probabilities_are_divided_by_their_sum(classes, decimals, dtype):
    exact = softmax(np.random.default_rng(1).normal(size=(300, classes)) * 3, axis=1)
    rounded = exact.round(decimals).astype(dtype)
    assert np.abs(rounded.sum(1) - 1).max() > 1.1e-3
    p = Predictions(probs=rounded)
    np.testing.assert_allclose(np.exp(p.logits[:, 0].astype(float)).sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(
        np.exp(p.logits[:, 0].astype(float)), rounded / rounded.sum(1, keepdims=True), rtol=1e-4, atol=1e-7
    )
    (note,) = p.notes
    assert f"rounded to {decimals} decimals" in note and "by its sum" in note


def test_scorecard__the_note_of_the_reader_reaches_the_scorecard_and_every_copy(tmp_path, rng):
    probs = softmax(rng.normal(size=(50, 10)) * 2, axis=1).round(2)
    np.savez(tmp_path / "a.npz", probs=probs, labels=np.arange(50) % 10)
    p = Predictions.load(tmp_path / "a.npz")
    for copy in (p, p.take(slice(3)), p.replace(labels=None), p.select([4, 2]), stack([p, p])):
        assert copy.notes == p.notes != ()
    for ending in ("", ".npz", ".safetensors", ".parquet"):
        assert Predictions.load(p.save(tmp_path / f"copy{ending}")).notes == p.notes
    assert scorecard(p, val=p.take(slice(20))).notes[: len(p.notes)] == list(p.notes)
    assert scorecard(Predictions(logits=LOGITS, labels=LABELS)).notes == []


def test_inputs__sums_that_rounding_does_not_explain_are_refused():
    row = np.array([[0.503, 0.5], [0.25, 0.75]])
    with pytest.raises(BadInput, match=r"row 0 is off by 0\.003"):
        Predictions(probs=row)  # two numbers of three decimals are off by 0.001 at most
    many = np.zeros((2, 1000))
    many[:, 0] = 0.9, 1.1  # 999 zeros may have been rounded down, and none was rounded up
    with pytest.raises(BadInput, match=r"row 1 is off by 0\.1"):
        Predictions(probs=many)


def test_inputs__logits_that_look_like_probabilities_are_noted():
    probs = softmax(LOGITS, axis=1)
    (note,) = Predictions(logits=probs, labels=LABELS).notes
    assert "look like probabilities" in note
    assert Predictions(logits=LOGITS).notes == Predictions(logits=probs * 2).notes == ()
    changed = np.tile(probs, (4000, 1))
    changed[-1] *= 2
    assert Predictions(logits=changed).notes == ()


# ---- both, one column, masks, log-probabilities


def test_inputs__logits_win_over_the_probabilities_that_are_their_softmax(rng):
    for probs in (
        softmax(LOGITS, axis=1),
        softmax(LOGITS, axis=1).astype(np.float16),
        softmax(LOGITS, axis=1).round(2),
    ):
        p = Predictions(logits=LOGITS, probs=probs)
        np.testing.assert_array_equal(p.logits[:, 0], LOGITS)
        assert not p.normalized
    draws = rng.normal(size=(50, 3, 4))
    assert Predictions(logits=draws, probs=softmax(draws, axis=2).mean(1)).draws == 3
    with pytest.raises(BadInput, match=r"softmax.*, first in row 7"):
        Predictions(logits=LOGITS, probs=np.where(np.arange(50)[:, None] == 7, 0.25, softmax(LOGITS, axis=1)))


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_inputs__one_column_of_a_binary_classifier(shape, rng):
    z = rng.normal(size=50) * 3
    p = 1 / (1 + np.exp(-z))
    labels = (rng.random(50) < p).astype(int)
    by_logit = Predictions(logits=z.reshape(shape), labels=labels)
    by_prob = Predictions(probs=p.reshape(shape), labels=labels)
    assert by_logit.classes == by_prob.classes == 2
    for dump in (by_logit, by_prob):
        np.testing.assert_allclose(summary(dump).outcomes().confidence, np.maximum(p, 1 - p), rtol=1e-9)
        np.testing.assert_array_equal(summary(dump).predicted, (p > 0.5).astype(int))
        assert "a binary classifier" in dump.notes[0]


def test_inputs__masked_classes_have_probability_zero():
    masked = LOGITS.copy()
    masked[:, 2] = -np.inf
    labels = np.where(LABELS == 2, 0, LABELS)
    for dtype in (np.float16, np.float32, np.float64):
        z = masked.astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dump = Predictions(logits=z, labels=labels)
            found = summary(dump)
            without = summary(Predictions(logits=np.delete(z, 2, 1), labels=labels - (labels > 2)))
        for name in ("msp", "entropy", "gap", "energy", "max_logit"):
            np.testing.assert_allclose(found.u[name], without.u[name], rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(found.outcomes().log_loss, without.outcomes().log_loss, rtol=1e-12)
    of_masked = summary(Predictions(logits=masked, labels=np.full(50, 2))).outcomes()
    assert of_masked.floored == 50
    np.testing.assert_allclose(of_masked.log_loss, -np.log(np.finfo(np.float64).tiny))


def test_inputs__masked_classes_stay_masked_under_calibration_and_in_files(tmp_path, rng):
    from nescio.analysis import calibration

    logits = LOGITS + 1.5 * np.eye(4)[LABELS]  # better than chance, else no temperature is best
    masked = np.where(rng.random(LOGITS.shape) < 0.3, -np.inf, logits)
    masked[np.arange(50), LABELS] = logits[np.arange(50), LABELS]
    dump = Predictions(logits=masked, labels=LABELS)
    for ending in ("", ".npz", ".safetensors", ".parquet", ".csv"):
        np.testing.assert_array_equal(Predictions.load(dump.save(tmp_path / f"a{ending}")).logits, dump.logits)
    for scale in (calibration.temperature(dump), calibration.vector(dump)):
        np.testing.assert_array_equal(np.isneginf(scale(dump).logits), np.isneginf(dump.logits))
        assert summary(scale(dump)).outcomes().log_loss.mean() <= summary(dump).outcomes().log_loss.mean() + 1e-9


def test_inputs__log_probabilities_must_sum_to_one():
    logs = log_softmax(LOGITS, axis=1)
    for dtype in (np.float16, np.float32, np.float64):
        Predictions(logits=logs.astype(dtype), normalized=True)
    Predictions(logits=logs.round(2), normalized=True)
    for far in (logs + 0.05, LOGITS, -np.abs(LOGITS)):
        with pytest.raises(BadInput, match="probabilities of row 0"):
            Predictions(logits=far, normalized=True)


def test_inputs__the_copy_in_half_precision_does_not_win_by_its_zeros(rng):
    """One floor whatever the dtype: a wrong answer with probability 0 costs a float16 model what it costs others."""
    z = rng.normal(size=(400, 5)) * 30
    labels = rng.integers(0, 5, 400)
    exact = softmax(z, axis=1)
    for low in (np.float16, np.float32):
        probs = exact.astype(low)
        zero = probs[np.arange(400), labels] == 0
        copies = [Predictions(probs=copy, labels=labels) for copy in (probs, probs.astype(np.float64))]
        losses = [summary(copy).outcomes().log_loss for copy in copies]
        np.testing.assert_array_equal(losses[0][zero], losses[1][zero])
        assert (losses[0][zero] > 700).all()
        assert losses[0].mean() >= summary(Predictions(probs=exact, labels=labels)).outcomes().log_loss.mean()


# ---- names of classes


def test_inputs__names_of_classes_become_numbers_in_sorted_order():
    names = np.array(["owl", "ant", "cat", "bee"])
    p = Predictions(labels=names[LABELS], logits=LOGITS)
    assert p.class_names == ("ant", "bee", "cat", "owl")
    assert [p.class_names[label] for label in p.labels] == names[LABELS].tolist()
    assert "ant (0) to owl" in p.notes[0]
    given = Predictions(labels=names[LABELS], logits=LOGITS, class_names=list(names))
    np.testing.assert_array_equal(given.labels, LABELS)
    assert given.class_names == tuple(names) and given.take([3]).class_names == tuple(names)
    np.testing.assert_array_equal(Predictions(labels=LABELS.astype(str), logits=LOGITS).labels, LABELS)


def test_inputs__a_name_that_is_no_class_belongs_to_a_row_that_was_not_taught(tmp_path):
    held = {"labels": ["ant", "yak"], "logits": LOGITS[:2], "class_names": ["ant", "bee", "cat", "owl"]}
    with pytest.raises(BadInput, match=r"labels contains 4 in row 1,.*but.*are 0 to 3"):
        Predictions(**held)
    assert Predictions(**held, in_distribution=[True, False]).labels.tolist() == [0, 4]
    assert Predictions.load({"labels": ["yak", "emu"], "logits": LOGITS[:2]}, ood=True).labels.tolist() == [1, 0]


@pytest.mark.parametrize("ending", ["", ".npz", ".safetensors", ".parquet"])
def test_inputs__names_of_classes_are_kept(tmp_path, ending):
    p = Predictions(labels=LABELS, logits=LOGITS, class_names=["a", "b", "c", "ü"])
    assert Predictions.load(p.save(tmp_path / f"a{ending}")).class_names == ("a", "b", "c", "ü")


# ---- the same rows twice


def test_same_rows__the_same_rows_are_known_in_any_order_and_under_any_index(rng):
    p = Predictions(logits=LOGITS, labels=LABELS, embeddings=LOGITS)
    order = rng.permutation(50)
    assert same_rows(p, p)
    assert same_rows(p, p.take(order))
    assert same_rows(p, p.take(order).replace(index=np.arange(50) + 1000, embeddings=None))
    moved = LOGITS.copy()
    moved[7, 0] += 1e-6
    assert not same_rows(p, p.replace(logits=moved))
    for low in (np.float32, np.float16):
        copy = Predictions(logits=LOGITS.astype(low), labels=LABELS).take(order)
        assert same_rows(p, copy) and same_rows(copy, p) and shared_rows(p, copy.take(slice(40))) == 40
    assert not same_rows(p, p.take(slice(49)))
    assert not same_rows(p, p.replace(labels=LABELS[::-1]))
    assert not same_rows(Predictions(labels=LABELS), Predictions(labels=LABELS))
    assert not same_rows(p, Predictions(logits=rng.normal(size=(50, 4)), labels=LABELS))


@pytest.mark.parametrize("form", ["{}", "{}.0", " {} ", "+{}", "{}."])
def test_inputs__class_numbers_written_as_text_are_those_numbers(form):
    """Sorted as names, 10 would come before 2."""
    numbers = np.arange(24) % 12
    dump = Predictions(labels=[form.format(number) for number in numbers], logits=3 * np.eye(12)[numbers])
    np.testing.assert_array_equal(dump.labels, numbers)
    assert dump.class_names is None and dump.notes == ()


def test_inputs__notes_hold_nothing_that_a_terminal_obeys():
    dump = Predictions(labels=[0, 1], logits=3 * np.eye(2), notes=["a\x1b[31m\nb"])
    assert dump.notes == ("a [31m b",)


@pytest.mark.parametrize("few", [-1.0, 1e308])
def test_inputs__votes_that_cannot_be_counted(few):
    with pytest.raises(BadInput, match=r"votes.* in row 1"):
        Predictions(labels=[0, 1], logits=np.eye(2), annotations=[[1.0, 2.0], [few, 1.0]])


@pytest.mark.parametrize("flags", [[True, False, True, True], [1, 0, 1, 1]])
def test_inputs__load_of_tensors_with_in_distribution(tmp_path, flags):
    torch = pytest.importorskip("torch")
    torch.save(
        {"labels": torch.arange(4) % 2, "logits": torch.eye(4)[:, :2], "in_distribution": torch.tensor(flags)},
        tmp_path / "a.pt",
    )
    assert Predictions.load(tmp_path / "a.pt").in_distribution.tolist() == [True, False, True, True]


@pytest.mark.filterwarnings("ignore:torch.quantize_per", "ignore:Sparse CSR")
def test_inputs__tensors_of_every_kind_are_numbers_or_a_sentence(tmp_path):
    torch = pytest.importorskip("torch")
    labels, logits = torch.arange(8) % 2, torch.linspace(-2, 2, 16).reshape(8, 2)
    read = {
        "float8": (logits.to(torch.float8_e4m3fn), 0.2),
        "bfloat16": (logits.bfloat16(), 0.02),
        "negated": (torch._neg_view(-logits), 0),
        "turned": (logits.t().contiguous().t(), 0),
        "quantized": (torch.quantize_per_tensor(logits, 0.01, 0, torch.qint32), 0.006),
    }
    for name, (tensor, slack) in read.items():
        torch.save({"labels": labels, "logits": tensor}, tmp_path / f"{name}.pt")
        found = Predictions.load(tmp_path / f"{name}.pt").logits[:, 0]
        np.testing.assert_allclose(found, logits.numpy(), atol=slack, err_msg=name)
    for name, tensor in {
        "sparse": logits.to_sparse(),
        "rows": logits.to_sparse_csr(),
        "empty": torch.empty(8, 2, device="meta"),
        "conjugate": torch.complex(logits, logits).conj(),
    }.items():
        torch.save({"labels": labels, "logits": tensor}, tmp_path / f"{name}.pt")
        with pytest.raises(BadInput, match=r"logits (.*plain tensor.*|must be numbers, got complex)"):
            Predictions.load(tmp_path / f"{name}.pt")


def test_inputs__a_flipped_bit_in_a_file_of_tensors_is_noticed(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"labels": torch.zeros(4, dtype=torch.long), "logits": torch.full((4, 2), 7.0)}, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    at = content.index(np.full(8, 7.0, np.float32).tobytes())
    content[at + 3] ^= 0x20  # of an exponent
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(BadInput, match=r"file.*\.save"):
        Predictions.load(tmp_path / "a.pt")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("first", ["", "sep={}\r\n"])
def test_inputs__a_table_that_is_not_separated_by_commas_is_called_so(tmp_path, separator, first):
    lines = ["label,logit_0,logit_1", "0,1.5,0.5", "1,0.25,2"]
    text = first.format(separator) + "\r\n".join(lines).replace(",", separator).replace(".", ",")
    (tmp_path / "a.csv").write_text("\ufeff" + text, encoding="utf-8")
    with pytest.raises(BadInput, match="separated by commas"):
        Predictions.load(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "logits",
    [
        '{"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}',  # the bytes of the labels
        '{"dtype": "F32", "shape": [2, 2.0], "data_offsets": [16, 32]}',
        '{"dtype": "F32", "shape": ["2", "2"], "data_offsets": [16, 32]}',
        '{"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}, "logits": {"dtype": "F32", "shape": [2, 2], '
        '"data_offsets": [32, 48]}',
    ],
)
def test_inputs__a_header_of_safetensors_says_one_thing(tmp_path, logits):
    header = f'{{"labels": {{"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}, "logits": {logits}}}'.encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    with pytest.raises(BadInput, match=r"header.*\.safetensors file"):
        Predictions.load(tmp_path / "a.safetensors")


def test_inputs__a_link_to_nothing_is_not_called_near_to_itself(tmp_path):
    (tmp_path / "a.npz").symlink_to(tmp_path / "gone.npz")
    with pytest.raises(BadInput, match=r"such file.*\.$"):
        Predictions.load(tmp_path / "a.npz")


@pytest.mark.parametrize("field", ["embeddings", "variants"])
def test_inputs__a_number_whose_square_overflows_is_named_with_its_field_and_row(field):
    table = np.eye(6, 3)
    table[4, 1] = -1.5e308
    arrays = {"labels": np.arange(6) % 3, "logits": np.eye(6, 3)}
    with pytest.raises(BadInput, match=rf"{field}.* -1.5e\+308 in row 4"):
        Predictions(**arrays | {field: {"x": table} if field == "variants" else table})


@pytest.mark.parametrize("pair", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("cat", "cat ")])
def test_inputs__class_names_that_look_alike_are_noted(pair):
    predictions = Predictions(labels=[*pair, "dog"], predicted=["dog", "dog", "dog"], confidence=[0.5, 0.5, 0.5])
    assert any(ascii(pair[0]) in note and ascii(pair[1]) in note for note in predictions.notes)


def test_inputs__a_class_name_with_a_nul_character_is_refused():
    with pytest.raises(BadInput, match=r"labels .* row 1"):
        Predictions(labels=["cat", "c\0t"], predicted=["cat", "cat"], confidence=[0.5, 0.5])


@pytest.mark.parametrize("name", ["c\0t", "cat\0"])
def test_inputs__a_nul_character_in_class_names_is_refused(name):
    with pytest.raises(BadInput, match=r"class_names .* class 1"):
        Predictions(labels=[0, 1], logits=np.eye(2), class_names=["dog", name])
