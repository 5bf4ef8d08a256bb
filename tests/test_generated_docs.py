"""The generated parts of docs/ are what the code and benchmarks/results.json give."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.generated_docs import (
    BENCHMARKS,
    SECTIONS,
    all_evidence,
    blocks,
    generators,
    handwritten,
    pages,
    regenerated,
)
from tests.support.paths import ROOT

pytest.importorskip("torch")
PAGES = ("README.md", "docs/all.md", "docs/methods.md", "docs/posthoc.md", "docs/performance.md")


@pytest.mark.parametrize("page", PAGES)
def test_generated_docs__regenerated_pages_are_the_committed_ones(page):
    assert regenerated(page) == (ROOT / page).read_text("utf-8"), "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_generated_docs__blocks_have_every_generated_text_once(page):
    names = blocks((ROOT / page).read_text("utf-8"))
    assert len(names) == len(set(names)) and set(names) == set(generators()[page])


def test_generated_docs__generators_cover_every_marked_page():
    marked = {page for page in pages() if "<!-- generated" in (ROOT / page).read_text("utf-8")}
    assert marked == set(PAGES) == set(generators())


def test_generated_docs__methods_have_a_section_each():
    titles = [
        line[3:] for line in (ROOT / "docs" / "methods.md").read_text("utf-8").splitlines() if line.startswith("## ")
    ]
    assert set(generators()["docs/methods.md"]) <= set(titles)


def test_generated_docs__all_evidence_is_that_of_the_class_and_of_what_it_extends():
    from nescio.methods import registry

    inherited = all_evidence(registry["rnd"])
    assert len(all_evidence(registry["due"])) == 3
    assert all_evidence(registry["oc"]) == [*inherited, "orthogonality"]


def test_generated_docs__every_record_of_the_benchmarks_is_in_a_section():
    records = json.loads(BENCHMARKS.read_text("utf-8"))
    listed = {benchmark for benchmarks in SECTIONS.values() for benchmark in benchmarks}
    assert {record["benchmark"] for record in records} <= listed
    assert {path.stem.removeprefix("bench_") for path in BENCHMARKS.parent.glob("bench_*.py")} <= listed
    assert all({"benchmark", "machine", "work", "date"} <= record.keys() for record in records)


def test_generated_docs__handwritten_leaves_generated_text_out():
    assert handwritten("a\n<!-- generated: x -->\nb\n<!-- end -->\nc\n") == "a\n\nc\n"


def words(text):
    """Words with a letter or a number: table rules and dashes are none."""
    return [word for word in handwritten(text).split() if re.search(r"\w", word)]


def test_generated_docs__pages_have_few_handwritten_words():
    counts = {page: len(words((ROOT / page).read_text("utf-8"))) for page in pages()}
    assert sum(counts.values()) <= 15_000, counts
    assert len(words((ROOT / "CHANGELOG.md").read_text("utf-8"))) <= 1_200
