"""Provenance of results: command line, date, version and input files."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from nescio.specs import SEPARATORS, SpecError, split, unquote

CONFIG = "config.yaml"
OUTPUTS = ("--output", "--store", "--root")  # options for outputs
CHECKSUM_MAX_BYTES = 1 << 30  # larger files get no checksum
_argv: list[str] = []  # of the command that runs in this process
_config: dict[str, Callable[[], str]] = {}  # writes the file of options that repeats it


@dataclass(frozen=True)
class Provenance:
    """A command that wrote a page or a study."""

    date: str = ""
    version: str = ""
    command: str = ""
    files: tuple[str, ...] = ()

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Provenance:
        """The provenance in a JSON object."""
        texts = {name: str(plain[name]) for name in ("date", "version", "command")}
        return cls(**texts, files=tuple(map(str, plain["files"])))

    def sentences(self) -> list[str]:
        """Sentences for the footer of a page."""
        command = f" with `{self.command}`" if self.command else ""
        origin = f"Made on {self.date} by nescio {self.version}{command}"
        return [origin, f"Input files: {'; '.join(self.files)}."] if self.files else [origin]


@contextmanager
def recorded_command(argv: Sequence[str]) -> Iterator[None]:
    """Record the command line of this process, including --plugin, while the block runs."""
    previous, config = list(_argv), dict(_config)
    _argv[:] = ["nescio", *argv]
    _config.clear()
    try:
        yield
    finally:
        _argv[:] = previous
        _config.clear()
        _config.update(config)


def keep_config(write: Callable[[], str]) -> None:
    """Keep what writes the file of options that repeats the command of this process."""
    _config[CONFIG] = write


def current_config() -> dict[str, bytes]:
    """The file of options that repeats the command of this process: name → content; empty outside of commands."""
    return {name: write().encode() for name, write in _config.items()}


def follow_up_command(*argv: str) -> str:
    """A command line to run next, with the same plug-ins as the current command."""
    plugins = [argument for flag, file in pairwise(_argv) if flag == "--plugin" for argument in (flag, file)]
    return shlex.join(["nescio", *argv, *plugins])


def current_provenance() -> Provenance:
    """The provenance of the current command."""
    from nescio import __version__

    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Provenance(date, __version__, shlex.join(_argv), tuple(map(_described, _input_files(_argv[1:]))))


def _input_files(argv: Sequence[str]) -> list[Path]:
    """Files in the arguments of a command: FILE, NAME=FILE, SOURCE:FILE, MODEL@FILE, or lists of these."""
    inputs = [argument for flag, argument in zip(["", *argv], argv, strict=False) if flag not in OUTPUTS]
    inputs = [argument for argument in inputs if argument.partition("=")[0] not in OUTPUTS]
    paths = [Path(text) for argument in inputs for text in _pieces(argument) if text]
    return list(dict.fromkeys(path for path in paths if path.suffix and _is_file(path)))


def _pieces(word: str) -> list[str]:
    try:
        return [unquote(piece) for piece in split(word, *SEPARATORS)]
    except SpecError:
        return [word]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a path: too long, or with a null character
        return False


def _described(path: Path) -> str:
    """A file with its size and the first digits of its checksum."""
    try:
        size = path.stat().st_size
        if size > CHECKSUM_MAX_BYTES:
            return f"{path} ({size:,} bytes)"
        with path.open("rb") as file:
            return f"{path} ({size:,} bytes, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:16]})"
    except OSError:  # it was removed meanwhile
        return str(path)
