"""Splits of datasets."""

import subprocess
import sys

import numpy as np
import pytest

from nescio.datasets import builders, load, split_dataset, stratified
from nescio.errors import BadInput
from nescio.identity import seed_for
from tests.support.published_layouts import (
    fresh,  # noqa: F401  (used by every test)
    pictures,
)


def test_stratified__a_share_of_every_class_and_never_its_last_row():
    labels = np.repeat([4, 7, 9, 2], [100, 15, 2, 1])
    rest, held = stratified(labels, 0.1, 5)
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.arange(118))
    assert np.bincount(labels[held], minlength=10)[[4, 7, 9, 2]].tolist() == [10, 2, 1, 0]
    assert np.array_equal(stratified(labels, 0.1, 5)[1], held)
    assert not np.array_equal(stratified(labels, 0.1, 6)[1], held)
    # Every row is as likely as any other.
    often = np.mean([np.isin(np.arange(100), stratified(labels, 0.1, seed)[1]) for seed in range(400)], 0)
    assert abs(often.mean() - 0.1) < 1e-9 and often.max() < 0.17 and often.min() > 0.04


def test_splits__train_validation_and_test_are_apart():
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


def test_split_dataset__a_split_is_a_function_of_the_revision_and_the_seed(tmp_path):
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


def test_splits__in_domain_classes_are_renumbered_and_the_others_are_not_taught():
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


def test_split_dataset__classes_that_cannot_be_split_are_refused():
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
