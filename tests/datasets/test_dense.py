"""Layouts with label maps: tiny files of each are read, scaled and refused as written; batches move both alike."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nescio.datasets import Batches, builders, decode, image_set, load, readers, split_dataset
from nescio.datasets.dense import CITYSCAPES
from nescio.datasets.image_set import ImageSet
from nescio.datasets.images import ImageFiles
from nescio.datasets.shifts import levels
from nescio.errors import BadInput
from tests.support.shapes import grey_png

CPU = torch.device("cpu")
H, W = 6, 10


def images(n, seed=0, h=H, w=W):
    return np.random.default_rng(seed).integers(0, 256, (n, h, w, 3), np.uint8)


def labels(n, most, seed=0, h=H, w=W):
    return np.random.default_rng(seed).integers(0, most, (n, h, w), np.uint8)


def write(path, array, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    if palette:
        image = image.convert("P") if image.mode != "L" else image
        image.putpalette([value for number in range(256) for value in (number, 255 - number, 7)])
    image.save(path)


def write_maps(place, sizes=(("train", 4), ("test", 3)), most=3, seed=0, h=H, w=W):
    """maps:PATH; every folder with its images and labels. Returns what was written."""
    found = {}
    for number, (folder, n) in enumerate(sizes):
        x, y = images(n, seed + number, h, w), labels(n, most, seed + number, h, w)
        y[:, 0, 0] = 255
        for row in range(n):
            write(place / folder / "images" / f"{row:03d}.png", x[row])
            write(place / folder / "labels" / f"{row:03d}.png", y[row], palette=row % 2 == 1)
        found[folder] = x, y
    (place / "classes.txt").write_text("road\nsky\ncar\n")
    return found


def same(part, x, y):
    np.testing.assert_array_equal(part.pixels, x)
    np.testing.assert_array_equal(part.label_maps(), y)


# ---- layouts


def test_image_set__folders_of_images_and_label_maps(tmp_path):
    written = write_maps(tmp_path, (("train", 4), ("val", 2), ("test", 3)))
    data = load(f"maps:{tmp_path}")
    assert (data.classes, data.void, data.shape) == (("road", "sky", "car"), 255, (H, W))
    same(data.train, *written["train"])
    same(data.test, *written["test"])
    divided = split_dataset(data)
    same(divided.train, *written["train"])  # none is held out: it has a validation set of its own
    same(divided.val, *written["val"])
    keys = np.concatenate([part.index for part in (data.train, data.test, data.val)])
    assert len(set(keys.tolist())) == 9
    same(ImageSet(f"maps:{tmp_path}", "val").load().images, *written["val"])


def test_split_dataset__without_a_validation_set_a_tenth_is_held_out(tmp_path):
    write_maps(tmp_path, (("train", 20), ("test", 2)))
    divided = split_dataset(load(f"maps:{tmp_path}"))
    assert (len(divided.train), len(divided.val)) == (18, 2)


@pytest.mark.parametrize("ending", ["labelIds", "labelTrainIds"])
def test_cityscapes_by_either_kind_of_label(tmp_path, ending):
    x, ids = images(3), labels(3, 34)
    train_ids = np.full(256, 255, np.uint8)
    train_ids[list(CITYSCAPES.values())] = np.arange(19)
    for row, (split, city) in enumerate((("train", "aachen"), ("train", "bochum"), ("val", "ulm"))):
        write(tmp_path / "leftImg8bit" / split / city / f"{city}_0_leftImg8bit.png", x[row])
        kept = ids[row] if ending == "labelIds" else train_ids[ids[row]]
        write(tmp_path / "gtFine" / split / city / f"{city}_0_gtFine_{ending}.png", kept)
    for folder, what in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelTrainIds")):  # as a Mac leaves them
        (tmp_path / folder / "val/ulm" / f"._ulm_0_{what}.png").write_bytes(b"Mac OS X")
    data = load(f"cityscapes:{tmp_path}")
    same(data.train, x[:2], train_ids[ids[:2]])
    same(data.test, x[2:], train_ids[ids[2:]])
    assert len(data.classes) == 19 and data.classes[0] == "road" and data.classes[18] == "bicycle" and data.void == 255


def test_dense__cityscapes_without_its_validation_set_says_that_test_has_no_labels(tmp_path):
    (tmp_path / "leftImg8bit/test").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"no folder leftImg8bit/val"):
        load(f"cityscapes:{tmp_path}")


def test_dense__camvid(tmp_path, monkeypatch):
    x, y = images(4), labels(4, 12)
    for row, split in enumerate(("train", "train", "val", "test")):
        write(tmp_path / "CamVid" / split / f"{row}.png", x[row])
        write(tmp_path / "CamVid" / f"{split}annot" / f"{row}.png", y[row])
    data = load("camvid", tmp_path)
    same(data.train, x[:2], y[:2])
    same(data.val, x[2:3], y[2:3])
    same(data.test, x[3:], y[3:])
    assert (len(data.classes), data.void) == (11, 11)


def test_levels_of_a_shift_are_sets_of_their_own(tmp_path):
    folders = ("shift/sun/15", "shift/sun/-5", "shift/rain/0.25")
    written = write_maps(tmp_path, (("train", 4), ("test", 3), *((folder, 2) for folder in folders)))
    found = levels(f"maps:{tmp_path}@3")
    assert [(each.condition, each.level) for each in found] == [("rain", 0.25), ("sun", 75.0), ("sun", 95.0)]
    assert found[0].images.load().dataset.shape == (3, 5)
    same(levels(f"maps:{tmp_path}")[2].images.load().images, *written["shift/sun/-5"])
    write_maps(tmp_path / "plain")
    assert levels(f"maps:{tmp_path / 'plain'}") == []
    (tmp_path / "plain" / "shift").mkdir()
    with pytest.raises(BadInput, match="no shifted images"):
        levels(f"maps:{tmp_path / 'plain'}")
    with pytest.raises(BadInput, match="maps:PATH has"):
        levels("digits")


def test_levels__a_level_is_a_name_of_a_set_with_the_training_images_of_the_clean_one(tmp_path, monkeypatch):
    written = write_maps(tmp_path / "a#1", (("train", 4), ("val", 2), ("test", 3), ("shift/sun/-5", 3)))
    data = load(f"maps:{tmp_path / 'a#1'}#sun/-5")
    same(data.train, *written["train"])
    same(data.val, *written["val"])
    same(data.test, *written["shift/sun/-5"])
    clean = load(f"maps:{tmp_path / 'a#1'}")
    assert data.revision != clean.revision and data.test.index.tolist() == clean.test.index.tolist()
    assert levels(f"maps:{tmp_path / 'a#1'}#sun/-5") == []  # it has none of its own
    monkeypatch.chdir(tmp_path)
    assert load("maps:a#1#sun/-5@3").train is load("maps:a#1@3").train


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("clean/0/images", "clean cannot be a shift: clean images are those in"),
        ("clean/7/images", "clean cannot be a shift"),
        ("sun/noon/images", "sun/noon is not named by a level"),
        ("sun/nan/images", "sun/nan is not named by a level"),
        ("sun/-inf/images", "sun/-inf is not named by a level"),
        ("sun/15.0/images", r"sun/15\.0 and .*sun/15 are the same level"),
        ("sun/20/labels", "sun/20 has no folder images"),
        ("rain/images", "rain/images is not named by a level"),
    ],
)
def test_levels__a_folder_that_is_no_level_of_a_shift_is_named(tmp_path, folder, sentence):
    write_maps(tmp_path, (("train", 4), ("test", 3), ("shift/sun/15", 3)))
    for hidden in ("shift/.cache/1", "shift/sun/.cache"):
        (tmp_path / hidden).mkdir(parents=True)
    (tmp_path / "shift/sun/readme.txt").touch()
    assert len(levels(f"maps:{tmp_path}")) == 1
    (tmp_path / "shift" / folder).mkdir(parents=True)
    with pytest.raises(BadInput, match=sentence):
        levels(f"maps:{tmp_path}")


def names(images):
    loaded = images.load()
    return [Path(loaded.source(row)).stem for row in range(len(loaded))]


def test_image_set__a_sample_is_of_the_same_images_at_every_level(tmp_path):
    folders = ("shift/sun/15", "shift/sun/-5", "shift/rain/1")
    written = write_maps(tmp_path, (("train", 4), ("test", 12), *((folder, 12) for folder in folders)))
    for seed in range(3):
        clean = ImageSet(f"maps:{tmp_path}", sample_size=4, sample_seed=seed)
        drawn, (x, y) = names(clean), written["shift/sun/-5"]
        for level in levels(f"maps:{tmp_path}"):
            assert names(replace(level.images, sample_size=4, sample_seed=seed)) == drawn
        dark, at = replace(level.images, sample_size=4, sample_seed=seed).load(), [int(name) for name in drawn]
        same(dark.images, x[at], y[at])
        assert dark.index.tolist() == clean.load().index.tolist()


def test_image_set__a_sample_goes_by_names_and_what_a_level_lacks_is_named(tmp_path):
    write_maps(tmp_path, (("train", 4), ("test", 6), ("shift/sun/15", 6), ("shift/sun/-5", 6)))
    drawn = names(ImageSet(f"maps:{tmp_path}", sample_size=2))
    spared = min({f"{row:03d}" for row in range(6)} - set(drawn))
    for kind in ("images", "labels"):
        own = tmp_path / "shift/sun/15" / kind
        (own / f"{spared}.png").rename(own / "more.png")
        (tmp_path / "shift/sun/-5" / kind / f"{drawn[0]}.png").unlink()
    other, lacking = (replace(level.images, sample_size=2) for level in levels(f"maps:{tmp_path}"))
    assert names(other) == drawn
    with pytest.raises(BadInput, match=rf"sun/-5 lacks {drawn[0]}\.png"):
        lacking.load()
    every = np.concatenate([load(other.data).train.index, load(other.data).test.index])
    assert len(set(every.tolist())) == len(every)


def listen(monkeypatch):
    """The names of images as they are decoded, and of files as their checksums are taken."""
    decoded, taken, frame, digest = [], [], decode.frame, hashlib.file_digest
    monkeypatch.setattr(decode, "frame", lambda path, *rest: decoded.append(path) or frame(path, *rest))
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: taken.append(file.name) or digest(file, kind))
    return decoded, taken


def test_levels_share_training_images_and_only_two_of_them_stay_decoded(tmp_path, monkeypatch):
    write_maps(tmp_path, (("train", 4), ("test", 3), *((f"shift/rain/{level}", 3) for level in range(1, 9))))
    assert len(load(f"maps:{tmp_path}").train.pixels) == 4
    decoded, taken = listen(monkeypatch)
    for _ in range(2):
        image_set._loaded.cache_clear()  # more levels than it holds
        found = [level.images.load() for level in levels(f"maps:{tmp_path}")]
        for each in found:
            assert len(each.images.pixels) == len(each.images.label_maps()) == 3 and len(each.dataset.train.pixels) == 4
        held = [each for each in found if "array" in vars(each.images.backing) or "array" in vars(each.images.maps)]
        assert held == found[-2:]
    assert not any("/train/" in path for path in decoded)
    assert len(taken) == len(set(taken)) == 8 * 3 * 2  # every file once, and those of the clean set before


def test_levels__of_a_sample_of_a_level_only_its_own_files_are_decoded(tmp_path, monkeypatch):
    write_maps(tmp_path, (("train", 4), ("test", 9), ("shift/rain/1", 9)))
    decoded, _ = listen(monkeypatch)
    (level,) = levels(f"maps:{tmp_path}")
    for some in ({"sample_size": 2}, {"limit": 2}):
        decoded.clear()
        assert len(replace(level.images, **some).load().images.pixels) == len(decoded) == 2


# ---- size, revision, what does not fit


def test_dense__scaled_to_a_height_with_labels_of_the_nearest_pixel(tmp_path):
    x, y = write_maps(tmp_path)["test"]
    data = load(f"maps:{tmp_path}@3")
    assert data.shape == (3, 5) and data.test.pixels.shape == (3, 3, 5, 3)
    np.testing.assert_array_equal(data.test.label_maps(), y[:, 1::2, 1::2])  # every label is one that was there
    assert abs(float(data.test.pixels.mean()) - float(x.mean())) < 4


def test_batches__what_does_not_fit_is_read_over_and_over_and_shows_the_same(tmp_path, monkeypatch):
    write_maps(tmp_path)
    resident = load(f"maps:{tmp_path}")
    readers._load.cache_clear()
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 10)
    streamed = load(f"maps:{tmp_path}")
    assert isinstance(streamed.train.backing, ImageFiles)
    same(streamed.train, resident.train.pixels, resident.train.label_maps())
    moments = type("Moments", (), {"mean": resident.mean, "std": resident.std, "void": 255})
    options = {"batch": 2, "augment": "crop-flip", "seed": 3, "shuffle": True}
    for one, other in zip(
        Batches(resident.train, moments, CPU, **options), Batches(streamed.train, moments, CPU, **options), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_dense__the_revision_follows_labels_images_and_size(tmp_path):
    revisions = []
    for change in (
        lambda: write_maps(tmp_path),
        lambda: write(tmp_path / "test/labels/000.png", labels(1, 3, 9)[0]),
        lambda: write(tmp_path / "test/images/000.png", np.zeros((H, W, 3), np.uint8)),
    ):
        change()
        readers._load.cache_clear()
        revisions.append(load(f"maps:{tmp_path}").revision)
    assert len({*revisions, load(f"maps:{tmp_path}@4").revision}) == 4


@pytest.mark.parametrize("folder", ["train", "test", "shift/sun/15"])
def test_dense__other_pixels_in_a_file_of_the_same_length_have_another_revision(tmp_path, folder):
    write_maps(tmp_path, (("train", 4), ("test", 3), ("shift/sun/15", 3)))
    picture = tmp_path / folder / "images/001.bmp"
    picture.with_suffix(".png").unlink()
    revisions = set()
    for number in range(2):
        write(picture, images(1, number)[0])
        os.utime(picture, ns=(number, number))  # a test is faster than the clock of some disks
        readers._load.cache_clear()
        revisions.add(load(f"maps:{tmp_path}{'#sun/15' if 'sun' in folder else ''}").revision)
    assert len(revisions) == 2


def test_dense__a_set_that_does_not_fit_keeps_the_revision_that_it_always_had(tmp_path, monkeypatch):
    """Networks that were trained on it are then found again."""
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 10)
    for part, n in (("train", 2), ("test", 1)):
        for row in range(n):
            (tmp_path / part / "images").mkdir(parents=True, exist_ok=True)
            ppm = b"P6 2 1 255 " + bytes([row] * 6)
            (tmp_path / part / "images" / f"{row}.ppm").write_bytes(ppm)
            (tmp_path / part / "labels").mkdir(parents=True, exist_ok=True)
            (tmp_path / part / "labels" / f"{row}.png").write_bytes(b"label map %d" % row)
    (tmp_path / "classes.txt").write_text("road\nsky\n")
    assert load(f"maps:{tmp_path}").revision == "cd368e90f70387bf"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda place: (place / "test/labels/001.png").unlink(), "001.png has no label map"),
        (lambda place: write(place / "test/labels/001.png", labels(1, 9)[0]), "they must be among 0–2, 255"),
        (lambda place: write(place / "test/labels/001.png", images(1)[0]), "is no label map: it must have one number"),
        (lambda place: (place / "test/labels/001.png").write_bytes(b"PNG"), "001.png cannot be read"),
        (lambda place: (place / "test/labels/001.png").write_bytes(grey_png(labels(1, 3)[0], 2)), "has 2 bits per"),
        (lambda place: (place / "test/labels/001.png").write_bytes(grey_png(labels(1, 3)[0], 4)), "has 4 bits per"),
        (lambda place: Image.fromarray(labels(1, 3)[0]).save(place / "test/labels/001.png", "JPEG"), "is a JPEG"),
        (lambda at: write(at / "test/images/001.png", images(1, h=5)[0]), "has 5 × 10 pixels, and the first image 6"),
        (lambda place: write(place / "test/labels/001.png", labels(1, 3, w=9)[0]), "has 6 × 9 pixels"),
        (lambda place: (place / "classes.txt").unlink(), "it must name the classes, one per line"),
        (lambda place: (place / "classes.txt").write_text("\n"), "names 0 classes"),
        (lambda place: (place / "classes.txt").write_text("road\n\nsky\ncar\n"), "Line 2 of .* is empty"),
        (lambda place: (place / "classes.txt").write_text("road\nsky\nroad\n"), "names road twice, on lines 1 and 3"),
        (lambda at: write(at / "test/images/001.jpg", images(1)[0]), "001.png and 001.jpg would have one label map"),
        (lambda place: (place / "test").rename(place / "elsewhere"), "has no test images"),
    ],
)  # fmt: skip
def test_dense__what_does_not_fit_together_is_said_in_a_sentence(tmp_path, spoil, sentence):
    write_maps(tmp_path)
    spoil(tmp_path)
    with pytest.raises(BadInput, match=sentence):
        test = load(f"maps:{tmp_path}").test
        test.label_maps(), test.pixels


# ---- batches


def field(n=6, h=32, w=48):
    """Images whose red channel is ten times their label, so that a pair that moves apart is seen."""
    y = np.random.default_rng(1).integers(0, 4, (n, h // 8, w // 8), np.uint8).repeat(8, 1).repeat(8, 2)
    x = np.stack([10 * y + 40, *np.zeros((2, *y.shape), np.uint8)], -1).astype(np.uint8)
    data = builders.dataset_from_arrays("field", (x, y), (x[:2], y[:2]), "abcd")
    return replace(data, void=200)


def red(x, data):
    mean, std = torch.tensor(data.mean)[0], torch.tensor(data.std)[0]
    return (x[:, 0] * std + mean) * 255


def test_dataset_from_arrays__a_batch_has_label_maps_as_they_are():
    data = field()
    ((x, y, index),) = Batches(data.train, data, CPU, batch=6)
    assert torch.equal(y, torch.from_numpy(data.train.label_maps()).long()) and index.tolist() == list(range(6))
    assert torch.allclose(red(x, data), 10.0 * y + 40, atol=0.1)


@pytest.mark.parametrize("border", ["black", "reflect"])
def test_dataset_from_arrays__crop_and_flip_move_images_and_label_maps_alike(border):
    data = field(48)
    ((x, y, _),) = Batches(data.train, data, CPU, batch=48, augment="crop-flip", seed=5, border=border)
    shown = y != 200
    assert 0.02 < float((~shown).float().mean()) < 0.6  # smaller images leave a rim that counts nowhere
    # inside a patch of one label, bilinear and nearest pixels agree exactly
    window = torch.nn.functional.unfold(y[:, None].float() + 1, 3, padding=1).view(48, 9, *y.shape[1:])
    inner = shown & (window == y[:, None] + 1).all(1)
    assert float(inner.float().mean()) > 0.2
    assert torch.allclose(red(x, data)[inner], (10.0 * y + 40)[inner], atol=0.1)
    assert not torch.equal(y, torch.from_numpy(data.train.label_maps()).long())


def test_dataset_from_arrays__images_are_scaled_and_mirrored_and_never_leave_the_frame_without_void():
    data = field(40)
    ramp = np.broadcast_to(np.arange(24, dtype=np.uint8), (40, 16, 24))
    x = np.repeat(ramp[..., None], 3, 3) * 10
    ramps = replace(builders.dataset_from_arrays("ramp", (x, ramp), (x[:2], ramp[:2])), void=None)
    ((_, y, _),) = Batches(ramps.train, ramps, CPU, batch=40, augment="crop-flip", seed=1)
    span = y[:, 8, -1] - y[:, 8, 0]
    assert {True, False} == set((span > 0).tolist())  # mirrored, and not
    assert int(span.abs().min()) >= 11 and int(span.abs().max()) <= 23 and len(set(span.abs().tolist())) > 5
    ((_, first, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=1)
    ((_, again, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=1)
    ((_, other, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_dataset_from_arrays__other_augmentations_of_label_maps_are_refused():
    data = field()
    for options, word in (
        ({"augment": "full"}, "not by full"),
        ({"augment": "crop-flip", "views": 2}, "not by 2 views"),
    ):
        with pytest.raises(BadInput, match=word):
            Batches(data.train, data, CPU, **options)
