"""The types of `nescio`'s functions, for editors and type checkers: src/nescio/__init__.pyi. `make docs` writes it."""

from __future__ import annotations

import inspect
import re
import subprocess
import types
import typing
from importlib import import_module

import nescio
from nescio.api.calls import options_class
from nescio.api.inputs import Named
from nescio.options import REQUIRED, Leaf, is_tuple, leaves, without_none
from tests.support.paths import ROOT

STUB = ROOT / "src" / "nescio" / "__init__.pyi"
HEAD = '''"""nescio: predictive uncertainty of image models, evaluated."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal

from numpy.typing import ArrayLike

{imports}

TYPE_CHECKING: bool
__version__: str

Path = str | PathLike[str]
Source = Path | Predictions  # a file, or predictions in memory
'''


def type_text(leaf: Leaf) -> str:
    """The annotation of a parameter: what `nescio.api.calls` converts to the option's type."""
    hint = leaf.hint
    if is_tuple(hint):
        item = item_text(typing.get_args(without_none(hint))[0])
        mapping = f"Mapping[str, {item} | Sequence[{item}]] | " if item in ("Source", "str") else ""
        text = f"{mapping}{item} | Sequence[{item}]" + ("" if item in ("Source", "str") else " | str")
    else:
        text = item_text(hint)
        if re.search("FILE|DIR|PATH", leaf.metavar):
            text = re.sub(r"\bstr\b", "Path", text)
    optional = types.NoneType in typing.get_args(hint)
    return f"{text} | None" if optional and not text.endswith("None") else text


def item_text(hint: object) -> str:
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if typing.get_origin(hint) is typing.Literal:
        return f"Literal[{', '.join(map(repr, kinds))}]"
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if Named in kinds:
            return "Source"
        return " | ".join("ArrayLike" if "ndarray" in text else text for text in map(item_text, kinds))
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def function_text(name: str, module: str) -> str:
    function = getattr(import_module(f"nescio.api.{module}"), name)
    arguments, keywords = [], []
    for leaf in leaves(options_class(function)):
        default = "" if leaf.default is REQUIRED else f" = {leaf.default!r}"
        (arguments if leaf.spec.positional else keywords).append(f"{leaf.key}: {type_text(leaf)}{default}")
    returned = inspect.signature(function).return_annotation
    lines = "".join(f"    {line},\n" for line in [*arguments, "*", *keywords])
    doc = (inspect.getdoc(function) or "").partition("\n")[0]
    return f'def {name}(\n{lines}) -> {returned}:\n    """{doc}"""\n'


def stub() -> str:
    names: dict[str, set[str]] = {}
    for name, module in nescio._MODULES.items():
        names.setdefault(f"nescio.{module}", set()).add(f"{name} as {name}")
    for name, module in nescio._FUNCTIONS.items():
        function = getattr(import_module(f"nescio.api.{module}"), name)
        for result in map(str.strip, inspect.signature(function).return_annotation.split("|")):
            home = getattr(import_module(f"nescio.api.{module}"), result).__module__
            names.setdefault(home, set()).add(result)
    imports = [f"from {home} import {', '.join(sorted(of_home))}" for home, of_home in sorted(names.items())]
    functions = [function_text(name, module) for name, module in sorted(nescio._FUNCTIONS.items())]
    return HEAD.format(imports="\n".join(imports)) + "\n" + "\n".join(functions)


def write_stub() -> None:
    STUB.write_text(stub())
    subprocess.run(["ruff", "check", "-q", "--fix", str(STUB)], check=True)
    subprocess.run(["ruff", "format", "-q", str(STUB)], check=True)
