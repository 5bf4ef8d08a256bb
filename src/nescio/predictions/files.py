"""Predictions on disk: a folder of memory-mapped arrays, .npz, .safetensors, .parquet, .csv, and plain dicts.

Every format is a flat mapping from a key to an array: the field names, `probs`, `normalized`, and `scores/NAME`,
`variants/NAME`, `groups/NAME`. No pickle is ever loaded. Nothing half-written is ever read: a file or a folder is
written beside its place, flushed to the disk and renamed.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.errors import BadInput
from nescio.predictions.dump import CHECK_BYTES, Array, Predictions

Flat = dict[str, Any]
MAPPINGS = ("scores", "variants", "groups")
ARRAYS = ("index", "labels", "taught", "logits", "probs", "members", "embeddings", "annotations", "normalized")
ACCEPTED = "a folder with recipe.json, .npz, .safetensors, .parquet or .csv"
RECIPE, FORMAT, VERSION = "recipe.json", "nescio predictions", 1

# Names that people give to a field; they are suggested, never taken.
MEANT = {
    **dict.fromkeys(("y", "label", "target", "targets", "y_true", "true", "gt"), "labels"),
    **dict.fromkeys(("logit", "pre_softmax", "unnormalized"), "logits"),
    **dict.fromkeys(("prob", "p", "softmax", "probabilities", "proba", "y_prob"), "probs"),
    **dict.fromkeys(("emb", "embedding", "features", "feature", "feats"), "embeddings"),
    **dict.fromkeys(("id", "ids", "idx", "key", "keys"), "index"),
    **dict.fromkeys(("votes", "annotation"), "annotations"),
    **dict.fromkeys(("u", "uncertainty", "score", "scores"), "scores/NAME"),
    **dict.fromkeys(("group", "groups", "domain"), "groups/NAME"),
    **dict.fromkeys(("variant", "variants", "tta"), "variants/NAME"),
}


def load(source: str | os.PathLike[str] | Mapping[str, Any] | Predictions, outside: bool = False) -> Predictions:
    """Reads what `save` writes, or a dict of arrays, whose mappings may be flat (`scores/NAME`) or nested.

    `outside`: every row is of a class that was not in training, unless the file's `taught` says otherwise.
    """
    if isinstance(source, Predictions):
        return source.replace(taught=False) if outside and source.taught is None else source
    if isinstance(source, Mapping):
        return _build(source, outside)
    if not isinstance(source, (str, os.PathLike)):
        raise BadInput(f"Predictions cannot be read from {type(source).__name__}: give a path or a dict of arrays.")
    path = Path(source)
    with naming(path, "read"):
        return _build(_reader(path)(path), outside)


def save(predictions: Predictions, path: str | os.PathLike[str]) -> Path:
    """Writes a folder, .npz, .safetensors, .parquet or .csv, by the ending of the name; a name without one is a folder.

    Read again, every field equals what was saved. CSV keeps values, not widths: numbers come back as 64 bits.
    What a format cannot hold is an error: several draws and members in tables, text in .safetensors.
    """
    goal = Path(path)
    ending = goal.suffix.lower()
    with naming(goal, "written"):
        if goal.is_dir() or not ending:
            _write_folder(predictions, goal)
        elif ending in WRITERS:
            with _beside(goal) as part, part.open("xb") as file:
                WRITERS[ending](predictions, file)
                _flush(file)
        else:
            raise BadInput(f"the ending {ending} is not known: use {ACCEPTED}.")
    return goal


# ---- keys


def _build(source: Mapping[str, Any], outside: bool) -> Predictions:
    """Predictions from flat or nested keys."""
    values: dict[str, Any] = {}
    for key, value in source.items():
        if value is None:
            continue
        field, slash, name = str(key).partition("/")
        if field in MAPPINGS and (slash or isinstance(value, Mapping)):
            held = values.setdefault(field, {})
            for each, array in {name: value}.items() if slash else value.items():
                if each in held:
                    raise BadInput(f"{field}/{each} is given twice.")
                held[each] = array
        elif key in ARRAYS:
            values[str(key)] = value
        else:
            raise BadInput(_unknown("field", str(key), MEANT, [*ARRAYS, *(f"{field}/NAME" for field in MAPPINGS)]))
    if outside and values.get("taught") is None:
        values["taught"] = False
    return Predictions(**values)


def _unknown(what: str, name: str, meant: Mapping[str, str], known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    guess = meant.get(name.lower()) or (close[0] if close else "")
    hint = f" (did you mean {guess!r}?)" if guess else ""
    return f"{name!r} is not a known {what}{hint}: the {what}s are {', '.join(known)}."


def _flat(predictions: Predictions) -> dict[str, Array]:
    """Key -> array of everything that the predictions hold, except `normalized`."""
    flat = dict(predictions.columns())
    if predictions.members is not None:
        flat["members"] = predictions.members
    return flat


# ---- files


@contextmanager
def naming(path: Path, done: str) -> Iterator[None]:
    """Puts the path into every sentence about it."""
    try:
        yield
    except BadInput as no:
        raise BadInput(f"{path}: {no}") from None
    except MemoryError:
        raise BadInput(f"{path} cannot be {done}: it asks for more memory than there is.") from None
    except OSError as no:
        raise BadInput(f"{path} cannot be {done}: {(no.strerror or str(no)).rstrip('.')}.") from None


def _reader(path: Path) -> Callable[[Path], Flat]:
    if not path.exists():
        raise BadInput("there is no such file or folder.")
    if path.is_dir():
        return _read_folder
    ending = path.suffix.lower()
    if ending in READERS:
        if path.stat().st_size == 0:
            raise BadInput("the file is empty.")
        return READERS[ending]
    if ending in (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"):
        raise BadInput(f"{ending} files need pickle, which is never loaded: save the arrays as .npz or .safetensors.")
    if ending == ".npy":
        raise BadInput("a .npy file holds one array without a name: save the named arrays as .npz.")
    raise BadInput(f"the ending {ending or '(none)'} is not known: give {ACCEPTED}.")


@contextmanager
def _beside(goal: Path) -> Iterator[Path]:
    """A place beside the goal; what was written there takes the goal's name at the end, or is removed on failure."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    part = goal.with_name(f".{goal.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        yield part
        _rename(part, goal)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def _rename(part: Path, goal: Path) -> None:
    if part.is_dir() and goal.exists():  # a folder cannot be renamed onto a full one: the old one steps aside
        aside = part.with_suffix(".old")
        goal.rename(aside)
        try:
            part.rename(goal)
        except OSError:
            aside.rename(goal)
            raise
        shutil.rmtree(aside)
    else:
        part.replace(goal)
    _flush_folder(goal.parent)


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- .npy, alone and inside .npz


def _read_npy(file: Any, key: str) -> Array:
    try:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except (ValueError, EOFError) as no:
        raise BadInput(_not_npy(key, no)) from None


def _not_npy(key: str, no: Exception) -> str:
    if any(word in str(no) for word in ("allow_pickle", "Object arrays", "Python objects")):
        return f"{key} holds Python objects, which need pickle, and pickle is never loaded: save numbers or text."
    return f"{key} is not a whole .npy array; it may have been cut short: save it again."


def _write_npy(file: Any, array: Array) -> None:
    if isinstance(array, np.ndarray):
        np.lib.format.write_array(file, array, allow_pickle=False)
        return
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    _write_rows(file, array)


def _write_rows(file: Any, array: Array) -> None:
    """The bytes of an array, or of one that is computed when it is read, block by block."""
    for part in blocks(len(array), max(1, CHECK_BYTES * len(array) // max(1, array.nbytes))):
        file.write(np.ascontiguousarray(array[part]).data)


def read_npz(path: Path) -> Flat:
    import zipfile

    flat: Flat = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                if member.is_dir():
                    continue
                if key == member.filename:
                    raise BadInput(f"{key} is not an array: write the file with np.savez.")
                if key in flat:
                    raise BadInput(f"{key} is given twice.")
                with archive.open(member) as file:
                    flat[key] = _read_npy(file, key)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError):
        raise BadInput("this is not a whole .npz file; it may have been cut short: save it again.") from None
    return flat


def _write_npz(predictions: Predictions, file: IO[bytes]) -> None:
    import zipfile

    flat = {**_flat(predictions), "normalized": np.asarray(predictions.normalized)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in flat.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                _write_npy(member, array)


# ---- a folder of .npy arrays


def _read_folder(folder: Path) -> Flat:
    """Memory-mapped arrays that are as long, and hold the same bytes, as the recipe says."""
    recipe_file = folder / RECIPE
    if not recipe_file.is_file():
        raise BadInput(f"the folder has no {RECIPE}, so it is not a finished dump: give {ACCEPTED}.")
    try:
        recipe = json.loads(recipe_file.read_text("utf-8"))
        arrays = {key: (str(entry["file"]), entry["bytes"], entry["crc32"]) for key, entry in recipe["arrays"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{RECIPE} does not say which arrays there are: save the folder again.") from None
    if recipe.get("version", VERSION) != VERSION:
        raise BadInput(f"{RECIPE} has version {recipe['version']}, this nescio reads {VERSION}: use a newer one.")
    flat: Flat = {"normalized": recipe.get("normalized", False)}
    for key, (name, size, checksum) in arrays.items():
        file = folder / name
        if folder.resolve() not in file.resolve().parents:
            raise BadInput(f"{RECIPE} names {name}, which lies outside the folder.")
        if not file.is_file():
            raise BadInput(f"{name} is missing, though {RECIPE} names it: the folder is not whole.")
        if file.stat().st_size != size:
            raise BadInput(f"{name} has {file.stat().st_size} bytes, {RECIPE} says {size}: the folder is not whole.")
        if _checksum(file) != checksum:
            raise BadInput(f"{name} does not have the checksum in {RECIPE}: it was changed or damaged.")
        try:
            flat[key] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as no:
            raise BadInput(_not_npy(name, no)) from None
    return flat


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def _write_folder(predictions: Predictions, goal: Path) -> None:
    if goal.exists() and not goal.is_dir():
        raise BadInput("there is a file of that name: give another name to the folder.")
    if goal.is_dir() and any(goal.iterdir()) and not (goal / RECIPE).is_file():
        raise BadInput("the folder holds other things than predictions: give another name.")
    with _beside(goal) as part:
        part.mkdir()
        arrays = {}
        for key, array in _flat(predictions).items():
            field, _, name = key.partition("/")
            file = part / (f"{field}/{quote(name, safe=' ')}.npy" if name else f"{field}.npy")
            file.parent.mkdir(exist_ok=True)
            with file.open("xb") as handle:
                _write_npy(handle, array)
                _flush(handle)
            arrays[key] = {
                "file": file.relative_to(part).as_posix(),
                "bytes": file.stat().st_size,
                "crc32": _checksum(file),
            }
        recipe = {"format": FORMAT, "version": VERSION, "normalized": predictions.normalized, "arrays": arrays}
        with (part / RECIPE).open("xb") as handle:
            handle.write(json.dumps(recipe, indent=1, ensure_ascii=False).encode())
            _flush(handle)
        for folder in {file.parent for file in part.rglob("*")}:
            _flush_folder(folder)


# ---- .safetensors: eight bytes of length, a JSON header, the raw bytes

SAFE_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}
SAFE_NAMES = {kind: name for name, kind in SAFE_TYPES.items() if name != "BF16"}


def _read_safetensors(path: Path) -> Flat:
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8).ljust(8, b"\xff"), "little")
        if begin > size:
            raise BadInput("this is not a whole .safetensors file; it may have been cut short: save it again.")
        text = file.read(begin - 8)
    tensors: list[tuple[str, str, tuple[int, ...], int, int]] = []
    try:
        for key, entry in json.loads(text).items():
            if key != "__metadata__":
                start, end = map(int, entry["data_offsets"])
                tensors.append((key, str(entry["dtype"]), tuple(map(int, entry["shape"])), start, end))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise BadInput("the header is not that of a .safetensors file: save it again.") from None
    flat: Flat = {}
    for key, kind, shape, start, end in tensors:
        if kind not in SAFE_TYPES:
            raise BadInput(f"{key} has the type {kind}, which is not read: save it as F16, BF16, F32 or F64.")
        dtype = np.dtype(SAFE_TYPES[kind])
        if min(start, 0, *shape) < 0 or end - start != math.prod(shape) * dtype.itemsize:
            raise BadInput(f"{key} has shape {shape} but {end - start} bytes: save it again.")
        if begin + end > size:
            raise BadInput(f"{key} ends after the end of the file; it may have been cut short: save it again.")
        flat[key] = _map_tensor(path, dtype, begin + start, shape)
        if kind == "BF16":  # the upper half of a float32
            flat[key] = (flat[key].astype(np.uint32) << 16).view(np.float32)
    return flat


def _map_tensor(path: Path, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> Array:
    if 0 in shape:
        return np.empty(shape, dtype)
    if offset % dtype.itemsize:  # arithmetic on misaligned memory is slow: one copy
        with path.open("rb") as file:
            file.seek(offset)
            return np.fromfile(file, dtype, math.prod(shape)).reshape(shape)
    return np.asarray(np.memmap(path, dtype, mode="r", offset=offset, shape=shape))


def _write_safetensors(predictions: Predictions, file: IO[bytes]) -> None:
    flat = {**_flat(predictions), "normalized": np.asarray(predictions.normalized)}
    for key, array in flat.items():
        if array.dtype.str not in SAFE_NAMES:
            raise BadInput(f"{key} holds text, which .safetensors cannot hold: save a folder, .npz, .parquet or .csv.")
    # Wide types first, so that every tensor is aligned.
    tensors = sorted(flat.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for key, array in tensors:
        start, end = end, end + array.nbytes
        header[key] = {"dtype": SAFE_NAMES[array.dtype.str], "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, array in tensors:
        _write_rows(file, array if array.ndim else np.atleast_1d(array))


# ---- tables: one column a number

NUMBERED = {"logit": "logits", "prob": "probs", "logprob": "logits", "emb": "embeddings", "vote": "annotations"}
SINGLE = {"index": "index", "label": "labels", "taught": "taught"}
COLUMN = re.compile(
    r"(?P<one>index|label|taught)|(?P<field>logit|prob|logprob|emb|vote)_(?P<number>\d+)"
    r"|variant_(?P<variant>.+)_(?P<at>\d+)|(?P<named>u|group)_(?P<name>.+)",
    re.DOTALL,
)
COLUMNS = [*SINGLE, "logit_0 …", "prob_0 …", "logprob_0 …", "u_NAME", "emb_0 …", "vote_0 …", "group_NAME"]
COLUMNS += ["variant_NAME_0 …"]
MEANT_COLUMN = {
    **dict.fromkeys(("labels", "y", "target", "targets", "y_true"), "label"),
    **dict.fromkeys(("id", "ids", "idx"), "index"),
    **dict.fromkeys(("logit", "logits"), "logit_0 …"),
    **dict.fromkeys(("prob", "probs", "softmax", "probabilities"), "prob_0 …"),
    **dict.fromkeys(("u", "uncertainty", "score", "scores"), "u_NAME"),
    **dict.fromkeys(("group", "domain"), "group_NAME"),
    **dict.fromkeys(("embedding", "embeddings", "features"), "emb_0 …"),
}
TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def _is_text(column: str) -> bool:
    """Whether a column may hold text; in a CSV its numbers, if they are numbers, are told afterwards."""
    return column in ("index", "taught") or column.startswith("group_") or not COLUMN.fullmatch(column)


def _from_columns(names: list[str], read: Callable[[int], Array]) -> Flat:
    """Flat fields from table columns; class columns are ordered by their integer suffix."""
    flat: Flat = {}
    wide: dict[tuple[str, str], dict[int, int]] = {}
    for position, column in enumerate(names):
        match = COLUMN.fullmatch(column)
        if not column.strip() or column.startswith(("__index_level_", "Unnamed: ")):
            raise BadInput(f"column {position + 1} has no name: write the table without its row numbers.")
        if column in names[:position]:
            raise BadInput(f"column {column} is there twice.")
        if match is None:
            raise BadInput(_unknown("column", column, MEANT_COLUMN, COLUMNS))
        if match["one"]:
            flat[SINGLE[column]] = read(position)
        elif match["named"]:
            flat[f"{'scores' if match['named'] == 'u' else 'groups'}/{match['name']}"] = read(position)
        else:
            prefix = f"variant_{match['variant']}" if match["variant"] else match["field"]
            field = f"variants/{match['variant']}" if match["variant"] else NUMBERED[match["field"]]
            numbered = wide.setdefault((prefix, field), {})
            number = int(match["at"] or match["number"])
            if number in numbered:
                raise BadInput(f"column {column} has the number of column {names[numbered[number]]}.")
            numbered[number] = position
    if ("logit", "logits") in wide and ("logprob", "logits") in wide:
        raise BadInput("there are logit_ and logprob_ columns: give one of them.")
    for (prefix, field), numbered in wide.items():
        missing = next((number for number in range(len(numbered)) if number not in numbered), None)
        if missing is not None:
            raise BadInput(f"column {prefix}_{missing} is missing: the columns {prefix}_* count from 0 without a gap.")
        flat[field] = np.stack([read(numbered[number]) for number in range(len(numbered))], axis=1)
    if ("logprob", "logits") in wide:
        flat["normalized"] = True
    return flat


def _to_columns(predictions: Predictions, ending: str) -> dict[str, Array]:
    """Column name -> values."""
    if predictions.draws > 1 or predictions.members is not None:
        what = f"{predictions.draws} draws" if predictions.draws > 1 else "members"
        raise BadInput(f"a {ending} table cannot hold {what}: save a folder, .npz or .safetensors.")
    columns: dict[str, Array] = {}
    for key, array in predictions.columns():
        field, _, name = key.partition("/")
        prefix = {
            **{"labels": "label", "logits": "logprob" if predictions.normalized else "logit", "embeddings": "emb"},
            **{"annotations": "vote", "scores": f"u_{name}", "groups": f"group_{name}", "variants": f"variant_{name}"},
        }.get(field, field)
        if array.ndim == 1:
            columns[prefix] = array
        else:
            table = np.asarray(array).reshape(len(array), -1)
            columns.update({f"{prefix}_{number}": table[:, number] for number in range(table.shape[1])})
    return columns


def _read_parquet(path: Path) -> Flat:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        names = table.column_names  # made anew at every look
        return _from_columns(names, lambda position: _column(table.column(position), names[position]))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise BadInput("this is not a whole .parquet file; it may have been cut short: save it again.") from None


def _column(column: Any, name: str) -> Array:
    """An Arrow column as an array. (Its own `to_numpy` imports pandas, which takes longer than the reading.)"""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = next(row for row, value in enumerate(column.is_null().to_pylist()) if value)
        raise BadInput(f"column {name} has no value in row {row}: fill it or leave the row out.")
    if pa.types.is_boolean(column.type):
        return _column(column.cast(pa.uint8()), name).astype(bool)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)] or [np.empty(0)])
    if _is_text(name) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.array(column.to_pylist(), str)
    raise BadInput(f"column {name} holds {column.type}, not numbers.")


def _write_parquet(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _to_columns(predictions, ".parquet")
    table = pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()})
    pq.write_table(table, file, write_page_checksum=True)


def _read_csv(path: Path) -> Flat:
    import csv

    import pyarrow as pa
    import pyarrow.csv as pacsv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file), [])
        table = pacsv.read_csv(
            path,
            read_options=pacsv.ReadOptions(column_names=[str(at) for at in range(len(names))], skip_rows=1),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types={str(at): pa.string() if _is_text(n) else pa.float64() for at, n in enumerate(names)}
            ),
        )
    except UnicodeDecodeError:
        raise BadInput("this is not text in UTF-8: save it again as CSV.") from None
    except (pa.ArrowException, csv.Error) as no:
        raise BadInput(_not_csv(names, str(no))) from None

    def read(position: int) -> Array:
        values = _column(table.column(position), names[position])
        if values.dtype.kind != "U":
            return values
        return _truth(values) if names[position] == "taught" else _numbers_or_text(values)

    return _from_columns(names, read)


def _not_csv(names: list[str], no: str) -> str:
    value = re.search(r"column #(\d+): .*invalid value '(.*?)'", no)
    if value:
        return f"column {names[int(value[1])]} holds {value[2]!r}, which is not a number."
    width = re.search(r"Expected (\d+) columns, got (\d+)", no)
    if width:
        return f"a row has {width[2]} values, the first line names {width[1]} columns: they must be as many."
    return "the table cannot be read: the first line must name the columns and every other line must hold a row."


def _truth(values: Array) -> Array:
    words = [value.strip().lower() for value in values.tolist()]
    for word in words:
        if word not in TRUTH:
            raise BadInput(f"column taught holds {word!r}: it must hold True and False.")
    return np.array([TRUTH[word] for word in words], bool)


def _numbers_or_text(text: Array) -> Array:
    """The text as whole numbers if every entry is one in its shortest form, as floats if every entry is a number."""
    for form, dtype in ((r"0|-?[1-9]\d*", np.int64), (r"-?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?", np.float64)):
        if all(map(re.compile(form, re.ASCII).fullmatch, text.tolist())):
            try:
                return text.astype(dtype)
            except OverflowError:
                return text
    return text


def _write_csv(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = _to_columns(predictions, ".csv")
    for name, array in columns.items():
        if array.dtype.kind == "f":
            columns[name] = array.astype(np.float64)  # the shortest text of a float32 is another float64
        elif array.dtype.kind == "b":
            columns[name] = array.astype(np.int8)
        elif array.dtype.kind == "U" and _numbers_or_text(array).dtype.kind != "U":
            raise BadInput(f"column {name} holds text that reads as numbers, which .csv cannot tell: save .parquet.")
    pacsv.write_csv(pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()}), file)


READERS: dict[str, Callable[[Path], Flat]] = {
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
WRITERS: dict[str, Callable[[Predictions, IO[bytes]], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
}
