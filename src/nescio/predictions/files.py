"""Predictions in files: reading and writing by suffix, with the path in every error."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nescio.errors import BadInput, did_you_mean
from nescio.files import atomic_write, flush
from nescio.predictions.formats import csv, folder, npy, parquet, safetensors, torch
from nescio.predictions.names import (
    FIELDS,
    MAPPINGS,
    SYNONYMS,
    FieldNames,
    FlatFields,
    is_field,
    printable,
    unknown_name,
)
from nescio.predictions.outputs import Predictions
from nescio.predictions.readers import FileFormat, registry

MANIFEST = folder.MANIFEST
BUILT_IN = (csv, npy, parquet, safetensors, torch)  # importing them registers their readers
FilePath = str | os.PathLike[str]
PICKLES = (".pkl", ".pickle", ".bin", ".ckpt")


def load(
    source: str | os.PathLike[str] | Mapping[str, object] | Predictions,
    *,
    names: Mapping[str, str] | None = None,
    ood: bool = False,
) -> Predictions:
    """Read what `save` writes, or a dict of arrays, whose mappings may be flat (`scores/NAME`) or nested.

    names  field → its name in the file, if that differs
    ood    all rows are out-of-distribution, unless the file has `in_distribution`
    """
    if isinstance(source, Predictions):
        return source.replace(in_distribution=False) if ood and source.in_distribution is None else source
    field_names = FieldNames(names, ood)
    if isinstance(source, Mapping):
        fields = field_names.select({str(key): value for key, value in source.items()})
        return _predictions_from(fields, ood, field_names)
    if not isinstance(source, (str, os.PathLike)):
        raise BadInput(f"Predictions cannot be read from {type(source).__name__}: give a path or a dict of arrays.")
    from nescio.predictions.shards import ShardFolder, shard_files

    path = Path(source)
    if shard_files(path):
        return ShardFolder(path, names, ood).whole()
    with naming_file(path, "read"):
        return _predictions_from(_read(path, field_names), ood, field_names)


def from_files(paths: Mapping[str, FilePath | Mapping[str, FilePath]], *, ood: bool = False) -> Predictions:
    """Predictions from one file per field, each of one array."""
    flat: FlatFields = {}
    for key, value in paths.items():
        inner = {f"{key}/{name}": path for name, path in value.items()} if isinstance(value, Mapping) else {key: value}
        for field, path in inner.items():
            if not is_field(field):
                raise BadInput(unknown_name("field", field, SYNONYMS, FIELDS))
            with naming_file(Path(path), "read"):
                flat[field] = read_array(Path(path))
    return _predictions_from(flat, ood, FieldNames(None))


def read_named_arrays(path: Path) -> FlatFields:
    """The arrays of an .npz file by their names."""
    _check_file(path)
    with _damage_as_bad_input(".npz"):
        return npy.read_npz(path)


def read_array(path: Path) -> Any:
    """The only array of a .npy, .npz or .pt file."""
    _check_file(path)
    suffix = path.suffix.lower()
    with _damage_as_bad_input(suffix):
        if suffix == ".npy":
            return npy.map_npy(path)
        if suffix in (".pt", ".pth"):
            content = torch.load_torch(path)
        elif suffix == ".npz":
            content = npy.read_npz(path)
        else:
            raise BadInput(f"the suffix {suffix or '(none)'} is unknown: give .npy, .npz or .pt.")
    if not isinstance(content, Mapping):
        return content
    if len(content) != 1:
        raise BadInput(f"it contains {len(content)} arrays, and one is needed: give a file of one array per field.")
    return next(iter(content.values()))


def save(predictions: Predictions, path: str | os.PathLike[str], *, durable: bool = True) -> Path:
    """Write predictions by the suffix of the name; a name without suffix is a folder.

    Every field that is read again equals what was saved. CSV keeps values but not widths: numbers come back as 64 bits.
    It stores neither notes nor class names. What a format cannot store raises BadInput, such as several draws in tables
    or text in .safetensors.

    durable  on the disk when this returns; False for a folder that its caller flushes
    """
    target = Path(path)
    suffix = target.suffix.lower()
    with naming_file(target, "written"):
        if target.is_dir() or not suffix:
            folder.write_folder(predictions, target, durable)
            return target
        write = registry[suffix].write if suffix in registry else None
        if write is None:
            choices = ", ".join(writable_suffixes())
            raise BadInput(f"predictions cannot be written as {suffix}: use a folder or {choices}.")
        with atomic_write(target) as temporary, temporary.open("x+b") as file:
            write(predictions, file)
            flush(file)
    return target


def readable_suffixes() -> list[str]:
    """The suffixes of all registered readers."""
    return list(registry)


def writable_suffixes() -> list[str]:
    """The suffixes of all registered writers."""
    return [suffix for suffix, file_format in registry.items() if file_format.write is not None]


# ---- fields


def _predictions_from(source: Mapping[str, object], ood: bool, names: FieldNames) -> Predictions:
    """Predictions from flat or nested fields."""
    values: dict[str, Any] = {}
    for key, value in source.items():
        if value is None:
            continue
        field, slash, name = key.partition("/")
        nested = {name: value} if slash else value
        if field in MAPPINGS and isinstance(nested, Mapping):
            arrays = values.setdefault(field, {})
            for inner, array in nested.items():
                if inner in arrays:
                    raise BadInput(f"{field}/{printable(str(inner))} is given twice.")
                arrays[inner] = array
        elif is_field(key):
            values[key] = value
        else:
            raise BadInput(unknown_name("field", key, SYNONYMS, FIELDS, source))
    if ood and values.get("in_distribution") is None:
        values["in_distribution"] = False
    notes = values.pop("notes", ())
    return Predictions(**values, notes=(*(notes.tolist() if isinstance(notes, np.ndarray) else notes), *names.notes))


# ---- paths


@contextmanager
def naming_file(path: Path, action: str) -> Iterator[None]:
    """Put the path into every error about it."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except MemoryError:
        raise BadInput(f"{path} cannot be {action}: there is not enough memory.") from None
    except OSError as error:
        # NumPy reports a write that was cut short without an error number: the disk is full
        full = action == "written" and error.errno is None
        reason = "the disk is full: make room and run again" if full else error.strerror or str(error)
        raise BadInput(f"{path} cannot be {action}: {reason.rstrip('.')}.") from None


@contextmanager
def _damage_as_bad_input(suffix: str) -> Iterator[None]:
    """Turn whatever a reader raises into BadInput: a damaged file can fail in any way, inside any library."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from libraries, about bytes that are checked anyway
            yield
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:  # libraries report damage without a number
            raise
        raise BadInput(f"this is not a complete {suffix} file; it may have been cut short: save it again.") from None


def near_file(path: Path) -> str:
    """A question that suggests a similar name in the folder of a missing file."""
    others = os.listdir(path.parent) if path.parent.is_dir() else []
    return did_you_mean(path.name, [name for name in others if name != path.name])  # a broken link has the name


def _check_file(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"there is no such file or folder.{near_file(path)}")
    if not path.is_file():  # a pipe would never end
        raise BadInput("this is not a regular file.")
    if path.stat().st_size == 0:
        raise BadInput("the file is empty.")


def _read(path: Path, names: FieldNames) -> FlatFields:
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise BadInput(
                f"the folder has no {MANIFEST}, so it is not a finished predictions folder: {_accepted_formats()}."
            )
        with _damage_as_bad_input(MANIFEST):
            return folder.read_folder(path, names)
    file_format = _format_of(path)
    with _damage_as_bad_input(path.suffix.lower()):
        return file_format.read(path, names)


def check_format(path: Path) -> None:
    """Refuse a file that lacks the suffix, beginning or end of its format, without reading the rest."""
    if not path.is_dir():
        with naming_file(path, "read"):
            file_format = _format_of(path)
            if file_format.check is not None:
                with _damage_as_bad_input(path.suffix.lower()):
                    file_format.check(path)


def _format_of(path: Path) -> FileFormat:
    """The format of a regular file; BadInput if there is no reader for its suffix."""
    _check_file(path)
    suffix = path.suffix.lower()
    if suffix in registry:
        return registry[suffix]
    if suffix in PICKLES:
        raise BadInput(f"{suffix} files need pickle, which is never loaded: save the arrays as .npz or .safetensors.")
    if suffix == ".npy":
        raise BadInput(
            "a .npy file contains one array without a name: name the field of each file, such as logits and labels "
            "(in Python, Predictions.from_files)."
        )
    raise BadInput(f"the suffix {suffix or '(none)'} is unknown: {_accepted_formats()}.")


def _accepted_formats() -> str:
    return f"give a folder with {MANIFEST}, {', '.join(readable_suffixes())}, or a folder of such shards"
