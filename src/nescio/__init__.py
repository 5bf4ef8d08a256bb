"""nescio: does an image model know what it does not know?"""

from importlib import import_module
from typing import Any

from nescio.analysis import notebook as _notebook
from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions, join, stack

__version__ = "0.1.0"
__all__ = ["BadInput", "Predictions", "Undefined", "__version__", "compare", "join", "scorecard", "stack", "transfer"]

_LATER = {  # imported when first used
    "compare": "nescio.analysis.comparison",
    "scorecard": "nescio.analysis.cards",
    "transfer": "nescio.analysis.transfer",
}
_notebook.presenter = lambda: import_module("nescio.report.notebook")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'nescio' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
