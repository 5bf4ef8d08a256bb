"""Readers of the published layouts."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from nescio.datasets.base import Array, Dataset, find, on_disk, places, resident, source, stratified
from nescio.errors import BadInput

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


@source("digits")
def digits(root: Path | None, rest: str) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels; a fixed, stratified third is the test set."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    train, test = stratified(labels, 1 / 3, seed=0)
    return resident("digits", (pixels[train], labels[train]), (pixels[test], labels[test]), map(str, range(10)))


def _idx(folder: Path, name: str) -> Array:
    path = folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise BadInput(f"{path} is not an idx file of bytes.")
    rank = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    if len(data) != 4 + 4 * rank + int(np.prod(shape)):
        raise BadInput(f"{path} is cut off: {len(data)} bytes, {4 + 4 * rank + int(np.prod(shape))} were announced.")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _four(root: Path | None, name: str, folders: tuple[str, ...], published: str, classes: list[str]) -> Dataset:
    files = [f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    try:
        folder = find(root, folders, files, published)
    except BadInput:
        folder = find(root, folders, [f"{file}.gz" for file in files], published)
    a, b, c, d = (_idx(folder, file) for file in files)
    return resident(name, (a, b), (c, d), classes)


@source("mnist")
def mnist(root: Path | None, rest: str) -> Dataset:
    """MNIST: the four idx files, plain or gzipped."""
    return _four(root, "mnist", ("MNIST/raw", "mnist", "."), "yann.lecun.com/exdb/mnist", [str(i) for i in range(10)])


@source("fashion-mnist")
def fashion_mnist(root: Path | None, rest: str) -> Dataset:
    """Fashion-MNIST: the four idx files, plain or gzipped."""
    names = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle-boot".split()
    published = "github.com/zalandoresearch/fashion-mnist"
    return _four(root, "fashion-mnist", ("FashionMNIST/raw", "fashion-mnist"), published, names)


class _Restricted(pickle.Unpickler):
    """Reads CIFAR's pickles, which hold dicts, lists, bytes and one kind of array, and nothing else."""

    ALLOWED = {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise BadInput(f"This file wants to run {module}.{name}; it is not a CIFAR batch, and it was not read.")
        if module.startswith("numpy.core"):
            module = module.replace("numpy.core", "numpy._core")
        return super().find_class(module, name)


def _batch(path: Path) -> dict[bytes, Any]:
    try:
        held = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, AttributeError) as error:
        raise BadInput(f"{path} is not a whole CIFAR batch: {error}.") from None
    return {key if isinstance(key, bytes) else str(key).encode(): value for key, value in held.items()}


def _cifar(folder: Path, files: list[str], label: bytes) -> tuple[Array, Array]:
    batches = [_batch(folder / file) for file in files]
    pixels = np.concatenate([np.asarray(batch[b"data"], np.uint8) for batch in batches])
    labels = np.concatenate([np.asarray(batch[label]) for batch in batches])
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _names(folder: Path, file: str, key: bytes, count: int) -> list[str]:
    if not (folder / file).exists():
        return [str(number) for number in range(count)]
    return [name.decode() for name in _batch(folder / file)[key]]


@source("cifar10")
def cifar10(root: Path | None, rest: str) -> Dataset:
    """CIFAR-10, the Python version: five training batches and a test batch."""
    train = [f"data_batch_{number}" for number in range(1, 6)]
    published = "cs.toronto.edu/~kriz/cifar.html (CIFAR-10 python version)"
    folder = find(root, ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"), [*train, "test_batch"], published)
    names = _names(folder, "batches.meta", b"label_names", 10)
    return resident("cifar10", _cifar(folder, train, b"labels"), _cifar(folder, ["test_batch"], b"labels"), names)


@source("cifar100")
def cifar100(root: Path | None, rest: str) -> Dataset:
    """CIFAR-100 with its fine labels, the Python version."""
    published = "cs.toronto.edu/~kriz/cifar.html (CIFAR-100 python version)"
    folder = find(root, ("cifar-100-python", "cifar100/cifar-100-python"), ["train", "test"], published)
    names = _names(folder, "meta", b"fine_label_names", 100)
    train, test = (_cifar(folder, [part], b"fine_labels") for part in ("train", "test"))
    return resident("cifar100", train, test, names)


@source("stl10")
def stl10(root: Path | None, rest: str) -> Dataset:
    """STL-10, the binary version: images column by column, labels from 1."""
    files = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"]
    folder = find(root, ("stl10_binary", "stl10/stl10_binary"), files, "cs.stanford.edu/~acoates/stl10")

    def part(name: str) -> tuple[Array, Array]:
        pixels = np.fromfile(folder / f"{name}_X.bin", np.uint8)
        if len(pixels) % (3 * 96 * 96):
            raise BadInput(f"{folder / name}_X.bin is cut off: it does not hold whole images of 96 × 96.")
        labels = np.fromfile(folder / f"{name}_y.bin", np.uint8).astype(np.int64) - 1
        return pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1), labels

    names = folder / "class_names.txt"
    classes = names.read_text().split() if names.exists() else [str(number) for number in range(10)]
    return resident("stl10", part("train"), part("test"), classes)


@source("tiny-imagenet")
def tiny_imagenet(root: Path | None, rest: str) -> Dataset:
    """Tiny-ImageNet: 200 classes of 64 × 64 pixels; its validation set, which has labels, is the test set."""
    files = ["wnids.txt", "train", "val/val_annotations.txt", "val/images"]
    published = "cs231n.stanford.edu/tiny-imagenet-200.zip"
    folder = find(root, ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"), files, published)
    wnids = sorted((folder / "wnids.txt").read_text().split())
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [(path, number[wnid]) for wnid in wnids for path in sorted((folder / "train" / wnid / "images").iterdir())]
    lines = (line.split("\t") for line in (folder / "val/val_annotations.txt").read_text().splitlines() if line)
    test = [(folder / "val/images" / file, number[wnid]) for file, wnid, *_ in lines]
    return on_disk("tiny-imagenet", train, sorted(test), wnids, 64)


@source("imagenet")
def imagenet(root: Path | None, rest: str) -> Dataset:
    """ImageNet-1k: train/WNID/*.JPEG and val/WNID/*.JPEG; classes in the order of their WordNet ids."""
    size = _size(rest, 224)[1]
    names = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")
    folder = find(root, names, ["train", "val"], "image-net.org (ILSVRC2012)")
    return _class_folders("imagenet", folder / "train", folder / "val", size)


@source("folder")
def folder(root: Path | None, rest: str) -> Dataset:
    """folder:PATH or folder:PATH@SIZE: PATH/train/CLASS/*.jpg and PATH/test/CLASS/* (or val); or PATH/CLASS/* alone, of
    which a fixed, stratified fifth is then the test set."""
    path, size = _size(rest, 224)
    place = _place(root, path)
    for held_out in ("test", "val"):
        if (place / "train").is_dir() and (place / held_out).is_dir():
            return _class_folders(place.name, place / "train", place / held_out, size)
    rows, classes = _walk(place)
    train, test = stratified(np.array([label for _, label in rows]), 0.2, seed=0)
    return on_disk(place.name, [rows[i] for i in train], [rows[i] for i in test], classes, size)


def _size(rest: str, usual: int) -> tuple[str, int]:
    path, at, size = rest.rpartition("@")
    if not at:
        return rest, usual
    if not size.isdigit() or int(size) < 1:
        raise BadInput(f"{rest!r}: behind the @ stands the size of the images in pixels, as in folder:PATH@64.")
    return path, int(size)


def _place(root: Path | None, path: str) -> Path:
    if not path:
        raise BadInput("A path is missing: write folder:PATH or npz:PATH.")
    for place in (Path(path).expanduser(), *(each / path for each in places(root))):
        if place.exists():
            return place
    raise BadInput(f"There is nothing at {path}, nor under {', '.join(map(str, places(root)))}.")


def _walk(place: Path) -> tuple[list[tuple[Path, int]], list[str]]:
    classes = sorted(each.name for each in place.iterdir() if each.is_dir())
    rows = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((place / name).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not rows:
        raise BadInput(f"{place} holds no images in class folders ({', '.join(sorted(ENDINGS))}).")
    return rows, classes


def _class_folders(name: str, train: Path, test: Path, size: int) -> Dataset:
    (rows, classes), (held, others) = _walk(train), _walk(test)
    if classes != others:
        odd = sorted(set(classes) ^ set(others))[0]
        raise BadInput(f"{train} and {test} hold different classes; {odd} is in one of them only.")
    return on_disk(name, rows, held, classes, size)


@source("npz")
def npz(root: Path | None, rest: str) -> Dataset:
    """npz:PATH: arrays x_train, y_train, x_test, y_test (uint8 images); or encoded images end to end in `blob`, cut at
    `offsets`, with labels `y` and the words train and test in `split`; npz:PATH@SIZE resizes the latter."""
    path, size = _size(rest, 0)
    place = _place(root, path)
    try:
        arrays = np.load(place, allow_pickle=False)
        held = {key: arrays[key] for key in arrays.files}
    except (ValueError, OSError, EOFError, AttributeError) as error:
        raise BadInput(f"{place} cannot be read as an .npz file of plain arrays: {error}.") from None
    if {"x_train", "y_train", "x_test", "y_test"} <= held.keys():
        train, test = ((held[f"x_{part}"], held[f"y_{part}"]) for part in ("train", "test"))
        return resident(place.stem, train, test, map(str, range(int(max(train[1].max(), test[1].max())) + 1)))
    if {"blob", "offsets", "y", "split"} <= held.keys():
        return _pack(place, held, size)
    raise BadInput(f"{place} holds {', '.join(held)}; x_train, y_train, x_test, y_test were expected.")


def _pack(place: Path, held: dict[str, Array], size: int) -> Dataset:
    from nescio.datasets.decode import decode_all

    blob, cut, labels = held["blob"], held["offsets"], held["y"].astype(np.int64)

    def encoded(row: int) -> bytes:
        return blob[cut[row] : cut[row + 1]].tobytes()

    if not size:
        from PIL import Image

        size = min(Image.open(io.BytesIO(encoded(0))).size)
    parts = []
    for word in ("train", "test"):
        rows = np.flatnonzero(held["split"] == word)
        parts.append((decode_all([encoded(row) for row in rows], size, place.stem, crop=1.0), labels[rows]))
    names = held.get("wnids", held.get("classes"))
    classes = [str(name) for name in names] if names is not None else map(str, range(int(labels.max()) + 1))
    return resident(place.stem, parts[0], parts[1], classes)
