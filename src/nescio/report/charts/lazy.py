"""Altair, imported when the first chart is built."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        def __getattr__(self, name: str) -> object:
            return getattr(import_module("altair"), name)

    alt = _Altair()

__all__ = ["alt"]
