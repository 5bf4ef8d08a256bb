"""The two ways in which nescio says no, what it thinks was meant, and texts that a terminal does not obey."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Characters that move a cursor, ring, or turn the direction of writing; of a terminal's codes, colours are kept.
OBEYED = re.compile(
    "\x1b\\[[\\d;]*m|[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)

EXTRAS = {  # of pyproject.toml: what is imported → what to install
    **dict.fromkeys(("torch", "torchvision", "timm", "gpytorch", "PIL", "huggingface_hub", "optuna"), "train"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    "ray": "ray",
    "submitit": "slurm",
    "numba": "fast",
    "tensorboard": "log",
    "wandb": "log",
}


class BadInput(ValueError):
    """What a person gave cannot be used: one sentence says what is wrong, where, and what to do."""


class FaultyPlugin(BadInput):
    """A part of another package or file fails: one sentence names the part, its file and the reason."""


class Undefined(ValueError):
    """The question has no answer on this input: one sentence says why."""


SIMILAR = 0.75  # of difflib's ratio: a slip of the finger, not another word


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """A question that names the nearest of the known words, or nothing; it begins with a space."""
    close = closest_match(text, known)
    return f" Did you mean {close!r}?" if close else ""


def closest_match(text: str, known: Iterable[str]) -> str | None:
    """The known word that a text is a misspelling of, whatever its case."""
    import difflib

    words = {word.lower(): word for word in known}
    close = difflib.get_close_matches(text[:100].lower(), list(words), n=1, cutoff=SIMILAR)
    return words[close[0]] if close else None


def install(package: str) -> str:
    """The command that installs a package: an extra of nescio, from an index or in a clone, or the package itself."""
    extra = EXTRAS.get(package)
    return (
        f"pip install 'nescio[{extra}]' (in a clone: pip install '.[{extra}]')" if extra else f"pip install {package}"
    )


def visible(text: str, colours: bool = False) -> str:
    """The text with every character that a terminal would obey written as its code, such as \\x1b."""
    return OBEYED.sub(
        lambda found: found[0] if colours and len(found[0]) > 1 else found[0].encode("unicode_escape").decode(), text
    )


class printable:
    """A stream to which texts are written `visible`; a terminal keeps its colours."""

    def __init__(self, stream: Any) -> None:
        self.unfiltered = getattr(stream, "unfiltered", stream)

    def write(self, text: str) -> int:
        return int(self.unfiltered.write(visible(text, self.unfiltered.isatty())))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


# ---- errors of the system

ADVICE = {
    errno.ENOSPC: "the disk is full: make room and run again",
    errno.EDQUOT: "your quota on this disk is exhausted: make room and run again",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "you may not write there: choose another folder, or change its permissions",
    errno.EPERM: "you may not write there: choose another folder",
    errno.ENOTDIR: "a file has the name of a folder: choose another folder",
    errno.EEXIST: "a file has the name of a folder: choose another folder",
}


def describe_error(error: Exception, path: Path | None = None) -> str:
    """The reason of an error in one line; `path` is where it happened, if the error has no file name."""
    if isinstance(error, OSError) and (error.filename or path):
        name = str(error.filename or path)
        advice = ADVICE.get(error.errno or 0, f"{error.strerror or error}".rstrip("."))
        if error.errno == errno.EACCES and os.path.exists(name) and not _readable(name):
            advice = "you may not read it: ask its owner, or change its permissions"
        return f"{name}: {advice}."
    text = " ".join(str(error).split("\n")[0].split())
    if type(error).__name__ == "OutOfMemoryError":  # torch's message takes a page
        return "The device has no memory left: use fewer workers, a smaller batch or a smaller network."
    if type(error).__module__.partition(".")[0] == "nescio" and text:  # a sentence for people
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _readable(path: str) -> bool:
    return os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
