"""The rooms of nescio and the arrows between them: imports, lazy ones included, only ever point to an earlier tier."""

import ast
import importlib
import inspect
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "nescio"
# A room may import the rooms of earlier lines. Torch may be imported from `trials` on.
TIERS = [
    "errors",
    "files progress",
    "specs",
    "option_help registry identity provenance",
    "rows options search",
    "work",
    "arrays",
    "predictions",
    "distributions metrics heads",
    "measures",
    "analysis",
    "report",
    "trials runtime layers backbones checkpoints",
    "datasets",
    "methods",
    "cuda_graph",
    "training probes",
    "networks",
    "predict",
    "testing",
    "evaluations",
    "benchmarks",
    "api",
    "commands",
    "cli",
]
TIER = {room: number for number, line in enumerate(TIERS) for room in line.split()}
WITHOUT_TORCH = [room for room, tier in TIER.items() if tier < TIER["trials"]]


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] not in ("__init__", "__main__"):
            yield path, parts


def imports(path):
    """(dotted module, name or None) of everything that a file imports from nescio."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nescio":
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "nescio":
                    yield alias.name, None
        elif isinstance(node, ast.Constant) and re.fullmatch(r"nescio(\.\w+)+\.?", str(node.value)):
            yield node.value.rstrip("."), None  # imported by its name, or a part of it


def room_of(module, name):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else name


def test_architecture__every_module_stands_in_a_room():
    assert {parts[0] for _, parts in modules()} == TIER.keys()


def test_architecture__the_page_on_architecture_lists_the_rooms_in_this_order():
    page = (ROOT / "docs" / "architecture.md").read_text().partition("| room |")[2].partition("\n\n")[0]
    lines = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in page.splitlines()[1:]]
    rooms = [room for line in lines for room in line]
    assert len(rooms) == len(set(rooms)) and set(rooms) == TIER.keys()
    assert [TIER[room] for room in rooms] == sorted(TIER.values())
    above, below = page.split("*torch may be imported from here on*")
    assert all(f"`{room}`" in (above if room in WITHOUT_TORCH else below) for room in TIER)


def test_architecture__arrows_point_to_earlier_tiers_only():
    wrong = []
    for path, parts in modules():
        for module, name in imports(path):
            room = room_of(module, name)
            if room in TIER and room != parts[0] and TIER[room] >= TIER[parts[0]]:
                wrong.append(f"{'.'.join(parts)} imports {module}.{name or ''}")
    assert not wrong, "\n".join(wrong)


def test_architecture__no_benchmark_imports_another():
    folder = SOURCE / "benchmarks"
    benchmarks = {each.name for each in folder.iterdir() if (each / "__init__.py").is_file()}
    wrong = []
    for benchmark in benchmarks:
        for path in (folder / benchmark).glob("*.py"):
            for module, name in imports(path):
                _, _, inside = f"{module}.{name or ''}".partition("nescio.benchmarks.")
                if inside.split(".")[0] in benchmarks - {benchmark}:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {module}.{name or ''}")
    assert len(benchmarks) > 8 and not wrong, "\n".join(wrong)


def test_architecture__nothing_private_crosses_a_wall():
    wrong = []
    for path, parts in modules():
        for module, name in imports(path):
            private = [
                part for part in (*module.split("."), name or "") if part.startswith("_") and part != "__version__"
            ]
            if private and room_of(module, name) != parts[0]:
                wrong.append(f"{'.'.join(parts)} imports {module}.{name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_architecture__the_rooms_above_the_line_leave_torch_out(room):
    code = (
        "import importlib, pkgutil, sys\n"
        f"room = importlib.import_module('nescio.{room}')\n"
        "for each in pkgutil.walk_packages(getattr(room, '__path__', []), room.__name__ + '.'):\n"
        "    importlib.import_module(each.name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_architecture__no_module_shares_the_name_of_what_its_package_exports():
    for path in SOURCE.rglob("__init__.py"):
        exported = next(
            (
                {element.value for element in node.value.elts}
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
            ),
            set(),
        )
        inside = {each.stem for each in path.parent.glob("*.py")} | {
            each.name for each in path.parent.iterdir() if (each / "__init__.py").is_file()
        }
        package = importlib.import_module(".".join(("nescio", *path.parent.relative_to(SOURCE).parts)))
        hidden = {name for name in exported & inside if not inspect.ismodule(getattr(package, name))}
        assert not hidden, f"{path}: {hidden}"


def test_architecture__no_class_name_has_two_meanings():
    seen = {}
    for path, parts in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(".".join(parts))
    allowed = {"Options", "Plan"}  # of each command, of each benchmark
    twice = {name: places for name, places in seen.items() if len(places) > 1 and name not in allowed}
    assert not twice, twice


def test_architecture__names_are_words_of_the_field():
    """The field's own words, as the glossary in docs/architecture.md has them."""
    strange = {"asked", "told", "held", "How", "Look", "Told", "Asked"}
    wrong = []
    for path, parts in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(node, word, None) for word in ("name", "id", "arg", "attr")]
            wrong += [f"{'.'.join(parts)}:{node.lineno} {name}" for name in names if str(name).lstrip("_") in strange]
    assert not wrong, "\n".join(wrong)


def test_architecture__prose_is_plain():
    words = (
        r"\basked\b|where nobody says|\bleave \S+ away\b|\b(one|number|dump|file) an? (model|row|line|pixel|image)\b"
    )
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *SOURCE.rglob("*.py")]
    wrong = {path.name: phrase[0] for path in paths if (phrase := re.search(words, path.read_text()))}
    assert not wrong, wrong


def test_architecture__tests_mirror_the_source():
    folders = {path.parent.relative_to(ROOT / "tests").parts for path in (ROOT / "tests").rglob("test_*.py")}
    for parts in folders:
        known = SOURCE.joinpath(*parts).is_dir() or ROOT.joinpath(*parts).is_dir()  # results/ has tests too
        known = known or parts[:1] == ("cluster",)  # launchers on real engines
        assert known, f"tests/{'/'.join(parts)} has no room of its name"


def test_architecture__errors_of_the_library_name_fields_not_options():
    """`nescio.options` adds the option; sentences in backticks may contain whole commands."""
    wrong = []
    command = "plugin|head|training-data|ood-data|output"  # in backticks
    for path, parts in modules():
        if parts[0] in ("commands", "options", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            texts = ast.walk(node) if isinstance(node, ast.Raise) else ()
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str) and "nescio " not in text.value:
                    option = re.search(rf"(?<![\w`])--(?!{command})([a-z][\w-]*|$)", text.value)
                    wrong += [f"{path.relative_to(ROOT)}:{text.lineno} {option[0]}"] if option else []
    assert not wrong, "\n".join(wrong)
