"""What a benchmark gives to every study: its page with the commands that made it, older plans among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pytest

from nescio.benchmarks import base
from nescio.identity import Validated
from nescio.options import option
from nescio.report.blocks import Story
from nescio.report.studies import Study, read_study
from tests.support.paths import ROOT

RESULTS = sorted(path.parent for path in (ROOT / "results").glob("*/plan.json"))


@dataclass(frozen=True)
class Plan(Validated):
    throws: int = option(50, "of every coin")
    bias: float = option(0.5, "of every coin", introduced=0.1)


def story(study: Study) -> Story:
    return Story("Coins", [], [], ["By hand."])


def older(plan: dict[str, object]) -> dict[str, object]:
    return {"throws" if name == "times" else name: value for name, value in plan.items()}


def coins(plan, work):
    """Throws coins."""


@pytest.fixture
def benchmark():
    return base.Benchmark("coins", 1, Plan, coins, {}, "", "", __name__)


def test_base__a_page_ends_with_the_command_of_every_plan_that_was_joined(benchmark):
    joined = Study(benchmark="coins", version=1, rows=[], plan={}, parts=[asdict(Plan(throws=7)), asdict(Plan()), {}])
    assert benchmark.story(joined).provenance == [
        "Made by `nescio run coins --throws 7`",
        "Made by `nescio run coins`",
    ]
    assert benchmark.story(Study(benchmark="coins", version=1, rows=[], plan={"strange": 1})).footer == ["By hand."]


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_base__the_plans_of_kept_results_give_their_commands(folder):
    study = read_study(folder)
    for plan in study.parts or [study.plan]:
        assert base.registry[study.benchmark].command(plan).startswith(f"nescio run {study.benchmark}")
