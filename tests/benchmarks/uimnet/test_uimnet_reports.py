"""A UIMNET study's rows become tables whose numbers can be checked by hand, and a page that a real browser draws."""

from __future__ import annotations

import csv
import json
import math
import random
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from nescio.benchmarks.base import story_of
from nescio.benchmarks.uimnet import Plan, reports
from nescio.cli import main
from nescio.report.blocks import tables_of
from nescio.report.frame import Frame
from nescio.report.named_reports import report_names
from nescio.report.studies import Study, files, read_study, write_story
from nescio.report.tables import Cell, Table
from nescio.rows import COLUMNS, Row, to_parquet
from nescio.work.launchers import Failure
from tests.report.test_pages import HARMLESS, NASTY, Reader, browse, chart, console, figures_of

METHODS = ("erm", "mixup", "due")
MEASURES = ("msp", "entropy", "native")
TITLES = (
    "Validation NLL against OOD detection",
    "In-distribution results (Table 2)",
    "Out-of-distribution results (Table 3)",
    "Failed steps",
    "Missing results",
)  # of the last sections


def row(**facts: Any) -> Row:
    base = {"benchmark": "uimnet", "version": 1, "dataset": "digits", "backbone": "conv", "members": 1}
    base |= {"evaluation": "scorecard"}
    return dict.fromkeys(COLUMNS) | base | {"calibrated": False, "split": "test", "data_seed": 0, "n": 100} | facts


def rows_of(
    methods: tuple[str, ...] = METHODS,
    measures: tuple[str, ...] = MEASURES,
    backbones: tuple[str, ...] = ("conv",),
    seeds: int = 2,
) -> list[Row]:
    """Rows as the benchmark makes them; `erm` has no native measure; the AUROC of errors is far from that of news."""
    rng, rows = random.Random(0), []
    for seed in range(seeds):
        for backbone in backbones:
            for place, method in enumerate(methods):
                facts = {"data_seed": seed, "backbone": backbone, "method": method}
                for trial in range(2):
                    one = facts | {"trial": trial, "evaluation": "search", "calibrated": False}
                    rows.append(row(**one, split="val", metric="nll", value=0.1 + rng.random()))
                    rows.append(row(**one, split="out", metric="auroc", measure="entropy", value=0.9 * rng.random()))
                for members in (1, 5):
                    for calibrated in (False, True):
                        for spectral in (None, 5.0):
                            line = facts | {"members": members, "calibrated": calibrated, "spectral": spectral}
                            for metric in ("accuracy", "accuracy@5", "nll", "ece", "brier"):
                                rows.append(row(**line, metric=metric, value=rng.uniform(0.2, 0.9)))
                            for measure in measures:
                                if (method, measure) == ("erm", "native"):
                                    continue
                                own = line | {"measure": measure}
                                news = 0.9 - 0.01 * place + 0.001 * rng.random()
                                rows.append(row(**own, split="out", metric="auroc", value=news))
                                rows.append(row(**own, split="test", metric="auroc", value=0.1))
                                rows.append(row(**own, split="test", metric="in_as_in", value=0.95))
                                rows.append(row(**own, split="out", metric="out_as_out", value=0.5))
        for metric, value in (("auroc", 0.99), ("in_as_in", 0.95), ("out_as_out", 0.98)):
            split = reports.SPLIT[metric]
            rows.append(row(data_seed=seed, method="oracle", measure="oracle", split=split, metric=metric, value=value))
    return rows


def study_of(rows: list[Row] | None = None, **changes: Any) -> Study:
    """A study with a failure, reasons and a note."""
    plan = Plan(methods=METHODS, classes=tuple(range(6)), ood_classes=(6, 7, 8, 9))
    native = {"method": "erm", "measure": "native", "metric": None, "split": "test"}
    votes = {"method": "due", "measure": None, "metric": "human_alignment", "split": "test"}
    return Study(
        benchmark="uimnet",
        version=1,
        rows=rows_of() if rows is None else rows,
        plan=asdict(plan) | changes,
        reasons=[native | {"reason": "It has no native score."}, votes | {"reason": "No votes."}],
        failures=[Failure("due, trial 1", "The loss became NaN.")],
        notes=["Ensembles have up to five members."],
        packages={"nescio": "0.1.0", "torch": "2.11"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = study_of()
    return write_story(study, story_of(study), tmp_path_factory.mktemp("study") / "report").parent


def line(table: Table, *labels: str) -> dict[str, Cell]:
    return {head: cell for (own, head), cell in table.cells().items() if own == labels}


# ---- the tables


def test_table_3_asks_for_new_against_known_never_for_right_against_wrong() -> None:
    rows = rows_of()
    (table,) = reports.table_3(Frame(rows)).options["entropy"]
    assert table.index == ("algorithm", "k", "calibration", "spectral norm")
    facts = {"method": "due", "members": 5, "calibrated": True, "spectral": 5.0, "measure": "entropy", "split": "out"}
    own = [r["value"] for r in rows if r["metric"] == "auroc" and facts.items() <= r.items()]
    assert len(own) == 2
    shown = line(table, "due", "5", "calibrated", "5")
    assert shown["AUC ↑"].value == pytest.approx(fmean(own)) and shown["AUC ↑"].spread == pytest.approx(stdev(own))
    assert str(shown["AUC ↑"]) == f"{fmean(own):.3f} ± {stdev(own):.3f}"
    labels, last = table.rows[-1]
    assert labels == ("oracle", "–", "–", "–") and last[0] is not None and str(last[0]).startswith("0.990")
    assert not last[0].best  # it has seen both sides; the best of those that have not is bold
    assert any(cell.best for (_, head), cell in table.cells().items() if head == "AUC ↑")


def test_table_2_marks_the_best_mean_of_every_column() -> None:
    (table,) = reports.table_2(Frame(rows_of()))
    assert table.columns == ("ACC@1 ↑", "ACC@5 ↑", "NLL ↓", "ECE ↓") and len(table.rows) == len(METHODS) * 8
    for name in table.columns:
        column = [cell for (_, head), cell in table.cells().items() if head == name]
        best = (min if "↓" in name else max)(cell.value for cell in column)
        assert [cell.value for cell in column if cell.best and cell.value != best] in (
            [],
            [pytest.approx(best, abs=1e-3)],
        )
        assert any(cell.best for cell in column)


def test_table_2__label_columns_that_tell_nothing_apart_are_left_out() -> None:
    rows = [r for r in rows_of() if r["spectral"] is None and r["evaluation"] == "scorecard" and r["members"] == 1]
    (table,) = reports.table_2(Frame(rows))
    assert table.index == ("algorithm", "calibration")


def test_effects__main_effects_are_mean_relative_changes_of_pairs() -> None:
    rows = []
    for method, raw in (("a", 0.10), ("b", 0.40)):
        for calibrated in (False, True):
            value = raw / 2 if calibrated else raw
            rows.append(row(method=method, calibrated=calibrated, metric="ece", value=value))
            rows.append(row(method=method, calibrated=calibrated, metric="accuracy", value=0.8))
    table = reports.effects(Frame(rows))
    ((labels, _),) = table.rows
    assert labels == ("calibration (raw → calibrated)",)
    shown = line(table, *labels)
    assert str(shown["ECE ↓"]) == "-50.0 %" and shown["ECE ↓"].best
    assert str(shown["ACC@1 ↑"]) == "0.0 %" and not shown["ACC@1 ↑"].best
    assert "AUC ↑" not in shown


def test_effects__a_spectral_norm_of_one_is_no_calibration() -> None:
    rows = [row(method="a", spectral=s, metric="nll", value=v) for s, v in ((None, 1.0), (1.0, 3.0))]
    table = reports.effects(Frame(rows))
    shown = line(table, "spectral norm (off → 1)")
    assert len(table.rows) == 1 and str(shown["NLL ↓"]) == "+200.0 %" and not shown["NLL ↓"].best


def test_heat_cells__measures_are_ranked_over_what_has_them() -> None:
    frame = Frame(rows_of())
    table = reports.ranking(frame)
    values = {labels[0]: cell.value for (labels, head), cell in table.cells().items() if head == "AUC ↑"}
    assert list(values.values()) == sorted(values.values(), reverse=True) and set(values) == set(MEASURES)  # type: ignore[type-var]
    assert next(iter(values)) != "native"  # the best method does not have it
    heat = reports.heat_cells(frame)
    assert ("erm", "native") not in {(cell["line"], cell["column"]) for cell in heat}
    assert all(cell["n"] == 8 for cell in heat) and len(heat) == 8


def test_overview__the_first_table_holds_calibrated_single_networks_without_ablations() -> None:
    rows = rows_of()
    table = reports.overview(Frame(rows))
    facts = {"method": "erm", "members": 1, "calibrated": True, "spectral": None, "metric": "accuracy"}
    own = [r["value"] for r in rows if facts.items() <= r.items()]
    first, cells = table.rows[0]
    assert first == ("erm",) and str(cells[0]) == f"{100 * fmean(own):.1f} %"
    only = [r for r in rows if r["spectral"] == 5.0 and not r["calibrated"]]  # whatever was tried is shown
    assert len(reports.overview(Frame(only)).rows) == len(METHODS)


def test_nll_against_auc__a_point_of_the_plot_is_a_trained_network() -> None:
    points = reports.nll_against_auc(Frame(rows_of()))
    assert len(points) == len(METHODS) * 2 * 2
    assert len({(point["name"], point["about"]) for point in points}) == len(points)


def test_networks__figures_hold_their_points_under_the_names_of_their_axes() -> None:
    frame = Frame(rows_of())
    networks, heat, methods = reports.networks(frame), reports.heat(frame), reports.methods(frame)
    assert networks and heat and methods
    assert list(networks.points[0]) == ["method", "network", "validation NLL", reports.AUC]
    assert list(heat.points[0]) == ["method", "measure", "AUC", "lines"] and len(heat.points) == 8
    assert [point["as"] for point in methods.points] == ["one network"] * 3 + ["ensemble of 5"] * 3


def test_table_3__rows_that_hold_nothing_make_no_report() -> None:
    empty = Frame()
    made = [reports.overview(empty), reports.effects(empty), reports.ranking(empty), *reports.table_2(empty)]
    assert not any(made) and not reports.table_3(empty).options
    assert [made(empty) for made in (reports.methods, reports.heat, reports.networks, reports.search)] == [None] * 4
    names = {"look", "effects", "ranking", "table2", "table3", "methods", "heat", "networks", "search"}
    assert set(report_names("uimnet")) == names


def test_plan__the_lead_says_what_was_done_and_what_came_out() -> None:
    text = " ".join(reports.story(study_of()).lead)
    assert text.startswith("Three methods") and "six classes" in text and "four OOD classes" in text
    assert "erm, 0.9" in text and "oracle 0.99" in text and "failed" in text
    bare = " ".join(reports.lead(Study(benchmark="uimnet", version=1, rows=rows_of())))
    assert bare.startswith("Three methods") and "some classes" in bare


def test_plan__the_lead_names_winners_with_what_data_seeds_can_tell() -> None:
    """A paired t-test over data seeds; measures are compared over the same lines, which `native` is not."""
    close = [
        row | {"value": row["value"] - 0.002 * (row["method"] == "mixup") * (row["data_seed"] - 0.9)}
        if row["metric"] == "auroc" and row["split"] == "out"
        else row
        for row in rows_of(seeds=5)
    ]
    lead = reports.lead(study_of(close))
    assert any("mixup, is +0.0" in text and "five seeds" in text for text in lead)
    noisy = [
        row | {"value": row["value"] + 0.05 * (-1) ** row["data_seed"]} if row["method"] == "mixup" else row
        for row in close
    ]
    assert any("detection: erm" in text and "mixup (paired" in text for text in reports.lead(study_of(noisy)))
    assert "not tested: one seed" in " ".join(reports.lead(study_of(rows_of(seeds=1))))
    high = [row | {"value": 0.99} if row["measure"] == "native" else row for row in rows_of()]
    (best,) = [text for text in reports.lead(study_of(high)) if "mean AUC" in text]
    assert "native" not in best


# ---- the files


def test_plan__the_folder_holds_everything_and_gives_the_study_back(folder: Path, tmp_path: Path) -> None:
    names = {
        "index.html",
        "manifest.json",
        "plan.json",
        "rows.csv",
        "rows.parquet",
        "tables.csv",
        "tables.md",
        "tables.tex",
    }
    assert {child.name for child in folder.iterdir()} == names
    again = read_study(folder / "rows.parquet")
    assert again.rows == study_of().rows and again.failures == study_of().failures
    assert again.plan["methods"] == list(METHODS) and again.plan["trials"] == 3
    write_story(again, story_of(again), tmp_path)
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_uimnet_reports__latex_has_a_column_for_each_ablation(folder: Path) -> None:
    text = (folder / "tables.tex").read_text()
    assert r"algorithm & k & calibration & spectral norm & AUC $\uparrow$" in text
    assert r"\begin{tabular}{llllrrr}" in text and r"\addlinespace" in text and r" $\pm$ " in text
    for block in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert all(line.count(" & ") == len(block[0]) - 1 for line in lines)
    assert not re.search(r"(?<!\\)%", text)


def test_plan__csv_holds_every_cell(folder: Path) -> None:
    with (folder / "tables.csv").open() as file:
        entries = list(csv.DictReader(file))
    assert len(entries) == sum(len(table.cells()) for table in tables_of(reports.story(study_of())))
    assert all(math.isfinite(float(entry["value"])) for entry in entries)


# ---- the command


def test_plan__studies_of_one_benchmark_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two halves and what both have, each row once; the page is that of the whole and names both commands."""
    halves = [[each for each in rows_of() if each["method"] in methods] for methods in (METHODS[:2], METHODS[1:])]
    one, two = study_of(halves[0]), study_of(halves[1], trials=7)
    for name, study in (("one", one), ("two", two)):
        write_story(study, story_of(study), tmp_path / name)
    sources = [str(tmp_path / name / "rows.parquet") for name in ("one", "two")]
    assert main(["report", *sources, "--output", str(tmp_path / "both")]) == 0
    both = read_study(tmp_path / "both")
    assert {row["method"] for row in both.rows} == {*METHODS}
    keys = [tuple(sorted((key, str(value)) for key, value in row.items())) for row in both.rows]
    assert (
        len(keys) == len(set(keys)) == sum(each["method"] in METHODS for each in rows_of()) and len(both.failures) == 1
    )
    assert "trials" not in both.plan and both.plan["methods"] == list(METHODS)
    assert [part["trials"] for part in both.parts] == [3, 7]
    page = (tmp_path / "both" / "index.html").read_text()
    assert page.count("Made by") == 2 and "--trials 7" in page

    capsys.readouterr()
    assert main(["report", *sources, "--study", "a", "--output", str(tmp_path)]) == 2
    assert "within one store" in capsys.readouterr().err
    other = tmp_path / "other.parquet"
    other.write_bytes(to_parquet([each | {"version": 99} for each in one.rows]))
    assert main(["report", sources[0], str(other), "--output", str(tmp_path / "no")]) == 2
    assert "version" in capsys.readouterr().err and not (tmp_path / "no").exists()
    other.write_bytes(to_parquet([each | {"value": 0.5, "low": 0.4, "high": 0.6} for each in one.rows]))
    assert main(["report", sources[0], str(other), "--output", str(tmp_path / "no")]) == 2
    assert "erm, conv, digits" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_uimnet_reports__report_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    code = "import sys; from nescio.cli import main; c = main(sys.argv[1:]); sys.exit(c or 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "report", str(folder / "rows.parquet"), "--output", str(tmp_path / "again")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Three methods" in done.stdout and "Effect of every ablation" in done.stdout
    assert (tmp_path / "again" / "index.html").read_bytes() == (folder / "index.html").read_bytes()


def test_plan__report_takes_the_newest_study_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nescio.work.store import Store

    assert main(["report", str(tmp_path / "nowhere")]) == 2 and "There is no store" in capsys.readouterr().err
    (tmp_path / "store").mkdir()
    assert main(["report", str(tmp_path / "store")]) == 2 and "contains no study" in capsys.readouterr().err
    keys = []
    for number, methods in enumerate((("erm", "due"), METHODS)):
        plan = Plan(methods=methods)
        with Store(tmp_path / "store").work("study", {"benchmark": "uimnet", "plan": plan}) as step_folder:
            assert step_folder is not None
            for name, content in files(study_of(rows_of(methods))).items():
                step_folder.write(name, content)
        keys.append(Store(tmp_path / "store").key("study", {"benchmark": "uimnet", "plan": plan}))
        env = tmp_path / "store" / "study" / keys[-1] / "env.json"
        env.write_text(json.dumps(json.loads(env.read_text()) | {"started": f"2030-01-0{number + 1}"}))
    assert main(["report", str(tmp_path / "store"), "--format", "markdown"]) == 0
    found = capsys.readouterr()
    assert "| mixup |" in found.out and "--study" in found.err and keys[0] in found.err
    assert not (tmp_path / "store" / "report").exists()  # a text was asked for, and no folder
    assert main(["report", str(tmp_path / "store"), "--study", keys[0], "--format", "markdown"]) == 0
    assert "mixup" not in capsys.readouterr().out
    assert main(["report", str(tmp_path / "store"), "--study", "ffffffffffffffffff"]) == 2
    assert keys[0] in capsys.readouterr().err


# ---- the page


def test_plan__the_page_opens_with_what_a_newcomer_understands(folder: Path) -> None:
    text = (folder / "index.html").read_text()
    reader = Reader(text)
    assert re.findall(r"<h2>(.*?)</h2>", text[: text.index("<script")]) == [
        *(table.title for table in reports.first_look(study_of())),
        *TITLES,
    ]
    for tag, attributes in reader.elements:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert all(a.startswith(HARMLESS) for a in re.findall(r"""https?://[^\s"'`<>)\\]+""", text))
    assert {f"#{a['id']}" for t, a in reader.elements if t == "section"} == {
        a["href"] for t, a in reader.elements if t == "a"
    }
    assert set(figures_of(text)) == {"methods", "heat", "networks"}
    assert not re.findall(r"#[0-9a-f]{6}", json.dumps(figures_of(text)))
    assert all(spec["description"] for spec in figures_of(text).values())
    for words in ("The loss became NaN.", "It has no native score.", "Ensembles have up to five members."):
        assert words in text
    assert "No votes." not in text  # of a metric that this page does not show
    assert "nescio run uimnet" in text and "--classes 0,1,2,3,4,5 --ood-classes 6,7,8,9" in text
    for table in tables_of(reports.story(study_of())):
        assert all(str(cell) in reader.cells for cell in table.cells().values())


def test_uimnet_reports__a_browser_draws_the_study_and_turns_its_panes(folder: Path, tmp_path: Path) -> None:
    play = """<script>addEventListener("load", async () => {
      const wait = ms => new Promise(done => setTimeout(done, ms));
      await wait(1500);
      const shown = () => [...document.querySelectorAll(".pane")].filter(p => !p.hidden).map(p => p.dataset.pane);
      const before = shown(), select = document.querySelector("select.turn");
      select.value = "msp"; select.dispatchEvent(new Event("change"));
      const tips = [];
      for (const key of ["methods", "heat", "networks"]) {
        document.getElementById(key).scrollIntoView({behavior: "instant", block: "center"});
        const mark = key === "heat" ? ".mark-rect path" : ".mark-symbol.role-mark path";
        const under = document.querySelector(`#${key} ${mark}`), box = under.getBoundingClientRect();
        const at = {clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true};
        for (const kind of ["pointerover", "pointermove"]) under.dispatchEvent(new PointerEvent(kind, at));
        await wait(300);
        tips.push(document.querySelector("#vg-tooltip-element").textContent);
      }
      const wide = document.documentElement.scrollWidth <= innerWidth;
      document.body.append(Object.assign(document.createElement("pre"), {id: "result", textContent:
        JSON.stringify({before, after: shown(), tips, wide,
          asked: performance.getEntriesByType("resource").map(e => e.name)})}));
    });</script></body>"""
    before, _, after = (folder / "index.html").read_text().rpartition("</body>")
    (tmp_path / "played.html").write_text(before + play + after)
    for size in ("1280,2000", "500,2000"):
        dom, log = browse(tmp_path / "played.html", "--dump-dom", f"--window-size={size}", folder=tmp_path)
        assert console(log) == []
        for key in ("methods", "heat", "networks"):
            assert "<svg" in chart(dom, key) and "NaN" not in chart(dom, key), key
        found = re.search(r'<pre id="result">(.*?)</pre>', dom)
        assert found, dom[-2000:]
        result = json.loads(found[1])
        methods, heat, networks = result.pop("tips")
        assert result == {"before": ["entropy"], "after": ["msp"], "wide": True, "asked": []}, size
        assert "mean" in methods and "AUC" in heat and "validation NLL" in networks and "trial" in networks
        assert not any(word in tip for tip in (methods, heat, networks) for word in ("undefined", "NaN", "null"))


@pytest.mark.slow
def test_story_of__thirty_methods_and_names_that_look_like_markup(tmp_path: Path) -> None:
    methods = (NASTY, *(f"method-{number}" for number in range(29)))
    rows = rows_of(methods, tuple(f"measure {number}" for number in range(9)), ("small", "large"))
    study = Study(benchmark="uimnet", version=1, rows=rows, failures=[Failure(NASTY, NASTY)], notes=[NASTY])
    path = write_story(study, story_of(study), tmp_path)
    assert path.stat().st_size < 5_000_000
    dom, log = browse(path, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>broken</title>" not in dom
    for key in ("methods", "heat", "networks"):
        assert "<svg" in chart(dom, key)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_uimnet_reports__screenshots_for_a_person_to_look_at(folder: Path, tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / f"{scheme}.png"
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(folder / "index.html", f"--screenshot={picture}", *flags, folder=tmp_path)
    assert picture.stat().st_size > 50_000


def test_plan__the_defaults_stand_beside_the_selected_trial() -> None:
    """Two methods whose networks are the same at the defaults differ by the trial that was drawn and selected."""
    rows = []
    for method, (second, third) in {"erm": (0.30, 0.30), "rnd": (0.60, 0.30)}.items():
        for trial, accuracy in enumerate((0.40, second, third)):
            for seed in range(2):
                one = {"method": method, "trial": trial, "data_seed": seed, "evaluation": "search"}
                rows.append(row(**one, split="val", metric="nll", value=1 - accuracy))
                rows.append(row(**one, split="test", metric="accuracy", value=accuracy + 0.01 * seed))
                rows.append(row(**one, split="out", metric="auroc", measure="entropy", value=0.7))
    table = reports.search(Frame(rows))
    assert table is not None
    defaults, selected = (line(table, "erm", name)["ACC@1 ↑"] for name in ("defaults", "selected (trial 0)"))
    assert defaults == selected and defaults.value == pytest.approx(0.405)
    assert line(table, "rnd", "defaults")["ACC@1 ↑"].value == defaults.value
    assert line(table, "rnd", "selected (trial 1)")["ACC@1 ↑"].value == pytest.approx(0.605)
    every = line(table, "rnd", "all trials")["ACC@1 ↑"]
    assert every.spread == pytest.approx(stdev([0.40, 0.41, 0.60, 0.61, 0.30, 0.31]))
    assert reports.search(Frame(row for row in rows if row["trial"] == 0)) is None
    study = study_of(rows)
    assert any(block.title == table.title for block in tables_of(reports.story(study)))


def test_plan__a_deep_ensemble_is_a_line_of_the_first_table_and_of_the_lead():
    rows = rows_of(("erm", "mixup", "deep-ensemble"))
    rows = [row for row in rows if row["method"] != "deep-ensemble" or row["members"] == 5]
    table = reports.overview(Frame(rows))
    assert len(table.rows) == 3 and "deep-ensemble" in table.note
    ahead = [
        {**row, "value": 0.95} if row["method"] == "deep-ensemble" and row["metric"] == "auroc" else row for row in rows
    ]
    assert "OOD detection: deep-ensemble," in " ".join(reports.lead(study_of(ahead)))
    alone = reports.overview(Frame(rows_of()))
    assert len(alone.rows) == 3 and "deep-ensemble" not in alone.note
