"""Mixtures: exact densities and draws, and natural gradients of the joint Fisher information."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ngvi.families import curvature
from ngvi.families.draws import marginal_quantiles

BASES = ("covariance_cholesky", "precision_cholesky", "diagonal")
WEIGHTS = np.array([0.2, 0.5, 0.3])


def _mixture(ppl, base, dim, rng):
    """Three components that overlap."""
    components = []
    for mean in rng.normal(size=(3, dim)):
        one = ppl.families.Mixture.bases[base]().initial(ppl.array(mean), 1.0)
        moved = {}
        for name, value in one.coordinates().items():
            change = 0.3 * rng.normal(size=value.shape)
            is_matrix = name != "loc" and change.ndim == 2
            moved[name] = value + ppl.array(np.tril(change) if is_matrix else change)
        components.append(type(one)(**moved))
    return ppl.families.Mixture.of(components, ppl.array(np.log(WEIGHTS) + 0.7))


def _nodes(dim, count):
    """Nodes and weights for ``N(0, I)``."""
    one, weights = np.polynomial.hermite_e.hermegauss(count)
    grid = np.array(list(itertools.product(one, repeat=dim)))
    return grid, np.array([np.prod(w) for w in itertools.product(weights, repeat=dim)]) / (
        2 * np.pi
    ) ** (dim / 2)


def _flat(ppl, family):
    """All coordinates that are free, and a few zeros."""
    return np.concatenate([ppl.numpy(x).ravel() for x in family.coordinates().values()])


def _fisher(ppl, q):
    """``E[s s']`` of the scores of ``log pi_k + log q_k(theta)``, by quadrature that is exact."""
    noise, weights = _nodes(q.dim, 5)
    found = 0.0

    def joint(family, chosen, theta):
        logs = ppl.np.stack([one.log_prob(theta) for one in family.components])
        return chosen @ (family.log_weights + logs)

    score = ppl.gradient(joint)
    for index, one in enumerate(q.components):
        for theta, weight in zip(one.sample(ppl.array(noise)), weights, strict=True):
            s = _flat(ppl, score(q, ppl.array(np.eye(3)[index]), theta))
            found = found + float(q.weights[index]) * weight * np.outer(s, s)
    return found


@pytest.mark.fast_in_numpyro("covariance_cholesky")
@pytest.mark.parametrize("base", BASES)
def test_natural_gradient_is_the_solve_with_the_joint_fisher_matrix(ppl, base, rng):
    q = _mixture(ppl, base, 2, rng)
    target = ppl.array(rng.normal(size=2))
    gradient = ppl.grad(lambda family: family.log_prob(target), q)
    found = q.natural_gradient(gradient)
    natural, back = (_flat(ppl, one) for one in (found, q.euclidean_gradient(found)))
    free = natural != 0.0  # not what is above a triangle
    fisher = _fisher(ppl, q)[np.ix_(free, free)]
    expected = np.linalg.pinv(fisher, rcond=1e-10) @ _flat(ppl, gradient)[free]
    np.testing.assert_allclose(natural[free], expected, atol=1e-8)
    np.testing.assert_allclose(back[free], fisher @ natural[free], atol=1e-8)


@pytest.mark.fast_in_numpyro("covariance_cholesky")
@pytest.mark.parametrize("base", BASES)
def test_direction_of_the_bound_is_the_natural_gradient_of_its_exact_density(ppl, base, rng):
    q = _mixture(ppl, base, 1, rng)
    nodes, weights = (ppl.array(x) for x in _nodes(1, 100))

    def log_density(theta):
        return -(theta[..., 0] ** 2) / 3.0 + ppl.np.sin(theta[..., 0])

    def bound(family):
        found = 0.0
        for weight, one in zip(family.weights, family.components, strict=True):
            theta = one.sample(nodes)
            found = found + weight * (weights @ (log_density(theta) - family.log_prob(theta)))
        return found

    expected = q.natural_gradient(ppl.grad(bound, q))
    draws = [one.sample(nodes) for one in q.components]
    values = ppl.np.stack([log_density(theta) for theta in draws])
    slopes = [-2.0 / 3.0 * theta + ppl.np.cos(theta) for theta in draws]
    found = q.bound_direction(values, ppl.np.stack(slopes), nodes, weights)
    np.testing.assert_allclose(_flat(ppl, found), _flat(ppl, expected), atol=1e-8)


def test_direction_is_zero_where_the_mixture_is_the_posterior(ppl, rng):
    q = _mixture(ppl, "covariance_cholesky", 3, rng)
    noise = ppl.array(rng.normal(size=(4, 3)))
    draws = [one.sample(noise) for one in q.components]
    values = ppl.np.stack([q.log_prob(theta) + 5.0 for theta in draws])
    slopes = ppl.np.stack([curvature.slopes(q, theta) for theta in draws])
    found = q.bound_direction(values, slopes, noise, ppl.array(np.full(4, 0.25)))
    np.testing.assert_allclose(_flat(ppl, found), 0.0, atol=1e-12)


def test_one_component_is_its_base(ppl, rng):
    one = _mixture(ppl, "covariance_cholesky", 3, rng).components[0]
    q = ppl.families.Mixture.of([one], ppl.array(np.zeros(1)))
    theta, noise = ppl.array(rng.normal(size=(5, 3))), rng.normal(size=(5, 4))
    for found, expected in [
        (q.log_prob(theta), one.log_prob(theta)),
        (q.sample(ppl.array(noise)), one.sample(ppl.array(noise[:, 1:]))),
        (q.mean, one.mean),
        (q.stddev, one.stddev),
        (q.covariance_matrix, one.covariance_matrix),
    ]:
        np.testing.assert_allclose(ppl.numpy(found), ppl.numpy(expected), atol=1e-10)


@pytest.mark.fast_in_numpyro
def test_draws_moments_and_quantiles_are_those_of_the_density(ppl, rng):
    q = _mixture(ppl, "covariance_cholesky", 2, rng)
    draws = ppl.numpy(q.sample(ppl.array(rng.normal(size=(200_000, 3)))))
    np.testing.assert_allclose(draws.mean(0), ppl.numpy(q.mean), atol=0.02)
    np.testing.assert_allclose(np.cov(draws.T), ppl.numpy(q.covariance_matrix), atol=0.04)
    np.testing.assert_allclose(draws.std(0), ppl.numpy(q.stddev), atol=0.02)
    levels = np.array([0.1, 0.5, 0.9])
    found = marginal_quantiles(q, ppl.dist.Normal, ppl.array(levels))
    np.testing.assert_allclose(ppl.numpy(found), np.quantile(draws, levels, 0), atol=0.03)
    # The density is that of the draws: its entropy is their average of -log q.
    nodes, weights = _nodes(2, 40)
    entropy = 0.0
    for weight, one in zip(q.weights, q.components, strict=True):
        entropy -= float(weight) * weights @ ppl.numpy(q.log_prob(one.sample(ppl.array(nodes))))
    assert -ppl.numpy(q.log_prob(ppl.array(draws))).mean() == pytest.approx(entropy, abs=0.01)


def test_a_step_of_size_one_of_the_weights_is_exact_where_components_are_apart(ppl):
    parts = [
        ppl.families.Diagonal().initial(ppl.array(np.full(2, mean)), 0.1) for mean in (-9.0, 9.0)
    ]
    q = ppl.families.Mixture.of(parts, ppl.array(np.zeros(2)))
    noise = ppl.array(np.zeros((1, 2)))
    means = [one.sample(noise) for one in parts]
    values = [one.log_prob(x) + np.log(w) for one, x, w in zip(parts, means, (3.0, 1.0))]  # noqa: B905
    slopes = ppl.np.stack([0.0 * x for x in means])
    weights = ppl.array(np.ones(1))
    found = q.natural_step(q.bound_direction(ppl.np.stack(values), slopes, noise, weights), 1.0)
    np.testing.assert_allclose(ppl.numpy(found.weights), [0.75, 0.25], atol=1e-10)


def test_the_joint_divergence_is_no_less_than_that_of_draws(ppl, rng):
    q, other = (_mixture(ppl, "covariance_cholesky", 2, rng) for _ in range(2))
    assert float(q.kl_divergence(q)) == pytest.approx(0.0, abs=1e-10)
    nodes, weights = _nodes(2, 40)
    of_draws = 0.0
    for weight, one in zip(q.weights, q.components, strict=True):
        theta = one.sample(ppl.array(nodes))
        gaps = ppl.numpy(q.log_prob(theta) - other.log_prob(theta))
        of_draws += float(weight) * weights @ gaps
    assert 0 < of_draws < float(q.kl_divergence(other))


def test_a_specification_says_its_base_and_spreads_its_start(ppl):
    for base in ("full", ppl.families.CovarianceCholesky, ppl.families.CovarianceCholesky()):
        spec = ppl.families.Mixture(base, 3)
        q = spec.initial(ppl.array(np.arange(2.0)), 0.5)
        np.testing.assert_allclose(ppl.numpy(q.mean), [0.0, 1.0], atol=1e-12)
        assert q.describe() == "3 components, each one dense block"
        assert q.num_parameters == 3 * 5 + 2
        assert len(q.components) == 3


def test_bad_specifications_are_refused(ppl):
    with pytest.raises(ValueError, match="base='triangle' of a Mixture must be a family"):
        ppl.families.Mixture("triangle")
    with pytest.raises(ValueError, match="num_components"):
        ppl.families.Mixture("diagonal", 0)
