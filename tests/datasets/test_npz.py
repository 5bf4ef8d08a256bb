"""Datasets in .npz files."""

import os
from pathlib import Path

import numpy as np
import pytest

from nescio.datasets import decode, load, readers, split_dataset
from nescio.errors import BadInput
from tests.support.published_layouts import (
    cut,
    fresh,  # noqa: F401  (used by every test)
    pack,
    pictures,
    same,
)

REAL = os.environ.get("NESCIO_DATA", "")


def test_npz__an_npz_of_arrays(tmp_path):
    train, test = (pictures(20, 8, 1)[..., 0], np.arange(20) % 4), (pictures(8, 8, 1, 1)[..., 0], np.arange(8) % 4)
    arrays = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    np.savez(tmp_path / "toy.npz", **arrays)
    found = load("npz:toy.npz", tmp_path)
    same(found, (train[0][..., None], train[1]), (test[0][..., None], test[1]))
    assert found.name == "toy" and found.classes == ("0", "1", "2", "3")
    np.savez(tmp_path / "named.npz", **arrays, classes=np.array(["a", "b", "c", "d"]))
    assert load(f"npz:{tmp_path}/named.npz").classes == ("a", "b", "c", "d")


def test_npz__an_npz_of_encoded_images(tmp_path):
    pack(tmp_path / "toy.npz", classes=np.array(list("abcd")))
    found = load("npz:toy.npz", tmp_path)
    rows = np.arange(12) % 3 == 2
    pixels, labels = pictures(12, 16), np.arange(12) // 3
    same(found, (pixels[~rows], labels[~rows]), (pixels[rows], labels[rows]))
    assert (found.size, found.classes) == (16, tuple("abcd"))
    assert load("npz:toy.npz@8", tmp_path).train.pixels.shape == (8, 8, 8, 3)
    pack(tmp_path / "val.npz", words=("train", "train", "val"))
    assert load("npz:val.npz", tmp_path).test.labels.tolist() == [0, 1, 2, 3]


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
        ({"y_train": np.int64(3)}, "y_train is a single value"),
        ({"void": np.array(["sky"])}, "void has shape .1,. of <U3"),
        ({"y_test": np.array([0, 1, 2, -1])}, "outside 0 to 3"),
        ({"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0, int)}, "no training images"),
        ({"y_train": np.array([0, 1, None, 2])}, "pickle is never loaded"),
    ],
)
def test_npz__an_npz_that_is_not_what_it_should_be_is_refused(tmp_path, held, words):
    images = np.zeros((4, 8, 8), np.uint8)
    whole = {"x_train": images, "y_train": np.arange(4), "x_test": images, "y_test": np.arange(4)}
    np.savez(tmp_path / "toy.npz", **(held if "x" in held else {**whole, **held}))
    with pytest.raises(BadInput, match=words) as no:
        load("npz:toy.npz", tmp_path)
    assert "toy.npz" in str(no.value)


def test_npz__a_pack_that_is_not_whole_is_refused(tmp_path):
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


@pytest.mark.parametrize(
    ("file", "rows", "size", "name"),
    [
        ("tiny_imagenet_100.npz", (23_000, 3_000), 64, "Egyptian cat"),
        ("cifar100_small.npz", (10_000, 6_000), 32, "apple"),
    ],
)
def test_split_dataset__real_packs(file, rows, size, name, monkeypatch):
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
