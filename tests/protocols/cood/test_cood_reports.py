"""The named reports of graded detection: every number again, the plain way, from the same rows."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import pytest
from scipy import stats
from test_pages import NASTY, browse, chart, console

from nescio.networks import families, regimes
from nescio.protocols.cood import Plan, reports
from nescio.report import Table
from nescio.report.boxes import Box, box_figure, levels_figure
from nescio.report.pages import Choice, Figure, Fold
from nescio.report.studies import Told, named, print_study, story_of, tables_of, within, write_named, write_study
from nescio.rows import COLUMNS, Row, to_parquet

MODELS = (
    *("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch16_224.augreg_in21k_ft_in1k"),
    *("vit_base_patch16_224.augreg_in21k_ft_in1k", "vit_large_patch16_224.augreg_in21k_ft_in1k"),
    *("resnet18.tv_in1k", "resnet34.tv_in1k", "resnet50.tv_in1k", "resnet101.tv_in1k"),
    *("xcit_nano_12_p16_224.fb_in1k", "xcit_nano_12_p16_224.fb_dist_in1k"),
    *("xcit_tiny_12_p16_224.fb_in1k", "xcit_tiny_12_p16_224.fb_dist_in1k"),
    *("mobilenetv3_large_100.ra_in1k", "mobilenetv3_large_100.miil_in21k_ft_in1k"),
)
LEVELS = [f"severity {level}" for level in range(11)]


def row(**facts: Any) -> Row:
    base = {"protocol": "cood", "version": 1, "dataset": "imagenet:/data/val", "method": "pretrained", "members": 1}
    return dict.fromkeys(COLUMNS) | base | {"calibrated": False, "split": "out", "n": 100} | facts


def rows_of(models: tuple[str, ...] = MODELS, dropout: int = 5, seed: int = 0) -> list[Row]:
    """Rows as the protocol makes them; the first `dropout` models have MC-dropout; one set is the same for all."""
    rng, rows = random.Random(seed), []
    for name in models:
        own = {"backbone": name, "params": rng.randrange(2_000_000, 90_000_000)}
        facts = {"accuracy": rng.uniform(0.6, 0.9), "input_size": rng.choice([224, 299, 384])}
        facts["embedding_size"] = rng.choice([192, 512, 2048])
        rows += [row(**own, split="test", metric=metric, value=value) for metric, value in facts.items()]
        rows += [row(**own, metric=metric, value=value) for metric, value in (("out_classes", 60), ("window", 10))]
        for κ in ("largest", "entropy", *(["mc-dropout"] if name in models[:dropout] else [])):
            skill = rng.uniform(0.8, 0.95)
            rows.append(row(**own, split="test", measure=κ, metric="auroc", value=rng.uniform(0.7, 0.9)))
            for level, group in enumerate(LEVELS):
                value = skill - 0.03 * level + rng.uniform(-0.02, 0.02)
                rows.append(row(**own, group=group, measure=κ, metric="auroc", value=value))
                rows.append(row(**own, group=group, measure=κ, metric="severity", value=-1 + 0.05 * level))
            rows.append(row(**own, group="imagenet-o", measure=κ, metric="auroc", value=rng.uniform(0.3, 0.7)))
    for κ in ("largest", "entropy"):
        for level, group in enumerate(LEVELS):
            rows.append(row(group=group, measure=κ, metric="union", value=60 - level, n=len(models)))
            rows.append(row(group=group, measure=κ, metric="intersection", value=level // 4, n=len(models)))
    rows.append(row(group="17 · viceroy · fox squirrel", metric="same_answer", value=9, n=len(models)))
    return rows


ROWS = rows_of()


def value(name: str, group: str | None, κ: str | None = "largest", metric: str = "auroc", split: str = "out") -> float:
    facts = {"backbone": name, "group": group, "measure": κ, "metric": metric, "split": split}
    (found,) = [r["value"] for r in ROWS if facts.items() <= r.items()]
    return float(found)


def have(κ: str) -> list[str]:
    return [n for n in MODELS if any(r["backbone"] == n and r["measure"] == κ for r in ROWS)]


def cells(table: Table, line: str) -> dict[str, Any]:
    return dict(zip(table.heads, dict(table.lines)[line], strict=True))


def rho(a: list[float], b: list[float]) -> float:
    return float(stats.spearmanr(a, b).statistic)


# ---- Figure 6


@pytest.mark.parametrize("κ", ["largest", "entropy", "mc-dropout"])
def test_figure_6_is_the_quartiles_of_all_models(κ: str) -> None:
    table = reports.severities(ROWS, κ)
    assert [name for name, _ in table.lines] == [*LEVELS, "imagenet-o"]
    for group in (*LEVELS, "imagenet-o"):
        values = {name: value(name, group, κ) for name in have(κ)}
        shown = cells(table, group)
        ordered = sorted(values.values())
        low, mid, high = quantiles(ordered, n=4, method="inclusive")
        expected = (ordered[0], low, mid, high, ordered[-1])
        found = [shown[h].value for h in ("lowest", "lower quartile", "median", "upper quartile", "highest")]
        assert found == pytest.approx(expected)
        assert shown["best model"].text == max(values, key=lambda name: values[name])
        assert shown["models"].value == len(values)


def test_figure_6_draws_all_levels_the_fixed_set_and_the_best_model() -> None:
    picture, tables = reports.fig_6(ROWS)
    assert isinstance(picture, Figure) and isinstance(tables, Choice)
    assert list(tables.options) == ["softmax", "entropy", "MC-dropout"]
    best = max(MODELS, key=lambda name: fmean(value(name, g) for g in [*LEVELS, "imagenet-o"]))
    best_of = reports.models_of(ROWS).best()
    text = json.dumps(picture.chart().to_dict())
    assert best_of is not None and best_of in text and "resnet50.tv_in1k" in text and "imagenet-o" in text
    assert best_of in (best, max(MODELS, key=lambda name: fmean(value(name, g) for g in LEVELS)))


def test_the_best_model_is_best_over_severities_not_on_fixed_sets() -> None:
    rows = []
    for name, graded, fixed in (("a", 0.8, 0.1), ("b", 0.7, 0.99)):
        rows += [row(backbone=name, group=g, measure="largest", metric="auroc", value=graded) for g in LEVELS]
        rows.append(row(backbone=name, group="hard", measure="largest", metric="auroc", value=fixed))
    assert reports.models_of([*rows, *(r | {"group": "other", "value": 1.0} for r in rows[-1:])]).best() == "a"


# ---- Figures 7, 19, 20


FACTORS: dict[str, Callable[[str], float]] = {
    "fig7": lambda name: value(name, None, split="test"),
    "fig19": lambda name: next(r["params"] for r in ROWS if r["backbone"] == name),
    "fig20": lambda name: value(name, None, None, "accuracy", "test"),
}


@pytest.mark.parametrize("key", FACTORS)
def test_scatters_are_severity_5_with_correlations_by_family(key: str) -> None:
    picture, table, *_ = reports.REPORTS[key](ROWS)
    assert isinstance(picture, Figure) and isinstance(table, Table)
    of = FACTORS[key]
    groups = {"all models": list(MODELS)}
    for name in MODELS:
        groups.setdefault(families.label(families.family(name)), []).append(name)
    groups = {name: own for name, own in groups.items() if len(own) >= 3}
    assert {name for name, _ in table.lines} == set(groups) == {"all models", "ViT", "ResNet"}
    for name, own in groups.items():
        count, ρ = dict(table.lines)[name]
        assert count is not None and count.value == len(own)
        assert ρ is not None and ρ.value == pytest.approx(rho([value(n, "severity 5") for n in own], [*map(of, own)]))
    text = json.dumps(picture.chart().to_dict(), ensure_ascii=False)
    points = next(text for text in _data(picture) if text.startswith("name,model,x,y"))
    assert len(points.splitlines()) == 1 + len(MODELS)
    for family in ("ViT", "ResNet"):
        ρ = dict(table.lines)[family][1]
        assert ρ is not None and f"{family} ({ρ.text}, 4)" in text


def _data(picture: Figure) -> list[str]:
    """What the chart shows, as CSV texts."""
    spec = picture.chart().to_dict()
    return list(spec["datasets"].values())


def test_figure_19_marks_the_sizes_of_two_resnets_and_names_the_best_below() -> None:
    picture, _, small = reports.fig_19(ROWS)
    assert isinstance(picture, Figure) and isinstance(small, Table)
    marks = [text for text in _data(picture) if re.fullmatch(r"x\n[\d.e+]+\n", text)]
    assert sorted(float(mark.split()[1]) for mark in marks) == pytest.approx([25_557_032, 44_549_160], rel=1e-4)
    params = {name: FACTORS["fig19"](name) for name in MODELS}
    for (_, found), most in zip(small.lines, (25_557_032, 44_549_160), strict=True):
        own = [name for name in MODELS if params[name] <= most]
        best = max(own, key=lambda name: value(name, "severity 5"))
        assert found[0] is not None and found[0].text == best and found[0].value == value(best, "severity 5")
        assert found[3] is not None and found[3].value == len(own)


# ---- Figure 21


def test_regimes_are_mean_relative_improvements_over_counterparts() -> None:
    table = reports.regime_table(ROWS)
    names = {
        "xcit_nano_12_p16_224.fb_dist_in1k": "xcit_nano_12_p16_224.fb_in1k",
        "xcit_tiny_12_p16_224.fb_dist_in1k": "xcit_tiny_12_p16_224.fb_in1k",
    }
    pairs = {(p.model, p.counterpart, p.regime) for p in regimes.pairs(MODELS) if p.counterpart}
    assert {(a, b, "distillation") for a, b in names.items()} <= pairs
    assert {kind for kind, _ in table.lines} == {reports.TAUGHT.get(r, r) for _, _, r in pairs}
    for kind, found in table.lines:
        own = [(a, b) for a, b, r in pairs if b and reports.TAUGHT.get(r, r) == kind]
        assert found[0] is not None and found[0].value == len(own)
        for cell, group in zip(found[1:], LEVELS, strict=True):
            expected = fmean((value(a, group) - value(b, group)) / value(b, group) for a, b in own)
            assert cell is not None and cell.value == pytest.approx(expected) and cell.best == (expected > 0)
    assert (
        reports.fig_21([r for r in ROWS if "dist" not in str(r["backbone"]) and "miil" not in str(r["backbone"])]) == []
    )


def test_pruning_with_its_teacher_is_distillation_in_any_form() -> None:
    """§3 counts knapsack pruning, whose teacher is the unpruned network, as distillation."""
    found = next(p for p in regimes.table() if p.regime == regimes.PRUNING_TAUGHT and p.counterpart)
    pair = (found.model, str(found.counterpart))
    ((kind, _),) = reports.regime_table(rows_of(pair)).lines
    assert kind == "distillation"


# ---- Figures 22 to 24


@pytest.mark.parametrize(
    ("figure", "after", "before"),
    [(22, "entropy", "largest"), (23, "mc-dropout", "largest"), (24, "mc-dropout", "entropy")],
)
def test_one_measure_against_another(figure: int, after: str, before: str) -> None:
    picture, table = reports.REPORTS[f"fig{figure}"](ROWS)
    assert isinstance(picture, Figure) and isinstance(table, Table)
    both = [name for name in have(after) if name in have(before)]
    assert [name for name, _ in table.lines] == LEVELS
    for group in LEVELS:
        gains = [(value(n, group, after) - value(n, group, before)) / value(n, group, before) for n in both]
        shown = cells(table, group)
        assert shown["median"].value == pytest.approx(median(gains))
        assert (shown["lowest"].value, shown["highest"].value) == pytest.approx((min(gains), max(gains)))
        assert shown["mean"].value == pytest.approx(fmean(gains))
        assert shown["better"].value == pytest.approx(sum(g > 0 for g in gains) / len(gains))
        assert shown["models"].value == len(both) and shown["median"].best == (median(gains) > 0)
    assert picture.chart().to_dict()


def test_without_dropout_there_is_no_figure_23() -> None:
    rows = rows_of(dropout=0)
    assert reports.fig_23(rows) == [] == reports.fig_24(rows) and len(reports.fig_22(rows)) == 2


# ---- Figures 25 and 26


def test_figure_25_is_spearman_between_severities() -> None:
    picture, table = reports.fig_25(ROWS)
    assert isinstance(picture, Figure) and isinstance(table, Table)
    assert [name for name, _ in table.lines] == [f"s{level}" for level in range(10, -1, -1)]
    assert table.heads == tuple(f"s{level}" for level in range(11))
    for a, own in table.lines:
        for b, cell in zip(table.heads, own, strict=True):
            first, second = ([value(n, f"severity {each[1:]}") for n in MODELS] for each in (a, b))
            assert cell is not None and cell.value == pytest.approx(rho(first, second))
            assert cell.value == pytest.approx(cells(table, b)[a].value)  # symmetric
        assert cells(table, a)[a].text == "1.00"
    assert picture.chart().to_dict()


def test_figure_26_is_spearman_with_five_factors() -> None:
    picture, table = reports.fig_26(ROWS)
    assert isinstance(picture, Figure) and isinstance(table, Table)
    of: dict[str, Callable[[str], float]] = {
        "accuracy": FACTORS["fig20"],
        "ID-AUROC": FACTORS["fig7"],
        "#parameters": FACTORS["fig19"],
        "input size": lambda name: value(name, None, None, "input_size", "test"),
        "embedding size": lambda name: value(name, None, None, "embedding_size", "test"),
    }
    assert [name for name, _ in table.lines] == list(of)
    for name, own in table.lines:
        for group, cell in zip(LEVELS, own, strict=False):
            expected = rho([value(n, group) for n in MODELS], [of[name](n) for n in MODELS])
            assert cell is not None and cell.value == pytest.approx(expected)
    assert picture.chart().to_dict()


def test_a_factor_that_never_varies_is_absent() -> None:
    rows = [r | {"value": 224.0} if r["metric"] == "input_size" else r for r in ROWS]
    assert "input size" not in dict(reports.factors(rows).lines)
    assert "embedding size" not in dict(reports.factors([r for r in ROWS if r["metric"] != "embedding_size"]).lines)


# ---- M.8, Figure 27


def test_overlap_tells_union_and_intersection() -> None:
    table = reports.overlap(ROWS)
    assert table.split(table.corner) == ["measure", "new classes"] and len(table.lines) == 22
    shown = cells(table, "softmax · severity 9")
    assert shown["in some model's group"].value == 51 and shown["in every model's"].value == 2
    assert shown["of all"].value == pytest.approx(51 / 60) and shown["models"].value == len(MODELS)
    assert not reports.overlap([r for r in ROWS if r["metric"] != "union"]).lines


def test_images_that_fool_many() -> None:
    ((name, found),) = reports.alike(ROWS).lines
    assert reports.alike(ROWS).split(name) == ["17", "viceroy", "fox squirrel"]
    assert found[0] is not None and found[0].value == 9


# ---- boxes


def test_a_box_is_tukeys() -> None:
    box = Box.of([1, 2, 3, 4, 5, 6, 7, 8, 30])
    assert (box.lower, box.middle, box.upper) == (3, 5, 7)
    assert (box.low, box.high, box.beyond) == (1, 8, (30.0,))
    one = Box.of([0.5])
    assert one == Box(0.5, 0.5, 0.5, 0.5, 0.5, ())
    for seed in range(50):
        rng = random.Random(seed)
        values = [rng.gauss(0, 1) ** 3 for _ in range(rng.randrange(1, 12))]
        box = Box.of(values)
        assert box.low <= box.lower <= box.middle <= box.upper <= box.high
        assert all(v < box.low or v > box.high for v in box.beyond)
        assert len(box.beyond) == sum(not box.low <= v <= box.high for v in values)


def test_charts_are_valid_whatever_they_are_called() -> None:
    nasty = "a'b\"c<d>|\\,e"
    levels = {"severity 0": {nasty: 0.5, "b": 0.7, "c": 0.6, "d": 0.65, "e": 9.0}, nasty: {nasty: 0.4}, "none": {}}
    lines = {nasty: {"severity 0": 0.5, nasty: 0.4}}
    for made in (box_figure(levels, "AUROC", lines=lines, guide=0.5), levels_figure(lines, "ρ", guide=0.0)):
        assert made.to_dict()  # checked against the schema
    assert '"none"' not in json.dumps(box_figure(levels, "AUROC").to_dict()["layer"][0]["encoding"])


# ---- the whole


@pytest.fixture(scope="module")
def told() -> Told:
    notes = ["3 of 63 out-classes have fewer than 200 images and are left out."]
    reasons = [{"backbone": "a", "measure": "mc-dropout", "metric": None, "split": "out", "reason": "It has none."}]
    plan = {"estimation": 150, "test": 50, "severities": 11, "window": None, "measures": ["largest"], "seed": 0}
    return Told(ROWS, plan, reasons, [("dpn68", "The file is empty.")], notes, {"nescio": "0.1"})


def test_every_report_is_named_and_has_a_sentence(told: Told) -> None:
    figures = {f"fig{n}" for n in (6, 7, *range(19, 28))}
    assert set(reports.REPORTS) == figures | {"models", "overlap"}
    assert all(report.__doc__ for report in reports.REPORTS.values())
    for name, report in reports.REPORTS.items():
        assert report(ROWS), name
        assert isinstance(report(ROWS[:1]), list)  # one fact of one model tells nothing, and breaks nothing
        assert report([]) == []
    assert set(named(told, list(reports.REPORTS))) == set(reports.REPORTS)


def test_named_reports_are_written(told: Told, tmp_path: Path) -> None:
    found = {path.name for path in write_named(named(told, ["fig6", "fig27"]), tmp_path)}
    assert {"fig6.svg", "fig6.md", "fig6.tex", "fig27.md"} <= found
    assert "severity 10" in (tmp_path / "fig6.md").read_text()


def test_every_figure_says_what_it_shows(told: Told, tmp_path: Path) -> None:
    for name, report in reports.REPORTS.items():
        for figure in report(ROWS):
            if isinstance(figure, Figure):
                assert figure.points and not {"x", "y", "value", "size"} & {*figure.points[0]}, name
    write_named(named(told, ["fig6", "fig7"]), tmp_path)
    with (tmp_path / "fig6-points.csv").open() as file:
        held = {(row["new classes"], row["model"]): row for row in csv.DictReader(file)}
    assert float(held["severity 5", MODELS[0]]["AUROC of new against known"]) == value(MODELS[0], "severity 5")
    with (tmp_path / "fig7-points.csv").open() as file:
        scatter = {row["model"]: row for row in csv.DictReader(file)}
    assert float(scatter[MODELS[0]]["AUROC at severity 5"]) == value(MODELS[0], "severity 5")
    assert "in-distribution AUROC" in scatter[MODELS[0]]


def test_empty_reports_say_what_they_need() -> None:
    empty = {name: report for name, report in reports.REPORTS.items() if not report(ROWS[:1])}
    assert all(hasattr(report, "needs") for report in empty.values()), empty


def test_the_page_tells_everything(told: Told, tmp_path: Path) -> None:
    story = story_of(told)
    titles = {table.title for table in tables_of(story)}
    for report in reports.REPORTS.values():
        for table in within(report(ROWS)):
            assert table.title in titles
    figures = {b.key for section in story.sections for b in section.blocks if isinstance(b, Figure)}
    assert figures == {"fig6", "fig7", *(f"fig{n}" for n in range(19, 27))}
    assert not any(
        isinstance(b, Figure) for s in story.sections for f in s.blocks if isinstance(f, Fold) for b in f.blocks
    )
    page = write_study(told, tmp_path / "report").read_text()
    assert "dpn68" in page and "fewer than 200 images" in page and "It has none." in page
    assert "nescio run cood --estimation 150 --test 50" in page and "val: which models notice new classes?" in page


def test_a_browser_draws_every_figure(told: Told, tmp_path: Path) -> None:
    rows = [r | {"backbone": NASTY} if r["backbone"] == MODELS[0] else r for r in told.rows]
    page = write_study(Told(rows, failures=[(NASTY, NASTY)], notes=[NASTY]), tmp_path / "report")
    dom, log = browse(page, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>broken</title>" not in dom
    for number in (6, 7, *range(19, 27)):
        drawn = chart(dom, f"fig{number}")
        assert "<svg" in drawn and "NaN" not in drawn, number


def test_the_lead_is_true(told: Told) -> None:
    text = " ".join(reports.lead(told))
    best = max(MODELS, key=lambda name: value(name, "severity 5"))
    assert "14 models" in text.lower() and "60 classes that they were never taught, in groups of 10" in text
    assert f"{best} is less sure of the new one in {round(100 * value(best, 'severity 5'))} of 100 pairs at" in text
    assert f"in {round(100 * value(best, 'severity 10'))} of 100 among its hardest classes" in text
    up = sum(value(n, "severity 5", "entropy") > value(n, "severity 5") for n in MODELS)
    assert f"in {up} of 14 models" in text and "One piece of work failed" in text


def test_the_first_look_ranks_models_by_the_median_severity(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    table = reports.scores(ROWS)
    order = [name for name, _ in table.lines]
    assert order == sorted(MODELS, key=lambda name: -value(name, "severity 5"))
    assert cells(table, order[0])["s5 ↑"].best and cells(table, order[0])["s10 ↑"].value == value(
        order[0], "severity 10"
    )
    assert len(reports.scores(ROWS, 3).lines) == 3 and "The 3 best of 14" in reports.scores(ROWS, 3).note
    print_study(told)
    printed = capsys.readouterr().out
    assert "Which models notice" in printed and "fewer than 200" in printed


def test_one_model_is_told_too() -> None:
    rows = [r for r in rows_of(MODELS[:1]) if r["metric"] not in ("union", "intersection", "same_answer")]
    told = Told(rows)
    assert "One model" in reports.lead(told)[0] and "it was never taught" in reports.lead(told)[0]
    assert [table.title for table in reports.first_look(told)] and story_of(told).sections


def test_rows_without_a_plan_are_told(tmp_path: Path) -> None:
    from nescio.cli import main

    (tmp_path / "rows.parquet").write_bytes(to_parquet(ROWS))
    assert main(["report", str(tmp_path / "rows.parquet"), "--only", "fig25", "--to", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "fig25.svg").is_file()


def test_the_command_of_a_plan_has_known_options() -> None:
    import argparse

    from nescio.commands import _run_cood

    parser = argparse.ArgumentParser()
    _run_cood.configure(parser)
    plan = Plan(estimation=5, window=7, hierarchy="a b.txt", order="child parent")
    import shlex
    from dataclasses import asdict

    words = shlex.split(reports.command_of(asdict(plan)))
    assert words[:3] == ["nescio", "run", "cood"]
    args = parser.parse_args(words[3:])
    assert _run_cood.plan_of(args) == plan and reports.command_of({}) == ""
