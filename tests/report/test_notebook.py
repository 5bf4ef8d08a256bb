"""Scorecards and comparisons in a notebook: short to look at, whole as a data frame, drawn, and written as a page."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

import nescio
from nescio import BadInput, Predictions, Undefined
from tests.support.paths import ROOT


def model(seed: int, n: int = 300) -> Predictions:
    labels = np.random.default_rng(0).integers(0, 5, n)
    return Predictions(
        labels=labels, logits=3 * np.eye(5)[labels] + np.random.default_rng(seed).normal(size=(n, 5)) * 1.5
    )


@pytest.fixture(scope="module")
def card() -> Any:
    val = model(5).replace(index=np.arange(300) + 1000)
    return nescio.scorecard(model(1), val=val, name="mine <b>")


@pytest.fixture(scope="module")
def comparison() -> Any:
    return nescio.compare({"a": model(1), "b": model(2)}, bootstrap=100)


def test_notebook__their_text_is_some_lines(card: Any, comparison: Any) -> None:
    for result in (card, comparison):
        assert len(repr(result)) < 1000 and len(repr(result).splitlines()) <= 8
    assert "accuracy 0." in repr(card) and "ece calibrated 0." in repr(card)
    assert "a, b on 300 rows" in repr(comparison) and "accuracy: " in repr(comparison)


def test_notebook__their_html_is_short_and_safe(card: Any, comparison: Any) -> None:
    for result in (card, comparison):
        text = result._repr_html_()
        assert len(text) < 6000 and "<table>" in text
    assert "Accuracy" in card._repr_html_() and "ECE ↓" in card._repr_html_()
    assert "Verdict: " in comparison._repr_html_()
    odd = nescio.compare({"<script>": model(1), "b": model(2)}, bootstrap=50)
    assert "<script>" not in odd._repr_html_()


def test_notebook__data_frames_hold_every_row(card: Any, comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    for result in (card, comparison):
        frame = result.to_pandas()
        assert isinstance(frame, pandas.DataFrame) and len(frame) == len(result.rows)
        assert frame["value"].tolist() == [row["value"] for row in result.rows]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(BadInput, match="pip install polars"):
        card.to_polars()


def test_notebook__polars_frames_hold_every_row(card: Any) -> None:
    polars = pytest.importorskip("polars")
    assert isinstance(card.to_polars(), polars.DataFrame) and len(card.to_polars()) == len(card.rows)


def test_notebook__charts_stand_alone(card: Any, comparison: Any) -> None:
    charts = [card.plot.risk_coverage(), card.plot.risk_coverage("entropy"), card.plot.reliability()]
    charts += [card.plot.histogram(), comparison.plot.intervals(), comparison.plot.intervals("auroc")]
    for chart in charts:
        text = json.dumps(chart.to_dict())
        assert "var(--" not in text and '"width": 620' in text
    with pytest.raises(BadInput, match="no measure named 'hope'"):
        card.plot.risk_coverage("hope")
    with pytest.raises(BadInput, match="not compared by 'hope'"):
        comparison.plot.intervals("hope")
    unlabelled = nescio.scorecard(model(1).replace(labels=None))
    with pytest.raises(Undefined, match="no labels"):
        unlabelled.plot.reliability()


def test_notebook__a_page_is_one_call_away(card: Any, comparison: Any, tmp_path: Any) -> None:
    for name, result in (("card", card), ("comparison", comparison)):
        page = result.report(tmp_path / name)
        assert page == tmp_path / name / "index.html" and page.stat().st_size > 10_000
        assert (tmp_path / name / "rows.csv").is_file()


def test_notebook__the_example_notebook_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells one after the other, the last expression of each shown as a notebook would."""
    import ast

    monkeypatch.chdir(tmp_path)
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        names: dict[str, Any] = {}
        shown = []
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, str(path), "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), str(path), "eval"), names))
        assert any(hasattr(value, "_repr_html_") for value in shown)
        assert any("vega" in str(getattr(value, "to_dict", dict)()).lower() for value in shown)
    assert list((ROOT / "examples").glob("*.ipynb"))
