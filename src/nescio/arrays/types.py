"""The type of every NumPy array whose shape and dtype the type checker does not know."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
