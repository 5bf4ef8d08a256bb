"""The named reports of graded detection: every number again, the plain way, from the same rows."""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import pytest
from scipy import stats

from nescio.benchmarks.base import registry
from nescio.benchmarks.cood import Plan, reports
from nescio.cli import main
from nescio.commands.parsing import add_options
from nescio.networks import families, regimes
from nescio.options import options_of
from nescio.report.blocks import Details, Figure, Tabs, figures_of, tables_of, walk
from nescio.report.charts.levels import Box, box_chart, levels_chart
from nescio.report.frame import Frame
from nescio.report.named_reports import Report, report_names, run_reports, write_reports
from nescio.report.named_reports import registry as all_reports
from nescio.report.studies import Study, print_story, write_story
from nescio.report.tables import Table
from nescio.rows import COLUMNS, Row, to_parquet
from nescio.work.launchers import Failure
from tests.report.test_pages import NASTY, browse, chart, console

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
    base = {"benchmark": "cood", "version": 4, "dataset": "imagenet:/data/val", "method": "pretrained", "members": 1}
    return dict.fromkeys(COLUMNS) | base | {"calibrated": False, "split": "out", "n": 100} | facts


def rows_of(models: tuple[str, ...] = MODELS, dropout: int = 5, seed: int = 0) -> list[Row]:
    """Rows as the benchmark makes them; the first `dropout` models have MC-dropout; one set is the same for all."""
    rng, rows = random.Random(seed), []
    for name in models:
        own = {"backbone": name, "params": rng.randrange(2_000_000, 90_000_000)}
        facts = {"accuracy": rng.uniform(0.6, 0.9), "input_size": rng.choice([224, 299, 384])}
        facts["embedding_size"] = rng.choice([192, 512, 2048])
        own |= {name: facts[name] for name in ("input_size", "embedding_size")} | {"out_classes": 60, "window": 10}
        rows.append(row(**own, split="test", metric="accuracy", value=facts["accuracy"]))
        for κ in ("msp", "entropy", *(["mc-dropout"] if name in models[:dropout] else [])):
            skill = rng.uniform(0.8, 0.95)
            rows.append(row(**own, split="test", measure=κ, metric="auroc", value=rng.uniform(0.7, 0.9)))
            for level, group in enumerate(LEVELS):
                value = skill - 0.03 * level + rng.uniform(-0.02, 0.02)
                rows.append(row(**own, **place(group), measure=κ, metric="auroc", value=value))
                rows.append(row(**own, **place(group), measure=κ, metric="severity", value=0.5 + 0.03125 * level))
            rows.append(row(**own, target="imagenet-o", measure=κ, metric="auroc", value=rng.uniform(0.3, 0.7)))
    for κ in ("msp", "entropy"):
        for level, group in enumerate(LEVELS):
            rows.append(row(**place(group), measure=κ, metric="union", value=60 - level, n=len(models)))
            rows.append(row(**place(group), measure=κ, metric="intersection", value=level // 4, n=len(models)))
    image = {"image": "17", "image_class": "viceroy", "predicted_class": "fox squirrel"}
    rows.append(row(**image, metric="agreeing_models", value=9, n=len(models)))
    return rows


def place(group: str | None) -> Row:
    """The columns of a group: a severity, a fixed set, or none."""
    if group in LEVELS:
        return {"severity": float(LEVELS.index(group)), "target": None}
    return {"severity": None, "target": group}


ROWS = rows_of()
FRAME = Frame(ROWS)


def value(name: str, group: str | None, κ: str | None = "msp", metric: str = "auroc", split: str = "out") -> float:
    facts = {"backbone": name, **place(group), "measure": κ, "metric": metric, "split": split}
    (found,) = [r["value"] for r in ROWS if facts.items() <= r.items()]
    return float(found)


def have(κ: str) -> list[str]:
    return [n for n in MODELS if any(r["backbone"] == n and r["measure"] == κ for r in ROWS)]


def cells(table: Table, *line: str) -> dict[str, Any]:
    return dict(zip(table.columns, dict(table.rows)[line], strict=True))


def blocks_of(name: str, frame: Frame = FRAME) -> list[Any]:
    return all_reports[f"cood/{name}"].blocks(frame)


def rho(a: list[float], b: list[float]) -> float:
    return float(stats.spearmanr(a, b).statistic)


# ---- Figure 6


@pytest.mark.parametrize("κ", ["msp", "entropy", "mc-dropout"])
def test_severities__figure_6_is_the_quartiles_of_all_models(κ: str) -> None:
    table = reports.severities(FRAME, κ)
    assert [name for (name,), _ in table.rows] == [*LEVELS, "imagenet-o"]
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


def test_graded_models__figure_6_draws_all_levels_the_fixed_set_and_the_best_model() -> None:
    picture, tables = blocks_of("fig6")
    assert isinstance(picture, Figure) and isinstance(tables, Tabs)
    assert list(tables.options) == ["softmax", "entropy", "MC-dropout"]
    best = max(MODELS, key=lambda name: fmean(value(name, g) for g in [*LEVELS, "imagenet-o"]))
    best_of = reports.graded_models(FRAME).best()
    text = json.dumps(picture.chart().to_dict())
    assert best_of is not None and best_of in text and "resnet50.tv_in1k" in text and "imagenet-o" in text
    assert best_of in (best, max(MODELS, key=lambda name: fmean(value(name, g) for g in LEVELS)))


def test_graded_models__the_best_model_is_best_over_severities_not_on_fixed_sets() -> None:
    rows = []
    for name, graded, fixed in (("a", 0.8, 0.1), ("b", 0.7, 0.99)):
        rows += [row(backbone=name, **place(g), measure="msp", metric="auroc", value=graded) for g in LEVELS]
        rows.append(row(backbone=name, target="hard", measure="msp", metric="auroc", value=fixed))
    more = [r | {"target": "other", "value": 1.0} for r in rows[-1:]]
    assert reports.graded_models(Frame([*rows, *more])).best() == "a"


# ---- Figures 7, 19, 20


FACTORS: dict[str, Callable[[str], float]] = {
    "fig7": lambda name: value(name, None, split="test"),
    "fig19": lambda name: next(r["params"] for r in ROWS if r["backbone"] == name),
    "fig20": lambda name: value(name, None, None, "accuracy", "test"),
}


@pytest.mark.parametrize("key", FACTORS)
def test_family__scatters_are_severity_5_with_correlations_by_family(key: str) -> None:
    picture, table, *_ = blocks_of(key)
    assert isinstance(picture, Figure) and isinstance(table, Table)
    of = FACTORS[key]
    groups = {"all models": list(MODELS)}
    for name in MODELS:
        groups.setdefault(families.paper_name(families.family(name)), []).append(name)
    groups = {name: own for name, own in groups.items() if len(own) >= 3}
    assert {name for (name,), _ in table.rows} == set(groups) == {"all models", "ViT", "ResNet"}
    for name, own in groups.items():
        count, ρ = dict(table.rows)[name,]
        assert count is not None and count.value == len(own)
        assert ρ is not None and ρ.value == pytest.approx(rho([value(n, "severity 5") for n in own], [*map(of, own)]))
    text = json.dumps(picture.chart().to_dict(), ensure_ascii=False)
    points = next(text for text in _data(picture) if text.startswith("name,model,family,x,y"))
    assert len(points.splitlines()) == 1 + len(MODELS)
    for family in ("ViT", "ResNet"):
        ρ = dict(table.rows)[family,][1]
        assert ρ is not None and f"{family} ({ρ}, 4)" in text


def _data(picture: Figure) -> list[str]:
    """What the chart shows, as CSV texts."""
    spec = picture.chart().to_dict()
    return list(spec["datasets"].values())


def test_cood_reports__figure_19_marks_the_sizes_of_two_resnets_and_names_the_best_below() -> None:
    picture, _, small = blocks_of("fig19")
    assert isinstance(picture, Figure) and isinstance(small, Table)
    marks = [found[1] for text in _data(picture) if (found := re.fullmatch(r"x,text\n([\d.e+]+),\n", text))]
    assert sorted(map(float, marks)) == pytest.approx([25_557_032, 44_549_160], rel=1e-4)
    params = {name: FACTORS["fig19"](name) for name in MODELS}
    for (_, found), most in zip(small.rows, (25_557_032, 44_549_160), strict=True):
        own = [name for name in MODELS if params[name] <= most]
        best = max(own, key=lambda name: value(name, "severity 5"))
        assert found[0] is not None and found[0].text == best
        assert found[1] is not None and found[1].value == value(best, "severity 5")
        assert found[3] is not None and found[3].value == len(own)


# ---- Figure 21


def test_fig_21__regimes_are_mean_relative_improvements_over_counterparts() -> None:
    _, table = blocks_of("fig21")
    names = {
        "xcit_nano_12_p16_224.fb_dist_in1k": "xcit_nano_12_p16_224.fb_in1k",
        "xcit_tiny_12_p16_224.fb_dist_in1k": "xcit_tiny_12_p16_224.fb_in1k",
    }
    pairs = {(p.model, p.counterpart, p.regime) for p in regimes.pairs(MODELS) if p.counterpart}
    assert {(a, b, "distillation") for a, b in names.items()} <= pairs
    any_form = {regimes.PRUNING_DISTILLED: regimes.DISTILLATION}
    assert {kind for (kind,), _ in table.rows} == {any_form.get(r, r) for _, _, r in pairs}
    for (kind,), found in table.rows:
        own = [(a, b) for a, b, r in pairs if b and any_form.get(r, r) == kind]
        assert found[0] is not None and found[0].value == len(own)
        for cell, group in zip(found[1:], LEVELS, strict=True):
            expected = fmean((value(a, group) - value(b, group)) / value(b, group) for a, b in own)
            assert cell is not None and cell.value == pytest.approx(expected) and cell.best == (expected > 0)
    plain = FRAME.where(backbone=lambda name: "dist" not in str(name) and "miil" not in str(name))
    assert reports.fig_21(plain) is None


def test_cood_reports__pruning_with_its_teacher_is_distillation_in_any_form() -> None:
    """§3 counts knapsack pruning, whose teacher is the unpruned network, as distillation."""
    found = next(p for p in regimes.regime_table() if p.regime == regimes.PRUNING_DISTILLED and p.counterpart)
    pair = (found.model, str(found.counterpart))
    (((kind,), _),) = blocks_of("fig21", Frame(rows_of(pair)))[1].rows
    assert kind == "distillation"


# ---- Figures 22 to 24


@pytest.mark.parametrize(
    ("figure", "after", "before"),
    [(22, "entropy", "msp"), (23, "mc-dropout", "msp"), (24, "mc-dropout", "entropy")],
)
def test_cood_reports__one_measure_against_another(figure: int, after: str, before: str) -> None:
    picture, table = blocks_of(f"fig{figure}")
    assert isinstance(picture, Figure) and isinstance(table, Table)
    both = [name for name in have(after) if name in have(before)]
    assert [name for (name,), _ in table.rows] == LEVELS
    for group in LEVELS:
        gains = [(value(n, group, after) - value(n, group, before)) / value(n, group, before) for n in both]
        shown = cells(table, group)
        assert shown["median"].value == pytest.approx(median(gains))
        assert (shown["lowest"].value, shown["highest"].value) == pytest.approx((min(gains), max(gains)))
        assert shown["mean"].value == pytest.approx(fmean(gains))
        assert shown["better"].value == pytest.approx(sum(g > 0 for g in gains) / len(gains))
        assert shown["models"].value == len(both) and shown["median"].best == (median(gains) > 0)
    assert picture.chart().to_dict()


def test_cood_reports__without_dropout_there_is_no_figure_23() -> None:
    frame = Frame(rows_of(dropout=0))
    assert blocks_of("fig23", frame) == [] == blocks_of("fig24", frame) and len(blocks_of("fig22", frame)) == 2


# ---- Figures 25 and 26


def test_cood_reports__figure_25_is_spearman_between_severities() -> None:
    picture, table = blocks_of("fig25")
    assert isinstance(picture, Figure) and isinstance(table, Table)
    assert [name for (name,), _ in table.rows] == [f"s{level}" for level in range(10, -1, -1)]
    assert table.columns == tuple(f"s{level}" for level in range(11))
    for (a,), own in table.rows:
        for b, cell in zip(table.columns, own, strict=True):
            first, second = ([value(n, f"severity {each[1:]}") for n in MODELS] for each in (a, b))
            assert cell is not None and cell.value == pytest.approx(rho(first, second))
            assert cell.value == pytest.approx(cells(table, b)[a].value)  # symmetric
        assert str(cells(table, a)[a]) == "1.00"
    assert picture.chart().to_dict()


def test_cood_reports__figure_26_is_spearman_with_five_factors() -> None:
    picture, table = blocks_of("fig26")
    assert isinstance(picture, Figure) and isinstance(table, Table)
    of: dict[str, Callable[[str], float]] = {
        "accuracy": FACTORS["fig20"],
        "ID-AUROC": FACTORS["fig7"],
        "#parameters": FACTORS["fig19"],
        "input size": lambda name: next(r["input_size"] for r in ROWS if r["backbone"] == name),
        "embedding size": lambda name: next(r["embedding_size"] for r in ROWS if r["backbone"] == name),
    }
    assert [name for (name,), _ in table.rows] == list(of)
    for (name,), (models, *own) in table.rows:
        assert models is not None and models.value == len(MODELS)
        for group, cell in zip(LEVELS, own, strict=True):
            expected = rho([value(n, group) for n in MODELS], [of[name](n) for n in MODELS])
            assert cell is not None and cell.value == pytest.approx(expected)
    assert picture.chart().to_dict()


def test_cood_reports__a_factor_that_never_varies_is_absent() -> None:
    rows = [r | {"input_size": 224.0} for r in ROWS]
    assert ("input size",) not in dict(blocks_of("fig26", Frame(rows))[1].rows)
    assert ("embedding size",) not in dict(
        blocks_of("fig26", FRAME.with_column("embedding_size", lambda row: None))[1].rows
    )


# ---- M.8, Figure 27


def test_overlap_tells_union_and_intersection() -> None:
    table = reports.overlap(FRAME)
    assert table is not None and table.index == ("measure", "OOD classes") and len(table.rows) == 22
    shown = cells(table, "softmax", "severity 9")
    assert shown["in any group"].value == 51 and shown["in every group"].value == 2
    assert shown["of all"].value == pytest.approx(51 / 60) and shown["models"].value == len(MODELS)
    assert not reports.overlap(FRAME.without(metric=("union", "intersection")))


def test_fig_27__images_that_fool_many() -> None:
    ((labels, found),) = reports.fig_27(FRAME).rows
    assert labels == ("17", "viceroy", "fox squirrel")
    assert found[0] is not None and found[0].value == 9


# ---- boxes


def test_box__a_box_is_tukeys() -> None:
    box = Box.from_values([1, 2, 3, 4, 5, 6, 7, 8, 30])
    assert (box.lower, box.middle, box.upper) == (3, 5, 7)
    assert (box.low, box.high, box.outliers) == (1, 8, (30.0,))
    one = Box.from_values([0.5])
    assert one == Box(0.5, 0.5, 0.5, 0.5, 0.5, ())
    for seed in range(50):
        rng = random.Random(seed)
        values = [rng.gauss(0, 1) ** 3 for _ in range(rng.randrange(1, 12))]
        box = Box.from_values(values)
        assert box.low <= box.lower <= box.middle <= box.upper <= box.high
        assert all(v < box.low or v > box.high for v in box.outliers)
        assert len(box.outliers) == sum(not box.low <= v <= box.high for v in values)


def test_cood_reports__charts_are_valid_whatever_they_are_called() -> None:
    nasty = "a'b\"c<d>|\\,e"
    levels = {"severity 0": {nasty: 0.5, "b": 0.7, "c": 0.6, "d": 0.65, "e": 9.0}, nasty: {nasty: 0.4}, "none": {}}
    lines = {nasty: {"severity 0": 0.5, nasty: 0.4}}
    for made in (box_chart(levels, "AUROC", lines=lines, guide=0.5), levels_chart(lines, "ρ", guide=0.0)):
        assert made.to_dict()  # checked against the schema
    assert '"none"' not in json.dumps(box_chart(levels, "AUROC").to_dict()["layer"][0]["encoding"])


# ---- the whole


@pytest.fixture(scope="module")
def study() -> Study:
    notes = ["3 of 63 out-classes have fewer than 200 images and are left out."]
    reasons = [{"backbone": "a", "measure": "mc-dropout", "metric": None, "split": "out", "reason": "It has none."}]
    plan = asdict(Plan(pair=("a=in.npz,out.npz",), test_images=40, measures=("msp",)))
    failures = [Failure("dpn68", "The file is empty.")]
    packages = {"nescio": "0.1"}
    about = {"reasons": reasons, "failures": failures, "notes": notes, "packages": packages}
    return Study(benchmark="cood", version=4, rows=ROWS, plan=plan, **about)


def found_by_name() -> list[Report]:
    return [part for part in all_reports.parts() if part.benchmark == "cood"]


def test_cood_reports__every_report_is_named_and_has_a_sentence(study: Study) -> None:
    figures = {f"fig{n}" for n in (6, 7, *range(19, 28))}
    assert set(report_names("cood")) == figures | {"models", "overlap"}
    assert all(getattr(report.function, "func", report.function).__doc__ for report in found_by_name())
    for report in found_by_name():
        assert report.blocks(FRAME), report.name
        assert isinstance(report.blocks(Frame(ROWS[:1])), list)  # one fact of one model shows nothing, breaks nothing
        assert report.blocks(Frame()) == []
    assert {report.short_name for report in run_reports([study], report_names("cood"))} == set(report_names("cood"))


def test_cood_reports__named_reports_are_written(study: Study, tmp_path: Path) -> None:
    found = {path.name for path in write_reports(run_reports([study], ["fig6", "fig27"]), tmp_path)}
    assert {"fig6.svg", "fig6.md", "fig6.tex", "fig27.md"} <= found
    assert "severity 10" in (tmp_path / "fig6.md").read_text()


def test_cood_reports__every_figure_says_what_it_shows(study: Study, tmp_path: Path) -> None:
    for report in found_by_name():
        for figure in figures_of(report.blocks(FRAME)):
            assert figure.points and not {"x", "y", "value", "size"} & {*figure.points[0]}, report.name
    write_reports(run_reports([study], ["fig6", "fig7"]), tmp_path)
    with (tmp_path / "fig6-points.csv").open() as file:
        held = {(row["OOD classes"], row["model"]): row for row in csv.DictReader(file)}
    assert float(held["severity 5", MODELS[0]][reports.AUROC]) == value(MODELS[0], "severity 5")
    with (tmp_path / "fig7-points.csv").open() as file:
        scatter = {row["model"]: row for row in csv.DictReader(file)}
    assert float(scatter[MODELS[0]]["AUROC at severity 5"]) == value(MODELS[0], "severity 5")
    assert "in-distribution AUROC" in scatter[MODELS[0]]


def test_cood_reports__empty_reports_say_what_they_need() -> None:
    empty = [report for report in found_by_name() if not report.blocks(Frame(ROWS[:1]))]
    assert empty and all(report.needs for report in empty), empty


def test_cood_reports__the_page_tells_everything(study: Study, tmp_path: Path) -> None:
    story = registry["cood"].story(study)
    titles = {table.title for table in tables_of(story)}
    for report in found_by_name():
        for table in walk(report.blocks(FRAME)):
            assert not isinstance(table, Table) or table.title in titles
    figures = {figure.key for figure in figures_of(story)}
    assert figures == {"fig6", "fig7", *(f"fig{n}" for n in range(19, 27))}
    assert not any(
        isinstance(b, Figure) for s in story.sections for f in s.blocks if isinstance(f, Details) for b in f.blocks
    )
    page = write_story(study, story, tmp_path / "report").read_text()
    assert "dpn68" in page and "fewer than 200 images" in page and "It has none." in page
    assert "nescio run cood --pair a=in.npz,out.npz --test-images 40" in page
    assert f"{reports.TITLE} on val" in page


def test_cood_reports__a_browser_draws_every_figure(study: Study, tmp_path: Path) -> None:
    rows = [r | {"backbone": NASTY} if r["backbone"] == MODELS[0] else r for r in study.rows]
    nasty = Study(benchmark="cood", version=4, rows=rows, failures=[Failure(NASTY, NASTY)], notes=[NASTY])
    page = write_story(nasty, registry["cood"].story(nasty), tmp_path / "report")
    dom, log = browse(page, "--dump-dom", folder=tmp_path)
    assert console(log) == [] and "<title>broken</title>" not in dom
    for number in (6, 7, *range(19, 27)):
        drawn = chart(dom, f"fig{number}")
        assert "<svg" in drawn and "NaN" not in drawn, number


def test_cood_reports__the_lead_is_true(study: Study) -> None:
    text = " ".join(registry["cood"].story(study).lead)
    best = max(MODELS, key=lambda name: value(name, "severity 5"))
    assert "14 models" in text.lower() and "60 OOD classes" in text
    assert f"{best}, {value(best, 'severity 5'):.3f} at" in text
    assert f"{value(best, 'severity 10'):.3f} at the last" in text
    up = sum(value(n, "severity 5", "entropy") > value(n, "severity 5") for n in MODELS)
    assert f"for {up} of 14 models" in text and "One step failed" in text


def test_scores__the_first_look_ranks_models_by_the_median_severity(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    table = reports.scores(FRAME)
    order = [name for (name,), _ in table.rows]
    assert order == sorted(MODELS, key=lambda name: -value(name, "severity 5"))
    first = cells(table, order[0])
    assert first["s5 ↑"].best and first["s10 ↑"].value == value(order[0], "severity 10")
    assert len(reports.scores(FRAME, 3).rows) == 3 and "The 3 best of 14" in reports.scores(FRAME, 3).note
    print_story(study, registry["cood"].story(study), registry["cood"].first_look(study))
    printed = capsys.readouterr().out
    assert reports.TITLE in printed and "fewer than 200" in printed


def test_story__one_model_is_reported_too() -> None:
    rows = [r for r in rows_of(MODELS[:1]) if r["metric"] not in ("union", "intersection", "agreeing_models")]
    study = Study(benchmark="cood", version=4, rows=rows)
    assert "val, 60 OOD classes" in reports.lead(study)[0]
    assert [table.title for table in reports.first_look(study)] and reports.story(study).sections


def test_report__rows_without_a_plan_are_reported(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(to_parquet(ROWS))
    assert main(["report", str(tmp_path / "rows.parquet"), "--only", "fig25", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "fig25.svg").is_file()


def test_plan__the_command_of_a_plan_runs_it_again() -> None:
    names = {"data_names": "a.txt", "ood_names": "b.txt"}
    plan = Plan(pair=("m=i n.npz,out.npz",), estimation_images=5, group_classes=7, hierarchy="a b.txt", **names)
    parser = argparse.ArgumentParser()
    add_options(parser, Plan)
    words = shlex.split(registry["cood"].command(asdict(plan)))
    assert words[:3] == ["nescio", "run", "cood"]
    assert options_of(parser.parse_args(words[3:]), Plan) == plan
