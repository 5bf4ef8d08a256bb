"""What the reports on pretrained models share."""

from __future__ import annotations

import random
import re
from importlib import import_module
from typing import Any

import pytest

from nescio.benchmarks.base import registry
from nescio.networks import families, regimes
from nescio.report.blocks import figures_of, tables_of
from nescio.report.frame import Frame
from nescio.report.named_reports import find_report
from nescio.report.studies import Study
from nescio.rows import COLUMNS, Row

for _benchmark in ("selective", "cood"):
    import_module(registry[_benchmark].reports)  # registers its reports
TAUGHT = (regimes.DISTILLATION, regimes.PRUNING_DISTILLED)


def distilled_names() -> list[str]:
    """Every distilled model of the table of regimes that timm has, and every one whose name says so."""
    import timm

    names = timm.list_models(pretrained=True)
    return [name for name in names if families.distilled(name) or regimes.regime(name) in TAUGHT]


def row(name: str, **facts: Any) -> Row:
    base = {"backbone": name, "params": 10**7, "method": "pretrained", "calibrated": False, "split": "test", "n": 9}
    return dict.fromkeys(COLUMNS) | base | facts


@pytest.mark.parametrize("other", ["resnet50.a1_in1k", "tresnet_m.miil_in1k"])
def test_distilled__both_reports_mark_every_distilled_model_alike(other: str) -> None:
    """Some names do not tell that a model was distilled; the table of regimes does (MIIL's ImageNet-21k, pruning)."""
    names = [*distilled_names(), other]
    silent = [name for name in names if regimes.regime(name) in TAUGHT and not families.distilled(name)]
    assert len(silent) >= 9
    rows = []
    for number, name in enumerate(names):
        rows += [row(name, metric=metric, value=0.5 + number / 1000) for metric in ("accuracy", "ece")]
        rows.append(row(name, metric="auroc", measure="msp", value=0.5 + number / 1000))
        place = {"split": "out", "measure": "msp", "metric": "auroc"}
        rows += [row(name, value=0.6 + number / 1000, severity=float(level), **place) for level in range(11)]
    frame = Frame(rows)
    assert all(regimes.distilled(name) == (name != other) for name in names)
    for report in ("cood/fig7", "selective/fig1"):
        (figure,) = figures_of(find_report(report).blocks(frame))
        marked = {point["model"]: bool(point["distilled"]) for point in figure.points}
        assert marked == {name: name != other for name in names}


# ---- what a page says


def grown(names: list[str], seed: int = 0, **facts: Any) -> list[Row]:
    """Rows of both benchmarks for these models, each with a skill of its own."""
    rng, rows = random.Random(seed), []
    for name in names:
        place = {"split": "out", "measure": "msp", "metric": "auroc"}
        for level in range(11):
            rows.append(row(name, value=rng.uniform(0.6, 0.9), severity=float(level), **place) | facts)
        for metric, measure in (("accuracy", None), ("ece", None), ("auroc", "msp"), ("sac@0.99", "msp")):
            rows.append(row(name, metric=metric, measure=measure, value=rng.uniform(0.1, 0.9)) | facts)
    return rows


def study_of(benchmark: str, rows: list[Row]) -> Study:
    return Study(benchmark=benchmark, version=4, rows=[each | {"benchmark": benchmark} for each in rows])


@pytest.mark.parametrize("benchmark", ["selective", "cood"])
def test_pretrained__a_page_has_no_numbers_of_the_paper(benchmark: str) -> None:
    """Figures keep the paper's numbers as names, which a person asks for; titles, captions and notes have none."""
    story = registry[benchmark].story(study_of(benchmark, grown([*distilled_names(), "resnet50.a1_in1k"])))
    words = [story.title, *story.lead, *story.footer, *(part.title for part in story.sections)]
    for table in tables_of(story):
        words += [table.title, table.note]
    for figure in figures_of(story):
        words += [figure.title, figure.caption]
    assert len(words) > 20
    assert not [text for text in words if re.search(r"fig(ure|\.)? ?\d|table \d|appendi|§|M\.\d|paper", text, re.I)]


def words_of(report: str, rows: list[Row]) -> str:
    (figure,) = figures_of(find_report(report).blocks(Frame(rows)))
    return figure.caption


@pytest.mark.parametrize("report", ["selective/fig1", "selective/fig5", "cood/fig7"])
def test_pretrained__captions_name_only_what_is_shown(report: str) -> None:
    distilled, plain = distilled_names()[:4], ["resnet18.tv_in1k", "resnet34.tv_in1k", "resnet50.tv_in1k"]
    assert "distilled" in words_of(report, grown(distilled)) and "distilled" not in words_of(report, grown(plain))
    assert "parameters" in words_of(report, grown(plain))
    assert "parameters" not in words_of(report, grown(plain, params=None))
    if report == "selective/fig5":
        assert "dashed line" in words_of(report, grown(plain))
        assert not figures_of(find_report(report).blocks(Frame(grown(plain[:1]))))  # one model needs no chart
    if report == "cood/fig7":  # three families of one model each have no correlation of their own
        alone = ["vgg11.tv_in1k", "resnet50.tv_in1k", "deit_tiny_patch16_224.fb_in1k"]
        assert "In brackets" in words_of(report, grown(plain))
        assert "In brackets" not in words_of(report, grown(alone))


CONDITIONS = (
    ("selective/models", "AUROC:", {"metric": "auroc"}),
    ("cood/models", "ID-AUROC:", {"metric": "auroc", "split": "test"}),
)


def test_pretrained__the_first_table_explains_only_its_columns() -> None:
    rows = grown(["resnet18.tv_in1k", "resnet50.tv_in1k"])
    for report, word, conditions in CONDITIONS:
        (whole,), (less,) = (
            tables_of(find_report(report).blocks(frame)) for frame in (Frame(rows), Frame(rows).without(**conditions))
        )
        assert word in whole.note and word not in less.note
