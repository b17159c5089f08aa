"""``ReparametrizedGaussianGuide``: locals as an affine map of globals and data (Tan, 2021, RVB).

The reference is Newton's method in numpy for one group at a time, with derivatives by hand, and
finite differences of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.ppl import SLOW_IN_NUMPYRO

TIMES = np.array([-1.0, 0.0, 1.0, 2.0])
COUNTS = np.array([[1.0, 0.0, 2.0], [2.0, 1.0, 4.0], [3.0, 0.0, 9.0], [7.0, 1.0, 14.0]])
SLOPE_VARIANCE = 0.25

#: Of ``mu, log tau, a_1..3, b_1..3``, in the latent vector and in (z, g).
LATENT = np.array([0.3, -0.2, 0.5, -1.0, 0.2, 0.4, 1.1, -0.3])


def _growth(ppl, unit=1.0):
    """Poisson counts with an intercept and a slope for each group: locals of size two.

    :param unit: of time, of which the slope is the inverse.
    """
    dist = ppl.dist

    def growth(counts, times):
        mu = ppl.sample("mu", dist.Normal(ppl.array(0.0), 2.0))
        tau = ppl.sample("tau", dist.LogNormal(ppl.array(0.0), 0.5))
        with ppl.plate("groups", counts.shape[-1]):
            a = ppl.sample("a", dist.Normal(mu, tau))
            b = ppl.sample("b", dist.Normal(ppl.array(0.0), SLOPE_VARIANCE**0.5 / unit))
            with ppl.plate("visits", len(counts)):
                rate = ppl.np.exp(a + b * times[:, None])
                ppl.sample("y", dist.Poisson(rate), obs=counts)

    return growth


def _map(latent):
    """``(b, g)`` and ``log |det|`` at ``(z, g)``, one group at a time."""
    mu, tau = latent[0], np.exp(latent[1])
    design, log_det = np.stack([np.ones_like(TIMES), TIMES], 1), 0.0
    prior = np.diag([1 / tau**2, 1 / SLOPE_VARIANCE])
    theta = latent.copy()
    for group in range(3):
        mode, where = np.zeros(2), [2 + group, 5 + group]
        for _ in range(60):
            rate = np.exp(design @ mode)
            slope = design.T @ (COUNTS[:, group] - rate) - prior @ (mode - [mu, 0.0])
            curvature = design.T @ (rate[:, None] * design) + prior
            step = np.linalg.solve(curvature, slope)
            mode = mode + step / max(1.0, abs(step).max())
        root = np.linalg.cholesky(curvature)
        theta[where] = mode + np.linalg.solve(root.T, latent[where])
        log_det -= np.log(np.diag(root)).sum()
    return theta, log_det


def _difference(function, at, step=1e-5):
    """Central differences, the derivative's axis last."""
    ends = [(function(at + step * e), function(at - step * e)) for e in np.eye(len(at))]
    return np.stack([(np.asarray(a) - np.asarray(b)) / (2 * step) for a, b in ends], -1)


def _of_one(ppl, guide):
    """The guide's map of one vector: ``(b, g)``, ``log |det|``, who has no mode."""
    if not ppl.is_numpyro:
        return guide._of_each
    return lambda latent: guide._of_each(latent, {})


@pytest.fixture
def growth(ppl):
    return _set_up_once(ppl)


def _set_up_once(ppl):
    """The guide, and its data."""
    if ppl.name not in _GUIDES:
        guide = ppl.package.ReparametrizedGaussianGuide(_growth(ppl))
        ppl.set_up(guide, *_data(ppl))
        _GUIDES[ppl.name] = guide
    return _GUIDES[ppl.name], _data(ppl)


_GUIDES: dict = {}


def _data(ppl):
    return ppl.array(COUNTS), ppl.array(TIMES)


@SLOW_IN_NUMPYRO
def test_map_and_its_derivatives_are_those_of_each_groups_mode_and_curvature(ppl, growth):
    of_one, weights = _of_one(ppl, growth[0]), np.linspace(-1.0, 1.0, 8)

    def total(latent):
        theta, log_det, _ = of_one(latent)
        return (theta * ppl.array(weights)).sum() + log_det

    def reference(latent):
        theta, log_det = _map(latent)
        return theta @ weights + log_det

    def product(latent):
        return (_gradient(ppl, total, latent) * ppl.array(vector)).sum()

    gradient, vector = ppl.gradient(total), np.cos(np.arange(8.0))
    at = ppl.array(LATENT)
    theta, log_det, no_mode = of_one(at)
    np.testing.assert_allclose(ppl.numpy(theta), _map(LATENT)[0], rtol=1e-9)
    np.testing.assert_allclose(float(log_det), _map(LATENT)[1], rtol=1e-9)
    assert not ppl.numpy(no_mode).any()
    expected = _difference(reference, LATENT)
    np.testing.assert_allclose(ppl.numpy(gradient(at)), expected, atol=1e-8)
    # The second derivative, which is the implicit function theorem's as well.
    expected = _difference(lambda t: _difference(reference, LATENT + t * vector, 1e-4), [0.0], 1e-4)
    np.testing.assert_allclose(ppl.numpy(ppl.gradient(product)(at)), expected[:, 0], atol=1e-5)


def _gradient(ppl, function, at):
    """A gradient that can be differentiated again."""
    if ppl.is_numpyro:
        import jax

        return jax.grad(function)(at)
    import torch

    return torch.autograd.grad(function(at), at, create_graph=True)[0]


@pytest.mark.fast_in_numpyro
def test_guides_density_is_that_of_the_change_of_variables(ppl, growth):
    guide, data = growth
    _, jacobian = np.linalg.slogdet(_difference(lambda x: _map(x)[0], LATENT))
    site, latent = _site(ppl, guide), ppl.array(LATENT)
    mu, tau = LATENT[0], np.exp(LATENT[1])
    theta = _map(LATENT)[0]
    a, b = theta[2:5], theta[5:]
    rate = np.exp(a + b * TIMES[:, None])
    normal = lambda x, m, s: -0.5 * ((x - m) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)  # noqa: E731
    expected = (COUNTS * np.log(rate) - rate - np.vectorize(_log_factorial)(COUNTS)).sum()
    expected += normal(a, mu, tau).sum() + normal(b, 0.0, SLOPE_VARIANCE**0.5).sum()
    expected += normal(mu, 0.0, 2.0) + normal(LATENT[1], 0.0, 0.5) + jacobian
    assert _density(ppl, guide, data, {site: latent}) == pytest.approx(expected, abs=1e-7)


def _log_factorial(n):
    return np.log(np.arange(1, n + 1)).sum()


def _site(ppl, guide):
    return f"_{guide.prefix if ppl.is_numpyro else guide._pyro_name}_latent"


def _density(ppl, guide, data, latents):
    """What ``NaturalELBO`` and ``fit`` maximise: the guide's draws given, its other sites' density
    taken off."""
    if ppl.is_numpyro:
        import jax

        log_density = ppl.module("tracing").LogDensity(
            guide.model_as_given, guide, data, {}, jax.random.key(0)
        )
        return float(log_density(latents, {}, jax.random.key(0)))
    tracing = ppl.module("tracing")
    facts = tracing.inspect(guide.model, guide, data, {})
    log_density = tracing.LogDensity(guide.model, guide, data, {}, facts)
    return float(log_density({site: value[None] for site, value in latents.items()})[0])


# -- a model whose posterior is known -------------------------------------------------

GROUP_MEANS, NOISE, SPREAD, PRIOR = np.array([1.0, 3.0, -2.0, 0.5]), 0.7, 1.5, 3.0


def _linear(ppl):
    def linear(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), PRIOR))
        with ppl.plate("groups", len(GROUP_MEANS)):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, SPREAD))
            ppl.sample("y", ppl.dist.Normal(effect, NOISE), obs=y)

    return linear


def _exact():
    """Log evidence, and the mean and sd of ``(mu, effect_1..4)``."""
    ones = np.ones((4, 4))
    marginal = (SPREAD**2 + NOISE**2) * np.eye(4) + PRIOR**2 * ones
    solved = np.linalg.solve(marginal, GROUP_MEANS)
    evidence = -0.5 * (GROUP_MEANS @ solved + np.linalg.slogdet(2 * np.pi * marginal)[1])
    precision = np.zeros((5, 5))
    precision[0, 0] = 1 / PRIOR**2 + 4 / SPREAD**2
    precision[1:, 1:] = np.eye(4) * (1 / SPREAD**2 + 1 / NOISE**2)
    precision[0, 1:] = precision[1:, 0] = -1 / SPREAD**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ np.concatenate([[0.0], GROUP_MEANS / NOISE**2])
    return evidence, mean, np.sqrt(np.diag(covariance))


@SLOW_IN_NUMPYRO
def test_local_of_a_group_without_data_is_its_prior_given_the_globals(ppl):
    def groups(y, group):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), PRIOR))
        with ppl.plate("groups", 3):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, SPREAD))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(effect[..., group], NOISE), obs=y)

    guide = ppl.package.ReparametrizedGaussianGuide(groups)
    ppl.set_up(guide, ppl.array([1.0, 2.0]), ppl.index([0, 0]))
    theta, log_det, no_mode = _of_one(ppl, guide)(ppl.array([0.7, 1.0, 1.0, -0.5]))
    expected = [0.7 + SPREAD, 0.7 - 0.5 * SPREAD]
    np.testing.assert_allclose(ppl.numpy(theta)[2:], expected, rtol=1e-9)
    assert not ppl.numpy(no_mode).any()


@pytest.mark.slow
def test_independent_gaussian_is_exact_for_a_linear_gaussian_hierarchy(ppl):
    # ... whose posterior no Gaussian with independent effects could be.
    guide = ppl.package.ReparametrizedGaussianGuide(_linear(ppl), family="diagonal")
    loss = ppl.elbo("NaturalELBO", num_particles=2, curvature="hessian")
    svi = ppl.svi(guide.model, guide, loss=loss, args=(GROUP_MEANS,))
    svi.run(6)
    evidence, mean, sd = _exact()
    assert svi.step() == pytest.approx(-evidence, abs=1e-6)
    # In the model's own coordinates:
    median, low = svi.median(), svi.quantiles([0.16, 0.84])
    np.testing.assert_allclose(median["mu"], mean[0], atol=1e-5)
    np.testing.assert_allclose(median["effect"], mean[1:], atol=0.1 * sd[1])
    np.testing.assert_allclose((low["effect"][1] - low["effect"][0]) / 2, sd[1:], rtol=0.1)
    # ... also where the guide is called for predictions, without the data or with others:
    svi.args = (ppl.array(0.0 * GROUP_MEANS),)
    draws = svi.predictive(25)["effect"]
    np.testing.assert_allclose(draws.mean(0), mean[1:], atol=0.8 * sd[1])


@SLOW_IN_NUMPYRO
def test_local_that_starts_between_two_modes_gets_a_positive_curvature_and_is_counted(ppl):
    dist = ppl.dist

    def torn(y):
        scale = ppl.sample("scale", dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", 3):
            at = ppl.sample("at", dist.Normal(ppl.array(0.0), 10.0))
            ppl.sample("y", dist.Normal(at**2, scale), obs=y)

    start = ppl.start_at(scale=1.0, at=np.zeros(3))  # a slope of zero, however it is rounded
    guide = ppl.package.ReparametrizedGaussianGuide(torn, init_loc_fn=start)
    args = (ppl.array(np.full(3, 81.0)),)
    params = ppl.set_up(guide, *args)
    counts = guide.num_without_mode(*([params] if ppl.is_numpyro else []))
    assert counts == {"at": pytest.approx(3.0, abs=0.3)}
    given = [params] if ppl.is_numpyro else []
    noise = np.random.default_rng(0).normal(size=(40, 4))
    theta, _, no_mode = guide._in_models_coordinates(ppl.array(noise), *given)
    assert np.isfinite(ppl.numpy(theta)).all() and ppl.numpy(no_mode).sum() > 100


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1.0, 5000.0])
def test_float32_is_enough(ppl, unit):
    """In whatever units the locals of a group are beside each other."""
    with ppl.precision("float32"):
        guide = ppl.package.ReparametrizedGaussianGuide(_growth(ppl, unit))
        ppl.set_up(guide, ppl.array(COUNTS), ppl.array(unit * TIMES))
        theta, log_det, no_mode = _of_one(ppl, guide)(ppl.array(LATENT))
    assert ppl.dtype(theta) == "float32" and not ppl.numpy(no_mode).any()
    units = np.repeat([1.0, unit], [5, 3])
    np.testing.assert_allclose(units * ppl.numpy(theta), _map(LATENT)[0], rtol=1e-4, atol=1e-4)
    assert float(log_det) + 3 * np.log(unit) == pytest.approx(_map(LATENT)[1], rel=1e-4)


@pytest.mark.slow
def test_first_order_expands_about_the_mode_at_the_start(ppl):
    guide = ppl.package.ReparametrizedGaussianGuide(_growth(ppl), order=1)
    ppl.set_up(guide, *_data(ppl))
    at_start = np.concatenate([ppl.numpy(guide._reparametrization.start)[:2], LATENT[2:]])
    theta, log_det, _ = _of_one(ppl, guide)(ppl.array(at_start))
    np.testing.assert_allclose(ppl.numpy(theta), _map(at_start)[0], rtol=1e-6)
    assert float(log_det) == pytest.approx(_map(at_start)[1], rel=1e-6)
    elsewhere = _of_one(ppl, guide)(ppl.array(LATENT))[0]
    assert not np.allclose(ppl.numpy(elsewhere), _map(LATENT)[0], rtol=1e-3)


@pytest.mark.fast_in_numpyro
def test_newtons_method_begins_anew_near_the_posterior_for_the_same_map(ppl):
    guide, far = ppl.package.ReparametrizedGaussianGuide(_growth(ppl)), LATENT + 1.5 * np.eye(8)[0]
    ppl.set_up(guide, *_data(ppl))
    of_one, point = _of_one(ppl, guide), ppl.array(LATENT)
    before = [np.asarray(ppl.numpy(part)) for part in of_one(point)]
    start = ppl.numpy(guide._reparametrization.start).copy()
    guide.begin_near(far)
    modes = _map(np.where(guide._blocks.mask, 0.0, far))[0]
    np.testing.assert_allclose(
        ppl.numpy(guide._reparametrization.start)[2:], modes[2:], rtol=1e-4, atol=1e-4
    )
    assert abs(start - modes)[2:].max() > 0.1
    for old, new in zip(before, of_one(point), strict=True):
        np.testing.assert_allclose(old, ppl.numpy(new), atol=1e-9)


def test_repr_has_the_locals(ppl, growth):
    assert "3 locals of size 2 ('a', 'b') given 2 others, order=2" in repr(growth[0])


# -- what does not fit ----------------------------------------------------------------


def _no_plates(ppl):
    return lambda: ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))


def _chained(ppl):
    def chained():
        with ppl.plate("times", 4):
            x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.factor("steps", -((x[1:] - x[:-1]) ** 2).sum())

    return chained


def _locals_subsampled(ppl):
    def subsampled():
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", 10, subsample_size=2):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, 1.0))
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=ppl.array([1.0, 2.0]))

    return subsampled


def _without_modes(ppl):
    def horseshoe():
        tau = ppl.sample("tau", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", 3):
            lam = ppl.sample("lam", ppl.dist.HalfCauchy(ppl.array(1.0)))
            ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), lam * tau))

    return horseshoe


@pytest.mark.fast_in_numpyro("_[!w]*")
@pytest.mark.parametrize(
    "model, message",
    [
        (_no_plates, r"'mu'\) is in a plate"),
        (_chained, "'x' .plate 'times'. depends on itself across plate 'times'"),
        (_locals_subsampled, "needs all data.*NaturalGaussianGuide"),
        (_without_modes, "no mode of 'lam' and 'effect' given .* in 3 of 3"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_reason(ppl, model, message):
    with pytest.raises(ValueError, match=message):
        ppl.set_up(ppl.package.ReparametrizedGaussianGuide(model(ppl)))
