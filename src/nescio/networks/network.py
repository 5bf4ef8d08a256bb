"""A network that can predict: its name, its preprocessing, its class names, its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nescio.datasets import imagenet
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.files import read_text
from nescio.networks import weights
from nescio.networks.preprocessing import Preprocessing, per_channel
from nescio.specs import DatasetName, NetworkName
from nescio.training import train_step
from nescio.trials import Trial
from nescio.work.steps import Step

LITE = "tf_efficientnet_lite"
NOWHERE = weights.Remote()


@dataclass(frozen=True)
class Network:
    """A network that can predict: its name, its preprocessing, and the location of its weights."""

    name: str  # a timm name, torchvision:NAME, or store:KEY
    view: View
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    class_names: tuple[str, ...] | None = None  # if known
    remote: weights.Remote = NOWHERE  # where its weights are published
    file_stems: tuple[str, ...] = ()  # possible names of a file with its weights; last the architecture's name
    trial: Trial | None = None  # the trial that trains it
    file: Path | None = None  # weights, after with_weights
    checksum: str = ""  # of the weights
    class_map: tuple[tuple[str, int], ...] = ()  # (a set's name of a class, the network's label)
    custom_weights: bool = False  # weights are a checkpoint named by the user, not the published ones
    preprocessing_sources: tuple[str, ...] = ()  # where settings come from that differ from the published weights'

    @property
    def parsed_name(self) -> NetworkName:
        return NetworkName.parse(self.name)

    @property
    def arch(self) -> str:
        return self.parsed_name.name

    def parent(self, root: str | Path | None = None) -> Step | str:
        """The parent of its predictions' key: the step that trains it, or the checksum of its weights."""
        if self.trial is not None:
            return train_step(self.trial, root)
        if not self.checksum:
            raise BadInput(f"The weights of {self.name} are not located yet: call with_weights first.")
        return self.checksum

    @property
    def identity(self) -> dict[str, object]:
        """Everything else that determines its predictions, as plain values."""
        identity: dict[str, object] = {"class_map": self.class_map} if self.class_map else {}
        if self.trial is not None:
            return identity
        return {"model": self.parsed_name.published, "mean": self.mean, "std": self.std, **identity}


# ---- preprocessing


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


# ---- class names


def output_class_names(network: Network) -> tuple[str, ...] | None:
    """The names of the classes that a network predicts, class 0 first; None if unknown."""
    if network.class_names is not None:
        return network.class_names
    return imagenet.descriptions() if network.trial is None and network.classes == imagenet.CLASSES else None


def with_class_names(network: Network, file: Path) -> Network:
    """The network with class names from a file: one name per line, class 0 first, or NAME=CLASS lines.

    NAME is a set's name of a class, CLASS the network's number or name of it; a .csv file has NAME,CLASS lines.
    """
    try:
        lines = [line.strip() for line in read_text(file, "utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}.") from None
    pairs_of_lines = [re.split("," if file.suffix == ".csv" else r"\t|=", line, maxsplit=1) for line in lines]
    if lines and all(len(pair) == 2 for pair in pairs_of_lines):
        pairs = tuple((name.strip(), _class_number(network, number.strip(), file)) for name, number in pairs_of_lines)
        if len(dict(pairs)) < len(set(pairs)):
            duplicate = next(name for name, number in pairs if dict(pairs)[name] != number)
            raise BadInput(f"{file} gives {duplicate} two classes of {network.name}: write each name once.")
        return replace(network, class_map=pairs)
    if len(lines) != network.classes:
        raise BadInput(
            f"{file} has {len(lines)} names; {network.name} has {network.classes} classes. Write one name per line, "
            "class 0 first, or NAME=CLASS on every line."
        )
    if len(set(lines)) < len(lines):
        duplicate = next(name for name in lines if lines.count(name) > 1)
        raise BadInput(f"{file} contains {duplicate} twice: class names must be unique.")
    pairs = tuple((name, number) for number, name in enumerate(lines))
    return replace(network, class_names=tuple(lines), class_map=pairs)


def _class_number(network: Network, text: str, file: Path) -> int:
    """The network's number of a class, by its number or its name."""
    if text.isdecimal() and len(text) < 10 and int(text) < network.classes:
        return int(text)
    names = network.class_names
    if names is not None and text in names:
        return names.index(text)
    numbers = imagenet.classes_by_name().get(imagenet.plain(text), ()) if network.classes == imagenet.CLASSES else ()
    if len(numbers) == 1:
        return numbers[0]
    problem = f"is the name of {len(numbers)} classes ({', '.join(map(str, numbers))})" if numbers else "is no class"
    raise BadInput(f"{file}: {text!r} {problem} of {network.name}: write a number from 0 to {network.classes - 1}.")
