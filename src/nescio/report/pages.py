"""One HTML file that opens from a disk without a network, and the folder of files around it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.errors import BadInput
from nescio.files import write_file
from nescio.provenance import current_config, current_provenance
from nescio.report.blocks import (
    Definitions,
    Details,
    Figure,
    Gallery,
    Panel,
    Prose,
    Section,
    Story,
    Tabs,
    figures_of,
    tables_of,
    without_figures,
)
from nescio.report.charts.style import DARK, PAPER, SELECTED, Spec, on_page, on_paper
from nescio.report.tables import Table
from nescio.report.text import format_records, latex, markdown, render_code, rows_csv, tables_csv, to_plain
from nescio.rows import Row

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

ASSETS = Path(__file__).parent
LONG_TEXT = 48  # letters of a cell above which its column wraps
NARROW = 4  # maximum number of columns of a table beside a figure
KINDS = {Table: "table", Figure: "figure", Panel: "panel", Tabs: "tabs", Details: "details", Definitions: "definitions"}
KINDS |= {Prose: "prose", Gallery: "gallery"}
UNDRAWN = (
    "Figures are missing: Altair and vl-convert were not installed where this page was written. "
    "`nescio report rows.parquet` draws them on a machine with both."
)


# ---- the folder


def write_page(
    story: Story,
    folder: str | Path,
    *,
    rows: Sequence[Row] | None = None,
    files: Mapping[str, bytes] | None = None,
    others: Mapping[str, str] | None = None,
) -> Path:
    """Write index.html, tables.md, tables.tex, tables.csv and rows.csv, and return the path of the page.

    files   further files: name → content
    others  linked pages: address → name
    """
    folder = Path(folder)
    story = story if story.provenance else replace(story, provenance=current_provenance().sentences())
    texts = {"tables.md": markdown(story), "tables.tex": latex(story), "tables.csv": tables_csv(tables_of(story))}
    texts |= {} if rows is None else {"rows.csv": rows_csv(rows)}
    texts["index.html"] = render_page(story if can_draw() else without_figures(story, UNDRAWN), others)
    contents: dict[str, str | bytes] = {**(files or {}), **texts, **current_config()}
    for name, content in contents.items():
        write_file(folder / name, content)
    return folder / "index.html"


def can_draw() -> bool:
    """Whether the packages that draw charts are installed."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))


def render_figure(figure: Figure) -> tuple[str, str]:
    """Return the chart as SVG with fixed colours, and its points as CSV."""
    if not can_draw():
        raise BadInput("Figures need Altair and vl-convert: pip install nescio.")
    import vl_convert

    spec = on_paper(figure.chart())
    points = format_records(figure.points, "csv") if figure.points else max(chart_data(spec), key=len, default="")
    return str(vl_convert.vegalite_to_svg(spec)), points


def chart_data(spec: object) -> list[str]:
    """Return every table in a chart's specification, as CSV."""
    if isinstance(spec, list):
        return [text for child in spec for text in chart_data(child)]
    if not isinstance(spec, dict):
        return []
    datasets, inline_data = spec.get("datasets") or {}, spec.get("data") or {}
    texts = [text for text in (*datasets.values(), inline_data.get("values")) if isinstance(text, str)]
    return texts + [text for child in spec.values() for text in chart_data(child)]


# ---- the page


def render_page(story: Story, others: Mapping[str, str] | None = None) -> str:
    """Write the story as one self-contained HTML file; `others` are linked pages: address → name."""
    figures = {figure.key: on_page(figure.chart()) for figure in figures_of(story)}
    sections = list(zip(_anchors(story.sections), story.sections, strict=True))
    links = {f"#{anchor}": section.link for anchor, section in sections if anchor}
    return str(
        _environment(figures)
        .get_template("page.html")
        .render(
            story=story,
            sections=sections,
            links={**links, **(others or {})},
            figures=figures,
            light=PAPER,
            dark=DARK,
            css=(ASSETS / "page.css").read_text("utf-8"),
            js=(ASSETS / "page.js").read_text("utf-8"),
            bundle=_bundle() if figures else "",
        )
    ).lstrip()


def _anchors(sections: Sequence[Section]) -> list[str]:
    """The anchor of each section; empty without a link."""
    anchors: list[str] = []
    for section in sections:
        anchor_name = re.sub(r"[^a-z0-9]+", "-", section.link.lower()).strip("-") or "section"
        if section.model:
            anchor_name = f"model-{sum(anchor.startswith('model-') for anchor in anchors)}"
        elif anchor_name in anchors:
            anchor_name = f"{anchor_name}-{len(anchors)}"
        anchors.append(anchor_name if section.link else "")
    return anchors


def _environment(figures: Mapping[str, Spec]) -> Environment:
    """Jinja with the filters of the template; it escapes all texts except the markup of these filters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    env.filters |= {
        "kind": lambda block: KINDS[type(block)],
        "head": _head,
        "line": _line,
        "code": _code,
        "strong": _strong,
        "script": _script,
        "base64": lambda content: b64encode(content).decode(),
        "colours": lambda palette: _markup("".join(f"--{name}:{colour};" for name, colour in palette.items())),
    }
    env.tests |= {
        "follows": lambda figure: any(param.get("name") == SELECTED for param in figures[figure.key].get("params", ())),
        "beside": _is_beside,
    }
    env.globals |= {"text_columns": _text_columns, "legend": lambda table: dict(table.legend)}
    return env


def _is_beside(section: Section) -> bool:
    """Whether a section is a narrow table and a figure, which the page puts side by side."""
    match list(section.blocks):
        case [Table() as table, Figure()]:
            return len(table.columns) <= NARROW
    return False


def _text_columns(table: Table) -> set[str]:
    """The columns with long texts."""
    return {column for (_, column), cell in table.cells().items() if len(cell.text or "") > LONG_TEXT}


def _markup(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)


def _escape(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))


def _code(text: str) -> Markup:
    """Mark text between backticks as code."""
    return _markup(render_code(text, _escape, "<code>{}</code>"))


def _strong(text: str) -> Markup:
    """Mark text between backticks as code, and percentages, AUROC and ECE as strong."""
    return _markup(
        re.sub(
            r"(?<!the )\b[\d.]+ %|(?<=AUROC )[\d.]*\d|(?<=ECE )[\d.]*\d", r"<strong>\g<0></strong>", str(_code(text))
        )
    )


def _nowrap(text: str) -> str:
    """Keep arrows on the line of the word before them."""
    return _escape(text).replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓")


def _line(text: str) -> Markup:
    """Allow line breaks of a label after its joints."""
    return _markup(re.sub(r"([_./·])(?=.)", r"\1<wbr>", _nowrap(text)))


def _head(text: str) -> Markup:
    """Allow a line break of a column title before the parameter only."""
    return _markup(_nowrap(text).replace("-", "\u2011").replace("@", "<wbr>@"))


def _script(value: object) -> Markup:
    """JSON that is safe in a script element."""
    text = json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script, in the version of Altair's charts."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    code = str(vl_convert.javascript_bundle(vl_version=version))  # type: ignore[call-arg]
    return code.replace("</script", "<\\/script")
