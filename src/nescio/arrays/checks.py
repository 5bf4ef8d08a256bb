"""Checks of input arrays, with errors that name the array."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput

LARGEST_SQUARED = 1e150  # numbers whose products, and their sums, stay finite in float64
CACHE_VALUES = 1 << 18  # numbers in a checked block, so that a block fits the cache


def dtype_name(array: Array) -> str:
    kinds = {"O": "Python objects", "U": "text", "S": "text", "T": "text", "c": "complex values", "M": "dates"}
    return kinds.get(array.dtype.kind, str(array.dtype))


def as_array(name: str, value: ArrayLike) -> Array:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = _plain(name, value)
    try:
        array = np.asarray(value)
    except ValueError:
        raise BadInput(f"{name} has rows of different lengths: every row must have equally many numbers.") from None
    check_not_truncated(array)
    if array.dtype.name == "bfloat16":  # NumPy has no bfloat16
        array = array.astype(np.float32)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _plain(name: str, tensor: Any) -> Array:
    """A tensor's values; types that NumPy does not have become float32."""
    try:
        tensor = tensor.detach().cpu()
        tensor = (tensor.dequantize() if tensor.is_quantized else tensor).resolve_conj().resolve_neg()
        low_precision = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))
        return np.asarray(tensor.float() if low_precision else tensor)
    except (RuntimeError, TypeError):  # sparse, without values, or of packed numbers
        raise BadInput(f"{name} is not a plain tensor of numbers: save it as a dense float32 tensor.") from None


def numbers(name: str, value: ArrayLike) -> Array:
    array = as_array(name, value)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{name} must be numbers, got {dtype_name(array)}.")
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array


def floats(name: str, value: ArrayLike) -> Array:
    array = numbers(name, value)
    if array.dtype.kind != "f":
        return array.astype(np.float64)
    return array


def vector(name: str, value: ArrayLike) -> Array:
    array = floats(name, value)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), one number per row.")
    check_finite(name, array)
    return array


def matrix(name: str, value: ArrayLike, masks: bool = False, largest: float = np.inf) -> Array:
    array = floats(name, value)
    if array.ndim != 2 or array.shape[1] == 0:
        raise BadInput(f"{name} has shape {array.shape}: it must be (rows, columns), with at least one column.")
    check_finite(name, array, masks, largest)
    return array


def cube(name: str, value: ArrayLike, masks: bool = False) -> Array:
    """(n, draws, classes); `masks`: a class may have the score -inf if another class is finite."""
    array = floats(name, value)
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3 or 0 in array.shape[1:]:
        raise BadInput(f"{name} has shape {np.shape(value)}: it must be (n, classes) or (n, draws, classes).")
    check_finite(name, array, masks)
    return array


def integers(name: str, value: ArrayLike) -> Array:
    array = numbers(name, value)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}: it must be (n,), one whole number per row.")
    if array.dtype.kind == "f":
        doubles = array.astype(np.float64)
        is_whole = np.isfinite(doubles) & (doubles == np.rint(doubles)) & (np.abs(doubles) < 2.0**53)
    elif array.dtype == np.uint64:
        is_whole = array < 1 << 63
    else:
        return array.astype(np.int64, copy=False)
    if not is_whole.all():
        row = int(np.argmin(is_whole))
        raise BadInput(f"{name} contains {array[row]} in row {row}, which is not a whole number.")
    return array.astype(np.int64)


def check_finite(name: str, array: Array, masks: bool = False, largest: float = np.inf) -> None:
    """Raise an error for NaN, infinities and magnitudes above `largest`; `masks` allows -inf beside a finite value."""
    if array.dtype.kind != "f":
        return
    width = max(1, int(np.prod(array.shape[1:])))
    slices = blocks(len(array), max(1, CACHE_VALUES // width))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in slices:
            check_not_truncated(array)
            rows = array[block]
            if not _squares_finite(rows):
                _check_rows(name, rows, block.start, masks, largest)
            release_pages(rows)


def _check_rows(name: str, rows: Array, first: int, masks: bool, largest: float) -> None:
    masked = np.isneginf(rows) if masks else np.zeros(rows.shape, bool)
    not_finite = ~(np.isfinite(rows) | masked)
    if not_finite.any():
        row = first + int(np.argwhere(not_finite)[0][0])
        raise BadInput(f"{name} has a value that is not finite in row {row}: correct or omit that row.")
    too_large = ~masked & (np.abs(rows) > largest)
    if too_large.any():
        cell = np.argwhere(too_large)[0]
        raise BadInput(
            f"{name} contains {rows[tuple(cell)]:.3g} in row {first + int(cell[0])}, beyond ±{largest:g}: "
            "arithmetic would overflow, so correct that row or divide all of them."
        )
    all_masked = masked.all(-1)
    if all_masked.any():
        row = first + int(np.argwhere(all_masked)[0][0])
        raise BadInput(f"{name} masks every class with -inf in row {row}: at least one needs a finite value.")


def check_not_truncated(rows: Array) -> None:
    """Raise an error for rows of a memory map whose file was truncated: reading them would crash the process."""
    mapped = _map_of(rows)
    if mapped is not None and mapped.size() < len(mapped):
        raise BadInput("The file was truncated while it was read: read it again when it is complete.")


def release_pages(rows: Array) -> None:
    """Release the memory pages of rows of a read-only memory map; the file is read again when needed.

    A pass over a file that calls this after every block keeps only a few blocks in memory.
    """
    if not rows.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped = _map_of(rows, read_only=True)
    if mapped is None:
        return
    start_byte = rows.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    # Whole pages only; pages shared with a neighbouring block stay in memory.
    first_byte = -(-start_byte // mmap.PAGESIZE) * mmap.PAGESIZE
    last_byte = (start_byte + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last_byte > first_byte:
        mapped.madvise(mmap.MADV_DONTNEED, first_byte, last_byte - first_byte)


def _map_of(rows: object, read_only: bool = False) -> mmap.mmap | None:
    """The memory map behind an array; with `read_only` only of unwritable ones: copy-on-write data is in no file."""
    while isinstance(rows, np.ndarray):
        if read_only and rows.flags.writeable:
            return None
        rows = rows.base
    return rows if isinstance(rows, mmap.mmap) else None


def _squares_finite(block: Array) -> bool:
    flat = block.reshape(-1)
    if flat.dtype == np.float16:  # comparing exponents is six times faster than NumPy's test
        return not flat.size or bool((flat.view(np.uint16) & 0x7C00).max() < 0x7C00)
    # A finite sum of squares excludes NaN and infinities; otherwise every number is checked.
    return bool(np.isfinite(flat.dot(flat)))
