"""Retrieval by labels and by crops, mixtures of new and trained classes, scores with tied values."""

from __future__ import annotations

import numpy as np
import pytest

from nescio import metrics
from nescio.arrays.types import Array
from nescio.datasets.image_set import ImageSet
from nescio.evaluations import TargetSet
from nescio.evaluations.crops import find_own_images
from nescio.evaluations.mixtures import TRAINED, Mixtures
from nescio.evaluations.transfer import TIED_SHARE, Transfer, add_retrieval, find_neighbours
from nescio.predictions import Predictions
from nescio.rows import Columns, RowBuilder
from tests.support.retrieval import recall_by_loops

TARGET = TargetSet(ImageSet("digits"), "test", "x")
COLUMNS: Columns = {"split": "test", "target": "x"}


@pytest.fixture
def results() -> RowBuilder:
    return RowBuilder({"method": "erm", "evaluation": "transfer"})


def predict(embeddings: Array, labels: list[int], u: list[float]) -> Predictions:
    scores = {"u": np.asarray(u, np.float64)}
    return Predictions(embeddings=np.asarray(embeddings), labels=np.asarray(labels), scores=scores)


def test_add_retrieval_follows_the_definitions_with_ties(results: RowBuilder) -> None:
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(60, 4)).round(0) + np.array([0.5, 0, 0, 0])
    embeddings[30:40] = embeddings[:10]  # duplicates
    labels, u = rng.integers(0, 3, 60), rng.integers(0, 4, 60).astype(float)
    recall, area = recall_by_loops(embeddings, labels, u)
    hits = metrics.retrieved(embeddings, labels)
    assert hits.mean() == pytest.approx(recall) and metrics.r_auroc(embeddings, labels, u) == pytest.approx(area)
    add_retrieval({"u": u}, hits, 20, results, **COLUMNS)
    values = {row["metric"]: row["value"] for row in results.rows}
    assert values == {"recall_at_1": pytest.approx(recall), "r_auroc": pytest.approx(area)}
    assert all(row["low"] < row["value"] < row["high"] for row in results.rows)


def test_find_neighbours_counts_embeddings_of_length_zero_as_wrong(results: RowBuilder) -> None:
    embeddings, labels = np.array([[1.0, 0], [1, 0.1], [0, 0], [0, 1], [0.1, 1]]), np.array([0, 0, 0, 1, 1])
    assert find_neighbours(embeddings, labels, results, **COLUMNS).tolist() == [True, True, False, True, True]
    assert "1 of 5" in results.reasons[0]["reason"]
    assert find_own_images(embeddings, embeddings).tolist() == [True, True, False, True, True]


def test_find_own_images_compares_crops_with_the_images_they_were_cut_from() -> None:
    assert find_own_images(np.eye(5), np.eye(5)[[0, 1, 2, 3, 3]]).tolist() == [True, True, True, True, False]


def test_mixtures_are_half_and_half_and_labels_of_two_sets_never_collide(results: RowBuilder) -> None:
    trained = predict(np.eye(4)[[0, 0, 1, 1, 2, 2]], [0, 0, 1, 1, 2, 2], [0.0] * 6)
    new = predict(np.eye(4)[[0, 1, 3]] + 1e-3, [0, 1, 2], [1.0, 1.0, 0.0])
    evaluation = Mixtures(scores=("u",), sets=(TARGET,))
    evaluation.measure({TRAINED: trained, TARGET.name: new}, None, results)  # type: ignore[arg-type]
    rows = {(row["metric"], row["split"]): row for row in results.rows if row["metric"] != "length"}
    assert rows["auroc", "out"]["n"] == rows["recall_at_1", "mixed"]["n"] == 6  # three and three
    assert rows["auroc", "out"]["value"] == pytest.approx((2 * 3 + 3 * 0.5) / 9)
    assert rows["recall_at_1", "mixed"]["value"] < 0.5  # label 0 of one set is not label 0 of the other


def test_transfer_reports_scores_with_one_value_for_most_images(results: RowBuilder) -> None:
    predictions = predict(np.eye(4), [0, 0, 1, 1], [1.0, 1, 1, 3]).replace(
        scores={"u": np.array([1.0, 1, 1, 3]), "v": np.array([1.0, 1, 2, 3])}
    )
    Transfer(scores=("u", "v"), sets=(TARGET,), gallery=False).measure({TARGET.name: predictions}, None, results)  # type: ignore[arg-type]
    tied = [row for row in results.rows if row["metric"] == TIED_SHARE]
    assert [(row["measure"], row["value"]) for row in tied] == [("u", 0.75)]
