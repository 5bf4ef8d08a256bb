"""Small disks that tests fill and write-protect, where a file system may be mounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def disk_of(folder: Path, size: str) -> Iterator[Path]:
    """The folder as a disk of this size, which hides what lies there."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> bool:
    """Whether the disk has these options now: `ro` is refused while a file is open for writing."""
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    return not subprocess.run(command, capture_output=True).returncode


def fill(disk: Path) -> None:
    """Leaves no room on a disk."""
    with suppress(OSError), (disk / "all").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
