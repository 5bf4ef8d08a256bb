"""Selective classification with out-of-distribution rows: weights against copies of rows, loops and closed forms."""

from fractions import Fraction

import numpy as np
import pytest

from nescio import BadInput
from nescio.metrics import Mixture, augrc, aurc, auroc, cost_curve, naurc, raulc, scod_augrc, scod_aurc, scod_cost


def case(n=40, m=30, seed=0):
    rng = np.random.default_rng(seed)
    u, u_out = np.round(rng.normal(size=n), 1), np.round(rng.normal(1, 1, m), 1)
    return u, rng.random(n) < 0.3, u_out


def copies(u, wrong, u_out, share):
    """Every row repeated as often as the share wants: the plain metrics of those rows are the definition."""
    share = Fraction(str(share))
    ratio = Fraction(len(u_out) * (1 - share), len(u) * share)
    rows = np.concatenate([np.repeat(u, ratio.numerator), np.repeat(u_out, ratio.denominator)])
    failed = np.concatenate([np.repeat(wrong, ratio.numerator), np.ones(len(u_out) * ratio.denominator, bool)])
    assert Fraction(len(u_out) * ratio.denominator, len(rows)) == share
    return rows, failed


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("seed", range(3))
def test_augrc__a_weight_is_a_number_of_copies(share, seed):
    u, wrong, u_out = case(seed=seed)
    rows, failed = copies(u, wrong, u_out, share)
    assert scod_aurc(u, wrong, u_out, share) == pytest.approx(aurc(rows, failed), abs=1e-12)
    assert scod_augrc(u, wrong, u_out, share) == pytest.approx(augrc(rows, failed), abs=1e-12)
    ranking = Mixture(u, wrong, u_out, share).ranking()
    assert ranking.positives / ranking.n == pytest.approx(share + (1 - share) * wrong.mean())


def test_augrc__at_the_share_that_the_rows_have_it_is_the_plain_metric():
    u, wrong, u_out = case(60, 20)
    rows, failed = np.concatenate([u, u_out]), np.concatenate([wrong, np.ones(20, bool)])
    assert scod_aurc(u, wrong, u_out, 0.25) == aurc(rows, failed)
    assert scod_augrc(u, wrong, u_out, 0.25) == augrc(rows, failed)
    assert scod_augrc(u, wrong, u_out, 0.5) != augrc(rows, failed)  # the share matters


def test_auroc__augrc_is_a_weighted_auroc_of_failures():
    """AUGRC = (1 − AUROC)·acc·(1 − acc) + (1 − acc)²/2 for many rows: Traub et al. 2024."""
    u, wrong, u_out = case(2000, 1500)
    ranking = Mixture(u, wrong, u_out, 0.3).ranking()
    accuracy = ranking.negatives / ranking.n
    expected = (1 - auroc(ranking)) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert scod_augrc(u, wrong, u_out, 0.3) == pytest.approx(expected, rel=1e-3)


def test_aurc__counts_of_a_resample_are_repeated_rows(rng):
    u, wrong, u_out = case()
    counts = np.concatenate([rng.multinomial(40, np.ones(40) / 40), rng.multinomial(30, np.ones(30) / 30)])
    own, others = np.repeat(np.arange(40), counts[:40]), np.repeat(np.arange(30), counts[40:])
    resampled = Mixture(u, wrong, u_out, 0.4).ranking(counts)
    assert aurc(resampled) == pytest.approx(scod_aurc(u[own], wrong[own], u_out[others], 0.4), abs=1e-12)


def test_scod_cost__cost_by_every_threshold():
    u, wrong, u_out = case()
    rows, failed = copies(u, wrong, u_out, 0.2)
    for price in (0.05, 0.1, 0.3, 0.9):
        costs = [np.mean(np.where(rows <= cut, failed, price)) for cut in (-np.inf, *np.unique(rows))]
        assert scod_cost(u, wrong, u_out, price, 0.2) == pytest.approx(min(costs), abs=1e-12)


def test_cost_curve_lies_between_perfect_and_blind():
    u, wrong, u_out = case()
    ranking = Mixture(u, wrong, u_out).ranking()
    failures = ranking.positives / ranking.n
    prices, costs = cost_curve(ranking)
    assert (costs <= np.minimum(prices, failures) + 1e-12).all() and (costs >= prices * failures - 1e-12).all()
    np.testing.assert_allclose(cost_curve(wrong.astype(float), wrong)[1], prices * wrong.mean())


def test_raulc__naurc_is_what_raulc_leaves():
    u, wrong, _ = case()
    assert naurc(u, wrong) == pytest.approx(1 - raulc(u, wrong), abs=1e-12)
    assert naurc(wrong.astype(float), wrong) == pytest.approx(0, abs=1e-12)
    assert naurc(np.zeros(40), wrong) == pytest.approx(1, abs=1e-12)


def test_scod_augrc__many_rows_and_odd_shares_do_not_overflow(rng):
    u, wrong, u_out = rng.normal(size=50_000), rng.random(50_000) < 0.1, rng.normal(size=49_999)
    exact = scod_augrc(u, wrong, u_out, 0.3)
    assert scod_augrc(u, wrong, u_out, 0.3000001) == pytest.approx(exact, rel=1e-5)
    with pytest.raises(BadInput, match="fewer digits"):
        scod_augrc(u, wrong, u_out, 0.30000000000000001e-9 + 0.3)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, "x"])
def test_scod_aurc__a_mixture_needs_both_kinds(share):
    with pytest.raises(BadInput, match="share"):
        scod_aurc(*case(), share)
