"""The constants of the von Mises–Fisher distribution against 40-digit arithmetic, closed forms and quadrature."""

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio import BadInput
from nescio.distributions.von_mises_fisher import (
    inverse_mean_resultant,
    log_density,
    log_normalizer,
    mean_resultant,
)
from tests.support.reference import load

DIMENSIONS = (2, 3, 4, 7, 12, 20, 26, 31, 32, 33, 42, 64, 129, 512, 1000, 2048, 4096)
KAPPAS = np.geomspace(1e-3, 1e6, 13)


def exact(kappa: float, d: int) -> tuple[float, float]:
    with mpmath.workdps(40):
        v, k = mpmath.mpf(d) / 2 - 1, mpmath.mpf(float(kappa))
        low = mpmath.besseli(v, k, maxterms=10**7)
        log_c = v * mpmath.log(k) - (v + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(low)
        return float(log_c), float(mpmath.besseli(v + 1, k, maxterms=10**7) / low)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_log_normalizer__both_constants_to_rounding_error_over_the_whole_range(d):
    log_c, ratio = np.array([exact(kappa, d) for kappa in KAPPAS]).T
    np.testing.assert_array_less(np.abs(log_normalizer(KAPPAS, d) - log_c), 1e-12 * np.maximum(1, np.abs(log_c)))
    np.testing.assert_allclose(mean_resultant(KAPPAS, d), ratio, rtol=1e-12)


def test_log_normalizer__reference_values_of_both_constants():
    stored = load("url_vmf_logconst")
    kappa = stored["kappa"]
    for name, value in stored.items():
        d = int(name.rpartition("d")[2]) if "_d" in name else 0
        if name.startswith("exact"):
            np.testing.assert_allclose(log_normalizer(kappa, d), value, rtol=1e-11, atol=1e-11)
        elif name.startswith("A_"):
            np.testing.assert_allclose(mean_resultant(kappa, d), value, rtol=1e-9)


def test_log_normalizer__the_original_polynomial_is_not_the_constant():
    stored = load("url_vmf_logconst")
    kappa = stored["kappa"]
    for name in (name for name in stored if name.startswith("repo_d")):
        # A polynomial fitted to part of the range; d = 2048 falls back to the one of d = 1024.
        off = np.abs(stored[name] - log_normalizer(kappa, int(name[6:])))
        assert off.max() > 0.5, name
    np.testing.assert_array_equal(stored["repo_d2048"], stored["repo_d1024"])
    assert abs(log_normalizer(1000.0, 2048) - 4676.8173) < 1e-3  # the original: 1683.66
    # Its branch for d = 128 uses the unscaled Bessel function on one number: right until I overflows at κ = 2000.
    np.testing.assert_allclose(stored["repo_scalar_d128"][:-1], log_normalizer(kappa[:-1], 128), rtol=1e-12)
    assert np.isnan(stored["repo_scalar_d128"][-1]) and math.isfinite(log_normalizer(kappa[-1], 128))


def test_log_normalizer__closed_forms_on_the_usual_sphere():
    kappa = np.array([0.01, 0.5, 3.0, 40.0])
    np.testing.assert_allclose(log_normalizer(kappa, 3), np.log(kappa / (4 * np.pi * np.sinh(kappa))), rtol=1e-13)
    np.testing.assert_allclose(mean_resultant(kappa, 3), 1 / np.tanh(kappa) - 1 / kappa, rtol=1e-11)


@pytest.mark.parametrize("d", [2, 3, 10, 512])
def test_inverse_mean_resultant__no_concentration_is_the_uniform_distribution(d):
    log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    assert log_normalizer(0.0, d) == pytest.approx(-log_area, rel=1e-13)
    assert mean_resultant(0.0, d) == 0.0
    assert inverse_mean_resultant(0.0, d) == 0.0
    assert inverse_mean_resultant(1.0, d) == math.inf


@pytest.mark.parametrize("kappa", [0.0, 0.3, 7.0, 900.0])
def test_log_density__the_density_integrates_to_one_on_the_circle(kappa):
    angle = np.linspace(0, 2 * np.pi, 20_001)[:-1]
    x = np.stack([np.cos(angle), np.sin(angle)], 1)
    density = np.exp(log_density(x, x[[1234]], np.array([kappa])))[:, 0]
    assert density.mean() * 2 * np.pi == pytest.approx(1, rel=1e-12)
    assert (density * (x @ x[1234])).mean() * 2 * np.pi == pytest.approx(mean_resultant(kappa, 2), abs=1e-12)


def test_log_density__the_density_equals_scipys():
    from scipy.stats import vonmises_fisher

    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 8))
    x /= np.linalg.norm(x, axis=1)[:, None]
    kappa = np.array([0.5, 20.0, 300.0])
    expected = np.stack([vonmises_fisher(mu, k).logpdf(x) for mu, k in zip(x[:3], kappa, strict=True)], 1)
    np.testing.assert_allclose(log_density(x, x[:3], kappa), expected, rtol=1e-12)


@given(st.integers(2, 4096), st.floats(-3, 6))
def test_inverse_mean_resultant__the_inverse_undoes_the_resultant(d, power):
    kappa = 10.0**power
    r = mean_resultant(kappa, d)
    back = inverse_mean_resultant(r, d)
    assert mean_resultant(back, d) == pytest.approx(r, rel=4e-15)
    # r itself carries a rounding error, which 1/(1 − r) magnifies.
    assert back == pytest.approx(kappa, rel=1e-14 + 1e-15 / (1 - r))


@given(st.integers(2, 4096), st.floats(1e-9, 1 - 1e-9))
def test_inverse_mean_resultant__the_inverse_is_better_than_the_usual_approximation(d, r):
    usual = r * (d - r**2) / (1 - r**2)
    ours = inverse_mean_resultant(r, d)
    assert abs(mean_resultant(ours, d) - r) <= abs(mean_resultant(usual, d) - r) + 1e-15


@given(st.integers(2, 4096), st.floats(-2, 5))
def test_log_normalizer__the_slope_of_the_log_normalizer_is_minus_the_resultant(d, power):
    kappa = 10.0**power
    h = 1e-4 * kappa
    slope = (log_normalizer(kappa + h, d) - log_normalizer(kappa - h, d)) / (2 * h)
    noise = 1e-15 * (abs(log_normalizer(kappa, d)) + d) / h
    assert slope == pytest.approx(-mean_resultant(kappa, d), rel=1e-6, abs=10 * noise)


def test_log_normalizer__shape_and_dtype_go_through():
    kappa = np.geomspace(1, 1e6, 24_000).reshape(4, 3, 2000)  # more than one chunk
    value = log_normalizer(kappa, 512)
    assert value.shape == kappa.shape and value.dtype == np.float64
    assert value[3, 1, 7] == log_normalizer(float(kappa[3, 1, 7]), 512)
    single = log_normalizer(kappa.astype(np.float32), 512)
    assert single.dtype == np.float32
    inside = log_normalizer(kappa.astype(np.float32).astype(np.float64), 512)
    np.testing.assert_array_equal(single, inside.astype(np.float32))  # float64 inside, rounded once
    assert mean_resultant(np.float16(3), 8).dtype == np.float32
    assert isinstance(log_normalizer(3, 8), float)
    assert log_normalizer(np.array([], float), 8).shape == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: log_normalizer(-1.0, 3), "at least 0; -1 is not"),
        (lambda: log_normalizer(np.array([1.0, np.nan]), 3), "at least 0; nan is not"),
        (
            lambda: mean_resultant(np.array([1.0, np.inf]), 3),
            "at most 1e\\+150 .*; inf is not",
        ),
        (lambda: inverse_mean_resultant(1.5, 3), "at most 1 and at least 0; 1.5 is not"),
        (lambda: mean_resultant(1.0, 1), "at least 2; d is 1"),
        (lambda: mean_resultant(1.0, 2.5), "at least 2; d is 2.5"),
    ],
)
def test_inverse_mean_resultant__bad_input_is_a_sentence(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_von_mises_fisher__torch_is_not_imported():
    code = "import sys, nescio.distributions as d; d.von_mises_fisher.mean_resultant(1, 8); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in loaded and not {"torch", "scipy", "sklearn"} & set(loaded)


class TestTensors:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_inverse_mean_resultant__values_equal_numpys(self, torch):
        kappa = np.geomspace(1e-3, 1e6, 10_000)
        for d in (2, 26, 42, 2048):
            for function in (log_normalizer, mean_resultant):
                np.testing.assert_allclose(function(torch.tensor(kappa), d).numpy(), function(kappa, d), rtol=1e-13)
        r = np.linspace(0, 1, 101)
        np.testing.assert_allclose(
            inverse_mean_resultant(torch.tensor(r), 64).numpy(), inverse_mean_resultant(r, 64), rtol=1e-11
        )

    @pytest.mark.parametrize("d", [2, 3, 26, 42, 512, 4096])
    def test_mean_resultant__the_gradient_is_minus_the_resultant_and_has_a_gradient(self, torch, d):
        kappa = torch.tensor(KAPPAS, requires_grad=True)
        (first,) = torch.autograd.grad(log_normalizer(kappa, d).sum(), kappa, create_graph=True)
        np.testing.assert_allclose(-first.detach().numpy(), mean_resultant(KAPPAS, d), rtol=1e-12)
        (second,) = torch.autograd.grad(first.sum(), kappa)
        with mpmath.workdps(60):  # A′ = 1 − A² − (d − 1)·A/κ, a difference of near numbers in double precision
            for k, value in zip(KAPPAS, second.numpy(), strict=True):
                v, k_ = mpmath.mpf(d) / 2 - 1, mpmath.mpf(float(k))
                a = mpmath.besseli(v + 1, k_, maxterms=10**7) / mpmath.besseli(v, k_, maxterms=10**7)
                assert -value == pytest.approx(float(1 - a**2 - (d - 1) * a / k_), rel=1e-7)

    def test_log_normalizer__half_and_single_precision(self, torch):
        kappa = torch.tensor([1e6], dtype=torch.float32, requires_grad=True)
        value = log_normalizer(kappa, 512)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(log_normalizer(1e6, 512), rel=1e-7)
        value.sum().backward()
        assert kappa.grad.dtype == torch.float32
        assert kappa.grad.item() == pytest.approx(-mean_resultant(1e6, 512), rel=1e-7)
        assert log_normalizer(torch.tensor([3.0], dtype=torch.bfloat16), 8).dtype == torch.float32

    def test_log_normalizer__gradients_under_vmap(self, torch):
        kappa = torch.tensor([1.0, 10.0, 500.0], dtype=torch.float64)
        slopes = torch.func.vmap(torch.func.grad(lambda k: log_normalizer(k, 42)))(kappa)
        np.testing.assert_allclose(slopes.numpy(), -mean_resultant(kappa.numpy(), 42), rtol=1e-12)

    def test_log_density__density_and_its_gradient(self, torch):
        x = torch.eye(5, dtype=torch.float64)
        kappa = torch.tensor([2.0, 30.0], dtype=torch.float64, requires_grad=True)
        value = log_density(x, x[:2], kappa)
        np.testing.assert_allclose(value.detach().numpy(), log_density(x.numpy(), x[:2].numpy(), np.array([2.0, 30.0])))
        value[0, 0].backward()
        assert kappa.grad[0].item() == pytest.approx(1 - mean_resultant(2.0, 5))
        assert kappa.grad[1].item() == 0
