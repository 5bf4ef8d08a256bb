"""The published files of corrupted images: read as they are, mapped, and refused where they are of other images."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nescio import predict
from nescio.datasets import load, pixel_cache, readers, shifts
from nescio.datasets.changes import Change
from nescio.datasets.image_set import ImageSet
from nescio.datasets.shifts import PublishedCorruption, published_corruptions
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import to_json
from nescio.predictions.formats.npy import map_npy
from nescio.runtime import runtime_for
from nescio.work.store import Store

N = 7


@pytest.fixture
def files(tmp_path):
    """An npz of images and, beside it, a folder of two corruptions of its test images. (data, folder, arrays)"""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, 8, 8, 3), np.uint8), np.arange(20) % 3
    np.savez(tmp_path / "set.npz", x_train=x[N:], y_train=y[N:], x_test=x[:N], y_test=y[:N])
    folder = tmp_path / "set-C"
    folder.mkdir()
    arrays = {name: rng.integers(0, 256, (5 * N, 8, 8, 3), np.uint8) for name in ("fog", "snow")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(y[:N], 5))
    readers._load.cache_clear()
    return f"npz:{tmp_path / 'set.npz'}", folder, arrays


def test_published_corruptions__every_image_meets_its_corrupted_twin(files):
    data, folder, arrays = files
    changes = published_corruptions(folder, data, ("snow", "fog"), (2, 5))
    assert [(each.condition, each.level) for each in changes] == [("snow", 2), ("snow", 5), ("fog", 2), ("fog", 5)]
    shown = ImageSet(data, change=changes[3]).load()
    raw, index = torch.from_numpy(shown.images.pixels), torch.from_numpy(shown.index)
    assert torch.equal(changes[3].apply(raw, index), torch.from_numpy(arrays["fog"][4 * N :]))
    some = torch.tensor([5, 0, 3])
    assert torch.equal(changes[0].apply(raw[some], index[some]), torch.from_numpy(arrays["snow"][N + some.numpy()]))
    assert isinstance(changes[0], Change) and len({to_json(change) for change in changes}) == 4


@pytest.mark.parametrize("view", [View(12, 14), View(8, 10), View(6, 6, "trained")])
def test_published_corruptions__a_network_with_a_view_sees_the_files_through_it(files, tmp_path, view):
    data, folder, arrays = files
    (change,) = published_corruptions(folder, data, ("fog",), (2,))
    shown = ImageSet(data, view=view, change=change).load()
    network = SimpleNamespace(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), trial=None)
    batches = predict.input_batches(network, shown, Store(tmp_path / "store"), runtime_for("cpu"), 3)
    seen = torch.cat([x for x, _ in batches]).permute(0, 2, 3, 1).numpy() * 255
    wanted = np.stack([pixel_cache.decode_pixels(image, view) for image in arrays["fog"][N : 2 * N]])
    assert np.abs(seen - wanted).max() < 0.01


def test_published_corruptions__files_are_mapped_and_not_read(files, monkeypatch):
    data, folder, _ = files
    (change,) = published_corruptions(folder, data, ("fog",), (1,))
    seen = []
    monkeypatch.setattr(shifts, "map_npy", lambda path: seen.append(map_npy(path)) or seen[-1])
    change.apply(torch.zeros(1, 8, 8, 3), torch.tensor([change.first]))
    assert isinstance(seen[0].base, np.memmap)


def test_published_corruptions__other_bytes_have_another_key(files):
    data, folder, arrays = files
    (before,) = published_corruptions(folder, data, ("fog",), (1,))
    changed = arrays["fog"].copy()
    changed[3, 2, 1, 0] ^= 1  # one bit of one image
    np.save(folder / "fog.npy", changed)
    (after,) = published_corruptions(folder, data, ("fog",), (1,))
    assert before.revision != after.revision
    one = torch.zeros(1, 8, 8, 3), torch.tensor([before.first])
    assert len(after.apply(*one)) == 1
    with pytest.raises(BadInput, match="has changed since"):
        before.apply(*one)


def test_published_corruptions__training_images_have_no_corrupted_twin(files):
    data, folder, _ = files
    train = load(data).train
    (change,) = published_corruptions(folder, data, ("fog",), (1,))
    with pytest.raises(BadInput, match="test images only"):
        change.apply(torch.from_numpy(train.pixels), torch.from_numpy(train.index))


def test_published_corruption__what_does_not_fit_is_said_in_a_sentence(files):
    data, folder, arrays = files
    with pytest.raises(BadInput, match=r"frost\.npy .*No such file"):
        published_corruptions(folder, data, ("fog", "frost"))
    with pytest.raises(BadInput, match="from 1 to 5, not 6"):
        published_corruptions(folder, data, ("fog",), (6,))
    np.save(folder / "snow.npy", arrays["snow"][:-1])
    with pytest.raises(BadInput, match=r"uint8 of \(35, 8, 8, 3\) is expected"):
        published_corruptions(folder, data, ("snow",))
    for labels in (np.zeros(5 * N, np.int64), np.zeros(5 * N), np.zeros(5 * N, [("label", int)])):
        np.save(folder / "labels.npy", labels)
        with pytest.raises(BadInput, match=r"labels\.npy"):
            published_corruptions(folder, data, ("fog",))
    with pytest.raises(BadInput, match="There is nothing at"):
        published_corruptions(folder / "none", data, ("fog",))
    assert PublishedCorruption(str(folder), "fog", 3, "abc", 0).condition == "fog"
