"""Every loader reads a miniature of its published layout, byte for byte; splits and revisions are what they promise."""

import gzip
import io
import os
import pickle
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nescio import datasets
from nescio.datasets import builders, decode, load, readers, split_dataset, stratified
from nescio.datasets.images import EncodedImages, Pixels
from nescio.datasets.standard import read_pickle
from nescio.errors import BadInput
from nescio.identity import seed_for

NAMED = ["mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "tiny-imagenet", "imagenet"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No dataset of another test, and none of this machine's."""
    readers._load.cache_clear()
    monkeypatch.delenv("NESCIO_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def pictures(n, size, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), np.uint8)


def smooth(seed, width, height):
    """A picture that survives JPEG and resizing: a ramp in two colours."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    level = (seed * 37) % 120
    return np.stack([level + 100 * x, level + 100 * y, np.full_like(x, level)], 2).astype(np.uint8)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def jpeg(path, pixels, kind="JPEG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, kind, **({"quality": 95} if kind == "JPEG" else {}))


# ---- the published layouts


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root, folder="mnist", packed=()):
    shown, asked = pictures(30, 28, 1, seed=1)[..., 0], pictures(12, 28, 1, seed=2)[..., 0]
    labels, answers = np.arange(30, dtype=np.uint8) % 10, np.arange(12, dtype=np.uint8)[::-1] % 10
    files = {
        "train-images-idx3-ubyte": shown,
        "train-labels-idx1-ubyte": labels,
        "t10k-images-idx3-ubyte": asked,
        "t10k-labels-idx1-ubyte": answers,
    }
    for number, (name, array) in enumerate(files.items()):
        if number in packed:
            write(root / folder / f"{name}.gz", gzip.compress(idx(array)))
        else:
            write(root / folder / name, idx(array))
    return (shown[..., None], labels), (asked[..., None], answers)


class Python2:
    """Pickles as cPickle of Python 2 wrote them at protocol 2: texts are byte strings, arrays name numpy.core."""

    def __init__(self, value):
        self.out, self.memo = io.BytesIO(), 0
        self.out.write(b"\x80\x02")
        self.save(value)
        self.out.write(b".")

    def put(self, data):
        self.out.write(data)
        self.memo += 1
        self.out.write(b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo))

    def text(self, data):
        self.put((b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<I", len(data))) + data)

    def save(self, value):
        write = self.out.write
        if isinstance(value, dict):
            self.put(b"}")
            write(b"(")
            for key, each in value.items():
                self.save(key)
                self.save(each)
            write(b"u")
        elif isinstance(value, list):
            self.put(b"]")
            write(b"(")
            for each in value:
                self.save(each)
            write(b"e")
        elif isinstance(value, str):
            self.text(value.encode())
        elif isinstance(value, int):
            small = 0 <= value < 256
            write(b"K" + bytes([value]) if small else b"M" + struct.pack("<H", value))
        else:
            self.array(value)

    def array(self, value):
        self.put(b"cnumpy.core.multiarray\n_reconstruct\n")
        self.put(b"cnumpy\nndarray\n")
        self.put(b"K\x00\x85")
        self.text(b"b")
        self.put(b"\x87")
        self.put(b"R")
        self.out.write(b"(K\x01")
        for side in value.shape:
            self.save(side)
        self.put(b"\x86")
        self.put(b"cnumpy\ndtype\n")
        self.text(b"u1")
        self.put(b"K\x00K\x01\x87")
        self.put(b"R")
        self.out.write(b"(K\x03")
        self.text(b"|")
        self.put(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t")
        self.out.write(b"b\x89")
        self.text(value.tobytes())
        self.put(b"t")
        self.out.write(b"b")


def python2(value):
    return Python2(value).out.getvalue()


def flat(pixels):
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), 3072)


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar10(root):
    folder, parts = root / "cifar-10-batches-py", []
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels, labels = pictures(20, 32, seed=number), [(7 * row + number) % 10 for row in range(20)]
        title = f"training batch {number + 1} of 5" if number < 5 else "testing batch 1 of 1"
        files = [f"{CIFAR10[label]}_s_{row:06d}.png" for row, label in enumerate(labels)]
        held = {"batch_label": title, "labels": labels, "data": flat(pixels), "filenames": files}
        write(folder / name, python2(held))
        parts.append((pixels, labels))
    meta = {"num_cases_per_batch": 20, "label_names": CIFAR10, "num_vis": 3072}
    write(folder / "batches.meta", python2(meta))
    train = np.concatenate([pixels for pixels, _ in parts[:5]]), np.concatenate([labels for _, labels in parts[:5]])
    return train, (parts[5][0], np.array(parts[5][1]))


def write_cifar100(root):
    folder, parts = root / "cifar-100-python", []
    for number, (name, rows) in enumerate({"train": 200, "test": 100}.items()):
        pixels, fine = pictures(rows, 32, seed=number), [(row * 37 + number) % 100 for row in range(rows)]
        held = {
            "filenames": [f"x_s_{row:06d}.png" for row in range(rows)],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": fine,
            "coarse_labels": [label // 5 for label in fine],
            "data": flat(pixels),
        }
        write(folder / name, python2(held))
        parts.append((pixels, np.array(fine)))
    names = {"fine_label_names": [f"fine {n}" for n in range(100)], "coarse_label_names": [f"c {n}" for n in range(20)]}
    write(folder / "meta", python2(names))
    return tuple(parts)


STL = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


def write_stl10(root):
    folder, parts = root / "stl10_binary", []
    for number, (name, rows) in enumerate({"train": 20, "test": 10}.items()):
        pixels, labels = pictures(rows, 96, seed=number), np.arange(rows) * 3 % 10
        # (n, channels, columns, rows): Matlab's order
        write(folder / f"{name}_X.bin", np.ascontiguousarray(pixels.transpose(0, 3, 2, 1)).tobytes())
        write(folder / f"{name}_y.bin", (labels + 1).astype(np.uint8).tobytes())
        parts.append((pixels, labels))
    write(folder / "class_names.txt", "".join(f"{name}\n" for name in STL).encode())
    write(folder / "unlabeled_X.bin", b"")
    write(folder / "fold_indices.txt", b"0 1 2 3\n")
    return tuple(parts)


WNIDS = ["n02124075", "n01443537", "n07749582"]  # the published file is not sorted either


def write_tiny(root):
    folder = root / "tiny-imagenet-200"
    write(folder / "wnids.txt", "".join(f"{wnid}\n" for wnid in WNIDS).encode())
    words = {
        "n00001740": "entity",
        WNIDS[0]: "Egyptian cat",
        WNIDS[1]: "goldfish, Carassius auratus",
        WNIDS[2]: "lemon",
    }
    write(folder / "words.txt", "".join(f"{wnid}\t{word}\n" for wnid, word in words.items()).encode())
    for number, wnid in enumerate(WNIDS):
        for row in (0, 1, 2, 10):
            jpeg(folder / f"train/{wnid}/images/{wnid}_{row}.JPEG", smooth(10 * number + row, 64, 64))
        boxes = "".join(f"{wnid}_{row}.JPEG\t0\t10\t63\t58\n" for row in (0, 1, 2, 10))
        write(folder / f"train/{wnid}/{wnid}_boxes.txt", boxes.encode())
    notes = []
    for row, number in enumerate((2, 0, 1, 1)):
        jpeg(folder / f"val/images/val_{row}.JPEG", smooth(50 + row, 64, 64))
        notes.append(f"val_{row}.JPEG\t{WNIDS[number]}\t0\t32\t44\t62\n")
    write(folder / "val/val_annotations.txt", "".join(notes).encode())
    jpeg(folder / "test/images/test_0.JPEG", smooth(99, 64, 64))
    return folder


def write_folders(place, rows, kind="JPEG", names=("n01", "n02", "n03"), start=0, width=80, height=60):
    for number, name in enumerate(names):
        for row in range(rows):
            ending = "JPEG" if kind == "JPEG" else "png"
            picture = smooth(start + 10 * number + row, width, height)
            jpeg(place / name / f"{name}_{row}.{ending}", picture, kind)


def write_imagenet(root):
    write_folders(root / "imagenet/train", 4)
    write_folders(root / "imagenet/val", 2, start=50)


WRITERS = {
    "mnist": write_mnist,
    "fashion-mnist": lambda root: write_mnist(root, "fashion-mnist"),
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "stl10": write_stl10,
    "tiny-imagenet": write_tiny,
    "imagenet": write_imagenet,
}


def same(dataset, train, test):
    for images, (pixels, labels) in ((dataset.train, train), (dataset.test, test)):
        assert np.array_equal(images.labels, labels)
        assert np.array_equal(images.pixels, pixels)
        assert images.labels.dtype == np.int64
    everything = np.concatenate([dataset.train.index, dataset.test.index])
    assert np.array_equal(everything, np.arange(len(everything)))


@pytest.mark.parametrize("packed", [(), (0, 1, 2, 3), (0, 3)])
def test_mnist_is_read_plain_and_gzipped(tmp_path, packed):
    parts = write_mnist(tmp_path, packed=packed)
    found = load("mnist", tmp_path)
    same(found, *parts)
    assert (found.channels, found.size, found.classes) == (1, 28, tuple("0123456789"))
    readers._load.cache_clear()
    write_mnist(tmp_path / "plain")
    assert load("mnist", tmp_path / "plain").revision == found.revision


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    parts = write_mnist(tmp_path, "FashionMNIST/raw", packed=range(4))
    found = load("fashion-mnist", tmp_path)
    same(found, *parts)
    assert found.classes[0] == "T-shirt/top" and found.classes[9] == "Ankle boot"
    with pytest.raises(BadInput, match="mnist was not"):
        load("mnist", tmp_path)


@pytest.mark.filterwarnings("error")  # NumPy warns of what pickles of Python 2 hold
def test_cifar10_is_read(tmp_path):
    parts = write_cifar10(tmp_path)
    found = load("cifar10", tmp_path)
    same(found, *parts)
    assert (len(found.train), len(found.test), found.channels, found.size) == (100, 20, 3, 32)
    assert found.classes == tuple(CIFAR10)


def test_cifar10_pickled_again_by_todays_numpy_is_read(tmp_path):
    parts = write_cifar10(tmp_path)
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        held = pickle.loads(path.read_bytes(), encoding="bytes")
        path.write_bytes(pickle.dumps(held, 4))
    same(load("cifar10", tmp_path), *parts)


def test_cifar100_has_its_fine_labels(tmp_path):
    parts = write_cifar100(tmp_path)
    found = load("cifar100", tmp_path)
    same(found, *parts)
    assert found.classes[37] == "fine 37" and len(found.classes) == 100


def test_the_miniature_pickle_is_that_of_python_2():
    start = python2({"batch_label": "training batch 1 of 5", "labels": [6, 9]})
    # The first bytes of the published data_batch_1.
    assert start.startswith(
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\t"
    )


def test_stl10_is_read_column_by_column_and_its_labels_from_one(tmp_path):
    parts = write_stl10(tmp_path)
    found = load("stl10", tmp_path)
    same(found, *parts)
    assert found.classes == tuple(STL) and found.size == 96


def close(pixels, expected, far=6):
    """JPEG and resizing move a smooth picture by a few levels only."""
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= far


def test_tiny_imagenet_is_read(tmp_path):
    write_tiny(tmp_path)
    found = load("tiny-imagenet", tmp_path)
    assert found.classes == ("goldfish", "Egyptian cat", "lemon")  # ordered by WordNet id
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.test.labels.tolist() == [2, 1, 0, 0]
    assert (found.size, found.channels) == (64, 3)
    for row, seed in enumerate((10, 11, 20, 12, 0, 1, 10, 2)):  # _0, _1, _10, _2: by name
        close(found.train.pixels[row], smooth(seed, 64, 64))
    close(found.test.pixels[3], smooth(53, 64, 64))
    assert load("tiny-imagenet@32", tmp_path).test.pixels.shape == (4, 32, 32, 3)


def test_imagenet_is_read(tmp_path):
    write_imagenet(tmp_path)
    found = load("imagenet@32", tmp_path)
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.classes == ("n01", "n02", "n03")
    # The central square of 7/8 of the shorter side, 60: columns 13.75 to 66.25 of 80, rows 3.75 to 56.25.
    seen = found.train.pixels[5]
    level = (11 * 37) % 120
    middle = np.arange(0.5, 32) / 32 * 52.5
    close(seen[16, :, 0], level + 100 * (13.75 + middle) / 80)
    close(seen[:, 16, 1], level + 100 * (3.75 + middle) / 60)
    assert load("imagenet", tmp_path).size == 224


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_folder_with_its_own_split(tmp_path, held_out):
    write_folders(tmp_path / "birds/train", 3, "PNG", ("crow", "owl"), width=32, height=32)
    write_folders(tmp_path / f"birds/{held_out}", 2, "PNG", ("crow", "owl"), start=70, width=32, height=32)
    write(tmp_path / "birds/train/crow/notes.txt", b"no image")
    write(tmp_path / "birds/train/crow/._crow_0.png", b"what a Mac leaves behind")
    (tmp_path / "birds/train/.cache").mkdir()
    found = load(f"folder:{tmp_path}/birds@32")
    assert found.name == "birds" and found.classes == ("crow", "owl")
    assert found.train.labels.tolist() == [0, 0, 0, 1, 1, 1] and found.test.labels.tolist() == [0, 0, 1, 1]
    assert np.array_equal(found.train.pixels[4], smooth(11, 32, 32))
    assert np.array_equal(found.test.pixels[3], smooth(81, 32, 32))


def test_a_folder_without_split_gives_a_fifth_of_every_class(tmp_path):
    write_folders(tmp_path / "birds", 10, "PNG", ("crow", "owl"), width=32, height=32)
    found = load("folder:birds@32", tmp_path)
    assert np.bincount(found.train.labels).tolist() == [8, 8] and np.bincount(found.test.labels).tolist() == [2, 2]
    levels = [np.unique(images.pixels[:, 0, 0, 2]) for images in (found.train, found.test)]
    assert not set(levels[0]) & set(levels[1]) and len(levels[0]) + len(levels[1]) == 20
    readers._load.cache_clear()
    assert np.array_equal(load("folder:birds@32", tmp_path).test.pixels, found.test.pixels)


def test_an_npz_of_arrays(tmp_path):
    train, test = (pictures(20, 8, 1)[..., 0], np.arange(20) % 4), (pictures(8, 8, 1, 1)[..., 0], np.arange(8) % 4)
    arrays = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    np.savez(tmp_path / "toy.npz", **arrays)
    found = load("npz:toy.npz", tmp_path)
    same(found, (train[0][..., None], train[1]), (test[0][..., None], test[1]))
    assert found.name == "toy" and found.classes == ("0", "1", "2", "3")
    np.savez(tmp_path / "named.npz", **arrays, classes=np.array(["a", "b", "c", "d"]))
    assert load(f"npz:{tmp_path}/named.npz").classes == ("a", "b", "c", "d")


def encode(pixels):
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def pack(path, words=("train", "train", "test"), pixels=None, labels=None, **more):
    """Twelve encoded images, end to end."""
    pixels = pictures(12, 16) if pixels is None else pixels
    data = [encode(each) for each in pixels]
    np.savez(
        path,
        blob=np.frombuffer(b"".join(data), np.uint8),
        offsets=np.cumsum([0, *map(len, data)]),
        y=np.arange(12, dtype=np.int16) // 3 if labels is None else labels,
        split=np.array(words * 4),
        **more,
    )


def test_an_npz_of_encoded_images(tmp_path):
    pack(tmp_path / "toy.npz", classes=np.array(list("abcd")))
    found = load("npz:toy.npz", tmp_path)
    rows = np.arange(12) % 3 == 2
    pixels, labels = pictures(12, 16), np.arange(12) // 3
    same(found, (pixels[~rows], labels[~rows]), (pixels[rows], labels[rows]))
    assert (found.size, found.classes) == (16, tuple("abcd"))
    assert load("npz:toy.npz@8", tmp_path).train.pixels.shape == (8, 8, 8, 3)
    pack(tmp_path / "val.npz", words=("train", "train", "val"))
    assert load("npz:val.npz", tmp_path).test.labels.tolist() == [0, 1, 2, 3]


def test_the_digits_are_pinned():
    found = load("digits")
    assert (len(found.train), len(found.test), found.channels, found.size) == (1198, 599, 1, 8)
    assert np.abs(np.bincount(found.train.labels) - 2 * np.bincount(found.test.labels)).max() <= 2
    assert found.train.pixels.min() == 0 and found.train.pixels.max() == 255
    from sklearn.datasets import load_digits

    known = {image.tobytes() for image in np.round(load_digits().images * (255 / 16)).astype(np.uint8)}
    assert {image.tobytes() for image in np.concatenate([found.train.pixels, found.test.pixels])} == known
    assert found.revision == "e0b31388f8b0f5e5"


def test_in_and_out_as_two_classes():
    whole, found = load("digits"), load(datasets.subsets.binary_spec("digits", (3, 1), (7,)))
    assert found.classes == ("in", "out") and found.revision != whole.revision
    rows = np.flatnonzero(np.isin(whole.train.labels, (1, 3, 7)))
    assert np.array_equal(found.train.pixels, whole.train.pixels[rows])
    assert np.array_equal(found.train.labels, (whole.train.labels[rows] == 7).astype(int))


def test_a_path_with_a_number_sign_can_be_divided(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8), np.arange(20) % 4
    np.savez(tmp_path / "run #3.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    whole = f"npz:{tmp_path / 'run #3.npz'}"
    spec = datasets.subsets.binary_spec(whole, (0, 1), (3,))
    assert datasets.subsets.data_of(spec) == whole
    assert np.bincount(load(spec).train.labels).tolist() == [10, 5]


# ---- what is missing or damaged


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_dataset_says_where_it_looked_what_it_wants_and_where_it_is_published(name, tmp_path, monkeypatch):
    with pytest.raises(BadInput) as missing:
        load(name, tmp_path)
    sentence = str(missing.value)
    assert sentence.startswith(f"{name} was not found: searched ") and str(tmp_path) in sentence
    assert "published at http" in sentence and "NESCIO_DATA" in sentence
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path / "mine"))
    with pytest.raises(BadInput) as missing:
        load(name)
    assert str(tmp_path / "mine") in str(missing.value) and str(tmp_path / "home/.cache/nescio/data") in str(
        missing.value
    )
    # Every file of the sentence is needed, and no other one is.
    WRITERS[name](tmp_path / "all")
    size = "@32" if name == "imagenet" else ""
    load(name + size, tmp_path / "all")
    wanted = sentence.split(" for ")[1].split(". It is")[0].split(" (or")[0].split(", ")
    for number, file in enumerate(wanted):
        root = tmp_path / str(number)
        WRITERS[name](root)
        (found,) = [each for each in root.rglob("*") if str(each).endswith(f"/{file}") and each.parent.name != "mine"][
            :1
        ]
        found.rename(found.with_name("elsewhere"))
        with pytest.raises(BadInput, match="was not found"):
            load(name + size, root)


def test_data_is_found_where_the_environment_says(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    with pytest.raises(BadInput):
        load("mnist")
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path))
    assert load("mnist").name == "mnist"  # although it was not there before
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path / "none"))
    with pytest.raises(BadInput):
        load("mnist")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cifra10", "no dataset named 'cifra10'. Did you mean 'cifar10'"),
        ("imagenet@big", "no dataset named"),
        ("", "no dataset named"),
        ("folder", "has no path: write folder:PATH"),
        ("npz:", "has no path: write npz:PATH"),
        ("digits:here", "takes no path"),
        ("digits@16", "cannot be resized"),
        ("imagenet@0", "have from 1 to 9999 pixels a side"),
        ("folder:nowhere@32", "nothing at nowhere, nor at"),
        ("npz:me@home/x.npz", "nothing at me@home/x.npz"),
        ("binary:digits", "write DATA#"),
    ],
)
def test_what_cannot_be_meant_is_refused(spec, words):
    with pytest.raises(BadInput, match=words):
        load(spec)


class Payload:
    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("run", ["system", "eval", "getattr"])
def test_a_malicious_pickle_is_refused_and_nothing_runs(tmp_path, run, protocol):
    write_cifar10(tmp_path)
    mark = tmp_path / "ran"
    payload = {
        "system": Payload((os.system, (f"touch {shlex.quote(str(mark))}",))),
        "eval": Payload((eval, (f"open({str(mark)!r}, 'w').close()",))),
        "getattr": Payload((exec, (f"import pathlib; getattr(pathlib.Path({str(mark)!r}), 'touch')()",))),
    }[run]
    data = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0], b"x": payload}, protocol)
    pickle.loads(data)
    assert mark.exists()  # it does harm where nobody watches
    mark.unlink()
    bad = tmp_path / "cifar-10-batches-py/data_batch_3"
    bad.write_bytes(data)
    with pytest.raises(BadInput, match=r"data_batch_3 .* would run [\w.]+,"):
        load("cifar10", tmp_path)
    assert not mark.exists()


def test_a_pickle_that_damages_memory_is_refused(tmp_path):
    """A dtype of objects in place of bytes, by the state of the dtype: NumPy would follow the bytes as addresses."""
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/data_batch_3"
    whole = path.read_bytes()
    for code in (b"O8", b"V8", b"f8"):
        path.write_bytes(whole.replace(b"U\x02u1", b"U\x02" + code))
        with pytest.raises(BadInput, match="data_batch_3 is not"):
            load("cifar10", tmp_path)
    state = pickle.dumps(np.dtype("u1"), 2)
    assert b"u1" in state
    twice = {b"labels": [[0] * 2] * 2, b"data": np.zeros((2, 3072), np.uint8)}
    path.write_bytes(pickle.dumps(twice, 4))
    with pytest.raises(BadInput, match="lacks `data`"):
        load("cifar10", tmp_path)


def test_a_list_that_doubles_itself_is_refused(tmp_path):
    """Thirty lists, each twice the one before: written out, a thousand million labels."""
    write_cifar10(tmp_path)
    labels = [0]
    for _ in range(30):
        labels = [labels, labels]
    held = {b"data": np.zeros((2, 3072), np.uint8), b"labels": labels}
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps(held, 4))
    with pytest.raises(BadInput, match="lacks `data`, bytes of shape"):
        load("cifar10", tmp_path)


def test_no_reader_but_that_of_cifar_unpickles():
    for path in Path(readers.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert "allow_pickle=True" not in text
        assert path.name == "standard.py" or ("import pickle\n" not in text and "Unpickler" not in text)


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # a call
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",  # the same, named on the stack
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2³¹ entries
        b"\x80\x02cnumpy\nndarray\n.",  # not a dictionary
        b"cnumpy.core.multiarray\n_reconstruct\n(K\x01tR(K\x01J\xff\xff\xff\x7f\x85cnumpy\ndtype\n(U\x02u1tR\x89U\x01xtb.",
        b"\x80\x82\x01.",  # an extension
        b"(" * 9,
    ],
)
def test_read_pickle_calls_nothing(tmp_path, monkeypatch, program):
    monkeypatch.setattr("os.system", lambda command: pytest.fail(command))
    (tmp_path / "data").write_bytes(program)
    try:
        assert read_pickle(tmp_path / "data") == {}
    except BadInput as error:
        assert str(tmp_path / "data") in str(error)


def test_names_of_classes_that_are_no_utf_8_are_read_as_far_as_they_go(tmp_path):
    write_stl10(tmp_path)
    names = tmp_path / "stl10_binary/class_names.txt"
    names.write_bytes(names.read_bytes().replace(b"bird", b"b\xffrd"))
    assert load("stl10", tmp_path).classes[1] == "b\ufffdrd"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("folder:photos@99999999", "have from 1 to 9999 pixels a side"),
        ("folder:photos@" + "9" * 5000, "have from 1 to 9999 pixels a side"),
        ("binary:digits#0,1#2,99", "digits has no class 99"),
        ("binary:digits#0,1#1,2", "Class 1 is named twice"),
    ],
)
def test_names_of_what_no_set_has(spec, sentence):
    with pytest.raises(BadInput, match=sentence):
        load(spec)


def test_names_that_are_no_utf8(tmp_path):
    """Of files they change nothing; the name of the data goes into keys and pages, and is refused before any work."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(odd).write_bytes(b"123")
    assert builders.checksum_content(odd, whole=False) == os.fsencode(tmp_path.name) + b"/\xff.jpg 3"
    with pytest.raises(BadInput, match=r"UTF-8.*rename"):
        load("folder:" + os.fsdecode(b"/data/\xff"))


def test_a_gzip_bomb_is_refused(tmp_path):
    write_mnist(tmp_path)
    head = b"\0\0\x08\x03" + np.array([300_000, 32, 32], ">u4").tobytes()
    for file in (tmp_path / "mnist").glob("train-images*"):
        file.unlink()
    with gzip.open(tmp_path / "mnist/train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(10):
            file.write(bytes(1_000_000))
    with pytest.raises(BadInput, match=r"train-images-idx3-ubyte.gz would take 0\.307 GB of memory"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("link", ["cats/again", "cats/inner/loop", "dogs/others", "owls"])
def test_a_link_that_would_count_images_twice_is_refused(tmp_path, link):
    write_folders(tmp_path / "a/train", 2, names=("cats", "dogs"))
    write_folders(tmp_path / "a/test", 2, names=("cats", "dogs"))
    (tmp_path / "a/train/cats/inner").mkdir()
    goal = {"cats/again": ".", "cats/inner/loop": "../..", "dogs/others": "../cats", "owls": "../train"}[link]
    (tmp_path / "a/train" / link).symlink_to(goal)
    if link == "owls":
        (tmp_path / "a/test/owls").symlink_to("../test/cats")
    with pytest.raises(BadInput, match=r"same folder|is a link"):
        load(f"folder:{tmp_path}/a@32")


def test_test_images_that_are_training_images_are_refused(tmp_path):
    write_folders(tmp_path / "a/train", 2, names=("cats", "dogs"))
    (tmp_path / "a/test").symlink_to("train")
    with pytest.raises(BadInput, match="same folder"):
        load(f"folder:{tmp_path}/a@32")


def test_links_to_folders_elsewhere_are_followed(tmp_path):
    write_folders(tmp_path / "store", 6, names=("cats", "dogs"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").symlink_to("../store/cats")
    (tmp_path / "a/y").symlink_to("../store/dogs")
    found = load(f"folder:{tmp_path}/a@32")
    assert len(found.train) + len(found.test) == 12 and found.classes == ("x", "y")


def test_a_pipe_under_the_name_of_an_image_is_refused(tmp_path):
    write_folders(tmp_path / "a", 2, names=("cats", "dogs"))
    os.mkfifo(tmp_path / "a/cats/z.jpg")
    with pytest.raises(BadInput, match=r"z\.jpg is not"):
        load(f"folder:{tmp_path}/a@32")
    write_stl10(tmp_path)
    (tmp_path / "stl10_binary/test_X.bin").unlink()
    os.mkfifo(tmp_path / "stl10_binary/test_X.bin")
    with pytest.raises(BadInput, match=r"test_X\.bin is not"):
        load("stl10", tmp_path)
    os.mkfifo(tmp_path / "b.npz")
    with pytest.raises(BadInput, match=r"b\.npz: "):
        load(f"npz:{tmp_path}/b.npz")


def cut(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: keep if keep >= 0 else len(data) + keep])


@pytest.mark.parametrize(
    ("name", "file", "keep"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte", -1),
        ("mnist", "mnist/train-images-idx3-ubyte", 9),
        ("mnist", "mnist/t10k-labels-idx1-ubyte", 0),
        ("cifar10", "cifar-10-batches-py/data_batch_5", -1),
        ("cifar10", "cifar-10-batches-py/data_batch_5", 5000),
        ("cifar10", "cifar-10-batches-py/batches.meta", 40),
        ("cifar100", "cifar-100-python/test", 0),
        ("stl10", "stl10_binary/train_X.bin", -7),
        ("tiny-imagenet", "tiny-imagenet-200/val/images/val_2.JPEG", 300),
        ("tiny-imagenet", "tiny-imagenet-200/val/val_annotations.txt", 20),
        ("imagenet@32", "imagenet/train/n02/n02_1.JPEG", 0),
    ],
)
def test_a_file_that_is_cut_short_is_named(tmp_path, name, file, keep):
    WRITERS[name.split("@")[0]](tmp_path)
    cut(tmp_path / file, keep)
    with pytest.raises(BadInput, match=Path(file).name):
        found = load(name, tmp_path)
        found.train.pixels, found.test.pixels  # noqa: B018  (images are decoded when they are looked at)


def test_a_gz_file_that_is_cut_short_is_named(tmp_path):
    write_mnist(tmp_path, packed=range(4))
    cut(tmp_path / "mnist/train-images-idx3-ubyte.gz", -20)
    with pytest.raises(BadInput, match=r"ubyte.gz is not"):
        load("mnist", tmp_path)


def test_fewer_labels_than_images_are_refused(tmp_path):
    write_stl10(tmp_path)
    cut(tmp_path / "stl10_binary/test_y.bin", -1)
    with pytest.raises(BadInput, match="stl10 has 10 test images and 9 test labels"):
        load("stl10", tmp_path)


def test_labels_outside_the_classes_are_refused(tmp_path):
    write_stl10(tmp_path)
    (tmp_path / "stl10_binary/test_y.bin").write_bytes(bytes(range(10)))  # counted from 0
    with pytest.raises(BadInput, match="test labels outside 0 to 9"):
        load("stl10", tmp_path)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"x": np.zeros(3)}, "it contains x; x_train, y_train, x_test, y_test were expected"),
        (
            {"x_train": np.zeros((4, 8, 8))},
            r"must be uint8, from 0 to 255: save \(255 \* x\)\.round\(\)\.astype\(np\.uint8\)",
        ),
        (
            {"x_train": np.full((4, 8, 8), 200.0)},
            r"training images .*float64.*: save x\.round\(\)\.astype\(np\.uint8\)",
        ),
        ({"x_test": np.full((4, 8, 8), 200)}, r"test images .*int64.*: save x\.astype\(np\.uint8\)"),
        ({"x_train": np.full((4, 8, 8), -2.0)}, r"training images .*float64.*from 0 to 255\.$"),
        ({"x_test": np.zeros((4, 3, 8, 8), np.uint8)}, r"save x\.transpose\(0, 2, 3, 1\)"),
        ({"x_train": np.zeros((4, 1, 8, 8), np.uint8)}, r"save x\.transpose\(0, 2, 3, 1\)"),
        ({"x_train": np.zeros((4, 8, 8, 4), np.uint8)}, r"1 or 3 channels: keep .* x\[\.\.\., :3\]"),
        ({name: np.zeros((4, 0, 8, 3), np.uint8) for name in ("x_train", "x_test")}, "at least 1 pixel"),
        ({"classes": np.array(list("abca"))}, "the name 'a' twice"),
        ({"classes": np.array([b"a", b"b", b"c", b"d"])}, r"of \|S1: save one text for each class"),
        ({"classes": np.arange(4)}, "save one text for each class"),
        ({"annotations_test": np.full((4, 4), -1)}, "annotations has a negative number of votes in row 0"),
        ({"annotations_train": np.full((4, 4), np.nan)}, "annotations"),
        ({"annotations_test": np.ones((4, 3))}, "votes for 3 classes, and there are 4"),
        ({"x_test": np.zeros((4, 3, 8, 8, 1), np.uint8)}, r"must be \(n, height, width\) or \(n, height, width, ch"),
        ({"x_train": np.zeros((4, 64), np.uint8)}, r"have shape \(4, 64\)"),
        ({"x_test": np.zeros((4, 9, 9), np.uint8)}, "test images of"),
        ({"y_train": np.arange(3)}, "4 training images and 3 training labels"),
        ({"y_train": np.arange(4.0)}, "must be whole numbers, one for each image or"),
        ({"y_test": np.zeros((4, 1), int)}, "must be whole numbers, one for each image or"),
        ({"y_test": np.array(list("abca"))}, "have shape .4,. and kind <U1; they must be whole numbers"),
        ({"y_train": np.full((4, 8, 8), "a")}, "kind <U1; they must be whole numbers"),
        ({"y_train": np.array([0, 1, 2, 10**12])}, "has the label 1000000000000: classes are numbered from 0"),
        ({"y_train": np.int64(3)}, "y_train holds one value"),
        ({"void": np.array(["sky"])}, "void has shape .1,. of <U3"),
        ({"y_test": np.array([0, 1, 2, -1])}, "outside 0 to 3"),
        ({"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0, int)}, "no training images"),
        ({"y_train": np.array([0, 1, None, 2])}, "pickle is never loaded"),
    ],
)
def test_an_npz_that_is_not_what_it_should_be_is_refused(tmp_path, held, words):
    images = np.zeros((4, 8, 8), np.uint8)
    whole = {"x_train": images, "y_train": np.arange(4), "x_test": images, "y_test": np.arange(4)}
    np.savez(tmp_path / "toy.npz", **(held if "x" in held else {**whole, **held}))
    with pytest.raises(BadInput, match=words) as no:
        load("npz:toy.npz", tmp_path)
    assert "toy.npz" in str(no.value)


def test_a_pack_that_is_not_whole_is_refused(tmp_path):
    pack(tmp_path / "toy.npz")
    held = dict(np.load(tmp_path / "toy.npz"))
    for change, words in (
        ({"offsets": held["offsets"][:-1]}, "offsets cuts 11 images"),
        ({"offsets": held["offsets"] + 9}, "stay inside blob"),
        ({"split": np.array(["val"] * 12)}, "has no training images"),
        ({"blob": np.zeros_like(held["blob"])}, "cannot be read"),
        ({"classes": np.array(list("aabc"))}, "the name 'a' twice"),
    ):
        np.savez(tmp_path / "bad.npz", **{**held, **change})
        readers._load.cache_clear()
        with pytest.raises(BadInput, match=words):
            load("npz:bad.npz", tmp_path)
    cut(tmp_path / "toy.npz", -100)
    with pytest.raises(BadInput, match=r"toy.npz: .* .npz file"):
        load("npz:toy.npz", tmp_path)


def test_folders_that_are_no_classes_are_refused(tmp_path):
    write_folders(tmp_path / "a/train", 2)
    with pytest.raises(BadInput, match="nor val"):
        load(f"folder:{tmp_path}/a")
    write_folders(tmp_path / "a/test", 2, names=("n01", "n02", "n09"))
    with pytest.raises(BadInput, match="same classes, but n03"):
        load(f"folder:{tmp_path}/a")
    (tmp_path / "b/empty").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"empty .* images \(.bmp, "):
        load(f"folder:{tmp_path}/b")
    (tmp_path / "c").mkdir()
    with pytest.raises(BadInput, match="contains no folders"):
        load(f"folder:{tmp_path}/c")
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(BadInput, match="not a folder"):
        load(f"folder:{tmp_path}/d")


# ---- revisions


def revision(spec, root):
    readers._load.cache_clear()
    return load(spec, root).revision


def test_a_revision_changes_with_a_pixel_or_a_label_and_with_nothing_else(tmp_path):
    pixels, labels = pictures(20, 8), np.arange(20) % 4
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:8], "y_test": labels[:8]}
    np.savez(tmp_path / "toy.npz", **arrays)
    first = revision("npz:toy.npz", tmp_path)
    np.savez_compressed(tmp_path / "moved.npz", **{key: arrays[key] for key in reversed(arrays)})
    assert revision("npz:moved.npz", tmp_path) == first
    np.savez(tmp_path / "wide.npz", **{**arrays, "y_train": labels.astype(np.uint8)})
    assert revision("npz:wide.npz", tmp_path) == first
    seen = {first}
    for key in arrays:
        changed = arrays[key].copy()
        changed.flat[5] ^= 1
        np.savez(tmp_path / "toy.npz", **{**arrays, key: changed})
        seen.add(revision("npz:toy.npz", tmp_path))
    # The last training row becomes the first test row: the same rows in all.
    moved = {
        **{"x_train": pixels[:-1], "y_train": labels[:-1]},
        **{"x_test": np.concatenate([pixels[-1:], pixels[:8]]), "y_test": np.concatenate([labels[-1:], labels[:8]])},
    }
    np.savez(tmp_path / "toy.npz", **moved)
    seen.add(revision("npz:toy.npz", tmp_path))
    assert len(seen) == 6


def test_the_revision_of_files_is_known_without_decoding(tmp_path, monkeypatch):
    write_tiny(tmp_path / "a")
    write_tiny(tmp_path / "b")
    first = revision("tiny-imagenet", tmp_path / "a")
    os.utime(tmp_path / "b/tiny-imagenet-200/val/images/val_1.JPEG", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode", lambda *_: pytest.fail("decoded"))
        assert revision("tiny-imagenet", tmp_path / "b") == first
    assert revision("tiny-imagenet@32", tmp_path / "a") != first
    other = tmp_path / "b/tiny-imagenet-200"
    jpeg(other / "val/images/val_1.JPEG", smooth(52, 64, 64))
    changed = revision("tiny-imagenet", tmp_path / "b")
    notes = other / "val/val_annotations.txt"
    notes.write_text(notes.read_text().replace(f"val_0.JPEG\t{WNIDS[2]}", f"val_0.JPEG\t{WNIDS[1]}"))
    assert len({first, changed, revision("tiny-imagenet", tmp_path / "b")}) == 3


# ---- splits


def test_a_share_of_every_class_and_never_its_last_row():
    labels = np.repeat([4, 7, 9, 2], [100, 15, 2, 1])
    rest, held = stratified(labels, 0.1, 5)
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.arange(118))
    assert np.bincount(labels[held], minlength=10)[[4, 7, 9, 2]].tolist() == [10, 2, 1, 0]
    assert np.array_equal(stratified(labels, 0.1, 5)[1], held)
    assert not np.array_equal(stratified(labels, 0.1, 6)[1], held)
    # Every row is as likely as any other.
    often = np.mean([np.isin(np.arange(100), stratified(labels, 0.1, seed)[1]) for seed in range(400)], 0)
    assert abs(often.mean() - 0.1) < 1e-9 and often.max() < 0.17 and often.min() > 0.04


def test_train_validation_and_test_are_apart():
    data = load("digits")
    for seed in range(3):
        parts = split_dataset(data, (5, 2, 8), seed)
        rows = [set(images.index.tolist()) for images in (parts.train, parts.val, parts.test, parts.out)]
        assert len(set.union(*rows)) == sum(map(len, rows))
        assert rows[0] | rows[1] == set(data.train.index[np.isin(data.train.labels, (5, 2, 8))].tolist())
        assert rows[2] | rows[3] == set(data.test.index.tolist())
        shares = np.bincount(parts.val.labels) / np.bincount(np.concatenate([parts.train.labels, parts.val.labels]))
        assert np.abs(shares - 0.1).max() < 0.01
    # No image stands on both sides by its content, beyond those that are twice in the data.
    seen = {image.tobytes() for image in parts.train.pixels}
    assert sum(image.tobytes() in seen for image in np.concatenate([parts.val.pixels, parts.test.pixels])) == 0


def test_a_split_is_a_function_of_the_revision_and_the_seed(tmp_path):
    pixels, labels = pictures(400, 8), np.arange(400) % 10
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:20], "y_test": labels[:20]}
    np.savez(tmp_path / "toy.npz", **arrays)
    data = load("npz:toy.npz", tmp_path)
    held = split_dataset(data, None, 1).val.index
    assert np.array_equal(held, stratified(labels, 0.1, seed_for("split", data.revision, 1))[1])
    assert not np.array_equal(split_dataset(data, None, 2).val.index, held)
    # Which classes are in-distribution moves no row from one side to the other.
    assert split_dataset(data, (5, 2, 8), 1).val.index.tolist() == [row for row in held if labels[row] in (5, 2, 8)]
    code = f"from nescio.datasets import load, split_dataset; d = load('npz:{tmp_path}/toy.npz'); "
    code += "print(split_dataset(d, None, 1).val.index.tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(held.tolist())
    # Another revision with the same labels is split in another way.
    pixels[0, 0, 0] ^= 1
    changed = builders.dataset_from_arrays("toy", (pixels, labels), (pixels[:20], labels[:20]))
    assert not np.array_equal(split_dataset(changed, None, 1).val.index, held)


def test_in_domain_classes_are_renumbered_and_the_others_are_not_taught():
    data = load("digits")
    parts = split_dataset(data, (5, 2, 8))
    for images in (parts.train, parts.val, parts.test):
        assert images.in_distribution.all() and set(images.labels) == {0, 1, 2}
    original = dict(zip(data.test.index.tolist(), data.test.labels.tolist(), strict=True))
    assert [(5, 2, 8)[label] for label in parts.test.labels] == [original[row] for row in parts.test.index]
    assert not parts.out.in_distribution.any()
    assert parts.out.labels.tolist() == [original[row] for row in parts.out.index]
    assert set(parts.out.labels) == {0, 1, 3, 4, 6, 7, 9}
    assert set(split_dataset(data, (5, 2, 8), ood_classes=(1, 0)).out.labels) == {0, 1}
    assert len(split_dataset(data).out) == 0
    # Pixels stay with their labels.
    place = {row: number for number, row in enumerate(data.test.index.tolist())}
    assert np.array_equal(parts.out.pixels, data.test.pixels[[place[row] for row in parts.out.index]])


def test_subsets_share_the_pixels():
    parts = split_dataset(load("digits"), (1, 2))
    assert parts.train.backing is parts.val.backing and parts.test.backing is parts.out.backing


def test_classes_that_cannot_be_split_are_refused():
    data = load("digits")
    for classes, outside, words in (
        ((1, 10), None, "no class 10"),
        ((1, 2, 1), None, "Class 1 is named twice"),
        ((1, 2), (2, 3), "Class 2 is named twice"),
        ((), None, "No class of digits is in-distribution"),
    ):
        with pytest.raises(BadInput, match=words):
            split_dataset(data, classes, 0, outside)
    pixels = pictures(5, 8)
    lone = builders.dataset_from_arrays(
        "lone", (pixels, np.array([0, 0, 0, 0, 1])), (pixels, np.zeros(5, int)), ["many", "one"]
    )
    with pytest.raises(BadInput, match="Class one of lone"):
        split_dataset(lone)
    assert len(split_dataset(lone, (0,)).val) == 1


# ---- memory or disk


def test_what_does_not_fit_is_read_when_it_is_needed_and_is_the_same(tmp_path, monkeypatch):
    write_imagenet(tmp_path)
    held = load("imagenet@48", tmp_path)
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 0)
    readers._load.cache_clear()
    streamed = load("imagenet@48", tmp_path)
    assert isinstance(held.train.backing, Pixels) and isinstance(streamed.train.backing, EncodedImages)
    for part in ("train", "test"):
        one, other = getattr(held, part), getattr(streamed, part)
        assert np.array_equal(one.pixels, other.pixels) and np.array_equal(one.labels, other.labels)
    assert streamed.mean == (0.485, 0.456, 0.406)
    rows = split_dataset(streamed, (2, 0)).train
    assert np.array_equal(rows.pixels, streamed.train.pixels[rows.rows])
    # Its checksum is of the listing: a file of another length, or under another label, is another revision.
    first = streamed.revision
    (tmp_path / "imagenet/val/n01/n01_0.JPEG").rename(tmp_path / "imagenet/val/n02/n01_0.JPEG")
    moved = revision("imagenet@48", tmp_path)
    jpeg(tmp_path / "imagenet/val/n02/n01_0.JPEG", pictures(1, 80)[0])
    assert len({first, moved, revision("imagenet@48", tmp_path)}) == 3


def test_a_part_of_a_picture_is_cut_from_the_square_that_is_looked_at():
    picture = encode(smooth(0, 160, 96))
    whole = decode.decode(picture, 32)
    part = decode.decode(picture, 32, box=(0.25, 0.5, 0.75, 1.0))
    expected = np.asarray(Image.fromarray(whole).resize((32, 32), Image.Resampling.BILINEAR, box=(8, 16, 24, 32)))
    close(part, expected, far=3)
    assert np.abs(part.astype(int) - whole).max() > 10
    small = pictures(1, 16)[0]
    assert np.array_equal(decode.decode(encode(small), 16), small)  # not resized, not cropped
    assert decode.decode(encode(small), 32).shape == (32, 32, 3)
    grey = Image.fromarray(small[..., 0])
    out = io.BytesIO()
    grey.save(out, "PNG")
    assert np.array_equal(decode.decode(out.getvalue(), 16)[..., 2], small[..., 0])


def test_mean_and_deviation_are_those_of_the_training_images(monkeypatch):
    pixels = pictures(50, 8) // np.array([1, 2, 4], np.uint8)
    data = builders.dataset_from_arrays("x", (pixels, np.arange(50) % 2), (255 - pixels, np.arange(50) % 2))
    assert np.allclose(data.mean, (pixels / 255).mean((0, 1, 2)), rtol=1e-3)
    assert np.allclose(data.std, (pixels / 255).std((0, 1, 2)), rtol=1e-3)
    monkeypatch.setattr("nescio.datasets.images.SAMPLE_BYTES", pixels.nbytes // 10)
    assert Pixels(lambda: pixels).moments[0] == tuple(float(f"{m:.4g}") for m in (pixels[::10] / 255).mean((0, 1, 2)))
    black = builders.dataset_from_arrays("x", (np.zeros_like(pixels), np.arange(50) % 2), (pixels, np.arange(50) % 2))
    assert black.std == (1e-3,) * 3  # no division by zero


# ---- real data

REAL = os.environ.get("NESCIO_DATA", "")


@pytest.mark.parametrize(
    ("file", "rows", "size", "name"),
    [
        ("tiny_imagenet_100.npz", (23_000, 3_000), 64, "Egyptian cat"),
        ("cifar100_small.npz", (10_000, 6_000), 32, "apple"),
    ],
)
def test_real_packs(file, rows, size, name, monkeypatch):
    if not (REAL and (Path(REAL) / file).exists()):
        pytest.skip(f"{file} is not in the folder that NESCIO_DATA names")
    found = load(f"npz:{file}", REAL)
    assert (len(found.train), len(found.test)) == rows and found.size == size
    assert len(found.classes) == 100 and found.classes[0] == name
    assert np.unique(np.bincount(found.train.labels)).tolist() == [rows[0] // 100]
    some = found.test.take(np.arange(0, rows[1], 20))
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 0)
    readers._load.cache_clear()
    pixels = load(f"npz:{file}", REAL).test.take(np.arange(0, rows[1], 20)).pixels
    assert pixels.std() > 40 and pixels.shape == (len(some), size, size, 3)
    parts = split_dataset(found, tuple(range(10)), 0)
    assert len(parts.val) == rows[0] // 100 and len(parts.train) == 9 * rows[0] // 100
