"""Files written whole or not at all, and small regular files read with a size limit."""

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

SMALL = 1 << 26  # maximum bytes of a file that is read whole
GROWTH_FREE, GROWTH = 1 << 27, 100  # limits of content in memory: bytes for any file, else times the file's size
T = TypeVar("T")


# ---- writing


@contextmanager
def atomic_write(goal: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path next to the goal, renamed to the goal at the end, or removed on failure.

    Renaming replaces a symbolic link at the goal, never the file that it refers to.
    """
    goal.parent.mkdir(parents=True, exist_ok=True)
    draft = goal.with_name(f".{goal.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        yield draft
        _rename(draft, goal)
        if durable:
            flush_folder(goal.parent)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)


def write_file(goal: str | Path, content: str | bytes) -> Path:
    """Replace a file as a whole, or keep the old one; an OSError names the file."""
    goal = Path(goal)
    try:
        with atomic_write(goal) as draft, draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            flush(file)
    except OSError as error:  # without a file name, or with that of the temporary file
        raise OSError(error.errno, error.strerror, str(goal)) from error
    return goal


def _rename(draft: Path, goal: Path) -> None:
    if draft.is_dir() and goal.exists():  # a folder cannot replace a non-empty one: rename the old one first
        old = draft.with_suffix(".old")
        goal.rename(old)
        try:
            draft.rename(goal)
        except OSError:
            old.rename(goal)
            raise
        shutil.rmtree(old)
    else:
        draft.replace(goal)


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
    """Open a regular file to read; BadInput for a pipe, device or folder, which may never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput(f"{path} is not a regular file.")
    return open(handle, "rb")


def read_small(path: str | Path, max_bytes: int = SMALL) -> bytes:
    """The content of a regular file of at most `max_bytes`."""
    with open_regular(path) as file:
        large = os.fstat(file.fileno()).st_size > max_bytes
        content = b"" if large else file.read(max_bytes + 1)
    if large or len(content) > max_bytes:
        raise BadInput(f"{path} has more than {max_bytes:,} bytes: a small file is expected there.")
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
        raise BadInput(f"{name} is not valid JSON: write it again.") from None
    if not isinstance(value, kind):
        raise BadInput(f"{name} contains another kind of JSON than expected: write it again.")
    return value


def check_growth(name: str, needed: int, stored: int) -> None:
    """Raise BadInput for content that takes far more bytes in memory than in its file."""
    if needed > max(GROWTH_FREE, GROWTH * stored):
        raise BadInput(
            f"{name} would take {needed / 1e9:.3g} GB of memory, more than {GROWTH} times its file: it is damaged, or "
            "save it without compression."
        )
