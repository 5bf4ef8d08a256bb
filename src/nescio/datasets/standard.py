"""Readers of the layouts in which datasets are published."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.builders import ImagesAndLabels, dataset_from_arrays, dataset_from_files
from nescio.datasets.images import Dataset, Images
from nescio.datasets.pickled import read_pickle
from nescio.datasets.readers import DatasetRequest, dataset, find_folder, requested_path
from nescio.datasets.splits import stratified
from nescio.errors import BadInput
from nescio.files import check_growth, read_small, read_text
from nescio.predictions import files
from nescio.predictions.inputs import votes as check_votes

ENDINGS = (".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MOST_BYTES = 1 << 30  # maximum size of a file of STL-10; the largest has 221 MB


@dataset("digits")
def digits(request: DatasetRequest) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels; a fixed, stratified third is the test set."""
    pixels, labels = _sklearn_digits()
    pixels = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    train, test = stratified(labels, 1 / 3, seed=0)
    return dataset_from_arrays(
        "digits", (pixels[train], labels[train]), (pixels[test], labels[test]), map(str, range(10))
    )


def _sklearn_digits() -> tuple[Array, Array]:
    """Pixels and labels from the package's own file: importing scikit-learn takes longer than all the rest."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


# ---- MNIST and datasets in its format


def _idx(folder: Path, name: str) -> Array:
    """An idx file: two zero bytes, the type (8: bytes), the rank, the sizes in big endian, the values."""
    path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            rank = head[3] if len(head) == 4 else 0
            sizes = file.read(4 * rank)
            if head[:3] != b"\x00\x00\x08" or not 1 <= rank <= 4 or len(sizes) < 4 * rank:
                raise BadInput(f"{path} is not an idx file of bytes: fetch it again.")
            shape = np.frombuffer(sizes, ">u4").tolist()
            announced = math.prod(shape)
            check_growth(str(path), announced, path.stat().st_size)
            data = file.read(announced + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise BadInput(f"{path} is not a whole .gz file: fetch it again.") from None
    if len(data) != announced:
        more = " or more" if len(data) > announced else ""
        raise BadInput(f"{path} has {len(data)}{more} bytes of values, but announces {announced}: fetch it again.")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _read_idx_dataset(
    request: DatasetRequest, name: str, folders: Sequence[str], published: str, classes: list[str]
) -> Dataset:
    files = [
        f"{split}-{content}" for split in ("train", "t10k") for content in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    folder = find_folder(name, request.root, folders, files, published, endings=("", ".gz"))
    train, train_labels, test, test_labels = (_idx(folder, file) for file in files)
    return dataset_from_arrays(name, (train, train_labels), (test, test_labels), classes)


@dataset("mnist")
def mnist(request: DatasetRequest) -> Dataset:
    """MNIST: the four idx files, plain or gzipped."""
    published = "https://yann.lecun.com/exdb/mnist (copy: https://ossci-datasets.s3.amazonaws.com/mnist)"
    return _read_idx_dataset(request, "mnist", ("mnist", "MNIST/raw"), published, [str(number) for number in range(10)])


@dataset("fashion-mnist")
def fashion_mnist(request: DatasetRequest) -> Dataset:
    """Fashion-MNIST: the four idx files, plain or gzipped."""
    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    published = "https://github.com/zalandoresearch/fashion-mnist"
    return _read_idx_dataset(request, "fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), published, classes)


# ---- CIFAR


def _cifar(folder: Path, files: Sequence[str], key: bytes) -> ImagesAndLabels:
    """Images stored as a row of 3,072 bytes: 1,024 of red, 1,024 of green, 1,024 of blue, each row by row."""
    images, labels = [], []
    for path in (folder / file for file in files):
        content = read_pickle(path)
        data, numbers = content.get(b"data"), content.get(key)
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3072,) or not _is_list_of(int, numbers):
            raise BadInput(
                f"{path} does not hold `data`, bytes of shape (n, 3072), and `{key.decode()}`: fetch it again."
            )
        images.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(np.asarray(numbers))
    return np.concatenate(images), np.concatenate(labels)


def _cifar_names(path: Path, key: bytes) -> list[str]:
    names = read_pickle(path).get(key)
    if not _is_list_of(bytes, names):
        raise BadInput(f"{path} does not hold `{key.decode()}`, a list of names: fetch it again.")
    return [name.decode(errors="replace") for name in names]


def _is_list_of(kind: type, values: Any) -> bool:
    """Whether the value is a list of plain values of this type."""
    return isinstance(values, list) and all(type(value) is kind for value in values)


@dataset("cifar10")
def cifar10(request: DatasetRequest) -> Dataset:
    """CIFAR-10, the Python version: five training batches and a test batch."""
    train = [f"data_batch_{number}" for number in range(1, 6)]
    published = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-10 python version)"
    folders = ("cifar-10-batches-py", "cifar10/cifar-10-batches-py")
    folder = find_folder("cifar10", request.root, folders, [*train, "test_batch", "batches.meta"], published)
    names = _cifar_names(folder / "batches.meta", b"label_names")
    return dataset_from_arrays(
        "cifar10", _cifar(folder, train, b"labels"), _cifar(folder, ["test_batch"], b"labels"), names
    )


@dataset("cifar100")
def cifar100(request: DatasetRequest) -> Dataset:
    """CIFAR-100 with its fine labels, the Python version."""
    published = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100 python version)"
    folders = ("cifar-100-python", "cifar100/cifar-100-python")
    folder = find_folder("cifar100", request.root, folders, ["train", "test", "meta"], published)
    train, test = (_cifar(folder, [file], b"fine_labels") for file in ("train", "test"))
    return dataset_from_arrays("cifar100", train, test, _cifar_names(folder / "meta", b"fine_label_names"))


# ---- STL-10


@dataset("stl10")
def stl10(request: DatasetRequest) -> Dataset:
    """STL-10, the binary version: channel by channel, each column by column; labels from 1. The ten folds are not
    used."""
    files = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
    folders = ("stl10_binary", "stl10/stl10_binary")
    folder = find_folder("stl10", request.root, folders, files, "https://cs.stanford.edu/~acoates/stl10")

    def read_part(name: str) -> ImagesAndLabels:
        path = folder / f"{name}_X.bin"
        pixels = np.frombuffer(read_small(path, MOST_BYTES), np.uint8)
        if len(pixels) % (3 * 96 * 96):
            raise BadInput(f"{path} is cut short: it does not hold whole images of 96 × 96 pixels; fetch it again.")
        labels = np.frombuffer(read_small(folder / f"{name}_y.bin"), np.uint8).astype(np.int64) - 1
        return pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1), labels

    return dataset_from_arrays(
        "stl10", read_part("train"), read_part("test"), read_text(folder / "class_names.txt", errors="replace").split()
    )


# ---- image files


@dataset("tiny-imagenet", size=64)
def tiny_imagenet(request: DatasetRequest) -> Dataset:
    """Tiny-ImageNet: 200 classes of 64 × 64 pixels, ordered by their WordNet ids; its validation set is the test set,
    for the published test set has no labels."""
    files = ["wnids.txt", "words.txt", "val/val_annotations.txt", "val/images"]
    files += [] if request.required == "test" else ["train"]
    published = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    folders = ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200")
    folder = find_folder("tiny-imagenet", request.root, folders, files, published)
    wnids = sorted(read_text(folder / "wnids.txt", errors="replace").split())
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [] if request.required == "test" else _files_of(folder / "train", wnids, FolderWalk())
    notes = folder / "val/val_annotations.txt"
    test = []
    for line in sorted(read_text(notes, errors="replace").splitlines()):
        file, wnid, *_ = *line.split("\t"), ""
        if wnid not in number:
            raise BadInput(f"{notes} has the line {line!r}, which names no class of wnids.txt: fetch it again.")
        test.append((str(folder / "val/images" / file), number[wnid]))
    count = sum(entry.name.lower().endswith(ENDINGS) for entry in os.scandir(folder / "val/images"))
    if len(test) != count:
        raise BadInput(f"{notes} describes {len(test)} images, but {count} are there: fetch it again.")
    names_of = dict(
        line.split("\t", 1) for line in read_text(folder / "words.txt", errors="replace").splitlines() if "\t" in line
    )
    names = [names_of.get(wnid, wnid).split(",")[0] for wnid in wnids]
    return dataset_from_files("tiny-imagenet", _images_and_labels(train), _images_and_labels(test), names, request.size)


@dataset("imagenet", path=None, size=224)
def imagenet(request: DatasetRequest) -> Dataset:
    """ImageNet-1k: train/WNID/*.JPEG, and val/WNID/*.JPEG as the test set (or val/*.JPEG with LOC_val_solution.csv in
    a folder above it); classes ordered by their WordNet ids. imagenet:PATH names the folder that holds train and val,
    or the folder val itself."""
    published = "https://image-net.org (ILSVRC2012; sort the validation images into folders named by their WordNet id)"
    folders = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")
    required = ["train", "val"] if request.required == "both" else ["val"]
    if not request.path:
        return _imagenet(find_folder("imagenet", request.root, folders, required, published), request)
    folder = requested_path(request)
    inside = next((folder / name for name in (".", *folders) if (folder / name / "val").is_dir()), None)
    if inside is not None:
        return _imagenet(inside, request)
    if not any(WNID.fullmatch(name) for name in _folders(folder)):
        raise BadInput(f"{folder} holds neither the folder val nor folders named by WordNet ids such as n01440764.")
    return _class_folders("imagenet", None, folder, request.size)


WNID = re.compile(r"n\d{8}")
SOLUTION = "LOC_val_solution.csv"


def _imagenet(folder: Path, request: DatasetRequest) -> Dataset:
    """Validation images in folders by class, or side by side with a table of their classes (Kaggle's layout)."""
    val = folder.resolve() / "val"
    table = next((above / SOLUTION for above in (val, *val.parents) if (above / SOLUTION).is_file()), None)
    if table is None or any(entry.is_dir() for entry in os.scandir(val)):
        return _divided("imagenet", folder, "val", request)
    lines = [line.split(",", 1) for line in read_text(table, errors="replace").splitlines()[1:] if "," in line]
    wnids = {name: rest.split()[0] for name, rest in lines if WNID.match(rest)}
    classes = sorted(set(wnids.values()))
    number = {wnid: label for label, wnid in enumerate(classes)}
    rows = [(str(val / f"{name}.JPEG"), number[wnid]) for name, wnid in sorted(wnids.items())]
    train = folder / "train" if request.required != "test" and (folder / "train").is_dir() else None
    files = _files_of(train, classes, FolderWalk()) if train else []
    return dataset_from_files("imagenet", _images_and_labels(files), _images_and_labels(rows), classes, request.size)


@dataset("folder", path=True, size=224)
def folder(request: DatasetRequest) -> Dataset:
    """folder:PATH: PATH/train/CLASS/*.jpg and PATH/test/CLASS/*.jpg (or val); or PATH/CLASS/*.jpg alone, of which a
    fixed, stratified fifth is then the test set. folder:PATH@SIZE for another size than 224 pixels."""
    folder = requested_path(request)
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    held_out = next((name for name in ("test", "val") if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() or (held_out and request.required != "both"):
        if held_out is None:
            raise BadInput(f"{folder} holds the folder train, but neither test nor val beside it.")
        return _divided(folder.name, folder, held_out, request)
    if request.required != "both":  # no training images: all of them are test images
        return _class_folders(folder.name, None, folder, request.size)
    classes, walk = _folders(folder), FolderWalk()
    rows = _files_of(folder, classes, walk)
    parts = stratified(np.array([label for _, label in rows]), 0.2, seed=0)
    train, test = (_images_and_labels([rows[row] for row in subset]) for subset in parts)
    return replace(dataset_from_files(folder.name, train, test, classes, request.size), notes=walk.notes)


def _divided(name: str, folder: Path, held_out: str, request: DatasetRequest) -> Dataset:
    """PATH/train beside PATH/test or PATH/val; without PATH/train if only test images are required or exist."""
    train = None if request.required == "test" or not (folder / "train").is_dir() else folder / "train"
    return _class_folders(name, train, folder / held_out, request.size)


def _folders(folder: Path) -> list[str]:
    """Class folders by name; hidden ones are not classes."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise BadInput(f"{folder} holds no folders: it must hold one for each class, with images in it.")
    return names


@dataclass
class FolderWalk:
    """Counts of the folders and files that a scan of a dataset met."""

    folders: dict[tuple[int, int], str] = field(default_factory=dict)  # path by device and inode
    skipped: list[str] = field(default_factory=list)  # files that are no images by their endings

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the number of skipped files and their suffixes."""
        if not self.skipped:
            return ()
        endings = sorted({Path(name).suffix.lower() or "no ending" for name in self.skipped})
        count = len(self.skipped)
        return (f"{count:,} file{'s' * (count != 1)} skipped: {', '.join(endings)}.",)


def _files_of(folder: Path, classes: Sequence[str], walk: FolderWalk) -> list[tuple[str, int]]:
    """(path, label) of every image under the classes' folders, by class and then by name."""
    rows: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        before = len(rows)
        rows += [(file, label) for file in _images_below(folder / name, walk)]
        if len(rows) == before:
            raise BadInput(f"{folder / name} holds no images ({', '.join(ENDINGS)}): every class needs some.")
    return rows


@dataset("images", path=True, size=224)
def images(request: DatasetRequest) -> Dataset:
    """images:PATH: every image below a folder, by name, without labels."""
    folder = requested_path(request)
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    walk = FolderWalk()
    files = sorted(_images_below(folder, walk))
    if not files:
        raise BadInput(f"{folder} holds no images ({', '.join(ENDINGS)}).")
    none: ImagesAndLabels = [], np.zeros(0, np.int64)
    loaded = dataset_from_files(folder.name, none, (files, np.zeros(len(files), np.int64)), ["image"], request.size)
    return replace(loaded, labelled=False, notes=walk.notes)


def _images_below(path: str | Path, walk: FolderWalk) -> list[str]:
    """Every image file below a folder, in order; hidden folders and files are passed over.

    Links are followed, but no folder is looked into twice: a link could form a cycle, or count images of another class
    or split twice.
    """
    status = os.stat(path)
    twin = walk.folders.setdefault((status.st_dev, status.st_ino), str(path))
    if twin != str(path):
        raise BadInput(f"{path} is the same folder as {twin}: remove the link, or its images would count twice.")
    above = Path(os.path.realpath(path))
    if os.path.islink(path) and above in Path(os.path.realpath(os.path.dirname(path))).parents:
        raise BadInput(f"{path} is a link to a folder that it lies in: remove it.")
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    inner = sorted(entry.name for entry in visible if entry.is_dir())
    files = sorted(entry.name for entry in visible if not entry.is_dir())
    images = [os.path.join(path, name) for name in files if name.lower().endswith(ENDINGS)]
    walk.skipped += [name for name in files if not name.lower().endswith(ENDINGS)]
    return images + [image for name in inner for image in _images_below(os.path.join(path, name), walk)]


def _images_and_labels(rows: Sequence[tuple[str, int]]) -> ImagesAndLabels:
    return [path for path, _ in rows], np.array([label for _, label in rows], np.int64)


def _class_folders(name: str, train: Path | None, test: Path, size: int) -> Dataset:
    classes = _folders(test)
    odd = sorted(set(classes) ^ set(_folders(train))) if train else []
    if odd:
        raise BadInput(f"{train} and {test} must hold the same classes, but {odd[0]} is in one of them only.")
    walk = FolderWalk()
    files = _images_and_labels(_files_of(train, classes, walk) if train else [])
    loaded = dataset_from_files(name, files, _images_and_labels(_files_of(test, classes, walk)), classes, size)
    return replace(loaded, notes=walk.notes)


# ---- arrays


@dataset("npz", path=True, size=0)
def npz(request: DatasetRequest) -> Dataset:
    """npz:PATH: arrays x_train, y_train, x_test, y_test (uint8 images); or encoded images end to end in `blob`, cut at
    `offsets`, with labels `y` and the words train and test (or val) in `split`, which npz:PATH@SIZE resizes. `classes`
    may contain the class names. Beside arrays of images there may be human votes, annotations_test (n, c), and groups,
    groups/NAME_test (n,), likewise for train; y_* of shape (n, height, width) are label maps, whose label `void` is
    ignored."""
    path = requested_path(request)
    with files.naming_file(path, "read"):
        arrays = files.read_named_arrays(path)
        _check_arrays(arrays)
        names = arrays.get("classes", arrays.get("wnids"))
        classes = _named_by_labels(arrays) if names is None else _class_names(names)
        if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
            if request.size:
                raise BadInput("it holds images as arrays, which cannot be resized: leave the size out.")
            train = arrays["x_train"], arrays["y_train"]
            return _with_extras(
                dataset_from_arrays(path.stem, train, (arrays["x_test"], arrays["y_test"]), classes), arrays
            )
        if {"x_test", "y_test"} <= arrays.keys() and not request.size:
            test = arrays["x_test"], arrays["y_test"]
            return _with_extras(dataset_from_arrays(path.stem, (test[0][:0], test[1][:0]), test, classes), arrays)
        if {"blob", "offsets", "y", "split"} <= arrays.keys():
            return _pack(path.stem, arrays, classes, request)
        raise BadInput(
            f"it holds {', '.join(arrays) or 'nothing'}; x_train, y_train, x_test, y_test were expected, "
            "or blob, offsets, y, split."
        )


def _class_names(names: Array) -> list[str]:
    """The names of the classes, one text for each."""
    if names.dtype.kind != "U" or names.ndim != 1:
        raise BadInput(
            f"the names of its classes have shape {names.shape} of {names.dtype}: save one text for each class, as "
            "classes=np.array(['cat', 'dog'])."
        )
    class_names: list[str] = names.tolist()
    if len(set(class_names)) < len(class_names):
        twice = next(word for word in class_names if class_names.count(word) > 1)
        raise BadInput(f"its classes contain the name {twice!r} twice: give every class a name of its own.")
    return class_names


def _named_by_labels(arrays: Mapping[str, Array]) -> list[str] | None:
    """Numbers as class names of label maps, except `void`."""
    labels = [arrays[name] for name in ("y_train", "y_test") if name in arrays]
    if "void" not in arrays or not labels:
        return None
    most = max(int(array[array != arrays["void"]].max(initial=0)) for array in labels)
    return [str(label) for label in range(most + 1)]


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        if name == "void" and (array.ndim or array.dtype.kind not in "iu"):
            raise BadInput(f"void has shape {array.shape} of {array.dtype}: it must be one whole number.")
        if name != "void" and not array.ndim:
            raise BadInput(f"{name} holds one value: it must hold one for every row.")


def _with_extras(dataset: Dataset, arrays: Mapping[str, Array]) -> Dataset:
    """The dataset with the votes and groups that an npz file holds beside its images."""
    parts = {}
    for word in ("train", "test"):
        images: Images = getattr(dataset, word)
        votes = arrays.get(f"annotations_{word}")
        if votes is not None:
            check_votes(votes)
        groups = {
            name.removeprefix("groups/").removesuffix(f"_{word}"): values
            for name, values in arrays.items()
            if name.startswith("groups/") and name.endswith(f"_{word}")
        }
        for name, values in (({} if votes is None else {"annotations": votes}) | groups).items():
            if len(values) != len(images):
                raise BadInput(f"{name}_{word} has {len(values)} rows, and there are {len(images)} {word} images.")
        if votes is not None and votes.shape[1] != len(dataset.classes):
            raise BadInput(
                f"annotations_{word} has votes for {votes.shape[1]} classes, and there are {len(dataset.classes)}."
            )
        parts[word] = replace(images, annotations=votes, groups=groups)
    void = int(arrays["void"]) if "void" in arrays else None
    return replace(dataset, **parts, void=void)


def _pack(name: str, arrays: dict[str, Array], classes: list[str] | None, request: DatasetRequest) -> Dataset:
    blob, cut, labels, subset_names = (arrays[key] for key in ("blob", "offsets", "y", "split"))
    if not len(cut) - 1 == len(labels) == len(subset_names):
        raise BadInput(
            f"offsets cuts {len(cut) - 1} images, y has {len(labels)} rows, split {len(subset_names)}: make them equal."
        )
    if (
        cut.dtype.kind not in "iu"
        or subset_names.dtype.kind != "U"
        or any(array.ndim > 1 for array in (blob, cut, subset_names))
    ):
        raise BadInput("offsets must hold whole numbers, split the words train and test, and each one axis.")
    if blob.dtype != np.uint8 or cut[0] < 0 or (np.diff(cut) <= 0).any() or cut[-1] > len(blob):
        raise BadInput("offsets must rise and stay inside blob, which must be uint8.")
    images = [blob[start:end].tobytes() for start, end in pairwise(cut.tolist())]
    held_out = "test" if (subset_names == "test").any() else "val"
    rows = [np.flatnonzero(subset_names == word) for word in ("train", held_out)]
    if request.required == "all":
        rows = [rows[0][:0], np.arange(len(labels))]
    train, test = (([images[row] for row in subset], labels[subset]) for subset in rows)
    # A small image is used whole.
    first = next((encoded_images[0] for encoded_images, _ in (train, test) if encoded_images), None)
    size = request.size or (min(decode.rgb(first).size) if first else 1)
    return dataset_from_files(name, train, test, classes, size, crop=1.0)
