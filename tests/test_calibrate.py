"""Temperature and vector scaling of dumps."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax, logsumexp, softmax

from nescio import BadInput, Predictions, Undefined
from nescio.calibrate import Temperature, Vector, _Rows, temperature, vector
from nescio.measures import energy, largest
from nescio.measures._softmax import summary


def sampled(n=4000, c=6, s=1, seed=0, spread=2.0):
    """Labels drawn from the model's own probabilities: the true temperature is 1."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, s, c)) * spread
    probs = softmax(logits, axis=2).mean(1)
    labels = (probs.cumsum(1) < rng.random((n, 1))).sum(1)
    return logits, np.minimum(labels, c - 1)


def counted():
    """Rows repeated with their labels in exact proportion to their probabilities: the best temperature *is* 1."""
    shares = np.array([[5, 3, 2], [1, 8, 1], [7, 2, 1], [3, 3, 4]])
    logits = np.log(shares / 10).repeat(10, axis=0)
    return logits, np.concatenate([np.repeat(np.arange(3), share) for share in shares])


@pytest.mark.parametrize("factor", [3.0, 1.0, 0.2, 1e3, 1e-3])
def test_recovers_the_factor_that_logits_were_scaled_by(factor):
    logits, labels = counted()
    found = temperature(Predictions(logits=logits * factor, labels=labels)).temperature
    assert found == pytest.approx(factor, rel=1e-6)


def test_recovers_three_from_sampled_labels():
    logits, labels = sampled(n=300_000, c=4)
    alone = temperature(Predictions(logits=logits, labels=labels)).temperature
    found = temperature(Predictions(logits=logits * 3, labels=labels)).temperature
    assert found == pytest.approx(3 * alone, rel=1e-6)
    assert found == pytest.approx(3, rel=1e-2)  # five standard errors of the sample


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_dtype(dtype):
    logits, labels = counted()
    found = temperature(Predictions(logits=(logits * 3).astype(dtype), labels=labels)).temperature
    assert found == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("s", [1, 4])
def test_it_is_the_minimum_of_the_likelihood_of_the_mean(s):
    logits, labels = sampled(s=s)
    logits = logits * 2
    found = temperature(Predictions(logits=logits, labels=labels)).temperature

    def nll(t):
        own = log_softmax(logits / t, axis=2)[np.arange(len(labels)), :, labels]
        return -(logsumexp(own, axis=1) - np.log(s)).mean()

    grid = found * np.exp(np.linspace(-0.5, 0.5, 41))
    assert min(grid, key=nll) == pytest.approx(found)
    calibrated = Temperature(found)(Predictions(logits=logits, labels=labels))
    assert summary(calibrated).answers().log_loss.mean() == pytest.approx(nll(found), rel=1e-12)


@pytest.mark.parametrize("s", [1, 3])
def test_gradients_are_exact(s):
    logits, labels = sampled(n=50, c=4, s=s)
    rows = _Rows(Predictions(logits=logits, labels=labels))
    rng = np.random.default_rng(0)
    scale, bias, step = rng.uniform(0.5, 1.5, 4), rng.normal(size=4), 1e-6
    _, by_scale, by_bias = rows.loss(scale, bias)
    for j in range(4):
        e = np.eye(4)[j] * step
        assert (rows.loss(scale + e, bias)[0] - rows.loss(scale - e, bias)[0]) / (2 * step) == pytest.approx(
            by_scale[j], abs=1e-8
        )
        assert (rows.loss(scale, bias + e)[0] - rows.loss(scale, bias - e)[0]) / (2 * step) == pytest.approx(
            by_bias[j], abs=1e-8
        )


@given(
    hnp.arrays(np.float64, (4, 5), elements=st.floats(-4, 4) | st.sampled_from([1.0, np.nextafter(1.0, 2), 0.0])),
    st.floats(0.05, 20),
    st.booleans(),
)
def test_a_temperature_never_changes_an_answer(logits, t, normalized):
    if normalized:
        logits = log_softmax(logits, axis=1)
    dump = Predictions(logits=logits, normalized=normalized)
    scaled = Temperature(t)(dump)
    np.testing.assert_array_equal(summary(scaled).predicted, summary(dump).predicted)


def test_probabilities_stay_probabilities():
    logits, labels = counted()
    sharp = softmax(logits * 3, axis=1)
    dump = Predictions(probs=sharp, labels=labels)
    found = temperature(dump)
    assert found.temperature == pytest.approx(3, rel=1e-6)
    calibrated = found(dump)
    assert calibrated.normalized
    np.testing.assert_allclose(np.exp(np.asarray(calibrated.logits))[:, 0], softmax(logits, axis=1), rtol=1e-6)
    with pytest.raises(Undefined, match="holds probabilities"):
        energy(calibrated)


def test_zeros_of_half_precision_probabilities():
    logits, labels = sampled(n=2000, c=300, spread=5.0)
    half = softmax(logits[:, 0], axis=1).astype(np.float16)
    kept = half[np.arange(2000), labels] > 0
    found = temperature(Predictions(probs=half[kept], labels=labels[kept])).temperature
    assert found == pytest.approx(1, rel=0.03)


def test_the_scaled_logits_are_read_lazily():
    logits, labels = sampled(n=20, c=4, s=3)
    dump = Predictions(logits=logits.astype(np.float32), labels=labels)
    lazy = Temperature(2.0)(dump).logits
    whole = logits.astype(np.float32).astype(np.float64) / 2
    assert (lazy.shape, lazy.ndim, lazy.dtype, len(lazy)) == ((20, 3, 4), 3, np.float64, 20)
    np.testing.assert_array_equal(np.asarray(lazy), whole)
    np.testing.assert_array_equal(np.asarray(lazy, np.float32), whole.astype(np.float32))
    for key in (
        slice(3, 7),
        5,
        -1,
        np.array([4, 1]),
        np.arange(20) % 2 == 0,
        (slice(None), 0),
        (2, 1),
        (slice(0, 9), slice(None), 2),
        (np.arange(20), 0, labels),
        ...,
    ):
        np.testing.assert_array_equal(lazy[key], whole[key])


def test_what_is_not_logits_stays():
    logits, labels = counted()
    n = len(labels)
    dump = Predictions(
        logits=logits,
        labels=labels,
        variants={"tta": log_softmax(logits, axis=1)},
        scores={"native": np.arange(n)},
        groups={"domain": np.arange(n) % 2},
        index=np.arange(n)[::-1],
        members=[3],
    )
    scaled = Temperature(2.0)(dump)
    assert scaled.variants["tta"] is dump.variants["tta"]
    for name, column in dump.columns():
        if name != "logits":
            np.testing.assert_array_equal(dict(scaled.columns())[name], column)
    np.testing.assert_array_equal(scaled.members, [3])
    assert scaled.take(slice(0, 5)).logits.shape == (5, 1, 3)


def test_a_large_dump_is_calibrated_without_a_copy(tmp_path):
    shape = (3000, 5, 500)
    file = np.lib.format.open_memmap(tmp_path / "logits.npy", "w+", np.float16, shape)
    file[:] = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    labels = np.arange(3000) % 500
    labels[:1500] = np.asarray(file[:1500, 0], np.float32).argmax(1)
    dump = Predictions(logits=np.load(tmp_path / "logits.npy", mmap_mode="r"), labels=labels)
    temperature(Predictions(logits=counted()[0], labels=counted()[1]))  # imports the optimiser
    tracemalloc.start()
    calibrated = temperature(dump)(dump)
    assert summary(calibrated).answers().log_loss.mean() < summary(dump).answers().log_loss.mean()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6 < 8 * file.size


def test_vector_scaling_undoes_a_bent_model():
    logits, labels = sampled(n=60_000, c=4)
    bend, offset = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, -2.0, 0.5, 0.5])
    dump = Predictions(logits=logits * bend + offset, labels=labels)
    found = vector(dump)
    np.testing.assert_allclose(found.scale, 1 / bend, rtol=0.05)
    bias = -offset / bend
    np.testing.assert_allclose(found.bias - found.bias.mean(), bias - bias.mean(), atol=0.05)
    by_vector = summary(found(dump)).answers().log_loss.mean()
    by_temperature = summary(temperature(dump)(dump)).answers().log_loss.mean()
    assert by_vector < by_temperature - 0.05
    assert by_vector == pytest.approx(
        summary(Predictions(logits=logits, labels=labels)).answers().log_loss.mean(), abs=1e-3
    )


def test_vector_scaling_of_several_draws_and_of_probabilities():
    logits, labels = sampled(n=20_000, c=3, s=2)
    for dump in (Predictions(logits=logits, labels=labels), Predictions(probs=softmax(logits, axis=2), labels=labels)):
        found = vector(dump)
        np.testing.assert_allclose(found.scale, 1, rtol=0.1)
        assert summary(found(dump)).answers().log_loss.mean() <= summary(dump).answers().log_loss.mean()


def test_rows_of_other_classes_do_not_teach():
    logits, labels = counted()
    n = len(labels)
    strange = np.concatenate([labels, np.full(n, 77)])
    dump = Predictions(logits=np.concatenate([logits, logits]) * 3, labels=strange, taught=np.arange(2 * n) < n)
    assert temperature(dump).temperature == pytest.approx(3, rel=1e-6)
    assert len(largest(temperature(dump)(dump))) == 2 * n


@pytest.mark.parametrize("fit", [temperature, vector])
@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"logits": np.eye(3)}, BadInput, "no labels"),
        ({"labels": [0, 1]}, BadInput, "no logits"),
        ({"logits": [[1.0, 2.0]], "labels": [0]}, BadInput, "has 1 labelled rows"),
        ({"logits": np.eye(3), "labels": [0, 1, 9], "taught": [1, 0, 0]}, BadInput, "has 1 labelled rows"),
        ({"logits": np.eye(3), "labels": [0, 1, 2]}, Undefined, "Every validation answer is right"),
        ({"logits": np.ones((3, 3)), "labels": [0, 1, 2]}, Undefined, "same logit"),
        ({"logits": np.eye(3), "labels": [1, 2, 0]}, Undefined, "no better than chance"),
    ],
)
def test_nothing_to_fit(fit, fields, error, sentence):
    with pytest.raises(error, match=sentence):
        fit(Predictions(**fields))


def test_vector_needs_every_class():
    logits, labels = counted()
    with pytest.raises(Undefined, match="no label 2"):
        vector(Predictions(logits=logits, labels=np.minimum(labels, 1)))


def test_nothing_to_scale():
    with pytest.raises(BadInput, match="no logits"):
        Temperature(2.0)(Predictions(labels=[0, 1]))
    with pytest.raises(BadInput, match="fitted on 2 classes"):
        Vector(np.ones(2), np.zeros(2))(Predictions(logits=np.eye(3)))
