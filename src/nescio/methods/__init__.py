"""Methods: everything that one algorithm is, one file each."""

from nescio.methods import (  # noqa: F401  (importing registers)
    byol,
    dcs,
    dcu,
    ddu,
    deep_ae,
    due,
    duq,
    erm,
    mc_dropout,
    mimo,
    mir,
    mixup,
    moco,
    oc,
    postnet,
    rbf,
    rnd,
    simclr,
    sngp,
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
