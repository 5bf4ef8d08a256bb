"""Class hierarchies: is-a files such as WordNet's, read from disk.

The file that ImageNet publishes (wordnet.is_a.txt) has one pair of WordNet ids a line:

    n02131653 n02132136        a bear, and the brown bear, which is one

The two columns may be swapped, because classes above and below an in-class are both omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nescio.datasets.imagenet import plain
from nescio.errors import BadInput
from nescio.files import read_text


@dataclass(frozen=True)
class Hierarchy:
    """Classes by name, with those directly above and directly below each; a class may have several parents."""

    parents: dict[str, set[str]]
    children: dict[str, set[str]]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> Hierarchy:
        """From (parent, child) pairs."""
        tree = cls({}, {})
        for parent, child in pairs:
            tree.parents.setdefault(child, set()).add(parent)
            tree.children.setdefault(parent, set()).add(child)
        return tree

    def __contains__(self, name: str) -> bool:
        return name in self.parents or name in self.children

    def related(self, names: Iterable[str]) -> set[str]:
        """These classes, all their ancestors and all their descendants."""
        names = set(names)
        return names | _reached(names, self.parents) | _reached(names, self.children)


def _reached(names: Iterable[str], steps: Mapping[str, set[str]]) -> set[str]:
    """All classes that can be reached by steps. Every class is visited once, so cycles terminate."""
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        fresh = steps.get(waiting.pop(), set()) - reached
        reached |= fresh
        waiting += fresh
    return reached


def read(path: str | Path) -> Hierarchy:
    """The hierarchy in a text file: two names per line, separated by white space."""
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(_lines(path), start=1):
        match line.split():
            case []:
                continue
            case [parent, child]:
                pairs.append((parent, child))
            case _:
                raise BadInput(f"{path}, line {number}: {line.strip()[:60]!r} is not two names; write PARENT CHILD.")
    if not pairs:
        raise BadInput(f"{path} is empty: a hierarchy has at least one line PARENT CHILD.")
    return Hierarchy.from_pairs(pairs)


def names(path: str | Path) -> tuple[str, ...]:
    """Names of classes from a text file, one per line: class 0 first. Text after the name is ignored."""
    listed = tuple((line.split() or [""])[0] for line in _lines(path))
    if not listed:
        raise BadInput(f"{path} is empty: write one class name per line, class 0 first.")
    if "" in listed:
        raise BadInput(f"{path}, line {listed.index('') + 1} is empty: write one class name per line.")
    if len(set(listed)) < len(listed):
        twice = next(name for position, name in enumerate(listed) if name in listed[:position])
        raise BadInput(f"{path} contains {twice} twice: class names must be unique.")
    return listed


def overlapping(
    inside: Sequence[str], outside: Sequence[str], tree: Hierarchy | None = None, class_names: Collection[str] = ()
) -> tuple[int, ...]:
    """Numbers of the out-classes that are in-classes, or their ancestors or descendants.

    known  plain names of further classes that were in training

    Source: Galil et al. 2023, appendix L.1: "bear" is not a valid out-class for a model trained on the brown bear.
    """
    for side, classes in (("in-classes", inside), ("out-classes", outside)):
        if tree is not None and not any(name in tree for name in classes):
            raise BadInput(
                f"The hierarchy contains none of the {side} ({', '.join(classes[:3])} …): use its names for both, "
                "WordNet ids if it is WordNet's."
            )
    refused = set(inside) if tree is None else tree.related(inside)
    plain_names = {plain(name) for name in inside} | set(class_names)
    return tuple(number for number, name in enumerate(outside) if name in refused or plain(name) in plain_names)


def _lines(path: str | Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"{path} cannot be read: {why}.") from None
