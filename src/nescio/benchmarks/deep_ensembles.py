"""Deep ensembles: networks of plain training that share their hyper-parameters and differ in their initial seed.

Every benchmark that trains networks takes `deep-ensemble` among its methods; `--ensemble-size` says how many networks.
"""

from __future__ import annotations

from collections.abc import Sequence

DEEP_ENSEMBLE = "deep-ensemble"
MEMBER = "erm"  # the method of its networks
APART = 1000  # initial seeds of the members of an ensemble; those of runs stand between them


def own_names(names: Sequence[str]) -> tuple[str, ...]:
    """Methods by their own names, each once."""
    from nescio.methods import registry

    known = [registry.canonical(name) for name in names]
    return tuple(dict.fromkeys(name if name == DEEP_ENSEMBLE else registry[name].name for name in known))


def trained_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods whose networks are trained: those of a deep ensemble are plain training's."""
    if DEEP_ENSEMBLE not in names:
        return tuple(names)
    return tuple(dict.fromkeys(MEMBER if name == DEEP_ENSEMBLE else name for name in names))


def name_of_average(method: str, members: int) -> str:
    """The name of an average of networks with the same hyper-parameters."""
    return DEEP_ENSEMBLE if (method, members > 1) == (MEMBER, True) else method
