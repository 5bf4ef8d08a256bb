"""Temperature and vector scaling of dumps."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax, logsumexp, softmax

from nescio import BadInput, Predictions, Undefined
from nescio.analysis import calibration
from nescio.analysis.calibration import EDGES, REACH, Scaled, Temperature, Vector, _Rows, temperature, vector
from nescio.measures import energy, msp
from nescio.measures._softmax_pass import summary


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
def test_temperature__recovers_the_factor_that_logits_were_scaled_by(factor):
    logits, labels = counted()
    found = temperature(Predictions(logits=logits * factor, labels=labels)).temperature
    assert found == pytest.approx(factor, rel=1e-6)


def test_temperature__recovers_three_from_sampled_labels():
    logits, labels = sampled(n=300_000, c=4)
    alone = temperature(Predictions(logits=logits, labels=labels)).temperature
    found = temperature(Predictions(logits=logits * 3, labels=labels)).temperature
    assert found == pytest.approx(3 * alone, rel=1e-6)
    assert found == pytest.approx(3, rel=1e-2)  # five standard errors of the sample


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_temperature__any_float_dtype(dtype):
    logits, labels = counted()
    found = temperature(Predictions(logits=(logits * 3).astype(dtype), labels=labels)).temperature
    assert found == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("s", [1, 4])
def test_temperature__it_is_the_minimum_of_the_likelihood_of_the_mean(s):
    logits, labels = sampled(s=s)
    logits = logits * 2
    found = temperature(Predictions(logits=logits, labels=labels)).temperature

    def nll(t):
        own = log_softmax(logits / t, axis=2)[np.arange(len(labels)), :, labels]
        return -(logsumexp(own, axis=1) - np.log(s)).mean()

    grid = found * np.exp(np.linspace(-0.5, 0.5, 41))
    assert min(grid, key=nll) == pytest.approx(found)
    calibrated = Temperature(found)(Predictions(logits=logits, labels=labels))
    assert summary(calibrated).outcomes().log_loss.mean() == pytest.approx(nll(found), rel=1e-12)


@pytest.mark.parametrize("s", [1, 3])
def test_rows__gradients_are_exact(s):
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
def test_temperature__a_temperature_never_changes_an_answer(logits, t, normalized):
    if normalized:
        logits = log_softmax(logits, axis=1)
    dump = Predictions(logits=logits, normalized=normalized)
    scaled = Temperature(t)(dump)
    np.testing.assert_array_equal(summary(scaled).predicted, summary(dump).predicted)


def test_temperature__probabilities_stay_probabilities():
    logits, labels = counted()
    sharp = softmax(logits * 3, axis=1)
    dump = Predictions(probs=sharp, labels=labels)
    found = temperature(dump)
    assert found.temperature == pytest.approx(3, rel=1e-6)
    calibrated = found(dump)
    assert calibrated.normalized
    np.testing.assert_allclose(np.exp(np.asarray(calibrated.logits))[:, 0], softmax(logits, axis=1), rtol=1e-6)
    with pytest.raises(Undefined, match="probabilities"):
        energy(calibrated)


def test_temperature__zeros_of_half_precision_probabilities():
    logits, labels = sampled(n=2000, c=300, spread=5.0)
    half = softmax(logits[:, 0], axis=1).astype(np.float16)
    kept = half[np.arange(2000), labels] > 0
    found = temperature(Predictions(probs=half[kept], labels=labels[kept])).temperature
    assert found == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("dtype", "held"), [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
def test_temperature__calibrated_logits_are_an_array(dtype, held, normalized):
    logits, labels = sampled(n=50, c=4, s=2)
    logits = log_softmax(logits, axis=2) if normalized else logits
    dump = Predictions(logits=logits.astype(dtype), labels=labels, normalized=normalized)
    calibrated = Temperature(3.0)(dump)
    assert type(calibrated.logits) is np.ndarray
    assert calibrated.logits.dtype == held
    expected = dump.logits.astype(np.float64) / 3
    expected = log_softmax(expected, axis=2) if normalized else expected
    np.testing.assert_allclose(calibrated.logits, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(calibrated.logits.argmax(2), dump.logits.argmax(2))


def test_temperature__scaled_logits_stay_finite():
    dump = Predictions(logits=np.array([[3e38, 2e38, -3e38], [1.0, 2.0, 3.0]], np.float32))
    logits = Temperature(1e-3)(dump).logits
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(logits.argmax(2), dump.logits.argmax(2))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["folder", "a.npz", "a.safetensors", "a.parquet", "a.csv"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temperature__a_calibrated_dump_is_saved(tmp_path, monkeypatch, lazy, name, dtype):
    monkeypatch.setattr(calibration, "HELD_BYTES", 0 if lazy else 1 << 20)
    logits, labels = sampled(n=300, c=4)
    calibrated = Temperature(3.0)(Predictions(logits=logits.astype(dtype), labels=labels))
    assert isinstance(calibrated.logits, Scaled if lazy else np.ndarray)
    again = Predictions.load(calibrated.save(tmp_path / name))
    assert again.logits.dtype == (np.float64 if name == "a.csv" else dtype)
    np.testing.assert_array_equal(again.logits, np.asarray(calibrated.logits))
    np.testing.assert_array_equal(again.labels, labels)


def test_scaled__lazy_logits_are_calculated_with():
    logits, _ = sampled(n=20, c=4, s=3)
    lazy, whole = Scaled(logits, np.float64(0.5), np.float64(0.0), False), logits / 2
    for work in (
        lambda z: z / 2,
        lambda z: 2 - z,
        lambda z: z + z,
        lambda z: -z,
        np.exp,
        np.mean,
        lambda z: z > 0,
        lambda z: z.max(),
        lambda z: z.mean(1),
        lambda z: z.astype(np.float32),
        lambda z: np.add.reduce(z, axis=2),
    ):
        np.testing.assert_array_equal(work(lazy), work(whole))
    assert (lazy.size, lazy.nbytes) == (whole.size, whole.nbytes)
    assert not hasattr(lazy, "detach")


def test_temperature__the_scaled_logits_are_read_lazily(monkeypatch):
    monkeypatch.setattr(calibration, "HELD_BYTES", 0)
    logits, labels = sampled(n=20, c=4, s=3)
    dump = Predictions(logits=logits.astype(np.float32), labels=labels)
    lazy = Temperature(2.0)(dump).logits
    whole = logits.astype(np.float32) / 2
    assert (lazy.shape, lazy.ndim, lazy.dtype, len(lazy)) == ((20, 3, 4), 3, np.float32, 20)
    np.testing.assert_array_equal(np.asarray(lazy), whole)
    np.testing.assert_array_equal(np.asarray(lazy, np.float64), whole.astype(np.float64))
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


def test_temperature__what_is_not_logits_stays():
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


def test_temperature__a_large_dump_is_calibrated_without_a_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "HELD_BYTES", 0)
    monkeypatch.setenv("NESCIO_THREADS", "2")  # buffers are per thread
    shape = (3000, 5, 500)
    file = np.lib.format.open_memmap(tmp_path / "logits.npy", "w+", np.float16, shape)
    file[:] = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    labels = np.arange(3000) % 500
    labels[:1500] = np.asarray(file[:1500, 0], np.float32).argmax(1)
    dump = Predictions(logits=np.load(tmp_path / "logits.npy", mmap_mode="r"), labels=labels)
    temperature(Predictions(logits=counted()[0], labels=counted()[1]))  # imports the optimiser
    tracemalloc.start()
    calibrated = temperature(dump)(dump)
    assert summary(calibrated).outcomes().log_loss.mean() < summary(dump).outcomes().log_loss.mean()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6 < 8 * file.size


def test_vector_scaling_undoes_a_bent_model():
    logits, labels = sampled(n=60_000, c=4)
    bend, offset = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, -2.0, 0.5, 0.5])
    dump = Predictions(logits=logits * bend + offset, labels=labels)
    found = vector(dump)
    np.testing.assert_allclose(found.scale, 1 / bend, rtol=0.05)
    bias = -offset / bend
    np.testing.assert_allclose(found.bias - found.bias.mean(), bias - bias.mean(), atol=0.05)
    by_vector = summary(found(dump)).outcomes().log_loss.mean()
    by_temperature = summary(temperature(dump)(dump)).outcomes().log_loss.mean()
    assert by_vector < by_temperature - 0.05
    assert by_vector == pytest.approx(
        summary(Predictions(logits=logits, labels=labels)).outcomes().log_loss.mean(), abs=1e-3
    )


def test_vector_scaling_of_several_draws_and_of_probabilities():
    logits, labels = sampled(n=20_000, c=3, s=2)
    for dump in (Predictions(logits=logits, labels=labels), Predictions(probs=softmax(logits, axis=2), labels=labels)):
        found = vector(dump)
        np.testing.assert_allclose(found.scale, 1, rtol=0.1)
        assert summary(found(dump)).outcomes().log_loss.mean() <= summary(dump).outcomes().log_loss.mean()


def test_temperature__rows_of_other_classes_do_not_teach():
    logits, labels = counted()
    n = len(labels)
    strange = np.concatenate([labels, np.full(n, 77)])
    dump = Predictions(
        logits=np.concatenate([logits, logits]) * 3, labels=strange, in_distribution=np.arange(2 * n) < n
    )
    assert temperature(dump).temperature == pytest.approx(3, rel=1e-6)
    assert len(msp(temperature(dump)(dump))) == 2 * n


@pytest.mark.parametrize("fit", [temperature, vector])
@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"logits": np.eye(3)}, BadInput, "no labels"),
        ({"labels": [0, 1]}, BadInput, "no logits"),
        ({"logits": [[1.0, 2.0]], "labels": [0]}, BadInput, "1 labels"),
        ({"logits": np.eye(3), "labels": [0, 1, 9], "in_distribution": [1, 0, 0]}, BadInput, "1 labels"),
        ({"logits": np.ones((3, 3)), "labels": [0, 1, 2]}, Undefined, "same logit"),
    ],
)
def test_calibration__nothing_to_fit(fit, fields, error, sentence):
    with pytest.raises(error, match=sentence):
        fit(Predictions(**fields))


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(
    ("labels", "edge", "why", "sentence"),
    [
        ([0, 1, 2], 1 / REACH, "right", EDGES["right"]),
        ([1, 2, 0], REACH, "wrong", EDGES["wrong"]),
        ([0, 2, 1], REACH, "chance", "no better than chance, so the highest"),
    ],
)
def test_vector__the_edge_of_the_box(factor, labels, edge, why, sentence):
    val = Predictions(logits=np.eye(3) * factor, labels=labels)
    found = temperature(val)
    assert found.at_edge and found.edge == why and sentence in found.note
    assert found.temperature == pytest.approx(edge * factor * np.eye(3)[0].std())
    assert np.isfinite(summary(found(val)).outcomes().log_loss).all()
    with pytest.raises(Undefined, match=sentence):
        vector(val)


def test_temperature__draws_of_which_one_is_always_right_are_not_called_right():
    """The likeliest temperature is the lowest one, though every answer of the mean is wrong."""
    sure, unsure = [4.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    found = temperature(Predictions(logits=np.array([[sure, unsure]] * 4), labels=[1] * 4))
    assert found.edge == "covered" and "a draw" in found.note
    assert found.temperature == pytest.approx(np.array([sure, unsure]).std(-1).mean() / REACH)


def test_temperature__a_best_temperature_beyond_the_range_is_said_to_be_there():
    """One row of huge logits sets the unit of the range; the others want a far lower temperature."""
    logits = np.concatenate([[[1e12, 0.0]], np.tile([[1.0, 0.0]], (10, 1))])
    found = temperature(Predictions(logits=logits, labels=[0] * 10 + [1]))
    assert found.edge == "beyond" and EDGES["beyond"] in found.note


@pytest.mark.filterwarnings("error")
def test_temperature__logits_whose_squares_overflow_have_no_temperature():
    logits = 1e200 * np.random.default_rng(3).normal(size=(20, 3))
    with pytest.raises(Undefined, match="squares overflow"):
        temperature(Predictions(logits=logits, labels=np.arange(20) % 3))


def two_valleys():
    """Two draws of two classes, label 0: how far each draw's logit of the label is ahead. The likelihood has a minimum
    at T ≈ 0.38 and a worse one at T ≈ 326, to which a search from the unit of the range goes."""
    ahead = np.array([(1, 1)] * 4 + [(-1, -1)] + [(-200, 1)] * 6 + [(200, 1)] * 8, float)
    return Predictions(logits=np.stack([ahead, np.zeros_like(ahead)], -1), labels=np.zeros(len(ahead), int))


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_rows__of_several_minima_the_smallest_is_found(factor):
    val = two_valleys()
    scaled = Predictions(logits=np.asarray(val.logits) * factor, labels=val.labels)
    rows = _Rows(val)
    grid = np.exp(np.linspace(-4, 7, 2201))
    losses = np.array([rows.loss(1 / t, 0.0)[0] for t in grid])
    lows = np.flatnonzero((losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])) + 1
    assert len(lows) == 2 and grid[lows[0]] < 1 < 300 < grid[lows[1]]
    found = temperature(scaled)
    assert found.edge is None and found.temperature == pytest.approx(factor * grid[losses.argmin()], rel=5e-3)


def test_temperature__inside_the_box():
    logits, labels = counted()
    found = temperature(Predictions(logits=logits, labels=labels))
    assert not found.at_edge and found.note is None


def test_temperature_or_reason__calibration_that_the_benchmark_leaves_out():
    logits, labels = counted()
    for made, truth, why in (
        (np.eye(3), [0, 1, 2], EDGES["right"]),
        (np.eye(3), [1, 2, 0], "wrong"),
        (np.ones((3, 3)), [0, 1, 2], ""),
    ):
        temperature, note = calibration.temperature_or_reason(Predictions(logits=made, labels=truth))
        assert temperature is None and why in note and note
    temperature, note = calibration.temperature_or_reason(Predictions(logits=logits * 3, labels=labels))
    assert temperature == pytest.approx(3, rel=1e-6) and not note


GROWTH = """
import re, sys
from pathlib import Path
import scipy.optimize
from nescio import Predictions
from nescio.analysis import calibration
from nescio.measures._softmax_pass import prob_blocks, summary

def peak():  # of this program alone: ru_maxrss also counts the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

def whole_pass(dump):
    summary(dump)

def probabilities(dump):
    for _ in prob_blocks(dump):
        pass

def likelihood(dump):
    calibration._Rows(dump).loss(1.0, 0.0)

def scaled(dump):
    calibration.HELD_BYTES = 0
    summary(calibration.Temperature(2.0)(dump))

dump = Predictions.load(sys.argv[1])
before = peak()
globals()[sys.argv[2]](dump)
print(before, peak() - before)
"""


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A folder of 200 MB."""
    folder = tmp_path_factory.mktemp("mapped") / "dump"
    logits = np.random.default_rng(0).standard_normal((50_000, 1000), np.float32)
    return Predictions(logits=logits, labels=np.arange(50_000) % 1000).save(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("work", ["whole_pass", "probabilities", "likelihood", "scaled"])
def test_calibration__a_memory_mapped_dump_is_not_kept_in_memory(mapped, work):
    two = {**os.environ, "NESCIO_THREADS": "2"}  # buffers are per thread
    command = [sys.executable, "-c", GROWTH, mapped, work]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=two)
    before, growth = map(int, run.stdout.split())
    assert before < 150 and growth < 80


def test_vector_needs_every_class():
    logits, labels = counted()
    with pytest.raises(Undefined, match="no label 2"):
        vector(Predictions(logits=logits, labels=np.minimum(labels, 1)))


def test_vector__nothing_to_scale():
    with pytest.raises(BadInput, match="no logits"):
        Temperature(2.0)(Predictions(labels=[0, 1]))
    with pytest.raises(BadInput, match="fitted on 2 classes"):
        Vector(np.ones(2), np.zeros(2))(Predictions(logits=np.eye(3)))
