"""Parts of charts: data, axes, legends, tooltips, guide lines, and lines of named series."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nescio.report.charts.lazy import alt
from nescio.report.charts.style import COLOUR, DASHED, SELECTED, SERIES_COLOURS, SOLID, Layer
from nescio.report.labels import DEFAULT_MEASURE

NUMBER = ".6~g"  # number format of axes; the default of d3 prints ticks of 0.1 and 0.12 both as 0.1
FEW_TICKS = "max(2, floor(width / 90))"  # as many tick labels as a narrow screen has room for
Side = Literal["x", "y"]
Record = Mapping[str, Any]
Axis: TypeAlias = "alt.X | alt.Y"
Tips: TypeAlias = "list[alt.Tooltip]"


def data(rows: Sequence[Record]) -> Layer:
    """Return a chart of rows as CSV text, which Altair does not validate value by value."""
    buffer = io.StringIO()
    names = list(rows[0]) if rows else ["nothing"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{v:.5g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
    types = {name: "string" if rows and isinstance(rows[0][name], str) else "number" for name in names}
    return alt.Chart(alt.InlineData(values=buffer.getvalue(), format=alt.CsvDataFormat(type="csv", parse=types)))


def unique_names(rows: Iterable[Record], key: str) -> list[str]:
    """Return the names under a key, each once, in order."""
    return list(dict.fromkeys(str(row[key]) for row in rows))


def start_of_menu(names: Sequence[str], selected: str | None = None) -> str:
    """Return the name that a menu starts with: the selected one, the default measure, or the first."""
    return next((name for name in (selected, DEFAULT_MEASURE) if name in names), names[0] if names else "") or ""


# ---- axes


def number_axis(
    side: Side,
    field: str,
    title: str | None = None,
    format: str = NUMBER,
    *,
    log: bool = False,
    padding: int = 14,
    domain: Sequence[float] | None = None,
    nice: bool | None = None,
) -> Axis:
    """Return an axis of numbers that need not begin at zero."""
    scale: dict[str, Any] = {"type": "log"} if log else {"zero": False}
    scale |= {"padding": padding} | ({} if domain is None else {"domain": list(domain)})
    nice = False if nice is None and side == "x" else nice
    scale |= {} if nice is None else {"nice": nice}
    axis = alt.Axis(format=format, tickCount=alt.ExprRef(expr=FEW_TICKS)) if side == "x" else alt.Axis(format=format)
    return _encoding(side)(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=axis)


def share_axis(side: Side, field: str, title: str, top: float = 1.0, grid: bool = True) -> Axis:
    """Return an axis of shares from 0 to `top`."""
    axis = alt.Axis(format="%" if top == 1 else "~%", grid=grid)
    return _encoding(side)(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, top], nice=False), axis=axis)


def level_axis(names: Sequence[str], ticks: Mapping[str, str] | None = None) -> Axis:
    """Return an axis of named levels; `ticks` are shorter names."""
    axis = alt.Axis(
        labelAngle=alt.ExprRef("width < 480 ? -50 : 0"),
        labelAlign=alt.ExprRef("width < 480 ? 'right' : 'center'"),
        labelExpr=f"{json.dumps(dict(ticks or {}))}[datum.label] || datum.label",
    )
    return alt.X("level:N", title=None, sort=list(names), axis=axis)


def value_axis(field: str, title: str, format: str) -> Axis:
    """Return a y axis of values; a format that ends with % shows signed percentages."""
    return number_axis("y", field, title, "+.1~%" if format.endswith("%") else NUMBER, padding=8)


def _encoding(side: Side) -> type[alt.X] | type[alt.Y]:
    return alt.X if side == "x" else alt.Y


# ---- legends and tooltips


def legend(symbol: str, entry_width: int = 124, **properties: Any) -> alt.Legend:
    """Return a legend above the chart that wraps on a narrow screen."""
    columns = alt.ExprRef(expr=f"max(1, floor((width + 60) / {entry_width}))")
    return alt.Legend(symbolType=symbol, columns=columns, **properties)


def rename_labels(fields: Sequence[str], names: Sequence[str]) -> str:
    """Return the legend expression that shows names in place of fields."""
    return f"{json.dumps(list(names))}[indexof({json.dumps(list(fields))}, datum.label)]"


def tooltips(*fields: Sequence[str]) -> Tips:
    """Return tooltips of (field:type, title) or (field:type, title, format)."""
    tips = []
    for field, title, *format in fields:
        # Vega-Lite does not escape line breaks and backslashes in expressions
        escaped = "".join(letter if letter.isprintable() else " " for letter in title).replace("\\", "\\\\")
        tip = alt.Tooltip(field, title=escaped)
        tips.append(tip.format(format[0]) if format else tip)
    return tips


# ---- guide lines


def guide_line(side: Side, value: float, label: str = "", *, field: str | None = None, **style: Any) -> list[Layer]:
    """Return a line across the chart at a value, vertical for side x, with a label."""
    name = field or side
    style = {"color": COLOUR["ink"], "strokeWidth": 1, **style}
    base = data([{name: float(value), "text": label}])
    position = {side: f"{name}:Q"}
    layers = [base.mark_rule(**style).encode(**position)]
    if label:
        text = base.mark_text(align="left", baseline="top", dx=5, fontSize=12, color=COLOUR["ink"])
        layers.append(text.encode(alt.Text("text:N"), y=alt.value(0), **position))
    return layers


# ---- series


@dataclass(frozen=True)
class Series:
    """The names of a field, with a colour and a dash each."""

    field: str
    names: Sequence[str]
    colours: Sequence[str] = SERIES_COLOURS
    dashes: Sequence[list[int]] | None = ()  # empty: dashed if a colour is repeated; None: all solid
    legend: alt.Legend | None = None

    def colour(self) -> alt.Color:
        """Return the encoding as colours."""
        return alt.Color(f"{self.field}:N", scale=self._scale(self.colours), legend=self.legend)

    def dash(self) -> alt.StrokeDash:
        """Return the encoding as dashes."""
        dashes = self.dashes or [SOLID] * len(SERIES_COLOURS) + [DASHED] * len(self.names)
        return alt.StrokeDash(f"{self.field}:N", scale=self._scale(dashes), legend=self.legend)

    def _scale(self, values: Sequence[str | list[int]]) -> alt.Scale:
        cycle: list[Any] = [values[number % len(values)] for number in range(len(self.names))]
        return alt.Scale(domain=list(self.names), range=cycle)


def line_layers(
    base: Layer, series: Series, tips: Tips | None = None, *, width: float = 2, points: float = 0
) -> list[Layer]:
    """Return one line per name of a series, and points with tooltips; `points` is their opacity."""
    encodings = [series.colour()] if series.dashes is None else [series.colour(), series.dash()]
    lines = base.mark_line(strokeWidth=width, clip=True).encode(*encodings)
    if not tips:
        return [lines]
    marks = base.mark_point(filled=True, size=48, opacity=points)
    return [lines, marks.encode(series.colour(), tooltip=tips)]


def selected_rows(base: Layer, field: str) -> Layer:
    """Keep the rows that the menu selects."""
    return base.transform_filter(f"datum.{field} == {SELECTED}")


def stripes(base: Layer, field: str, tips: Tips) -> Layer:
    """Return vertical stripes that appear below the pointer and show all values there."""
    over = alt.selection_point(on="pointerover", clear="pointerout", fields=[field], empty=False)
    marks = base.mark_rect(color=COLOUR["soft"]).encode(y=alt.value(0), y2=alt.value("height"), tooltip=tips)
    bars: Layer = marks.encode(opacity=alt.condition(over, alt.value(0.12), alt.value(0)))
    return bars.add_params(over)
