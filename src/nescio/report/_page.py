"""One HTML file that opens from a disk without a network: figures, tables, and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from nescio.report._figures import (
    GUIDES,
    PAGE,
    PAPER,
    config,
    histogram_figure,
    intervals_figure,
    measures_of,
    models_figure,
    reliability_figure,
    risk_coverage_figure,
)
from nescio.report._gallery import Gallery
from nescio.report._tables import (
    COMPARISON,
    SUMMARY,
    Cell,
    Table,
    by_fame,
    comparison_tables,
    grouped,
    headline,
    overview,
    question,
    summary,
    tables,
    unique_names,
)
from nescio.report._text import csv_text, latex, markdown, plain, said

DARK = {
    "ink": "#e8ebf1",
    "soft": "#a0a9ba",
    "faint": "#475063",
    "rule": "#262c38",
    "ground": "#11141b",
    "accent": "#8ab0ff",
    **{
        f"c{i}": colour
        for i, colour in enumerate(
            ("#8ab0ff", "#f0a35e", "#5fcfaa", "#ec8fcb", "#d8c25a", "#b9a3ff", "#64c8e3", "#f28b8b"), start=1
        )
    },
}
WORDY = 48  # letters of a cell above which its column breaks into lines
BESIDE = 4  # columns of a table that leaves room for a figure beside it
PAGE_POINTS, LEAST_POINTS = 40_000, 50  # of all risk–coverage curves together, so that the file stays small; of one
CAPTIONS = {
    "risk": (
        "How many of the answers it keeps are wrong",
        "Keep only the surest answers: the further left, the fewer are kept. A model that knows when it is wrong has "
        "a line that stays near the floor until almost all answers are kept. The far left, where few answers are "
        "left, may leave the picture.",
    ),
    "reliability": (
        "Is it as sure as it should be",
        "Each dot gathers answers of similar confidence; a larger dot, more answers. Below the diagonal it claims "
        "more than it keeps, above it is too modest.",
    ),
    "histogram": (
        "How unsure it is, where it is right and where it is wrong",
        "The less the shapes overlap, the better this measure tells them apart. The outermost bars also hold what "
        "lies beyond them.",
    ),
    "models": (
        "How many of the answers that each model keeps are wrong",
        "A lower line is better. Where lines cross, the better model depends on how many answers must be given.",
    ),
    "intervals": (
        "Which models cannot be told from the best",
        "Dots are values, bars their intervals. Dots in the accent colour cannot be told from the best one on these "
        "rows.",
    ),
}


def page(
    path: str | Path,
    title: str,
    cards: Sequence[Any],
    comparison: Any = None,
    *,
    footer: str = "",
) -> Path:
    """Writes one self-contained HTML file about one model or several, and returns where it is.

    `cards` are scorecards (rows, reasons, name, curves); `comparison` is what `nescio.compare.compare` returns.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "index.html"
    figures: dict[str, Any] = {}
    names = unique_names(cards)
    several = len(cards) > 1
    held = [_thinned(getattr(card, "curves", None) or {}, len(cards)) for card in cards]
    body = [_overview(cards, names, held, comparison, figures)] if several or comparison is not None else []
    body += [
        _card(card, name, curves, number, several, figures)
        for number, (card, name, curves) in enumerate(zip(cards, names, held, strict=True))
    ]
    lead = overview(cards, comparison) if several else headline(cards[0]) if cards else []
    links = {f"#model-{number}": name for number, name in enumerate(names)} if several else {}
    return _save(path, title, lead, _nav("Models", links), body, figures, footer)


def _save(
    path: Path,
    title: str,
    lead: Sequence[str],
    nav: str,
    body: Sequence[str],
    figures: Mapping[str, Any],
    *footer: str,
) -> Path:
    parts = {
        "TITLE": escape(title),
        "HEADING": escape(title),
        "STYLE": _style(),
        "LEAD": _lead(lead),
        "NAV": nav,
        "BODY": "\n".join(body),
        "FOOTER": "".join(f"<p>{said(text, escape, '<code>{}</code>')}</p>" for text in footer if text),
        "FIGURES": _json(figures),
        "LIGHT": _json(PAPER),
        "BUNDLE": _bundle() if figures else "",
        "SCRIPT": _SCRIPT,
    }
    text = re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], _TEMPLATE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write(folder: str | Path, cards: Sequence[Any], comparison: Any = None, *, title: str = "") -> Path:
    """Writes index.html, rows.csv, tables.md and tables.tex into a folder, and returns where the page is."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(getattr(card, "name", "")) for card in cards] or list(getattr(comparison, "models", ()))
    title = title or " · ".join(Path(name).name for name in names[:3] if name) + (" …" if len(names) > 3 else "")
    for name, text in (("rows.csv", csv_text), ("tables.md", markdown), ("tables.tex", latex)):
        (folder / name).write_text(text(cards, comparison), encoding="utf-8")
    return page(folder / "index.html", title or "Scorecard", cards, comparison)


# ---- a page of any sections, for a study


@dataclass(frozen=True)
class Figure:
    """A chart, made with the palette PAGE when the page is written; its title, and how to read it.

    points  what it shows, a row a mark, columns called as its axes; none: what the chart itself holds
    """

    key: str
    title: str
    words: str
    chart: Callable[[], Any]
    points: Sequence[Mapping[str, Any]] = ()


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
    """What, and what is said of it."""

    entries: Sequence[tuple[str, str]]


Block = Table | Figure | Choice | Fold | Terms | Gallery


@dataclass(frozen=True)
class Section:
    """One question and its answer; `link` is its short name at the top of the page."""

    link: str
    title: str
    blocks: Sequence[Block]
    words: str = ""


@dataclass(frozen=True)
class Story:
    """What a page tells, first things first."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    footer: Sequence[str] = ()


def story_page(path: str | Path, story: Story, others: Mapping[str, str] | None = None) -> Path:
    """Writes one self-contained HTML file of a story's sections, and returns where it is.

    others  pages that it leads to: address → name
    """
    figures: dict[str, Any] = {}
    keys = [re.sub(r"[^a-z0-9]+", "-", section.link.lower()).strip("-") for section in story.sections]
    body = []
    for key, section in zip(keys, story.sections, strict=True):
        words = f'<p class="note">{escape(section.words)}</p>' if section.words else ""
        blocks = _blocks(section.blocks, figures, alone=section.title)
        match list(section.blocks):
            case [Table() as table, Figure()] if len(table.heads) <= BESIDE:
                blocks = f'<div class="beside">{blocks}</div>'
        body.append(f'<section id="{key}"><h2>{escape(section.title)}</h2>{words}{blocks}</section>')
    links = {f"#{key}": section.link for key, section in zip(keys, story.sections, strict=True)}
    nav = _nav("Sections", {**links, **(others or {})})
    return _save(Path(path), story.title, story.lead, nav, body, figures, *story.footer)


def _blocks(blocks: Sequence[Block], figures: dict[str, Any], alone: str = "") -> str:
    """The blocks as HTML; a table that is called as what is around it needs no heading of its own."""
    found = []
    for block in blocks:
        if isinstance(block, Table):
            found.append(f"<div>{_table(block, 0 if block.title == alone else 3)}</div>")
        elif isinstance(block, Figure):
            figures[block.key] = _spec(block.chart())
            found.append(_framed("study", block.key, block.title, block.words))
        elif isinstance(block, Fold):
            found.append(_details(block.title, _blocks(block.blocks, figures, block.title)))
        elif isinstance(block, Terms):
            found.append(_terms(block.entries))
        elif isinstance(block, Gallery):
            found.append(block.html())
        else:
            names = "".join(f'<option value="{escape(name)}">{escape(name)}</option>' for name in block.options)
            found.append(
                f'<div class="panes"><label class="choice">{escape(block.words)} '
                f'<select class="turn">{names}</select></label>'
            )
            for name, inside in block.options.items():
                found.append(f'<div class="pane" data-pane="{escape(name)}">{_blocks(inside, figures, alone)}</div>')
            found.append("</div>")
    return "".join(found)


# ---- parts of the page


def _lead(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    marked = [
        re.sub(r"(?<!the )\b[\d.]+ %|\d+ of 100", lambda m: f"<strong>{m[0]}</strong>", escape(text))
        for text in sentences
    ]
    return f'<p class="lead">{" ".join(marked)}</p>'


def _nav(words: str, links: Mapping[str, str]) -> str:
    items = "".join(f'<li><a href="{escape(to)}">{escape(name)}</a></li>' for to, name in links.items())
    return f'<nav aria-label="{escape(words)}"><ul>{items}</ul></nav>' if items else ""


def _overview(
    cards: Sequence[Any],
    names: Sequence[str],
    held: Sequence[Mapping[str, Any]],
    comparison: Any,
    figures: dict[str, Any],
) -> str:
    parts = []
    if len(cards) > 1:
        lines = summary(cards)
        parts.append(_table(lines, 2) if lines.lines else "")
        curves = {
            name: {key: line for key, line in each["risk_coverage"].items() if key not in GUIDES}
            for name, each in zip(names, held, strict=True)
            if each.get("risk_coverage")
        }
        measures = list(dict.fromkeys(key for lines in curves.values() for key in lines))
        if measures:
            measures.sort(key=by_fame)
            figures["models"] = _spec(models_figure(curves, measures[0], PAGE))
            parts.append(_select("Measure", measures, ["models"]) + _figure("models", "models"))
    if comparison is not None and comparison.rows:
        first, *rest = comparison_tables(comparison)
        questions = list(dict.fromkeys(question(row) for row in comparison.rows if row.get("best") is not None))
        figures["intervals"] = _spec(intervals_figure(comparison.rows, questions[0], PAGE))
        parts.append(f"<h2>{escape(COMPARISON)}</h2>")
        parts.append(_select("Metric", questions, ["intervals"]) + _figure("intervals", "intervals"))
        parts.append(_details("All values with their intervals", _table(first, 0)))
        parts += [_details(table.title, _table(table, 0)) for table in rest]
        parts.append(_missing(getattr(comparison, "reasons", ()), (), 3))
    return f'<section class="overview" aria-label="{escape(SUMMARY)}">{"".join(parts)}</section>'


def _card(card: Any, name: str, curves: Mapping[str, Any], number: int, several: bool, figures: dict[str, Any]) -> str:
    level = 3 if several else 2
    measures = measures_of(curves)
    parts, charts = [], []
    if curves.get("risk_coverage"):
        chart = risk_coverage_figure(curves["risk_coverage"], measures[0], PAGE)
        charts.append(("risk", f"risk-{number}", chart))
    if curves.get("reliability"):
        charts.append(("reliability", f"reliability-{number}", reliability_figure(curves["reliability"], PAGE)))
    if curves.get("histogram"):
        chart = histogram_figure(curves["histogram"], measures[0], PAGE)
        charts.append(("histogram", f"histogram-{number}", chart))
    if charts:
        figures.update({key: _spec(chart) for _, key, chart in charts})
        follow = [key for kind, key, _ in charts if kind != "reliability"]
        parts.append(_select("Measure of uncertainty", measures, follow) if len(measures) > 1 else "")
        drawn = "".join(_figure(kind, key) for kind, key, _ in charts)
        parts.append(f'<div class="figures">{drawn}</div>')
    for table in tables(card):
        parts.append(_details(table.title, _table(table, 0)) if table.more else _table(table, level))
    parts.append(_missing(getattr(card, "reasons", ()), getattr(card, "notes", ()), level))
    inside = "".join(parts)
    if not several:
        return f'<section class="card" id="model-{number}" aria-label="{escape(name)}">{inside}</section>'
    opened = " open" if number == 0 else ""
    return (
        f'<details class="card model" id="model-{number}"{opened}><summary><h2>{escape(name)}</h2></summary>'
        f"{_lead(headline(card))}{inside}</details>"
    )


def _thinned(curves: Mapping[str, Any], models: int) -> Mapping[str, Any]:
    """The same curves with fewer points where many models share the page."""
    lines = curves.get("risk_coverage") or {}
    most = max(LEAST_POINTS, PAGE_POINTS // (models * max(1, len(lines))))

    def few(values: Sequence[float]) -> list[float]:
        if len(values) <= most:
            return list(values)
        return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]

    return {**curves, "risk_coverage": {name: (few(c), few(r)) for name, (c, r) in lines.items()}}


def _select(words: str, options: Sequence[str], charts: Sequence[str]) -> str:
    held = "".join(f'<option value="{escape(option)}">{escape(option)}</option>' for option in options)
    return f'<label class="choice">{escape(words)} <select data-charts="{" ".join(charts)}">{held}</select></label>'


def _figure(kind: str, key: str) -> str:
    return _framed(kind, key, *CAPTIONS[kind])


def _framed(kind: str, key: str, title: str, words: str) -> str:
    return (
        f'<figure class="{kind}"><figcaption><span class="figure-title">{escape(title)}</span>'
        f'<button type="button" class="save" data-figure="{key}" aria-label="Download as SVG: {escape(title)}">'
        "SVG</button>"
        f'</figcaption><div class="chart" id="{key}" data-figure="{key}"></div>'
        f'<p class="caption">{escape(words)}</p></figure>'
    )


def _details(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def _table(table: Table, level: int) -> str:
    """The table as HTML; level 0 leaves the heading to what is around it."""
    heading = f"<h{level}>{escape(table.title)}</h{level}>" if level else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    meaning = dict(table.legend)
    heads = "".join(f'<th scope="col" class="label">{escape(text)}</th>' for text in table.split(table.corner))
    wordy = [any(cell is not None and len(cell.text) > WORDY for cell in own) for own in _columns(table)]
    heads += "".join(
        f'<th scope="col"{_words(long)}{_title(meaning.get(head))}>{_head(head)}</th>'
        for head, long in zip(table.heads, wordy, strict=True)
    )
    measured = table.corner == "measure"
    wide = ' class="wide"' if len(table.heads) > 10 else ""
    lines, above = [], ""
    for name, cells in table.lines:
        mark = f' data-measure="{escape(name)}"' if measured else ""
        first, *rest = table.split(name)
        mark += "" if not rest else ' class="same"' if first == above else ' class="first"'
        above = first
        names = "".join(f'<td class="label">{escape(text)}</td>' for text in rest)
        values = "".join(map(_cell, cells, wordy))
        lines.append(f'<tr{mark}><th scope="row">{_line(first)}</th>{names}{values}</tr>')
    legend = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{said(words, escape, '<code>{}</code>')}</dd></div>"
        for name, words in table.legend
    )
    return (
        f'{heading}{note}<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table{wide}><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>{f'<dl>{legend}</dl>' if legend else ''}"
    )


def _title(sentence: str | None) -> str:
    return f' title="{escape(sentence)}"' if sentence else ""


def _nowrap(text: str) -> str:
    """Arrows stay with the word before them."""
    return escape(text).replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓")


def _line(text: str) -> str:
    """The name of a line may break after its joints."""
    return re.sub(r"([_./·])(?=.)", r"\1<wbr>", _nowrap(text))


def _head(text: str) -> str:
    """A head may break before its parameter, and nowhere inside a name."""
    return _nowrap(text).replace("-", "\u2011").replace("@", "<wbr>@")


def _columns(table: Table) -> list[list[Cell | None]]:
    return [[cells[at] for _, cells in table.lines] for at in range(len(table.heads))]


def _words(long: bool) -> str:
    return ' class="words"' if long else ""


def _cell(cell: Cell | None, wordy: bool = False) -> str:
    if cell is None:
        return '<td class="none"><span aria-label="not measured">–</span></td>'
    value, interval, bounds = escape(cell.text).partition(" [")
    value, around, spread = value.partition(" ± ")
    value = f"<strong>{value}</strong>" if cell.best else value
    value += f'<span class="spread"> ± {spread}</span>' if around else ""
    return f"<td>{value}<small> [{bounds}</small></td>" if interval else f"<td{_words(wordy)}>{value}</td>"


def _missing(reasons: Any, notes: Sequence[str], level: int) -> str:
    parts = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    missing = grouped(reasons)
    if missing:
        parts += f"<h{level}>What could not be said</h{level}>{_terms(missing)}"
    return parts


def _terms(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(why)}</dd></div>" for what, why in entries)
    return f'<dl class="reasons">{items}</dl>'


# ---- what the page carries


def _spec(chart: Any) -> dict[str, Any]:
    """The chart for the page, with the page's own look."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests check every kind of chart against the schema
    spec.pop("$schema", None)  # an address that nothing here may look at
    spec["config"] = config(PAGE)
    return spec


def _json(value: Any) -> str:
    """JSON that may stand inside a script element whatever texts it holds."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script, of the version that Altair's charts are written for."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    code = str(vl_convert.javascript_bundle(vl_version=version))  # type: ignore[call-arg]
    return code.replace("</script", "<\\/script")


def _style() -> str:
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in held.items()) for held in (PAPER, DARK))
    return _CSS.replace("@LIGHT@", light).replace("@DARK@", dark)


# The policy is the browser's own promise that nothing is fetched; Vega compiles expressions, hence unsafe-eval.
_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="nescio">
<link rel="icon" href="data:,">
<title>@TITLE@</title>
<style>@STYLE@</style>
</head>
<body>
<main>
<header>
<p class="mark">nescio <span>“I do not know”</span></p>
<h1>@HEADING@</h1>
@LEAD@
@NAV@
</header>
<noscript><p class="note">The figures need JavaScript; every number is also in the tables.</p></noscript>
@BODY@
<footer>
<p>↑ better when higher, ↓ better when lower; bold is the best of its column or line. All measures of uncertainty
point one way: higher means less sure. Point at a figure to read its values.</p>
@FOOTER@
</footer>
</main>
<script type="application/json" id="figures">@FIGURES@</script>
<script type="application/json" id="light">@LIGHT@</script>
<script>@BUNDLE@</script>
<script>@SCRIPT@</script>
</body>
</html>
"""

_CSS = """
:root{@LIGHT@--panel:#f7f8fa;color-scheme:light}
@media (prefers-color-scheme:dark){:root{@DARK@--panel:#181c25;color-scheme:dark}}
@media print{:root{@LIGHT@--panel:#fff;color-scheme:light}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--ground);color:var(--ink);line-height:1.55;
font:400 1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-synthesis-weight:none;-webkit-font-smoothing:antialiased}
main{max-width:75rem;margin:0 auto;padding:clamp(1.5rem,5vw,4.5rem) clamp(1.1rem,4vw,3rem) 4rem}
.mark{margin:0 0 2.25rem;font-weight:600;letter-spacing:.01em;color:var(--accent)}
.mark span{font-weight:400;color:var(--soft);margin-left:.4em}
h1{font-size:clamp(1.8rem,4.5vw,2.7rem);line-height:1.15;letter-spacing:-.022em;font-weight:650;margin:0 0 1.25rem;
text-wrap:balance;overflow-wrap:anywhere}
h2{font-size:1.4rem;line-height:1.25;letter-spacing:-.012em;font-weight:620;margin:4rem 0 .35rem;overflow-wrap:anywhere}
h3{font-size:1.12rem;line-height:1.3;font-weight:620;margin:2.75rem 0 .3rem}
p{margin:.5rem 0}
.lead{font-size:clamp(1.08rem,1.9vw,1.3rem);line-height:1.6;max-width:50rem;color:var(--soft);margin:0 0 1.5rem;
text-wrap:pretty}
.lead strong{color:var(--ink);font-weight:620;white-space:nowrap}
.note,.caption{color:var(--soft);font-size:.875rem;max-width:44rem}
.note{margin:.1rem 0 .9rem}
nav ul{display:flex;flex-wrap:wrap;gap:.4rem 1.4rem;list-style:none;margin:1rem 0 0;padding:0}
a{color:var(--accent);text-decoration-thickness:1px;text-underline-offset:.2em}
:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:4px}
.choice{display:inline-flex;align-items:center;gap:.7rem;flex-wrap:wrap;color:var(--soft);font-size:.9rem;
margin:2.5rem 0 1rem}
select,.save{font:inherit;color:var(--ink);background:var(--panel);border:1px solid var(--rule);border-radius:8px}
select{padding:.4rem .7rem;max-width:100%;font-size:.95rem}
.save{padding:.12rem .55rem;font-size:.75rem;color:var(--soft);cursor:pointer}
select:hover,.save:hover{border-color:var(--soft);color:var(--ink)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:2.75rem 3.5rem;
margin:.5rem 0 1rem}
.figures .histogram{grid-column:1/-1}
figure{margin:0;min-width:0;break-inside:avoid}
figcaption{display:flex;justify-content:space-between;align-items:baseline;gap:1rem;margin-bottom:.9rem}
.figure-title{font-weight:600}
.chart{width:100%;min-height:8rem}
.risk .chart,.reliability .chart,.histogram .chart,.models .chart{min-height:21rem}
.chart svg{display:block;max-width:100%;overflow:visible}
.chart summary,.chart .vega-actions{display:none}
.scroll{overflow-x:auto;margin:0 -.7rem .25rem;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums lining-nums;line-height:1.35}
th,td{padding:.5rem .8rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
thead th{color:var(--soft);font-weight:500;font-size:.82rem;vertical-align:bottom;border-bottom-color:var(--faint)}
tbody tr:last-child>*{border-bottom-color:transparent}
th:first-child{text-align:left;padding-left:.7rem;position:sticky;left:0;background:var(--ground);font-weight:500;z-index:1}
.wide{font-size:.84rem}.wide th+*,.wide td{padding-left:.42rem;padding-right:.42rem}
.wide thead th{white-space:normal;font-size:.78rem}
small{display:block;font-weight:400;color:var(--soft);font-size:.8em}
td.none{color:var(--soft)}
td.label,th.label{text-align:left}
td.label{color:var(--soft)}
td.words,th.words{text-align:left;white-space:normal;min-width:14rem}
.spread{color:var(--soft);font-size:.9em}
tr.same>th:first-child{color:transparent}
tbody tr.same>*,tbody tr.first>*{border-bottom:0;padding-top:.3rem;padding-bottom:.3rem}
tbody tr.first>*{border-top:1px solid var(--rule)}
.study{margin:2rem 0 1rem}
@media (min-width:62rem){.beside{display:grid;grid-template-columns:minmax(0,auto) minmax(0,1fr);gap:3.5rem;
align-items:start}.beside .study{margin-top:0}.beside>div{max-width:31rem}.beside thead th{white-space:normal}}
td strong{font-weight:680;color:var(--accent)}
tr.chosen>*,tr.chosen>th:first-child{background:var(--panel)}
tr.chosen>th:first-child{font-weight:650}
code{font:.95em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:.35rem 2.5rem;margin:1rem 0 0;
font-size:.85rem;color:var(--soft)}
dl div{break-inside:avoid}
dt{display:inline;color:var(--ink);font-weight:550;margin-right:.5em}
dd{display:inline;margin:0}
dl.reasons{grid-template-columns:1fr;gap:.7rem;max-width:52rem;font-size:.9rem}
details{margin:1rem 0}
details>summary{cursor:pointer;color:var(--accent);font-size:.92rem;padding:.25rem 0}
details.model{margin:0;border-top:1px solid var(--rule)}
details.model>summary{padding:1.4rem 0;color:var(--ink)}
details.model>summary h2{display:inline;margin:0}
.overview{margin-bottom:4.5rem}
footer{margin-top:5rem;padding-top:1.25rem;border-top:1px solid var(--rule);color:var(--soft);font-size:.85rem;
max-width:46rem}
#vg-tooltip-element{position:fixed;visibility:hidden;z-index:9;pointer-events:none;padding:.55rem .75rem;font:inherit;
font-size:.82rem;line-height:1.45;background:var(--ground);color:var(--ink);border:1px solid var(--rule);
border-radius:8px;box-shadow:0 4px 18px rgb(0 0 0/.14)}
#vg-tooltip-element.visible{visibility:visible}
#vg-tooltip-element table{font-size:inherit;line-height:inherit}
#vg-tooltip-element td{border:0;padding:0 .3rem;text-align:left;background:none}
#vg-tooltip-element td.key{color:var(--soft)}
@media (max-width:40rem){h2{margin-top:3rem}thead th{white-space:normal}
th,td{padding:.45rem .6rem}table{font-size:.85rem}
th:first-child{max-width:9.5rem;white-space:normal;overflow-wrap:break-word}figcaption{margin-bottom:1.4rem}.mark{margin-bottom:1.5rem}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{@page{margin:16mm}main{max-width:none;padding:0}.save,.choice,nav{display:none}
body{font-size:10pt}.scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:.25rem .35rem}
.wide,.wide thead th{font-size:5.6pt}.wide th+*,.wide td{padding-left:.1rem;padding-right:.1rem}
.chart svg{width:100%;height:auto}.chart{min-height:0!important}
th:first-child{position:static}h2,h3{break-after:avoid}tr{break-inside:avoid}a{color:inherit;text-decoration:none}}
"""

_SCRIPT = """
(() => {
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const light = JSON.parse(document.getElementById("light").textContent);
const views = {};

const draw = async holder => {
  const key = holder.dataset.figure;
  if (key in views || holder.closest("details:not([open])")) return;
  views[key] = null;
  const {view} = await vegaEmbed(holder, figures[key],
    {mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: {disableDefaultStyle: true}});
  views[key] = view;
  const select = document.querySelector(`select[data-charts~="${key}"]`);
  if (select) await choose(view, select.value);
};

const choose = (view, value) => view.signal("chosen", value).runAsync();
const drawAll = within => within.querySelectorAll(".chart").forEach(draw);

const follow = select => {
  for (const key of select.dataset.charts.split(" ")) if (views[key]) choose(views[key], select.value);
  const card = select.closest(".card");
  if (card) for (const row of card.querySelectorAll("tr[data-measure]"))
    row.classList.toggle("chosen", row.dataset.measure === select.value);
};

const save = async key => {
  if (!views[key]) return;
  const svg = (await views[key].toSVG()).replace(/var\\(--([\\w-]+)\\)/g, (all, name) => light[name] || all);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], {type: "image/svg+xml"}));
  link.download = key + ".svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

for (const select of document.querySelectorAll("select[data-charts]")) {
  select.addEventListener("change", () => follow(select));
  follow(select);
}
for (const button of document.querySelectorAll(".save"))
  button.addEventListener("click", () => save(button.dataset.figure));
for (const fold of document.querySelectorAll("details"))
  fold.addEventListener("toggle", () => { if (fold.open) drawAll(fold); });
for (const select of document.querySelectorAll("select.turn")) {
  const turn = () => {
    for (const pane of select.closest(".panes").querySelectorAll(".pane"))
      pane.hidden = pane.dataset.pane !== select.value;
  };
  select.addEventListener("change", turn);
  turn();
}
const show = () => {
  const model = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (model && model.tagName === "DETAILS") { model.open = true; model.scrollIntoView(); }
};
addEventListener("hashchange", show);
show();
drawAll(document);
})();
"""
