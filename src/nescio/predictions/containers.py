"""Files of named arrays: .npy, .npz, .safetensors and .pt, each a flat mapping from a key to an array.

No pickle is loaded; a .pt file goes through torch's own loader of tensors alone. Sizes are checked against the file
before anything is read or mapped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import check_growth
from nescio.predictions.names import Flat, Names, shown

WRITE_BYTES = 1 << 24  # written at once
READ_BYTES = 1 << 20  # read at once
HEADER_BYTES = 1 << 24  # of JSON; those of real files have some thousands
FORMAT = "nescio predictions"
NO_PICKLE = "holds Python objects, which need pickle, and pickle is never loaded: save numbers or text."


# ---- .npy, alone and inside .npz


class _Header(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.values * self.dtype.itemsize


def _read_header(file: Any, key: str) -> _Header:
    """The header of a .npy array; the file stands behind it then."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, fortran, dtype = read[np.lib.format.read_magic(file)](file)
        header = _Header(dtype, shape, fortran)
        if header.values < 0 or len(shape) > 32:
            raise ValueError("no array has this shape")
    except BadInput:
        raise
    except Exception:  # a damaged header can fail in any way: it is a Python expression
        raise BadInput(_not_npy(key)) from None
    if dtype.hasobject:
        raise BadInput(f"{key} {NO_PICKLE}")
    return header


def _not_npy(key: str) -> str:
    return f"{key} is not a whole .npy array; it may have been cut short: save it again."


def map_npy(path: Path) -> Array:
    """A .npy file as a read-only memory map."""
    with path.open("rb") as file:
        header = _read_header(file, path.name)
        start = file.tell()
    if path.stat().st_size < start + header.nbytes:
        raise BadInput(_not_npy(path.name))
    check_growth(path.name, 8 * header.values, path.stat().st_size)  # as numbers of float64
    if not header.nbytes:
        return np.empty(header.shape, header.dtype)
    order: Any = "F" if header.fortran else "C"
    return np.asarray(np.memmap(path, header.dtype, mode="r", offset=start, shape=header.shape, order=order))


def write_npy(file: Any, array: Array) -> None:
    if isinstance(array, np.ndarray):
        np.lib.format.write_array(file, array, allow_pickle=False)
        return
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    _write_rows(file, array)


def _write_rows(file: Any, array: Array) -> None:
    """The bytes of an array, or of one that is computed when it is read, block by block."""
    for part in blocks(len(array), max(1, WRITE_BYTES * len(array) // max(1, array.nbytes))):
        file.write(np.ascontiguousarray(array[part]).data)


def read_npz(path: Path, names: Names | None = None) -> Flat:
    import zipfile

    names, flat = names or Names(None), {}
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        _check_directory(path, len(archive.infolist()))
        members = [member for member in archive.infolist() if not member.is_dir()]
        keys = {member: member.filename.removesuffix(".npy") for member in members}
        wanted = {member: field for member, key in keys.items() if (field := names.field(key)) is not None}
        check_growth("the file", sum(member.file_size for member in wanted), size)
        for member, field in wanted.items():
            key = shown(keys[member])
            if keys[member] == member.filename:
                raise BadInput(f"{key or 'a nameless member'} is not an array: write the file with np.savez.")
            if field in flat:
                raise BadInput(f"{key} is given twice.")
            with archive.open(member) as file:
                flat[field] = _read_member(file, key, member.file_size, size)
    names.check(keys.values())
    return flat


def _check_directory(path: Path, members: int) -> None:
    """Refuses an archive whose directory lists fewer members than its end counts: zipfile leaves them out."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (22 + 0xFFFF)))
        end = file.read()
    at = end.rfind(b"PK\5\6")
    counted = int.from_bytes(end[at + 10 : at + 12], "little")
    if counted not in (members, 0xFFFF):  # 0xFFFF: the number is elsewhere
        raise BadInput(f"the directory of the archive has {members} of {counted} arrays: save it again.")


def check_zip(path: Path) -> None:
    """Raise unless the file ends with the directory of a zip archive."""
    import zipfile

    zipfile.ZipFile(path).close()


def _read_member(file: Any, key: str, announced: int, stored: int) -> Array:
    """One .npy array of an archive."""
    header = _read_header(file, key)
    if announced != file.tell() + header.nbytes:
        raise BadInput(_not_npy(key))
    check_growth(key, header.values * max(8, header.dtype.itemsize), stored)  # as numbers of float64
    content = np.empty(header.nbytes, np.uint8)
    for part in blocks(len(content), READ_BYTES):
        if file.readinto(content[part].data) != part.stop - part.start:
            raise BadInput(_not_npy(key))
    file.read(1)  # the end, where the archive compares its checksum
    return np.ndarray(header.shape, header.dtype, content.data, order="F" if header.fortran else "C")


def write_npz(flat: Mapping[str, Array], file: IO[bytes]) -> None:
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in flat.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                write_npy(member, array)


# ---- .safetensors: eight bytes of length, a JSON header, the raw bytes

SAFE_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}
SAFE_NAMES = {kind: name for name, kind in SAFE_TYPES.items() if name != "BF16"}
TEXTS = ("class_names", "notes")  # fields that are kept beside the tensors, as JSON
CHECKSUM, UNKNOWN = "nescio.sha256", "0" * 64  # beside them as well, and what stands there while it is computed
FORMER_CHECKSUM = "sha256"  # the same in files of earlier versions; in files of other programs it is something else


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: Path, names: Names) -> Flat:
    size, (header, tensors, texts, digest) = path.stat().st_size, read_safe_header(path)
    begin = 8 + len(header)
    flat: Flat = {}
    for key, tensor in tensors.items():
        field = names.field(key)
        if field is not None:
            flat[field] = _safe_tensor(path, shown(key), tensor, begin, size)
    names.check(tensors)
    with path.open("rb") as file:
        file.seek(begin)
        if digest and _safe_digest(header.replace(digest.encode(), UNKNOWN.encode()), file) != digest:
            raise BadInput("its content does not have the checksum in its header: it was changed or damaged.")
    return flat | texts


def read_safe_header(path: Path) -> tuple[bytes, dict[str, _Tensor], Flat, str]:
    """The header of a .safetensors file, and the tensors, texts and checksum in it."""
    with path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8).ljust(8, b"\xff"), "little")
        if begin > min(path.stat().st_size, HEADER_BYTES):
            raise BadInput("this is not a whole .safetensors file; it may have been cut short: save it again.")
        header = file.read(begin - 8)
    return header, *_safe_header(header)


def _safe_digest(header: bytes, file: IO[bytes]) -> str:
    """The checksum of a header, in which it is not known yet, and of what stands behind it."""
    digest = hashlib.sha256(header)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _safe_header(header: bytes) -> tuple[dict[str, _Tensor], Flat, str]:
    """The tensors, the texts beside them, and the checksum, which files that nescio wrote have."""
    try:
        entries = json.loads(header, object_pairs_hook=_once)
        kept = entries.pop("__metadata__", {})
        written = kept.get("format") == FORMAT
        key = FORMER_CHECKSUM if written and FORMER_CHECKSUM in kept else CHECKSUM
        if written != (key in kept):
            raise ValueError("one was damaged: nescio writes both")
        kept = kept if written else {}
        texts = {key: json.loads(kept[key]) for key in TEXTS if key in kept}
        tensors, digest = {}, str(kept.get(key, ""))
        for key, entry in entries.items():
            start, end = map(index, entry["data_offsets"])
            tensors[key] = _Tensor(str(entry["dtype"]), tuple(map(index, entry["shape"])), start, end)
        spans = sorted((tensor.start, tensor.end) for tensor in tensors.values())
        if any(one[1] > other[0] for one, other in pairwise(spans)):
            raise ValueError("two tensors share bytes")
    except Exception:  # any JSON can stand there
        raise BadInput("the header is not that of a .safetensors file: save it again.") from None
    return tensors, texts, digest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no name may stand twice."""
    if len(entries := dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return entries


def _safe_tensor(path: Path, key: str, tensor: _Tensor, begin: int, size: int) -> Array:
    if tensor.dtype not in SAFE_TYPES:
        raise BadInput(
            f"{key} has the type {shown(tensor.dtype)}, which is not read: save it as F16, BF16, F32 or F64."
        )
    dtype, shape = np.dtype(SAFE_TYPES[tensor.dtype]), tensor.shape
    needed = math.prod(shape) * dtype.itemsize
    if len(shape) > 32 or min(tensor.start, 0, *shape) < 0 or tensor.end - tensor.start != needed:
        raise BadInput(f"{key} has shape {str(shape)[:80]} but {tensor.end - tensor.start} bytes: save it again.")
    if begin + tensor.end > size:
        raise BadInput(f"{key} ends after the end of the file; it may have been cut short: save it again.")
    if not needed:
        return np.empty(shape, dtype)
    content = np.asarray(np.memmap(path, np.uint8, mode="r"))[begin + tensor.start : begin + tensor.end]
    if (begin + tensor.start) % dtype.itemsize:  # arithmetic on misaligned memory is slow: one copy
        content = content.copy()
    array = content.view(dtype).reshape(shape)
    if tensor.dtype == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def write_safetensors(flat: Mapping[str, Array], file: IO[bytes]) -> None:
    """Writes to a file that can be read again: the checksum is put into the header at the end."""
    texts = {key: json.dumps(flat[key].tolist()) for key in TEXTS if key in flat}
    arrays = {key: array for key, array in flat.items() if key not in TEXTS}
    for key, array in arrays.items():
        if array.dtype.str not in SAFE_NAMES:
            raise BadInput(f"{key} holds text, which .safetensors cannot hold: save a folder, .npz, .parquet or .csv.")
    # Wide types first, so that every tensor is aligned.
    tensors = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: UNKNOWN, "format": FORMAT, **texts}}
    end = 0
    for key, array in tensors:
        start, end = end, end + array.nbytes
        header[key] = {"dtype": SAFE_NAMES[array.dtype.str], "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, array in tensors:
        _write_rows(file, array if array.ndim else np.atleast_1d(array))
    file.seek(8 + len(text))
    digest = _safe_digest(text, file)
    file.seek(8 + text.index(UNKNOWN.encode()))
    file.write(digest.encode())
    file.seek(0, os.SEEK_END)


# ---- .pt: what torch.save writes


def read_torch(path: Path, names: Names) -> Flat:
    """A dict of tensors, nested ones as scores, variants and groups."""
    content = load_torch(path)
    if not isinstance(content, Mapping):
        what = f"a {type(content).__name__} of {len(content)}" if isinstance(content, (tuple, list)) else "one tensor"
        raise BadInput(
            f"it holds {what} and no names: write it with torch.save({{'logits': …, 'labels': …}}, {path.name!r}), or "
            "every tensor into a file of its own, for --logits and --labels."
        )
    flat = {}
    for key, value in content.items():
        field = names.field(str(key))
        if field is not None:
            flat[field] = value
    names.check(map(str, content))
    return flat


def load_torch(path: Path) -> Any:
    """Tensors, and dicts and lists of them; nothing that would run code."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            check_growth("the file", sum(member.file_size for member in archive.infolist()), path.stat().st_size)
            whole = archive.testzip() is None  # torch does not compare the checksums
    except BadInput:
        raise
    except Exception:  # a damaged archive can fail in any way
        whole = False
    if not whole:
        raise BadInput("this is not a whole file of torch.save; it may be damaged, or older than torch 1.6.")
    try:
        import torch
    except ImportError:
        raise BadInput("torch reads this file, and is not installed: save the arrays as .npz.") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file can fail in any way inside torch
        raise BadInput(
            "it holds other things than tensors, which need pickle, and pickle is never loaded, or it is damaged: "
            "save a dict of tensors."
        ) from None
    _check_tensors(content, path.stat().st_size)
    return content


def _check_tensors(content: Any, stored: int) -> None:
    """Refuses tensors that repeat a few numbers without end."""
    if isinstance(content, Mapping):
        for value in content.values():
            _check_tensors(value, stored)
    elif hasattr(content, "numel"):
        check_growth("a tensor", 8 * content.numel(), stored)
