"""Views equal those of timm and torchvision, pixel for pixel; the cache is made once, resumed, and never half-made."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nescio.datasets import pixel_cache as pixels
from nescio.datasets.image_set import ImageSet
from nescio.datasets.pixel_cache import cache_pixels, decode_pixels
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.work.store import Store
from nescio.work.store_errors import StoreError
from tests.support.waiting import until
from tests.support.zoo_help import SHAPES, encoded, folder, pack, picture

timm = pytest.importorskip("timm")


def labelled(data):
    return ImageSet(data, split="test_or_all").load()


def timm_pixels(source, size, crop, mode, interpolation, mean=(0.5, 0.4, 0.3)):
    """What timm's own transform shows, before it becomes a tensor."""
    from timm.data import create_transform

    transform = create_transform(
        (3, size, size), crop_pct=crop, crop_mode=mode, interpolation=interpolation, mean=mean, normalize=False
    )
    return np.asarray(transform(source.convert("RGB"))).transpose(1, 2, 0)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("size", "crop"), [(48, 0.875), (64, 0.95), (64, 1.0), (40, 0.9), (225, 0.965), (64, 1.15)])
def test_decode_pixels__timm_sees_the_same_pixels(mode, interpolation, size, crop):
    rng = np.random.default_rng(size)
    fill = (128, 102, 76) if mode == "border" else (0, 0, 0)
    view = View(size, int(np.floor(size / crop)), mode, interpolation, fill)
    for shape in SHAPES:
        image = picture(rng, shape)
        expected = timm_pixels(image, size, crop, mode, interpolation)
        np.testing.assert_array_equal(decode_pixels(np.asarray(image), view), expected, err_msg=str(shape))


@pytest.mark.parametrize("arch", ["resnet50", "vgg11", "vit_b_16", "efficientnet_b3", "swin_t"])
def test_decode_pixels__torchvision_sees_the_same_pixels(arch):
    import torchvision

    from nescio.networks.models import find_network

    transform = torchvision.models.get_model_weights(arch).DEFAULT.transforms()
    found = find_network(f"torchvision:{arch}", Store("none"))
    rng = np.random.default_rng(1)
    for shape in SHAPES[:4]:
        image = picture(rng, shape)
        mean, std = np.array(found.mean), np.array(found.std)
        ours = (decode_pixels(encoded(image, "PNG"), found.view) / 255 - mean) / std
        np.testing.assert_allclose(ours.transpose(2, 0, 1), transform(image).numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["path", "bytes", "array"])
def test_decode_pixels__an_image_looks_alike_however_it_comes(tmp_path, kind):
    image = picture(np.random.default_rng(0), (80, 100))
    (tmp_path / "one.png").write_bytes(encoded(image, "PNG"))
    source = {"path": str(tmp_path / "one.png"), "bytes": encoded(image, "PNG"), "array": np.asarray(image)}[kind]
    view = View(32, 36)
    np.testing.assert_array_equal(decode_pixels(source, view), decode_pixels(np.asarray(image), view))


def test_decode_pixels__grey_palette_and_cmyk_images_become_rgb_as_timm_does(tmp_path):
    image = picture(np.random.default_rng(0), (80, 100))
    for mode, kind in (("L", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("1", "PNG")):
        data = encoded(image.convert(mode), kind)
        (tmp_path / mode).write_bytes(data)
        expected = timm_pixels(Image.open(tmp_path / mode), 32, 0.875, "center", "bicubic")
        np.testing.assert_array_equal(decode_pixels(data, View(32, 36)), expected, err_msg=mode)


def test_decode_pixels__what_training_saw_is_what_a_trained_network_sees():
    from nescio.datasets.decode import decode

    rng = np.random.default_rng(0)
    data = encoded(picture(rng, (80, 100)))
    view = View(32, 32, "trained", crop=0.875)
    np.testing.assert_array_equal(decode_pixels(data, view), decode(data, 32, 0.875))
    digit = rng.integers(0, 256, (8, 8, 1), dtype=np.uint8)
    np.testing.assert_array_equal(decode_pixels(digit, View(8, 8, "trained", channels=1)), digit)
    assert str(View(8, 8, "trained", channels=1)) == "8 × 8, grey"


def test_decode_pixels__a_view_that_is_no_square_shows_the_largest_part_of_its_shape():
    """Of a wide image its full height, of a high one its full width, from the middle; of a large image `crop` of it."""
    rng = np.random.default_rng(0)
    view = View(10, 10, "trained", height=6)
    same, wide, high = (rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in ((6, 10), (6, 30), (18, 10)))
    np.testing.assert_array_equal(decode_pixels(same, view), same)
    np.testing.assert_array_equal(decode_pixels(wide, view), wide[:, 10:20])
    np.testing.assert_array_equal(decode_pixels(high, view), high[6:12])
    large = np.zeros((24, 40, 3), np.uint8)
    large[4:20, 8:32] = 255  # the middle half of both sides, and the pixels beside it that smoothing reads
    assert decode_pixels(large, replace(view, crop=0.5)).min() == 255 > decode_pixels(large, view).min()
    assert (view.shape, view.bytes, str(view)) == ((6, 10), 180, "6 × 10")
    assert "height" not in canonical(View(10, 10))  # keys of square views stay as they were


def test_decode_pixels__wrong_preprocessing_would_be_seen():
    """The comparison above can fail: another interpolation, crop or mode gives other pixels."""
    source = np.asarray(picture(np.random.default_rng(0), (90, 120)))
    base = decode_pixels(source, View(48, 54))
    for other in (View(48, 54, interpolation="bilinear"), View(48, 50), View(48, 54, "squash"), View(48, 54, "border")):
        assert (decode_pixels(source, other) != base).mean() > 0.05


# ---- the cache


def test_cache_pixels__the_cache_holds_every_image_in_order(tmp_path):
    images = labelled(f"npz:{pack(tmp_path / 'set.npz')}")
    view = View(32, 36)
    file = cache_pixels(images, view, Store(tmp_path / "store"))
    held = np.load(file, mmap_mode="r")
    assert held.dtype == np.uint8 and held.shape == (24, 32, 32, 3)
    for row in range(24):
        np.testing.assert_array_equal(held[row], decode_pixels(images.source(row), view))


def test_cache_pixels__processes_decode_the_same_as_threads(tmp_path, monkeypatch):
    images = labelled(f"npz:{pack(tmp_path / 'set.npz', n=150)}")
    view = View(16, 18)
    by_threads = np.load(cache_pixels(images, view, Store(tmp_path / "threads")))
    monkeypatch.setattr(pixels, "PROCESSES", 1)
    monkeypatch.setenv("NESCIO_THREADS", "2")
    by_processes = np.load(cache_pixels(images, view, Store(tmp_path / "processes")))
    np.testing.assert_array_equal(by_threads, by_processes)


def test_cache_pixels__an_image_is_decoded_once_for_all_who_see_it_so(tmp_path, monkeypatch):
    images, store = labelled(f"npz:{pack(tmp_path / 'set.npz')}"), Store(tmp_path / "store")
    seen = []
    real = pixels.decode_pixels
    monkeypatch.setattr(pixels, "decode_pixels", lambda source, view: (seen.append(view), real(source, view))[1])
    for _ in range(3):
        cache_pixels(images, View(32, 36), store)
    assert len(seen) == 24
    cache_pixels(images, View(32, 36, "squash"), store)
    cache_pixels(images.take(np.arange(5)), View(32, 36), store)
    assert len(seen) == 24 + 24 + 5


def test_cache_pixels__a_damaged_image_is_named_and_the_others_stay_decoded(tmp_path, monkeypatch):
    place = folder(tmp_path / "set", ("a", "b", "c"), each=4)
    bad = place / "b" / "1.jpg"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    (place / "c" / "3.jpg").write_bytes(b"no image")
    images, store, view = labelled(f"folder:{place}"), Store(tmp_path / "store"), View(32, 36)
    with pytest.raises(BadInput, match=r"b/1\.jpg .*; nor .*c/3\.jpg\.$"):
        cache_pixels(images, view, store)
    assert not list((tmp_path / "store" / "pixels").glob("[0-9a-f]" * 16))
    # the same files again, whole now (a set whose revision stays: only names and lengths count in large ones)
    seen = []
    real = pixels.decode_pixels
    monkeypatch.setattr(pixels, "decode_pixels", lambda source, view: (seen.append(source), real(source, view))[1])
    with pytest.raises(BadInput):
        cache_pixels(images, view, store)
    assert sorted(Path(each).name for each in seen) == ["1.jpg", "3.jpg"]
    bad.write_bytes(whole)
    (place / "c" / "3.jpg").write_bytes(whole)
    np.testing.assert_array_equal(np.load(cache_pixels(images, view, store))[5], decode_pixels(str(bad), view))


def test_readable_images__damaged_images_are_left_out_once_for_every_view(tmp_path, monkeypatch):
    place = folder(tmp_path / "set", ("a", "b", "c"), each=4)
    for name in ("b/1.jpg", "c/3.jpg"):
        (place / name).write_bytes((place / name).read_bytes()[:300])
    images, store = labelled(f"folder:{place}"), Store(tmp_path / "store")
    kept, note = pixels.readable_images(images, store)
    assert kept.index.tolist() == np.delete(images.index, [5, 11]).tolist() and len(kept.labels) == 10
    assert note.startswith("2 of 12 images")
    assert "b/1.jpg, " in note and note.endswith("c/3.jpg.")
    for view in (View(32, 36), View(16, 16, "squash")):
        held = np.load(cache_pixels(kept, view, store))
        np.testing.assert_array_equal(held[5], decode_pixels(images.source(6), view))
    monkeypatch.setattr(pixels, "decode_pixels", None)  # another run looks at nothing again
    again, same = pixels.readable_images(images, store)
    assert same == note and again.rows == kept.rows


def test_readable_images__a_whole_set_stays_as_it_is_and_a_ruined_one_is_refused(tmp_path):
    images, store = labelled(f"folder:{folder(tmp_path / 'set', ('a', 'b'))}"), Store(tmp_path / "store")
    assert pixels.readable_images(images, store) == (images, "")
    ruined = folder(tmp_path / "ruined", ("a", "b"))
    for file in ruined.glob("*/*.jpg"):
        file.write_bytes(b"no image")
    with pytest.raises(BadInput, match="ruined"):
        pixels.readable_images(labelled(f"folder:{ruined}"), store)


def test_cache_pixels__a_damaged_image_in_memory_is_named_by_its_row(tmp_path):
    held = dict(np.load(pack(tmp_path / "set.npz", n=6)))
    start, end = held["offsets"][2:4]
    held["blob"] = held["blob"].copy()
    held["blob"][start : (start + end) // 2] = 0
    np.savez(tmp_path / "set.npz", **held)
    with pytest.raises(BadInput, match=r"^Image 2 of set"):
        cache_pixels(labelled(f"npz:{tmp_path / 'set.npz'}"), View(16, 16), Store(tmp_path / "store"))


def test_cache_pixels__too_small_a_disk_is_said_before_anything_is_decoded(tmp_path, monkeypatch):
    images = labelled(f"npz:{pack(tmp_path / 'set.npz', n=6)}")
    store = Store(tmp_path / "store")
    monkeypatch.setattr(pixels.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(StoreError, match=r"need 18\.4 kB, and .* has 1 kB left: make room"):
        cache_pixels(images, View(32, 32), store)
    monkeypatch.undo()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pixels.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        cache_pixels(images, View(32, 32), store)
    monkeypatch.undo()
    assert np.load(cache_pixels(images, View(32, 32), store)).shape == (6, 32, 32, 3)


SLOW = """
import os, sys, time
from nescio.datasets import pixel_cache as pixels
from nescio.datasets.image_set import ImageSet
from nescio.datasets.view import View
from nescio.work.store import Store

real = pixels.decode_pixels
def slow(source, view):
    with open(sys.argv[3], "a") as log:
        log.write("x")
    if len(sys.argv) > 4 and os.path.getsize(sys.argv[3]) >= 30:
        time.sleep(600)  # until it is killed
    return real(source, view)
pixels.decode_pixels, pixels.SAVE_SECONDS, pixels.BLOCK = slow, 0.0, 4
pixels.cache_pixels(ImageSet(sys.argv[1], split="test_or_all").load(), View(16, 18), Store(sys.argv[2]))
"""


def test_cache_key__a_killed_decoding_goes_on_where_it_was(tmp_path):
    images = f"npz:{pack(tmp_path / 'set.npz', n=60)}"
    log = tmp_path / "log"
    command = [sys.executable, "-c", SLOW, images, str(tmp_path / "store"), str(log)]
    env = {**os.environ, "NESCIO_THREADS": "1"}
    first = subprocess.Popen([*command, "stop"], env=env, start_new_session=True)
    until(lambda: log.exists() and log.stat().st_size >= 24)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = log.stat().st_size
    assert 24 <= before < 60
    subprocess.run(command, env=env, check=True)
    again = log.stat().st_size - before
    assert again <= 60 - before + 16, "what was noted as done is not decoded again"
    key = pixels.cache_key(labelled(images), View(16, 18), Store(tmp_path / "store"))
    held = np.load(tmp_path / "store" / "pixels" / key / "pixels.npy")
    whole = np.load(cache_pixels(labelled(images), View(16, 18), Store(tmp_path / "other")))
    np.testing.assert_array_equal(held, whole)
    Store(tmp_path / "store").verify("pixels", key)
    files = json.loads((tmp_path / "store" / "pixels" / key / "config.json").read_text())["files"]
    assert list(files) == ["pixels.npy"]


def test_cache_pixels__a_forgotten_cache_is_made_again(tmp_path):
    images, store, view = labelled(f"npz:{pack(tmp_path / 'set.npz', n=6)}"), Store(tmp_path / "store"), View(16, 18)
    file = cache_pixels(images, view, store)
    pixels.remove_cached_pixels(images, view, store)
    assert not file.exists()
    assert cache_pixels(images, view, store) == file and file.exists()


def test_pixel_cache__the_decoder_needs_no_torch():
    modules = "nescio.datasets.pixel_cache, nescio.predictions.model_predictions"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork", "spawn", "forkserver")
