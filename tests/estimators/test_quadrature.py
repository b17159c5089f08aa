"""Expectations term by term: exact where the log density is a sum of terms, refused elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.estimators.additive_terms import (
    NotAdditiveError,
)
from ngvi.estimators.nodes import nodes
from tests.ppl import SLOW_IN_NUMPYRO

COUNTS = np.array([3.0, 0.0, 7.0])


def effects(ppl):
    """Counts with effects of a learned mean and scale: terms of one and of two predictors."""
    y = ppl.array(COUNTS)

    def model():
        mu = ppl.sample("mu", ppl.dist.Normal(0.0, 2.0))
        sigma = ppl.sample("sigma", ppl.dist.LogNormal(0.0, 1.0))
        with ppl.plate("groups", len(COUNTS)):
            x = ppl.sample("x", ppl.dist.Normal(mu, sigma))
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(x)), obs=y)

    return model


def expected_log_density(mean, covariance):
    """Of :func:`effects`, in closed form; latents are mu, log sigma and x."""
    half = 0.5 * math.log(2 * math.pi)
    m, u = mean[0], mean[1]
    value = -half - math.log(2.0) - (m**2 + covariance[0, 0]) / 8
    value += -half - (u**2 + covariance[1, 1]) / 2
    for k, y in enumerate(COUNTS, 2):
        direction = np.zeros(len(mean))
        direction[k], direction[0] = 1.0, -1.0
        with_u, variance = covariance[1] @ direction, direction @ covariance @ direction
        # E[a^2 exp(-2 u)]: the Gaussian, shifted by -2 cov(., u), times E[exp(-2 u)].
        square = (direction @ mean - 2 * with_u) ** 2 + variance
        value += -half - u - 0.5 * square * math.exp(-2 * u + 2 * covariance[1, 1])
        value += y * mean[k] - math.exp(mean[k] + covariance[k, k] / 2) - math.lgamma(y + 1)
    return value


def derivatives(mean, covariance):
    """``E[grad l]`` and, by Price's theorem, ``E[hess l]``, by differences."""
    dim, step = len(mean), 1e-5
    gradient, hessian = np.zeros(dim), np.zeros((dim, dim))
    for i in range(dim):
        e = step * np.eye(dim)[i]
        up, down = (expected_log_density(mean + s * e, covariance) for s in (1, -1))
        gradient[i] = (up - down) / (2 * step)
        for j in range(dim):
            change = np.zeros((dim, dim))
            change[i, j] += step / 2
            change[j, i] += step / 2
            up, down = (expected_log_density(mean, covariance + s * change) for s in (1, -1))
            hessian[i, j] = 2 * (up - down) / (2 * step)
    return gradient, hessian


def loss_and_direction(ppl, model, family):
    guide = ppl.guide(model, family.name)
    ppl.set_up(guide)
    elbo = ppl.elbo("NaturalELBO", curvature="quadrature")
    loss, gradient = ppl.loss_and_gradient(elbo, model, guide)(family)
    return loss, [-part for part in ppl.coordinates(gradient)]


def assert_price(ppl, family, direction, first, second, **tolerance):
    """The direction is that of these moments of gradient and Hessian."""
    part = family.assemble_hessian(ppl.array(second))
    expected = family.bonnet_price(ppl.array(first), part)
    for one, other in zip(direction, ppl.coordinates(expected), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.fast_in_numpyro("diagonal")
@pytest.mark.parametrize("name", ["covariance_cholesky", "diagonal"])
def test_moments_are_those_in_closed_form(ppl, name, rng):
    model, dim = effects(ppl), 5
    root = 0.3 * np.eye(dim) + 0.05 * rng.normal(size=(dim, dim))
    mean = 0.5 * rng.normal(size=dim)
    if name == "diagonal":
        covariance = np.diag(np.diag(root) ** 2)
        scale = np.abs(np.diag(root))
    else:
        scale = np.linalg.cholesky(root @ root.T)
        covariance = root @ root.T
    family = ppl.family(name, mean, scale)
    loss, direction = loss_and_direction(ppl, model, family)
    entropy = float(ppl.numpy(family.entropy()))
    # Nodes up to 9.2 standard deviations leave 1e-9 of exp(-2 u).
    assert loss == pytest.approx(-expected_log_density(mean, covariance) - entropy, abs=1e-7)
    moments = derivatives(mean, covariance)
    assert_price(ppl, family, direction, *moments, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ppl", ["numpyro"], indirect=True)
def test_products_have_all_bits_where_a_gpu_would_drop_some(ppl):
    """The log density's own as well: at the optimum they cancel."""
    import jax

    from numpyro_ngvi.estimators import Differentiator, PointsBySite

    X = ppl.array(np.eye(4, 3))

    def density(latents, *_):
        return (X @ latents["w"] - ppl.np.exp(X @ latents["w"])).sum()

    def estimate(loc):
        family = ppl.families.CovarianceCholesky(loc, ppl.array(np.eye(3)))
        noise, keys = ppl.array(np.ones((2, 3))), jax.random.split(jax.random.key(0))
        points = PointsBySite({"w": noise}, ppl.np.zeros(2), keys)
        quadrature = ppl.module("estimators.quadrature").Quadrature()
        return quadrature(Differentiator(density, 2), {"w": family}, points)

    program = str(jax.make_jaxpr(estimate)(ppl.array(np.zeros(3))))
    count = program.count("dot_general[")
    assert 4 < count == program.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")


@pytest.mark.slow
@SLOW_IN_NUMPYRO
def test_many_raw_covariates_are_claimed_and_right(ppl):
    rng = np.random.default_rng(0)
    X = 800.0 + 60.0 * rng.normal(size=(150, 110))
    y = (rng.random(150) < 1 / (1 + np.exp(-(X[:, :5] - 800.0) @ rng.normal(size=5) / 60))) * 1.0
    X, y = ppl.array(X), ppl.array(y)

    def model():
        a = ppl.sample("a", ppl.dist.Normal(0.0, 50.0))
        b = ppl.sample("b", ppl.dist.Normal(0.0, 0.01).expand([110]).to_event(1))
        with ppl.plate("rows", 150):
            ppl.sample("y", ppl.dist.Bernoulli(logits=a + X @ b), obs=y)

    result = ppl.fit(model)
    assert result.converged, result.reason
    assert result.cost.products < 27 * 111  # two runs, and no state is integrated twice
    # The same optimum by the Bayesian learning rule, which "auto" also gives no draws.
    losses = ppl.svi(model, "covariance_cholesky").run(60)
    assert np.ptp(losses[-3:]) < 1e-4
    assert abs(result.losses[-1] - losses[-1]) < 0.01


def kinked(ppl):
    def model():
        ppl.sample("w", ppl.dist.Laplace(0.0, 1.0).expand([3]).to_event(1))

    return model


def three_predictors(ppl):
    def model():
        a, b, c = (ppl.sample(name, ppl.dist.Normal(0.0, 1.0)) for name in "abc")
        ppl.sample("y", ppl.dist.Normal(ppl.np.exp(a * b * c), 1.0), obs=ppl.array(0.3))

    return model


def own_parameter(ppl):
    def model():
        bias = ppl.param("bias", ppl.array(0.5))
        w = ppl.sample("w", ppl.dist.Normal(0.0, 1.0))
        ppl.sample("y", ppl.dist.Normal(w + bias, 1.0), obs=ppl.array(0.3))

    return model


def ordered(ppl):
    """Pyro's own distribution writes its probabilities into a tensor of zeros, part by part."""

    def model():
        x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        cuts = ppl.array([-1.0, 0.5])
        fn = ppl.dist.OrderedLogistic(x, cuts).to_event(1)
        ppl.sample("y", fn, obs=ppl.index([0, 2, 1]))

    return model


def flat(ppl):
    def model():
        ppl.sample("w", ppl.dist.ImproperUniform(ppl.dist.constraints.real, (), ()))

    return model


@pytest.mark.fast_in_numpyro("kinked-a kink or a jump")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (kinked, "a kink or a jump"),
        (three_predictors, "affine"),
        (own_parameter, "its own"),
        (flat, "no latent"),
        (ordered, "(copy_|of kind SUM)"),
    ],
)
def test_a_log_density_that_is_no_such_sum_is_refused(ppl, make, words):
    model = make(ppl)
    with pytest.raises(ValueError, match=f"curvature='quadrature' needs.*{words}"):
        ppl.svi(
            model, "covariance_cholesky", loss=ppl.elbo("NaturalELBO", curvature="quadrature")
        ).step()


@pytest.mark.parametrize("is_set_up", [False, True], ids=["", "set up before"])
@pytest.mark.parametrize("ppl", ["numpyro"], indirect=True)
def test_a_model_whose_numbers_nobody_has_seen_is_not_integrated_unasked(ppl, is_set_up):
    """Where the first call is part of a program no kink is seen, and curvatures would be zero."""
    import jax

    def model(y):
        w = ppl.sample("w", ppl.dist.Laplace(0.0, 1.0).expand([100]).to_event(1))
        ppl.sample("y", ppl.dist.Normal(w, 10.0).to_event(1), obs=y)

    y = ppl.array(np.zeros(100))
    guide = ppl.guide(model, "diagonal")
    svi = ppl.infer.SVI(model, guide, ppl.optimiser("BLR"), ppl.elbo("NaturalELBO"))
    if is_set_up:
        with ppl.handlers.seed(rng_seed=0):
            guide.set_up(y)
    state, update = jax.jit(svi.init)(jax.random.key(0), y), jax.jit(svi.update)
    for _ in range(20):
        state, _ = update(state, y)
    # Of a Laplace distribution sqrt(pi / 2), and of the quadrature 10.
    assert np.mean(ppl.numpy(svi.get_params(state)["auto_posterior"].stddev)) < 1.4


@pytest.mark.parametrize("ppl", ["pyro"], indirect=True)
def test_a_number_that_a_model_reads_unseen_is_refused(ppl):
    """What a run shows is one way through the model, and here it is not the way elsewhere."""

    def model():
        x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        ppl.factor("y", -float(x.detach().numpy()[0]) * ppl.np.exp(x).sum())

    refused = r"needs a sum.*latents \('x'\).*another branch at other latents"
    with pytest.raises(ValueError, match=refused):
        ppl.svi(
            model, "covariance_cholesky", loss=ppl.elbo("NaturalELBO", curvature="quadrature")
        ).step()


def _through_a_view(torch, x):
    doubled = 2.0 * x
    view = doubled[1:]
    view += x[0]
    return doubled.exp().sum()


def _by_a_number(torch, x):
    return (x if x[0] > 0.1 else -x).exp().sum()


def _cut_off(torch, x):
    return x.exp().sum() * x.data.sum()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_through_a_view, "add_, which writes"),
        (_by_a_number, "reads a number"),
        (_cut_off, "detach"),
    ],
)
def test_what_torch_does_unseen_is_refused(function, words):
    """Views of a tensor that is written into, and branches, depend on latents like all else."""
    torch = pytest.importorskip("torch")
    from pyro_ngvi.tracing.additive_terms import terms_of

    with pytest.raises(NotAdditiveError, match=words):
        terms_of(lambda x: function(torch, x), [torch.zeros(3)])


@pytest.mark.slow
@SLOW_IN_NUMPYRO
def test_the_terms_of_a_pass_over_minibatches_are_those_of_its_rows(ppl):
    """All of its questions have all rows once, and no noise of other minibatches."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    x, y = ppl.array(x), ppl.array(rng.poisson(np.exp(1.0 + x)).astype(float))

    def bound(size):
        def model():
            a = ppl.sample("a", ppl.dist.Normal(0.0, 3.0))
            b = ppl.sample("b", ppl.dist.Normal(0.0, 3.0))
            with ppl.plate("rows", 12, subsample_size=size) as rows:
                ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(a + b * x[rows])), obs=y[rows])

        result = ppl.fit(model, curvature="quadrature")
        assert result.converged, result.reason
        return -result.losses[-1]

    assert bound(4) == pytest.approx(bound(None), abs=0.01)


@pytest.mark.parametrize("dim", [1, 2])
def test_nodes_integrate_polynomials_and_exponentials(dim):
    z, _ = nodes(dim)
    w = np.exp(-0.5 * np.sum(z**2, 1))
    w /= w.sum()
    slope = np.array([0.7, -1.1])[:dim]
    np.testing.assert_allclose(w.sum(), 1.0)
    np.testing.assert_allclose((w[:, None] * z).T @ z, np.eye(dim), atol=1e-12)
    np.testing.assert_allclose(w @ z**8, 105.0, rtol=1e-9)
    np.testing.assert_allclose(w @ np.exp(z @ slope), np.exp(slope @ slope / 2), rtol=1e-12)


@pytest.mark.fast_in_numpyro
def test_a_wide_gaussian_is_resolved(ppl):
    """Under a standard deviation of 100 a logit's slope falls between two of the first nodes."""
    mean, stddev = 130.0, 100.0

    def model():
        x = ppl.sample("x", ppl.dist.Normal(0.0, 1e3))
        ppl.sample("y", ppl.dist.Bernoulli(logits=x), obs=ppl.array(1.0))

    family = ppl.family("covariance_cholesky", np.array([mean]), np.array([[stddev]]))
    loss, direction = loss_and_direction(ppl, model, family)
    z = np.linspace(-9.0, 9.0, 200_001)
    x, weights = mean + stddev * z, np.exp(-0.5 * z**2)
    weights /= weights.sum()
    p = 1 / (1 + np.exp(-np.clip(x, -700, 700)))
    value = -weights @ np.logaddexp(0.0, -x)
    value -= 0.5 * (mean**2 + stddev**2) / 1e6 + math.log(1e3) - 0.5 - math.log(stddev)
    assert loss == pytest.approx(-value, abs=1e-6)
    first, second = [weights @ (1 - p) - mean / 1e6], [[-weights @ (p * (1 - p)) - 1e-6]]
    assert_price(ppl, family, direction, first, second, rtol=1e-4)


def test_nodes_where_a_term_is_not_finite_are_left_out(ppl):
    """Draws 8.5 standard deviations away would be as well, if there ever were one."""

    def model():
        x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0))
        ppl.factor("y", ppl.np.log(8.5 - x))

    family = ppl.family("covariance_cholesky", np.zeros(1), np.eye(1))
    loss, direction = loss_and_direction(ppl, model, family)
    z = np.linspace(-8.4, 8.4, 20_001)
    weights = np.exp(-0.5 * z**2)
    expected = weights @ np.log(8.5 - z) / weights.sum()
    assert abs(nodes(1)[0]).max() > 8.5
    assert loss == pytest.approx(-expected, abs=1e-6)  # the prior's part is the entropy's
    assert all(np.isfinite(part).all() for part in direction)
