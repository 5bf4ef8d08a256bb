"""The pickles in which CIFAR is published, read by hand: a pickle is a program, and this one is never run.

The files hold a dict of texts, lists of numbers and texts, and one array of bytes. Only the few opcodes that build
these are known here. What the program would call must be what NumPy's arrays are built by, and stays a name.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nescio.errors import BadInput
from nescio.files import read_small

MOST_BYTES = 1 << 29  # of a file; the largest of CIFAR has 155 MB
ARRAY = "numpy ndarray"
DTYPE = "numpy dtype"
MADE = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")  # its name since NumPy 2
TEXTS = ("BINSTRING", "SHORT_BINSTRING")  # Python 2's, which are bytes
VALUES = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Named:
    """Something that a program names, `module name`."""

    name: str


class _Mark:
    """A place on the stack where a list of values begins."""


class _Unbuilt:
    """An array or a dtype before its content is known; `kind` is the dtype's code."""

    def __init__(self, kind: Any = None) -> None:
        self.kind = kind


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dict of a file of CIFAR, its texts as bytes; BadInput where the file is anything else."""
    try:
        steps = [(step.name, value) for step, value, _ in pickletools.genops(read_small(path, MOST_BYTES))]
        for name, value in steps:
            if name == "GLOBAL":
                _known(value)
        content = _Stack().run(steps)
    except BadInput as error:
        raise BadInput(f"{path} was not read: {error}. Fetch it again from where it is published.") from None
    except OSError:
        raise
    except Exception:  # a damaged program can fail in any way
        raise BadInput(f"{path} is not a whole file of CIFAR: fetch it again.") from None
    return content if isinstance(content, dict) else {}


def _known(name: str) -> _Named:
    if name not in (ARRAY, DTYPE, *MADE):
        raise BadInput(f"it asks to run {name.replace(' ', '.')}, which no file of CIFAR does")
    return _Named(name)


class _Stack:
    """Values as the opcodes of one file push, join and keep them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.kept: dict[int, Any] = {}

    def run(self, steps: Sequence[tuple[str, Any]]) -> Any:
        for name, value in steps:
            if name == "STOP":
                return self.values.pop()
            self.step(name, value)
        raise ValueError("the program does not end")

    def step(self, name: str, value: Any) -> None:
        push = self.values.append
        if name in TEXTS:
            push(value.encode("latin-1"))
        elif name in VALUES:
            push(value)
        elif name in CONSTANTS:
            push(CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.kept[value] = self.values[-1]
        elif name == "MEMOIZE":
            self.kept[len(self.kept)] = self.values[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            push(self.kept[value])
        elif name in LENGTHS:
            push(tuple(self.pop(LENGTHS[name])))
        elif name not in ("PROTO", "FRAME"):
            getattr(self, f"do_{name.lower()}")(value)

    def pop(self, count: int) -> list[Any]:
        if count > len(self.values):
            raise ValueError("the stack is empty")
        taken = self.values[-count:]
        del self.values[-count:]
        return taken

    def since_mark(self) -> list[Any]:
        count = next(n for n, value in enumerate(reversed(self.values)) if isinstance(value, _Mark))
        taken = self.pop(count) if count else []
        self.values.pop()
        return taken

    def do_mark(self, _: Any) -> None:
        self.values.append(_Mark())

    def do_empty_list(self, _: Any) -> None:
        self.values.append([])

    def do_empty_dict(self, _: Any) -> None:
        self.values.append({})

    def do_tuple(self, _: Any) -> None:
        self.values.append(tuple(self.since_mark()))

    def do_append(self, _: Any) -> None:
        item = self.values.pop()
        self.values[-1].append(item)

    def do_appends(self, _: Any) -> None:
        items = self.since_mark()
        self.values[-1].extend(items)

    def do_setitem(self, _: Any) -> None:
        key, value = self.pop(2)
        self.values[-1][key] = value

    def do_setitems(self, _: Any) -> None:
        items = self.since_mark()
        self.values[-1].update(zip(items[::2], items[1::2], strict=True))

    def do_global(self, name: str) -> None:
        self.values.append(_known(name))

    def do_stack_global(self, _: Any) -> None:
        module, name = self.pop(2)
        self.values.append(_known(f"{module} {name}"))

    def do_reduce(self, _: Any) -> None:
        called, given = self.pop(2)
        self.values.append(_Unbuilt(given[0] if called == _Named(DTYPE) else None))

    def do_build(self, _: Any) -> None:
        """The content of an array: (version, shape, dtype, whether by columns, bytes). That of a dtype adds nothing."""
        unbuilt, state = self.pop(2)
        if unbuilt.kind is not None:
            self.values.append(unbuilt)
            return
        _, shape, dtype, by_columns, content = state
        if dtype.kind not in (b"u1", "u1") or by_columns or math.prod(shape) != len(content):
            raise ValueError("no file of CIFAR holds such an array")
        array = np.frombuffer(content, np.uint8).reshape(shape)
        # What was kept under a number before it was built is this array from now on.
        self.kept = {number: array if value is unbuilt else value for number, value in self.kept.items()}
        self.values.append(array)
