"""What a page is made of: tables, figures, menus, folds, terms and pictures, in sections of a story."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nescio.report.tables import Table, explained_once

LONG = 24  # lines of a table above which the page folds it


@dataclass(frozen=True)
class Figure:
    """A chart, made when it is written; its title, and how to read it.

    points  what it shows, one row per mark, columns called as its axes; none: what the chart itself holds
    kind    its class on the page, by which the style sheet gives it room
    """

    key: str
    title: str
    words: str
    chart: Callable[[], Any]
    points: Sequence[Mapping[str, Any]] = ()
    kind: str = "study"


@dataclass(frozen=True)
class Panel:
    """Figures side by side; a menu of `options` sets the parameter `chosen` of those that have one."""

    figures: Sequence[Figure]
    words: str = ""
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Choice:
    """Blocks of which a reader sees one option's at a time."""

    words: str
    options: Mapping[str, Sequence[Block]]


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Terms:
    """Names with a sentence about each."""

    entries: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Prose:
    """Sentences; `lead` stands out, other text is a note."""

    sentences: Sequence[str]
    lead: bool = False


@dataclass(frozen=True)
class Gallery:
    """Pictures in order: a PNG, what it is called, and a number to stand below it; `wide`: four in a line."""

    pictures: tuple[tuple[bytes, str, str], ...]
    wide: bool = False


Block = Table | Figure | Panel | Choice | Fold | Terms | Prose | Gallery
Made = Block | Sequence[Block] | None  # what a report returns: one block, several, or nothing


@dataclass(frozen=True)
class Section:
    """One question and its answer; `link` is its short name at the top of the page (none: not listed there).

    model  this section is about one of several models: folded, under an anchor of its own
    """

    link: str
    title: str
    blocks: Sequence[Block]
    words: str = ""
    model: bool = False


@dataclass(frozen=True)
class Story:
    """What a page shows, first things first. Every figure has a key of its own."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    footer: Sequence[str] = ()
    made: Sequence[str] = ()  # how it was made (default: by the command that writes the page, now)

    def __post_init__(self) -> None:
        keys: set[str] = set()
        for figure in figures_of(self):
            if figure.key in keys:
                raise ValueError(f"Two figures have the key {figure.key!r}; give one of them another key.")
            keys.add(figure.key)


# ---- looking into blocks


def flat(made: Iterable[Made]) -> list[Block]:
    """What reports returned as one list of blocks, without the empty ones."""
    blocks: list[Block] = []
    for part in made:
        if isinstance(part, Sequence):
            blocks += flat(part)
        elif part is not None and (kept := _kept(part)) is not None:
            blocks.append(kept)
    return blocks


def _kept(block: Block) -> Block | None:
    """The block without its empty parts; None where nothing is left."""
    if isinstance(block, Fold):
        inside = flat(block.blocks)
        return replace(block, blocks=inside) if inside else None
    if isinstance(block, Choice):
        options = {name: blocks for name, own in block.options.items() if (blocks := flat(own))}
        return replace(block, options=options) if options else None
    content = {Table: "lines", Panel: "figures", Terms: "entries", Prose: "sentences", Gallery: "pictures"}
    name = content.get(type(block))
    return block if name is None or getattr(block, name) else None


def within(blocks: Iterable[Block]) -> Iterator[Block]:
    """These blocks and all that lie inside them, in order."""
    for block in blocks:
        yield block
        if isinstance(block, Choice):
            for inside in block.options.values():
                yield from within(inside)
        elif isinstance(block, Fold):
            yield from within(block.blocks)
        elif isinstance(block, Panel):
            yield from block.figures


def blocks_of(source: Story | Table | Iterable[Block]) -> Iterator[Block]:
    """Every block of a story, or of these blocks, in order."""
    if isinstance(source, Table):
        return iter([source])
    if isinstance(source, Story):
        return within(block for section in source.sections for block in section.blocks)
    return within(source)


def tables_of(source: Story | Table | Iterable[Block]) -> list[Table]:
    """Every table, in order, those in folds and menus included."""
    return [block for block in blocks_of(source) if isinstance(block, Table)]


def figures_of(source: Story | Iterable[Block]) -> list[Figure]:
    """Every figure, in order."""
    return [block for block in blocks_of(source) if isinstance(block, Figure)]


# ---- changing blocks


def changed(blocks: Iterable[Block], change: Callable[[Block], Block | None]) -> list[Block]:
    """The blocks with `change` made to every block that holds no others; None takes it out, and what it empties."""

    def inside(block: Block) -> Block | None:
        if isinstance(block, Fold):
            return replace(block, blocks=changed(block.blocks, change))
        if isinstance(block, Choice):
            return replace(block, options={name: changed(own, change) for name, own in block.options.items()})
        if isinstance(block, Panel):
            figures = [change(figure) for figure in block.figures]
            return replace(block, figures=[figure for figure in figures if isinstance(figure, Figure)])
        return change(block)

    return flat(inside(block) for block in blocks)


def without_figures(story: Story, reason: str) -> Story:
    """The story without its figures, and why, at the end."""
    sections = [
        replace(section, blocks=blocks)
        for section in story.sections
        if (blocks := changed(section.blocks, lambda block: None if isinstance(block, Figure) else block))
    ]
    return replace(story, sections=sections, footer=(*story.footer, reason))


def fold_tables(blocks: Iterable[Block]) -> list[Block]:
    """Figures to look at, their tables behind folds."""
    return [Fold(block.title, [block]) if isinstance(block, Table) else block for block in blocks]


def _folded(block: Block) -> Block:
    """Long tables, and menus of them, behind a fold."""
    if isinstance(block, Table) and len(block.lines) > LONG:
        return Fold(block.title, [block])
    if isinstance(block, Choice) and any(len(table.lines) > LONG for table in tables_of([block])):
        return Fold(f"Every line, by {block.words[:1].lower()}{block.words[1:]}", [block])
    return block


# ---- a story


SectionParts = tuple[str, str, Sequence[Made]] | tuple[str, str, Sequence[Made], str]  # link, title, blocks, words


def sections_of(parts: Iterable[SectionParts]) -> list[Section]:
    """Sections without empty ones; long tables are folded, and every metric is explained where it is first seen."""
    made = [Section(link, title, flat(blocks), "".join(words)) for link, title, blocks, *words in parts]
    return [replace(part, blocks=[_folded(block) for block in part.blocks]) for part in explained(made)]


def explained(sections: Iterable[Section]) -> list[Section]:
    """The sections without empty ones, with every metric explained where it is first seen."""
    known: set[str] = set()

    def once(block: Block) -> Block:
        return explained_once([block], known)[0] if isinstance(block, Table) else block

    made = [replace(section, blocks=changed(section.blocks, once)) for section in sections]
    return [section for section in made if section.blocks]
