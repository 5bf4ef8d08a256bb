"""Arrays in .npy and .npz files. No pickle is loaded, and sizes are checked before anything is read."""

from __future__ import annotations

import math
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import check_growth
from nescio.predictions.names import FieldNames, FlatFields, printable
from nescio.predictions.outputs import Predictions
from nescio.predictions.readers import reader

WRITE_BYTES = 1 << 24  # size of one write
READ_BYTES = 1 << 20  # size of one read
NO_PICKLE = "contains Python objects, which need pickle, and pickle is never loaded: save numbers or text."


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


def _read_header(file: IO[bytes], key: str) -> _Header:
    """The header of a .npy array; afterwards the file position is at the values."""
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
    return f"{key} is not a complete .npy array; it may have been cut short: save it again."


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


def write_npy(file: IO[bytes], array: Array) -> None:
    if isinstance(array, np.ndarray):
        np.lib.format.write_array(file, array, allow_pickle=False)
        return
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    write_rows(file, array)


def write_rows(file: IO[bytes], array: Array) -> None:
    """The bytes of an array, or of one that is computed when it is read, block by block."""
    for block in blocks(len(array), max(1, WRITE_BYTES * len(array) // max(1, array.nbytes))):
        file.write(np.ascontiguousarray(array[block]).data)


def _check_directory(path: Path, members: int) -> None:
    """Refuse an archive whose directory lists fewer members than its end record counts; zipfile would skip them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (22 + 0xFFFF)))
        end = file.read()
    end_record = end.rfind(b"PK\5\6")
    counted = int.from_bytes(end[end_record + 10 : end_record + 12], "little")
    if counted not in (members, 0xFFFF):  # 0xFFFF: the number is in another record
        raise BadInput(f"the directory of the archive has {members} of {counted} arrays: save it again.")


def check_zip(path: Path) -> None:
    """Raise unless the file ends with the directory of a zip archive."""
    import zipfile

    zipfile.ZipFile(path).close()


def _read_member(file: IO[bytes], key: str, expected_size: int, stored: int) -> Array:
    """One .npy array of an archive."""
    header = _read_header(file, key)
    if expected_size != file.tell() + header.nbytes:
        raise BadInput(_not_npy(key))
    check_growth(key, header.values * max(8, header.dtype.itemsize), stored)  # as numbers of float64
    content = np.empty(header.nbytes, np.uint8)
    for block in blocks(len(content), READ_BYTES):
        if cast(BufferedIOBase, file).readinto(content[block].data) != block.stop - block.start:
            raise BadInput(_not_npy(key))
    file.read(1)  # the end, where the archive compares its checksum
    return np.ndarray(header.shape, header.dtype, content.data, order="F" if header.fortran else "C")


def write_npz(predictions: Predictions, file: IO[bytes]) -> None:
    """Write predictions as .npz, with `normalized` as an array."""
    import zipfile

    flat = {**predictions.flat(), "normalized": np.asarray(predictions.normalized)}

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in flat.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                write_npy(member, array)


@reader(".npz", check=check_zip, write=write_npz)
def read_npz(path: Path, names: FieldNames | None = None) -> FlatFields:
    import zipfile

    names, flat = names or FieldNames(None), {}
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        _check_directory(path, len(archive.infolist()))
        members = [member for member in archive.infolist() if not member.is_dir()]
        keys = {member: member.filename.removesuffix(".npy") for member in members}
        selected = {member: field for member, key in keys.items() if (field := names.field(key)) is not None}
        check_growth("the file", sum(member.file_size for member in selected), size)
        for member, field in selected.items():
            key = printable(keys[member])
            if keys[member] == member.filename:
                raise BadInput(f"{key or 'a nameless member'} is not an array: write the file with np.savez.")
            if field in flat:
                raise BadInput(f"{key} is given twice.")
            with archive.open(member) as file:
                flat[field] = _read_member(file, key, member.file_size, size)
    names.check(keys.values())
    return flat
