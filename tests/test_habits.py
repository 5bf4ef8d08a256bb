"""Habits that made tests depend on their machine, their order or its load do not come back."""

from __future__ import annotations

import ast

import pytest

from tests.support.paths import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))
UNTIL_KILLED = 30  # seconds: a process that sleeps so long is there to be killed, and no test waits for it
RANDOM = {"default_rng", "Generator", "RandomState", "Random"}
# what may stay, each with its reason
ALLOWED = {
    ("tests/work/test_team.py", "sleep"): "two processes train, and nothing on the disk says since when",
    ("tests/cluster/test_slurm.py", "sleep"): "the time that a job takes, on a cluster of its own",
    ("tests/cluster/test_team_launchers.py", "sleep"): "as in test_team.py",
}


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def shared_generators(tree: ast.Module) -> set[str]:
    """The names of generators that a whole file shares: what a test draws depends on the tests before it."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and name_of(node.value.func) in RANDOM
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def habits(source: str) -> set[tuple[str, int]]:
    """The bad habits of a source: (habit, line)."""
    tree = ast.parse(source)
    found = set()
    shared = shared_generators(tree)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {
                ("shared generator", node.lineno)
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and node.id in shared
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "file://" in node.value:
            found.add(("file address", node.lineno))  # Path.as_uri() escapes what an address cannot hold
        if isinstance(node, ast.Attribute) and node.attr == "cpu_count":
            found.add(("cpu_count", node.lineno))  # not the cores of this process
        if not isinstance(node, ast.Call):
            continue
        text = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "split" else None
        formatted = isinstance(text, ast.JoinedStr) or (isinstance(text, ast.Call) and name_of(text.func) == "format")
        if formatted and not node.args:
            found.add(("split of a formatted text", node.lineno))  # a path with a space becomes two words
        if name_of(node.func) == "sleep" and node.args and isinstance(node.args[0], ast.Constant):
            seconds = node.args[0].value
            if isinstance(seconds, int | float) and 0.2 < seconds < UNTIL_KILLED:
                found.add(("sleep", node.lineno))  # waiting.until waits for an event
    return found


@pytest.mark.parametrize(
    ("source", "habit"),
    [
        ("rng = np.random.default_rng(0)\ndef test_a(): rng.normal()", "shared generator"),
        ("R = random.Random(0)\ndef test_a(): R.random()", "shared generator"),
        ("main('--store {}'.format(path).split())", "split of a formatted text"),
        ("main(f'--store {path}'.split())", "split of a formatted text"),
        ("os.cpu_count()", "cpu_count"),
        ("x = f'file://{path}'", "file address"),
        ("x = 'file:///tmp/a'", "file address"),
        ("time.sleep(0.5)", "sleep"),
        ("time.sleep(0.01)", ""),
        ("time.sleep(60)", ""),
        ("def test_a(rng): rng.normal()", ""),
        ("'a,b'.split(',')", ""),
    ],
)
def test_habits__a_habit_is_found(source, habit):
    assert {name for name, _ in habits(source)} == ({habit} if habit else set())


def test_habits__no_test_has_one_of_them():
    found = []
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name != "tests/test_habits.py":
            lines = habits(path.read_text("utf-8"))
            found += [f"{name}:{line}: {habit}" for habit, line in sorted(lines) if (name, habit) not in ALLOWED]
    assert not found, "\n".join(found)


def test_habits__what_is_allowed_is_still_there():
    unused = [
        (name, habit)
        for name, habit in ALLOWED
        if habit not in {each for each, _ in habits((ROOT / name).read_text("utf-8"))}
    ]
    assert not unused
