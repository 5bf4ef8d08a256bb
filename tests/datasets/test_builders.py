"""Revisions of datasets."""

import os

import numpy as np
import pytest

from nescio.datasets import decode
from tests.support.published_layouts import (
    WNIDS,
    fresh,  # noqa: F401  (used by every test)
    jpeg,
    pictures,
    revision,
    smooth,
    write_tiny,
)


def test_builders__a_revision_changes_with_a_pixel_or_a_label_and_with_nothing_else(tmp_path):
    pixels, labels = pictures(20, 8), np.arange(20) % 4
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:8], "y_test": labels[:8]}
    np.savez(tmp_path / "toy.npz", **arrays)
    first = revision("npz:toy.npz", tmp_path)
    np.savez_compressed(tmp_path / "moved.npz", **{key: arrays[key] for key in reversed(arrays)})
    assert revision("npz:moved.npz", tmp_path) == first
    np.savez(tmp_path / "wide.npz", **{**arrays, "y_train": labels.astype(np.uint8)})
    assert revision("npz:wide.npz", tmp_path) == first
    seen = {first}
    for key in arrays:
        changed = arrays[key].copy()
        changed.flat[5] ^= 1
        np.savez(tmp_path / "toy.npz", **{**arrays, key: changed})
        seen.add(revision("npz:toy.npz", tmp_path))
    # The last training row becomes the first test row: the same rows in all.
    moved = {
        **{"x_train": pixels[:-1], "y_train": labels[:-1]},
        **{"x_test": np.concatenate([pixels[-1:], pixels[:8]]), "y_test": np.concatenate([labels[-1:], labels[:8]])},
    }
    np.savez(tmp_path / "toy.npz", **moved)
    seen.add(revision("npz:toy.npz", tmp_path))
    assert len(seen) == 6


def test_builders__the_revision_of_files_is_known_without_decoding(tmp_path, monkeypatch):
    write_tiny(tmp_path / "a")
    write_tiny(tmp_path / "b")
    first = revision("tiny-imagenet", tmp_path / "a")
    os.utime(tmp_path / "b/tiny-imagenet-200/val/images/val_1.JPEG", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode", lambda *_: pytest.fail("decoded"))
        assert revision("tiny-imagenet", tmp_path / "b") == first
    assert revision("tiny-imagenet@32", tmp_path / "a") != first
    other = tmp_path / "b/tiny-imagenet-200"
    jpeg(other / "val/images/val_1.JPEG", smooth(52, 64, 64))
    changed = revision("tiny-imagenet", tmp_path / "b")
    notes = other / "val/val_annotations.txt"
    notes.write_text(notes.read_text().replace(f"val_0.JPEG\t{WNIDS[2]}", f"val_0.JPEG\t{WNIDS[1]}"))
    assert len({first, changed, revision("tiny-imagenet", tmp_path / "b")}) == 3
