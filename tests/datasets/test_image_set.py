"""Image sets: a description that decides pixels, order and labels completely, and so is part of a key."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from nescio import datasets
from nescio.cli import main
from nescio.datasets.changes import Crop, Rotation
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import to_json

N, CLASSES = 60, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Non-square images with votes and groups: 60 to train on, 60 to test on, four classes."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays |= {
            f"x_{part}": rng.integers(0, 256, (N, 6, 10, 3), np.uint8),
            f"y_{part}": np.arange(N) % CLASSES,
            f"annotations_{part}": rng.integers(0, 9, (N, CLASSES)) + 1.0,
            f"groups/domain_{part}": np.array(["day", "night"])[np.arange(N) // 30],
        }
    path = tmp_path_factory.mktemp("images") / "set.npz"
    np.savez(path, **arrays)
    return f"npz:{path}"


def rows(images: LoadedImages):
    return images.index.tolist()


# ---- splits


def test_image_set__every_split_is_the_rows_that_its_name_says(data):
    sets = {
        split: ImageSet(data, split, classes=(2, 0)).load() for split in ("train", "val", "test", "out", "train_val")
    }
    first = set(range(N))  # keys of training images come first
    assert set(rows(sets["train"])) | set(rows(sets["val"])) == set(rows(sets["train_val"])) < first
    assert not set(rows(sets["train"])) & set(rows(sets["val"]))
    assert len(sets["train_val"]) == 30 and len(sets["test"]) == len(sets["out"]) == 30
    assert not set(rows(sets["test"])) & first and not set(rows(sets["out"])) & set(rows(sets["test"]))
    for split in ("train", "val", "test", "train_val"):  # class 2 is the first of the network, class 0 the second
        own = np.array(rows(sets[split])) % N % CLASSES
        assert set(own.tolist()) == {0, 2} and (sets[split].labels == np.where(own == 2, 0, 1)).all()
        assert sets[split].images.in_distribution.all() if split != "train_val" else True
    out = sets["out"]
    assert set(out.labels.tolist()) == {1, 3} and not out.images.in_distribution.any()
    assert set(ImageSet(data, "out", classes=(2, 0), ood_classes=(3,)).load().labels.tolist()) == {3}


def test_image_set__given_is_what_a_network_from_elsewhere_is_evaluated_on_and_outside_is_everything(data, tmp_path):
    assert rows(ImageSet(data, "test_or_all").load()) == list(range(N, 2 * N))
    outside = ImageSet(data, "all_ood").load()
    assert sorted(rows(outside)) == list(range(2 * N)) and not outside.images.in_distribution.any()
    assert np.array_equal(outside.images.pixels[N], datasets.load(data).test.pixels[0])
    held = np.load(data.removeprefix("npz:"))
    np.savez(tmp_path / "test.npz", x_test=held["x_test"], y_test=held["y_test"])
    alone = f"npz:{tmp_path / 'test.npz'}"
    for split in ("test_or_all", "test", "train_val"):  # nobody has divided it: all of it
        assert len(ImageSet(alone, split).load()) == N
    with pytest.raises(BadInput, match="no training images"):
        ImageSet(alone, "val").load()


def test_image_set__the_seed_decides_which_rows_are_held_out(data):
    first, again, other = (ImageSet(data, "val", seed=seed).load() for seed in (0, 0, 1))
    assert rows(first) == rows(again) != rows(other)


def test_image_set__an_empty_split_is_one_sentence(data):
    with pytest.raises(BadInput, match=r"'out' of .* is empty"):
        ImageSet(data, "out").load()


def test_image_set__votes_and_groups_stay_with_their_rows(data):
    held = np.load(data.removeprefix("npz:"))
    votes = np.concatenate([held["annotations_train"], held["annotations_test"]])
    domain = np.concatenate([held["groups/domain_train"], held["groups/domain_test"]])
    pixels = np.concatenate([held["x_train"], held["x_test"]])
    for images in (
        ImageSet(data, "test"),
        ImageSet(data, "train_val"),
        ImageSet(data, "train_val", classes=(3, 1, 0)),
        ImageSet(data, "all_ood", sample_size=50),
        ImageSet(data, "val", labels=(1, 2)),
    ):
        shown = images.load()
        classes = list(images.classes or range(CLASSES))
        assert np.array_equal(shown.images.annotations, votes[shown.index][:, classes])
        assert np.array_equal(shown.images.groups["domain"], domain[shown.index])
        assert np.array_equal(shown.images.pixels, pixels[shown.index])
        some = np.random.default_rng(0).permutation(len(shown))[:7]
        assert np.array_equal(shown.take(some).images.pixels, pixels[shown.index[some]])


# ---- which rows of a split


def test_image_set__only_limit_and_sample(data):
    every = ImageSet(data).load()
    some = ImageSet(data, labels=(1, 3)).load()
    assert set(some.labels.tolist()) == {1, 3} and len(some) == 30
    few = ImageSet(data, limit=8).load()
    assert np.bincount(few.labels).tolist() == [2] * CLASSES and rows(few) == sorted(rows(few))
    assert rows(ImageSet(data, limit=999).load()) == rows(every)
    drawn = [ImageSet(data, sample_size=20, sample_seed=seed).load() for seed in (0, 0, 1)]
    assert rows(drawn[0]) == rows(drawn[1]) != rows(drawn[2]) and rows(drawn[0]) == sorted(rows(drawn[0]))
    assert set(rows(drawn[0])) < set(rows(every)) and len(set(rows(drawn[0]))) == 20
    assert len({images.rows for images in (every, some, few, drawn[0], drawn[2])}) == 5
    for row in range(len(few)):
        np.testing.assert_array_equal(few.source(row), every.source(rows(every).index(rows(few)[row])))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"sample_size": -1}, "sample_size must be at least 1, got -1"),
        ({"labels": (4,)}, "has no class 4"),
        ({"classes": (0, 9)}, "has no class 9"),
        ({"split": "tests"}, "ImageSet.split is 'tests'"),
        ({"readable": True}, "set `store`"),
    ],
)
def test_image_set__bad_choices_are_one_sentence(data, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        ImageSet(data, **options).load()


# ---- identity


def test_image_set__every_field_changes_the_key(data):
    base = ImageSet(data)
    others = {
        "data": "digits", "split": "val", "classes": (0, 1), "ood_classes": (3,), "seed": 1, "labels": (1,), "limit": 5,
        "sample_size": 5, "sample_seed": 1, "readable": True, "view": View(8, 8), "change": Rotation(40.0),
    }  # fmt: skip
    assert others.keys() == {field.name for field in fields(ImageSet)}
    assert len({to_json(base), *(to_json(replace(base, **{name: other})) for name, other in others.items())}) == 13


def test_image_set__every_field_of_a_view_and_of_a_change_changes_the_key(data):
    changes = [None, Rotation(40.0), Rotation(41.0), Crop(), Crop(least=0.2), Crop(most=0.5), Crop(seed=1)]
    views = [View(8, 8), View(9, 8), View(8, 9), View(8, 8, "squash"), View(8, 8, interpolation="bilinear")]
    views += [View(8, 8, fill=(1, 0, 0)), View(8, 8, crop=0.5), View(8, 8, channels=1), View(8, 8, height=9)]
    keys = {to_json(ImageSet(data, change=change)) for change in changes}
    keys |= {to_json(ImageSet(data, view=view)) for view in views}
    assert len(keys) == len(changes) + len(views)


# ---- changes


def changed(change, pixels, index, batch):
    parts = [
        change.apply(torch.from_numpy(pixels[at : at + batch]), torch.from_numpy(index[at : at + batch]))
        for at in range(0, len(pixels), batch)
    ]
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("change", [Rotation(40.0), Crop(), Crop(0.3, 0.3, seed=2)], ids=str)
def test_image_set__a_change_is_a_function_of_image_and_key_alone(change, data):
    images = ImageSet(data).load().images
    pixels, index = images.pixels, images.index
    whole = changed(change, pixels, index, len(pixels))
    assert whole.shape == pixels.shape and whole.dtype == np.uint8 and (whole != pixels).any()
    assert np.array_equal(changed(change, pixels, index, 7), whole)
    order = np.random.default_rng(0).permutation(len(pixels))
    assert np.array_equal(changed(change, pixels[order], index[order], 11), whole[order])


def test_rotation__a_quarter_turn_and_a_full_one():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    index = np.arange(5)
    turned = changed(Rotation(90.0), pixels, index, 5)
    assert np.array_equal(turned, np.rot90(pixels, 1, (1, 2))) or np.array_equal(turned, np.rot90(pixels, -1, (1, 2)))
    assert np.array_equal(changed(Rotation(360.0), pixels, index, 5), pixels)


def test_rotation__a_turn_of_an_image_that_is_not_square_is_by_the_angle_in_pixels():
    """A dot right of the middle goes above it; measured in pixels, not in shares of the sides."""
    pixels = np.zeros((1, 21, 41, 1), np.uint8)
    pixels[0, 9:12, 29:32] = 255  # ten pixels to the right
    turned = changed(Rotation(90.0), pixels, np.zeros(1, np.int64), 1)[0, :, :, 0].astype(float)
    rows_, columns = np.nonzero(turned > 100)
    assert abs(columns.mean() - 20) < 0.6 and abs(abs(rows_.mean() - 10) - 10) < 1.1


def test_crop__crops_differ_between_images_and_between_seeds():
    ramp = np.tile(np.linspace(0, 255, 32).astype(np.uint8)[None, None, :, None], (40, 32, 1, 1))
    index = np.arange(40)
    first, other = (changed(Crop(0.1, 0.75, seed), ramp, index, 40).astype(float) for seed in (0, 1))
    widths = (first[:, 0, -1, 0] - first[:, 0, 0, 0]) / 255  # the share of the side that is kept
    assert widths.min() > 0.02 and widths.max() < 0.8 and widths.std() > 0.1
    assert np.abs(first - other).mean() > 10


def test_crop__a_crop_that_keeps_nothing_is_refused():
    with pytest.raises(BadInput, match="0 < least"):
        Crop(0.0, 0.5)


@pytest.mark.parametrize("kind", ["images", "folder"])
def test_image_set__a_folder_that_is_none(tmp_path, kind):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="not a folder"):
        ImageSet(f"{kind}:{tmp_path / 'file'}").load()


@pytest.mark.parametrize(
    "words", ["runs --store ~nouser/s", "zoo resnet18 --data folder:~nouser/x", "--plugin ~nouser/p.py runs"]
)
def test_image_set__the_home_of_nobody_is_a_sentence(words, capsys):
    """A user who does not exist has no home: the path is taken as it stands, and nothing is there."""
    assert main(words.split()) == 2
    assert "~nouser" in capsys.readouterr().err
