"""Methods: everything that one algorithm is, one file each."""

from nescio.methods import (  # noqa: F401  (importing registers)
    deep_ae,
    due,
    erm,
    mc_dropout,
    mimo,
    mixup,
    oc,
    rbf,
    rnd,
    soft_labels,
)
from nescio.methods.base import Evidence, Learning, Method, Output, Setting, method, registry

__all__ = ["Evidence", "Learning", "Method", "Output", "Setting", "method", "registry"]
