"""Networks under other preprocessing than that of their published weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nescio.errors import BadInput
from nescio.networks.network import Network
from nescio.networks.preprocessing import Preprocessing, per_channel
from nescio.specs import DatasetName


def apply_preprocessing(network: Network, preprocessing: Preprocessing, source: str) -> Network:
    """The network with these settings, and the source of the settings noted."""
    if not preprocessing.set_fields:
        return network
    mean = per_channel(preprocessing.mean or network.mean)
    std = per_channel(preprocessing.std or network.std)
    sources = (*network.preprocessing_sources, f"{', '.join(preprocessing.set_fields)} from {source}")
    view = preprocessing.view(network.view, mean)
    return replace(network, view=view, mean=mean, std=std, preprocessing_sources=sources)


def with_preprocessing(
    networks: Sequence[Network], preprocessing: Preprocessing, data: str | None = None
) -> list[Network]:
    """The networks, with these settings for those whose weights are a user's checkpoint.

    data  image set whose @SIZE is the input size, if `preprocessing` has none
    """
    if preprocessing.set_fields and not any(network.custom_weights for network in networks):
        raise BadInput(
            f"{preprocessing.set_fields[0]} applies to a checkpoint of your own, and none is named: write NAME@FILE. "
            "Published networks and networks of a store have the preprocessing of their training."
        )
    size = DatasetName.parse(data).size if data else None

    def changed(network: Network) -> Network:
        if not network.custom_weights:
            return network
        if size and preprocessing.input_size is None:
            network = apply_preprocessing(network, Preprocessing(input_size=int(size)), str(data))
        return apply_preprocessing(network, preprocessing, "options")

    return [changed(network) for network in networks]


def describe_preprocessing(networks: Sequence[Network]) -> list[str]:
    """The preprocessing of the networks, one line for all networks with the same."""
    facts = [(one.name, str(one.view), one.mean, one.std, _remark(one)) for one in networks]
    return group_by_preprocessing(facts)


def _remark(network: Network) -> str:
    if not network.custom_weights:
        return ""
    sources = network.preprocessing_sources
    return f" ({'; '.join([*sources, 'else as' if sources else 'as'])} published for {network.arch})"


def group_by_preprocessing(facts: Iterable[tuple[str, str, Sequence[float], Sequence[float], str]]) -> list[str]:
    """One line for all networks with the same preprocessing.

    facts  (name, view, mean, std, remark) of each network
    """
    groups: dict[str, list[str]] = {}
    for name, view, mean, std, remark in facts:
        numbers = (" ".join(f"{value:.4g}" for value in values) for values in (mean, std))
        names = groups.setdefault("{}, mean {}, std {}{}".format(view, *numbers, remark), [])
        names += [name] if name not in names else []
    return [f"{_first_names(names)}: images at {preprocessing}." for preprocessing, names in groups.items()]


def _first_names(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
