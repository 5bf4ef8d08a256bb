"""A study's rows told to people: a few tables on the terminal; page, tables, rows and plan in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nescio.errors import BadInput
from nescio.report._figures import PAPER, config
from nescio.report._page import Block, Choice, Figure, Fold, Section, Story, story_page
from nescio.report._tables import Table, explained_once
from nescio.report._text import csv_text, grid, json_text, latex, markdown, tables_csv, terminal
from nescio.rows import Row, from_parquet, to_parquet

# protocol → the module whose `story(told)` and `first_look(told)` know its questions
TELLERS = {
    "uimnet": "nescio.protocols._uimnet_tables",
    "selective": "nescio.protocols._selective_reports",
    "cood": "nescio.protocols._cood_reports",
    "reliability": "nescio.protocols._reliability_reports",
}
ROWS, PLAN = "rows.parquet", "plan.json"
SEEN = ("value", "low", "high", "n")  # columns of a row that say what was seen, not of what
WIDTH = 620  # pixels of a figure that stands alone
UNDRAWN = (
    "The figures are left out: Altair and vl-convert are not installed where this page was written. "
    "`nescio report rows.parquet` draws them on a machine that has them."
)


@dataclass
class Told:
    """What a study leaves behind, as plain values."""

    rows: list[Row]
    plan: dict[str, Any] = field(default_factory=dict)  # empty: nobody wrote it down
    reasons: list[Row] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)  # (task, reason)
    notes: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)  # versions with which the rows were made
    parts: list[dict[str, Any]] = field(default_factory=list)  # the plans of studies that were joined

    @property
    def protocol(self) -> str:
        return next((str(row["protocol"]) for row in self.rows), "uimnet")

    @property
    def version(self) -> Any:
        return next((row["version"] for row in self.rows), None)

    def footer(self, command_of: Callable[[dict[str, Any]], str] | None = None) -> list[str]:
        """By what the rows and the page were made; `command_of` tells the command of a plan."""
        from nescio import __version__

        by = " and ".join(f"{name} {self.packages[name]}" for name in ("nescio", "torch") if name in self.packages)
        what = f"Protocol {self.protocol}, version {self.version}. " if self.rows else ""
        commands = [command_of(plan) for plan in self.parts or [self.plan]] if command_of else []
        made = [f"Made by `{command}`" for command in commands if command]
        return [f"{what}Page by nescio {__version__}.{f' Rows made with {by}.' if by else ''}", *made]


def told(study: Any) -> Told:
    """A protocol's Study (plan, rows, reasons, failures, notes) as plain values."""
    if isinstance(study, Told):
        return study
    from nescio.store import _environment

    plan = asdict(study.plan) if is_dataclass(study.plan) and not isinstance(study.plan, type) else dict(study.plan)
    return Told(
        study.rows,
        plan,
        study.reasons,
        [(failure.task.name, failure.reason) for failure in study.failures],
        study.notes,
        _environment()["packages"],
    )


def files(study: Any) -> dict[str, bytes]:
    """What a study can be told from again: its rows, and its plan with versions, failures, reasons and notes."""
    held = told(study)
    about = {name: getattr(held, name) for name in ("plan", "packages", "failures", "notes", "reasons")}
    about |= {"parts": held.parts} if held.parts else {}
    return {ROWS: to_parquet(held.rows), PLAN: json_text(about).encode()}


def read_study(path: str | Path) -> Told:
    """A study from its Parquet file of rows, or the folder that holds it; plan.json beside it says the rest."""
    path = Path(path)
    path = path / ROWS if path.is_dir() else path
    rows, beside = from_parquet(path), path.parent / PLAN
    if not rows:
        raise BadInput(f"{path} holds no rows: nothing was measured.")
    if not beside.is_file():
        return Told(rows)
    try:
        about = json.loads(beside.read_text("utf-8"))
        failures = [(str(name), str(reason)) for name, reason in about["failures"]]
        parts = about.get("parts", [])
        return Told(rows, about["plan"], about["reasons"], failures, about["notes"], about["packages"], parts)
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{beside} is not a plan that nescio wrote; move it away to do without it.") from None


def joined(studies: Sequence[Told]) -> Told:
    """Several studies of one protocol as one. Its plan is what all of them have in common."""
    first, *others = studies
    if not others:
        return first
    for other in others:
        if (other.protocol, other.version) != (first.protocol, first.version):
            raise BadInput(
                f"A study of {other.protocol}, version {other.version}, cannot be joined to one of {first.protocol}, "
                f"version {first.version}: their numbers do not mean the same."
            )
    return Told(
        _compatible([each.rows for each in studies]),
        _common([each.plan for each in studies]),
        _once(reason for each in studies for reason in each.reasons),
        list(dict.fromkeys(failure for each in studies for failure in each.failures)),
        list(dict.fromkeys(note for each in studies for note in each.notes)),
        _common([each.packages for each in studies]),
        [plan for each in studies for plan in each.parts or [each.plan]],
    )


def _compatible(studies: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of all, each once; refuses two values of the same thing, which tables would average."""
    known: dict[Any, Row] = {}
    for rows in studies:
        for row in rows:
            what = tuple(value for name, value in row.items() if name not in SEEN)
            if known.setdefault(what, row)["value"] != row["value"]:
                about = [row[name] for name in ("method", "backbone", "dataset", "split", "measure", "metric")]
                raise BadInput(
                    f"Two studies differ in {', '.join(str(each) for each in about if each is not None)}: "
                    f"{known[what]['value']:.6g} and {row['value']:.6g}. Join studies of other methods or other "
                    "data, or report them one by one."
                )
    return list(known.values())


def _once(rows: Iterable[Row]) -> list[Row]:
    return list({tuple(sorted((key, repr(value)) for key, value in row.items())): row for row in rows}.values())


def _common(these: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = these
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}


def print_study(study: Any) -> None:
    """The first look on the terminal: what was done, who knows what it does not know, and what helps."""
    from rich.console import Console
    from rich.text import Text

    held = told(study)
    module, console = _teller(held.protocol), Console()
    tables = explained_once(module.first_look(held))
    if not tables:
        console.print(Text("There is nothing to show: nothing was finished."))
        return
    console.print(Text(" ".join(module.lead(held))), end="\n\n")
    terminal(tables, console)
    for note in held.notes:
        console.print(Text(f"{note}\n", "dim"))


def write_study(study: Any, folder: str | Path, others: Mapping[str, str] | None = None) -> Path:
    """Writes index.html, rows.parquet, rows.csv, tables.md, tables.tex, tables.csv and plan.json; where the page is.

    others  pages that this one leads to: address → name
    """
    held, folder = told(study), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(held).items():
        (folder / name).write_bytes(content)
    story = story_of(held)
    tables = list(tables_of(story))
    texts = {"rows.csv": csv_text(held.rows), "tables.md": markdown(tables)}
    texts |= {"tables.tex": latex(tables), "tables.csv": tables_csv(tables)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return story_page(folder / "index.html", story if drawable() else _undrawn(story), others)


def story_of(held: Told) -> Story:
    """What the study's protocol has to tell."""
    story: Story = _teller(held.protocol).story(held)
    return story


# ---- single tables and figures, by name


Report = Callable[[Any], Any]  # rows → a block, or several; none where the rows do not say what it shows


def needs(words: str) -> Callable[[Report], Report]:
    """Marks a report with what its rows must hold, for those whose rows do not: `it needs …`."""

    def mark(report: Report) -> Report:
        report.needs = words  # type: ignore[attr-defined]
        return report

    return mark


def lacking(name: str, *studies: Any) -> str:
    """Why a report is empty, in one sentence."""
    words = getattr(_report(name, *studies)[1], "needs", None)
    return f"{name} is empty: {f'it needs {words}' if words else 'these rows do not say what it shows'}."


def named(study: Any, names: Sequence[str], *others: Any) -> dict[str, list[Block]]:
    """The tables and figures that a protocol gives a name to, such as table1 and fig5; all must be known.

    others  further studies: a name that the first one does not have is looked for there
    """
    found = {}
    for name in names:
        held, report = _report(name, study, *others)
        made = report(held.rows)
        found[name] = list(made) if isinstance(made, Sequence) else [made]
    return found


def _report(name: str, *studies: Any) -> tuple[Told, Report]:
    held = [told(each) for each in studies]
    for each in held:
        if name in (reports := _reports(each.protocol)):
            return each, reports[name]
    known = list(dict.fromkeys(word for each in held for word in _reports(each.protocol)))
    if not known:
        raise BadInput(f"The tables of protocol {held[0].protocol} have no names of their own; leave --only away.")
    other = next((protocol for protocol in TELLERS if name in _reports(protocol)), None)
    hint = f" Protocol {other} has one: `nescio run {other}` makes a study of it." if other else ""
    raise BadInput(f"There is no report named {name!r}.{hint} There are: {', '.join(known)}.")


def _reports(protocol: str) -> Mapping[str, Report]:
    return getattr(_teller(protocol), "REPORTS", {})


def write_named(reports: Mapping[str, Sequence[Block]], folder: str | Path) -> list[Path]:
    """Writes tables as NAME.md, .tex and .csv, figures as NAME.svg with their points in NAME-points.csv; which files.

    Of several figures, each has a number: NAME-1.svg, NAME-1-points.csv.
    """
    folder, written = Path(folder), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, blocks in reports.items():
        figures = [block for block in blocks if isinstance(block, Figure)]
        tables = list(within(blocks))
        texts = {f"{name}.md": markdown(tables), f"{name}.tex": latex(tables)} if tables else {}
        texts |= {f"{name}.csv": tables_csv(tables)} if tables else {}
        for number, figure in enumerate(figures):
            own = f"{name}-{number + 1}" if len(figures) > 1 else name
            texts |= _drawn(figure, own)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
            written.append(folder / file)
    return written


def _drawn(figure: Figure, name: str) -> dict[str, str]:
    """The chart in the colours of paper, and what it shows."""
    if not drawable():
        raise BadInput("Figures need Altair and vl-convert, which are not installed here: pip install nescio.")
    import vl_convert

    spec = paper(figure.chart().to_dict(validate=False))
    points = grid(figure.points, "csv") if figure.points else _longest(spec)
    return {f"{name}.svg": str(vl_convert.vegalite_to_svg(spec)), f"{name}-points.csv": points}


def paper(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart of the page as it stands alone: fixed colours in place of the page's, and a width of its own."""
    text = re.sub(r"var\(--(\w+)\)", lambda mark: PAPER[mark[1]], json.dumps(spec))
    return {**json.loads(text), "width": WIDTH, "config": config(PAPER)}


def _longest(spec: Any) -> str:
    """The longest data that a chart holds, as CSV."""
    return max(data_of(spec), key=len, default="")


def data_of(spec: Any) -> Iterator[str]:
    """Every table that a chart holds, as CSV: shared ones stand apart, others where they are used."""
    if isinstance(spec, dict):
        shared, own = spec.get("datasets"), spec.get("data")
        if isinstance(shared, dict):
            yield from (each for each in shared.values() if isinstance(each, str))
        if isinstance(own, dict) and isinstance(own.get("values"), str):
            yield own["values"]
    for inside in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from data_of(inside)


def drawable() -> bool:
    """Whether charts can be made here: machines that train may lack what draws."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))


def tables_of(story: Story) -> Iterator[Table]:
    """Every table of a story, in order."""
    for section in story.sections:
        yield from within(section.blocks)


def within(blocks: Sequence[Block]) -> Iterator[Table]:
    """Every table of these blocks, in order."""
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Choice):
            for inside in block.options.values():
                yield from within(inside)
        elif isinstance(block, Fold):
            yield from within(block.blocks)


def _undrawn(story: Story) -> Story:
    """The story without its figures; they are made nowhere but at the top of a section."""
    sections = []
    for section in story.sections:
        blocks = [block for block in section.blocks if not isinstance(block, Figure)]
        if blocks:
            sections.append(Section(section.link, section.title, blocks, section.words))
    return Story(story.title, story.lead, sections, (*story.footer, UNDRAWN))


def _teller(protocol: str) -> Any:
    if protocol not in TELLERS:
        known = ", ".join(TELLERS)
        raise BadInput(f"There is no report for rows of protocol {protocol!r}. There are reports for: {known}.")
    return import_module(TELLERS[protocol])
