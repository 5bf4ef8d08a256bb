"""A dump in several files is the dump: joined on index, with no row twice and none missing."""

import numpy as np
import pytest

from nescio.errors import BadInput
from nescio.predictions import Predictions
from nescio.predictions.files import save
from nescio.predictions.shards import LazyRows, ShardFolder, concatenate


@pytest.fixture
def dump():
    rng = np.random.default_rng(0)
    return Predictions(
        labels=rng.integers(0, 4, 60),
        logits=rng.normal(size=(60, 2, 4)).astype(np.float16),
        embeddings=rng.normal(size=(60, 3)),
        scores={"native": rng.normal(size=60)},
        groups={"domain": np.array(["day", "night"])[np.arange(60) % 2]},
        members=[0, 1],
    )


def cut(dump, folder, **files):
    """Writes ranges of rows: name → (start, stop)."""
    folder.mkdir(exist_ok=True)
    for name, (start, stop) in files.items():
        dump.take(slice(start, stop)).save(folder / name.replace("_", "."))
    return folder


def same(one, other):
    ours, theirs = dict(one.columns()), dict(other.columns())
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        assert np.array_equal(column, theirs[name]) and column.dtype == theirs[name].dtype, name
    assert np.array_equal(one.members, other.members) and one.normalized == other.normalized


def test_shard_folder__a_folder_of_files_is_one_dump_in_the_order_of_its_keys(dump, tmp_path):
    folder = cut(dump.replace(groups={}), tmp_path / "shards", a_npz=(40, 60), b_safetensors=(0, 7), c=(7, 40))
    same(Predictions.load(folder), dump.replace(groups={}))
    assert [len(shard) for shard in ShardFolder(folder)] == [20, 7, 33]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a_npz": (0, 20), "b_npz": (30, 60)}, " 20,.* 30"),
        ({"b_npz": (1, 60)}, " 0,.* 1"),
        ({"a_npz": (0, 20), "b_npz": (19, 60)}, "index contains 19 more than once, in a.npz and b.npz"),
    ],
)
def test_shard_folder__a_row_twice_and_a_row_that_is_missing_are_refused(dump, tmp_path, files, sentence):
    folder = cut(dump, tmp_path / "shards", **files)
    with pytest.raises(BadInput, match=sentence):
        Predictions.load(folder)
    with pytest.raises(BadInput, match=sentence):
        list(ShardFolder(folder))


def test_shards__texts_as_keys_may_be_any(dump, tmp_path):
    named = dump.replace(index=[f"image {number}" for number in range(60)])
    folder = cut(named, tmp_path / "shards", a_npz=(0, 20), b_npz=(30, 60))
    assert len(Predictions.load(folder)) == 50


def test_shards__files_of_different_dumps_are_no_shards(dump, tmp_path):
    for number, (other, sentence) in enumerate(
        [
            (dump.replace(scores={}), r"only one.*/native"),
            (dump.replace(embeddings=np.ones((60, 2))), "has other shapes"),
            (dump.replace(members=[0, 0]), "other members"),
        ]
    ):
        folder = cut(dump, tmp_path / f"{number}", a_npz=(0, 20))
        cut(other, folder, b_npz=(20, 60))
        with pytest.raises(BadInput, match=f"b.npz and a.npz .*{sentence}"):
            Predictions.load(folder)


def test_concatenate__shards_are_written_as_one_to_the_last_byte_without_being_read_at_once(
    dump, tmp_path, monkeypatch
):
    cut(dump, tmp_path / "shards", a=(0, 13), b=(13, 14), c=(14, 60))
    dump.save(tmp_path / "whole")
    most = []
    read = LazyRows.__getitem__
    monkeypatch.setattr(
        LazyRows, "__getitem__", lambda self, rows: most.append(len(read(self, rows))) or read(self, rows)
    )
    monkeypatch.setattr("nescio.predictions.formats.npy.WRITE_BYTES", 100)
    save(concatenate([Predictions.load(tmp_path / "shards" / name) for name in "abc"]), tmp_path / "joined")
    whole, made = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*.*")}
        for place in (tmp_path / "whole", tmp_path / "joined")
    )
    assert whole == made and max(most) <= 10
