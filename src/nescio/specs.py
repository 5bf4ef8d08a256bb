"""The grammar of texts that name data, networks, predictions, classes and settings: docs/names.md has every form.

    NAME=VALUE        a name for a value             svhn=svhn.npz
    KIND:LOCATION     a file, a folder or a key      npz:images.npz, store:1f2e3d4c5b6a7988
    A,B               a list                         erm,mc-dropout
    BASE@DETAIL       a file, a size or a number     resnet50@best.pth, folder:cats@64, sac@0.95
    DATA#CLASSES      some classes of a dataset      cifar100#0-49,60

Separators inside of paths that exist, and inside of double quotes, separate nothing.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from nescio.errors import BadInput

SEPARATORS = "=:,@#"
QUOTE = '"'
LONGEST_NAME = 255  # letters in the name of a file
MOST_NUMBERS = 1_000_000  # in a list such as 0-5,7
STORE, SIBLINGS, TORCHVISION = "store", "siblings", "torchvision"  # kinds of networks; timm's have none
ZOO = "zoo"  # kind of the predictions that a store contains
FILE = "file"  # kind of weights that a training starts from; others are in a store
NAMED = re.compile(r'(?:[^,=:/]+:)?[^,=:/]+=|"(?:[^"]|"")*"=')  # [GROUP:]NAME=, where the next value begins
RANGE = re.compile(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", re.ASCII)
CONTINUED = re.compile(r"\s*\d+(-\d+)?\s*(#\s*\d+(-\d+)?\s*)*", re.ASCII)  # of a list of classes, behind a comma


class SpecError(BadInput):
    """A text that does not follow the grammar: it names the text, the position of the mistake and a form that works."""

    def __init__(self, text: str, position: int, problem: str, form: str, option: str = "") -> None:
        self.text, self.position, self.problem, self.form, self.option = text, position, problem, form, option
        brief = text if len(text) <= 120 else f"{text[:120]}…"
        position_text = f", character {position + 1}" if position else ""
        super().__init__(f"{f'{option}: ' if option else ''}{brief!r}{position_text}: {problem}; write {form}.")

    def __reduce__(self) -> Any:
        return type(self), (self.text, self.position, self.problem, self.form, self.option)

    def with_option(self, option: str) -> SpecError:
        """The same error with the name of the option."""
        return type(self)(self.text, self.position, self.problem, self.form, option)


# ---- separators, paths and quotes


class Quoted(str):
    """A text that was in double quotes: it is not split any further."""


def split(text: str, *separators: str) -> list[str]:
    """Split a text at some of the SEPARATORS, except inside of paths that exist and of double quotes.

    A path or quote begins at the start or after a separator of any kind; a path reaches as far as something exists.
    """
    if isinstance(text, Quoted):
        return [text]
    pieces, start, end = [], 0, _end_of_value(text, 0)
    for position, letter in enumerate(text):
        if position >= end and letter in SEPARATORS:
            end = _end_of_value(text, position + 1)
            if letter in separators:
                pieces.append(text[start:position])
                start = position + 1
    return [*pieces, text[start:]]


def _end_of_value(text: str, start: int) -> int:
    """The end of the path that exists, or of the quotes, from a position of a text; else the position itself."""
    end = _end_of_path(text, start)
    if end > start or not text.startswith(QUOTE, start):
        return end
    closing = re.compile(r'"(?:[^"]|"")*"(?=[=:,@#]|$)', re.DOTALL).match(text, start)
    if closing is None:
        raise SpecError(text, start, "the quote is not closed", 'quotes around a whole name or path, "a,b.npz"')
    return closing.end()


def _end_of_path(text: str, start: int) -> int:
    """The end of the longest path that exists from a position of a text; the position itself if none exists."""
    end = name = start
    while (slash := text.find(os.sep, name)) >= 0 and os.path.isdir(os.path.expanduser(text[start : slash + 1])):
        end, name = slash, slash + 1
    for position in range(name + 1, min(len(text), name + LONGEST_NAME) + 1):
        ends = position == len(text) or text[position] in SEPARATORS
        if ends and os.path.exists(os.path.expanduser(text[start:position])):
            end = position
    return end


def unquote(text: str) -> str:
    """The text without the quotes around it."""
    if isinstance(text, Quoted) or not re.fullmatch(r'"(?:[^"]|"")*"', text, re.DOTALL) or os.path.exists(text):
        return text
    return Quoted(text[1:-1].replace('""', QUOTE))


def quote(text: str) -> str:
    """The text in double quotes; those inside are doubled."""
    return QUOTE + text.replace(QUOTE, '""') + QUOTE


# ---- lists and names


def items(text: str) -> list[str]:
    """A,B → [A, B]; numbers after DATA#0-4,7 belong to DATA."""
    listed: list[str] = []
    numbered = False  # the last item ends with #NUMBERS
    for piece in split(text, ","):
        if numbered and CONTINUED.fullmatch(piece):
            listed[-1] += f",{piece}"
            continue
        listed.append(piece)
        selections = split(piece, "#")[1:]
        numbered = bool(selections and RANGE.fullmatch(selections[-1]))
    return [unquote(item) for item in listed]


def write_items(values: Iterable[str]) -> str:
    """The text that `items` reads as these values, in quotes where they need some."""
    return _written(list(values), ",", items)


def assignment(text: str) -> tuple[str, str]:
    """NAME=VALUE → (NAME, VALUE); a text without a name → ("", text)."""
    name, *values = split(text, "=")
    value = "=".join(values)
    return (unquote(name), unquote(value)) if name and value else ("", unquote(text))


def write_assignment(name: str, value: str) -> str:
    """The text that `assignment` reads as this name and value, in quotes where they need some."""
    return _written([name, value], "=", lambda text: list(assignment(text)))


def _written(values: list[str], separator: str, read: Callable[[str], list[str]]) -> str:
    for text in (values, [quote(value) if set(value) & {*SEPARATORS, QUOTE} else value for value in values]):
        with_separators = separator.join(text)
        try:
            if read(with_separators) == values:
                return with_separators
        except SpecError:
            continue
    return separator.join(map(quote, values))


def assignments(text: str) -> list[str]:
    """NAME=A,B,NAME=C → [NAME=A,B, NAME=C]: values may contain commas."""
    pairs: list[str] = []
    for piece in split(text, ","):
        if pairs and not NAMED.match(piece):
            pairs[-1] += f",{piece}"
        else:
            pairs.append(piece)
    return pairs


def mapping(texts: Iterable[str], form: str = "NAME=VALUE", option: str = "") -> dict[str, str]:
    """[NAME=VALUE, …] → {NAME: VALUE}; refuses texts without a name, and a name that is given twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, value = assignment(text)
        if not name:
            raise SpecError(text, 0, "there is no name before =", form, option)
        if name in values:
            raise SpecError(text, 0, f"{name!r} is given twice", f"every name once, {form}", option)
        values[name] = value
    return values


def group_of(name: str) -> str:
    """GROUP of the name GROUP:NAME; empty if there is none."""
    group, colon, rest = name.partition(":")
    return group if colon and group and rest else ""


# ---- numbers


def numbers(text: str, what: str = "class numbers") -> tuple[int, ...]:
    """0-5,7 → (0, 1, 2, 3, 4, 5, 7)."""
    listed: list[int] = []
    position = 0
    for word in text.split(",") if text else []:
        match = RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            problem = "the range counts down" if match else f"this is not a list of {what}"
            raise SpecError(text, position, problem, "numbers and rising ranges, such as 0-5,7")
        if last - first >= MOST_NUMBERS - len(listed):
            raise SpecError(text, position, f"it lists more than {MOST_NUMBERS:,} {what}", "those that exist")
        listed += range(first, last + 1)
        position += len(word) + 1
    return tuple(listed)


def write_numbers(values: Iterable[int]) -> str:
    """(7, 8, 9, 11) → 7-9,11."""
    spans: list[list[int]] = []
    for value in values:
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


# ---- kinds


def source(text: str) -> tuple[str, str]:
    """KIND:LOCATION → (KIND, LOCATION); a text without a kind → ("", text)."""
    kind, colon, location = text.partition(":")
    return (kind, unquote(location)) if colon and kind and not isinstance(text, Quoted) else ("", text)


def sources(text: str) -> dict[str, str]:
    """KIND:LOCATION,… → {KIND: LOCATION}; nothing if the text is a path that exists, or an item has no kind."""
    pairs = [] if Path(text).exists() else [source(item) for item in items(text)]
    return dict(pairs) if all(kind for kind, _ in pairs) else {}


def location_of(kind: str, text: str) -> str | None:
    """LOCATION of KIND:LOCATION of this kind; None for other texts and for a path that exists."""
    kind_of_text, location = source(text)
    return location if kind_of_text == kind and not Path(text).exists() else None


# ---- datasets


class DatasetName(NamedTuple):
    """The parts of a dataset's name, `KIND:PATH@SIZE`; a path or a size that is not given is None."""

    kind: str
    path: str | None
    size: str | None

    @classmethod
    def parse(cls, text: str) -> DatasetName:
        """A path may contain colons and @; a text of another form is a name as a whole."""
        match = re.fullmatch(r"([^:@]*)(?::(.*?))?(?:@(\d+))?", text, re.DOTALL)
        return cls(*match.groups()) if match else cls(text, None, None)

    def with_path(self, path: str | PurePath) -> str:
        """The name of a set of the same kind and size at another path."""
        return f"{self.kind}:{path}" + ("" if self.size is None else f"@{self.size}")


def split_severity(path: str) -> tuple[str, str]:
    """PATH#SHIFT/SEVERITY → (PATH, SHIFT/SEVERITY); a folder's name may contain a #."""
    match = re.fullmatch("(.*)#([^#/]+/[^#/]+)", path, re.DOTALL)
    return (match[1], match[2]) if match else (path, "")


def class_lists(text: str) -> tuple[str, list[str]]:
    """DATA#CLASSES#CLASSES → (DATA, [CLASSES, CLASSES])."""
    data, *lists = split(text, "#")
    return data, lists


def selections(text: str, count: int) -> list[str]:
    """DATA#A#B, of which `count` texts follow the data → [DATA, A, B]: # is also allowed in DATA."""
    pieces = text.rsplit("#", count)
    if len(pieces) != count + 1:
        form = "DATA#" + "#".join(["0-4", "5", "0"][:count])
        raise SpecError(text, len(text), f"{count} lists or numbers after # are needed", form)
    return pieces


def select(kind: str, data: str, *selected: str) -> str:
    """The inverse of `selections`, with a kind: KIND:DATA#A#B."""
    return f"{kind}:{'#'.join([data, *selected])}"


# ---- networks and methods


class NetworkName(NamedTuple):
    """The parts of a network's name: NAME, NAME@FILE, torchvision:NAME@FILE, store:KEY or siblings:KEY."""

    kind: str  # "" of timm
    name: str
    file: str | None = None  # its weights

    @classmethod
    def parse(cls, text: str) -> NetworkName:
        kind, name = source(text)
        if kind in (STORE, SIBLINGS):
            return cls(kind, name)
        bare, separator, file = text.partition("@")
        kind, name = source(bare)
        kind, name = (kind, name) if kind == TORCHVISION else ("", bare)
        return cls(kind, name, unquote(file) if separator else None)

    @property
    def published(self) -> str:
        """The name without the file of weights."""
        return f"{self.kind}:{self.name}" if self.kind else self.name


def variant(text: str) -> tuple[str, str]:
    """BACKBONE:VARIANT, such as resnet50:max → (BACKBONE, VARIANT); VARIANT is empty if it is not given."""
    name, colon, rest = text.partition(":")
    if colon and not (name and rest):
        raise SpecError(text, len(name), "a backbone and a variant are needed on both sides", "resnet50:max")
    return name, rest


def method_on(text: str) -> tuple[str, str]:
    """METHOD/BACKBONE → (METHOD, BACKBONE)."""
    method, slash, backbone = text.partition("/")
    if not (method and slash and backbone):
        raise SpecError(text, 0, "a method and a backbone are needed", "METHOD/BACKBONE, such as erm/resnet18")
    return method, backbone


class HyperParameter(NamedTuple):
    """A hyper-parameter of one method: METHOD.FIELD=VALUE."""

    method: str
    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> HyperParameter:
        match = re.fullmatch(r"([^.=]+)\.([^.=]+)=(.+)", text, re.DOTALL)
        if not match:
            raise SpecError(text, 0, "this sets no field of a method", "METHOD.FIELD=VALUE, such as sngp.bound=100")
        return cls(*match.groups())


def literal(text: str) -> Any:
    """The number, truth value, None or tuple that a text is in Python; else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def counts(text: str) -> dict[str, int]:
    """NAME=N,NAME=N → {NAME: N}."""
    count_texts = mapping(items(text), "NAME=N, such as moco=3")
    for name, count in count_texts.items():
        if not re.fullmatch(r"\d{1,18}", count, re.ASCII):
            raise SpecError(text, text.find(f"{name}=") + len(name) + 1, f"{count!r} is not a number", "NAME=N")
    return {name: int(count) for name, count in count_texts.items()}


def product(text: str) -> tuple[int, int]:
    """PARTSxIMAGES, such as 21x96 → (21, 96)."""
    match = re.fullmatch(r"([1-9]\d{0,17})x([1-9]\d{0,17})", text, re.ASCII)
    if not match:
        raise SpecError(text, 0, "two whole numbers above 0 are needed", "PARTSxIMAGES, such as 21x96")
    return int(match[1]), int(match[2])


def parameter(text: str) -> tuple[str, float | int | None]:
    """METRIC@VALUE, such as sac@0.95 → (METRIC, VALUE); the value is None if it is not given."""
    name, separator, value = text.partition("@")
    if not separator:
        return name, None
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise SpecError(text, len(name) + 1, f"{value!r} is not a number", "METRIC@NUMBER, such as sac@0.95") from None
