"""Durable files: written whole, flushed to the disk, and described by size and checksum."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from nescio.files import read_json


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file as a whole: write a new file next to it, flush, rename."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.unlink(missing_ok=True)  # left by a killed process, or a link
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        flush(path.parent)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # on a full disk, this makes space for the note of the failure
        raise


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_bytes(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; empty if there is none."""
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}


def summarize(path: Path) -> dict[str, int | str]:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
