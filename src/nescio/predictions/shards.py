"""Predictions in several files, the shards, with distinct keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nescio.arrays.checks import release_pages
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions import files
from nescio.predictions.names import MAPPINGS
from nescio.predictions.outputs import NOT_ROWS, Predictions
from nescio.predictions.readers import registry


class LazyRows:
    """The rows of several arrays, one after the other, copied from them only when they are read."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.parts, self.ends = arrays, np.cumsum([len(array) for array in arrays])
        self.dtype = arrays[0].dtype
        self.shape: tuple[int, ...] = (int(self.ends[-1]), *arrays[0].shape[1:])
        self.ndim, self.nbytes = len(self.shape), sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        pieces = [np.empty((0, *self.shape[1:]), self.dtype)]
        for array, end in zip(self.parts, self.ends.tolist(), strict=True):
            first = end - len(array)
            piece = array[max(start - first, 0) : max(stop - first, 0)]
            if len(piece):
                pieces.append(np.array(piece))
                release_pages(piece)
        return np.concatenate(pieces)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def concatenate(shards: Sequence[Predictions], names: Sequence[str] = ()) -> Predictions:
    """The rows of several shards as one. Fields with many numbers per row are copied only when they are read.

    names  of the predictions, for error messages
    """
    shard_names = [*names] or [f"Shard {number}" for number in range(len(shards))]
    columns = [dict(shard.columns()) for shard in shards]
    for name, shard, shard_columns in zip(shard_names, shards, columns, strict=True):
        _check_same_fields(f"{name} and {shard_names[0]}", shard, shard_columns, shards[0], columns[0])
    whole: dict[str, Any] = {field: {} if field in MAPPINGS else None for field in Predictions.__annotations__}
    for column, first in columns[0].items():
        arrays = [shard_columns[column] for shard_columns in columns]
        field, _, name = column.partition("/")
        rows = LazyRows(arrays) if first.ndim > 1 else np.concatenate(arrays)
        if name:
            whole[field][name] = rows
        else:
            whole[field] = rows
    whole |= {field: getattr(shards[0], field) for field in NOT_ROWS}
    whole["notes"] = tuple(dict.fromkeys(note for shard in shards for note in shard.notes))
    check_repeated([shard.index for shard in shards], shard_names)
    predictions = object.__new__(Predictions)  # its fields are checked already
    predictions._set_fields(whole)
    return predictions


def _check_same_fields(
    shard_names: str,
    shard: Predictions,
    shard_columns: Mapping[str, Array],
    first: Predictions,
    first_columns: Mapping[str, Array],
) -> None:
    if shard_columns.keys() != first_columns.keys():
        differing = ", ".join(sorted(shard_columns.keys() ^ first_columns.keys()))
        raise BadInput(f"{shard_names} are no shards of one set of predictions: only one of them has {differing}.")
    for column, array in shard_columns.items():
        kinds = {array.dtype.kind, first_columns[column].dtype.kind}
        if array.shape[1:] != first_columns[column].shape[1:] or len(kinds) > 1:
            raise BadInput(
                f"{shard_names} are no shards of one set of predictions: {column} has other shapes or types."
            )
    for field in ("members", "class_names", "normalized"):
        if not np.array_equal(getattr(shard, field), getattr(first, field)):
            raise BadInput(f"{shard_names} are no shards of one set of predictions: they have other {field}.")


def check_repeated(indexes: Sequence[Array], names: Sequence[str]) -> Array:
    """The sorted keys of all shards; BadInput if two shards have the same key."""
    keys = np.concatenate(indexes)
    keys.sort()
    if (repeated := keys[1:][keys[1:] == keys[:-1]]).size:
        who = [name for name, index in zip(names, indexes, strict=True) if (index == repeated[0]).any()]
        raise BadInput(
            f"index contains {repeated[0]} more than once, in {' and '.join(who)}: shards of one set of predictions "
            "share no row; name predictions of several models one by one."
        )
    return keys


def check_missing(keys: Array) -> None:
    """Refuse sorted whole numbers with a gap, which means that a shard is missing."""
    if keys.dtype.kind == "U" or int(keys[-1]) == len(keys) - 1:
        return
    missing = int(np.argmax(keys != np.arange(len(keys))))
    raise BadInput(
        f"No file has the index {missing}, and one has {keys[missing]}: a shard is missing. Number the rows "
        "of all shards from 0 without a gap, or use texts as index."
    )


# ---- a folder of shards


@dataclass(frozen=True)
class ShardFolder:
    """The predictions of a folder as shards of one: read one after the other, or together."""

    folder: Path
    names: Mapping[str, str] | None = None  # field -> the name that it has in the files
    ood: bool = False

    @property
    def files(self) -> list[Path]:
        return shard_files(self.folder)

    @property
    def bytes(self) -> int:
        """Size on the disk."""
        inside = [path for file in self.files for path in (file.rglob("*") if file.is_dir() else [file])]
        return sum(path.stat().st_size for path in inside if path.is_file())

    def __iter__(self) -> Iterator[Predictions]:
        """One shard after the other; at the end their keys are checked."""
        indexes, paths = [], self.files
        for path in paths:
            shard = files.load(path, names=self.names, ood=self.ood)
            indexes.append(shard.index)
            yield shard
        with files.naming_file(self.folder, "read"):
            check_missing(check_repeated(indexes, [path.name for path in paths]))

    def whole(self) -> Predictions:
        """All rows in memory, in the order of their keys."""
        paths = self.files
        shards = [files.load(path, names=self.names, ood=self.ood) for path in paths]
        with files.naming_file(self.folder, "read"):
            predictions = concatenate(shards, [path.name for path in paths]).replace()
            check_missing(np.sort(predictions.index))
        return predictions.take(np.argsort(predictions.index, kind="stable"))


def shard_files(folder: Path) -> list[Path]:
    """Prediction files directly in a folder, sorted by name; none if the folder is one set of predictions."""
    if not folder.is_dir() or (folder / files.MANIFEST).is_file():
        return []
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [path for path in paths if path.suffix.lower() in registry or (path / files.MANIFEST).is_file()]
