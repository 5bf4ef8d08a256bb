"""The two ways in which nescio says no, and what it thinks was meant."""

from __future__ import annotations

from collections.abc import Iterable


class BadInput(ValueError):
    """What a person gave cannot be used: one sentence says what is wrong, where, and what to do."""


class Undefined(ValueError):
    """The question has no answer on this input: one sentence says why."""


def near(text: str, known: Iterable[str]) -> str:
    """A question that names the nearest of the known words, or nothing; it begins with a space."""
    import difflib

    close = difflib.get_close_matches(text[:100], list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
