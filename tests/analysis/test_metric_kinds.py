"""A kind of metrics is registered in one table and then appears on scorecards, in comparisons and in intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from nescio import Predictions, metrics, scorecard
from nescio.analysis.bootstrap import add_intervals, bootstrap
from nescio.analysis.comparison import compare
from nescio.analysis.metric_kinds import (
    KINDS,
    EvaluatedRows,
    NotApplicable,
    PreparedMetrics,
    applicable_metrics,
    metric_kind,
    reads_uncertainty,
)
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.resamplers import ArraysResampler
from nescio.analysis.shard_scores import scorecard_of_shards


def model(seed: int = 0, n: int = 60, shift: float = 0.0) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(n, 3)) + shift
    return Predictions(labels=labels, logits=logits)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A kind f(u, labels), with one metric."""

    @metric_kind("toy", "f(u, labels)", reads="uncertainty")
    def prepare(rows: EvaluatedRows, specs) -> Iterator[PreparedMetrics]:
        u, labels = rows.u, rows.select(rows.predictions.labels)
        yield PreparedMetrics(
            specs, len(u), lambda spec: spec(u, labels), lambda _: ArraysResampler((u, labels), specs)
        )

    monkeypatch.setattr(metrics.registry, "_parts", dict(metrics.registry._parts))

    @metrics.metric("toy", better="lower")
    def u_of_class_0(u, labels) -> float:
        """Mean uncertainty of the rows of class 0."""
        return float(u[labels == 0].mean())

    yield "u_of_class_0"
    del KINDS["toy"], metrics.KINDS["toy"]


def test_add_intervals__metric_kind__a_new_kind_has_rows_intervals_and_verdicts(toy: str) -> None:
    card = scorecard(model(), only=["msp"])
    logits = model().logits[:, 0]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = (1 - probs.max(1))[::3].mean()
    assert card.value(toy, "msp") == pytest.approx(expected)
    add_intervals(card, resamples=40)
    row = next(row for row in card.rows if row["metric"] == toy)
    assert row["low"] < expected < row["high"]
    compared = {
        row["method"]: row for row in compare({"a": model(), "b": model(1)}, resamples=40).rows if row["metric"] == toy
    }
    assert compared["a"]["value"] == pytest.approx(expected) and compared["a"]["low"] == pytest.approx(row["low"])
    assert {row["rank"] for row in compared.values()} == {1, 2}
    assert bootstrap(model(), resamples=40)["msp", toy].low == pytest.approx(row["low"])
    assert toy not in {row["metric"] for row in scorecard_of_shards([model()]).rows}


def test_applicable_metrics_need_neither_ood_rows_nor_a_threshold() -> None:
    labels = {spec.label for spec in applicable_metrics()}
    assert {"accuracy", "auroc", "recall_at_1", "r_auroc", "human_alignment", "crop_agreement"} <= labels
    assert not {"in_as_in", "out_as_out", "scod_aurc", "kendall", "miou"} & labels


def test_reads_uncertainty_of_metrics_of_a_measure() -> None:
    reads = {name: reads_uncertainty(parse_metric(name)) for name in ("accuracy", "recall_at_1", "auroc", "scod_aurc")}
    assert reads == {"accuracy": False, "recall_at_1": False, "auroc": True, "scod_aurc": True}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("predictions", "retrieval")])
def test_evaluated_rows__kinds_values_are_those_of_the_first_resample_of_all_rows(kind: str) -> None:
    """A resample that draws every row once has the values of the rows themselves."""
    rng = np.random.default_rng(0)
    predictions = model().replace(
        embeddings=rng.normal(size=(60, 4)),
        annotations=rng.integers(1, 5, size=(60, 3)),
        groups={"twin": np.where(np.arange(60) % 2, np.arange(60) - 1, np.arange(60))},
    )
    wrong = np.asarray(predictions.logits)[:, 0].argmax(1) != predictions.labels
    rows = EvaluatedRows(predictions, None, wrong, rng.random(60), rng.random(20) + 0.3, threshold=0.9)
    for prepared in KINDS[kind].prepare(rows, KINDS[kind].metrics()):
        resampler = prepared.resampler(10)
        values = resampler.values(np.ones(sum(prepared.drawn_sizes), int))
        assert values == pytest.approx([prepared.value(spec) for spec in prepared.metrics], rel=1e-9, nan_ok=True)
        assert values == pytest.approx(resampler.point(), rel=1e-9, nan_ok=True)


def test_evaluated_rows__kinds_without_their_arrays_are_not_applicable() -> None:
    rows = EvaluatedRows(model(), u_all=np.zeros(60), u_ood=np.zeros(3))
    for kind in ("ranking", "mixture", "acceptance", "rejection", "crops"):
        with pytest.raises(NotApplicable):
            list(KINDS[kind].prepare(rows, KINDS[kind].metrics()))
