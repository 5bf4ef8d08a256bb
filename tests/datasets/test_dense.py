"""Layouts with label maps: tiny files of each are read, scaled and refused as written; batches move both alike."""

import numpy as np
import pytest
import torch
from PIL import Image

from nescio.datasets import Batches, base, decode, load, splits
from nescio.datasets.dense import CITYSCAPES
from nescio.datasets.images import ImageSet
from nescio.datasets.shifts import levels
from nescio.errors import BadInput

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


def test_folders_of_images_and_label_maps(tmp_path):
    written = write_maps(tmp_path, (("train", 4), ("val", 2), ("test", 3)))
    data = load(f"maps:{tmp_path}")
    assert (data.classes, data.void, data.shape) == (("road", "sky", "car"), 255, (H, W))
    same(data.train, *written["train"])
    same(data.test, *written["test"])
    divided = splits(data)
    same(divided.train, *written["train"])  # none is held out: it has a validation set of its own
    same(divided.val, *written["val"])
    keys = np.concatenate([part.index for part in (data.train, data.test, data.val)])
    assert len(set(keys.tolist())) == 9
    same(ImageSet(f"maps:{tmp_path}", "val").load().images, *written["val"])


def test_without_a_validation_set_a_tenth_is_held_out(tmp_path):
    write_maps(tmp_path, (("train", 20), ("test", 2)))
    divided = splits(load(f"maps:{tmp_path}"))
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
    data = load(f"cityscapes:{tmp_path}")
    same(data.train, x[:2], train_ids[ids[:2]])
    same(data.test, x[2:], train_ids[ids[2:]])
    assert len(data.classes) == 19 and data.classes[0] == "road" and data.classes[18] == "bicycle" and data.void == 255


def test_cityscapes_without_its_validation_set_says_that_test_has_no_labels(tmp_path):
    (tmp_path / "leftImg8bit/test").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"no folder leftImg8bit/val.* the published test set has no labels"):
        load(f"cityscapes:{tmp_path}")


def test_camvid(tmp_path, monkeypatch):
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
    with pytest.raises(BadInput, match="holds no shifted images"):
        levels(f"maps:{tmp_path / 'plain'}")
    with pytest.raises(BadInput, match="maps:PATH has"):
        levels("digits")
    (tmp_path / "shift/sun/noon/images").mkdir(parents=True)
    with pytest.raises(BadInput, match="not named by a level"):
        levels(f"maps:{tmp_path}")


# ---- size, revision, what does not fit


def test_scaled_to_a_height_with_labels_of_the_nearest_pixel(tmp_path):
    x, y = write_maps(tmp_path)["test"]
    data = load(f"maps:{tmp_path}@3")
    assert data.shape == (3, 5) and data.test.pixels.shape == (3, 3, 5, 3)
    np.testing.assert_array_equal(data.test.label_maps(), y[:, 1::2, 1::2])  # every label is one that was there
    assert abs(float(data.test.pixels.mean()) - float(x.mean())) < 4


def test_what_does_not_fit_is_read_over_and_over_and_shows_the_same(tmp_path, monkeypatch):
    write_maps(tmp_path)
    resident = load(f"maps:{tmp_path}")
    base._load.cache_clear()
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 10)
    streamed = load(f"maps:{tmp_path}")
    assert isinstance(streamed.train.backing, base.Frames) and streamed.revision == resident.revision
    same(streamed.train, resident.train.pixels, resident.train.label_maps())
    moments = type("Moments", (), {"mean": resident.mean, "std": resident.std, "void": 255})
    options = {"batch": 2, "augment": "crop-flip", "seed": 3, "shuffle": True}
    for one, other in zip(
        Batches(resident.train, moments, CPU, **options), Batches(streamed.train, moments, CPU, **options), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_revision_follows_labels_images_and_size(tmp_path):
    revisions = []
    for change in (
        lambda: write_maps(tmp_path),
        lambda: write(tmp_path / "test/labels/000.png", labels(1, 3, 9)[0]),
        lambda: write(tmp_path / "test/images/000.png", np.zeros((H, W, 3), np.uint8)),
    ):
        change()
        base._load.cache_clear()
        revisions.append(load(f"maps:{tmp_path}").revision)
    assert len({*revisions, load(f"maps:{tmp_path}@4").revision}) == 4


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda place: (place / "test/labels/001.png").unlink(), "001.png has no label map"),
        (lambda place: write(place / "test/labels/001.png", labels(1, 9)[0]), "they must be among 0–2, 255"),
        (lambda place: write(place / "test/labels/001.png", images(1)[0]), "is no label map: it must have one number"),
        (lambda place: (place / "test/labels/001.png").write_bytes(b"PNG"), "001.png cannot be read"),
        (lambda at: write(at / "test/images/001.png", images(1, h=5)[0]), "has 5 × 10 pixels, and the first image 6"),
        (lambda place: write(place / "test/labels/001.png", labels(1, 3, w=9)[0]), "has 6 × 9 pixels"),
        (lambda place: (place / "classes.txt").unlink(), "it must name the classes, one per line"),
        (lambda place: (place / "classes.txt").write_text(""), "names 0 classes"),
        (lambda place: (place / "test").rename(place / "elsewhere"), "has no test images"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_said_in_a_sentence(tmp_path, spoil, sentence):
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
    data = base.resident("field", (x, y), (x[:2], y[:2]), "abcd")
    return base.replace(data, void=200)


def red(x, data):
    mean, std = torch.tensor(data.mean)[0], torch.tensor(data.std)[0]
    return (x[:, 0] * std + mean) * 255


def test_a_batch_has_label_maps_as_they_are():
    data = field()
    ((x, y, index),) = Batches(data.train, data, CPU, batch=6)
    assert torch.equal(y, torch.from_numpy(data.train.label_maps()).long()) and index.tolist() == list(range(6))
    assert torch.allclose(red(x, data), 10.0 * y + 40, atol=0.1)


@pytest.mark.parametrize("border", ["black", "reflect"])
def test_crop_and_flip_move_images_and_label_maps_alike(border):
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


def test_images_are_scaled_and_mirrored_and_never_leave_the_frame_without_void():
    data = field(40)
    ramp = np.broadcast_to(np.arange(24, dtype=np.uint8), (40, 16, 24))
    x = np.repeat(ramp[..., None], 3, 3) * 10
    ramps = base.replace(base.resident("ramp", (x, ramp), (x[:2], ramp[:2])), void=None)
    ((_, y, _),) = Batches(ramps.train, ramps, CPU, batch=40, augment="crop-flip", seed=1)
    span = y[:, 8, -1] - y[:, 8, 0]
    assert {True, False} == set((span > 0).tolist())  # mirrored, and not
    assert int(span.abs().min()) >= 11 and int(span.abs().max()) <= 23 and len(set(span.abs().tolist())) > 5
    ((_, first, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=1)
    ((_, again, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=1)
    ((_, other, _),) = Batches(data.train, data, CPU, batch=40, augment="crop-flip", seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_other_augmentations_of_label_maps_are_refused():
    data = field()
    for options, word in (
        ({"augment": "full"}, "not by full"),
        ({"augment": "crop-flip", "views": 2}, "not by 2 views"),
    ):
        with pytest.raises(BadInput, match=word):
            Batches(data.train, data, CPU, **options)
