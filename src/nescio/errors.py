"""The two ways in which nescio says no, and what it thinks was meant."""

from __future__ import annotations

from collections.abc import Iterable

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


class Undefined(ValueError):
    """The question has no answer on this input: one sentence says why."""


def near(text: str, known: Iterable[str]) -> str:
    """A question that names the nearest of the known words, or nothing; it begins with a space."""
    import difflib

    close = difflib.get_close_matches(text[:100], list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def install(package: str) -> str:
    """The command that installs a package: an extra of nescio, from an index or in a clone, or the package itself."""
    extra = EXTRAS.get(package)
    return (
        f"pip install 'nescio[{extra}]' (in a clone: pip install '.[{extra}]')" if extra else f"pip install {package}"
    )
