"""Names of the classes that a network predicts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nescio.datasets import imagenet
from nescio.errors import BadInput
from nescio.files import read_text
from nescio.networks.network import Network


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
