"""The page is one file that needs nothing from outside, and a real browser draws it without an error."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from nescio.report import pages
from nescio.report.blocks import Definitions, Details, Figure, Gallery, Section, Story, Tabs
from nescio.report.charts.points import heat_chart
from nescio.report.pages import render_page, write_page
from nescio.report.scorecards import figures
from nescio.report.scorecards.questions import PREDICTIONS
from nescio.report.scorecards.stories import all_rows, scorecard_story
from nescio.report.scorecards.tables import scorecard_tables
from nescio.report.tables import Cell, Table
from nescio.report.text import markdown
from tests.support.samples import row, sample_card, sample_comparison

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
    path = tmp_path_factory.mktemp("page") / "one.html"
    path.write_text(render_page(scorecard_story([sample_card()], title="What digits-svm knows")))
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cards = [sample_card(seed, name=name) for seed, name in enumerate(("forest", "logistic", "tree"))]
    for card, less in zip(cards, (0, 0.01, 0.1), strict=True):
        card.rows = [held | {"value": held["value"] - less} for held in card.rows]
    path = tmp_path_factory.mktemp("page") / "several.html"
    path.write_text(render_page(scorecard_story(cards, sample_comparison(), "Three models")))
    return path


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


def test_pages__one_small_file_and_nothing_beside_it(one: Path, several: Path) -> None:
    assert [child.name for child in one.parent.iterdir()] == ["one.html"]
    assert one.stat().st_size < 2_000_000 and several.stat().st_size < 5_000_000


def test_pages__no_address_that_a_browser_would_open(several: Path) -> None:
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


def test_scorecard_tables__every_cell_of_every_table_is_on_the_page(one: Path) -> None:
    cells = Reader(one.read_text()).cells
    text = one.read_text()
    for table in scorecard_tables(sample_card().rows):
        for (labels, _), cell in table.cells().items():
            assert labels[0].replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓") in cells
            assert str(cell) in cells
        for _, sentence in table.legend:
            assert str(escape(sentence.split("`")[0])) in text
    assert "The file contains log-probabilities." in text and "3 of 400 rows" in text


def test_pages__the_page_says_first_what_the_model_knows(one: Path, several: Path) -> None:
    text = one.read_text()
    assert "<strong>90.0 %</strong>, n = 400" in text
    assert text.index('class="lead"') < text.index("<figure")
    assert "and logistic <strong>89.0 %</strong>" in several.read_text()


def test_pages__readers_of_screens_and_keyboards_are_served(several: Path) -> None:
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


def test_render_page__names_are_text_whatever_they_hold() -> None:
    card = sample_card(name=NASTY)
    card.rows += [row("auroc", 0.5, NASTY), row("auroc", 0.5, "msp", split=NASTY)]
    card.reasons.append({"measure": NASTY, "metric": None, "split": NASTY, "reason": NASTY})
    card.curves["risk_coverage"][NASTY] = card.curves["risk_coverage"]["msp"]
    card.curves["histogram"]["msp"]["out"][NASTY] = card.curves["histogram"]["msp"]["right"]
    text = render_page(scorecard_story([card, sample_card(name=NASTY)], title=NASTY))
    tags = [tag for tag, _ in Reader(text).elements]
    assert tags.count("script") == 4 and "img" not in tags
    assert f"<h1>{escape(NASTY)}</h1>" in text
    held = figures_of(text)
    assert any(NASTY.replace('"', '""') in data for data in held["risk-0"]["datasets"].values())


@pytest.mark.parametrize("kept", [(), ("risk_coverage",), ("reliability",), ("histogram",)])
def test_render_page__a_page_shows_the_figures_that_there_are(kept: tuple[str, ...]) -> None:
    card = sample_card()
    card.curves = {name: card.curves[name] for name in kept}
    text = render_page(scorecard_story([card]))
    assert text.count("<figure ") == len(kept) == len(figures_of(text))
    card.curves, card.rows, card.reasons, card.notes = {}, [], [], []
    nothing = Reader(render_page(scorecard_story([card, card])))
    assert "table" not in [tag for tag, _ in nothing.elements]


def test_bundle__thirty_models_fit_into_five_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    card = sample_card()
    lines = {f"measure{at}": card.curves["risk_coverage"]["msp"] for at in range(12)}
    shapes = {f"measure{at}": card.curves["histogram"]["msp"] for at in range(12)}
    card.curves = card.curves | {"risk_coverage": lines, "histogram": shapes}
    points = figures.PAGE_POINTS // 10  # three models with the points that thirty would get
    monkeypatch.setattr(figures, "PAGE_POINTS", points)
    size = len(render_page(scorecard_story([card] * 3)).encode())
    fixed = len(pages._bundle().encode())
    assert fixed + 10 * (size - fixed) < 5_000_000


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
    done = subprocess.run([*command, *flags, path.absolute().as_uri()], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def console(log: str) -> list[str]:
    return [line for line in log.splitlines() if "CONSOLE" in line]


def chart(dom: str, key: str) -> str:
    """The markup inside one chart's element."""
    start = dom.index(f'id="{key}"')
    return dom[start : dom.index("</figure>", start)]


def test_pages__a_browser_draws_every_figure_without_an_error(one: Path, tmp_path: Path) -> None:
    dom, log = browse(one, "--dump-dom", folder=tmp_path)
    assert console(log) == []
    for key in ("risk-0", "reliability-0", "histogram-0"):
        drawn = chart(dom, key)
        assert "<svg" in drawn and "aria-label=" in drawn and "NaN" not in drawn, key
        assert "var(--accent)" in drawn
    assert dom.count('class="chosen"') >= 2  # the chosen measure is marked in the tables


def test_pages__a_browser_draws_the_open_models_and_the_comparison(several: Path, tmp_path: Path) -> None:
    dom, log = browse(several, "--dump-dom", folder=tmp_path)
    assert console(log) == []
    for key in ("models", "intervals", "risk-0", "reliability-0", "histogram-0"):
        assert "<svg" in chart(dom, key), key
    assert "<svg" not in chart(dom, "risk-1")  # drawn when a reader opens it


def test_pages__the_page_answers_to_a_reader_and_asks_for_nothing_outside(several: Path, tmp_path: Path) -> None:
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
    assert "coverage" in risk and "risk" in risk
    assert "right" in histogram and "out-of-distribution: noise" in histogram
    assert all(f"risk of {name}" in models for name in ("forest", "logistic", "tree"))
    assert "the best" in intervals
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


def test_render_page__a_browser_survives_names_that_look_like_markup(tmp_path: Path) -> None:
    card = sample_card(name=NASTY)
    lines = card.curves["risk_coverage"]
    card.curves["risk_coverage"] = {
        NASTY: lines["msp"],
        "it's \\ odd": lines["entropy"],
        "optimal": lines["optimal"],
    }
    card.curves["histogram"] = {NASTY: card.curves["histogram"]["msp"] | {"out": {NASTY: np.arange(30)}}}
    path = tmp_path / "nasty.html"
    path.write_text(render_page(scorecard_story([card, sample_card(name="b")], title=NASTY)))
    dom, log = browse(path, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>broken</title>" not in dom
    assert "<svg" in chart(dom, "risk-0") and "<svg" in chart(dom, "histogram-0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages__screenshots_for_a_person_to_look_at(several: Path, tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / f"{scheme}.png"
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(several, f"--screenshot={picture}", *flags, folder=tmp_path)
    assert picture.stat().st_size > 50_000


def test_render_page__figures_of_a_menu_are_drawn_when_their_option_is_chosen(tmp_path: Path) -> None:
    cells = [{"line": "a", "column": name, "value": 0.5, "n": 1} for name in "xy"]
    options = {key: [Figure(key, key, "caption", lambda: heat_chart(cells, "AUC", 0))] for key in ("one", "two")}
    text = render_page(Story("t", [], [Section("s", "S", [Tabs("menu", options)])]))
    turn = """<script>addEventListener("load", () => setTimeout(() => {
      const before = [...document.querySelectorAll(".chart")].filter(each => each.querySelector("svg")).length;
      const select = document.querySelector("select.turn");
      select.value = "two"; select.dispatchEvent(new Event("change"));
      setTimeout(() => { document.title = `${before} ${document.querySelector("#two svg").clientWidth > 300}`; }, 800);
    }, 1000));</script></body>"""
    path = tmp_path / "menu.html"
    before, _, after = text.rpartition("</body>")
    path.write_text(before + turn + after)
    dom, log = browse(path, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>1 true</title>" in dom


# ---- the folder


def test_write_page_fills_a_folder(tmp_path: Path) -> None:
    cards = [sample_card(name="predictions/forest.npz"), sample_card(name="predictions/tree.npz")]
    story = scorecard_story(cards, sample_comparison())
    path = write_page(story, tmp_path / "new" / "out", rows=all_rows(cards), files={"extra.bin": b"x"})
    assert path == tmp_path / "new" / "out" / "index.html"
    names = ["extra.bin", "index.html", "rows.csv", "tables.csv", "tables.md", "tables.tex"]
    assert sorted(child.name for child in path.parent.iterdir()) == names
    assert "<h1>forest.npz · tree.npz</h1>" in path.read_text()
    assert (path.parent / "tables.md").read_text() == markdown(story)
    linked = write_page(story, tmp_path / "linked", others={"../cood/index.html": "Graded"}).read_text()
    assert '<a href="../cood/index.html">Graded</a>' in linked


def test_write_page__a_machine_without_altair_writes_the_page_without_any_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the figures lie: at the top, in a fold, in a menu, side by side."""
    for name in ("altair", "vl_convert"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    drawn = [Figure(key, key, "caption", lambda: heat_chart([], "x", 0)) for key in "abc"]
    terms = Definitions([("what", "why")])
    blocks = [drawn[0], Details("fold", [drawn[1], terms]), Tabs("menu", {"one": [drawn[2]], "two": [terms]})]
    story = Story(
        "t", [], [Section("S", "S", blocks), Section("E", "only figures", [Figure("d", "", "", lambda: None)])]
    )
    text = write_page(story, tmp_path).read_text()
    assert "<figure" not in text and pages.UNDRAWN[:20] in text and "only figures" not in text
    assert text.count("<dd>why</dd>") == 2 and "<option" in text and 'value="one"' not in text
    cards = write_page(scorecard_story([sample_card()]), tmp_path / "cards").read_text()
    assert "<figure" not in cards and PREDICTIONS in cards and len(cards) < 300_000


# ---- tables and pictures


def test_render_page__intervals_stand_under_their_values() -> None:
    card = sample_card()
    card.rows = [row("auroc", 0.8, "msp", low=0.75, high=0.85), row("auroc", 0.7, "entropy")]
    text = render_page(scorecard_story([card]))
    assert "<td><strong>0.8000</strong><small> [0.7500, 0.8500]</small></td>" in text


def test_render_page__labels_have_columns_of_their_own_and_a_group_is_named_once() -> None:
    lines = tuple(((name, k), (Cell(0.5, spread=0.1),)) for name in "ab" for k in "12")
    text = render_page(Story("t", [], [Section("s", "S", [Table("T", ("method", "k"), ("x",), lines)])]))
    assert text.count('<tr class="first">') == 2 and text.count('<tr class="same">') == 2
    assert '<td class="label">2</td><td>0.5000<span class="spread"> ± 0.1000</span></td>' in text


def test_render_page__a_table_that_is_called_as_its_section_has_no_heading_of_its_own() -> None:
    table = Table("S", ("a",), ("x",), ((("p",), (None,)),))
    text = render_page(Story("t", [], [Section("s", "S", [table, Details("F", [table])])]))
    assert text.count(">S</h") == 2 and "<h2>S</h2>" in text and "not measured" in text  # once more inside the fold


def test_render_page__pictures_lie_in_the_page_itself() -> None:
    gallery = Gallery(((b"\x89PNG", NASTY, "NC 0.5"),))
    text = render_page(Story("t", [], [Section("s", "S", [gallery])]))
    (image,) = [attributes for tag, attributes in Reader(text).elements if tag == "img"]
    assert image["src"] == "data:image/png;base64,iVBORw==" and image["alt"] == f"{NASTY}, NC 0.5"


def test_render_page__sections_have_links_and_models_have_anchors_of_their_own(several: Path) -> None:
    links = [a["href"] for t, a in Reader(several.read_text()).elements if t == "a"]
    assert links == ["#model-0", "#model-1", "#model-2"]
    story = Story("t", [], [Section("What helps?", "A", [Definitions([("a", "b")])]), Section("What helps!", "B", [])])
    ids = [a.get("id") for t, a in Reader(render_page(story)).elements if t == "section"]
    assert ids == ["what-helps", "what-helps-1"]


def test_render_page__a_column_of_words_breaks_and_is_not_cut_off(tmp_path: Path) -> None:
    """A cell of a hundred letters beside five columns of numbers, in a window of 1300 pixels."""
    fronts = ", ".join(
        f"{good} by {cost}" for good in ("AUROC", "ECE", "SAC@0.99") for cost in ("parameters", "accuracy")
    )
    numbers = tuple(Cell(0.1234) for _ in range(5))
    names = [f"vit_base_patch16_{size}.augreg_in21k_ft_in1k" for size in (224, 384)]
    lines = tuple(((name,), (*numbers, Cell(text=fronts))) for name in names)
    table = Table("Pareto", ("model",), (*"abcde", "on the fronts of"), lines)
    page = tmp_path / "index.html"
    measured = "document.title=[...document.querySelectorAll('.scroll')].map(s=>s.scrollWidth-s.clientWidth).join()"
    text = render_page(Story("t", [], [Section("s", "S", [table])]))
    assert '<td class="text">AUROC by parameters' in text
    page.write_text(text.replace("</body>", f"<script>{measured}</script></body>"))
    dom, _ = browse(page, "--dump-dom", "--window-size=1300,2000", folder=tmp_path)
    assert "<title>0</title>" in dom
