"""The vocabulary of nescio: names, prose and assertions. A list of rooms that are not done yet only ever shrinks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "nescio"
# Words that name nothing of the domain: as a parameter, attribute, function, class, or local of a longer function.
VAGUE = {
    "own",
    "part",
    "place",
    "made",
    "found",
    "known",
    "wanted",
    "shown",
    "given",
    "here",
    "each",
    "about",
    "at",
    "of",
    "words",
    "together",
    "judged",
    "taught",
    "untaught",
    "doubt",
    "sure",
    "surer",
    "alive",
}
# Phrases for which docs/glossary has a word of the field.
PRIVATE = (
    r"\btaught\b|\buntaught\b|\bsurer\b|\bsurest\b|cannot be told|\bjudged?\b|"
    r"\bfrom \d+ on\b|\bone an? (row|line|model)\b|"
    r"(?<!\.)\bdumps?\b|\brecipes?\b|so many (rows|images)|no say in|\bwhere nobody\b"
)
NAMES_PENDING = {
    "benchmarks/shift",
}
PROSE_PENDING: set[str] = set()
ASSERTIONS_PENDING = {
    "benchmarks/sensitivity",
    "benchmarks/shift",
    "benchmarks/url",
    "test_aliases",
    "test_cli",
    "test_options",
    "test_plugin",
    "test_rows",
    "test_scale",
    "test_specs",
}
LONG = 500  # lines of a module
LONG_PENDING = {
    "base",
    "reports",
    "steps",
}


def is_pending(path: Path, folder: Path, pending: set[str]) -> bool:
    """Whether a room, or a folder or module of it, is not done yet."""
    relative = path.relative_to(folder)
    return any(part.as_posix().removesuffix(".py") in pending for part in (relative, *relative.parents))


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, identifier) of every function, class, parameter and attribute, and of the locals of longer functions."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if isinstance(node, ast.FunctionDef):
                    yield argument.lineno, argument.arg
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or node.lineno) - node.lineno > 5:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.lineno, inner.id
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.lineno, statement.target.id
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_language__identifiers_are_nouns_of_the_domain_or_verbs() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        if not is_pending(path, SOURCE, NAMES_PENDING):
            found = {pair for pair in named(ast.parse(path.read_text())) if pair[1].lstrip("_") in VAGUE}
            wrong += [f"{path.relative_to(ROOT)}:{line} {name}" for line, name in sorted(found)]
    assert not wrong, "\n".join(wrong)


def test_language__prose_uses_the_vocabulary() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if not is_pending(path, SOURCE, PROSE_PENDING)]
    paths += [path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md"]
    paths += [ROOT / "README.md"]
    wrong = []
    for path in paths:
        text = re.sub(r"<!-- generated: .+? -->.*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
        for number, line in enumerate(text.splitlines(), 1):
            in_keys = re.search(r"\btag\(|in_keys", line)  # names in the keys and seeds of finished studies stay
            if (match := re.search(PRIVATE, line)) and not in_keys:
                wrong.append(f"{path.relative_to(ROOT)}:{number} {match[0]}")
    assert not wrong, "\n".join(wrong)


def prose(text: str) -> str:
    """A page without code, links and generated parts."""
    text = re.sub(r"<!-- generated: .+? -->.*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def second_words() -> list[str]:
    """The last column of docs/glossary.md: words that have a better one."""
    rows = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    return [word for row in rows[2:] for word in row.split(", ") if word != "–"]


def test_language__documents_use_one_word_per_concept() -> None:
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, second_words()))})(s|ed)?\b", re.IGNORECASE)
    wrong = []
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        if path.name != "glossary.md":
            wrong += [f"{path.name}: {match[0]}" for match in pattern.finditer(prose(path.read_text("utf-8")))]
    assert not wrong, "\n".join(sorted(wrong))


def test_language__second_words_are_read_from_the_glossary() -> None:
    assert {"dump", "recipe", "protocol", "answer"} <= set(second_words())


def asserted(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings inside of assertions and of `match=`."""
    for node in ast.walk(tree):
        holders: list[ast.AST] = []
        if isinstance(node, ast.Assert):
            holders = [node.test]
        elif isinstance(node, ast.keyword) and node.arg == "match":
            holders = [node.value]
        for holder in holders:
            for inner in ast.walk(holder):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def test_language__assertions_hold_names_and_numbers_not_sentences() -> None:
    sentence = re.compile(r"\b[a-z]+( [a-z]+){3,}\b")
    wrong = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        if is_pending(path, ROOT / "tests", ASSERTIONS_PENDING):
            continue
        for line, text in asserted(ast.parse(path.read_text())):
            if match := sentence.search(text):
                wrong.append(f"{path.relative_to(ROOT)}:{line} {match[0]!r}")
    assert not wrong, "\n".join(wrong)


def test_language__modules_are_short() -> None:
    long = {path.stem: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    wrong = {name: length for name, length in long.items() if length > LONG and name not in LONG_PENDING}
    assert not wrong, wrong


def test_language__signatures_with_any_become_fewer() -> None:
    """`Any` stands only where a type is not known; the limit only ever falls."""
    count = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                notes = [argument.annotation for argument in arguments] + [node.returns]
                count += any(
                    isinstance(inner, ast.Name) and inner.id == "Any"
                    for note in notes
                    if note
                    for inner in ast.walk(note)
                )
    assert count <= 1000, count
