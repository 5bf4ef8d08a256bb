"""Predictions on disk: a folder of memory-mapped arrays, .npz, .safetensors, .pt, .parquet, .csv, and plain dicts.

Every format is a flat mapping from a key to an array: the field names, `probs`, `normalized`, and `scores/NAME`,
`variants/NAME`, `groups/NAME`. No pickle is loaded. Nothing half-written is ever read: a file or a folder is written
beside its place, flushed to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput, did_you_mean
from nescio.files import atomic_write, flush, flush_folder, read_json
from nescio.predictions.containers import (
    FORMAT,
    check_zip,
    load_torch,
    map_npy,
    read_npz,
    read_safe_header,
    read_safetensors,
    read_torch,
    write_npy,
    write_npz,
    write_safetensors,
)
from nescio.predictions.names import FIELDS, MAPPINGS, MEANT, Flat, Names, is_field, shown, unknown
from nescio.predictions.outputs import Predictions
from nescio.predictions.tables import check_text, read_csv, read_footer, read_parquet, write_csv, write_parquet

ACCEPTED = "a folder with recipe.json, .npz, .safetensors, .parquet, .csv or .pt, or a folder of such shards"
SAVED = "a folder, .npz, .safetensors, .parquet or .csv"
RECIPE, VERSION, CHECKSUM = "recipe.json", 1, "sha256"


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | Predictions,
    *,
    names: Mapping[str, str] | None = None,
    outside: bool = False,
) -> Predictions:
    """Reads what `save` writes, or a dict of arrays, whose mappings may be flat (`scores/NAME`) or nested.

    names    field -> the name that it has in the file, where that is another
    outside  every row is of a class that was not in training, unless the file has `in_distribution`
    """
    if isinstance(source, Predictions):
        return source.replace(in_distribution=False) if outside and source.in_distribution is None else source
    mapped = Names(names, outside)
    if isinstance(source, Mapping):
        fields = {str(key): mapped.field(str(key)) for key in source}
        mapped.check(fields)
        return _build({field: source[key] for key in source if (field := fields[str(key)])}, outside, mapped)
    if not isinstance(source, (str, os.PathLike)):
        raise BadInput(f"Predictions cannot be read from {type(source).__name__}: give a path or a dict of arrays.")
    from nescio.predictions.shards import ShardFolder, shard_files

    path = Path(source)
    if shard_files(path):
        return ShardFolder(path, names, outside).whole()
    with naming_file(path, "read"):
        return _build(_read(path, mapped), outside, mapped)


def from_files(paths: Mapping[str, Any], *, outside: bool = False) -> Predictions:
    """Predictions whose fields lie in files of their own, each of one array."""
    flat: Flat = {}
    for key, value in paths.items():
        inner = {f"{key}/{name}": path for name, path in value.items()} if isinstance(value, Mapping) else {key: value}
        for field, path in inner.items():
            if not is_field(field):
                raise BadInput(unknown("field", field, MEANT, FIELDS))
            with naming_file(Path(path), "read"):
                flat[field] = read_array(Path(path))
    return _build(flat, outside, Names(None))


def read_named_arrays(path: Path) -> Flat:
    """The arrays of an .npz file by their own names."""
    _check_file(path)
    with _sentences(".npz"):
        return read_npz(path)


def read_array(path: Path) -> Any:
    """The only array of a .npy, .npz or .pt file."""
    _check_file(path)
    ending = path.suffix.lower()
    with _sentences(ending):
        if ending == ".npy":
            return map_npy(path)
        if ending in (".pt", ".pth"):
            content = load_torch(path)
        elif ending == ".npz":
            content = read_npz(path)
        else:
            raise BadInput(f"the ending {ending or '(none)'} is not known: give .npy, .npz or .pt.")
    if not isinstance(content, Mapping):
        return content
    if len(content) != 1:
        raise BadInput(f"it holds {len(content)} arrays, and one is needed: give a file of one array per field.")
    return next(iter(content.values()))


def save(predictions: Predictions, path: str | os.PathLike[str], *, durable: bool = True) -> Path:
    """Writes a folder, .npz, .safetensors, .parquet or .csv, by the ending of the name; a name without one is a folder.

    Read again, every field equals what was saved. CSV keeps values, not widths: numbers come back as 64 bits; and
    neither notes nor names of classes. What a format cannot hold is an error: several draws and members in tables, text
    in .safetensors.

    durable  on the disk when this returns; False for a folder that its caller flushes
    """
    goal = Path(path)
    ending = goal.suffix.lower()
    with naming_file(goal, "written"):
        if goal.is_dir() or not ending:
            _write_folder(predictions, goal, durable)
        elif ending in WRITERS:
            with atomic_write(goal) as part, part.open("x+b") as file:
                WRITERS[ending](predictions, file)
                flush(file)
        else:
            raise BadInput(f"the ending {ending} is not known: use {SAVED}.")
    return goal


# ---- keys


def _build(source: Mapping[str, Any], outside: bool, names: Names) -> Predictions:
    """Predictions from flat or nested keys."""
    values: dict[str, Any] = {}
    for key, value in source.items():
        if value is None:
            continue
        field, slash, name = key.partition("/")
        if field in MAPPINGS and (slash or isinstance(value, Mapping)):
            arrays = values.setdefault(field, {})
            for inner, array in {name: value}.items() if slash else value.items():
                if inner in arrays:
                    raise BadInput(f"{field}/{shown(str(inner))} is given twice.")
                arrays[inner] = array
        elif is_field(key):
            values[key] = value
        else:
            raise BadInput(unknown("field", key, MEANT, FIELDS, source))
    if outside and values.get("in_distribution") is None:
        values["in_distribution"] = False
    notes = values.pop("notes", ())
    return Predictions(**values, notes=(*(notes.tolist() if isinstance(notes, np.ndarray) else notes), *names.notes))


def _flat(predictions: Predictions) -> dict[str, Array]:
    """Key -> array of everything that the predictions hold, except `normalized`."""
    flat = dict(predictions.columns())
    if predictions.members is not None:
        flat["members"] = predictions.members
    if predictions.class_names is not None:
        flat["class_names"] = np.array(predictions.class_names, str)
    if predictions.notes:
        flat["notes"] = np.array(predictions.notes, str)
    return flat


def _with_normalized(predictions: Predictions) -> dict[str, Array]:
    return {**_flat(predictions), "normalized": np.asarray(predictions.normalized)}


# ---- files


@contextmanager
def naming_file(path: Path, done: str) -> Iterator[None]:
    """Puts the path into every sentence about it."""
    try:
        yield
    except BadInput as no:
        raise BadInput(f"{path}: {no}") from None
    except MemoryError:
        raise BadInput(f"{path} cannot be {done}: it asks for more memory than there is.") from None
    except OSError as no:
        # NumPy reports a write that was cut short without an error number: there was no room
        short = done == "written" and no.errno is None
        why = "the disk is full: make room and run again" if short else no.strerror or str(no)
        raise BadInput(f"{path} cannot be {done}: {why.rstrip('.')}.") from None


@contextmanager
def _sentences(ending: str) -> Iterator[None]:
    """What a reader of foreign bytes raises, as a sentence: a damaged file can fail in any way, inside any library."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about bytes that the checks judge
            yield
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:  # without a number, a library calls damage so
            raise
        raise BadInput(_not_whole(ending)) from None


def _not_whole(ending: str) -> str:
    return f"this is not a whole {ending} file; it may have been cut short: save it again."


def near_file(path: Path) -> str:
    """The question whether a neighbour of a file that is not there was meant."""
    others = os.listdir(path.parent) if path.parent.is_dir() else []
    return did_you_mean(path.name, [name for name in others if name != path.name])  # it is there as a link to nothing


def _check_file(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"there is no such file or folder.{near_file(path)}")
    if not path.is_file():  # a pipe would never end
        raise BadInput("this is not a regular file.")
    if path.stat().st_size == 0:
        raise BadInput("the file is empty.")


def _read(path: Path, names: Names) -> Flat:
    if path.is_dir():
        with _sentences(RECIPE):
            return _read_folder(path, names)
    ending = _known_ending(path)
    with _sentences(ending):
        return READERS[ending](path, names)


def check_format(path: Path) -> None:
    """Refuse a file that lacks the ending, beginning or end of its format, without reading the rest."""
    if not path.is_dir():
        with naming_file(path, "read"):
            ending = _known_ending(path)
            with _sentences(ending):
                CHECKS[ending](path)


def _known_ending(path: Path) -> str:
    """The ending of a regular file for which there is a reader."""
    _check_file(path)
    ending = path.suffix.lower()
    if ending in READERS:
        return ending
    if ending in (".pkl", ".pickle", ".bin", ".ckpt"):
        raise BadInput(f"{ending} files need pickle, which is never loaded: save the arrays as .npz or .safetensors.")
    if ending == ".npy":
        raise BadInput(
            "a .npy file holds one array without a name: write --logits or --probs for it and --labels for the labels, "
            "each with its .npy file (in Python, Predictions.from_files)."
        )
    raise BadInput(f"the ending {ending or '(none)'} is not known: give {ACCEPTED}.")


# ---- a folder of .npy arrays


def _read_folder(folder: Path, names: Names) -> Flat:
    """Memory-mapped arrays that are as long, and hold the same bytes, as the recipe says."""
    recipe_file = folder / RECIPE
    if not recipe_file.is_file():
        raise BadInput(f"the folder has no {RECIPE}, so it is not a finished dump: give {ACCEPTED}.")
    try:
        recipe = read_json(recipe_file)
        arrays = {key: (str(entry["file"]), entry["bytes"], entry["crc32"]) for key, entry in recipe["arrays"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{RECIPE} does not say which arrays there are: save the folder again.") from None
    if recipe.get("version", VERSION) != VERSION:
        raise BadInput(
            f"{RECIPE} has version {shown(str(recipe['version']))}, this nescio reads {VERSION}: use a newer one."
        )
    strange = set(recipe) - {"format", "version", "normalized", "arrays", CHECKSUM}
    if strange or recipe.get(CHECKSUM, checksum := _recipe_checksum(recipe)) != checksum:
        raise BadInput(f"{RECIPE} does not have the checksum in it: it was changed or damaged.")
    flat: Flat = {"normalized": recipe.get("normalized", False)}
    for key, (name, size, checksum) in arrays.items():
        field = names.field(key)
        if field is None:
            continue
        file = folder / name
        if Path(os.path.realpath(folder)) not in Path(os.path.realpath(file)).parents:
            raise BadInput(f"{RECIPE} names {shown(name)}, which lies outside the folder.")
        if not file.is_file():
            raise BadInput(f"{shown(name)} is missing, though {RECIPE} names it: the folder is not whole.")
        if file.stat().st_size != size:
            raise BadInput(f"{name} has {file.stat().st_size} bytes, {RECIPE} says {size}: the folder is not whole.")
        if _checksum(file) != checksum:
            raise BadInput(f"{name} does not have the checksum in {RECIPE}: it was changed or damaged.")
        flat[field] = map_npy(file)
    names.check(arrays)
    return flat


def _recipe_checksum(recipe: Mapping[str, Any]) -> str:
    """Of the names, files and checksums of all arrays."""
    content = {key: value for key, value in recipe.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def _write_folder(predictions: Predictions, goal: Path, durable: bool) -> None:
    if goal.exists() and not goal.is_dir():
        raise BadInput("there is a file of that name: give another name to the folder.")
    if goal.is_dir() and any(goal.iterdir()) and not (goal / RECIPE).is_file():
        raise BadInput("the folder holds other things than predictions: give another name.")
    with atomic_write(goal, durable) as part:
        part.mkdir()
        arrays = {}
        for key, array in _flat(predictions).items():
            field, _, name = key.partition("/")
            file = part / (f"{field}/{quote(name, safe=' ')}.npy" if name else f"{field}.npy")
            file.parent.mkdir(exist_ok=True)
            with file.open("xb") as handle:
                write_npy(handle, array)
                if durable:
                    flush(handle)
            arrays[key] = {
                "file": file.relative_to(part).as_posix(),
                "bytes": file.stat().st_size,
                "crc32": _checksum(file),
            }
        recipe = {"format": FORMAT, "version": VERSION, "normalized": predictions.normalized, "arrays": arrays}
        recipe[CHECKSUM] = _recipe_checksum(recipe)
        with (part / RECIPE).open("xb") as handle:
            handle.write(json.dumps(recipe, indent=1, ensure_ascii=False).encode())
            if durable:
                flush(handle)
        for folder in {file.parent for file in part.rglob("*")} if durable else ():
            flush_folder(folder)


READERS: dict[str, Callable[[Path, Names], Flat]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".pt": read_torch,
    ".pth": read_torch,
}
CHECKS: dict[str, Callable[[Path], object]] = {
    ".npz": check_zip,
    ".safetensors": read_safe_header,
    ".parquet": read_footer,
    ".csv": check_text,
    ".pt": check_zip,
    ".pth": check_zip,
}
WRITERS: dict[str, Callable[[Predictions, IO[bytes]], None]] = {
    ".npz": lambda predictions, file: write_npz(_with_normalized(predictions), file),
    ".safetensors": lambda predictions, file: write_safetensors(_with_normalized(predictions), file),
    ".parquet": write_parquet,
    ".csv": write_csv,
}
