"""README and docs follow the code: snippets run, commands parse, links lead somewhere, guides are what tests run."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from typing import get_args

import pytest

from nescio.benchmarks.base import registry as benchmarks
from nescio.commands import COMMANDS, parser_for
from tests.support.paths import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("results/**/*.md"))]
PAGES = [page for page in PAGES if page.name != "tables.md"]
OTHERS = {"--nproc-per-node"}  # of torchrun
GUIDE = "settling"  # the benchmark of docs/add-a-benchmark.md
GROUPS = {
    f"nescio.{group}" for group in ("methods", "measures", "metrics", "datasets", "readers", "benchmarks", "launchers")
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    """What stands between fences of these languages."""
    return [text for language, text in FENCE.findall(page.read_text("utf-8")) if language in languages]


def commands(page):
    """Every `nescio …` of a page that gives options or files, in a block, indented or inside a sentence."""
    rest = FENCE.sub("", page.read_text("utf-8"))
    shown = "\n".join([*blocks(page, "", "sh"), *re.findall(r"^    (nescio .*)$", rest, re.MULTILINE)])
    lines = [line.strip() for line in shown.replace("\\\n", " ").splitlines()]
    inside = [" ".join(text.split()) for text in re.findall(r"`(nescio [^`]+)`", rest)]
    return [_command(line) for line in (*lines, *inside) if line.startswith("nescio ")]


def _command(line):
    """Without the comment, the file that its output goes to, and the words that stand for more of the same."""
    line = re.split(r"\s#\s|\s\|\s|\s>\s|(?<=\S)\s{3,}(?=\S)", re.sub(r" {2,}(?=--)", " ", line))[0]
    return line.replace("…", "").strip()


def importable(name):
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        importlib.import_module(name)
    except ImportError:
        module, _, attribute = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(module), attribute)
        except ImportError:
            return False
    return True


def test_readme__the_snippets_of_the_readme_run_as_they_stand(tmp_path):
    """One after the other in one process, in an empty folder; then the commands on the files that they wrote."""
    code = "\n".join(blocks(README, "python"))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for words in (["-c", code], ["-m", "nescio", "evaluate", "preds.npz"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readme__commands_parse(page):
    for words in map(shlex.split, commands(page)):
        if words[1:3] == ["run", GUIDE]:  # installed by tests/benchmarks/test_outside_benchmark.py alone
            continue
        words = [word for word in words if word != "--help"]
        line = " ".join(words)
        assert words[1] in COMMANDS, line
        if words[1] == "run" and len(words) > 2:
            assert words[2] in benchmarks, line
        if len(words) > 2 + (words[1] in ("run", "store")):  # more than its name
            _, unknown = parser_for(words[1], words[1:]).parse_known_args(words[1:])
            assert not unknown, line


def options_of(parser):
    """The options of a parser and of its sub-commands."""
    for action in parser._actions:
        yield from action.option_strings
        for inner in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from options_of(inner)


@cache
def all_options():
    """The options of every command, benchmark and launcher."""
    lines = [[name] for name in COMMANDS] + [["run", name] for name in benchmarks if name != GUIDE]
    lines += [["train", "--launcher", name] for name in ("local", "ray", "slurm")] + [
        ["store", "prune"],
        ["store", "sync"],
    ]
    return {option for argv in lines for option in options_of(parser_for(argv[0], argv))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readme__options_in_the_text_exist(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    named = {
        option for code in re.findall(r"`([^`]+)`", text) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
    }
    assert named - all_options() - OTHERS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readme__links_and_tests_exist(page):
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(r"`((?:tests|src|docs|examples|results)/[\w/.-]+?)(?:::\w+)?`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readme__names_of_the_code_exist(page):
    """Imports of the snippets, and dotted names of nescio in the text."""
    imports = [node for code in blocks(page, "python") for node in ast.walk(ast.parse(code))]
    names = [
        f"{node.module}.{name.name}" for node in imports if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    names += re.findall(r"`(nescio\.[\w.]+)", page.read_text("utf-8"))
    for name in names:
        if name.startswith("nescio.") and name not in GROUPS:
            assert importable(name), name


def test_readme__the_guide_to_data_names_every_source_and_change():
    from nescio.datasets import registry
    from nescio.datasets.corruptions import CORRUPTIONS
    from nescio.datasets.image_set import Split

    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    for name in (*registry, *CORRUPTIONS, *get_args(Split)):
        assert f"`{name}" in text, name


def test_readme__the_snippets_of_the_guide_to_data_run(tmp_path):
    pytest.importorskip("torch")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = "\n".join(blocks(ROOT / "docs" / "data.md", "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
