"""docs/coverage.md has no gap: every item is there, its command, report and tests exist. So with docs/methods.md."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import textwrap
from dataclasses import fields
from functools import cache

import pytest

from nescio.benchmarks.base import registry as benchmarks
from nescio.cli import main
from nescio.commands import COMMANDS, parser_for
from nescio.errors import BadInput
from nescio.report.named import registry as reports
from tests.support.paths import ROOT

COVERAGE = ROOT / "docs" / "coverage.md"
METHODS = ROOT / "docs" / "methods.md"

# What a paper shows: each of these begins exactly one line of its table.
REQUIRED = {
    "UIMNET": (
        "Table 1: algorithms",
        "Table 1: uncertainty measures",
        "Table 1: native measures",
        "Table 1: in-distribution metrics",
        "Table 1: out-of-distribution metrics",
        "Table 1: ablations",
        "Table 1: ensembles",
        "Table 2:",
        "Table 3:",
        "Appendix A:",
        "Appendix B:",
        "Graphs: validation NLL against AUC",
        "Main effects:",
        "Ranking of the measures",
        "Oracle:",
        "ImageNot:",
        "Splits:",
        "Search:",
        "Optimisation:",
        "Hands off:",
    ),
    "Selective prediction": (
        "Figure 1:",
        "Figure 2:",
        "Figure 3:",
        "Figure 4:",
        "Figure 5:",
        "Figure 6:",
        "Figure 7:",
        "Figure 8:",
        "Figure 9:",
        "Figure 10:",
        "Figure 11:",
        "Figure 12:",
        "Figure 13:",
        "Figure 14:",
        "Figure 15:",
        "Figure 16:",
        "Figure 17:",
        "Figure 18:",
        "Figure 19:",
        "Figure 20:",
        "Figure 21:",
        "Figure 22:",
        "Figure 23:",
        "Figure 24:",
        "Figure 25:",
        "Figure 26:",
        "Figure 27:",
        "Table 1:",
        "Table 2:",
        "Correlation of AUROC and ECE",
        "Appendix A:",
        "Appendix C:",
        "Appendix I:",
        "Appendix J:",
        "Appendix L.1:",
        "Appendix L.2:",
        "Appendix M.8:",
        "Models:",
        "Pareto fronts",
        "A threshold with a guarantee",
        "A model that can abstain",
        "Wrong answers and out-of-distribution rows at once",
        "Calibration without bins",
        "Which score to use",
    ),
    "Representation reliability": (
        "Table 1:",
        "Table 2:",
        "Table 3:",
        "Table 4:",
        "Table 5:",
        "Table 6:",
        "Table 7:",
        "Table 8:",
        "Table 9:",
        "Figure 2:",
        "Figure 4:",
        "Figure 5:",
        "Definition 1:",
        "Theorem 1:",
        "Theorem 2:",
        "SimCLR, BYOL, MoCo:",
        "Scores of one's own embeddings",
        "Lone models:",
        "How good a representation is",
        "Components of LL's mixtures",
    ),
    "Deterministic uncertainty": (
        "Table 1:",
        "Table 2:",
        "Table 3:",
        "Figure 1:",
        "Figure 2:",
        "Figure 3:",
        "Figure 4:",
        "Segmentation on street scenes",
        "CIFAR-10-C and CIFAR-100-C:",
        "Correlation of strength and rAULC",
        "Pooling:",
        "Strength:",
        "Ensembles and MC-dropout",
        "Out-of-distribution detection",
        "Undertrained networks:",
        "Networks that exist already",
    ),
    "URL": (
        "Figure 1:",
        "Figure 2:",
        "Figure 3:",
        "Figure 4:",
        "Figure 5:",
        "Figure 6:",
        "Figure 7:",
        "Figure 8:",
        "Figure 9:",
        "Figure 10:",
        "Figure 11:",
        "Figure 12:",
        "Figure 13:",
        "Table 1:",
        "Algorithm 1:",
        "Datasets:",
        "Search:",
        "Early stopping",
        "Training:",
        "Self-supervised R@1",
        "Who cannot be told from the best",
        "Any method, and networks that exist already",
        "A network or dump of one's own",
        "Scores that see the gallery",
    ),
}
# What a paper mentions and its text does not hold must be said.
ABSENT = {
    "UIMNET": ("Appendix A", "Appendix B", "Appendix C", "Appendix D"),
    "Selective prediction": ("484 models", "counterparts"),
    "Representation reliability": ("Figure 1", "Figure 3", "budget"),
    "Deterministic uncertainty": ("supplement", "CARLA-C"),
    "URL": ("flat first epoch", "optimal hyper-parameters"),
}


def section(page, name):
    return re.split(r"^## ", page, flags=re.MULTILINE)[[*titles(page)].index(name) + 1]


def titles(page):
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


def tables(text):
    """Every table as a list of lines, each a list of cells."""
    every = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in block.splitlines()]
        assert all(len(line) == len(lines[0]) for line in lines), lines[0]
        every.append(list(lines[2:]))
    return every


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def gaps(page):
    """Sentences about what is missing or stale; none if all is well."""
    found = []
    for paper, wanted in REQUIRED.items():
        if paper not in titles(page):
            found.append(f"{paper} has no section.")
            continue
        lines, *others = tables(section(page, paper))
        for item in wanted:
            if sum(line[0].startswith(item) for line in lines) != 1:
                found.append(f"{paper}: {item} does not stand there once.")
        found += [f"{paper}: {line[0]} is not in the paper." for line in lines if not line[0].startswith(wanted)]
        for item, _, command, guards in lines:
            found += [f"{item}: {why}" for why in (_command(command), *map(_guard, code(guards) or [""])) if why]
        missing = " ".join(line[0] for table in others for line in table)
        found += [f"{paper}: nothing says that {item} is not there." for item in ABSENT[paper] if item not in missing]
    for definition, _, where, guards in tables(section(page, "Definitions that the other papers use"))[0]:
        found += [f"{definition}: {why}" for why in (*map(_place, code(where)), *map(_guard, code(guards))) if why]
    return found


@cache
def _command(cell):
    words = shlex.split((code(cell) or [""])[0])
    if words[:1] != ["nescio"] or words[1] not in COMMANDS:
        return f"{cell} is not a command."
    try:
        options, unknown = parser_for(words[1], words[1:]).parse_known_args(words[1:])
    except BadInput as error:
        return f"{cell} does not parse: {error}"
    if unknown:
        return f"{cell} has unknown options {unknown}."
    names = ",".join(getattr(options, "only", [])).split(",")
    wrong = [name for name in names if name and name not in report_names()]
    return f"{cell}: no benchmark has a report of the full name {', '.join(wrong)}." if wrong else ""


@cache
def report_names():
    for benchmark in benchmarks.parts():
        importlib.import_module(benchmark.reports)
    return frozenset(reports)


@cache
def functions(file):
    """The functions of a file of tests by name."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


@cache
def _guard(guard):
    path, _, name = guard.partition("::")
    file = ROOT / path
    if not (re.fullmatch(r"tests/(\w+/)*test_\w+\.py", path) and file.is_file()):
        return f"there is no {path or 'test'}."
    return f"{path} has no {name}." if name and name not in functions(file) else ""


@cache
def _place(name):
    module, _, attribute = name.rpartition(".")
    return "" if hasattr(importlib.import_module(module), attribute) else f"there is no {name}."


def test_nothing_is_missing():
    assert gaps(COVERAGE.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (r"^\| Table 3:.*\n", "", "UIMNET: Table 3: does not stand there once."),
        (r"^\| Oracle:.*\n", "", "UIMNET: Oracle: does not stand there once."),
        (r"nescio imagenot --data", "nescio imagenet --data", "is not a command"),
        (r"--ensemble-size 1,5", "--member-count 1,5", "unknown options"),
        (r"nescio imagenot --data digits", "nescio imagenot", "does not parse"),
        (r"::test_the_oracle_is_told_what_is_outside", "::test_the_oracle", "has no test_the_oracle."),
        (r"tests/analysis/test_selection.py", "tests/test_select.py", "there is no tests/test_select.py."),
        (r"--only cood/fig6`", "--only selective/fig6`", "no benchmark has a report of the full name selective/fig6."),
        (r"--only selective/fig1`", "--only fig1`", "no benchmark has a report of the full name fig1."),
        (r"\| Appendix D:", "| The list:", "nothing says that Appendix D is not there."),
        (r"nescio\.metrics\.sac`", "nescio.metrics.sack`", "there is no nescio.metrics.sack."),
        (r"^## UIMNET", "## UINET", "UIMNET has no section."),
    ],
)
def test_a_gap_is_seen(old, new, sentence):
    page, count = re.subn(old, new, COVERAGE.read_text("utf-8"), count=1, flags=re.MULTILINE)
    assert count == 1 and any(sentence in gap for gap in gaps(page))


def test_guards_run_in_the_ordinary_tests():
    """A guard that only `make test-all` runs guards too late."""
    named = {guard for table in tables(COVERAGE.read_text("utf-8")) for line in table for guard in code(line[-1])}
    for guard in named:
        path, _, name = guard.partition("::")
        marks = functions(ROOT / path)[name].decorator_list if name else ()
        assert not any("mark.slow" in ast.unparse(mark) for mark in marks), guard


def test_table_1_is_all_there(capsys):
    """UIMNET Table 1, name by name, through the commands that list what there is."""
    pytest.importorskip("torch")
    listed = {}
    for command in ("methods", "measures", "metrics"):
        assert main([command]) == 0
        listed[command] = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    algorithms = ["erm", "mixup", "soft-labels", "rbf", "rnd", "oc", "deep-ae", "mc-dropout", "mimo", "due"]
    assert set(algorithms) <= listed["methods"]
    assert {"msp", "gap", "entropy", "jacobian", "gmm", "tta", "native"} <= listed["measures"]
    assert {"accuracy", "ece", "nll", "auroc", "in_as_in", "out_as_out"} <= listed["metrics"]


# ---- the page of methods


def search_text(search):
    if search is None:
        return "fixed"
    if hasattr(search, "values"):
        return " or ".join(map(str, search.values))
    kind = {"LogUniform": "log-uniform", "Uniform": "uniform", "Integers": "whole"}[type(search).__name__]
    return f"{search.low:g} to {search.high:g}, {kind}"


def test_the_page_of_methods_lists_the_hparams_as_they_are():
    pytest.importorskip("torch")
    from nescio.methods import registry

    page = METHODS.read_text("utf-8")
    built_in = {name for name in registry if registry[name].__module__.startswith("nescio.methods.")}
    assert set(titles(page)) == built_in
    for name in built_in:
        (table,) = tables(section(page, name))
        assert table == [
            [f"`{f.name}`", str(f.default), search_text(f.metadata["search"]), f.metadata["help"]]
            for f in fields(registry[name].hparams_class)
        ], name


def test_the_page_of_methods_says_what_each_is_known_by():
    """Idea, logits, native score and every piece of evidence of the code stand in the paragraph."""
    pytest.importorskip("torch")
    from nescio.methods import Method, registry

    page = METHODS.read_text("utf-8")
    for name in titles(page):
        text = " ".join(section(page, name).split())
        assert text.startswith(f"{name} **") and "Logits:" in text and re.search("[Nn]ative score", text), name
        own = [cls for cls in registry[name].__mro__ if issubclass(cls, Method) and "evidence" in vars(cls)]
        for cls in own[: own.index(Method)]:
            for what in evidence_of(cls):
                assert f"*{what}*" in text, (name, what)
    assert "appendix C that is not in its text" in " ".join(page.split()) and "Search ranges are ours" in page
    assert "Spectral normalisation is a switch for every method" in page


def evidence_of(cls):
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.evidence)))
    return {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }


def test_evidence_is_found_in_the_code():
    pytest.importorskip("torch")
    from nescio.methods import registry

    assert evidence_of(registry["due"]) == {
        "inducing points moved",
        "posterior left the prior",
        "variance away from the data",
    }
    assert evidence_of(registry["oc"]) == {"orthogonality"}
