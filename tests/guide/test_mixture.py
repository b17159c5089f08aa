"""A mixture in the guide: SVI with BLR and NaturalELBO, and what the user reads of it."""

from __future__ import annotations

import numpy as np
import pytest

WEIGHTS, MEANS, SD = np.array([0.3, 0.7]), np.array([-2.0, 2.0]), 0.5


def two_modes(ppl):
    """A posterior of two Gaussians of two latents each, of evidence one."""

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(np.zeros(2)), 5.0).to_event(1))
        each = ppl.dist.Normal(ppl.array(MEANS)[:, None] + ppl.array(np.zeros(2)), SD).to_event(1)
        target = ppl.dist.MixtureSameFamily(ppl.dist.Categorical(ppl.array(WEIGHTS)), each)
        prior = ppl.dist.Normal(ppl.array(np.zeros(2)), 5.0).to_event(1)
        ppl.factor("rest", target.log_prob(x) - prior.log_prob(x))

    return model


@pytest.fixture
def svi(ppl):
    model = two_modes(ppl)
    options = {"init_loc_fn": ppl.start_at(x=np.zeros(2)), "init_scale": 1.5}
    guide = ppl.guide(model, ppl.families.Mixture("full", 2), **options)
    return ppl.svi(model, guide, loss=ppl.elbo("NaturalELBO", num_particles=10))


@pytest.mark.fast_in_numpyro
def test_blr_finds_both_modes_and_their_weights(ppl, svi):
    losses = svi.run(40)
    assert losses[-1] == pytest.approx(0.0, abs=1e-3)
    q = svi.family
    order = np.argsort(ppl.numpy(q.loc)[:, 0])
    np.testing.assert_allclose(ppl.numpy(q.weights)[order], WEIGHTS, atol=1e-3)
    for index, mean in zip(order, MEANS, strict=True):
        one = q.components[index]
        np.testing.assert_allclose(ppl.numpy(one.mean), mean, atol=0.01)
        np.testing.assert_allclose(ppl.numpy(one.stddev), SD, atol=0.01)


def _readings(ppl, guide, params):
    first = (params,) if ppl.is_numpyro else ()
    posterior = guide.get_posterior(*first)
    return posterior, guide.median(*first), guide.quantiles(*first, [0.1, 0.5, 0.9])


@pytest.mark.fast_in_numpyro
def test_the_posterior_is_the_ppls_own_mixture(ppl):
    guide = ppl.guide(two_modes(ppl), ppl.families.Mixture("full", 3), init_scale=1.5)
    params = ppl.set_up(guide)
    q = ppl.initial(guide)
    posterior, median, quantiles = _readings(ppl, guide, params)
    assert isinstance(posterior, ppl.dist.MixtureSameFamily)
    theta = ppl.array(np.random.default_rng(0).normal(size=(4, 2)))
    found, expected = posterior.log_prob(theta), q.log_prob(theta)
    np.testing.assert_allclose(ppl.numpy(found), ppl.numpy(expected), atol=1e-10)
    np.testing.assert_allclose(ppl.numpy(posterior.mean), ppl.numpy(q.mean), atol=1e-10)
    assert ppl.numpy(quantiles["x"]).shape == (3, 2)
    np.testing.assert_allclose(ppl.numpy(median["x"]), ppl.numpy(quantiles["x"])[1], atol=1e-10)
    assert (np.diff(ppl.numpy(quantiles["x"]), axis=0) > 0).all()


def test_what_differentiates_draws_is_refused_by_name(ppl):
    model = two_modes(ppl)
    guide = ppl.guide(model, ppl.families.Mixture("diagonal", 2))
    with pytest.raises(ValueError, match=r"Trace_ELBO differentiates draws.*use NaturalELBO"):
        ppl.svi(model, guide, ppl.optimiser("Snngm"), ppl.elbo("Trace_ELBO")).step()


def test_other_curvatures_and_the_transform_are_refused_by_name(ppl):
    model = two_modes(ppl)
    guide = ppl.guide(model, ppl.families.Mixture("diagonal", 2))
    params = ppl.set_up(guide)
    with pytest.raises(ValueError, match="mixture is not a transform of"):
        guide.get_transform(*((params,) if ppl.is_numpyro else ()))
    with pytest.raises(ValueError, match="curvature='hessian' is not for a mixture"):
        ppl.svi(model, guide, loss=ppl.elbo("NaturalELBO", curvature="hessian")).step()
