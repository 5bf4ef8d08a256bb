"""Types of arrays whose shape and dtype the type checker cannot express."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
# A NumPy array or a torch tensor: functions of it use the operations that both have, and return the kind they get.
ArrayOrTensor: TypeAlias = Any
