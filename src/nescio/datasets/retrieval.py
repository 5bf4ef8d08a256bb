"""Readers of datasets for retrieval and for human uncertainty, and subsets of datasets by classes.

CUB-200-2011, CARS-196 and Stanford Online Products are split by classes, the first half for training (url.txt §3.2);
the sets of Schmarje et al. 2022 have several human votes on every image (§4.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets.builders import dataset_from_files
from nescio.datasets.image_set import draw_rows
from nescio.datasets.images import Dataset, Images
from nescio.datasets.names import name_for_keys
from nescio.datasets.pixels import EncodedImages
from nescio.datasets.readers import DatasetRequest, dataset, find_folder, load, requested_path
from nescio.datasets.splits import stratified
from nescio.datasets.standard import cifar10
from nescio.errors import BadInput
from nescio.files import read_list, read_small, read_text
from nescio.identity import map_content, seed_for
from nescio.predictions import files
from nescio.predictions.inputs import votes as check_votes
from nescio.specs import DatasetName, SpecError, numbers, select, selections, write_numbers

SIZE = 224


def _folder(
    request: DatasetRequest, name: str, folders: Sequence[str], required: Sequence[str], published: str
) -> Path:
    return requested_path(request) if request.path else find_folder(name, request.root, folders, required, published)


def _lines(path: Path) -> list[list[str]]:
    """The words of every line of a text file."""
    try:
        return [line.split() for line in read_text(path, errors="replace").splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _by_class(
    name: str, paths: Sequence[str], labels: Array, trained: int, classes: Sequence[str], size: int
) -> Dataset:
    """A dataset with its first `trained` classes for training and the others for testing."""
    train, test = (
        ([paths[row] for row in rows.tolist()], labels[rows])
        for rows in (np.flatnonzero(labels < trained), np.flatnonzero(labels >= trained))
    )
    return dataset_from_files(name, train, test, classes, size)


@dataset("cub200", path=None, size=SIZE)
def cub200(request: DatasetRequest) -> Dataset:
    """CUB-200-2011: images.txt, image_class_labels.txt, classes.txt and images; classes 101 to 200 are the test set."""
    required = ("images.txt", "image_class_labels.txt", "classes.txt", "images")
    published = "https://www.vision.caltech.edu/datasets/cub_200_2011"
    folder = _folder(request, "cub200", ("CUB_200_2011", "cub200/CUB_200_2011"), required, published)
    try:
        names = [name for _, name in _lines(folder / "classes.txt")]
        label = {image: int(number) - 1 for image, number in _lines(folder / "image_class_labels.txt")}
        rows = [(str(folder / "images" / path), label.get(image, -1)) for image, path in _lines(folder / "images.txt")]
    except BadInput:
        raise
    except ValueError:
        raise BadInput(
            f"{folder} has a text file with a line that is not a number and a name: fetch it again."
        ) from None
    labels = np.array([number for _, number in rows])
    return _by_class("cub200", [path for path, _ in rows], labels, len(names) // 2, names, request.size)


@dataset("cars196", path=None, size=SIZE)
def cars196(request: DatasetRequest) -> Dataset:
    """CARS-196: cars_annos.mat beside the folder car_ims; classes 99 to 196 are the test set."""
    published = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (car_ims.tgz and cars_annos.mat)"
    folder = _folder(request, "cars196", ("cars196", "Cars196", "CARS"), ("cars_annos.mat", "car_ims"), published)
    from scipy.io import loadmat

    with files.naming_file(folder / "cars_annos.mat", "read"):
        try:
            content = loadmat(BytesIO(read_small(folder / "cars_annos.mat")), squeeze_me=True)
            notes = np.atleast_1d(content["annotations"])
            names = [str(name) for name in np.atleast_1d(content["class_names"])]
            paths = [str(folder / str(path)) for path in notes["relative_im_path"]]
            labels = notes["class"].astype(np.int64) - 1
        except (OSError, BadInput):
            raise
        except Exception:  # a damaged file can fail in any way inside SciPy
            raise BadInput("it does not hold whole `annotations` and `class_names`: fetch it again.") from None
    return _by_class("cars196", paths, labels, len(names) // 2, names, request.size)


@dataset("sop", path=None, size=SIZE)
def sop(request: DatasetRequest) -> Dataset:
    """Stanford Online Products: Ebay_train.txt and Ebay_test.txt, whose classes differ, and the folders they name."""
    published = "https://cvgl.stanford.edu/projects/lifted_struct"
    required = ("Ebay_train.txt", "Ebay_test.txt")
    folder = _folder(request, "sop", ("Stanford_Online_Products", "sop/Stanford_Online_Products"), required, published)
    parts, most = [], 0
    for file in required:
        try:
            rows = [(str(folder / path), int(label) - 1) for _, label, _, path in _lines(folder / file)[1:]]
        except BadInput:
            raise
        except ValueError:
            raise BadInput(f"{folder / file} has a line without four words: fetch it again.") from None
        labels = np.array([label for _, label in rows], np.int64)
        most = max(most, int(labels.max(initial=-1)) + 1)
        parts.append(([path for path, _ in rows], labels))
    return dataset_from_files("sop", parts[0], parts[1], [str(label + 1) for label in range(most)], request.size)


# ---- several human votes on every image


@dataset("cifar10h")
def cifar10h(request: DatasetRequest) -> Dataset:
    """CIFAR-10 with the human votes of CIFAR-10H on its test images: cifar10h-counts.npy beside the Python version."""
    folders = ("cifar-10h/data", "cifar-10h-master/data", "cifar10h", "cifar-10h")
    published = "https://github.com/jcpeterson/cifar-10h (data/cifar10h-counts.npy)"
    path = find_folder("cifar10h", request.root, folders, ["cifar10h-counts.npy"], published) / "cifar10h-counts.npy"
    dataset = cifar10(request)
    with files.naming_file(path, "read"):
        votes = check_votes(files.read_array(path))
    if votes.shape != (len(dataset.test), len(dataset.classes)):
        raise BadInput(
            f"{path} holds votes of shape {votes.shape}: it must be {len(dataset.test)} images × 10 classes."
        )
    return replace(dataset, name="cifar10h", test=replace(dataset.test, annotations=votes))


def _voted(request: DatasetRequest, name: str, folder: str) -> Dataset:
    """FOLDER/annotations.json lists the votes of every annotator as image_path (relative to the parent of FOLDER) and
    class_label.

    All images are test images; the label is the class with most votes, ties by name.
    """
    published = "https://zenodo.org/records/7180818"
    file = _folder(request, name, (folder, f"dcic/{folder}"), ("annotations.json",), published)
    with files.naming_file(file / "annotations.json", "read"):
        try:
            entries = read_list(file / "annotations.json")
            votes = [(vote["image_path"], vote["class_label"]) for entry in entries for vote in entry["annotations"]]
            if not all(isinstance(path, str) for path, _ in votes):
                raise TypeError("a path is a text")
            if not votes:
                raise ValueError("no votes")
        except (ValueError, KeyError, TypeError):
            raise BadInput("it does not list `annotations` with `image_path` and `class_label`.") from None
    paths, image = np.unique([path for path, _ in votes], return_inverse=True)
    classes, label = np.unique([str(word) for _, word in votes], return_inverse=True)
    counts = np.zeros((len(paths), len(classes)), np.int64)
    np.add.at(counts, (image, label), 1)
    image_paths = [str(file.parent / path) for path in paths]
    loaded = dataset_from_files(
        name, ([], np.empty(0, np.int64)), (image_paths, counts.argmax(1)), classes.tolist(), request.size
    )
    return replace(loaded, test=replace(loaded.test, annotations=counts))


VOTED = {"benthic": "Benthic", "pig": "Pig", "turkey": "Turkey", "treeversity1": "Treeversity#1"}
for _name, _place in VOTED.items():
    dataset(_name, path=None, size=SIZE)(partial(_voted, name=_name, folder=_place))


# ---- subsets of a dataset by classes


def part_spec(data: str, classes: Sequence[int]) -> str:
    """The dataset name under which `load` returns a set whose test images are the images of these classes."""
    return map_content(data, lambda name: select("part", name, write_numbers(classes)))


def shots_spec(data: str, classes: Sequence[int], shots: int | None, seed: int) -> str:
    """The dataset name for `load` with `shots` training images of each of these classes; None: all."""
    words = write_numbers(classes), "all" if shots is None else str(shots), str(seed)
    return map_content(data, lambda name: select("shots", name, *words))


def load_whole(spec: str, root: str | Path | None) -> Dataset:
    """A dataset with its training images; without training images, all images are test images."""
    try:
        return load(spec, root)
    except BadInput:
        return load(spec, root, "all")


def in_size(spec: str, size: int, root: str | Path | None) -> str:
    """The name of a dataset with its image size, if its images are files that can be resized."""
    dataset = load_whole(spec, root)
    files_of = getattr(dataset.test.backing, "encoded", dataset.test.backing)
    if not isinstance(files_of, EncodedImages) or dataset.size == size or DatasetName.parse(spec).size:
        return spec
    return name_for_keys(f"{spec}@{size}", root)


def disjoint(dataset: Dataset) -> bool:
    """Whether no class has both training and test images."""
    return not set(dataset.train.labels.tolist()) & set(dataset.test.labels.tolist())


@dataset("part", path=True, selectors=1)
def classes_of(request: DatasetRequest) -> Dataset:
    """part:DATA#7-9: a test set of classes 7 to 9 of DATA, of all their images if DATA is split by classes, otherwise
    of its test images."""
    whole, classes, _ = _parsed(request, 0)
    return _replace_images(whole, _pools(whole, classes)[1], None, request)


@dataset("shots", path=True, selectors=3)
def shots(request: DatasetRequest) -> Dataset:
    """shots:DATA#7-9#5#0: five training images (or all) of each of the classes 7 to 9, drawn by seed 0, and test images
    of the same classes: those of DATA, or half of its images if it is split by classes."""
    whole, classes, selectors = _parsed(request, 2)
    try:
        most, seed = None if selectors[0] == "all" else int(selectors[0]), int(selectors[1])
    except ValueError:
        form = "shots:DATA#7-9#5#0, classes, images of each, and a seed"
        raise SpecError(request.path, 0, "images of each class and the seed are whole numbers", form) from None
    pool, test = _pools(whole, classes)
    if pool is None:
        first, second = stratified(test.labels, 0.5, seed_for("shots", whole.revision))
        pool, test = test.take(first), test.take(second)
    if most is not None:
        rows = {label: np.flatnonzero(pool.labels == label) for label in classes}
        drawn = {
            label: draw_rows(len(class_rows), most, seed_for("shots", whole.revision, label, seed))
            for label, class_rows in rows.items()
        }
        pool = pool.take(np.concatenate([class_rows[drawn[label]] for label, class_rows in rows.items()]))
    return _replace_images(whole, test, pool, request)


def _parsed(request: DatasetRequest, more: int) -> tuple[Dataset, tuple[int, ...], list[str]]:
    """The dataset, its classes, and the remaining fields of a name."""
    spec, *selectors = selections(request.path, 1 + more)
    whole, classes = load_whole(spec, request.root), numbers(selectors[0])
    if strange := [label for label in classes if not 0 <= label < len(whole.classes)]:
        raise BadInput(f"{whole.name} has no class {strange[0]}: they run from 0 to {len(whole.classes) - 1}.")
    return whole, classes, selectors[1:]


def _pools(whole: Dataset, classes: Sequence[int]) -> tuple[Images | None, Images]:
    """Training and test images of the classes; for classes with images of one kind only, none and these."""
    train, test = (images.take(np.flatnonzero(np.isin(images.labels, classes))) for images in (whole.train, whole.test))
    if len(train) and len(test) and not disjoint(whole):
        return train, test
    if len(train) and len(test):
        raise BadInput(f"{whole.name} is divided by classes: name training classes or test classes, not both.")
    if not len(train) and not len(test):
        raise BadInput(f"{whole.name} has no image of the classes {write_numbers(classes)}.")
    return None, test if len(test) else train


def _replace_images(whole: Dataset, test: Images, train: Images | None, request: DatasetRequest) -> Dataset:
    """The dataset with these training and test images. No training image is held out for validation: k shots stay k."""
    train = test.take(np.empty(0, np.int64)) if train is None else train
    revision = f"{seed_for(whole.revision, train.index.tolist(), test.index.tolist()):016x}"
    return replace(whole, train=train, test=test, val=train, revision=revision, name=f"{whole.name} part")
