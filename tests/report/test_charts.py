"""Every kind of chart is valid, can be drawn, and takes its colours from the style sheet or from paper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nescio.analysis.curves import corp_points
from nescio.report.charts.curves import (
    bars_chart,
    corp_chart,
    cost_chart,
    histogram_chart,
    models_chart,
    reliability_chart,
    risk_coverage_chart,
)
from nescio.report.charts.levels import Box, box_chart, levels_chart, levels_figure
from nescio.report.charts.points import OTHERS, changes_chart, dots_chart, heat_chart, intervals_chart, scatter_chart
from nescio.report.charts.style import DARK, PAPER, SELECTED, on_page, on_paper
from nescio.report.pages import chart_data
from nescio.report.scorecards.figures import interval_points
from tests.support.samples import sample_card, sample_comparison

POINTS = [
    {
        "name": name,
        "family": name,
        "model": f"{name}{at}",
        "parameters": 1e6 * at or None,
        "distilled": at == 1,
        "x": at + 1.0,
        "y": 2.0,
    }
    for name in ("vit", "cnn", OTHERS)
    for at in range(3)
]
LEVELS = {f"severity {at}": {f"m{k}": 0.5 + 0.01 * k * at + (k == 9) for k in range(10)} for at in range(3)}
LINES = {"best": dict.fromkeys(LEVELS, 0.9), "worst": {"severity 0": 0.6}}
CELLS = [
    {"line": a, "column": b, "value": 0.5 + 0.1 * at, "n": 2} for at, (a, b) in enumerate(("ax", "ay", "bx", "by"))
]
DOTS = [
    {"name": name, "kind": kind, "value": 0.7, "spread": spread}
    for name, kind, spread in (("a", "one network", 0.1), ("a", "ensemble of 5", None), ("b", "one network", None))
]
CHANGES = [{"kind": kind, "model": "m", "than": "n", "value": 0.01 * at} for at, kind in enumerate(("x y", "x y", "z"))]


def cases() -> dict[str, Callable[[], Any]]:
    curves = sample_card().curves
    risk = curves["risk_coverage"]
    return {
        "risk": lambda: risk_coverage_chart(risk),
        "reliability": lambda: reliability_chart(curves["reliability"]),
        "corp": lambda: corp_chart(corp_points(curves["corp"])),
        "cost": lambda: cost_chart(curves["cost"]()),
        "histogram": lambda: histogram_chart(curves["histogram"]),
        "models": lambda: models_chart({"a": risk, "b": risk}),
        "intervals": lambda: intervals_chart(interval_points(sample_comparison())),
        "dots": lambda: dots_chart(DOTS, "AUC", ("oracle", 0.99)),
        "heat": lambda: heat_chart(CELLS, "AUC", 0.5),
        "cloud": lambda: scatter_chart(
            POINTS,
            "x",
            "y",
            tips={"model": "model"},
            log=True,
            front=[(1.0, 2.0), (2.0, 2.5)],
            links=[(POINTS[0], POINTS[1])],
            guides=[("x", 1.5), ("y", 2.0)],
        ),
        "scatter": lambda: scatter_chart([{"name": "a", "x": 1, "y": 2}, {"name": "b", "x": 2, "y": 1}], "x", "y"),
        "changes": lambda: changes_chart(CHANGES, "improvement"),
        "boxes": lambda: box_chart(LEVELS, "AUROC", lines=LINES, unconnected=("severity 2",), guide=0.5),
        "levels": lambda: levels_chart(LINES, "gain", guide=0.0, format="+.2%", ticks={"severity 0": "s0"}),
        "bars": lambda: bars_chart([0.1, 0.2, 0.9], [0, 0.5, 1], "NC", ("chance", 0.3), "Histogram."),
    }


@pytest.fixture(scope="module", params=list(cases()))
def chart(request: pytest.FixtureRequest) -> Any:
    return cases()[request.param]()


def test_on_page__a_chart_follows_the_schema_and_says_what_it_shows(chart: Any) -> None:
    spec = chart.to_dict(validate=True)
    assert spec["description"] and spec["width"] == "container" and "$schema" not in on_page(chart)


def test_on_page__on_the_page_every_colour_comes_from_the_style_sheet(chart: Any) -> None:
    text = json.dumps(on_page(chart))
    assert not re.findall(r"#[0-9a-f]{6}", text)
    assert set(re.findall(r"var\\(--(\\w+)\\)", text)) <= set(PAPER)


def test_on_paper_a_chart_becomes_svg_with_fixed_colours(chart: Any) -> None:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(on_paper(chart))
    assert svg.startswith("<svg") and "var(--" not in svg and "NaN" not in svg


def test_scatter_chart__a_menu_can_set_what_a_chart_shows() -> None:
    for name in ("risk", "histogram", "models", "intervals"):
        assert any(part.get("name") == SELECTED for part in on_page(cases()[name]()).get("params", ())), name


def test_chart_data__tooltips_name_what_is_pointed_at() -> None:
    text = json.dumps(cases()["cloud"]().to_dict())
    assert all(f'"title": "{word}"' in text for word in ("model", "x", "y", "parameters"))
    assert "25" not in chart_data(on_page(cases()["cloud"]()))[0].splitlines()[0]


def test_scatter_chart__axis_labels_may_be_shorter_names() -> None:
    assert '{\\"severity 0\\": \\"s0\\"}' in json.dumps(cases()["levels"]().to_dict())


def test_on_paper__no_two_ticks_of_an_axis_have_one_label() -> None:
    """d3 rounds 0.12 to 0.1 where it chooses the digits itself."""
    import vl_convert

    line = {"erm": {"clean": 0.019, "1": 0.032, "5": 0.112}}
    labels = re.findall(r">([\d.]+)</text>", vl_convert.vegalite_to_svg(on_paper(levels_chart(line, "ECE"))))
    assert {"0.1", "0.12"} <= set(labels) and len(labels) == len(set(labels))


def test_box__boxes_are_tukeys() -> None:
    values = np.r_[np.arange(10.0), 100.0]
    box = Box.from_values(values)
    assert (box.lower, box.middle, box.upper) == tuple(np.quantile(values, (0.25, 0.5, 0.75)))
    assert box.low == 0 and box.high == 9 and box.outliers == (100.0,)


def test_levels_figure__points_of_levels_are_a_table() -> None:
    names = ("regime", "severity", "gain")
    figure = levels_figure("key", "Title", "words", LINES, names, guide=0.0)
    assert figure.points[0] == {"regime": "best", "severity": "severity 0", "gain": 0.9} and len(figure.points) == 4
    lines = on_page(levels_chart(LINES, "gain", guide=0.0))
    assert (figure.key, figure.title, figure.caption) == ("key", "Title", "words") and on_page(figure.chart()) == lines
    boxes = levels_figure("key", "Title", "words", LEVELS, ("severity", "model", "gain"), box_chart)
    assert on_page(boxes.chart()) == on_page(box_chart(LEVELS, "gain")) and len(boxes.points) == 30


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [PAPER, DARK], ids=["light", "dark"])
def test_charts__texts_and_lines_stand_out_from_the_ground(palette: dict[str, str]) -> None:
    ground = luminance(palette["ground"])
    for name, colour in palette.items():
        low, high = sorted((ground, luminance(colour)))
        contrast = (high + 0.05) / (low + 0.05)
        if name in ("ink", "soft", "accent"):  # texts: the accessibility guidelines ask for 4.5
            assert contrast >= 4.5, (name, contrast)
        elif name.startswith("c"):  # lines: 3
            assert contrast >= 3, (name, contrast)


def test_models_chart__names_with_quotes_newlines_and_backslashes_lose_no_chart() -> None:
    """Every name stands on its chart; Vega puts some of them into expressions."""
    from html import unescape

    import vl_convert

    from nescio.report.charts.curves import histogram_chart, models_chart
    from nescio.report.charts.points import intervals_chart
    from nescio.report.charts.style import on_paper

    names = ['it\'s "odd"\nname', "back\\slash", "<b>&amp;", "a.b[0]", ","]
    curve = {"msp": ([0.5, 1.0], [0.1, 0.2])}
    bins = {"edges": [0.0, 0.5, 1.0], "right": [3, 1], "wrong": [1, 2], "out": {name: [1, 1] for name in names}}
    points = [
        {"question": "accuracy", "model": name, "rank": at, "value": 0.5, "low": 0.4, "high": 0.6, "best": True}
        for at, name in enumerate(names, start=1)
    ]
    for chart in (
        models_chart(dict.fromkeys(names, curve)),
        histogram_chart({'a "measure"': bins}),
        intervals_chart(points),
    ):
        text = unescape(str(vl_convert.vegalite_to_svg(on_paper(chart))))
        for name in names:
            assert name.split("\n")[0] in text
