"""Hyper-parameters that a plan fixes, METHOD.FIELD=VALUE: the option --recipes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from nescio.errors import BadInput
from nescio.options import option
from nescio.search import with_values

R = TypeVar("R")


def fixed_option(default: tuple[str, ...] = ()) -> Any:
    return option(
        default,
        "hyper-parameters other than a method's own; of methods that are not compared they have no effect",
        style="words",
        metavar="METHOD.FIELD=VALUE,…",
        unset="none",
        introduced=(),
    )


def check_fixed(words: Iterable[str]) -> None:
    """Refuses words of another form."""
    for word in words:
        if not re.fullmatch(r"[^.=]+\.[^.=]+=.+", word):
            raise BadInput(f"--recipes: write METHOD.FIELD=VALUE, such as sngp.bound=100, not {word!r}.")


def refuse_fixed(words: Iterable[str]) -> None:
    """Refuses unknown methods, fields and values before any work."""
    from nescio.methods import registry as methods

    for word in words:
        method = word.partition(".")[0]
        with_fixed(methods[method].recipe_class(), method, [word])


def with_fixed(recipe: R, method: str, words: Iterable[str]) -> R:
    """The recipe of a method with what the words say of it."""
    own = [word.removeprefix(f"{method}.") for word in words if word.startswith(f"{method}.")]
    return with_values(recipe, own, method)
