"""The log density of the latent vector, and its split into examples, in both PPLs.

That it is what each PPL's own ELBOs compute is in ``test_tracing_numpyro.py`` and
``test_tracing_pyro.py``.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests import models
from tests.models import SUBSAMPLE
from tests.ppl import SLOW_IN_NUMPYRO


class Density:
    """The log density of a model, for one minibatch, at numpy's ``theta``."""

    def __init__(self, ppl, model, *args, **kwargs):
        self.ppl, self.tracing = ppl, ppl.module("tracing")
        args = tuple(map(ppl.argument, args))
        self.guide = ppl.guide(model, init_scale=0.3)
        self.params = ppl.set_up(self.guide, *args, **kwargs)
        if ppl.is_numpyro:
            import jax

            self.keys = jax.random.key(3), jax.random.key(0)
            self.density = self.tracing.LogDensity(model, self.guide, args, kwargs, self.keys[0])
            self.site = "_auto_latent"
        else:
            facts = self.tracing.inspect(model, self.guide, args, kwargs)
            self.density = self.tracing.LogDensity(model, self.guide, args, kwargs, facts)
            (self.site,) = self.density.posteriors

    def _at(self, function, theta):
        theta = self.ppl.array(theta)
        if self.ppl.is_numpyro:
            import jax

            of_theta = lambda theta: function({self.site: theta}, self.params, self.keys[1])  # noqa: E731
            return jax.tree.map(np.asarray, jax.jit(of_theta)(theta))
        found = function({self.site: theta[None]})
        if isinstance(found, tuple):
            return type(found)(*(self.ppl.numpy(value)[0] for value in found))
        return self.ppl.numpy(found)[0]

    def __call__(self, theta):
        return float(self._at(self.density, theta))

    def examples(self, theta):
        """``log_likelihood`` and ``scale`` by example, and the ``rest``."""
        return self._at(
            lambda *at: self.ppl.module("networks.examples").examples(self.density, *at), theta
        )


THETA = np.array([-0.3, 0.2, 0.5, 1.0, 0.1, -0.2, 0.7, 0.4])


def simplex(stick):
    """The point that stick breaking makes of two numbers."""
    parts = 1 / (1 + np.exp(-(stick - np.log([2.0, 1.0]))))
    return np.array([parts[0], (1 - parts[0]) * parts[1], (1 - parts[0]) * (1 - parts[1])])


@pytest.mark.fast_in_numpyro
def test_of_a_hierarchy_it_is_the_formula(ppl):
    X, group, y = models.data()
    log_sigma, stick, centre, effect = THETA[0], THETA[1:3], THETA[3], THETA[4:]
    residual = y - X @ simplex(stick) - effect[group]
    expected = (
        # Of log sigma and of the stick: the Jacobians turn their densities into Gaussian ones.
        stats.norm.logpdf(log_sigma, 0.0, 0.5)
        + stats.norm.logpdf(stick).sum()
        + stats.norm.logpdf(centre)
        + stats.norm.logpdf(effect, centre).sum()
        + stats.norm.logpdf(residual, 0.0, np.exp(log_sigma)).sum()
    )
    density = Density(ppl, models.hierarchy(ppl), *models.data())
    assert density(THETA) == pytest.approx(expected, rel=1e-12)


@pytest.mark.fast_in_numpyro
def test_enumerated_latents_are_summed_out(ppl):
    stick, centre, log_sigma = THETA[:2], THETA[2:5], THETA[5]
    of_components = stats.norm.logpdf(models.data()[2][:, None], centre, np.exp(log_sigma))
    expected = (
        np.logaddexp.reduce(of_components + np.log(simplex(stick)), 1).sum()
        + stats.norm.logpdf(stick).sum()
        + stats.norm.logpdf(centre, 0.0, 2.0).sum()
        + stats.norm.logpdf(log_sigma, 0.0, 0.5)
    )
    density = Density(ppl, models.mixture(ppl), *models.data())
    assert density(THETA[:6]) == pytest.approx(expected, rel=1e-12)


def of_all_paths(ppl, y):
    """The log density of ``switching``, path by path."""
    xp = ppl.np

    def density(theta):
        stay = 1 / (1 + xp.exp(-theta[0]))
        loc = theta[1:]
        total = 0.0
        for path in itertools.product((0, 1), repeat=len(y)):
            prob = 1.0
            for before, state, value in zip((1, *path), path, y, strict=False):
                # From state 1 to 1 with probability `stay`, from 0 to 1 with the other.
                up = stay if before else 1 - stay
                prob = prob * (up if state else 1 - up) * xp.exp(-0.5 * (value - loc[state]) ** 2)
            total = total + prob
        jacobian = xp.log(stay) + xp.log(1 - stay)
        prior = -0.5 * xp.sum((loc / 3) ** 2) - 2 * math.log(3)
        constants = 0.5 * math.log(2 * math.pi) * (len(y) + 2)
        return xp.log(total) + jacobian + prior - constants

    return density


def value_gradient_and_hessian(ppl, function, theta):
    theta = ppl.array(theta)
    if ppl.is_numpyro:
        import jax

        found = jax.jit(lambda x: (function(x), jax.grad(function)(x), jax.hessian(function)(x)))
        return [np.asarray(value) for value in found(theta)]
    import torch

    hessian = torch.autograd.functional.hessian(function, theta)
    return [ppl.numpy(v) for v in (function(theta), ppl.grad(function, theta), hessian)]


@SLOW_IN_NUMPYRO
def test_chains_of_enumerated_latents_are_summed_out_with_their_derivatives(ppl):
    """Beside latents in a plate, for which the stock ELBO asks plates of the guide."""
    y, theta = np.array([0.3, 2.0]), np.array([0.4, -0.7, 1.5])
    density = Density(ppl, models.switching(ppl), y)
    if ppl.is_numpyro:
        ours = lambda x: density.density({density.site: x}, density.params, density.keys[1])  # noqa: E731
    else:
        density.density.facts.particles = "vmap"
        ours = lambda x: density.density({density.site: x.expand(2, -1)})[0]  # noqa: E731
    actual = value_gradient_and_hessian(ppl, ours, theta)
    expected = value_gradient_and_hessian(ppl, of_all_paths(ppl, y), theta)
    for found, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.fast_in_numpyro
def test_what_nobody_observes_or_uses_is_standard_normal(ppl):
    """``obs_mask=``: the elements of its latent site that nobody uses; and what ``mask`` leaves
    out of model and data, but not a prior that a mask makes flat."""
    x, y = np.array([1.0, 2.0, 0.5]), np.array([0.7, 1.1, 0.2])
    is_seen = np.array([True, False, True])
    mask = is_seen if ppl.is_numpyro else ppl.np.as_tensor(is_seen)

    def model():
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 2.0).mask(False))
        with ppl.plate("rows", 3), ppl.handlers.scale(scale=2.0):
            prior = ppl.dist.LogNormal(mu, 1.0)
            value = ppl.sample("x", prior, obs=ppl.array(x), obs_mask=mask)
            with ppl.handlers.mask(mask=mask):
                z = ppl.sample("z", prior)
            seen = ppl.np.where(ppl.array(is_seen, "bool"), z, ppl.array(1.0))
            ppl.sample("y", ppl.dist.Normal(value * seen, 0.5), obs=ppl.array(y))

    theta = np.array([0.3, 1.5, -0.4, 2.0, 0.1, -0.6, -0.2])  # mu, the logarithms of x and of z
    value = np.where(is_seen, x, np.exp(theta[1:4]))
    of_x = stats.norm.logpdf(np.log(value), theta[0], 1.0) - np.log(value)
    # On the unconstrained scale a latent has no Jacobian, and is scaled with the rest.
    of_x[1] += theta[2] / 2
    value = value * np.where(is_seen, np.exp(theta[4:]), 1.0)
    # Jacobians are not scaled.
    of_z = 2 * (stats.norm.logpdf(theta[[4, 6]], theta[0], 1.0) - theta[[4, 6]]) + theta[[4, 6]]
    expected = (
        2 * (of_x + stats.norm.logpdf(y, value, 0.5)).sum()
        + of_z.sum()
        + stats.norm.logpdf(theta[[1, 3, 5]]).sum()
    )
    assert Density(ppl, model)(theta) == pytest.approx(expected, rel=1e-12)


def test_a_prior_that_cannot_be_drawn_from_stands_beside_masked_latents(ppl):
    is_seen = np.array([True, False])
    mask = is_seen if ppl.is_numpyro else ppl.np.as_tensor(is_seen)

    def model():
        real = ppl.dist.constraints.real
        level = ppl.sample("level", ppl.dist.ImproperUniform(real, (), ()))
        with ppl.plate("rows", 2), ppl.handlers.mask(mask=mask):
            z = ppl.sample("z", ppl.dist.Normal(level, 1.0))
            ppl.sample("y", ppl.dist.Normal(z, 0.5), obs=ppl.array([0.7, 1.1]))

    level, first, second = theta = np.array([0.3, 1.5, -0.4])
    expected = stats.norm.logpdf([first - level, second]).sum() + stats.norm.logpdf(0.7, first, 0.5)
    assert Density(ppl, model)(theta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("outside", [True, False], ids=["scale", "minibatch"])
def test_what_counts_differently_often_from_an_enumerated_latent_is_refused_by_name(ppl, outside):
    """Of ``side``, which is in no plate, no sum is defined; NumPyro's once drew it instead."""
    y = np.array([0.3, -1.0])

    def model(size):
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        coin = ppl.dist.Bernoulli(ppl.array(0.4))
        side = ppl.sample("side", coin, infer={"enumerate": "parallel"})
        often = ppl.handlers.scale(scale=3.0 if outside else 1.0)
        with ppl.plate("rows", size, subsample_size=2), often:
            ppl.sample("y", ppl.dist.Normal(x + side, 1.0), obs=ppl.array(y))

    density = Density(ppl, model, 2 if outside else 5)
    with pytest.raises(ValueError, match="latent 'side' and site 'y', which.*are scaled"):
        density(np.array([0.5]))


def test_independent_enumerated_latents_may_count_differently_often(ppl):
    y = np.array([0.3, -1.0])

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        coin = ppl.dist.Bernoulli(ppl.array(0.4))
        for number, scale in enumerate((1.0, 3.0)):
            with ppl.plate(f"rows{number}", 2), ppl.handlers.scale(scale=scale):
                side = ppl.sample(f"side{number}", coin, infer={"enumerate": "parallel"})
                ppl.sample(f"y{number}", ppl.dist.Normal(x + side, 1.0), obs=ppl.array(y))

    likelihood = 0.6 * stats.norm.pdf(y, 0.5) + 0.4 * stats.norm.pdf(y, 1.5)
    expected = stats.norm.logpdf(0.5) + 4.0 * np.log(likelihood).sum()
    assert Density(ppl, model)(np.array([0.5])) == pytest.approx(expected, rel=1e-12)


# -- by example -----------------------------------------------------------------------


@pytest.mark.fast_in_numpyro("full batch")
@pytest.mark.parametrize("subsample_size", [None, SUBSAMPLE], ids=["full batch", "subsampled"])
def test_examples_and_the_rest_add_up_to_the_log_density(ppl, subsample_size):
    """Of the same minibatch."""
    args = models.data()
    density = Density(ppl, models.hierarchy(ppl), *args, subsample_size=subsample_size)
    split = density.examples(THETA)
    size = subsample_size or len(args[0])
    assert split.log_likelihood.shape == split.scale.shape == (size,)
    np.testing.assert_allclose(split.scale, len(args[0]) / size)
    total = (split.scale * split.log_likelihood).sum() + split.rest
    assert float(total) == pytest.approx(density(THETA), rel=1e-12)


def test_sites_in_the_same_plates_share_their_examples(ppl):
    y = np.random.default_rng(0).normal(size=(4, 3))

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        columns = ppl.plate("columns", 3, dim=-1)
        with ppl.plate("rows", 4, dim=-2):
            with columns:
                ppl.sample("y", ppl.dist.Normal(x, 1.0), obs=ppl.array(y))
                with ppl.handlers.scale(scale=2.0):
                    ppl.sample("z", ppl.dist.Normal(x, 2.0), obs=ppl.array(y))
            ppl.sample("w", ppl.dist.Normal(x, 1.0).expand([4, 1]), obs=ppl.array(y[:, :1]))

    split = Density(ppl, model).examples(np.array([0.7]))
    cells = stats.norm.logpdf(y, 0.7, 1.0) + 2.0 * stats.norm.logpdf(y, 0.7, 2.0)
    rows = stats.norm.logpdf(y[:, 0], 0.7, 1.0)
    expected = np.concatenate([cells.reshape(-1), rows])
    np.testing.assert_allclose(split.scale * split.log_likelihood, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("observe", "words"), [(True, "'lonely' is in no plate"), (False, "needs observed sites")]
)
def test_what_has_no_examples_is_named(ppl, observe, words):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        if observe:
            ppl.sample("lonely", ppl.dist.Normal(x, 1.0), obs=ppl.array(1.0))

    with pytest.raises(ValueError, match=words):
        Density(ppl, model).examples(np.zeros(1))


def test_enumerated_latents_leave_no_examples(ppl):
    with pytest.raises(ValueError, match="enumerated"):
        Density(ppl, models.mixture(ppl), *models.data()).examples(np.zeros(6))
