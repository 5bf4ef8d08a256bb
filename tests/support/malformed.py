"""Files that cannot be used, each with the sentence that a person reads: (name, build(folder) -> path, pattern)."""

import decimal
import hashlib
import io
import json
import pickle
import zipfile
import zlib
from pathlib import Path

import numpy as np

from nescio import Predictions

N, C = 6, 3
LOGITS = np.random.default_rng(0).normal(size=(N, C)).astype(np.float32)
LABELS = np.arange(N) % C
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def changed(array, at, value):
    """A copy with another value in one place."""
    array = np.array(array)
    array[at] = value
    return array


def npz(**arrays):
    """Builds a .npz of good labels and logits with these arrays changed; None leaves one out, __ stands for a slash."""

    def build(folder: Path) -> Path:
        held = {"labels": LABELS, "logits": LOGITS} | {key.replace("__", "/"): array for key, array in arrays.items()}
        np.savez(folder / "preds.npz", **{key: array for key, array in held.items() if array is not None})
        return folder / "preds.npz"

    return build


def probs(array):
    return npz(logits=None, probs=array)


def raw(name, content):
    """Builds a file with these bytes or this text."""

    def build(folder: Path) -> Path:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder / name

    return build


def bare(folder):
    np.save(folder / "preds.npy", LOGITS)
    return folder / "preds.npy"


def csv(*lines):
    return raw("preds.csv", "\n".join(lines) + "\n")


def parquet(**columns):
    def build(folder: Path) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), folder / "preds.parquet")
        return folder / "preds.parquet"

    return build


def saved(suffix, spoil):
    """Builds good predictions with this suffix, then spoils what was written."""

    def build(folder: Path) -> Path:
        path = Predictions(labels=LABELS, logits=LOGITS, scores={"native": LABELS}).save(folder / f"preds{suffix}")
        spoil(path)
        return path

    return build


def cut(share):
    def spoil(path: Path) -> None:
        blob = path.read_bytes()
        path.write_bytes(blob[: int(len(blob) * share)])

    return spoil


def flip(path: Path) -> None:
    """Turns the bits of the last byte but three."""
    blob = bytearray(path.read_bytes())
    blob[-4] ^= 0xFF
    path.write_bytes(bytes(blob))


def manifest(change):
    """Rewrites manifest.json by a change to its content, with a valid checksum."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        del content["sha256"]
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(content))

    return spoil


def safetensors(header, body=b"\0" * 64):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return raw("preds.safetensors", len(text).to_bytes(8, "little") + text + body)


def tensor(dtype="F32", shape=(4, 4), offsets=(0, 64)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def missing(name):
    return lambda folder: folder / name


def directory(folder: Path) -> Path:
    (folder / "dump").mkdir()
    np.save(folder / "dump" / "logits.npy", LOGITS)
    return folder / "dump"


def pickled(folder: Path) -> Path:
    np.savez(folder / "preds.npz", labels=LABELS, logits=np.array([[1, None]] * N, object))
    return folder / "preds.npz"


def pickled_folder(path: Path, objects=(0, None) * 3) -> None:
    """Puts Python objects in place of the labels, and mends the manifest, so that only the objects are wrong."""
    np.save(path / "labels.npy", np.array(objects, object), allow_pickle=True)
    blob = (path / "labels.npy").read_bytes()
    manifest(lambda r: r["arrays"]["labels"].update(bytes=len(blob), crc32=zlib.crc32(blob)))(path)


MALFORMED = [
    # lengths and shapes
    (
        "one label too few",
        npz(labels=LABELS[:-1]),
        r"labels has 5 rows, logits has 6: they must describe the same rows",
    ),
    ("one label too many", npz(labels=np.zeros(7, int)), r"labels has 7 rows, logits has 6"),
    ("short score", npz(scores__native=np.zeros(2)), r"scores/native has 2 rows, logits has 6"),
    ("short embeddings", npz(embeddings=np.ones((5, 2))), r"embeddings has 5 rows, logits has 6"),
    ("short group", npz(groups__site=np.array(["a"])), r"groups/site has 1 rows, logits has 6"),
    ("short index", npz(index=np.arange(3)), r"index has 3 rows, logits has 6"),
    ("short in_distribution", npz(in_distribution=np.ones(4, bool)), r"in_distribution has 4 rows, logits has 6"),
    ("flat logits", npz(logits=LOGITS.ravel()), r"labels has 6 rows, logits has 18"),
    ("four axes", npz(logits=LOGITS[None, None]), r"logits has shape \(1, 1, 6, 3\)"),
    ("one-hot labels", npz(labels=np.eye(6, 3)), r"labels has shape \(6, 3\): it must be \(n,\)"),
    ("a scalar label", npz(labels=np.int64(3)), r"labels has shape \(\)"),
    ("a matrix of scores", npz(scores__native=LOGITS), r"scores/native has shape \(6, 3\)"),
    ("flat embeddings", npz(embeddings=LABELS), r"embeddings has shape \(6,\)"),
    ("embeddings without columns", npz(embeddings=np.ones((6, 0))), r"embeddings has shape \(6, 0\)"),
    ("no classes", npz(logits=np.ones((6, 0))), r"logits has shape \(6, 0\)"),
    ("one class only", npz(logits=LOGITS[:, None, :1], labels=np.zeros(6, int)), r"one class only"),
    ("one column for three classes", npz(logits=LOGITS[:, :1]), r"labels contains 2 in row 2, .* classes are 0 to 1"),
    ("multi-label", npz(labels=np.ones((6, 3), int)), r"labels has shape \(6, 3\).*single-label.*not multi-label"),
    (
        "multi-label shares",
        npz(logits=None, probs=np.full((6, 3), 0.9), labels=np.ones((6, 3), int)),
        r"labels has shape \(6, 3\).*single-label.*not multi-label",
    ),
    ("regression", npz(labels=np.linspace(0, 1, 6)), r"labels contains 0\.2 in row 1.*single-label.*not regression"),
    ("no rows", npz(logits=LOGITS[:0], labels=LABELS[:0]), r"There are no rows"),
    ("nothing at all", npz(logits=None, labels=None), r"The predictions are empty"),
    ("variant of other classes", npz(variants__tta=np.ones((6, 4))), r"variants/tta has 4 classes, logits has 3"),
    ("votes for other classes", npz(annotations=np.ones((6, 2))), r"annotations has 2 classes, logits has 3"),
    ("too many members", npz(members=np.arange(2)), r"members has 2 entries, logits has 1 draws"),
    ("members without draws", npz(logits=None, members=np.arange(2)), r"there are no logits"),
    # values
    ("NaN logit", npz(logits=changed(LOGITS, (4, 1), np.nan)), r"logits has a value that is not finite in row 4"),
    ("infinite logit", npz(logits=changed(LOGITS, (2, 0), np.inf)), r"logits has a value that is not finite in row 2"),
    ("every class masked", npz(logits=changed(LOGITS, 2, -np.inf)), r"logits masks every class with -inf in row 2"),
    ("minus infinity as a score", npz(scores__a=changed(LABELS * 1.0, 1, -np.inf)), r"scores/a .* not finite in row 1"),
    (
        "half that overflowed",
        npz(logits=changed(LOGITS.astype("f2"), (5, 0), np.inf)),
        r"logits .* not finite in row 5",
    ),
    ("NaN probability", probs(changed(PROBS, (3, 0), np.nan)), r"probs has a value that is not finite in row 3"),
    ("NaN score", npz(scores__native=changed(np.ones(6), 1, np.nan)), r"scores/native .* not finite in row 1"),
    ("infinite embedding", npz(embeddings=changed(np.ones((6, 2)), 5, np.inf)), r"embeddings .* not finite in row 5"),
    ("NaN variant", npz(variants__tta=changed(LOGITS, 0, np.nan)), r"variants/tta .* not finite in row 0"),
    ("label too high", npz(labels=changed(LABELS, 5, 3)), r"labels contains 3 in row 5, but the classes are 0 to 2"),
    ("negative label", npz(labels=changed(LABELS, 0, -1)), r"labels contains -1 in row 0, but the classes are 0 to 2"),
    (
        "NaN label",
        npz(labels=changed(LABELS.astype(float), 2, np.nan)),
        r"labels contains nan in row 2, .* whole number",
    ),
    ("half a label", npz(labels=LABELS + 0.5), r"labels contains 0\.5 in row 0, which is not a whole number"),
    ("names of too few classes", npz(labels=np.array(list("ababab"))), r"labels names 2 classes, logits has 3"),
    ("a label without a name", npz(labels=np.array(["a", "b", "c", "", "a", "b"])), r"labels has no class in row 3"),
    ("text that is no text", npz(groups__g=np.full(6, 0x110000, "u4").view("U1")), r"groups/g .*Unicode"),
    ("half of a character", npz(groups__g=np.full(6, 0xD800, "u4").view("U1")), r"groups/g .*Unicode"),
    ("bytes that are no text in npz", npz(groups__g=np.array([b"\xff"] * 6)), r"groups/g .*Unicode"),
    ("log-probabilities of logits", npz(normalized=True), r"probabilities of row 0"),
    ("class names of others", npz(class_names=np.array(["a", "b"])), r"class_names has 2 names, logits has 3 classes"),
    ("a class name twice", npz(class_names=np.array(["a", "b", "a"])), r"class_names contains a name twice"),
    ("confidence in percent", npz(confidence=np.full(6, 99.0)), r"confidence contains 99\.0 in row 0"),
    ("correct by degrees", npz(correct=np.full(6, 0.5)), r"correct must be True and False"),
    ("predicted without labels", npz(labels=None, predicted=LABELS), r"predicted .* labels"),
    (
        "correct against predicted",
        npz(correct=np.ones(6, bool), predicted=changed(LABELS, 4, 0)),
        r"correct is True in row 4, where predicted is 0 and the label is 1",
    ),
    ("complex logits", npz(logits=LOGITS + 1j), r"logits must be numbers, got complex"),
    ("dates", npz(scores__t=np.full(6, "2020-01-01", "M8[D]")), r"scores/t must be numbers, got dates"),
    ("in_distribution by degrees", npz(in_distribution=np.full(6, 0.5)), r"in_distribution must be True and False"),
    ("normalized by degrees", npz(normalized=np.array(0.5)), r"normalized must be True or False"),
    ("same key twice", npz(index=np.array([0, 1, 2, 3, 4, 1])), r"index contains 1 more than once"),
    ("same text key twice", npz(index=np.array(list("abcdea"))), r"index contains a more than once"),
    ("fractions as keys", npz(index=np.arange(6) + 0.5), r"index contains 0\.5 in row 0"),
    ("negative votes", npz(annotations=changed(np.ones((6, 3)), (1, 1), -1)), r"annotations has a negative .* row 1"),
    # probabilities
    ("logits named probs", probs(np.abs(LOGITS)), r"probs must sum to one in every row, .* row 0 .* name .* logits"),
    ("one row of probs off", probs(changed(PROBS, (3, 0), 0.9)), r"probs must sum to one .* row 3 is off by"),
    ("negative probability", probs(changed(PROBS, (0, 0), -0.1)), r"probs has a negative probability in row 0"),
    ("percentages", probs(100 * PROBS), r"probs must sum to one .* off by 99: divide percentages by 100"),
    ("probs of other logits", npz(probs=changed(PROBS, 4, PROBS[0])), r"probs is not the softmax .* in row 4"),
    ("probs of other shape", npz(probs=np.full((6, 2), 0.5)), r"logits has shape \(6, 1, 3\) and probs \(6, 1, 2\)"),
    ("a sum that rounding does not explain", probs(np.full((6, 3), 0.35)), r"row 0 is off by 0\.05"),
    # names
    ("label for labels", npz(label=LABELS), r"'label' is not a known field \(did you mean 'labels'\?\)"),
    ("y for labels", npz(y=LABELS), r"'y' is not a known field \(did you mean 'labels'\?\)"),
    ("logit for logits", npz(logit=LOGITS), r"'logit' is not a known field \(did you mean 'logits'\?\)"),
    ("softmax for probs", npz(softmax=PROBS), r"'softmax' is not a known field \(did you mean 'probs'\?\)"),
    ("misspelt field", npz(embedings=LOGITS), r"'embedings' is not a known field \(did you mean 'embeddings'\?\)"),
    (
        "scores without a name",
        npz(scores=np.ones(6)),
        r"'scores' is not a known field \(did you mean 'scores/NAME'\?\)",
    ),
    ("unknown field", npz(xyzzy=np.ones(6)), r"'xyzzy' is not a known field: the fields are index, labels"),
    ("empty name", npz(scores__=np.ones(6)), r"scores has the name ''"),
    # files
    ("no such file", missing("nowhere.npz"), r"nowhere\.npz: there is no such file or folder"),
    (
        "unknown suffix",
        raw("preds.mat", "x"),
        r"suffix \.mat .* manifest\.json, .*\.npz",
    ),
    ("no suffix", raw("preds", "x"), r"suffix \(none\)"),
    ("one bare array", bare, r"one array without a name"),
    ("a cut array", raw("preds.npy", "x"), r"complete \.npy array|one array without a name"),
    ("a checkpoint of pickle alone", raw("preds.pt", pickle.dumps({})), r"complete file of torch\.save"),
    ("a pickle", raw("preds.pkl", pickle.dumps({})), r"\.pkl files need pickle, which is never loaded"),
    ("empty npz", raw("preds.npz", ""), r"preds\.npz: the file is empty"),
    ("empty safetensors", raw("preds.safetensors", ""), r"preds\.safetensors: the file is empty"),
    ("empty parquet", raw("preds.parquet", ""), r"preds\.parquet: the file is empty"),
    ("empty csv", raw("preds.csv", ""), r"preds\.csv: the file is empty"),
    ("text named npz", raw("preds.npz", "label,logit_0\n1,2\n"), r"preds\.npz: .* complete \.npz file"),
    ("pickle named npz", raw("preds.npz", pickle.dumps([1])), r"preds\.npz: .* complete \.npz file"),
    ("truncated npz", saved(".npz", cut(0.6)), r"preds\.npz: .* complete \.npz file"),
    ("damaged npz", raw("preds.npz", zipped(labels__npy=b"\x93NUMPY\x01\x00")), r"labels .* complete \.npy array"),
    ("npz of other things", raw("preds.npz", zipped(readme__txt=b"hello")), r"readme\.txt is not an array"),
    ("object arrays", pickled, r"logits contains Python objects, which need pickle, and pickle is never loaded"),
    ("truncated safetensors", saved(".safetensors", cut(0.9)), r"ends after the end of the file"),
    ("safetensors of 5 bytes", raw("preds.safetensors", "12345"), r"complete \.safetensors file"),
    ("safetensors without JSON", safetensors(b"{nonsense"), r"the header is not that of a \.safetensors file"),
    ("safetensors of a list", safetensors([1, 2]), r"the header is not that of a \.safetensors file"),
    ("tensor of 8 bits", safetensors({"logits": tensor("F8_E4M3")}), r"logits has the type F8_E4M3"),
    ("tensor of other size", safetensors({"logits": tensor(shape=(4, 5))}), r"logits has shape \(4, 5\) but 64 bytes"),
    ("tensor before the file", safetensors({"logits": tensor(offsets=(-64, 0))}), r"logits has shape .* but 64 bytes"),
    ("text named parquet", raw("preds.parquet", "label\n1\n"), r"complete \.parquet file"),
    ("truncated parquet", saved(".parquet", cut(0.5)), r"complete \.parquet file"),
    # folders
    ("folder without manifest", directory, r"dump: the folder has no manifest\.json"),
    ("half a folder", saved("", lambda path: (path / "logits.npy").unlink()), r"logits\.npy is missing"),
    ("short array in a folder", saved("", lambda path: cut(0.5)(path / "logits.npy")), r"logits\.npy has \d+ bytes"),
    ("changed array in a folder", saved("", lambda path: flip(path / "labels.npy")), r"labels\.npy .* checksum"),
    (
        "manifest cut short",
        saved("", lambda path: cut(0.5)(path / "manifest.json")),
        r"manifest\.json",
    ),
    ("manifest without arrays", saved("", manifest(lambda r: r.pop("arrays"))), r"manifest\.json"),
    ("manifest of the future", saved("", manifest(lambda r: r.update(version=9))), r"manifest\.json has version 9"),
    (
        "manifest that points outside",
        saved("", manifest(lambda r: r["arrays"]["labels"].update(file="../x.npy"))),
        r"\.\./x\.npy, .* outside",
    ),
    ("objects in a folder", saved("", pickled_folder), r"labels\.npy contains Python objects, which need pickle"),
    # tables
    ("header only", csv("label,logit_0,logit_1"), r"There are no rows"),
    (
        "text in a number column",
        csv("label,logit_0,logit_1", "0,1,2", "1,abc,2"),
        r"logit_0 contains 'abc', .* not a num",
    ),
    ("one name for two classes", csv("label,logit_0,logit_1", "cat,1,2"), r"labels names 1 classes, logits has 2"),
    ("no value", csv("label,logit_0,logit_1", "0,1,2", "1,,2"), r"column logit_0 has no value in row 1"),
    ("NaN in a table", csv("label,u_native", "0,1", "1,nan"), r"column u_native has no value in row 1"),
    ("infinity in a table", csv("label,u_native", "0,1", "1,inf"), r"scores/native .* not finite in row 1"),
    ("ragged rows", csv("label,logit_0,logit_1", "0,1,2", "1,2"), r"a row has 2 values, the first line names 3 col"),
    ("gap in the classes", csv("label,logit_0,logit_2", "0,1,2"), r"column logit_1 is missing"),
    ("classes from 1", csv("label,prob_1,prob_2", "0,1,0"), r"column prob_0 is missing"),
    (
        "same class twice",
        csv("label,logit_0,logit_1,logit_01", "0,1,2,3"),
        r"logit_01 has the number of column logit_1",
    ),
    ("same column twice", csv("label,label,u_native", "0,1,2"), r"column label .*twice"),
    ("probs and logits in a table", csv("logit_0,logit_1,prob_0,prob_1", "1,2,0,1"), r"probs is not the .* in row 0"),
    ("log-probabilities off one", csv("label,logprob_0,logprob_1", "0,1,2"), r"probabilities of row 0"),
    ("logs and logits in a table", csv("logit_0,logit_1,logprob_0", "1,2,0"), r"logit_ and logprob_ columns"),
    ("row numbers in a table", csv(",label,u_native", "0,1,2"), r"column 1 has no name"),
    ("labels for label", csv("labels,u_native", "0,1"), r"'labels' is not a known column \(did you mean 'label'\?\)"),
    ("unknown column", csv("label,filename", "0,a.png"), r"'filename' is not a known column"),
    (
        "membership perhaps",
        csv("label,in_distribution,u_native", "0,maybe,1"),
        r"column in_distribution contains 'maybe'",
    ),
    ("probs of a table off", csv("label,prob_0,prob_1", "0,0.9,0.3"), r"probs must sum to one .* row 0"),
    ("bytes that are no text", raw("preds.csv", b"label,u_\xff\xfe\n0,1\n"), r"this is not text in UTF-8"),
    (
        "text in a parquet column",
        parquet(label=[0, 1], u_native=["a", "b"]),
        r"column u_native must be numbers, got string",
    ),
    ("null in a parquet column", parquet(label=[0, None, 1]), r"column label has no value in row 1"),
    ("lists of two lengths", parquet(label=[0, 1], logits=[[1.0, 2.0], [1.0]]), r"logits contains lists of different"),
    ("lists of text", parquet(label=[0], logits=[["a", "b"]]), r"column logits must be numbers, got string"),
    (
        "decimals of money",
        parquet(label=[0], conf=[decimal.Decimal("0.5")]),
        r"column conf must be numbers, got decimal",
    ),
]
