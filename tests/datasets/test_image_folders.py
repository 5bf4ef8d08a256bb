"""Folders of image files."""

import os

import numpy as np
import pytest

from nescio.datasets import load, readers
from nescio.errors import BadInput
from tests.support.published_layouts import (
    close,
    fresh,  # noqa: F401  (used by every test)
    smooth,
    write,
    write_folders,
    write_imagenet,
    write_stl10,
    write_tiny,
)


def test_image_folders__tiny_imagenet_is_read(tmp_path):
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


def test_image_folders__imagenet_is_read(tmp_path):
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
def test_image_folders__a_folder_with_its_own_split(tmp_path, held_out):
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


def test_image_folders__a_folder_without_split_gives_a_fifth_of_every_class(tmp_path):
    write_folders(tmp_path / "birds", 10, "PNG", ("crow", "owl"), width=32, height=32)
    found = load("folder:birds@32", tmp_path)
    assert np.bincount(found.train.labels).tolist() == [8, 8] and np.bincount(found.test.labels).tolist() == [2, 2]
    levels = [np.unique(images.pixels[:, 0, 0, 2]) for images in (found.train, found.test)]
    assert not set(levels[0]) & set(levels[1]) and len(levels[0]) + len(levels[1]) == 20
    readers._load.cache_clear()
    assert np.array_equal(load("folder:birds@32", tmp_path).test.pixels, found.test.pixels)


@pytest.mark.parametrize("link", ["cats/again", "cats/inner/loop", "dogs/others", "owls"])
def test_image_folders__a_link_that_would_count_images_twice_is_refused(tmp_path, link):
    write_folders(tmp_path / "a/train", 2, names=("cats", "dogs"))
    write_folders(tmp_path / "a/test", 2, names=("cats", "dogs"))
    (tmp_path / "a/train/cats/inner").mkdir()
    goal = {"cats/again": ".", "cats/inner/loop": "../..", "dogs/others": "../cats", "owls": "../train"}[link]
    (tmp_path / "a/train" / link).symlink_to(goal)
    if link == "owls":
        (tmp_path / "a/test/owls").symlink_to("../test/cats")
    with pytest.raises(BadInput, match=r"same folder|is a link"):
        load(f"folder:{tmp_path}/a@32")


def test_image_folders__test_images_that_are_training_images_are_refused(tmp_path):
    write_folders(tmp_path / "a/train", 2, names=("cats", "dogs"))
    (tmp_path / "a/test").symlink_to("train")
    with pytest.raises(BadInput, match="same folder"):
        load(f"folder:{tmp_path}/a@32")


def test_image_folders__links_to_folders_elsewhere_are_followed(tmp_path):
    write_folders(tmp_path / "store", 6, names=("cats", "dogs"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").symlink_to("../store/cats")
    (tmp_path / "a/y").symlink_to("../store/dogs")
    found = load(f"folder:{tmp_path}/a@32")
    assert len(found.train) + len(found.test) == 12 and found.classes == ("x", "y")


def test_image_folders__a_pipe_under_the_name_of_an_image_is_refused(tmp_path):
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


def test_image_folders__folders_that_are_no_classes_are_refused(tmp_path):
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
