"""Provenance of what nescio writes: the command as it was typed, the date, the version and the input files."""

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
OUTPUTS = ("--output", "--store", "--root")  # options whose values are no input files
MOST_BYTES = 1 << 30  # of a file whose checksum is taken
_words: list[str] = []  # of the command that runs in this process
_config: dict[str, Callable[[], str]] = {}  # writes the file of options that repeats it


@dataclass(frozen=True)
class Provenance:
    """One command that made a page or a study."""

    date: str = ""
    version: str = ""
    command: str = ""
    files: tuple[str, ...] = ()

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Provenance:
        """Reads what JSON contains of one."""
        texts = {name: str(plain[name]) for name in ("date", "version", "command")}
        return cls(**texts, files=tuple(map(str, plain["files"])))

    def sentences(self) -> list[str]:
        """Sentences for the end of a page."""
        how = f" with `{self.command}`" if self.command else ""
        made = f"Made on {self.date} by nescio {self.version}{how}"
        return [made, f"Input files: {'; '.join(self.files)}."] if self.files else [made]


@contextmanager
def recorded_command(words: Sequence[str]) -> Iterator[None]:
    """Keeps the words of a command line while it runs, those of --plugin among them."""
    before, config = list(_words), dict(_config)
    _words[:] = ["nescio", *words]
    _config.clear()
    try:
        yield
    finally:
        _words[:] = before
        _config.update(config)


def keep_config(write: Callable[[], str]) -> None:
    """Keep what writes the file of options that repeats the command of this process."""
    _config[CONFIG] = write


def current_config() -> dict[str, bytes]:
    """The file of options that repeats the command of this process: name → content; empty outside of commands."""
    return {name: write().encode() for name, write in _config.items()}


def follow_up_command(*words: str) -> str:
    """A command to run after the one that runs in this process, with the same plugins."""
    plugins = [word for flag, file in pairwise(_words) if flag == "--plugin" for word in (flag, file)]
    return shlex.join(["nescio", *words, *plugins])


def current_provenance() -> Provenance:
    """The provenance of what is written now."""
    from nescio import __version__

    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Provenance(date, __version__, shlex.join(_words), tuple(map(_described, _input_files(_words[1:]))))


def _input_files(words: Sequence[str]) -> list[Path]:
    """Files that the words of a command name: FILE, NAME=FILE, SOURCE:FILE, MODEL@FILE, several after commas."""
    inputs = [word for flag, word in zip(["", *words], words, strict=False) if flag not in OUTPUTS]
    inputs = [word for word in inputs if word.partition("=")[0] not in OUTPUTS]
    paths = [Path(text) for word in inputs for text in _pieces(word) if text]
    return list(dict.fromkeys(path for path in paths if path.suffix and _is_file(path)))


def _pieces(word: str) -> list[str]:
    try:
        return [unquote(piece) for piece in split(word, *SEPARATORS)]
    except SpecError:
        return [word]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word that is no path: too long, or with a null character
        return False


def _described(path: Path) -> str:
    """A file with its size and the first digits of its checksum."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            return f"{path} ({size:,} bytes)"
        with path.open("rb") as file:
            return f"{path} ({size:,} bytes, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:16]})"
    except OSError:  # it was removed meanwhile
        return str(path)
