"""CIFAR's pickle files, read by an unpickler that calls nothing but stand-ins for NumPy's array and dtype."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nescio.errors import BadInput
from nescio.files import read_small

MAX_BYTES = 1 << 29  # maximum size of a file; CIFAR's largest has 155 MB


class _Array:
    """A stand-in for a NumPy array of bytes; unpickling calls no code of NumPy."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, content = state
        if dtype.code not in (b"u1", "u1") or fortran_order or math.prod(shape) != len(content):
            raise ValueError("no file of CIFAR contains such an array")
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


class _DType:
    """A stand-in for a NumPy dtype; its state adds nothing."""

    def __init__(self, code: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _CIFARUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: _Array()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return lambda *arguments: _DType(arguments[0])
        raise BadInput(f"it asks to run {module}.{name}, which no file of CIFAR does")


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a file of CIFAR, with texts as bytes; BadInput if the file contains anything else."""
    try:
        content = read_small(path, MAX_BYTES)
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "GLOBAL":
                _CIFARUnpickler.find_class(None, *argument.split(" ", 1))  # type: ignore[arg-type]
            if opcode.name.endswith("PUT") and int(argument) > len(content):
                raise ValueError("a memo index above the size of the file would fill the memory")
        loaded = _CIFARUnpickler(io.BytesIO(content), encoding="bytes").load()
    except BadInput as error:
        raise BadInput(f"{path} was not read: {error}. Fetch it again from where it is published.") from None
    except OSError:
        raise
    except Exception:  # a damaged pickle can fail in any way
        raise BadInput(f"{path} is not a whole file of CIFAR: fetch it again.") from None
    if not isinstance(loaded, dict):
        return {}
    return {_plain(key): _plain(value) for key, value in loaded.items()}


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
