"""What the reports on pretrained models share."""

from __future__ import annotations

from typing import Any

import pytest

from nescio.networks import families, regimes
from nescio.protocols.cood import reports as graded
from nescio.protocols.pretrained import ModelResults
from nescio.protocols.selective import reports as selective
from nescio.report.blocks import Figure
from nescio.report.frame import Frame
from nescio.rows import COLUMNS, Row

TAUGHT = (regimes.DISTILLATION, regimes.PRUNING_TAUGHT)


def distilled_names() -> list[str]:
    """Every distilled model of the table of regimes that timm has, and every one whose name says so."""
    import timm

    names = timm.list_models(pretrained=True)
    return [name for name in names if families.distilled(name) or regimes.regime(name) in TAUGHT]


def row(name: str, **facts: Any) -> Row:
    base = {"backbone": name, "params": 10**7, "method": "pretrained", "calibrated": False, "split": "test", "n": 9}
    return dict.fromkeys(COLUMNS) | base | facts


@pytest.mark.parametrize("other", ["resnet50.a1_in1k", "tresnet_m.miil_in1k"])
def test_both_reports_mark_every_distilled_model_alike(other: str) -> None:
    """Some names do not tell that a model was distilled; the table of regimes does (MIIL's ImageNet-21k, pruning)."""
    names = [*distilled_names(), other]
    silent = [name for name in names if regimes.regime(name) in TAUGHT and not families.distilled(name)]
    assert len(silent) >= 15
    rows = []
    for number, name in enumerate(names):
        rows += [row(name, metric=metric, value=0.5 + number / 1000) for metric in ("accuracy", "ece")]
        rows.append(row(name, metric="auroc", measure="largest", value=0.5 + number / 1000))
        place = {"split": "out", "condition": "severity", "measure": "largest", "metric": "auroc"}
        rows += [row(name, value=0.6 + number / 1000, level=float(level), **place) for level in range(11)]
    frame = Frame(rows)
    assert all(ModelResults(name, None).distilled == (name != other) for name in names)
    for made in (graded.fig_7(frame), selective.fig_1(frame)):
        (figure,) = [block for block in (made if isinstance(made, list) else [made]) if isinstance(block, Figure)]
        marked = {point["model"]: bool(point["distilled"]) for point in figure.points}
        assert marked == {name: name != other for name in names}
