"""Damaged files for every reader: whatever the bytes are, the outcome is what was read or BadInput, in little memory.

    python tests/fuzzing.py fuzz SECONDS SEED READER…     damages files for so long, and prints how many it tried
    python tests/fuzzing.py load FILE…                    prints memory, time and outcome of every file as JSON

The first file that breaks a reader ends the program.
"""

import gzip
import io
import json
import pickle
import re
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np

from nescio import BadInput, Predictions

N, C = 7, 4


def dump(text=True):
    rng = np.random.default_rng(0)
    return Predictions(
        index=[f"row {row} ☂" for row in range(N)] if text else None,
        labels=rng.integers(0, C, N),
        logits=rng.normal(size=(N, C)).astype(np.float32),
        embeddings=rng.normal(size=(N, 3)),
        scores={"native": rng.random(N)},
        groups={"site": rng.choice(["a", "b"], N)} if text else {"site": rng.integers(0, 2, N)},
        class_names=list("abcd"),
    )


def saved(ending, text=True):
    def build(folder):
        return [dump(text).save(folder / f"whole{ending}")]

    return build


def compressed(method):
    """An .npz whose members are packed by this method."""

    def build(folder):
        with zipfile.ZipFile(folder / "whole.npz", "w", method) as archive:
            for name, array in (("logits", dump().logits), ("labels", dump().labels)):
                file = io.BytesIO()
                np.save(file, array)
                archive.writestr(f"{name}.npy", file.getvalue())
        return [folder / "whole.npz"]

    return build


def tensors(folder):
    import torch

    held = {
        "logits": torch.tensor(dump().logits),
        "labels": torch.tensor(dump().labels),
        "scores": {"u": torch.ones(N)},
    }
    torch.save(held, folder / "whole.pt")
    return [folder / "whole.pt"]


def array(folder):
    np.save(folder / "whole.npy", dump().logits)
    return [folder / "whole.npy"]


def first_answers(folder):
    path = folder / "whole.csv"
    path.write_text("label,pred,conf,group_g\ncat,dog,0.5,=x\ndog,dog,0.25,y\n")
    return [path]


def lists(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"logits": dump().logits[:, 0].tolist(), "label": list("abcdabc")})
    pq.write_table(table, folder / "whole.parquet")
    return [folder / "whole.parquet"]


def whole_folder(folder):
    path = dump().save(folder / "whole")
    return [path / "manifest.json", path / "logits.npy", path / "index.npy"]


def images(folder):
    rng = np.random.default_rng(0)
    held = {f"x_{part}": rng.integers(0, 255, (8, 4, 4), np.uint8) for part in ("train", "test")}
    held |= {f"y_{part}": np.arange(8) % 2 for part in ("train", "test")}
    np.savez(folder / "whole.npz", **held, annotations_test=np.ones((8, 2)))
    return [folder / "whole.npz"]


def packed(folder):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "PNG")
    one = np.frombuffer(file.getvalue(), np.uint8)
    held = {"blob": np.tile(one, 4), "offsets": np.arange(5) * len(one), "y": np.arange(4) % 2}
    np.savez(folder / "whole.npz", **held, split=np.array(["train", "train", "test", "test"]))
    return [folder / "whole.npz"]


def mnist(folder):
    folder = folder / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        pixels = b"\0\0\x08\x03" + np.array([4, 5, 5], ">u4").tobytes() + bytes(100)
        labels = b"\0\0\x08\x01" + np.array([4], ">u4").tobytes() + bytes([0, 1, 2, 3])
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return sorted(folder.iterdir())


def cifar(folder):
    folder = folder / "cifar-100-python"
    folder.mkdir()
    held = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 1], b"filenames": [b"a", b"b"]}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(held, 4))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"%d" % name for name in range(100)]}, 4))
    return sorted(folder.iterdir())


def read_images(spec):
    def read(path, top):
        from nescio.datasets import readers

        readers._load.cache_clear()
        found = readers.load(spec.format(path=path), top)
        return found.train.pixels, found.test.pixels

    return read


def load(path, top):
    return Predictions.load(path)


READERS = {
    "npz": (saved(".npz"), load),
    "deflate": (compressed(zipfile.ZIP_DEFLATED), load),
    "lzma": (compressed(zipfile.ZIP_LZMA), load),
    "bzip2": (compressed(zipfile.ZIP_BZIP2), load),
    "safetensors": (saved(".safetensors", text=False), load),
    "parquet": (saved(".parquet"), load),
    "lists": (lists, load),
    "csv": (saved(".csv"), load),
    "first-answers": (first_answers, load),
    "folder": (whole_folder, lambda path, top: Predictions.load(top / "whole")),
    "npy": (array, lambda path, top: Predictions.from_files(logits=path)),
    "pt": (tensors, load),
    "images": (images, read_images("npz:{path}")),
    "packed": (packed, read_images("npz:{path}")),
    "mnist": (mnist, read_images("mnist")),
    "cifar": (cifar, read_images("cifar100")),
}
TORCH = ("pt", "images", "packed", "mnist", "cifar")  # the readers of the rooms below the line, and of tensors


def changed(blob, rng):
    """A copy with bits flipped, a part cut, moved, repeated, zeroed or overwritten with an extreme number."""
    blob = bytearray(blob)
    for _ in range(int(rng.integers(1, 4))):
        at, other = sorted(rng.integers(0, len(blob) + 1, 2).tolist())
        if rng.random() < 0.5:  # most formats keep what matters at their beginning or their end
            at = int(rng.integers(0, min(len(blob), 300) + 1)) if rng.random() < 0.5 else len(blob) - at % 300
            other = at + int(rng.integers(0, 40))
        kind = rng.integers(7)
        if kind == 0 and at < len(blob):
            blob[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del blob[at:]
        elif kind == 2:
            del blob[at:other]
        elif kind == 3:
            blob[at:at] = blob[at:other]
        elif kind == 4:
            blob[at:other] = bytes(len(blob[at:other]))
        elif kind == 5:
            start = int(rng.integers(0, max(1, len(blob))))
            blob[at : at + 8] = blob[start : start + 8]
        else:
            extreme = (b"\xff" * 8, b"\x7f" * 4, b"9" * 12, b"-1", b"nan", b"\x00\x00\x00\x80", b'"', b"\n", b"[" * 50)
            blob[at : at + 8] = extreme[int(rng.integers(len(extreme)))]
    return bytes(blob)


def memory():
    """MB at the most so far."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024


def check(no):
    text = str(no)
    assert text.strip() and "\n" not in text and text.endswith(".") and len(text) < 2000, repr(text)


def fuzz(name, seconds, seed):
    """(files tried, of which were read, MB) of one reader."""
    build, read = READERS[name]
    rng = np.random.default_rng(seed)
    tried = read_whole = 0
    with tempfile.TemporaryDirectory() as top, warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = build(Path(top))
        wholes = {path: path.read_bytes() for path in paths}
        read(paths[0], Path(top))
        before, end = memory(), time.monotonic() + seconds
        while time.monotonic() < end:
            path = paths[int(rng.integers(len(paths)))]
            path.write_bytes(changed(wholes[path], rng))
            start = time.monotonic()
            try:
                read(paths[0] if len(paths) > 1 else path, Path(top))
                read_whole += 1
            except BadInput as no:
                check(no)
            except BaseException:
                Path(f"/tmp/broken-{name}{path.suffix}").write_bytes(path.read_bytes())
                print(f"{name}: file {tried} of seed {seed} broke the reader; it is kept in /tmp.")
                traceback.print_exc(file=sys.stdout)
                sys.exit(1)
            assert time.monotonic() - start < 2, f"{name}: file {tried} of seed {seed} took longer than 2 s"
            path.write_bytes(wholes[path])
            tried += 1
    return tried, read_whole, memory() - before


def load_all(paths):
    """Prints [MB, seconds, what was said] of every file."""
    warnings.simplefilter("error")
    Predictions.load(saved(".parquet")(Path(tempfile.mkdtemp()))[0])  # imports count for nobody
    before = memory()
    for path in paths:
        start = time.monotonic()
        try:
            Predictions.load(path)
            outcome = "read"
        except BadInput as no:
            outcome = str(no)
        print(json.dumps([memory() - before, time.monotonic() - start, outcome]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load_all(sys.argv[2:])
    else:
        for reader in sys.argv[4:]:
            print(reader, *fuzz(reader, float(sys.argv[2]), int(sys.argv[3])), flush=True)
