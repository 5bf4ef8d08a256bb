"""Methods: one file per algorithm."""

from importlib import import_module
from pkgutil import iter_modules

from nescio.methods.base import (
    BaseHParams,
    Batches,
    Evidence,
    Method,
    NetworkSpec,
    Output,
    SelfSupervised,
    classifiers,
    first_batch,
    method,
    registry,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")  # registers its method
