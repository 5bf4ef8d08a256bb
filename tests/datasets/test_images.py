"""Pixels in memory and of files."""

import io

import numpy as np
from PIL import Image

from nescio.datasets import builders, decode, load, readers, split_dataset
from nescio.datasets.images import EncodedImages, Pixels
from tests.support.published_layouts import (
    close,
    encode,
    fresh,  # noqa: F401  (used by every test)
    jpeg,
    pictures,
    revision,
    smooth,
    write_imagenet,
)


def test_split_dataset__subsets_share_the_pixels():
    parts = split_dataset(load("digits"), (1, 2))
    assert parts.train.backing is parts.val.backing and parts.test.backing is parts.out.backing


def test_split_dataset__what_does_not_fit_is_read_when_it_is_needed_and_is_the_same(tmp_path, monkeypatch):
    write_imagenet(tmp_path)
    held = load("imagenet@48", tmp_path)
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 0)
    readers._load.cache_clear()
    streamed = load("imagenet@48", tmp_path)
    assert isinstance(held.train.backing, Pixels) and isinstance(streamed.train.backing, EncodedImages)
    for part in ("train", "test"):
        one, other = getattr(held, part), getattr(streamed, part)
        assert np.array_equal(one.pixels, other.pixels) and np.array_equal(one.labels, other.labels)
    assert streamed.mean == (0.485, 0.456, 0.406)
    rows = split_dataset(streamed, (2, 0)).train
    assert np.array_equal(rows.pixels, streamed.train.pixels[rows.rows])
    # Its checksum is of the listing: a file of another length, or under another label, is another revision.
    first = streamed.revision
    (tmp_path / "imagenet/val/n01/n01_0.JPEG").rename(tmp_path / "imagenet/val/n02/n01_0.JPEG")
    moved = revision("imagenet@48", tmp_path)
    jpeg(tmp_path / "imagenet/val/n02/n01_0.JPEG", pictures(1, 80)[0])
    assert len({first, moved, revision("imagenet@48", tmp_path)}) == 3


def test_decode__a_part_of_a_picture_is_cut_from_the_square_that_is_looked_at():
    picture = encode(smooth(0, 160, 96))
    whole = decode.decode(picture, 32)
    part = decode.decode(picture, 32, box=(0.25, 0.5, 0.75, 1.0))
    expected = np.asarray(Image.fromarray(whole).resize((32, 32), Image.Resampling.BILINEAR, box=(8, 16, 24, 32)))
    close(part, expected, far=3)
    assert np.abs(part.astype(int) - whole).max() > 10
    small = pictures(1, 16)[0]
    assert np.array_equal(decode.decode(encode(small), 16), small)  # not resized, not cropped
    assert decode.decode(encode(small), 32).shape == (32, 32, 3)
    grey = Image.fromarray(small[..., 0])
    out = io.BytesIO()
    grey.save(out, "PNG")
    assert np.array_equal(decode.decode(out.getvalue(), 16)[..., 2], small[..., 0])


def test_pixels__mean_and_deviation_are_those_of_the_training_images(monkeypatch):
    pixels = pictures(50, 8) // np.array([1, 2, 4], np.uint8)
    data = builders.dataset_from_arrays("x", (pixels, np.arange(50) % 2), (255 - pixels, np.arange(50) % 2))
    assert np.allclose(data.mean, (pixels / 255).mean((0, 1, 2)), rtol=1e-3)
    assert np.allclose(data.std, (pixels / 255).std((0, 1, 2)), rtol=1e-3)
    monkeypatch.setattr("nescio.datasets.images.SAMPLE_BYTES", pixels.nbytes // 10)
    assert Pixels(lambda: pixels).moments[0] == tuple(float(f"{m:.4g}") for m in (pixels[::10] / 255).mean((0, 1, 2)))
    black = builders.dataset_from_arrays("x", (np.zeros_like(pixels), np.arange(50) % 2), (pixels, np.arange(50) % 2))
    assert black.std == (1e-3,) * 3  # no division by zero
