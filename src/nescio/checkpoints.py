"""Checkpoint files: tensors by name, read without running code."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import torch
from torch import Tensor

from nescio.errors import BadInput

State = dict[str, Tensor]
TENSOR_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model", "net")  # entries that may contain the tensors
PREFIXES = ("module.", "_orig_mod.", "model.")
MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")  # first bytes of files that torch.save wrote before version 1.6


def read_weights(file: Path) -> State:
    """The tensors of a checkpoint by name. No code in it is ever run."""
    return plain(_content(file), file)


def read_entries(file: Path) -> dict[str, object]:
    """Entries of a checkpoint other than tensors: of its outermost dictionary, or of safetensors' metadata."""
    content = _content(file, tensors=False)
    return {str(name): value for name, value in content.items()} if isinstance(content, Mapping) else {}


def check_frame(file: Path) -> None:
    """Refuse an incomplete checkpoint by its first and last bytes, before all of it is read."""
    try:
        if file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(file, "pt"):
                return
        with file.open("rb") as handle:
            head = handle.read(32)
        if head.startswith(b"PK"):
            ZipFile(file).close()
        elif MAGIC not in head:
            raise BadInput(f"{file} is not a checkpoint: neither safetensors nor a file of torch.save.")
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from None
    except Exception as error:  # damaged files fail in as many ways as there are bytes
        raise BadInput(f"{file} is not a complete checkpoint ({type(error).__name__}): fetch it again.") from None


def _content(file: Path, tensors: bool = True) -> object:
    """The whole content of a file; for safetensors, the tensors or the metadata."""
    try:
        if file.suffix == ".safetensors" and tensors:
            from safetensors.torch import load_file

            return load_file(file)
        if file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(file, "pt") as opened:
                return opened.metadata() or {}
        with torch.serialization.safe_globals([argparse.Namespace]):  # training scripts save their options too
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from None
    except pickle.UnpicklingError:
        if not _pickled(file):
            raise BadInput(f"{file} is not a checkpoint: neither safetensors nor a file of torch.save.") from None
        raise BadInput(
            f"{file} contains more than tensors: other objects in it would run code and are not loaded. "
            "Save its state_dict() as .safetensors."
        ) from None
    except Exception as error:  # damaged files fail in as many ways as there are bytes
        raise BadInput(f"{file} is not a complete checkpoint ({type(error).__name__}): fetch it again.") from None


def _pickled(file: Path) -> bool:
    """Whether the file begins like a file of torch.save: a zip, or a pickle of older versions."""
    with file.open("rb") as handle:
        return handle.read(2).startswith((b"PK", b"\x80"))


def plain(content: object, file: Path) -> State:
    """The tensors, out of the dictionaries and prefixes that training scripts wrap around them."""
    while isinstance(content, Mapping) and (
        name := next((n for n in TENSOR_KEYS if isinstance(content.get(n), Mapping)), None)
    ):
        content = content[name]
    state = {str(name): value for name, value in content.items()} if isinstance(content, Mapping) else {}
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not state:
        raise BadInput(f"{file} contains no named tensors: a state_dict was expected.")
    while prefix := next((start for start in PREFIXES if all(name.startswith(start) for name in state)), ""):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state
