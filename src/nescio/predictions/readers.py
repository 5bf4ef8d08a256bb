"""Readers and writers of prediction files by suffix, built in and of outside packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from nescio.errors import BadInput
from nescio.predictions.names import FieldNames, FlatFields
from nescio.predictions.outputs import Predictions
from nescio.registry import Registry, source_file

FORMAT = "nescio predictions"  # marks files that nescio wrote
Read = Callable[[Path, FieldNames], FlatFields]
Write = Callable[[Predictions, IO[bytes]], None]
F = TypeVar("F", bound=Read)


@dataclass(frozen=True)
class FileFormat:
    """Functions that read, check and write files with one suffix."""

    read: Read
    check: Callable[[Path], object] | None = None  # raises if the file is damaged, without reading all of it
    write: Write | None = None


registry: Registry[FileFormat] = Registry("reader")


def reader(
    *suffixes: str, check: Callable[[Path], object] | None = None, write: Write | None = None
) -> Callable[[F], F]:
    """Register a function that reads prediction files with these suffixes, and return it unchanged.

    The function takes the path and the `FieldNames` that map names in the file to fields. It returns arrays by field,
    usually as `names.select(arrays)`.

    check  raise BadInput for a damaged file, without reading all of it
    write  write predictions to an open binary file; without it `save` refuses the suffix
    """

    def register(function: F) -> F:
        for suffix in suffixes:
            if not suffix.startswith(".") or suffix != suffix.lower():
                raise BadInput(
                    f"The reader {source_file(function)} has the suffix {suffix!r}: it must be lower case and start "
                    "with a full stop, such as .npz."
                )
            registry.add(suffix, FileFormat(function, check, write))
        return function

    return register
