"""The one pass: softmax measures and answers of a dump."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import entropy as scipy_entropy

from nescio import BadInput, Predictions, Undefined, metrics
from nescio.measures import _softmax_pass as module
from nescio.measures import (
    dempster_shafer,
    energy,
    entropy,
    expected_entropy,
    gap,
    max_logit,
    msp,
    mutual_information,
)
from nescio.measures._softmax_pass import LEADING, mean_probs, prob_blocks, summary, top_k_outcomes
from tests.support.reference import load

OF_PROBS = (msp, gap, entropy, mutual_information, expected_entropy)
OF_SCORES = (max_logit, energy, dempster_shafer)
ALL = OF_PROBS + OF_SCORES


def by_definition(logits):
    """All measures of logits (n, s, c) from SciPy in float64."""
    z = np.asarray(logits, np.float64)
    p = softmax(z, axis=2)
    mean = p.mean(1)
    ordered = np.sort(mean, axis=1)
    lse = logsumexp(z, axis=2)
    c = z.shape[2]
    of_draws = scipy_entropy(p, axis=2)
    return {
        "msp": 1 - ordered[:, -1],
        "gap": 1 - (ordered[:, -1] - ordered[:, -2]),
        "entropy": scipy_entropy(mean, axis=1),
        "mutual_information": scipy_entropy(mean, axis=1) - of_draws.mean(1),
        "expected_entropy": of_draws.mean(1),
        "max_logit": -z.max(2).mean(1),
        "energy": -lse.mean(1),
        "dempster_shafer": (c / (c + np.exp(lse))).mean(1),
    }


dumps = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(2, 5)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.floats(-20, 20).map(lambda x: round(x, 1)))
)


@given(dumps, st.sampled_from([np.float16, np.float32, np.float64, np.int64]))
def test_softmax_pass__measures_by_definition(logits, dtype):
    dump = Predictions(logits=logits.astype(dtype))
    expected = by_definition(logits.astype(dtype))
    for measure in ALL:
        np.testing.assert_allclose(measure(dump), expected[measure.__name__], rtol=1e-11, atol=1e-13)


@given(dumps, st.sampled_from([np.float16, np.float32, np.float64]), st.data())
def test_mean_probs__answers_of_logits_are_those_of_the_mean_probabilities(logits, dtype, data):
    logits = logits.astype(dtype)
    n, _, c = logits.shape
    labels = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, c - 1)))
    dump = Predictions(logits=logits, labels=labels)
    a = summary(dump).outcomes()
    probs = softmax(logits.astype(np.float64), axis=2).mean(1)
    own = log_softmax(logits.astype(np.float64), axis=2)[np.arange(n), :, labels]
    np.testing.assert_allclose(a.log_loss, -logsumexp(own, axis=1) + np.log(own.shape[1]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(a.brier, ((probs - np.eye(c)[labels]) ** 2).sum(1), atol=1e-13)
    np.testing.assert_allclose(a.confidence, probs.max(1), rtol=1e-13)
    np.testing.assert_allclose(a.uncertainty, 1 - probs.max(1), atol=1e-13)
    np.testing.assert_allclose(mean_probs(dump), probs, rtol=1e-12)
    if logits.shape[1] == 1:
        flat = logits[:, 0]
        order = np.argsort(-flat.astype(np.float64), axis=1, kind="stable")
        np.testing.assert_array_equal(a.predicted, order[:, 0])
        np.testing.assert_array_equal(a.rank, np.argmax(order == labels[:, None], axis=1))
        np.testing.assert_array_equal(a.correct, order[:, 0] == labels)


def test_summary__one_draw_and_the_same_draw_twice_agree():
    logits = np.random.default_rng(0).normal(size=(200, 1, 10)) * 4
    labels = np.arange(200) % 10
    once, twice = Predictions(logits=logits, labels=labels), Predictions(logits=logits.repeat(2, 1), labels=labels)
    for measure in ALL:
        np.testing.assert_allclose(measure(once), measure(twice), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(summary(once).outcomes().brier, summary(twice).outcomes().brier, rtol=1e-12)
    np.testing.assert_array_equal(mutual_information(once), 0.0)
    assert (mutual_information(twice) >= 0).all()


def test_summary__saturated_rows_keep_their_order():
    """A float32 softmax gives all of these the probability 1."""
    lead = np.linspace(20, 600, 500)
    logits = np.zeros((500, 3), np.float32)
    logits[:, 1] = lead
    dump = Predictions(logits=logits, labels=np.ones(500, int))
    for measure in (msp, entropy, energy, max_logit):
        assert (np.diff(measure(dump)) < 0).all(), measure.__name__
    np.testing.assert_allclose(msp(dump), 2 * np.exp(-logits[:, 1].astype(np.float64)), rtol=1e-8)
    a = summary(dump).outcomes()
    np.testing.assert_allclose(a.log_loss, a.uncertainty, rtol=1e-8)
    np.testing.assert_allclose(a.brier[:100], 1.5 * a.uncertainty[:100] ** 2, rtol=1e-8)
    wrong = summary(Predictions(logits=logits, labels=np.zeros(500, int))).outcomes()
    np.testing.assert_allclose(wrong.log_loss, logits[:, 1], rtol=1e-7)  # never the log of an underflowed softmax


@pytest.mark.parametrize("measure", [msp, gap, entropy, max_logit])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_pass__thirty_times_the_logits_of_two_classes_give_the_same_order(measure, dtype):
    """Of two classes all four are functions of one difference, or of one logit, so that the order cannot change."""
    logits = (np.random.default_rng(0).normal(size=(2000, 2)) * 4).astype(dtype)
    plain, sharp = (measure(Predictions(logits=logits * factor)) for factor in (1, 30))
    assert len(np.unique(sharp)) == len(np.unique(plain))
    np.testing.assert_array_equal(np.argsort(sharp, kind="stable"), np.argsort(plain, kind="stable"))


def test_softmax_pass__thirty_times_the_logits_of_many_classes_are_ordered_as_in_exact_arithmetic():
    logits = (np.random.default_rng(0).normal(size=(2000, 10)) * 3).astype(np.float32) * 30
    logs = np.sort(log_softmax(logits.astype(np.float64), axis=1), axis=1)
    rest = logsumexp(logs[:, :-1], axis=1)
    exact = {msp: rest, gap: np.logaddexp(rest, logs[:, -2])}  # log(1 − p₁) and log(1 − p₁ + p₂)
    for measure, truth in exact.items():
        np.testing.assert_array_equal(np.argsort(measure(Predictions(logits=logits))), np.argsort(truth))


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e30, 1e300])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_summary__far_away_logits_stay_finite(scale, offset):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(50, 2, 4)) + 5 * offset) * scale
    for z in (logits, logits[:, :1]):
        dump = Predictions(logits=z, labels=np.zeros(50, int))
        for measure in ALL:
            assert np.isfinite(measure(dump)).all(), measure.__name__
        a = summary(dump).outcomes()
        assert all(np.isfinite(getattr(a, name)).all() for name in ("log_loss", "brier", "uncertainty", "confidence"))
    np.testing.assert_allclose(energy(dump), -logits[:, 0].max(1), rtol=1e-3)


def test_softmax_pass__a_common_offset_changes_no_probability():
    logits = np.random.default_rng(0).normal(size=(100, 5)) * 3
    near, far = Predictions(logits=logits), Predictions(logits=logits + 4096.0)
    for measure in (msp, gap, entropy):
        np.testing.assert_allclose(measure(near), measure(far), rtol=1e-9)


def test_softmax_pass__rows_and_classes_may_come_in_any_order():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3000, 2, 40)) * np.linspace(0.1, 200, 3000)[:, None, None]
    rows, classes = rng.permutation(3000), rng.permutation(40)
    for z in (logits, logits[:, :1].astype(np.float32)):
        dump = Predictions(logits=z)
        mixed, renamed = Predictions(logits=z[rows]), Predictions(logits=z[:, :, classes])
        for measure in ALL:
            np.testing.assert_array_equal(measure(dump)[rows], measure(mixed))
            np.testing.assert_allclose(measure(dump), measure(renamed), rtol=1e-12, atol=1e-15)


def test_summary__blocks_and_threads_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(257, 3, 7)), rng.integers(7, size=257)
    whole = summary(Predictions(logits=logits, labels=labels))
    monkeypatch.setattr(module, "PASS_BLOCK", 21)
    monkeypatch.setenv("NESCIO_THREADS", "3")
    blocked = summary(Predictions(logits=logits, labels=labels))
    for name in whole.u:
        np.testing.assert_array_equal(whole.u[name], blocked.u[name])
    np.testing.assert_array_equal(whole.outcomes().log_loss, blocked.outcomes().log_loss)


# ---- draws and members


def test_mutual_information_is_over_members_when_there_are_several():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(30, 6, 4)) * 2
    p = softmax(logits, axis=2)
    members = np.array([0, 1, 0, 1, 0, 1])
    means = np.stack([p[:, members == m].mean(1) for m in (0, 1)], 1)
    expected = scipy_entropy(means.mean(1), axis=1) - scipy_entropy(means, axis=2).mean(1)
    np.testing.assert_allclose(mutual_information(Predictions(logits=logits, members=members)), expected, rtol=1e-10)
    of_draws = by_definition(logits)["mutual_information"]
    for same in (None, np.zeros(6, int), np.arange(6)):
        found = mutual_information(Predictions(logits=logits, members=same))
        np.testing.assert_allclose(found, of_draws, rtol=1e-10)
    assert not np.allclose(expected, of_draws)
    dump = Predictions(logits=logits, members=members)
    np.testing.assert_allclose(expected_entropy(dump), scipy_entropy(p, axis=2).mean(1), rtol=1e-12)  # always of draws


def test_mutual_information__members_weigh_alike_whatever_their_number_of_draws():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(30, 4, 3)) * 2
    p = softmax(logits, axis=2)
    means = np.stack([p[:, :3].mean(1), p[:, 3]], 1)
    expected = scipy_entropy(means.mean(1), axis=1) - scipy_entropy(means, axis=2).mean(1)
    dump = Predictions(logits=logits, members=[0, 0, 0, 7])
    np.testing.assert_allclose(mutual_information(dump), expected, rtol=1e-10)
    np.testing.assert_allclose(msp(dump), 1 - p.mean(1).max(1), rtol=1e-12)  # the answer is the mean over draws


def test_mutual_information__agreeing_members_disagree_by_nothing():
    logits = np.random.default_rng(0).normal(size=(500, 1, 8)).repeat(5, axis=1) * 6
    u = mutual_information(Predictions(logits=logits))
    assert (u >= 0).all() and u.max() < 1e-14


def test_mean_probs__url_jensen_shannon_divergence():
    r = load("url_jsd")
    logits = np.moveaxis(r["logits_S_B_C"], 0, 1)
    dump = Predictions(logits=logits)
    np.testing.assert_allclose(mutual_information(dump), r["jsd"], rtol=1e-12)
    np.testing.assert_allclose(mutual_information(dump), r["x_jsd"], rtol=1e-12)
    np.testing.assert_allclose(np.log(mean_probs(dump)), r["mean_logprob"], rtol=1e-12)
    np.testing.assert_allclose(expected_entropy(dump), r["entropy_of_members"].mean(0), rtol=1e-12)
    for member in range(7):
        alone = entropy(Predictions(logits=logits[:, member]))
        np.testing.assert_allclose(alone, r["entropy_of_members"][member], rtol=1e-12)
    saturated = logits.copy()
    saturated[0] = [1e4, 0, 0, 0, 0]
    found = mutual_information(Predictions(logits=saturated))
    np.testing.assert_allclose(found, r["jsd_with_onehot_row0"], rtol=1e-12, atol=1e-300)
    assert found[0] == 0
    assert set(r) == {"logits_S_B_C", "jsd", "x_jsd", "mean_logprob", "entropy_of_members", "jsd_with_onehot_row0"}


def test_mutual_information__practicality_entropy_and_mutual_information():
    r = load("pract_entropy_mi")
    ours = entropy(Predictions(probs=r["probs"]))
    np.testing.assert_allclose(ours, r["x_entropy_exact"], rtol=1e-6)
    # Theirs adds 1e-5 inside the logarithm, which lowers every entropy by about 1e-5 a class: not the entropy.
    p = r["probs"].astype(np.float64)
    np.testing.assert_allclose(r["entropy_eps"], -(p * np.log(p + 1e-5)).sum(1), rtol=1e-5)
    assert (ours - r["entropy_eps"] > 5e-5).all()

    draws = np.moveaxis(r["samples_B_C_S"], 2, 1)
    dump = Predictions(probs=draws)
    np.testing.assert_allclose(mutual_information(dump), r["x_mi_exact"], rtol=1e-9)
    np.testing.assert_allclose(mutual_information(dump), r["epistemic_mi"], atol=1e-7)  # their 1e-5 nearly cancels …
    assert np.abs(r["epistemic_mi"] - r["x_mi_exact"]).max() > 1e-9  # … but is there
    aleatoric = -(draws * np.log(draws + 1e-5)).sum(2).mean(1)
    np.testing.assert_allclose(r["aleatoric"], aleatoric, rtol=1e-9)
    assert (expected_entropy(dump) - r["aleatoric"] > 1e-5).all()  # and does not cancel here
    np.testing.assert_allclose(expected_entropy(dump), scipy_entropy(draws, axis=2).mean(1), rtol=1e-12)
    inputs, theirs = {"probs", "samples_B_C_S"}, {"entropy_eps", "epistemic_mi", "aleatoric"}
    assert set(r) == inputs | theirs | {"x_entropy_exact", "x_mi_exact"}


def test_energy__uimnet_measures():
    r = load("uimnet_measures")
    np.testing.assert_allclose(r["features"] @ r["w_classifier.weight"].T + r["w_classifier.bias"], r["logits"])
    dump = Predictions(logits=r["logits"])
    np.testing.assert_allclose(msp(dump), 1 + r["Largest"], rtol=1e-12)  # theirs is -max p, ours 1 - max p
    assert (msp(dump) != r["Largest"]).all()
    np.testing.assert_allclose(gap(dump), 1 + r["Gap"], rtol=1e-12)  # theirs is p₂ - p₁
    np.testing.assert_allclose(entropy(dump), r["Entropy"], rtol=1e-12)
    np.testing.assert_allclose(energy(dump), r["LogSumExp"], rtol=1e-12)
    rest = {key for key in r if not key.startswith(("w_", "MoG_", "train_"))}  # mixtures: see test_mixtures
    ours = {"Largest", "Gap", "Entropy", "LogSumExp"}
    assert rest == ours | {"x", "logits", "features", "Jacobian", "DeepJacobian", "x_full_jacobian_row0"}


# ---- dumps of probabilities


@pytest.mark.parametrize("measure", OF_SCORES)
def test_softmax_pass__scores_are_absent_from_probabilities(measure):
    with pytest.raises(Undefined, match="only probabilities"):
        measure(Predictions(probs=np.full((2, 3), 1 / 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_summary__probabilities_are_taken_as_given(dtype):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(6, 0.3), size=400).astype(dtype)
    labels = rng.integers(6, size=400)
    dump = Predictions(probs=probs, labels=labels)
    given_ = metrics.outcomes(probs, labels)
    found = summary(dump).outcomes()
    for name in ("confidence", "uncertainty", "brier", "log_loss"):
        np.testing.assert_allclose(getattr(found, name), getattr(given_, name), rtol=1e-5, atol=1e-7)
    for name in ("predicted", "correct", "rank"):
        np.testing.assert_array_equal(getattr(found, name), getattr(given_, name))
    np.testing.assert_allclose(entropy(dump), scipy_entropy(probs.astype(np.float64), axis=1), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gap__shares_of_votes_tie(dtype):
    """A forest's probabilities are k/m: equal largest shares must tie whatever the other classes share."""
    rng = np.random.default_rng(0)
    votes = rng.multinomial(10, np.full(5, 0.2), size=2000)
    dump = Predictions(probs=(votes / 10).astype(dtype))
    assert len(np.unique(msp(dump))) == len(np.unique(votes.max(1)))
    ordered = np.sort(votes, axis=1)
    if dtype == np.float64:  # in float32, 0.6 - 0.4 and 0.5 - 0.3 differ by themselves
        assert len(np.unique(gap(dump))) == len(np.unique(ordered[:, -1] - ordered[:, -2]))
        exact = scipy_entropy(ordered / 10, axis=1)
        assert len(np.unique(entropy(dump))) == len(np.unique(exact.round(9)))


def test_summary__one_hot_probabilities():
    dump = Predictions(probs=np.eye(4, dtype=np.float32), labels=[0, 1, 3, 3])
    np.testing.assert_allclose(msp(dump), 0, atol=1e-30)
    np.testing.assert_allclose(entropy(dump), 0, atol=1e-30)
    a = summary(dump).outcomes()
    assert a.floored == 1 and a.zero[2]
    assert a.log_loss[2] == pytest.approx(-np.log(np.finfo(np.float64).tiny), rel=1e-12)
    np.testing.assert_allclose(a.brier, [0, 0, 2, 0], atol=1e-12)


def test_mean_probs__zeros_of_half_precision_do_not_add_up():
    """A thousand zeros, each kept as 6e-5, would be 6 % of a row."""
    rng = np.random.default_rng(0)
    exact = softmax(rng.normal(size=(200, 1000)) * 8, axis=1)
    half = exact.astype(np.float16)
    assert (half == 0).mean() > 0.5
    labels = np.where(half[:, 0] == 0, 0, 1)
    dump = Predictions(probs=half, labels=labels)
    as_given = half.astype(np.float64)
    np.testing.assert_allclose(summary(dump).outcomes().confidence, as_given.max(1), rtol=1e-6)
    unsaturated = as_given.max(1) < 0.999
    np.testing.assert_allclose(msp(dump)[unsaturated], 1 - as_given.max(1)[unsaturated], rtol=1e-5)
    np.testing.assert_allclose(entropy(dump), -(as_given * np.log(np.maximum(as_given, 1e-30))).sum(1), atol=1e-3)
    np.testing.assert_allclose(mean_probs(dump), as_given, atol=1e-4)  # a true 6e-5 beside zeros is lost with them
    a = summary(dump).outcomes()
    assert a.floored == metrics.outcomes(half, labels).floored > 0
    np.testing.assert_allclose(a.log_loss, metrics.outcomes(half, labels).log_loss, rtol=1e-5)


def test_msp__a_true_six_in_a_hundred_thousand_counts():
    tiny = float(np.finfo(np.float16).tiny)
    dump = Predictions(probs=np.array([[1 - tiny, tiny]], np.float32))
    np.testing.assert_allclose(msp(dump), tiny, rtol=1e-5)


# ---- what the summary knows


def test_summary__untaught_rows_have_measures_but_no_answers():
    logits = np.random.default_rng(0).normal(size=(4, 3))
    dump = Predictions(logits=logits, labels=[0, 1, 99, 2], in_distribution=[True, True, False, False])
    s = summary(dump)
    np.testing.assert_array_equal(s.labelled, [True, True, False, False])
    assert s.outcomes().n == 2 and len(s.u["msp"]) == 4
    assert s.outcomes(np.array([1])).n == 1
    with pytest.raises(BadInput, match="omit"):
        s.outcomes(np.array([1, 2]))
    with pytest.raises(Undefined, match="No row"):
        summary(Predictions(logits=logits, labels=[7, 8, 9, 9], in_distribution=np.zeros(4, bool))).outcomes()


def test_mean_probs__nothing_to_say():
    with pytest.raises(Undefined, match="no logits"):
        msp(Predictions(labels=[0, 1]))
    with pytest.raises(Undefined, match="no logits"):
        mean_probs(Predictions(labels=[0, 1]))
    with pytest.raises(Undefined, match="no labels"):
        summary(Predictions(logits=np.zeros((2, 3)))).outcomes()


def test_msp__the_pass_happens_once_and_its_results_cannot_be_changed(monkeypatch):
    dump = Predictions(logits=np.random.default_rng(0).normal(size=(5, 3)))
    first = msp(dump)
    monkeypatch.setattr(module, "_Columns", None)
    assert msp(dump) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_mutual_information__a_large_half_precision_file_is_read_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("NESCIO_THREADS", "2")  # buffers are per thread
    shape = (2000, 10, 1000)
    file = np.lib.format.open_memmap(tmp_path / "logits.npy", "w+", np.float16, shape)
    file[:] = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    dump = Predictions(logits=np.load(tmp_path / "logits.npy", mmap_mode="r"), labels=np.arange(2000) % 1000)
    tracemalloc.start()
    u = mutual_information(dump)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24e6 < file.nbytes
    rows = np.array([0, 999, 1999])
    np.testing.assert_allclose(u[rows], by_definition(file[rows])["mutual_information"], rtol=1e-9)


# ---- without loss


def test_gap_keeps_its_order_however_large_the_logits_are():
    """The lead of the first class rounds to one at thirty times the logits, and what it lacks does not."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 10)) * 3
    wrong = rng.random(2000) < 0.3 / (1 + np.exp(np.sort(logits)[:, -1] - np.sort(logits)[:, -2]))
    for scale in (1, 10, 30):
        for dump in (Predictions(logits=scale * logits), Predictions(logits=np.stack([scale * logits] * 2, 1))):
            u = gap(dump)
            top = np.sort(scale * logits)
            lead = top[:, -1] - top[:, -2]
            assert len(np.unique(u)) > 1990 and (u >= 0).all()
            assert metrics.auroc(u, wrong) == pytest.approx(metrics.auroc(-lead, wrong), abs=0.02)


def test_summary__a_zero_costs_the_same_in_every_dtype():
    labels = [0, 1]
    losses = []
    for dtype in (np.float16, np.float32, np.float64):
        probs = np.array([[0, 1], [0.5, 0.5]], dtype)
        a = summary(Predictions(probs=probs, labels=labels)).outcomes()
        assert a.zero.tolist() == [True, False]
        losses.append(a.log_loss.tolist())
        np.testing.assert_allclose(a.log_loss, metrics.outcomes(probs, labels).log_loss, rtol=1e-6)
    np.testing.assert_allclose(losses, [losses[2]] * 3, rtol=1e-6)


@given(dumps, st.integers(1, LEADING + 2), st.booleans())
def test_top_k_outcomes__the_leading_classes_of_the_pass_are_those_of_the_probabilities(logits, k, normalized):
    """Also beyond what the pass keeps, and for rows whose label is known only."""
    n, _, c = logits.shape
    labels = np.arange(n) % (c + 1)  # the last one is of no class of the model
    given = {"probs": softmax(logits, axis=2)} if normalized else {"logits": logits}
    dump = Predictions(labels=labels, in_distribution=labels < c, **given)
    if k > c:
        with pytest.raises(Undefined):
            top_k_outcomes(dump, k)
        return
    ours, theirs = top_k_outcomes(dump, k), metrics.top_k(prob_blocks(dump), k)
    np.testing.assert_allclose(ours.confidence, theirs.confidence, rtol=1e-12)
    ordered = np.sort(mean_probs(dump)[summary(dump).labelled], axis=1)[:, ::-1]
    np.testing.assert_allclose(ours.confidence, ordered[:, :k].sum(1), rtol=1e-6)
    np.testing.assert_array_equal(ours.correct, summary(dump).outcomes().rank < k)


def test_summary__memory_that_was_never_written_is_not_reckoned_with(monkeypatch):
    """A signalling NaN left by others made NumPy warn."""
    empty = np.empty

    def dirty(*args, **options):
        array = empty(*args, **options)
        if array.dtype == np.float64:
            array.view(np.uint64)[...] = 0x7FF0000000000001
        return array

    dump = Predictions(logits=np.random.default_rng(0).normal(size=(40, 5)), labels=np.arange(40) % 5)
    monkeypatch.setattr(np, "empty", dirty)
    with np.errstate(all="raise"):
        found = summary(dump)
    assert np.isfinite(found.leading).all()
