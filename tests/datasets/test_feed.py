"""Cached pixels are read ahead: every image once, in order."""

import threading

import numpy as np
import pytest

from nescio.errors import BadInput

torch = pytest.importorskip("torch")

from nescio.datasets.feed import _ahead, device_batches  # noqa: E402


class Late:
    """Copies that are made only when someone waits for them, as a busy GPU makes them."""

    def __init__(self):
        self.waiting = []

    def room(self, *shape):
        return torch.zeros(shape, dtype=torch.uint8)

    def send(self, buffer):
        copy = torch.zeros_like(buffer)
        done = []

        class Copied:
            def synchronize(self):
                if not done:
                    copy.copy_(buffer)
                    done.append(True)

        copied = Copied()
        self.waiting.append(copied)
        return copy, copied


@pytest.mark.parametrize(("rows", "batch"), [(1, 4), (4, 4), (23, 4), (24, 4), (7, 100)])
def test_ahead__reading_ahead_shows_every_image_once_in_order(tmp_path, rows, batch):
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 9, 9, 3), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    late = Late()
    shown = list(_ahead(tmp_path / "pixels.npy", np.load(tmp_path / "pixels.npy", mmap_mode="r"), batch, late))
    for copied in late.waiting:
        copied.synchronize()
    assert all(len(raw) == batch for raw, _ in shown), "one size: a GPU looks for kernels again when it changes"
    np.testing.assert_array_equal(np.concatenate([raw[:count].numpy() for raw, count in shown]), pixels)
    plain = list(device_batches(tmp_path / "pixels.npy", batch, torch.device("cpu")))
    np.testing.assert_array_equal(np.concatenate([raw[:count].numpy() for raw, count in plain]), pixels)


def test_ahead__reading_ahead_ends_with_its_reader(tmp_path):
    np.save(tmp_path / "pixels.npy", np.zeros((40, 8, 8, 3), np.uint8))
    held = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    before = threading.active_count()
    some = _ahead(tmp_path / "pixels.npy", held, 4, Late())
    next(some)
    some.close()
    assert threading.active_count() == before
    (tmp_path / "pixels.npy").write_bytes((tmp_path / "pixels.npy").read_bytes()[:-900])
    with pytest.raises(BadInput, match="cut short"):
        list(_ahead(tmp_path / "pixels.npy", held, 4, Late()))
