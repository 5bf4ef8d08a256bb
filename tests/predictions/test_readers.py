"""The registry of readers of prediction files."""

import numpy as np
import pytest

from nescio import BadInput, Predictions
from nescio.predictions.files import readable_suffixes, writable_suffixes
from nescio.predictions.readers import reader, registry

BUILT_IN = {".npz", ".safetensors", ".parquet", ".csv"}


@pytest.fixture
def rows_reader(monkeypatch):
    """A reader of .rows files, text with one row of logits per line, for the time of a test."""
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))

    @reader(".rows")
    def read_rows(path, names):
        return names.select({"logits": np.loadtxt(path, ndmin=2)})

    return read_rows


def test_writable_suffixes__suffixes_of_readers_and_writers():
    assert BUILT_IN | {".pt", ".pth"} <= set(readable_suffixes())
    assert set(writable_suffixes()) >= BUILT_IN and ".pt" not in writable_suffixes()


def test_readers__reader_adds_a_suffix_to_load(tmp_path, rows_reader):
    (tmp_path / "preds.ROWS").write_text("1 2 3\n4 5 6\n")
    loaded = Predictions.load(tmp_path / "preds.ROWS")
    np.testing.assert_array_equal(loaded.logits[:, 0], [[1, 2, 3], [4, 5, 6]])


def test_readers__reader_without_writer_refuses_save(tmp_path, rows_reader):
    with pytest.raises(BadInput, match=r"\.rows.*\.npz"):
        Predictions(logits=np.eye(3)).save(tmp_path / "preds.rows")


def test_readers__reader_damage_is_bad_input_with_the_path(tmp_path, rows_reader):
    (tmp_path / "preds.rows").write_text("1 2 x\n")
    with pytest.raises(BadInput, match=r"preds\.rows.*complete \.rows"):
        Predictions.load(tmp_path / "preds.rows")


@pytest.mark.parametrize("suffix", ["rows", ".ROWS"])
def test_reader_refuses_other_suffixes(suffix):
    with pytest.raises(BadInput, match=suffix):
        reader(suffix)(lambda path, names: {})


def test_reader_refuses_a_suffix_twice(rows_reader):
    with pytest.raises(BadInput, match=r"\.rows"):
        reader(".rows")(rows_reader)
