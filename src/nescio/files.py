"""Files written whole or not at all, and small files read only if they are regular and of a limited size."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from nescio.errors import BadInput

SMALL = 1 << 26  # most bytes of a file that is read whole
GROWTH_FREE, GROWTH = 1 << 27, 100  # bytes that any file may grow to in memory; beyond them, so many times its own size
T = TypeVar("T")


# ---- writing


@contextmanager
def atomic_write(goal: Path, durable: bool = True) -> Iterator[Path]:
    """A path beside the goal; what is written there is renamed to the goal at the end, or removed on failure.

    Renaming replaces a symbolic link at the goal, never the file that it refers to.
    """
    goal.parent.mkdir(parents=True, exist_ok=True)
    part = goal.with_name(f".{goal.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        yield part
        _rename(part, goal)
        if durable:
            flush_folder(goal.parent)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def write_file(goal: str | Path, content: str | bytes) -> Path:
    """Writes a whole file, or leaves the old one; an OSError names the file."""
    goal = Path(goal)
    try:
        with atomic_write(goal) as part, part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            flush(file)
    except OSError as error:  # of a write without a name, or with that of the file beside
        raise OSError(error.errno, error.strerror, str(goal)) from error
    return goal


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


def flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- reading


def open_regular(path: str | Path) -> IO[bytes]:
    """Opens a regular file to read; BadInput for a pipe, device or folder, which might never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput(f"{path} is not a regular file.")
    return open(handle, "rb")


def read_small(path: str | Path, most: int = SMALL) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_regular(path) as file:
        large = os.fstat(file.fileno()).st_size > most
        content = b"" if large else file.read(most + 1)
    if large or len(content) > most:
        raise BadInput(f"{path} has more than {most:,} bytes: a small file is expected there.")
    return content


def read_text(path: str | Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text in a small regular file."""
    return read_small(path).decode(encoding, errors)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a small JSON file; BadInput (a ValueError) if there is none."""
    return parse_json(read_small(path), str(path))


def read_list(path: str | Path) -> list[Any]:
    """The list in a small JSON file; BadInput (a ValueError) if there is none."""
    return parse_list(read_small(path), str(path))


def parse_json(content: str | bytes, name: str) -> dict[str, Any]:
    """The object in a JSON text; BadInput (a ValueError) if there is none."""
    return _parsed(content, name, dict)


def parse_list(content: str | bytes, name: str) -> list[Any]:
    """The list in a JSON text; BadInput (a ValueError) if there is none."""
    return _parsed(content, name, list)


def _parsed(content: str | bytes, name: str, kind: type[T]) -> T:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise BadInput(f"{name} is not JSON that can be read: write it again.") from None
    if not isinstance(value, kind):
        raise BadInput(f"{name} contains JSON of another kind than is expected there: write it again.")
    return value


def check_growth(name: str, needed: int, stored: int) -> None:
    """Refuses content that takes far more bytes in memory than in its file: a bomb, or a damaged size."""
    if needed > max(GROWTH_FREE, GROWTH * stored):
        raise BadInput(
            f"{name} would take {needed / 1e9:.3g} GB of memory, more than {GROWTH} times its file: it is damaged, or "
            "save it without compression."
        )
