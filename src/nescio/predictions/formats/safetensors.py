"""Predictions in .safetensors files: eight bytes of length, a JSON header, the raw bytes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions.formats.npy import write_rows
from nescio.predictions.names import FieldNames, FlatFields, printable
from nescio.predictions.outputs import Predictions
from nescio.predictions.readers import FORMAT, reader

HEADER_BYTES = 1 << 24  # maximum size of the JSON header; usual ones have some thousand bytes
SAFE_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}
SAFE_NAMES = {kind: name for name, kind in SAFE_TYPES.items() if name != "BF16"}
TEXTS = ("class_names", "notes")  # fields in the metadata, as JSON
CHECKSUM, UNKNOWN = "nescio.sha256", "0" * 64  # metadata key of the checksum, and its placeholder while it is computed


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safe_header(path: Path) -> tuple[bytes, dict[str, _Tensor], FlatFields, str]:
    """The header of a .safetensors file, and the tensors, texts and checksum in it."""
    with path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8).ljust(8, b"\xff"), "little")
        if begin > min(path.stat().st_size, HEADER_BYTES):
            raise BadInput("this is not a complete .safetensors file; it may have been cut short: save it again.")
        header = file.read(begin - 8)
    return header, *_safe_header(header)


def _safe_digest(header: bytes, file: IO[bytes]) -> str:
    """The checksum of a header with the placeholder, and of the bytes after it."""
    digest = hashlib.sha256(header)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _safe_header(header: bytes) -> tuple[dict[str, _Tensor], FlatFields, str]:
    """The tensors, the texts in the metadata, and the checksum of files that nescio wrote."""
    try:
        entries = json.loads(header, object_pairs_hook=_unique_pairs)
        kept = entries.pop("__metadata__", {})
        written = kept.get("format") == FORMAT
        if written != (CHECKSUM in kept):
            raise ValueError("one was damaged: nescio writes both")
        kept = kept if written else {}
        texts = {key: json.loads(kept[key]) for key in TEXTS if key in kept}
        tensors, digest = {}, str(kept.get(CHECKSUM, ""))
        for key, entry in entries.items():
            start, end = map(index, entry["data_offsets"])
            tensors[key] = _Tensor(str(entry["dtype"]), tuple(map(index, entry["shape"])), start, end)
        spans = sorted((tensor.start, tensor.end) for tensor in tensors.values())
        if any(one[1] > other[0] for one, other in pairwise(spans)):
            raise ValueError("two tensors share bytes")
    except Exception:  # the header can be any JSON
        raise BadInput("the header is not that of a .safetensors file: save it again.") from None
    return tensors, texts, digest


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; ValueError for repeated names."""
    if len(entries := dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return entries


def _safe_tensor(path: Path, key: str, tensor: _Tensor, begin: int, size: int) -> Array:
    if tensor.dtype not in SAFE_TYPES:
        raise BadInput(
            f"{key} has the type {printable(tensor.dtype)}, which is not supported: save it as F16, BF16, F32 or F64."
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


def write_safetensors(predictions: Predictions, file: IO[bytes]) -> None:
    """Write to a file that is open for reading too: the checksum is inserted into the header at the end."""
    flat = {**predictions.flat(), "normalized": np.asarray(predictions.normalized)}
    texts = {key: json.dumps(flat[key].tolist()) for key in TEXTS if key in flat}
    arrays = {key: array for key, array in flat.items() if key not in TEXTS}
    for key, array in arrays.items():
        if array.dtype.str not in SAFE_NAMES:
            raise BadInput(f"{key} is text, which .safetensors cannot store: save a folder, .npz, .parquet or .csv.")
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
        write_rows(file, array if array.ndim else np.atleast_1d(array))
    file.seek(8 + len(text))
    digest = _safe_digest(text, file)
    file.seek(8 + text.index(UNKNOWN.encode()))
    file.write(digest.encode())
    file.seek(0, os.SEEK_END)


@reader(".safetensors", check=read_safe_header, write=write_safetensors)
def read_safetensors(path: Path, names: FieldNames) -> FlatFields:
    size, (header, tensors, texts, digest) = path.stat().st_size, read_safe_header(path)
    begin = 8 + len(header)
    flat: FlatFields = {}
    for key, tensor in tensors.items():
        field = names.field(key)
        if field is not None:
            flat[field] = _safe_tensor(path, printable(key), tensor, begin, size)
    names.check(tensors)
    with path.open("rb") as file:
        file.seek(begin)
        if digest and _safe_digest(header.replace(digest.encode(), UNKNOWN.encode()), file) != digest:
            raise BadInput("its content does not match the checksum in its header: it was changed or damaged.")
    return flat | texts
