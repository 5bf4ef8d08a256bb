"""Types of arrays whose shape and dtype the type checker cannot express."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[Any]]  # in NumPy 2.5 NDArray has no type to inspect
# A NumPy array or a torch tensor: such functions use operations of both, and return the type of their argument.
ArrayOrTensor: TypeAlias = Any
