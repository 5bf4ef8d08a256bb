"""The page is one file that needs nothing from outside, and a real browser draws it without an error."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cells import row, sample_card, sample_comparison

from nescio import metrics, report
from nescio.report import Cell, Table, page
from nescio.report import pages as _page
from nescio.report.charts import PAGE, PAPER, measures_of
from nescio.report.pages import DARK, LEAST_POINTS, PAGE_POINTS, Section, Story, _thinned, story_page

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
HARMLESS = (  # names of XML languages and addresses that Vega knows but never opens here
    "http://www.w3.org/",
    "https://vega.github.io/schema/",
    "https://vega.github.io/editor/",
    "https://github.com/vega/vega-lite/issues/",
)
NASTY = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>@BODY@ \"quoted\" & ü.npz"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page(tmp_path_factory.mktemp("page") / "new" / "one.html", "What digits-svm knows", [sample_card()])


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cards = [sample_card(seed, name=name) for seed, name in enumerate(("forest", "logistic", "tree"))]
    for card, less in zip(cards, (0, 0.01, 0.1), strict=True):
        card.rows = [held | {"value": held["value"] - less} for held in card.rows]
    return page(tmp_path_factory.mktemp("page") / "several.html", "Three models", cards, sample_comparison())


class Reader(html.parser.HTMLParser):
    """What a test asks of a page: its elements, the text of its cells, and whether its tags match."""

    VOID = frozenset({"meta", "link", "br", "wbr", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def figures_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert found
    held: dict[str, Any] = json.loads(found[1])
    return held


# ---- the file


def test_one_small_file_and_nothing_beside_it(one: Path, several: Path) -> None:
    assert [child.name for child in one.parent.iterdir()] == ["one.html"]
    assert one.stat().st_size < 2_000_000 and several.stat().st_size < 5_000_000


def test_no_address_that_a_browser_would_open(several: Path) -> None:
    text = several.read_text()
    addresses = set(re.findall(r"""https?://[^\s"'`<>)\\]+""", text))
    assert all(address.startswith(HARMLESS) for address in addresses), addresses
    assert "cdn" not in {part for address in addresses for part in re.split(r"\W+", address)}
    for tag, attributes in Reader(text).elements:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert "$schema" not in json.dumps(figures_of(text))
    policy = next(a["content"] for t, a in Reader(text).elements if t == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none';") and "http" not in policy


def test_every_cell_of_every_table_is_on_the_page(one: Path) -> None:
    cells = Reader(one.read_text()).cells
    for table in report.tables(sample_card()):
        for name, line in table.lines:
            assert name.replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓") in cells
            assert all(cell is None or cell.text in cells for cell in line)
    text = one.read_text()
    for table in report.tables(sample_card()):
        for _, sentence in table.legend:
            assert escape(sentence.split("`")[0]) in text
    assert "The dump holds log-probabilities." in text and "3 of 400 rows" in text


def test_the_page_says_first_what_the_model_knows(one: Path, several: Path) -> None:
    text = one.read_text()
    assert "It is right in <strong>90.0 %</strong> of 400 answers." in text
    assert text.index('class="lead"') < text.index("<figure")
    assert "logistic cannot be told from it" in several.read_text()


def test_readers_of_screens_and_keyboards_are_served(several: Path) -> None:
    text = several.read_text()
    elements = Reader(text).elements
    assert dict(elements)["html"]["lang"] == "en"
    for tag, attributes in elements:
        if tag == "button":
            assert attributes["aria-label"]
        if attributes.get("class") == "scroll":
            assert attributes["tabindex"] == "0" and attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
    selects = [a for t, a in elements if t == "select"]
    assert len(selects) == text.count('<label class="choice">') == 5
    assert all(spec["description"] for spec in figures_of(text).values())


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    card = sample_card(name=NASTY)
    card.rows += [row("auroc", 0.5, NASTY), row("auroc", 0.5, "largest", split=NASTY)]
    card.reasons.append({"measure": NASTY, "metric": None, "split": NASTY, "reason": NASTY})
    card.curves["risk_coverage"][NASTY] = card.curves["risk_coverage"]["largest"]
    card.curves["histogram"]["largest"]["out"][NASTY] = card.curves["histogram"]["largest"]["right"]
    text = page(tmp_path / "nasty.html", NASTY, [card, sample_card(name=NASTY)]).read_text()
    tags = [tag for tag, _ in Reader(text).elements]
    assert tags.count("script") == 4 and "img" not in tags
    assert f"<h1>{escape(NASTY)}</h1>" in text
    held = figures_of(text)
    assert any(NASTY.replace('"', '""') in data for data in held["risk-0"]["datasets"].values())


def test_a_folder_gets_an_index(tmp_path: Path) -> None:
    assert page(tmp_path, "x", [sample_card()]) == tmp_path / "index.html"


@pytest.mark.parametrize("kept", [(), ("risk_coverage",), ("reliability",), ("histogram",)])
def test_a_page_shows_the_figures_that_there_are(tmp_path: Path, kept: tuple[str, ...]) -> None:
    card = sample_card()
    card.curves = {name: card.curves[name] for name in kept}
    text = page(tmp_path / "some.html", "some", [card]).read_text()
    assert text.count("<figure ") == len(kept) == len(figures_of(text))
    card.curves, card.rows, card.reasons, card.notes = {}, [], [], []
    nothing = Reader(page(tmp_path / "none.html", "none", [card, card]).read_text())
    assert "table" not in [tag for tag, _ in nothing.elements]


def test_many_models_share_the_points_of_the_page() -> None:
    curves = sample_card().curves
    assert len(_thinned(curves, 1)["risk_coverage"]["largest"][0]) == 400
    coverage, risk = _thinned(curves, 1000)["risk_coverage"]["largest"]
    assert len(coverage) == len(risk) == LEAST_POINTS
    assert coverage[0] == curves["risk_coverage"]["largest"][0][0] and coverage[-1] == 1.0
    assert risk[-1] == curves["risk_coverage"]["largest"][1][-1]


def test_thirty_models_fit_into_five_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = sample_card()
    lines = {f"measure{at}": card.curves["risk_coverage"]["largest"] for at in range(12)}
    shapes = {f"measure{at}": card.curves["histogram"]["largest"] for at in range(12)}
    card.curves = card.curves | {"risk_coverage": lines, "histogram": shapes}
    monkeypatch.setattr(_page, "PAGE_POINTS", PAGE_POINTS // 10)  # three models with the points that thirty would get
    size = page(tmp_path / "three.html", "three", [card] * 3).stat().st_size
    fixed = len(_page._bundle().encode())
    assert fixed + 10 * (size - fixed) < 5_000_000


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [PAPER, DARK], ids=["light", "dark"])
def test_texts_and_lines_stand_out_from_the_ground(palette: dict[str, str]) -> None:
    ground = luminance(palette["ground"])
    for name, colour in palette.items():
        low, high = sorted((ground, luminance(colour)))
        contrast = (high + 0.05) / (low + 0.05)
        if name in ("ink", "soft", "accent"):  # texts: the accessibility guidelines ask for 4.5
            assert contrast >= 4.5, (name, contrast)
        elif name.startswith("c"):  # lines: 3
            assert contrast >= 3, (name, contrast)


# ---- the curves


def test_curves_are_what_the_metrics_say() -> None:
    rng = np.random.default_rng(1)
    wrong, u = rng.random(1000) < 0.2, rng.normal(size=1000)
    probs = rng.dirichlet(np.ones(3), 1000)
    answers = metrics.answers(probs, rng.integers(0, 3, 1000))
    drawn = {"raw": {"wrong": wrong, "u": {"entropy": u}, "out": {"entropy": {"noise": u + 1}}, "answers": answers}}
    curves = report.curves_of(drawn)
    coverage, risk = metrics.risk_coverage(u, wrong)
    seen, seen_risk = curves["risk_coverage"]["entropy"]
    assert len(seen) <= 400 and seen[-1] == 1 and seen[0] == coverage[0]
    assert set(zip(seen, seen_risk, strict=True)) <= set(zip(coverage, risk, strict=True))
    best_at, best = curves["risk_coverage"]["optimal"]
    every, lowest = metrics.risk_coverage(wrong.astype(float), wrong)
    # a perfect score is 0 for right and 1 for wrong; its ties among the wrong are averaged to the same line
    assert np.allclose(best, lowest[np.searchsorted(every, best_at - 1e-12)])
    assert np.allclose(curves["risk_coverage"]["random"][1], wrong.mean())
    bins = metrics.reliability_curve(answers)
    assert np.array_equal(curves["reliability"]["raw"][0], bins.count) and "calibrated" not in curves["reliability"]
    histogram = curves["histogram"]["entropy"]
    assert histogram["right"].sum() == (~wrong).sum() and histogram["wrong"].sum() == wrong.sum()
    assert histogram["out"]["noise"].sum() == 1000 and len(histogram["edges"]) == len(histogram["right"]) + 1


@pytest.mark.parametrize("u", [np.zeros(50), np.r_[np.zeros(49), 1.0], np.r_[np.zeros(49), 1e300]], ids=str)
def test_histograms_of_constant_and_wild_scores(u: Any) -> None:
    drawn = {"raw": {"wrong": np.arange(50) < 5, "u": {"x": u}, "out": {}}}
    held = report.curves_of(drawn)["histogram"]["x"]
    assert held["right"].sum() == 45 and held["wrong"].sum() == 5 and (np.diff(held["edges"]) > 0).all()


def test_without_answers_or_labels_there_are_no_curves() -> None:
    assert report.curves_of({}) == {}
    assert report.curves_of({"raw": {"wrong": None, "u": {"norm": np.ones(3)}, "out": {}}}) == {}


def test_the_usual_measure_is_shown_first() -> None:
    assert measures_of({"risk_coverage": {"entropy": 0, "largest": 0, "optimal": 0}}) == ["largest", "entropy"]


# ---- the figures, by themselves


def figure_cases() -> Iterator[tuple[str, Any]]:
    curves = sample_card().curves
    for name, palette in (("paper", PAPER), ("page", PAGE)):
        yield f"risk-{name}", report.risk_coverage_figure(curves["risk_coverage"], palette=palette)
        yield f"reliability-{name}", report.reliability_figure(curves["reliability"], palette=palette)
        yield f"histogram-{name}", report.histogram_figure(curves["histogram"], palette=palette)
        yield (
            f"models-{name}",
            report.models_figure({"a": curves["risk_coverage"], "b": curves["risk_coverage"]}, palette=palette),
        )
        yield f"intervals-{name}", report.intervals_figure(sample_comparison().rows, palette=palette)


def test_figures_for_papers_become_svg() -> None:
    import vl_convert

    for name, chart in figure_cases():
        if name.endswith("paper"):
            svg = vl_convert.vegalite_to_svg(chart.to_dict())
            assert svg.startswith("<svg") and "var(--" not in svg and "NaN" not in svg, name


def test_figures_on_the_page_take_every_colour_from_the_style_sheet() -> None:
    for name, chart in figure_cases():
        if name.endswith("page"):
            assert not re.findall(r"#[0-9a-f]{6}", json.dumps(chart.to_dict())), name


# ---- in a browser


def browse(path: Path, *flags: str, folder: Path) -> tuple[str, str]:
    """The page's elements after its scripts have run, and what the browser logged."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    command += ["--disable-component-update", "--disable-extensions", f"--user-data-dir={folder / 'profile'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # the browser's own errands are none of ours
    command += ["--virtual-time-budget=10000", "--enable-logging=stderr", "--window-size=1280,2000"]
    done = subprocess.run([*command, *flags, f"file://{path}"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def console(log: str) -> list[str]:
    return [line for line in log.splitlines() if "CONSOLE" in line]


def chart(dom: str, key: str) -> str:
    """The markup inside one chart's element."""
    start = dom.index(f'id="{key}"')
    return dom[start : dom.index("</figure>", start)]


def test_a_browser_draws_every_figure_without_an_error(one: Path, tmp_path: Path) -> None:
    dom, log = browse(one, "--dump-dom", folder=tmp_path)
    assert console(log) == []
    for key in ("risk-0", "reliability-0", "histogram-0"):
        drawn = chart(dom, key)
        assert "<svg" in drawn and "aria-label=" in drawn and "NaN" not in drawn, key
        assert "var(--accent)" in drawn
    assert dom.count('class="chosen"') >= 2  # the chosen measure is marked in the tables


def test_a_browser_draws_the_open_models_and_the_comparison(several: Path, tmp_path: Path) -> None:
    dom, log = browse(several, "--dump-dom", folder=tmp_path)
    assert console(log) == []
    for key in ("models", "intervals", "risk-0", "reliability-0", "histogram-0"):
        assert "<svg" in chart(dom, key), key
    assert "<svg" not in chart(dom, "risk-1")  # drawn when a reader opens it


def test_the_page_answers_to_a_reader_and_asks_for_nothing_outside(several: Path, tmp_path: Path) -> None:
    play = """<script>addEventListener("load", async () => {
      const wait = ms => new Promise(done => setTimeout(done, ms));
      await wait(1500);
      const saved = [];
      URL.createObjectURL = blob => { blob.text().then(text => saved.push(text)); return "data:,"; };
      HTMLAnchorElement.prototype.click = function () {};
      const select = document.querySelector('select[data-charts*="risk-0"]');
      const before = document.querySelector("#risk-0").innerHTML;
      select.value = "entropy"; select.dispatchEvent(new Event("change"));
      document.querySelector("#model-1").open = true;
      document.querySelector('.save[data-figure="risk-0"]').click();
      await wait(2500);
      const after = document.querySelector("#risk-0").innerHTML;
      const tips = [];
      for (const key of ["risk-0", "histogram-0", "models", "intervals"]) {
        document.getElementById(key).scrollIntoView({behavior: "instant", block: "center"});
        const what = key === "intervals" ? "#intervals .role-mark.mark-symbol path" : `#${key} svg`;
        const box = document.querySelector(what).getBoundingClientRect();
        const at = {clientX: box.x + 0.5 * box.width, clientY: box.y + 0.5 * box.height, bubbles: true};
        const under = document.elementFromPoint(at.clientX, at.clientY);
        for (const kind of ["pointerover", "pointermove"]) under.dispatchEvent(new PointerEvent(kind, at));
        await wait(300);
        tips.push(document.querySelector("#vg-tooltip-element").textContent);
        under.dispatchEvent(new PointerEvent("pointerout", at));
      }
      const row = document.querySelector("#model-0 tr.chosen").dataset.measure;
      document.body.append(Object.assign(document.createElement("pre"), {id: "result", textContent: JSON.stringify({
        changed: before !== after, row, legend: after.includes(">entropy<"),
        opened: !!document.querySelector("#risk-1 svg"), svg: saved[0].slice(0, 4),
        tips, resolved: !saved[0].includes("var(--"),
        asked: performance.getEntriesByType("resource").map(e => e.name)})}));
    });</script></body>"""
    played = tmp_path / "played.html"
    before, _, after = several.read_text().rpartition("</body>")
    played.write_text(before + play + after)
    dom, log = browse(played, "--dump-dom", folder=tmp_path)
    assert console(log) == []
    found = re.search(r'<pre id="result">(.*?)</pre>', dom)
    assert found, dom[-2000:]
    result = json.loads(found[1].replace("&lt;", "<"))
    risk, histogram, models, intervals = result.pop("tips")
    assert "kept" in risk and "wrong among them" in risk
    assert "right" in histogram and "never taught: noise" in histogram
    assert all(f"wrong: {name}" in models for name in ("forest", "logistic", "tree"))
    assert "cannot be told from the best" in intervals or "behind the best" in intervals
    assert not any(word in tip for tip in (risk, histogram, models, intervals) for word in ("undefined", "NaN", "null"))
    assert result == {
        **{
            "changed": True,
            "row": "entropy",
            "legend": True,
            "opened": True,
            "svg": "<svg",
            "resolved": True,
            "asked": [],
        }
    }


def test_a_browser_survives_names_that_look_like_markup(tmp_path: Path) -> None:
    card = sample_card(name=NASTY)
    lines = card.curves["risk_coverage"]
    card.curves["risk_coverage"] = {
        NASTY: lines["largest"],
        "it's \\ odd": lines["entropy"],
        "optimal": lines["optimal"],
    }
    card.curves["histogram"] = {NASTY: card.curves["histogram"]["largest"] | {"out": {NASTY: np.arange(30)}}}
    path = page(tmp_path / "nasty.html", NASTY, [card, sample_card(name="b")])
    dom, log = browse(path, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>broken</title>" not in dom
    assert "<svg" in chart(dom, "risk-0") and "<svg" in chart(dom, "histogram-0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_for_a_person_to_look_at(several: Path, tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / f"{scheme}.png"
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(several, f"--screenshot={picture}", *flags, folder=tmp_path)
    assert picture.stat().st_size > 50_000


def test_write_fills_a_folder(tmp_path: Path) -> None:
    cards = [sample_card(name="dumps/forest.npz"), sample_card(name="dumps/tree.npz")]
    path = report.write(tmp_path / "out", cards, sample_comparison())
    assert path == tmp_path / "out" / "index.html"
    assert sorted(child.name for child in path.parent.iterdir()) == [
        "index.html",
        "rows.csv",
        "tables.md",
        "tables.tex",
    ]
    assert "<h1>forest.npz · tree.npz</h1>" in path.read_text()
    assert (tmp_path / "out" / "tables.md").read_text() == report.markdown(cards, sample_comparison())
    alone = report.write(tmp_path / "compared", [], sample_comparison(), title="Compared")
    assert "<h1>Compared</h1>" in alone.read_text() and "intervals" in figures_of(alone.read_text())


def test_intervals_stand_under_their_values(tmp_path: Path) -> None:
    card = sample_card()
    card.rows = [row("auroc", 0.8, "largest", low=0.75, high=0.85), row("auroc", 0.7, "entropy")]
    text = page(tmp_path / "bootstrapped.html", "x", [card]).read_text()
    assert "<td><strong>0.8000</strong><small> [0.7500, 0.8500]</small></td>" in text


def test_a_column_of_words_breaks_and_is_not_cut_off(tmp_path: Path) -> None:
    """A cell of a hundred letters beside five columns of numbers, in a window of 1300 pixels."""
    fronts = ", ".join(
        f"{good} by {cost}" for good in ("AUROC", "ECE", "SAC@0.99") for cost in ("parameters", "accuracy")
    )
    numbers = tuple(Cell("0.1234", 0.1234) for _ in range(5))
    lines = tuple((f"vit_base_patch16_{size}.augreg_in21k_ft_in1k", (*numbers, Cell(fronts, 6))) for size in (224, 384))
    table = Table("Pareto", "model", (*"abcde", "on the fronts of"), lines)
    page = story_page(tmp_path / "index.html", Story("t", [], [Section("s", "S", [table])]))
    measured = "document.title=[...document.querySelectorAll('.scroll')].map(s=>s.scrollWidth-s.clientWidth).join()"
    page.write_text(page.read_text().replace("</body>", f"<script>{measured}</script></body>"))
    dom, _ = browse(page, "--dump-dom", "--window-size=1300,2000", folder=tmp_path)
    assert "<title>0</title>" in dom
