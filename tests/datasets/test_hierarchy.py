"""Which out-classes are in-classes, above one, or below one: on a small tree with a diamond, and on a cycle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nescio.datasets.hierarchy import Hierarchy, names, overlapping, read
from nescio.errors import BadInput

# A diamond: a sea mammal is reached from "animal" by two ways. A tea cup stands in a tree of its own.
TREE = """\
animal mammal
animal swimmer
mammal whale
swimmer whale
mammal bear
bear brown-bear
brown-bear kodiak
whale orca
thing cup
cup tea-cup
"""


@pytest.fixture
def tree(tmp_path: Path) -> Hierarchy:
    (tmp_path / "is_a.txt").write_text(TREE)
    return read(tmp_path / "is_a.txt")


def test_hierarchy__above_and_below_are_transitive(tree: Hierarchy) -> None:
    assert tree.related(["kodiak"]) == {"kodiak", "brown-bear", "bear", "mammal", "animal"}
    assert tree.related(["mammal"]) == {"animal", "mammal", "whale", "orca", "bear", "brown-bear", "kodiak"}


def test_hierarchy__both_ways_round_a_diamond_are_found_once(tree: Hierarchy) -> None:
    assert tree.related(["orca"]) == {"orca", "whale", "mammal", "swimmer", "animal"}
    below = {"mammal", "swimmer", "whale", "orca", "bear", "brown-bear", "kodiak"}
    assert tree.related(["animal"]) == {"animal"} | below


def test_hierarchy__sisters_and_other_trees_are_not_related(tree: Hierarchy) -> None:
    assert tree.related(["brown-bear"]) == {"brown-bear", "bear", "mammal", "animal", "kodiak"}
    assert not {"whale", "swimmer", "cup"} & tree.related(["brown-bear"])


def test_overlapping__removal_is_equal_above_and_below(tree: Hierarchy) -> None:
    """Appendix L.1: ImageNet-1K has "brown bear", so "bear" is no fair out-class."""
    outside = ["brown-bear", "bear", "kodiak", "animal", "orca", "cup", "tea-cup", "unheard-of"]
    assert overlapping(["brown-bear", "tea-cup"], outside, tree) == (0, 1, 2, 3, 5, 6)
    assert overlapping(["brown-bear"], outside) == (0,)  # without a tree, the same name only


def test_read__removal_does_not_depend_on_the_order_of_a_line(tmp_path: Path, tree: Hierarchy) -> None:
    """What is above a class in one order is below it in the other, and both are left out: no order need be named."""
    (tmp_path / "turned.txt").write_text("\n".join(" ".join(reversed(line.split())) for line in TREE.splitlines()))
    turned = read(tmp_path / "turned.txt")
    assert (turned.parents, turned.children) == (tree.children, tree.parents)
    every = sorted(tree.parents.keys() | tree.children.keys())
    for name in every:
        assert overlapping([name], every, turned) == overlapping([name], every, tree)


def test_hierarchy__a_cycle_ends() -> None:
    round_ = Hierarchy.from_pairs([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "d")])
    assert round_.related(["b"]) == {"a", "b", "c", "d"}
    assert round_.related(["d"]) == {"a", "b", "c", "d"}


def test_hierarchy__equals_brute_force_on_random_graphs() -> None:
    import random

    rng = random.Random(0)
    for _ in range(20):
        edges = {(rng.randrange(12), rng.randrange(12)) for _ in range(14)}
        reach = set(edges)
        while more := {(a, d) for a, b in reach for c, d in edges if b == c} - reach:
            reach |= more
        tree = Hierarchy.from_pairs((str(a), str(b)) for a, b in edges)
        for each in range(12):
            above, below = ({str(a) for a, b in reach if b == each}, {str(b) for a, b in reach if a == each})
            assert tree.related([str(each)]) == {str(each)} | above | below


def test_hierarchy__a_chain_longer_than_the_stack() -> None:
    chain = Hierarchy.from_pairs((str(i), str(i + 1)) for i in range(50_000))
    assert len(chain.related(["0"])) == 50_001


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a b\na b c\n", "line 2: 'a b c' is not two names"),
        ("alone\n", "line 1"),
    ],
)
def test_read__bad_files(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path / "bad.txt")


def test_read__bad_places_and_bytes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read(tmp_path / "nowhere.txt")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not text"):
        read(tmp_path / "a.txt")


def test_overlapping__classes_that_the_tree_does_not_name_are_refused(tree: Hierarchy) -> None:
    """A hierarchy that knows no class would remove none, and nobody would notice."""
    with pytest.raises(BadInput, match="in-classes"):
        overlapping(["tench", "goldfish"], ["bear"], tree)
    with pytest.raises(BadInput, match="out-classes"):
        overlapping(["bear"], ["tench"], tree)


def test_names_of_classes(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("n01440764 tench, Tinca tinca\nn01443537 goldfish\n")
    assert names(tmp_path / "names.txt") == ("n01440764", "n01443537")
    for text, sentence in (("", "is empty"), ("a\n\nb\n", "line 2 is empty"), ("a\nb\na\n", "contains a twice")):
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(BadInput, match=sentence):
            names(tmp_path / "bad.txt")


def test_hierarchy__no_torch() -> None:
    code = "import sys, nescio.datasets.hierarchy, nescio.benchmarks.cood; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
