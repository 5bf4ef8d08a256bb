"""Readers of datasets for retrieval and for human uncertainty.

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
from nescio.datasets.images import Dataset
from nescio.datasets.readers import DatasetRequest, dataset, find_folder
from nescio.datasets.standard import cifar10
from nescio.errors import BadInput
from nescio.files import read_list, read_small, read_text
from nescio.predictions import files
from nescio.predictions.inputs import votes as check_votes

SIZE = 224


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
    folder = find_folder(request, "cub200", ("CUB_200_2011", "cub200/CUB_200_2011"), required, published)
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
    folder = find_folder(request, "cars196", ("cars196", "Cars196", "CARS"), ("cars_annos.mat", "car_ims"), published)
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
            raise BadInput("its `annotations` or `class_names` are incomplete: fetch it again.") from None
    return _by_class("cars196", paths, labels, len(names) // 2, names, request.size)


@dataset("sop", path=None, size=SIZE)
def sop(request: DatasetRequest) -> Dataset:
    """Stanford Online Products: Ebay_train.txt and Ebay_test.txt, whose classes differ, and the folders they name."""
    published = "https://cvgl.stanford.edu/projects/lifted_struct"
    required = ("Ebay_train.txt", "Ebay_test.txt")
    folder = find_folder(
        request, "sop", ("Stanford_Online_Products", "sop/Stanford_Online_Products"), required, published
    )
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
    path = find_folder(request, "cifar10h", folders, ["cifar10h-counts.npy"], published) / "cifar10h-counts.npy"
    dataset = cifar10(request)
    with files.naming_file(path, "read"):
        votes = check_votes(files.read_array(path))
    if votes.shape != (len(dataset.test), len(dataset.classes)):
        raise BadInput(
            f"{path} has votes of shape {votes.shape}: the shape must be {len(dataset.test)} images × 10 classes."
        )
    return replace(dataset, name="cifar10h", test=replace(dataset.test, annotations=votes))


def _voted(request: DatasetRequest, name: str, folder: str) -> Dataset:
    """FOLDER/annotations.json lists the votes of every annotator as image_path (relative to the parent of FOLDER) and
    class_label.

    All images are test images; the label is the class with most votes, ties by name.
    """
    published = "https://zenodo.org/records/7180818"
    file = find_folder(request, name, (folder, f"dcic/{folder}"), ("annotations.json",), published)
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
