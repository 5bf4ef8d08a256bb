"""Methods: everything that one algorithm is, one file each."""

from nescio.methods import (  # noqa: F401  (importing registers)
    byol,
    deep_ae,
    due,
    erm,
    mc_dropout,
    mimo,
    mixup,
    moco,
    oc,
    rbf,
    rnd,
    simclr,
    soft_labels,
)
from nescio.methods.base import (
    Evidence,
    Learning,
    Method,
    Output,
    SelfSupervised,
    Setting,
    classifiers,
    method,
    registry,
)

__all__ = [
    "Evidence",
    "Learning",
    "Method",
    "Output",
    "SelfSupervised",
    "Setting",
    "classifiers",
    "method",
    "registry",
]
