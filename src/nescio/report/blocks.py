"""Blocks of a page: tables, figures, tabs, details, definitions and pictures, in the sections of a story."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nescio.report.tables import Table, drop_repeated_legends
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.charts.style import Chart

LONG = 24  # rows above which a page collapses a table


@dataclass(frozen=True)
class Figure:
    """A chart, built when it is written, with its title and caption.

    points  the plotted data, one row per mark, with the axes as columns (default: the data of the chart)
    kind    class of the figure in the style sheet, which sets its size
    """

    key: str
    title: str
    caption: str
    chart: Callable[[], Chart]
    points: Sequence[Row] = ()
    kind: str = "study"


@dataclass(frozen=True)
class Panel:
    """Figures side by side; a menu of `options` sets the chart parameter `chosen`."""

    figures: Sequence[Figure]
    label: str = ""
    options: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.figures)

    def children(self) -> Iterable[Block]:
        """Return the figures."""
        return self.figures

    def map(self, change: Change) -> Panel:
        """Return the panel with changed figures."""
        figures = map_blocks(self.figures, change)
        return replace(self, figures=[figure for figure in figures if isinstance(figure, Figure)])


@dataclass(frozen=True)
class Tabs:
    """Blocks of several options; a menu shows those of one option."""

    label: str
    options: Mapping[str, Sequence[Block]]

    def __bool__(self) -> bool:
        return bool(self.options)

    def children(self) -> Iterable[Block]:
        """Return the blocks of all options."""
        return [block for blocks in self.options.values() for block in blocks]

    def map(self, change: Change) -> Tabs:
        """Return the tabs with changed blocks, without empty options."""
        options = {name: map_blocks(blocks, change) for name, blocks in self.options.items()}
        return replace(self, options={name: blocks for name, blocks in options.items() if blocks})


@dataclass(frozen=True)
class Details:
    """Collapsed blocks under a title."""

    title: str
    blocks: Sequence[Block]

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def children(self) -> Iterable[Block]:
        """Return the collapsed blocks."""
        return self.blocks

    def map(self, change: Change) -> Details:
        """Return the details with changed blocks."""
        return replace(self, blocks=map_blocks(self.blocks, change))


@dataclass(frozen=True)
class Definitions:
    """Names with a sentence for each."""

    entries: Sequence[tuple[str, str]]
    title: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries)


@dataclass(frozen=True)
class Prose:
    """Sentences; `lead` sets them in large type."""

    sentences: Sequence[str]
    lead: bool = False

    def __bool__(self) -> bool:
        return bool(self.sentences)


@dataclass(frozen=True)
class Gallery:
    """Pictures in order: PNG, name, and the number below it; `wide` puts four in a row."""

    pictures: tuple[tuple[bytes, str, str], ...]
    wide: bool = False

    def __bool__(self) -> bool:
        return bool(self.pictures)


Block = Table | Figure | Panel | Tabs | Details | Definitions | Prose | Gallery
Blocks = Block | Sequence[Block] | None  # result of a report: one block, several, or none
Change = Callable[[Block], Block | None]
CONTAINERS = (Panel, Tabs, Details)


@dataclass(frozen=True)
class Section:
    """Blocks under a title; `link` is the section's name in the page's navigation (empty: not listed).

    intro  text before the blocks
    model  whether the section is about one of several models; the page collapses it
    """

    link: str
    title: str
    blocks: Sequence[Block]
    intro: str = ""
    model: bool = False


@dataclass(frozen=True)
class Story:
    """Content of a page, most important first. Every figure has a unique key."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    footer: Sequence[str] = ()
    provenance: Sequence[str] = ()  # commands that produced it (default: the current one, when the page is written)

    def __post_init__(self) -> None:
        keys: set[str] = set()
        for figure in figures_of(self):
            if figure.key in keys:
                raise ValueError(f"Two figures have the key {figure.key!r}; give one of them another key.")
            keys.add(figure.key)


# ---- traversal


def walk(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield these blocks and all blocks inside them, in order."""
    for block in blocks:
        yield block
        if isinstance(block, CONTAINERS):
            yield from walk(block.children())


def walk_blocks(source: Story | Table | Iterable[Block]) -> Iterator[Block]:
    """Yield every block of a story, a table or blocks, in order."""
    if isinstance(source, Table):
        return iter([source])
    if isinstance(source, Story):
        return walk(block for section in source.sections for block in section.blocks)
    return walk(source)


def tables_of(source: Story | Table | Iterable[Block]) -> list[Table]:
    """Return every table in order, including those in details and tabs."""
    return [block for block in walk_blocks(source) if isinstance(block, Table)]


def figures_of(source: Story | Iterable[Block]) -> list[Figure]:
    """Return every figure in order."""
    return [block for block in walk_blocks(source) if isinstance(block, Figure)]


def map_blocks(blocks: Iterable[Block], change: Change) -> list[Block]:
    """Apply `change` to every block that contains no others; None and empty blocks are removed."""
    changed = (block.map(change) if isinstance(block, CONTAINERS) else change(block) for block in blocks)
    return [block for block in changed if block]


def flatten(results: Iterable[Blocks]) -> list[Block]:
    """Return the results of reports as one list of blocks, without empty ones."""
    blocks: list[Block] = []
    for result in results:
        if isinstance(result, Sequence):
            blocks += flatten(result)
        elif result is not None:
            blocks += map_blocks([result], lambda block: block)
    return blocks


def without_figures(story: Story, reason: str) -> Story:
    """Return the story without its figures, with the reason in the footer."""
    sections = [
        replace(section, blocks=blocks)
        for section in story.sections
        if (blocks := map_blocks(section.blocks, lambda block: None if isinstance(block, Figure) else block))
    ]
    return replace(story, sections=sections, footer=(*story.footer, reason))


def collapse_tables(blocks: Iterable[Block]) -> list[Block]:
    """Collapse the tables among these blocks."""
    return [Details(block.title, [block]) if isinstance(block, Table) else block for block in blocks]


# ---- sections


SectionSpec = tuple[str, str, Sequence[Blocks]] | tuple[str, str, Sequence[Blocks], str]  # link, title, blocks, intro


def sections_of(specs: Iterable[SectionSpec]) -> list[Section]:
    """Return the sections that have blocks; long tables are collapsed, and each metric is described once."""
    sections = [Section(link, title, flatten(blocks), "".join(intro)) for link, title, blocks, *intro in specs]
    sections = trim_legends(sections)
    return [replace(section, blocks=[_collapse_long(block) for block in section.blocks]) for section in sections]


def trim_legends(sections: Iterable[Section]) -> list[Section]:
    """Return the sections that have blocks, with each metric described in the first table that shows it."""
    seen: set[str] = set()

    def describe_once(block: Block) -> Block:
        return drop_repeated_legends([block], seen)[0] if isinstance(block, Table) else block

    changed_sections = [replace(section, blocks=map_blocks(section.blocks, describe_once)) for section in sections]
    return [section for section in changed_sections if section.blocks]


def _collapse_long(block: Block) -> Block:
    """Collapse long tables, and tabs of them."""
    if isinstance(block, Table) and len(block.rows) > LONG:
        return Details(block.title, [block])
    if isinstance(block, Tabs) and any(len(table.rows) > LONG for table in tables_of([block])):
        return Details(f"Every row, by {block.label[:1].lower()}{block.label[1:]}", [block])
    return block
