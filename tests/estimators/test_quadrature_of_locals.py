"""Expectations term by term under structured Gaussians: those of the dense one, and no more."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ngvi.estimators.additive_terms import NotAdditiveError
from ngvi.estimators.additivity import check_paths
from ngvi.estimators.quadrature import expectations, num_probes
from ngvi.latents.forest import forest_from_indices

#: Of two globals, two regions and three places in each: counts by place.
COUNTS = np.array([3.0, 0.0, 7.0, 2.0, 2.0, 5.0])
GLOBALS, REGIONS, PLACES = np.arange(2), np.arange(2, 4), np.arange(4, 10)


def log_density(ppl):
    """As a function of the latent vector: mean, log scale, regions, places."""
    places, y = ppl.index(np.repeat([0, 1], 3)), ppl.array(COUNTS)

    def function(theta, *others):
        mean, log_scale, region, place = theta[0], theta[1], theta[2:4], theta[4:]
        shift = others[0][0] if others else 0.0
        value = -(mean**2) / 8 - log_scale**2 / 2 - ((region - mean) ** 2).sum() / 2
        gaps = place - region[places]
        value = value - (gaps**2 * ppl.np.exp(-2.0 * log_scale) / 2 + log_scale).sum()
        eta = place + 0.3 * mean + shift
        value = value + (y * eta - ppl.np.exp(eta)).sum()
        return value if not others else value - (others[0] ** 2).sum()

    return function


def family(ppl, name, rng):
    """A Gaussian of such a model whose coordinates are any."""
    pieces = [PLACES[None], REGIONS[None], GLOBALS[:, None]]
    if name == "sparse_precision":
        structure = forest_from_indices(pieces, [1, 2, None])
        new = ppl.families.SparsePrecision(structure=structure)
    else:
        new = ppl.families.BlockDiagonal(
            structure=forest_from_indices(pieces), independent=(True, True, False)
        )
    new = new.initial(ppl.array(0.3 * rng.normal(size=10)), 0.4)
    packed = ppl.numpy(getattr(new, new.factor_name))
    noise = 1.0 + 0.1 * rng.normal(size=packed.shape) + 0.2 * rng.normal(size=packed.shape)
    noise = ppl.array(packed * noise + 0.05 * rng.normal(size=packed.shape))
    return dataclasses.replace(new, **{new.factor_name: noise})


def dense(ppl, family):
    """The same Gaussian."""
    covariance = ppl.numpy(family.covariance_matrix)
    return ppl.families.CovarianceCholesky(family.loc, ppl.array(np.linalg.cholesky(covariance)))


def calculus(ppl):
    module = ppl.module("estimators.quadrature")
    return module.JaxCalculus() if ppl.is_numpyro else module.TorchCalculus()


def expected(ppl, function, families):
    terms = ppl.module("tracing.additive_terms").terms_of(function, [q.mean for q in families])
    check_paths(terms, families, calculus(ppl))
    return expectations(terms, families, calculus(ppl))


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("name", ["sparse_precision", "block_diagonal"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_structured_gaussian_has_its_part_of_the_moments_of_a_dense_one(ppl, name, beside, rng):
    function, one = log_density(ppl), family(ppl, name, rng)
    other = ppl.family("covariance_cholesky", np.array([0.1, -0.2]), np.diag([0.3, 0.5]))
    others = [other] if beside else []
    found = expected(ppl, function, [one, *others])
    wanted = expected(ppl, function, [dense(ppl, one), *others])
    assert float(found.value) == pytest.approx(float(wanted.value), abs=1e-10)
    assert bool(found.is_finite)
    assert num_probes(one) < one.dim
    for index, q in enumerate([one, *others]):
        gradient, hessian = wanted.parts[index]
        probes = np.eye(num_probes(q))[q.hessian_probes()].T
        hessian = q.assemble_hessian(ppl.array(probes @ ppl.numpy(hessian)))
        for part, other_part in zip(found.parts[index], (gradient, hessian), strict=True):
            np.testing.assert_allclose(
                ppl.numpy(part), ppl.numpy(other_part), rtol=1e-10, atol=1e-10
            )


@pytest.mark.fast_in_numpyro
def test_a_term_that_sees_several_locals_is_refused(ppl, rng):
    """Their slopes share a column, of which the sum would be taken for one of them."""

    def neighbours(theta):
        return -ppl.np.cosh(theta[4:-1] - 0.5 * theta[5:]).sum()

    def cousins(theta):
        """Of one region and a place in the other."""
        return -ppl.np.cosh(theta[2] + theta[9]).sum()

    def two_predictors(theta):
        return -(theta[4:7] ** 2 * ppl.np.exp(theta[7:])).sum()

    one = family(ppl, "sparse_precision", rng)
    for function in (neighbours, cousins, two_predictors):
        with pytest.raises(NotAdditiveError, match="several locals"):
            expected(ppl, function, [one])
        expected(ppl, function, [dense(ppl, one)])


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fit_integrates_the_bound_of_a_model_with_locals(ppl, dtype, rng):
    """Counts with effects whose spread is unknown, twelve of them: the bound in closed form."""
    with ppl.precision(dtype):
        y = ppl.array(rng.poisson(np.exp(1.0 + 0.5 * rng.normal(size=12))).astype(float), dtype)

        def model(y):
            mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0, dtype), 2.0))
            scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0, dtype), 1.0))
            with ppl.plate("groups", 12):
                x = ppl.sample("x", ppl.dist.Normal(mean, scale))
                ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(x)), obs=y)

        options = {"family": "sparse_precision", "curvature": "quadrature", "effort": "quick"}
        result = ppl.fit(model, y, reparametrize=False, **options)
        assert result.converged
        assert result.bound_error == pytest.approx(0.01)  # draws have 0.1 or more
        family = result.family
        loc, covariance = (
            ppl.numpy(part).astype(float) for part in (family.mean, family.covariance_matrix)
        )
    direction = np.eye(14)[2:] - np.eye(14)[0]
    with_scale = direction @ covariance[1]
    variance = np.einsum("ij,jk,ik->i", direction, covariance, direction)
    squares = (direction @ loc - 2 * with_scale) ** 2 + variance
    squares = squares * math.exp(-2 * loc[1] + 2 * covariance[1, 1])
    half = 0.5 * math.log(2 * math.pi)
    value = -2 * half - math.log(2.0) - (loc[0] ** 2 + covariance[0, 0]) / 8
    value -= (loc[1] ** 2 + covariance[1, 1]) / 2 + 12 * (half + loc[1]) + 0.5 * squares.sum()
    rates = np.exp(loc[2:] + 0.5 * np.diag(covariance)[2:])
    counts = ppl.numpy(y).astype(float)
    value += (counts * loc[2:] - rates).sum() - sum(math.lgamma(1.0 + count) for count in counts)
    entropy = 0.5 * np.linalg.slogdet(covariance)[1] + 14 * (half + 0.5)
    assert result.bound == pytest.approx(value + entropy, abs=1e-6 if dtype == "float64" else 1e-2)
