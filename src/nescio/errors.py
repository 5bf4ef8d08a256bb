"""Error classes, suggestions for misspelled names, and texts that are safe to print on a terminal."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

# Control characters that move the cursor, ring the bell or change the direction of text; colour codes are kept.
CONTROL = re.compile(
    "\x1b\\[[\\d;]*m|[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)

EXTRAS = {  # imported package → extra of pyproject.toml
    **dict.fromkeys(("torch", "torchvision", "timm", "gpytorch", "PIL", "huggingface_hub", "optuna"), "train"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    "ray": "ray",
    "submitit": "slurm",
    "numba": "fast",
    "tensorboard": "log",
    "wandb": "log",
}


class BadInput(ValueError):
    """Invalid input; the message states what is wrong, where, and what to do."""


class FaultyPlugin(BadInput):
    """A plug-in fails: one sentence names it, its file and the reason."""


class Undefined(ValueError):
    """The value is undefined for this input; the message states the reason."""


SIMILAR = 0.75  # minimum of difflib's ratio for a misspelling


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """ " Did you mean NAME?" for the closest name; empty if none is close."""
    close = closest_match(text, names)
    return f" Did you mean {close!r}?" if close else ""


def closest_match(text: str, names: Iterable[str]) -> str | None:
    """The name that a text misspells, ignoring case; None if none is close."""
    import difflib

    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(text[:100].lower(), list(by_lower), n=1, cutoff=SIMILAR)
    return by_lower[close[0]] if close else None


def install(package: str) -> str:
    """The pip command that installs a package, or the extra of nescio that contains it."""
    extra = EXTRAS.get(package)
    return (
        f"pip install 'nescio[{extra}]' (in a clone: pip install '.[{extra}]')" if extra else f"pip install {package}"
    )


def visible(text: str, colours: bool = False) -> str:
    """The text with control characters written as their codes, such as \\x1b."""
    return CONTROL.sub(
        lambda match: match[0] if colours and len(match[0]) > 1 else match[0].encode("unicode_escape").decode(), text
    )


class printable:
    """A stream that escapes control characters; colours are kept on a terminal."""

    def __init__(self, stream: TextIO) -> None:
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
