"""Heads against scikit-learn's converged ones and against the conditions of an optimum; targets against definitions."""

import subprocess
import sys
import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax, xlogy
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from nescio import BadInput
from nescio.heads import (
    TASKS,
    OneVsOne,
    _minimise,
    _problems,
    _tasks,
    fit_heads,
    probability_performance,
    regression_performance,
    reliability_targets,
)
from nescio.metrics import kendall
from tests.support.reference import load, note

LIMITS = {"float32": 2e-3, "float64": 1e-4}


def clusters(counts, d=16, seed=0, apart=1.0, noise=1.0):
    """Classes of the given sizes about centres that overlap."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    x = apart * rng.normal(size=(len(counts), d))[y] + noise * rng.normal(size=(len(y), d))
    return x.astype(np.float32), y


def like_a_network(counts, d=64, latent=12, seed=0):
    """Few causes, a falling spectrum, no negative values, a large mean: what pooled features look like."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    cause = (0.6 * rng.normal(size=(len(counts), latent))[y] + rng.normal(size=(len(y), latent))) / np.arange(
        1, latent + 1
    )
    return np.maximum(cause @ rng.normal(size=(latent, d)) + 0.1 * rng.normal(size=(len(y), d)) + 1, 0), y


def fit(x, y, **options):
    return fit_heads([x], y, **options)[0]


def objective(w, b, x, first, penalty=1.0):
    """½·α·‖w‖² + Σ log-loss, by definition."""
    z = np.where(first, 1, -1) * (x.astype(np.float64) @ w + b)
    return penalty * w @ w / 2 + np.logaddexp(0, -z).sum()


def gradient(w, b, x, first, penalty=1.0):
    sign = np.where(first, 1, -1)
    r = -sign * expit(-sign * (x.astype(np.float64) @ w + b))
    return np.append(penalty * w + r @ x.astype(np.float64), r.sum())


def sklearn_pairs(x, y, at, penalty=1.0):
    """(h, n) converged probabilities of the first class of every pair, at the rows `at`."""
    found = []
    with threadpool_limits(1):
        for i, j in combinations(np.unique(y), 2):
            rows = np.isin(y, (i, j))
            head = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=100_000)
            found.append(head.fit(x[rows].astype(np.float64), y[rows] == i).predict_proba(at.astype(np.float64))[:, 1])
    return np.stack(found)


def ours(heads, at):
    return expit(heads.weights @ at.astype(np.float64).T + heads.intercepts[:, None])


# ---- one-vs-one


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("make", [clusters, like_a_network])
@pytest.mark.parametrize("counts", [(30, 30, 30, 30), (5, 80, 1, 40), (200, 3)])
def test_fit_heads__every_pair_is_scikit_learns_converged_head(make, counts, precision):
    x, y = make(counts)
    at, _ = make((20,) * len(counts), seed=1)
    heads = fit(x, y, precision=precision)
    np.testing.assert_allclose(ours(heads, at), sklearn_pairs(x, y, at), atol=LIMITS[precision])


@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(1, 20), st.floats(-3, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
@example([5, 8], 1, 3.0, 3)
@example([18, 17, 30, 29, 27], 4, 2.721800037369759, 99)
def test_fit_heads__the_gradient_vanishes_at_every_head(counts, d, log_scale, seed):
    x, y = clusters(counts, d, seed)
    x *= 10**log_scale
    heads = fit(x, y)
    for (i, j), w, b in zip(heads.pairs, heads.weights, heads.intercepts, strict=True):
        rows = np.isin(y, (i, j))
        g = gradient(w, b, x[rows], y[rows] == i)
        # By strong convexity ‖w − w*‖ ≤ ‖g‖/α, and a log-odds moves by at most that times the length of a row.
        lengths = np.linalg.norm(x[rows] - x[rows].mean(0), axis=1)
        reach = lengths.max()
        # Logits are computed in float32: of features in the thousands, rounding alone moves the gradient.
        p = expit(x[rows] @ w + b)
        rounding = np.finfo(np.float32).eps * (np.abs(x[rows]) @ np.abs(w) + abs(b))
        slack = 4 * (p * (1 - p) * rounding * lengths).sum() * reach
        assert np.linalg.norm(g[:-1] - g[-1] * x[rows].mean(0)) * reach < 0.2 + slack or reach < 1e-3


@pytest.mark.parametrize("precision", LIMITS)
def test_fit_heads__pairs_that_can_be_separated_have_an_optimum_by_the_penalty(precision):
    x, y = clusters((20, 20, 20), apart=20)
    heads = fit(x, y, precision=precision)
    assert np.isfinite(heads.weights).all()
    np.testing.assert_allclose(ours(heads, x), sklearn_pairs(x, y, x), atol=LIMITS[precision])


def test_fit_heads__the_intercept_has_no_penalty_and_no_shift_of_the_features_matters():
    x, y = clusters((30, 20, 25))
    near, far = fit(x, y), fit(x.astype(np.float64) + 1000, y)
    np.testing.assert_allclose(far.weights, near.weights, atol=1e-4)
    np.testing.assert_allclose(ours(far, x.astype(np.float64) + 1000), ours(near, x), atol=1e-4)


def test_fit_heads__features_without_information_leave_the_shares_of_the_classes():
    y = np.repeat([0, 1, 2], [10, 30, 1])
    heads = fit(np.full((41, 3), 7.0), y)
    np.testing.assert_allclose(heads.weights, 0, atol=1e-9)
    np.testing.assert_allclose(
        expit(heads.weights @ np.full(3, 7.0) + heads.intercepts), [1 / 4, 10 / 11, 30 / 31], atol=1e-5
    )


def test_fit_heads__constant_and_repeated_features_share_as_the_penalty_says():
    x, y = clusters((40, 40, 40), 5)
    twice = np.concatenate([x, x, np.full((120, 2), 3.0)], 1)
    heads = fit(twice, y)
    np.testing.assert_allclose(heads.weights[:, :5], heads.weights[:, 5:10], atol=1e-6)
    np.testing.assert_allclose(heads.weights[:, 10:], 0, atol=1e-6)
    np.testing.assert_allclose(ours(heads, twice), sklearn_pairs(twice, y, twice), atol=1e-4)


def test_fit_heads__a_higher_penalty_is_scikit_learns_smaller_c():
    x, y = clusters((30, 30, 30))
    for penalty in (0.05, 20.0):
        heads = fit(x, y, penalty=penalty)
        np.testing.assert_allclose(ours(heads, x), sklearn_pairs(x, y, x, penalty), atol=1e-4)


def test_fit_heads__more_features_than_rows():
    x, y = clusters((4, 5, 6), 200)
    np.testing.assert_allclose(ours(fit(x, y), x), sklearn_pairs(x, y, x), atol=1e-4)


def test_fit_heads__two_classes_and_any_labels():
    x, y = clusters((30, 40))
    plain, named = fit(x, y), fit(x, np.array([17, -3])[y])
    np.testing.assert_array_equal(named.classes, [-3, 17])
    np.testing.assert_allclose(named.weights, -plain.weights, atol=1e-4)


def test_fit_heads__the_order_of_the_rows_does_not_matter():
    x, y = clusters((30, 10, 20))
    rows = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_allclose(ours(fit(x[rows], y[rows]), x), ours(fit(x, y), x), atol=1e-4)


def test_fit_heads__heads_solved_in_parts_are_the_same(monkeypatch):
    x, y = clusters((15,) * 7)
    whole = fit(x, y)
    monkeypatch.setattr(_tasks, "MEMORY_BYTES", 5 * 2 * _minimise.MEMORY * 17 * 8)
    np.testing.assert_allclose(ours(fit(x, y), x), ours(whole, x), atol=1e-4)


def test_fit_heads__threads_change_nothing(monkeypatch):
    x, y = clusters((15, 30, 9, 20))
    alone = {tasks: fit(x, y, tasks=tasks) for tasks in ("one-vs-one", "multiclass")}
    monkeypatch.setenv("NESCIO_THREADS", "3")
    monkeypatch.setattr(_minimise, "SERIAL", 0)
    monkeypatch.setattr(_minimise, "BLOCK_VALUES", 1)
    monkeypatch.setattr(_problems, "SLAB", 11)
    for tasks, heads in alone.items():
        np.testing.assert_allclose(fit(x, y, tasks=tasks).weights, heads.weights, atol=1e-4)


def test_fit_heads__a_head_that_does_not_settle_is_said(monkeypatch):
    monkeypatch.setattr(_minimise, "STEPS", 2)
    x, y = clusters((30, 30))
    with pytest.warns(UserWarning, match=r"1 of 1.*heads.*after 2 steps"):
        fit(x, y)


def test_fit_heads__heads_are_converged_where_twenty_iterations_are_not():
    x, y = like_a_network((80, 80, 80))
    exact = sklearn_pairs(x, y, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        early = LogisticRegression(max_iter=20).fit(x[y < 2], y[y < 2] == 0).predict_proba(x)[:, 1]
    assert np.abs(early - exact[0]).max() > 0.02  # where the original stops
    assert np.abs(ours(fit(x, y, precision="float32"), x) - exact).max() < 2e-3


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("tasks", ["one-vs-one", "multiclass"])
def test_fit_heads__a_few_rows_that_are_far_longer_than_the_others(tasks, precision):
    """They have no curvature at the optimum, and must not hide that of the others."""
    x, y = clusters((100, 100))
    x[:5] *= 1e4
    exact = LogisticRegression(tol=1e-10, max_iter=100_000).fit(x, y == 0)
    (heads,) = fit_heads([x], y, tasks=tasks, precision=precision)
    weights = heads.weights[0] - heads.weights[1] if tasks == "multiclass" else heads.weights[0]
    np.testing.assert_allclose(weights, exact.coef_[0], atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_fit_heads__features_with_a_large_mean(precision):
    x, y = clusters((30, 30, 30))
    x = x.astype(np.float64)
    (there,), (here,) = fit_heads([x + 1e6], y, precision=precision), fit_heads([x], y, precision="float64")
    np.testing.assert_allclose(there.weights, here.weights, atol=2e-3)


def test_fit_heads__the_same_tau_as_scikit_learns_heads():
    """The check that the paper's tables rest on."""
    train = [like_a_network((60,) * 6, seed=s) for s in range(3)]
    test = [like_a_network((30,) * 6, seed=s + 10)[0] for s in range(3)]
    y, at = train[0][1], np.repeat(np.arange(6), 30)
    score = np.random.default_rng(0).normal(size=len(at))
    found = reliability_targets(fit_heads([x for x, _ in train], y, precision="float32"), test, at)
    wrong = np.empty((3, len(at), 5, 1))
    for m, ((x, _), t) in enumerate(zip(train, test, strict=True)):
        p = dict(zip(combinations(range(6), 2), sklearn_pairs(x, y, t), strict=True))
        for n, c in enumerate(at):
            wrong[m, n, :, 0] = [1 - p[c, o][n] if c < o else p[o, c][n] for o in range(6) if o != c]
    for name, exact in probability_performance(wrong).items():
        score = exact + exact.std() * score
        assert abs(kendall(score, found[name]) - kendall(score, exact)) < 0.002, name


# ---- the other collections


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("make", [clusters, like_a_network])
def test_fit_heads__the_softmax_head_is_scikit_learns(make, precision):
    x, y = make((30, 50, 4, 20))
    head = fit(x, y, tasks="multiclass", precision=precision)
    peer = LogisticRegression(tol=1e-10, max_iter=100_000).fit(x.astype(np.float64), y)
    logits = x @ head.weights.T + head.intercepts
    p = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(
        p / p.sum(1, keepdims=True), peer.predict_proba(x.astype(np.float64)), atol=LIMITS[precision]
    )


@pytest.mark.parametrize("d", [5, 100])
@pytest.mark.parametrize("penalty", [1.0, 30.0])
def test_fit_heads__the_regression_head_is_scikit_learns_ridge(d, penalty):
    rng = np.random.default_rng(0)
    x, y = 3 + rng.normal(size=(40, d)), rng.normal(size=(40, 2))
    head, peer = fit(x, y, tasks="regression", penalty=penalty), Ridge(alpha=penalty).fit(x, y)
    np.testing.assert_allclose(head.weights, peer.coef_, atol=1e-9)
    np.testing.assert_allclose(head.intercepts, peer.intercept_, atol=1e-9)


# ---- targets


def test_reliability_targets__targets_are_definition_1_for_the_tasks_of_a_rows_own_class():
    members = [clusters((12, 12, 12, 12), 6, seed) for seed in range(3)]
    y = members[0][1]
    heads = fit_heads([x for x, _ in members], y)
    tests = [clusters((3, 2, 1, 4), 6, seed + 20)[0] for seed in range(3)]
    at = clusters((3, 2, 1, 4))[1]
    found = reliability_targets(heads, tests, at)
    assert list(found) == ["brier", "entropy", "variance"]
    for n, c in enumerate(at):
        brier, entropy, variance = [], [], []
        for t, (i, j) in enumerate(heads[0].pairs):
            if c in (i, j):
                first = [expit(h.weights[t] @ x[n] + h.intercepts[t]) for h, x in zip(heads, tests, strict=True)]
                p = np.stack([first, 1 - np.array(first)], 1)  # (m, 2)
                mean, truth = p.mean(0), np.array([c == i, c == j])
                brier.append(-((mean - truth) ** 2).sum())
                entropy.append(xlogy(mean, mean).sum())
                variance.append(-p.var(0).sum())
        assert len(brier) == 3
        np.testing.assert_allclose([found[k][n] for k in found], np.mean([brier, entropy, variance], 1), rtol=1e-6)


def test_reliability_targets__multiclass_and_regression_targets_by_definition():
    members = [clusters((12, 12, 12), 6, seed) for seed in range(3)]
    y, xs = members[0][1], [x for x, _ in members]
    heads = fit_heads(xs, y, tasks="multiclass")
    found = reliability_targets(heads, xs, y)
    logits = np.stack([x @ h.weights.T + h.intercepts for h, x in zip(heads, xs, strict=True)])
    p = softmax(logits, axis=-1)
    mean = p.mean(0)
    np.testing.assert_allclose(found["brier"], -((mean - np.eye(3)[y]) ** 2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(found["entropy"], xlogy(mean, mean).sum(1), rtol=1e-6)
    np.testing.assert_allclose(found["variance"], -p.var(0).sum(1), rtol=1e-6)

    truth = np.random.default_rng(0).normal(size=(36, 2))
    heads = fit_heads(xs, truth, tasks="regression")
    found = reliability_targets(heads, xs, truth)
    said = np.stack([x @ h.weights.T + h.intercepts for h, x in zip(heads, xs, strict=True)])
    np.testing.assert_allclose(found["squared_error"], -((said.mean(0) - truth) ** 2).mean(1), rtol=1e-6)
    pairs = sum((said[i] - said[j]) ** 2 for i, j in combinations(range(3), 2)) / 9  # equation (17)
    np.testing.assert_allclose(found["variance"], -pairs.mean(1), rtol=1e-6)


def test_probability_performance__members_are_averaged_before_brier_and_entropy():
    wrong = np.array([0.0, 1.0]).reshape(2, 1, 1, 1)  # two members that are sure of opposite answers
    found = probability_performance(wrong)
    np.testing.assert_allclose([found["brier"][0], found["entropy"][0]], [-0.5, -np.log(2)])
    np.testing.assert_allclose(found["variance"], -0.5)  # a quarter for each of the two outputs


def test_regression_performance__higher_is_more_reliable_and_one_member_has_no_variance():
    sure, unsure = (probability_performance(np.full((1, 1, 1, 1), p)) for p in (0.01, 0.4))
    assert set(sure) == {"brier", "entropy"}
    assert all(sure[name] > unsure[name] for name in sure)
    assert set(regression_performance(np.ones((1, 4, 1)))) == {"squared_error"}


def test_one_vs_one__certain_answers_are_finite_and_do_not_tie():
    found = probability_performance(np.array([0.0, 1e-300, 1e-200, 1e-30, 1e-20, 1e-10, 1.0]).reshape(1, -1, 1, 1))
    assert np.isfinite(list(found.values())).all()
    assert (np.diff(found["entropy"][1:6]) < 0).all() and (np.diff(found["brier"][2:]) < 0).all()
    assert found["entropy"][0] == 0 and found["entropy"][-1] == 0 and found["brier"][-1] == -2
    x = np.array([[0.0], [1.0], [20.0], [21.0]])
    heads = OneVsOne(np.array([0, 1]), np.array([[0, 1]]), np.array([[-9.0]]), np.array([90.0]))
    assert len(np.unique(heads.errors(x[:2], np.zeros(2, int)))) == 2  # 1 − p would be 0 in both rows


def test_probability_performance__reference_values_of_the_targets():
    ref, said = load("repreli_reliability"), note("repreli_reliability")["kendall"]
    p, y = ref["ovo_prob_target_first"], ref["labels"]  # (m, opponents, n, 2): the row's class, then the opponent
    wrong = np.stack([p[:, [o for o in range(10) if o != c], n, 1:] for n, c in enumerate(y)], 1)
    found = probability_performance(wrong)
    np.testing.assert_allclose(-found["brier"], ref["ens_brier"], rtol=1e-12)
    np.testing.assert_allclose(-found["entropy"], ref["ens_pred_entropy"] * np.log(2), rtol=1e-12)  # theirs is in bits
    for score, kind in ((ref["score"], "cont"), (ref["score_ties"], "ties")):
        assert kendall(score, found["entropy"]) == pytest.approx(said[f"{kind}_pred_entropy-tau"], abs=1e-12)
        assert kendall(score, found["brier"]) == pytest.approx(said[f"{kind}_brier-tau"], abs=1e-12)


def test_reliability_targets__rows_in_blocks_are_the_same_rows(monkeypatch):
    x, y = clusters((20, 20, 20))
    members = [x, np.sin(x)]
    heads = fit_heads(members, y)
    whole = reliability_targets(heads, members, y)
    monkeypatch.setattr("nescio.heads._reliability.BLOCK", 7)
    for name, value in reliability_targets(heads, members, y).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-9)


def test_fit_heads__rotated_members_have_the_same_heads():
    """Theorem 1: representations may differ as much as they like while no prediction does."""
    x, y = clusters((30, 30, 30), 8)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    members = [x.astype(np.float64), x @ turn]
    assert np.abs(members[0] - members[1]).max() > 3
    found = reliability_targets(fit_heads(members, y), members, y)
    np.testing.assert_allclose(found["variance"], 0, atol=1e-8)


def test_fit_heads__a_consistent_neighbour_bounds_the_variance_of_every_head():
    """Theorem 2: Var at x ≤ (√2·L·ε + σ)², with σ² the variance at a neighbour that is within ε in every member."""
    rng = np.random.default_rng(0)
    members = [clusters((30, 30, 30), 8, seed) for seed in range(4)]
    heads = fit_heads([x for x, _ in members], members[0][1])
    tightest = 0.0
    for near in (1e-3, 0.1, 1.0):
        at = [rng.normal(size=(50, 8)) for _ in members]
        beside = [x + near * rng.uniform(size=(50, 1)) * _unit(rng.normal(size=x.shape)) for x in at]
        apart = np.max([np.linalg.norm(a - b, axis=1) for a, b in zip(at, beside, strict=True)], 0)
        for task in range(3):
            steepest = max(np.linalg.norm(h.weights[task]) for h in heads) / 4  # of σ(wᵀx + b)
            here, there = (
                np.var([ours(h, x)[task] for h, x in zip(heads, rows, strict=True)], axis=0) for rows in (at, beside)
            )
            bound = (np.sqrt(2) * steepest * apart + np.sqrt(there)) ** 2
            assert (here <= bound).all()
            tightest = max(tightest, (here / bound).max())
    assert tightest > 0.9  # the bound is not empty


def _unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# ---- tensors


@pytest.mark.parametrize("tasks", TASKS)
def test_reliability_targets__tensors_give_what_arrays_give(tasks):
    torch = pytest.importorskip("torch")
    x, y = clusters((30, 9, 25, 4))
    truth = y if tasks != "regression" else np.sin(y)
    arrays = reliability_targets(fit_heads([x, x[:, ::-1] ** 2], truth, tasks=tasks), [x, x[:, ::-1] ** 2], truth)
    tensors = [torch.as_tensor(x), torch.as_tensor(x[:, ::-1] ** 2)]
    heads = fit_heads(tensors, torch.as_tensor(truth), tasks=tasks)
    for name, value in reliability_targets(heads, tensors, truth).items():
        np.testing.assert_allclose(value, arrays[name], atol=1e-5)


def test_heads__torch_stays_out():
    code = "import sys, nescio.heads; assert not {'torch', 'sklearn', 'scipy.stats', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- bad input

X, Y = clusters((4, 4))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fit_heads([X], Y, tasks="pairs"), r"tasks is 'pairs';.*must.*-vs-one, multiclass, regr"),
        (lambda: fit_heads([X], Y, precision="float16"), r"float32 or float64"),
        (lambda: fit_heads([X], Y, penalty=0), r"penalty is 0;.*number.*above 0"),
        (lambda: fit_heads([], Y), r"There are no members"),
        (lambda: fit_heads([X[:, 0]], Y), r"members\[0\] has shape \(8,\)"),
        (lambda: fit_heads([X, X[:5]], Y), r"members\[1\] has 5 rows, truth has 8"),
        (lambda: fit_heads([X * np.where(Y == 1, np.nan, 1)[:, None]], Y), r"members\[0\].*finite.*row 4"),
        (lambda: fit_heads([X.astype(str)], Y), "are real numbers"),
        (lambda: fit_heads([X], np.zeros(8, int)), r"All.*rows.*class 0"),
        (lambda: fit_heads([X], np.zeros((8, 2), int)), r"truth has shape \(8, 2\)"),
        (lambda: fit_heads([X], Y * 1.5), "number per row"),
        (lambda: fit_heads([X], Y * np.nan, tasks="regression"), "be finite numbers"),
        (lambda: reliability_targets(fit_heads([X], Y), [X, X], Y), r"heads of 1.*members.*of 2"),
        (lambda: reliability_targets(fit_heads([X], Y), [X], Y + 1), r"truth is 2 in row 4,.*class"),
        (lambda: reliability_targets(fit_heads([X], Y, tasks="regression"), [X], np.ones((8, 2))), r"fitted to 1"),
        (lambda: reliability_targets(fit_heads([X], Y), [X[:, :3]], Y), r"3 features"),
    ],
)
def test_reliability_targets__bad_input_is_one_sentence(call, sentence):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=sentence) as caught:
            call()
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
