"""Tensors in .pt files of torch.save. Only torch's loader of tensors reads them; no pickle is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nescio.errors import BadInput
from nescio.files import check_growth
from nescio.predictions.formats.npy import check_zip
from nescio.predictions.names import FieldNames, FlatFields
from nescio.predictions.readers import reader


@reader(".pt", ".pth", check=check_zip)
def read_torch(path: Path, names: FieldNames) -> FlatFields:
    """A dict of tensors, nested ones as scores, variants and groups."""
    content = load_torch(path)
    if not isinstance(content, Mapping):
        kind = f"a {type(content).__name__} of {len(content)}" if isinstance(content, (tuple, list)) else "one tensor"
        raise BadInput(
            f"it contains {kind} without names: write it with torch.save({{'logits': …, 'labels': …}}, {path.name!r}), "
            "or write every tensor into a file and name the fields."
        )
    return names.select({str(key): value for key, value in content.items()})


def load_torch(path: Path) -> object:
    """Tensors, and dicts and lists of them; nothing that would run code."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            check_growth("the file", sum(member.file_size for member in archive.infolist()), path.stat().st_size)
            is_complete = archive.testzip() is None  # torch does not compare the checksums
    except BadInput:
        raise
    except Exception:  # a damaged archive can fail in any way
        is_complete = False
    if not is_complete:
        raise BadInput("this is not a complete file of torch.save; it may be damaged, or older than torch 1.6.")
    try:
        import torch
    except ImportError:
        raise BadInput("torch reads this file, and is not installed: save the arrays as .npz.") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file can fail in any way inside torch
        raise BadInput(
            "it is damaged, or contains other objects than tensors, which need pickle, which is never loaded: "
            "save a dict of tensors."
        ) from None
    _check_tensors(content, path.stat().st_size)
    return content


def _check_tensors(content: object, stored: int) -> None:
    """Refuse tensors that expand a few stored numbers beyond memory."""
    if isinstance(content, Mapping):
        for value in content.values():
            _check_tensors(value, stored)
    elif hasattr(content, "numel"):
        check_growth("a tensor", 8 * content.numel(), stored)
