"""A threshold set on the rows that fit a measure keeps its promise: every row is judged by the others."""

from functools import partial

import numpy as np
import pytest

from nescio import Predictions, measures, metrics
from nescio.analysis.measure_scores import cross_fitted
from nescio.analysis.scorecard import scorecard


def clusters(n, d, classes, seed=0, apart=3.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    return Predictions(labels=labels, embeddings=rng.normal(size=(n, d)) + apart * np.eye(classes, d)[labels])


FITS = {
    "gmm": measures.gmm,
    "gmm without priors": lambda rows: measures.gmm(rows, priors=False),
    "mahalanobis": measures.mahalanobis,
    "mds_plus": measures.mds_plus,
    "rmds": measures.rmds,
    "rmds_plus": measures.rmds_plus,
    "knn": lambda rows: measures.knn_distance(rows, k=3),
    "knn, euclidean": lambda rows: measures.knn_distance(rows, k=2, metric="euclidean"),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize(("n", "d", "classes"), [(120, 6, 3), (40, 8, 2), (25, 3, 1)])
def test_leave_one_out__it_is_what_fitting_without_each_row_gives(name, n, d, classes):
    rows, fit = clusters(n, d, classes), FITS[name]
    every = np.arange(n)
    brute = [fit(rows.take(np.delete(every, row)))(rows.take(every[[row]]))[0] for row in range(n)]
    np.testing.assert_allclose(fit(rows).leave_one_out(rows), brute, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fit", [measures.gmm, partial(measures.knn, k=5)])
def test_leave_one_out__rows_that_were_not_taught_are_judged_as_new_ones(fit):
    rows = clusters(60, 4, 3)
    in_distribution = np.arange(60) % 4 != 0
    mixed, known = rows.replace(in_distribution=in_distribution), rows.take(in_distribution)
    u = fit(mixed).leave_one_out(mixed)
    np.testing.assert_array_equal(u[~in_distribution], fit(mixed)(mixed)[~in_distribution])
    np.testing.assert_allclose(u[in_distribution], fit(known).leave_one_out(known), rtol=1e-12)


@pytest.mark.parametrize("measure", ["gmm", "mahalanobis", "knn_distance"])
def test_gmm__the_threshold_keeps_its_promise_where_classes_have_few_rows(measure):
    """64 features and 100 rows a class: by two halves 0.99 to 1 of new rows were taken in, where 0.95 is promised."""
    val, test = clusters(300, 64, 3, seed=1), clusters(2000, 64, 3, seed=2)
    logits = np.zeros((1, 3))
    val, test = (p.replace(logits=np.repeat(logits, len(p), 0)) for p in (val, test))
    out = Predictions(embeddings=np.random.default_rng(3).normal(size=(500, 64)) * 2, logits=np.zeros((500, 3)))
    card = scorecard(test, None, val, {"out": out}, calibration=None, only=(measure,))
    accepted = next(row["value"] for row in card.rows if row["metric"] == "in_as_in" and row["measure"] == measure)
    rejected = next(row["value"] for row in card.rows if row["metric"] == "out_as_out" and row["measure"] == measure)
    assert accepted == pytest.approx(0.95, abs=0.03)
    assert rejected > 0.5, "by two halves the gmm rejected almost nothing"
    halves = np.empty(len(val))
    for first in (0, 1):
        own = np.arange(first, len(val), 2)
        halves[own] = measures.gmm(val.take(np.arange(1 - first, len(val), 2)))(val.take(own))
    by_halves = metrics.in_as_in(measures.gmm(val)(test), metrics.threshold(halves))
    assert by_halves > 0.99, "what the promise was before"


def test_leave_one_out__measures_without_a_closed_form_leave_out_a_fifth_at_a_time():
    rows, calls = clusters(50, 4, 2), []

    def fit(given):
        calls.append(len(given))
        return lambda these: np.zeros(len(these))

    assert cross_fitted(fit, rows).shape == (50,)
    assert calls == [50, *[40] * 5]
