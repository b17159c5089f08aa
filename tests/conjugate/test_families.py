"""Exponential families of sites: their points, natural gradients, moments and densities."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from ngvi.conjugate.families import FAMILIES
from ngvi.conjugate.site import ConjugateSite
from tests.conftest import jaxlib
from tests.ppl import PPLS, load

DENSITIES = [name for name in FAMILIES if name != "gamma_mode"]


def values(family, seed=0):
    rng = np.random.default_rng(seed)
    is_real = FAMILIES[family].support == "real"
    return rng.normal(size=3) if is_real else rng.gamma(2.0, size=3) + 0.1


def concentrated(family, times):
    """A numpy site whose natural parameters are those of so many broad ones."""
    one = ConjugateSite.initial(family, "x", values(family))
    return one.map(lambda loc: times * loc)


@functools.cache
def computed(name, family):
    """What a package makes of a site, by one program."""
    ppl, plain = load(name), concentrated(family, 1)
    signs = np.array([[1.0], [-1.0]]) * np.ones(plain.shape)
    with ppl.float64():
        x, c = ppl.array(plain.points(0.3 * signs)), ppl.array(coefficients(plain))

        def everything(loc, units):
            one = ppl.module("conjugate.guide").ConjugateSite(loc, family, "x", plain.shape)

            def bound(loc):
                """``E_q[c . t]``, by the two points."""
                points = dataclasses.replace(one, loc=loc).at(signs)
                pairs = zip(c, one.statistics(points), strict=True)
                return 0.5 * sum((a * t).sum() for a, t in pairs)

            directions = [dataclasses.replace(one, loc=unit) for unit in units]
            fisher = [one.euclidean_gradient(unit).loc for unit in directions]
            results = [one.at(signs), one.log_prob(x), one.mean, *one.parameters()]
            return grad(bound)(loc), fisher, results, one.draw(random(ppl))

        units, grad = [ppl.array(unit) for unit in np.eye(plain.dim)], ppl.gradient
        if ppl.is_numpyro:
            import jax

            everything, grad = jax.jit(everything), jax.grad
        gradient, fisher, results, draws = everything(ppl.array(plain.loc), units)
        expected = [plain.points(signs), plain.log_prob(np.asarray(ppl.numpy(x))), plain.mean]
        return SimpleNamespace(
            plain=plain,
            gradient=ppl.numpy(gradient),
            fisher=np.array([ppl.numpy(row) for row in fisher]),
            pairs=list(zip(map(ppl.numpy, results), [*expected, *plain.parameters()], strict=True)),
            draws=ppl.numpy(draws),
        )


def coefficients(plain):
    return np.random.default_rng(1).normal(size=plain.natural.shape)


def random(ppl):
    """4000 draws."""
    make = ppl.module("conjugate.guide").Random
    if not ppl.is_numpyro:
        return make((4000,))
    import jax

    return make(jax.random.key(0), (4000,))


@pytest.mark.parametrize("times", [1, 7, 1e4])
@pytest.mark.parametrize("family", DENSITIES)
def test_the_two_points_have_the_expected_statistics(family, times):
    one = concentrated(family, times)
    ones = np.ones(one.shape)
    pairs = zip(*map(one.statistics, (one.points(ones), one.points(-ones))), strict=True)
    found, expected = [(a + b) / 2 for a, b in pairs], one.expected_statistics()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


#: JAX compiles their special functions for seconds.
LONG = [(family, "numpyro") for family in ("inverse_gamma", "gamma")]
IN_PACKAGES = [
    pytest.param(family, name, marks=[pytest.mark.slow] * ((family, name) in LONG))
    for family in FAMILIES
    for name in PPLS
]


@pytest.mark.parametrize(("family", "name"), IN_PACKAGES)
def test_the_gradient_at_the_points_is_the_natural_gradient(family, name):
    """``F^-1`` times the gradient of ``E_q[c . t]``, which is ``F c``, with the dense ``F``."""
    found = computed(name, family)
    c = coefficients(found.plain).ravel()
    # JAX 0.7 is 2e-9 off where its compiler does not optimise, as in tests.
    off = 1e-8 if jaxlib() == "0.7." else 1e-9
    np.testing.assert_allclose(found.gradient, c, rtol=off, atol=off)
    if family != "gamma_mode":  # of a point F is singular
        reference = _hessian_of_partition(found.plain)
        np.testing.assert_allclose(found.fisher, reference, rtol=1e-5, atol=1e-6)
        euclidean = found.fisher @ c
        natural = np.linalg.solve(found.fisher, euclidean)
        np.testing.assert_allclose(found.gradient, natural, rtol=1e-10, atol=1e-10)


def _hessian_of_partition(one):
    """By differences of the expected statistics, which are the gradient."""

    def gradient(loc):
        return np.stack(one.map(lambda _: loc).expected_statistics()).ravel()

    steps = 1e-5 * np.eye(one.dim)
    return np.array([(gradient(one.loc + s) - gradient(one.loc - s)) / 2e-5 for s in steps])


@pytest.mark.parametrize(("family", "name"), IN_PACKAGES)
def test_the_packages_agree_with_numpy(family, name):
    for a, b in computed(name, family).pairs:
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("family", DENSITIES)
def test_log_prob_and_quantiles_are_those_of_scipy(family):
    one = concentrated(family, 1)
    x = one.points(0.7 * np.ones(one.shape))
    a, b = one.parameters()
    q = {
        "gamma": stats.gamma(a, scale=1 / b),
        "inverse_gamma": stats.invgamma(a, scale=b),
        "inverse_gaussian": stats.invgauss(a / b, scale=b),
        "normal": stats.norm(a, b),
    }[family]
    np.testing.assert_allclose(one.log_prob(x), q.logpdf(x), rtol=1e-10)
    np.testing.assert_allclose(q.cdf(one.quantiles([0.2])), 0.2, rtol=1e-8)


@pytest.mark.fast_in_numpyro("gamma")
@pytest.mark.parametrize("name", PPLS)
@pytest.mark.parametrize("family", DENSITIES)
def test_draws_have_the_expected_statistics(family, name):
    found = computed(name, family)
    statistics = np.array(found.plain.statistics(found.draws))
    error = statistics.mean(1) - np.array(found.plain.expected_statistics())
    assert np.all(np.abs(error) < 4.5 * statistics.std(1) / np.sqrt(4000))


@pytest.mark.parametrize("family", ["gamma", "inverse_gaussian"])
def test_float32_keeps_the_coefficients_of_a_hundred_thousand_rows(family):
    """As many as the paper's simulation has: ``c`` is about ``lambda`` there, of size 10^5."""
    import jax

    plain, ppl = concentrated(family, 3e4), load("numpyro")
    with ppl.precision("float32"):
        site = ppl.module("conjugate.guide").ConjugateSite
        one = site(ppl.array(plain.loc), family, "x", plain.shape)
        c, signs = ppl.array(1.1 * plain.natural), np.ones(plain.shape)

        def bound(one):
            pairs = [zip(c, one.statistics(one.at(sign * signs)), strict=True) for sign in (1, -1)]
            return 0.5 * sum((a * t).sum() for pair in pairs for a, t in pair)

        found = jax.jit(jax.grad(bound))(one).natural
        np.testing.assert_allclose(found, 1.1 * plain.natural, rtol=2e-3)


def test_an_improper_step_leaves_an_element_where_it_is():
    one = ConjugateSite.initial("gamma", "x", np.array([1.0, 2.0]))
    away = one.map(lambda loc: -10 * loc * np.array([1.0, 0.0, 1.0, 0.0]))
    moved = one.natural_step(away, 1.0)
    np.testing.assert_array_equal(moved.loc, one.loc)
    assert moved.is_proper().all()
