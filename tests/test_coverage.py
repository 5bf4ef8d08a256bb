"""docs/coverage.md has every item of tests/coverage.toml, with a report or command; its tests exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from functools import cache

import pytest

from nescio.benchmarks.base import registry as benchmarks
from nescio.cli import main
from nescio.commands import COMMANDS, parser_for
from nescio.errors import BadInput
from nescio.report.named_reports import registry as reports
from tests.support.paths import ROOT

COVERAGE = ROOT / "docs" / "coverage.md"
GUARDS = tomllib.loads((ROOT / "tests" / "coverage.toml").read_text("utf-8"))  # section → item → tests
DEFINITIONS = "Definitions that the other papers use"
FIGURES = {  # numbers of tables and figures in each paper
    "UIMNET": {"Table": 3, "Figure": 0},
    "Selective prediction": {"Table": 2, "Figure": 27},
    "Representation reliability": {"Table": 9, "Figure": 5},
    "Deterministic uncertainty": {"Table": 3, "Figure": 4},
    "URL": {"Table": 1, "Figure": 13},
}
# What a paper mentions and its text lacks must be in the second table.
ABSENT = {
    "UIMNET": ("Appendix A", "Appendix B", "Appendix C", "Appendix D"),
    "Selective prediction": ("484 models", "counterparts"),
    "Representation reliability": ("Figure 1", "Figure 3", "budget"),
    "Deterministic uncertainty": ("supplement", "CARLA-C"),
    "URL": ("flat first epoch", "hyper-parameters"),
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


def expanded(line):
    """The item of a line with its names: "Figures 1–3, 5: …" with `x/figN` is four items."""
    item, names = line[0].partition(" ([")[0], code(line[2])
    match = re.match(r"(Figure|Table)s ([\d–, ]+)", item)
    if not match:
        return [(item, names)]
    numbers = [
        number
        for text in match[2].split(", ")
        for number in range(int(text.partition("–")[0]), int(text.rpartition("–")[2]) + 1)
    ]
    return [(f"{match[1]} {number}", [re.sub("N$", str(number), name) for name in names]) for number in numbers]


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def gaps(page):
    """(section, item, what is wrong) of everything that is missing or stale."""
    wrong = []
    for paper, guards in GUARDS.items():
        if paper not in titles(page):
            wrong.append((paper, "", "no section"))
            continue
        lines, *others = tables(section(page, paper))
        rows = [row for line in lines for row in expanded(line)]
        items = [item for item, _ in rows]
        short = {item: item.partition(":")[0] for item in guards}  # "Figure 1" stands for its title too
        counts = {item: sum(map(items.count, {item, short[item]})) for item in guards}
        wrong += [(paper, item, "not once") for item, count in counts.items() if count != 1]
        wrong += [(paper, item, "no tests") for item in items if not guards.get(item) and item not in short.values()]
        check = _definition if paper == DEFINITIONS else _source
        for item, names in rows:
            wrong += [(paper, item, why) for name in names or [""] if (why := check(name))]
        wrong += [(paper, item, why) for item in guards for guard in guards[item] if (why := _guard(guard))]
        missing = " ".join(line[0] for table in others for line in table)
        wrong += [(paper, item, "not listed as missing") for item in ABSENT.get(paper, ()) if item not in missing]
    return wrong


def _source(name):
    """What is wrong with the name of a report, or with a command."""
    if not name.startswith("nescio "):
        return "" if name in report_names() else f"no report {name}"
    return _command(name)


@cache
def _command(text):
    argv = shlex.split(text)
    if argv[1] not in COMMANDS:
        return f"no command {argv[1]}"
    try:
        _, unknown = parser_for(argv[1], argv[1:]).parse_known_args(argv[1:])
    except BadInput as error:
        return f"not parsed: {error}"
    return f"unknown options {unknown}" if unknown else ""


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
        return f"no file {path}"
    return f"no test {name}" if name and name not in functions(file) else ""


@cache
def _definition(name):
    module, _, attribute = f"nescio.{name}".rpartition(".")
    return "" if hasattr(importlib.import_module(module), attribute) else f"no function {name}"


def test_coverage__gaps_are_none():
    assert gaps(COVERAGE.read_text("utf-8")) == []


@pytest.mark.parametrize("paper", FIGURES)
def test_coverage__guards_have_every_table_and_figure(paper):
    items = [*GUARDS[paper], *ABSENT[paper]]
    for kind, count in FIGURES[paper].items():
        for number in range(1, count + 1):
            assert any(item.partition(":")[0] == f"{kind} {number}" for item in items), (kind, number)


@pytest.mark.parametrize(
    ("old", "new", "gap"),
    [
        (r"^\| Table 3:.*\n", "", "not once"),
        (r"^\| Oracle:.*\n", "", "not once"),
        (r"nescio imagenot --data", "nescio imagenet --data", "no command imagenet"),
        (r"--trials 10", "--attempts 10", "unknown options"),
        (r"`nescio train --method simclr", "`nescio train --method", "not parsed"),
        (r"`cood/figN`", "`selective/figN`", "no report selective/fig6"),
        (r"`selective/figN`", "`figN`", "no report fig1"),
        (r"Figures 1–13", "Figures 2–13", "not once"),
        (r"\| Appendix D:", "| The list:", "not listed as missing"),
        (r"`metrics\.sac`", "`metrics.sack`", "no function metrics.sack"),
        (r"^## UIMNET", "## UINET", "no section"),
        (r"^\| Oracle:", "| Prophet:", "no tests"),
    ],
)
def test_coverage__gaps_are_seen(old, new, gap):
    page, count = re.subn(old, new, COVERAGE.read_text("utf-8"), count=1, flags=re.MULTILINE)
    assert count == 1 and any(gap in why for _, _, why in gaps(page))


@pytest.mark.parametrize(
    ("guard", "gap"),
    [
        ("tests/test_coverage.py::test_nothing", "no test test_nothing"),
        ("tests/test_select.py", "no file tests/test_select.py"),
        ("src/nescio/cli.py", "no file src/nescio/cli.py"),
    ],
)
def test_coverage__guards_that_do_not_exist_are_seen(guard, gap):
    assert _guard(guard) == gap


def test_coverage__guards_run_in_the_quick_suite():
    """A guard that only `make test-all` runs guards too late."""
    for guard in {guard for items in GUARDS.values() for tests in items.values() for guard in tests}:
        path, _, name = guard.partition("::")
        marks = functions(ROOT / path)[name].decorator_list if name else ()
        assert not any("mark.slow" in ast.unparse(mark) for mark in marks), guard


def test_coverage__table_1_is_all_there(capsys):
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
