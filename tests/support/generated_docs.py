"""Parts of README and docs/ that come from the code and from benchmarks/results.json. `make docs` writes them."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from tests.support.api_stub import write_stub
from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks" / "results.json"
BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SAMPLE = 27  # lines of the sample in the README
SECTIONS = {
    "Evaluation": ("scorecard", "ranking", "bootstrap", "shards", "evaluations"),
    "Neighbours, densities and heads": (
        "recall",
        "retrieval",
        "nc",
        "reliability",
        "density",
        "distributions",
        "heads",
    ),
    "Post-hoc scores and graded detection": ("posthoc", "cood"),
    "Training": ("training", "ssl"),
    "Prediction": ("zoo", "pixels"),
    "Corruptions and street scenes": ("corruptions", "scenes"),
    "Launchers and studies": ("launchers", "studies"),
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell or '–' for cell in line)} |\n" for line in lines)


# ---- README.md


def sample_output() -> str:
    """The first lines that the commands of the README's first block print."""
    first = (ROOT / "README.md").read_text("utf-8").split("```")[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        for line in re.findall("^nescio (.*?)(?:  #.*)?$", first, re.MULTILINE):
            command = [sys.executable, "-m", "nescio", *line.split()]
            run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in run.stdout.splitlines()[:SAMPLE]]
    return "```\n" + "\n".join([*lines, "…"]) + "\n```\n"


# ---- docs/methods.md


def search_text(search: Any) -> str:
    """The search range of a hyper-parameter in words."""
    if search is None:
        return "fixed"
    if hasattr(search, "values"):
        return " or ".join(map(str, search.values))
    kind = {"LogUniform": "log-uniform", "Uniform": "uniform", "Integers": "whole"}[type(search).__name__]
    return f"{search.low:g} to {search.high:g}, {kind}"


def evidence_names(cls: Any) -> list[str]:
    """The keys of the dictionaries in `evidence` of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.evidence)))
    dictionaries = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = [key for node in dictionaries for key in node.keys if isinstance(key, ast.Constant)]
    return [str(key.value) for key in sorted(keys, key=lambda key: (key.lineno, key.col_offset))]


def all_evidence(cls: Any) -> list[str]:
    """The evidence of a method and of the methods that it extends, without that of every method."""
    from nescio.methods import Method

    classes = [base for base in cls.__mro__ if issubclass(base, Method) and "evidence" in vars(base)]
    names = [name for base in reversed(classes[: classes.index(Method)]) for name in evidence_names(base)]
    return list(dict.fromkeys(names))


def method_facts(name: str) -> str:
    """Scores, evidence, paper and hyper-parameters of one method."""
    from nescio.methods import registry

    cls = registry[name]
    scores = f"Scores: {', '.join(f'`{score}`' for score in cls.scores)}. " if cls.scores else ""
    evidence = "; ".join(f"*{each}*" for each in all_evidence(cls)) or "that of every method"
    rows = [
        [f"`{field.name}`", str(field.default), search_text(field.metadata["search"]), field.metadata["help"]]
        for field in fields(cls.hparams_class)
    ]
    facts = f"{scores}Evidence: {evidence}. Paper: {cls.paper}.\n\n"
    return facts + table(["hyper-parameter", "default", "search", "meaning"], rows)


# ---- docs/posthoc.md


def measures_table() -> str:
    from nescio.measures import registry

    rows = []
    for name in sorted(registry):
        measure = registry[name]
        needs = ", ".join(f"`{field}`" for field in measure.needs)
        rows.append([f"`{name}`", measure.kind, needs, measure.sentence.replace("|", "\\|")])
    return table(["measure", "kind", "needs", "meaning"], rows)


# ---- docs/all.md


def evaluations_table() -> str:
    from nescio import evaluations

    rows = []
    for name in evaluations.registry:
        evaluation = evaluations.registry[name]
        numbers = ", ".join(headline.title or headline.metric for headline in evaluation.headlines)
        rows.append([f"`{name}`", evaluation.question, numbers])
    return table(["evaluation", "question", "numbers of the leaderboard"], rows)


# ---- docs/performance.md


def number(value: float | str | None) -> str:
    if not isinstance(value, float | int):
        return value or ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def quantity(record: dict[str, Any], field: str) -> str:
    if field not in record:
        return ""
    high = f"–{number(record['high'])}" if field == "value" and "high" in record else ""
    unit = record.get("unit", "s")
    return f"{number(record[field])}{high}{'' if unit.startswith('images') else ' '}{unit.removeprefix('images')}"


def benchmark_table(section: str) -> str:
    """Records of a section, in the order of the file; † marks those that were entered by hand."""
    records = [record for record in json.loads(BENCHMARKS.read_text()) if record["benchmark"] in SECTIONS[section]]
    rows = [
        [
            record["work"],
            record.get("peer", ""),
            quantity(record, "peer_value"),
            quantity(record, "value"),
            number(record.get("ratio")),
            number(record.get("target")),
            record["machine"],
            record["date"] + ("" if record.get("recorded") else " †"),
            record.get("note", ""),
        ]
        for record in records
    ]
    return table(["work", "peer", "peer's", "nescio's", "ratio", "target", "machine", "date", "note"], rows)


# ---- pages


def generators() -> dict[str, dict[str, Callable[[], str]]]:
    """By page and by name of the generated text: what writes it."""
    from nescio.methods import registry

    built_in = [name for name in registry if registry[name].__module__.startswith("nescio.methods.")]
    return {
        "README.md": {"sample": sample_output},
        "docs/methods.md": {name: lambda name=name: method_facts(name) for name in sorted(built_in)},
        "docs/all.md": {"evaluations": evaluations_table},
        "docs/posthoc.md": {"measures": measures_table},
        "docs/performance.md": {name: lambda name=name: benchmark_table(name) for name in SECTIONS},
    }


def pages() -> list[str]:
    """README and the pages of docs/, relative to the root."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def blocks(text: str) -> list[str]:
    """Names of the generated parts of a page."""
    return [match[2] for match in BLOCK.finditer(text)]


def handwritten(text: str) -> str:
    """A page without its generated parts."""
    return BLOCK.sub("", text)


def regenerated(page: str) -> str:
    """The page with its generated parts written anew."""
    writers = generators()[page]
    text = (ROOT / page).read_text("utf-8")
    return BLOCK.sub(lambda match: match[1] + writers[match[2]]() + match[3], text)


if __name__ == "__main__":
    for page in generators():
        (ROOT / page).write_text(regenerated(page), "utf-8")
    write_stub()
