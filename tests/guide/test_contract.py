"""The guide is a full citizen of the PPL's ``AutoContinuous`` contract, in both PPLs.

What only one of them has is in ``test_contract_numpyro.py`` and ``test_contract_pyro.py``.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats

from tests import models
from tests.models import LOCATION_MEAN, LOCATION_VARIANCE, Y
from tests.ppl import SLOW_IN_NUMPYRO, load
from tests.reference import FAMILIES, covariance, random_gaussian

D = 8  # sigma 1, weights 2, centre 1, effect 4
CENTRE = 3

NUM_DRAWS = 500


# -- what the user reads --------------------------------------------------------------


@functools.cache
def _numpyro_svi():
    # The family is that of the parameters: one set-up is enough.
    ppl = load("numpyro")
    return ppl.svi(models.hierarchy(ppl), "full", args=models.data())


@pytest.fixture(params=FAMILIES)
def fitted(ppl, request):
    """A run of the hierarchy at a random Gaussian, and that Gaussian."""
    loc, scale = random_gaussian(request.param, D, np.random.default_rng(0))
    family = ppl.family(request.param, loc, 0.5 * scale)
    if ppl.is_numpyro:
        svi = _numpyro_svi()
    else:
        svi = ppl.svi(models.hierarchy(ppl), request.param, args=models.data())
    svi.move_to(family)
    return svi, family, loc, covariance(request.param, 0.5 * scale)


@pytest.mark.fast_in_numpyro("covariance_cholesky")
def test_medians_and_quantiles_are_those_of_the_marginals(fitted):
    svi, _, mean, sigma = fitted
    median = svi.median()
    assert {"sigma", "weights", "centre", "effect"} <= set(median)
    assert median["sigma"] > 0
    assert median["weights"].shape == (3,)
    # The stick-breaking transform sums to one up to rounding.
    np.testing.assert_allclose(median["weights"].sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(median["centre"], mean[CENTRE], rtol=1e-12)
    levels = [0.1, 0.5, 0.9]
    quantiles = svi.quantiles(levels)
    assert quantiles["effect"].shape == (3, 4)
    expected = stats.norm(mean[CENTRE], sigma[CENTRE, CENTRE] ** 0.5).ppf(levels)
    # The PPL's own inverse of the distribution function.
    np.testing.assert_allclose(quantiles["centre"].reshape(-1), expected, rtol=1e-9)


@pytest.mark.fast_in_numpyro("covariance_cholesky")
def test_posterior_and_transform_are_the_ppls(ppl, fitted):
    svi, family, mean, sigma = fitted
    posterior = svi.posterior()
    base = "Distribution" if ppl.is_numpyro else "torch_distribution.TorchDistributionMixin"
    assert isinstance(posterior, functools.reduce(getattr, base.split("."), ppl.dist))
    assert (tuple(posterior.batch_shape), tuple(posterior.event_shape)) == ((), (D,))
    theta = np.random.default_rng(1).normal(size=(3, D))
    # Condition numbers below 1e3 in float64.
    expected = stats.multivariate_normal(mean, sigma).logpdf(theta)
    log_prob = ppl.numpy(posterior.log_prob(ppl.array(theta)))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-10)
    np.testing.assert_allclose(ppl.numpy(posterior.mean), mean, rtol=1e-12)
    np.testing.assert_allclose(ppl.numpy(posterior.variance), np.diag(sigma), rtol=1e-9)

    base, transform = svi.guide.get_base_dist(), svi.transform()
    moved = transform(ppl.array(np.concatenate([np.zeros((1, D)), np.eye(D)])))
    at_zero, *columns = ppl.numpy(moved)
    np.testing.assert_allclose(at_zero, mean, rtol=1e-12)
    root = (np.array(columns) - at_zero).T
    np.testing.assert_allclose(root @ root.T, sigma, rtol=1e-9, atol=1e-12)
    pushed = ppl.dist.TransformedDistribution(base, [transform])
    # One by one: with JAX before 0.9 NumPyro's transform inverts no batch.
    found = [float(pushed.log_prob(one)) for one in moved]
    np.testing.assert_allclose(found, ppl.numpy(family.log_prob(moved)), rtol=1e-10)


@pytest.mark.fast_in_numpyro("covariance_cholesky")
def test_predictive_draws_from_the_posterior_and_runs_the_model(fitted):
    svi, _, mean, sigma = fitted
    latents = svi.predictive(NUM_DRAWS)
    assert latents["weights"].reshape(NUM_DRAWS, -1).shape == (NUM_DRAWS, 3)
    assert latents["effect"].shape == (NUM_DRAWS, 4)
    # Five standard errors of a mean and of a standard deviation.
    stddev = sigma[CENTRE, CENTRE] ** 0.5
    assert abs(latents["centre"].mean() - mean[CENTRE]) < 5 * stddev / NUM_DRAWS**0.5
    assert abs(latents["centre"].std() - stddev) < 5 * stddev / (2 * NUM_DRAWS) ** 0.5
    draws = svi.predictive(7, svi.model)
    assert draws["largest"].reshape(-1).shape == (7,)


# -- the family and the start ---------------------------------------------------------


def test_repr_has_the_family_and_why(ppl):
    guide = ppl.guide(models.location(ppl))
    assert repr(guide) == "NaturalGaussianGuide(family='auto', not set up yet)"
    ppl.set_up(guide, ppl.array(Y))
    assert "family='covariance_cholesky'" in repr(guide)
    assert "auto" in repr(guide)
    assert "d=1, one dense block, 2 parameters" in repr(guide)


def test_init_loc_fn_and_init_scale_are_used(ppl):
    start = ppl.start_at(mu=2.5)
    guide = ppl.guide(models.location(ppl), init_loc_fn=start, init_scale=0.2)
    ppl.set_up(guide, ppl.array(Y))
    family = ppl.initial(guide)
    np.testing.assert_array_equal(ppl.numpy(family.mean), [2.5])
    # init_scale rounds twice on its way to a standard deviation.
    np.testing.assert_allclose(ppl.numpy(family.stddev), [0.2], rtol=1e-12)


def test_float32_is_followed_where_the_ppl_uses_it(ppl):
    with ppl.precision("float32"):
        # As narrow as the posterior: what is rounded is not a small difference.
        guide = ppl.guide(models.location(ppl), "full", init_scale=0.5)
        svi = ppl.svi(guide.model, guide, ppl.optimiser(step_size=1.0), args=(Y,))
        svi.step()
        assert {ppl.dtype(value) for value in svi.family.coordinates().values()} == {"float32"}
        np.testing.assert_allclose(svi.gaussian[0], [LOCATION_MEAN], rtol=1e-5)


# -- in stock SVI ---------------------------------------------------------------------


def test_one_step_is_the_conjugate_posterior(ppl):
    svi = ppl.svi(models.location(ppl), "auto", ppl.optimiser(step_size=1.0), args=(Y,))
    svi.step()
    mean, sigma = svi.gaussian
    np.testing.assert_allclose(mean, [LOCATION_MEAN], rtol=1e-10)
    np.testing.assert_allclose(sigma, [[LOCATION_VARIANCE]], rtol=1e-10)


PARTICLES = {
    "1 particle": {},
    "4 particles": {"num_particles": 4, "vectorize_particles": True},
    "4 in sequence": {"num_particles": 4, "vectorize_particles": False},
}


@pytest.mark.fast_in_numpyro("*4 particles")
@pytest.mark.parametrize("particles", PARTICLES)
@pytest.mark.parametrize("name", ["Trace_ELBO", "JitTrace_ELBO"])
@pytest.mark.filterwarnings("ignore")  # torch.jit's tracer has much to say
def test_at_the_conjugate_posterior_a_trace_elbo_is_the_evidence_and_svi_stays(
    ppl, name, particles
):
    if ppl.is_numpyro and name == "JitTrace_ELBO":
        pytest.skip("of Pyro")
    options = dict(PARTICLES[particles])
    if not ppl.is_numpyro:
        options["max_plate_nesting"] = 1
    guide = ppl.guide(
        models.location(ppl),
        init_loc_fn=ppl.start_at(mu=LOCATION_MEAN),
        init_scale=LOCATION_VARIANCE**0.5,
    )
    svi = ppl.svi(guide.model, guide, ppl.optimiser(), ppl.elbo(name, **options), (Y,))
    evidence = stats.multivariate_normal(np.zeros(4), np.eye(4) + 100.0).logpdf(Y)
    np.testing.assert_allclose(svi.run(3), -evidence, rtol=1e-10)
    mean, sigma = svi.gaussian
    np.testing.assert_allclose(mean, [LOCATION_MEAN], rtol=1e-10)
    np.testing.assert_allclose(sigma, [[LOCATION_VARIANCE]], rtol=1e-10)


@pytest.mark.fast_in_numpyro
def test_a_minibatch_stands_for_all_data(ppl):
    """One step is the posterior of four copies of the three observations that were visited."""
    y = 2.0 ** np.arange(12)  # every subset has a sum of its own
    svi = ppl.svi(
        models.location(ppl), "full", ppl.optimiser(step_size=1.0), args=(y,), subsample_size=3
    )
    svi.step()
    mean, sigma = svi.gaussian
    np.testing.assert_allclose(sigma, [[1 / (12 + 0.01)]], rtol=1e-10)
    total = (12 + 0.01) * mean[0] / 4
    assert round(total).bit_count() == 3
    np.testing.assert_allclose(total, round(total), rtol=1e-10)


@pytest.mark.fast_in_numpyro
def test_model_parameters_are_learned_at_the_same_time(ppl):
    def model(y):
        positive = ppl.dist.constraints.positive
        scale = ppl.param("scale", ppl.array(1.0), constraint=positive)
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, scale), obs=y)

    optimiser = ppl.optimiser(step_size=1.0, adam=0.02)
    svi = ppl.svi(model, "full", optimiser, args=(Y,))
    svi.step()
    np.testing.assert_allclose(svi.gaussian[0], [LOCATION_MEAN], rtol=1e-10)
    # Adam's first step has its length; the residuals from zero are far larger than one.
    np.testing.assert_allclose(svi.parameter("scale"), np.exp(0.02), rtol=1e-6)


@SLOW_IN_NUMPYRO
def test_an_enumerated_latent_is_left_to_trace_enum_elbo(ppl):
    options = {} if ppl.is_numpyro else {"max_plate_nesting": 1}
    elbo = ppl.elbo("TraceEnum_ELBO", **options)
    svi = ppl.svi(models.mixture(ppl), "full", ppl.optimiser(), elbo, models.data())
    before = svi.gaussian[0]
    assert np.isfinite(svi.run(2)).all()
    assert (svi.gaussian[0] != before).all()
    assert set(svi.median()) == {"weights", "centre", "sigma"}


# -- in a list of guides --------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_an_autoguidelist_takes_it_beside_another_guide(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        sigma = ppl.sample("sigma", ppl.dist.LogNormal(ppl.array(0.0), 0.1))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, sigma), obs=y)

    guide = ppl.guide_list(
        model, (ppl.package.NaturalGaussianGuide, ["mu"]), (ppl.autoguide.AutoDelta, ["sigma"])
    )
    svi = ppl.svi(model, guide, ppl.optimiser(step_size=1.0, adam=0.01), args=(Y,))
    sigma = svi.median()["sigma"]
    svi.step()
    median = svi.median()
    assert set(median) == {"mu", "sigma"}
    precision = 4 / sigma**2 + 0.01
    np.testing.assert_allclose(median["mu"], Y.sum() / sigma**2 / precision, rtol=1e-8)
    np.testing.assert_allclose(median["sigma"], sigma * np.exp(0.01), rtol=1e-6)


@pytest.mark.fast_in_numpyro
def test_two_natural_guides_in_a_list_move_jointly(ppl):
    def model():
        ppl.sample("a", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))

    ours = ppl.package.NaturalGaussianGuide
    guide = ppl.guide_list(model, (ours, ["a"]), (ours, ["b"], {"family": "diagonal"}))
    svi = ppl.svi(model, guide, ppl.optimiser("Snngm", step_size=0.01), ppl.elbo())

    def coordinates():
        parts = [ppl.coordinates(svi.of(part)) for part in guide]
        return np.concatenate([value.reshape(-1) for part in parts for value in part])

    before = coordinates()
    svi.step()
    # Table 5: the first step has length alpha_0 sqrt(len(lambda)), over both together.
    length = np.linalg.norm(coordinates() - before)
    np.testing.assert_allclose(length, 0.01 * 4**0.5, rtol=1e-10)
