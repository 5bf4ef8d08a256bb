"""Strengths × runs × angles: what is pooled, what correlates, and what stands on the page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio import metrics
from nescio.benchmarks import base, lineup
from nescio.benchmarks.sensitivity import PRESETS, reports
from nescio.cli import main
from nescio.datasets.changes import Rotation
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.evaluations.engine import output_spec
from nescio.evaluations.shift import RotationShift
from nescio.methods import classifiers
from nescio.methods import registry as methods
from nescio.networks.models import network_of_trial
from nescio.predict import load_predictions, predict_step
from nescio.report.blocks import figures_of, tables_of
from nescio.report.frame import Frame
from nescio.search import HParams
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.shift_trials import sensitivity_trials

OUTPUTS = output_spec(("logits", "scores"), "float16")
PLAN = replace(
    PRESETS["small"],
    methods=("duq", "ddu"),
    strengths=2,
    seeds=2,
    degrees=(60.0, 180.0),
    training=replace(PRESETS["small"].training, epochs=1),
)


def run(plan, context):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["sensitivity"], plan, Work(context, launcher))


@pytest.fixture(scope="module")
def study(context, use_one_thread):
    study = run(PLAN, context)
    assert study.failures == []
    return study


@pytest.mark.parametrize("degrees", [(0.0,), (20.0, 360.0), (-720.0,), ()])
def test_sensitivity__whole_turns_are_refused(degrees):
    with pytest.raises(BadInput, match="degrees"):
        replace(PLAN, degrees=degrees)


@pytest.mark.parametrize("word", ["ddu.bound=3", "duq.penalty=1"])
def test_run__a_strength_cannot_be_fixed(word, context):
    """It is what is varied, and would be ignored."""
    with pytest.raises(BadInput, match=f"hparams has {word}"):
        run(replace(PLAN, hparams=(word,)), context)


def test_sensitivity__the_plan_is_the_papers():
    paper = PRESETS["paper"]
    assert set(paper.methods) == {"duq", "sngp", "mir", "ddu"} and (paper.data, paper.backbone) == ("mnist", "mlp")
    assert paper.degrees == tuple(range(20, 181, 20)) and paper.strengths >= 8 and paper.seeds == 5
    angles = [change.level for change in RotationShift(paper.degrees).changes("mnist", None)]
    assert angles == [20.0 * step for step in range(1, 10)]


def test_strength_of__every_strength_meets_every_run():
    trials = [trial for (trial,) in sensitivity_trials(PLAN)]
    assert len(trials) == len(set(trials)) == 2 * 2 * 2
    assert {(trial.data_seed, trial.init_seed) for trial in trials} == {(0, 0), (1, 1)}
    bounds = {trial.trial: lineup.strength_of(trial) for trial in trials if trial.method == "ddu"}
    assert bounds[0] == 12.0 and bounds[1] == 0.5  # the smaller bound is the stronger one


def test_points__all_angles_are_pooled(study, context):
    (trial,) = [
        each for (each,) in sensitivity_trials(PLAN) if (each.method, each.trial, each.data_seed) == ("ddu", 0, 1)
    ]
    u, wrong = [], []
    for change in (None, Rotation(60.0), Rotation(180.0)):
        images = ImageSet("digits", change=change)
        dump = load_predictions(
            predict_step(network_of_trial(trial), images, output_spec=OUTPUTS),
            context.store,
        )
        u.append(dump.scores["density"])
        wrong.append(np.asarray(dump.logits[:, 0]).argmax(1) != dump.labels)
    expected = metrics.raulc(np.concatenate(u), np.concatenate(wrong))
    (point,) = Frame(reports.points(study.frame)).where(method="ddu", trial=0, data_seed=1, measure="native")
    assert point["rAULC"] == pytest.approx(expected)
    assert point["accuracy"] == pytest.approx(1 - wrong[0].mean()) and point["strength"] == 12.0


def test_story__studies_of_two_datasets_stand_apart(study):
    """Strengths of one number differ between them, and so do their networks."""
    other = [row | {"dataset": "npz:other.npz"} for row in study.frame if row["trial"] == 0]
    other = [row | {"strength": 7.0} for row in other]
    both = replace(study, rows=[*study.frame, *other], networks=[])
    cells = {labels[:2]: labels[-1] for labels, _ in reports.every_strength(Frame(other)).rows}
    whole = reports.every_strength(both.frame)
    shown = {(labels[0], labels[1], labels[-1]) for labels, _ in whole.rows}
    assert {"7"} == set(cells.values()) and ("ddu", "npz:other.npz", "7") in shown and ("ddu", "digits", "12") in shown
    figures = figures_of(reports.story(both))
    assert len({figure.key for figure in figures}) == len(figures)
    assert {point["dataset"] for figure in figures for point in figure.points} == {"digits", "npz:other.npz"}
    assert all(len({point["dataset"] for point in figure.points}) == 1 for figure in figures)
    assert reports.story(both).title.endswith("digits and other")


def test_correlation__the_correlation_is_spearmans_with_its_p_value():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(1)
    a = np.repeat(np.arange(8), 5)
    b = a / 10 + rng.normal(size=40)
    expected = spearmanr(a, b)
    assert reports.correlation(a.tolist(), b.tolist()) == pytest.approx((expected.statistic, expected.pvalue))
    assert reports.correlation([1, 2, 3], [4, 5, 6]) == (1.0, pytest.approx(1 / 3))  # two of six orders are as extreme
    few, other = [1, 2, 2, 4, 5], [3.0, 1.0, 2.0, 2.0, 9.0]
    every = [abs(spearmanr(few, order).statistic) for order in permutations(other)]
    seen = spearmanr(few, other).statistic
    share = np.mean([rho >= abs(seen) - 1e-12 for rho in every])
    assert reports.correlation(few, other) == pytest.approx((seen, share))
    assert reports.correlation(list(range(20)), list(range(20))) == (1.0, 0.0)


def made_up(method, effect, bound=False):
    """Rows of eight strengths in five runs; the stronger, the higher rAULC by `effect`."""
    rng = np.random.default_rng(0)
    rows = []
    for trial in range(8):
        for seed in range(5):
            base = {"dataset": "digits", "method": method, "trial": trial, "data_seed": seed, "severity": None}
            base["strength"] = 2.0 ** (-trial if bound else trial)
            value = 0.5 + effect * trial / 8 + rng.normal(scale=0.01)
            rows += [
                base | {"metric": "raulc", "measure": "native", "shift": "rotation", "value": value},
                base | {"metric": "accuracy", "measure": None, "shift": "clean", "value": 0.9 - value / 9},
            ]
    return rows


def test_correlations__a_smaller_bound_counts_as_stronger():
    frame = Frame(
        [*made_up("mir", 0.3), *made_up("ddu", 0.3, bound=True), *made_up("duq", -0.3), *made_up("sngp", 0.0)]
    )
    found = {row["method"]: row for row in reports.correlations(frame)}
    assert found["mir"]["ρ rAULC"] == found["ddu"]["ρ rAULC"] > 0.9 and found["ddu"]["p rAULC"] < 1e-6
    assert found["duq"]["ρ rAULC"] < -0.9 and found["sngp"]["p rAULC"] > 0.05
    lead = " ".join(reports._lead(frame))
    assert "higher rAULC: mir" in lead and "lower rAULC: duq" in lead and "correlation: sngp" in lead


def test_run__a_method_without_a_strength_of_its_own_varies_weight_decay(context):
    found = run(replace(PLAN, methods=("erm",)), context)
    decays = {(row["trial"], row["value"]) for row in found.frame.facts("strength")}
    assert decays == set(enumerate(methods["erm"].strength_grid(PLAN.strengths)))
    assert {trial.hparams.weight_decay for (trial,) in sensitivity_trials(replace(PLAN, methods=("erm",)))} == {
        value for _, value in decays
    }
    assert sorted(decays)[0][1] == pytest.approx(0.1) and sorted(decays)[-1][1] == pytest.approx(10)


@pytest.mark.parametrize("name", classifiers())
def test_with_strength__every_method_can_be_asked(name):
    values = {
        lineup.with_strength(lineup.plain_trial(name, "digits", "mlp", PLAN.training), number, 3) for number in range(3)
    }
    assert len({lineup.strength_of(trial) for trial in values}) == 3


def test_run__a_method_that_nothing_regularises_is_refused(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Fixed(HParams):
        pass

    monkeypatch.setattr(methods["erm"], "hparams_class", Fixed)
    with pytest.raises(BadInput, match=r"erm .* regularisation strength"):
        run(replace(PLAN, methods=("duq", "erm")), Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()


def test_sensitivity__the_command_shows_the_table_and_writes_the_page(study, context, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nescio.report.pages.can_draw", lambda: False)
    words = ["run", "sensitivity", "--methods", "duq,ddu", "--strengths", "2", "--seeds", "2", "--degrees", "60,180"]
    words += ["--epochs", "1", "--workers", "0", "--device", "cpu", "--output", str(tmp_path / "page")]
    before = {run.key for run in context.store.runs()}
    assert main([*words, "--store", str(context.store.root)]) == 0
    assert "ρ, rAULC" in capsys.readouterr().out and (tmp_path / "page" / "index.html").is_file()
    assert {run.key for run in context.store.runs()} == before  # nothing was done twice


def test_story__the_story_holds_every_table_and_figure(study):
    story = reports.story(study)
    assert len(tables_of(story)) == 2 and len(figures_of(story)) == 2 + 2
    assert all(figure.chart() for figure in figures_of(story))
    line = reports.every_strength(study.frame).cells()[("ddu", "native", "0.5"), "rAULC ↑"]
    runs = Frame(reports.points(study.frame)).where(method="ddu", trial=1, measure="native").column("rAULC")
    assert line.value == pytest.approx(np.mean(runs)) and line.n == len(runs) == 2


def test_idle_strengths__bounds_that_do_nothing_are_told(study):
    """After one epoch no layer stretches twelvefold; half of the way is too little for every one."""
    cells = reports.every_strength(study.frame).cells()
    shares = [cells[("ddu", "native", bound), "layers at their bound"].value for bound in ("12", "0.5")]
    assert shares == [0, 1] and reports.idle_strengths(study.frame, "ddu", "digits") == [0]
    assert "1 of ddu" in " ".join(reports._lead(study.frame))
    without = Frame(row | {"at_bound": None} for row in study.frame)
    assert "layers at their bound" not in reports.every_strength(without).columns


def test_lead__the_lead_names_every_method_by_the_first_measure_that_it_has():
    """erm has no score of its own."""
    plain = [row | {"measure": row["measure"] and "entropy"} for row in made_up("erm", -0.3)]
    lead = " ".join(reports._lead(Frame([*made_up("mir", 0.3), *plain])))
    assert "mir by native (ρ" in lead and "erm by entropy (ρ" in lead
