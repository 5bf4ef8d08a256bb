"""Which classes are kinds of which: an is-a file such as WordNet's, read from disk.

The file that ImageNet publishes (wordnet.is_a.txt) has one pair of WordNet ids a line, PARENT then CHILD:

    n02131653 n02132136        a bear, and the brown bear, which is one

That is the order taken here; files with the child first are read with order="child-parent". The order is never guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nescio.datasets.imagenet import plain
from nescio.errors import BadInput

ORDERS = ("parent-child", "child-parent")


@dataclass(frozen=True)
class Hierarchy:
    """Classes by name, with those directly above and directly below each; a class may have several parents."""

    parents: Mapping[str, frozenset[str]]
    children: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Hierarchy:
        """From (parent, child) pairs."""
        up: dict[str, set[str]] = {}
        down: dict[str, set[str]] = {}
        for parent, child in pairs:
            up.setdefault(child, set()).add(parent)
            down.setdefault(parent, set()).add(child)
        frozen = ({name: frozenset(names) for name, names in side.items()} for side in (up, down))
        return cls(*frozen)

    def __contains__(self, name: str) -> bool:
        return name in self.parents or name in self.children

    def above(self, names: Iterable[str]) -> set[str]:
        """Every hypernym of any of these, however far up; the names themselves only where one is above another."""
        return _reached(names, self.parents)

    def below(self, names: Iterable[str]) -> set[str]:
        """Every hyponym of any of these, however far down."""
        return _reached(names, self.children)

    def related(self, names: Iterable[str]) -> set[str]:
        """These, all that they are kinds of, and all kinds of them."""
        names = set(names)
        return names | self.above(names) | self.below(names)

    @property
    def upside_down(self) -> bool:
        """More classes without a parent than without a child: a tree that was read in the wrong order looks so."""
        tops = sum(name not in self.parents for name in self.children)
        leaves = sum(name not in self.children for name in self.parents)
        return tops > leaves


def _reached(names: Iterable[str], steps: Mapping[str, frozenset[str]]) -> set[str]:
    """All that can be reached by steps. A class is visited once, so that diamonds cost nothing and cycles end."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        fresh = steps.get(waiting.pop(), frozenset()) - found
        found |= fresh
        waiting += fresh
    return found


def read(path: str | Path, order: str = ORDERS[0]) -> Hierarchy:
    """The hierarchy in a text file: two names a line with white space between them, in the order that is named."""
    if order not in ORDERS:
        raise BadInput(f"The order of a hierarchy is {' or '.join(map(repr, ORDERS))}, not {order!r}.")
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(_lines(path), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2:
            raise BadInput(f"{path}, line {number}: {line.strip()[:60]!r} is not two names; write {order} a line.")
        first, second = words
        pairs.append((first, second) if order == ORDERS[0] else (second, first))
    if not pairs:
        raise BadInput(f"{path} is empty: a hierarchy has at least one line {order}.")
    return Hierarchy.of(pairs)


def names(path: str | Path) -> tuple[str, ...]:
    """Names of classes from a text file, one a line: class 0 first. What follows a name on its line is left aside."""
    found = tuple((line.split() or [""])[0] for line in _lines(path))
    if not found:
        raise BadInput(f"{path} is empty: write the name of one class a line, class 0 first.")
    if "" in found:
        raise BadInput(f"{path}, line {found.index('') + 1} is empty: write the name of one class a line.")
    if len(set(found)) < len(found):
        twice = next(name for at, name in enumerate(found) if name in found[:at])
        raise BadInput(f"{path} holds {twice} twice: every class needs a name of its own.")
    return found


def overlapping(
    inside: Sequence[str], outside: Sequence[str], tree: Hierarchy | None = None, known: Collection[str] = ()
) -> tuple[int, ...]:
    """Numbers of the out-classes that are in-classes, or above or below one of them in the tree.

    known  plain names of further classes that were in training

    Source: Galil et al. 2023, appendix L.1: "bear" is no fair out-class for a model that knows the brown bear.
    """
    if tree is not None:
        for words, classes in (("in-classes", inside), ("out-classes", outside)):
            if not any(name in tree for name in classes):
                raise BadInput(
                    f"The hierarchy knows none of the {words} ({', '.join(classes[:3])} …): both must be named as it "
                    "names them, by WordNet ids if it is WordNet's."
                )
    refused = set(inside) if tree is None else tree.related(inside)
    plain_names = {plain(name) for name in inside} | set(known)
    return tuple(number for number, name in enumerate(outside) if name in refused or plain(name) in plain_names)


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"{path} cannot be read: {why}.") from None
