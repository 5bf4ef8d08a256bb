"""Readers of datasets whose images are arrays: scikit-learn's, MNIST, CIFAR and STL-10."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.builders import ImagesAndLabels, dataset_from_arrays
from nescio.datasets.images import Dataset
from nescio.datasets.readers import DatasetRequest, dataset, find_folder
from nescio.datasets.splits import stratified
from nescio.errors import BadInput
from nescio.files import check_growth, read_small, read_text

MOST_BYTES = 1 << 30  # maximum size of a file of STL-10; the largest has 221 MB
MOST_PICKLE_BYTES = 1 << 29  # maximum size of a file of CIFAR; the largest has 155 MB
DIGITS = [str(number) for number in range(10)]


# ---- images in scikit-learn's package


def _sklearn_file(name: str) -> Path:
    """A file of the package, found without importing it: the import takes longer than all the rest."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder) / "datasets" / name).is_file():
            return file
    raise BadInput(f"Scikit-learn's file {name} is missing: install scikit-learn again.")


@dataset("digits")
def digits(request: DatasetRequest) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels; a fixed, stratified third is the test set."""
    with gzip.open(_sklearn_file("data/digits.csv.gz"), "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    labels = table[:, -1].astype(np.int64)
    pixels = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    train, test = stratified(labels, 1 / 3, seed=0)
    return dataset_from_arrays("digits", (pixels[train], labels[train]), (pixels[test], labels[test]), DIGITS)


@dataset("china-flower")
def china_flower(request: DatasetRequest) -> Dataset:
    """Scikit-learn's two photographs in 1,000 crops of 32 × 32 pixels, all of them test images: a far
    out-of-distribution set that needs no download."""
    names, size, count = ("china", "flower"), 32, 500
    crops = [_crops(np.asarray(decode.rgb(str(_sklearn_file(f"images/{name}.jpg")))), size, count) for name in names]
    nothing = np.zeros((0, size, size, 3), np.uint8), np.zeros(0, np.int64)
    return dataset_from_arrays("china-flower", nothing, (np.concatenate(crops), np.repeat([0, 1], count)), names)


def _crops(photograph: Array, size: int, count: int) -> Array:
    """(count, size, size, 3) crops on an even grid, twice as wide as kept, averaged over 2 × 2 pixels."""
    wide = 2 * size
    lines = int(np.ceil(np.sqrt(count)))
    tops, lefts = (np.linspace(0, length - wide, lines).astype(int) for length in photograph.shape[:2])
    corners = [(top, left) for top in tops for left in lefts][:count]
    crops = np.stack([photograph[top : top + wide, left : left + wide] for top, left in corners])
    return np.asarray(np.round(crops.reshape(count, size, 2, size, 2, 3).mean((2, 4))), np.uint8)


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
    folder = find_folder(request, name, folders, files, published, endings=("", ".gz"))
    train, train_labels, test, test_labels = (_idx(folder, file) for file in files)
    return dataset_from_arrays(name, (train, train_labels), (test, test_labels), classes)


@dataset("mnist")
def mnist(request: DatasetRequest) -> Dataset:
    """MNIST: the four idx files, plain or gzipped."""
    published = "https://yann.lecun.com/exdb/mnist (copy: https://ossci-datasets.s3.amazonaws.com/mnist)"
    return _read_idx_dataset(request, "mnist", ("mnist", "MNIST/raw"), published, DIGITS)


@dataset("fashion-mnist")
def fashion_mnist(request: DatasetRequest) -> Dataset:
    """Fashion-MNIST: the four idx files, plain or gzipped."""
    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    published = "https://github.com/zalandoresearch/fashion-mnist"
    return _read_idx_dataset(request, "fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), published, classes)


# ---- CIFAR


class _Array:
    """A stand-in for a NumPy array of bytes; unpickling calls no code of NumPy."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, content = state
        if dtype.code not in (b"u1", "u1") or fortran_order or math.prod(shape) != len(content):
            raise ValueError("no file of CIFAR contains such an array")
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


class _DType:
    """A stand-in for a NumPy dtype; its state is ignored."""

    def __init__(self, code: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _CIFARUnpickler(pickle.Unpickler):
    """Calls nothing but stand-ins for NumPy's array and dtype."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: _Array()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return lambda *arguments: _DType(arguments[0])
        raise BadInput(f"it would run {module}.{name}, which no file of CIFAR does")


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a file of CIFAR, with texts as bytes; BadInput if the file contains anything else."""
    try:
        content = read_small(path, MOST_PICKLE_BYTES)
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "GLOBAL":
                _CIFARUnpickler.find_class(None, *argument.split(" ", 1))  # type: ignore[arg-type]
            if opcode.name.endswith("PUT") and int(argument) > len(content):
                raise ValueError("a memo index above the size of the file would fill the memory")
        loaded = _CIFARUnpickler(io.BytesIO(content), encoding="bytes").load()
    except BadInput as error:
        raise BadInput(f"{path} was not read: {error}. Fetch it again from where it is published.") from None
    except OSError:
        raise
    except Exception:  # a damaged pickle can fail in any way
        raise BadInput(f"{path} is not a whole file of CIFAR: fetch it again.") from None
    if not isinstance(loaded, dict):
        return {}
    return {_plain(key): _plain(value) for key, value in loaded.items()}


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value


def _cifar(folder: Path, files: Sequence[str], key: bytes) -> ImagesAndLabels:
    """Images stored as a row of 3,072 bytes: 1,024 of red, 1,024 of green, 1,024 of blue, each row by row."""
    images, labels = [], []
    for path in (folder / file for file in files):
        content = read_pickle(path)
        data, numbers = content.get(b"data"), content.get(key)
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3072,) or not _is_list_of(int, numbers):
            raise BadInput(f"{path} lacks `data`, bytes of shape (n, 3072), or `{key.decode()}`: fetch it again.")
        images.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(np.asarray(numbers))
    return np.concatenate(images), np.concatenate(labels)


def _cifar_names(path: Path, key: bytes) -> list[str]:
    names = read_pickle(path).get(key)
    if not _is_list_of(bytes, names):
        raise BadInput(f"{path} lacks `{key.decode()}`, a list of names: fetch it again.")
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
    folder = find_folder(request, "cifar10", folders, [*train, "test_batch", "batches.meta"], published)
    names = _cifar_names(folder / "batches.meta", b"label_names")
    return dataset_from_arrays(
        "cifar10", _cifar(folder, train, b"labels"), _cifar(folder, ["test_batch"], b"labels"), names
    )


@dataset("cifar100")
def cifar100(request: DatasetRequest) -> Dataset:
    """CIFAR-100 with its fine labels, the Python version."""
    published = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100 python version)"
    folders = ("cifar-100-python", "cifar100/cifar-100-python")
    folder = find_folder(request, "cifar100", folders, ["train", "test", "meta"], published)
    train, test = (_cifar(folder, [file], b"fine_labels") for file in ("train", "test"))
    return dataset_from_arrays("cifar100", train, test, _cifar_names(folder / "meta", b"fine_label_names"))


# ---- STL-10


@dataset("stl10")
def stl10(request: DatasetRequest) -> Dataset:
    """STL-10, the binary version: channel by channel, each column by column; labels from 1. The ten folds are not
    used."""
    files = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
    folders = ("stl10_binary", "stl10/stl10_binary")
    folder = find_folder(request, "stl10", folders, files, "https://cs.stanford.edu/~acoates/stl10")

    def read_part(name: str) -> ImagesAndLabels:
        path = folder / f"{name}_X.bin"
        pixels = np.frombuffer(read_small(path, MOST_BYTES), np.uint8)
        if len(pixels) % (3 * 96 * 96):
            raise BadInput(f"{path} is cut short within an image of 96 × 96 pixels: fetch it again.")
        labels = np.frombuffer(read_small(folder / f"{name}_y.bin"), np.uint8).astype(np.int64) - 1
        return pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1), labels

    return dataset_from_arrays(
        "stl10", read_part("train"), read_part("test"), read_text(folder / "class_names.txt", errors="replace").split()
    )
