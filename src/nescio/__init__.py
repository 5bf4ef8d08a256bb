"""nescio: does an image model know what it does not know?"""

from nescio.errors import BadInput, Undefined
from nescio.predictions import Predictions, join, stack

__version__ = "0.1.0"
__all__ = ["BadInput", "Predictions", "Undefined", "__version__", "join", "stack"]
