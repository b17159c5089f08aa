"""NUTS on from a fit: its coordinates, its starts, its verdict."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ngvi.inference.draws import chains, nuts
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.nuts import Chains, NutsPlan, WhitenedDensity
from ngvi.latents.layout import Site
from tests import models
from tests.inference.results import conjugate, conjugate_result, log_evidence, result, shared_result
from tests.inference.test_diagnostics import list_with_a_partner, two_components, two_latents
from tests.ppl import SLOW_IN_NUMPYRO

# -- chains ---------------------------------------------------------------------------


def test_chains_that_disagree_in_place_or_width_are_found(rng):
    draws = rng.standard_normal((4, 500, 3))
    assert chains.r_hat(draws).max() < 1.01
    draws[0, :, 1] += 1.0
    draws[0, :, 2] *= 3.0
    assert chains.r_hat(draws)[0] < 1.01 and chains.r_hat(draws)[1:].min() > 1.03


# -- where they begin -----------------------------------------------------------------


class Modes:
    """Two Gaussians with weights; a state is one of their means."""

    sites, dim, noise_dim = (Site("x", 0, (2,)),), 2, 2

    def __init__(self, weights, scale=1.0):
        self.objective = self.space = self
        self.weights, self.scale = np.asarray(weights), scale

    def mean(self, state):
        return np.array(state)

    def draw(self, state, noise):
        return state + noise, stats.norm.logpdf(noise).sum(1)

    def log_density(self, state, latents):
        parts = [
            np.log(weight) + stats.norm.logpdf(latents, mean, self.scale).sum(1)
            for weight, mean in zip(self.weights, STATES, strict=True)
        ]
        return np.logaddexp(*parts)

    def of_ppl(self, ppl, z):
        """The logarithm of the density, by a PPL's functions."""
        centres, weights = ppl.array(np.array(STATES)), ppl.array(np.log(self.weights))
        parts = weights - 0.5 * ((z[..., None, :] - centres) ** 2).sum(-1)
        return ppl.np.log(ppl.np.exp(parts).sum(-1))


STATES = [np.zeros(2), np.full(2, 20.0)]


def planned(problem, states, num_chains=10):
    rng = np.random.default_rng(0)
    return nuts.plan(problem, states, lambda theta: theta - states[0], num_chains, rng)


def test_optima_get_chains_by_their_evidence():
    found = planned(Modes([0.7, 0.3]), STATES)
    np.testing.assert_allclose(found.weights, [0.7, 0.3], atol=0.02)
    assert list(found.optimum) == [0] * 7 + [1] * 3
    assert np.abs(found.starts[:7]).max() < 6 and np.abs(found.starts[7:] - 20).max() < 6
    assert found.adapts_metric  # the coordinates are those of one of them
    z, others = np.array([1.0, 0.5]), (np.zeros(2), np.array([19.0, 20.0]))
    log_q = [Modes(found.weights).log_density(None, one[None])[0] for one in (z, *others)]
    found_q = [found.jumps.log_density(one, np) for one in (z, *others)]
    np.testing.assert_allclose(np.diff(found_q), np.diff(log_q))  # up to a constant
    assert planned(Modes([1.0, 1e-9]), STATES).jumps is None


# -- the verdict ----------------------------------------------------------------------


def judged(draws, diverging=None, energy=None, optimum=(0, 0, 0, 0)):
    shape = draws.shape[:2]
    rng = np.random.default_rng(1)
    found = Chains(
        None,
        {"x": draws},
        np.zeros(shape, bool) if diverging is None else diverging,
        rng.standard_normal(shape) if energy is None else energy,
        1234,
    )
    plan = NutsPlan(draws[:, 0], np.array(optimum), np.array([0.6, 0.4]), False)
    return nuts.judged(found, plan, lambda: {"x": np.zeros((9, 1)) + np.arange(9.0)[:, None]}, str)


def test_chains_that_agree_are_trusted_and_shown_beside_the_gaussian(rng):
    found = judged(rng.standard_normal((4, 500, 1)))
    assert found.accuracy.is_accurate and found.effective_draws > 1000
    words = str(found)
    assert "x[0]" in words and "1,234 gradients" in words and "Gaussian mean" in words
    assert found.gaussian["x"][0] == 4.0


def test_each_fault_says_what_to_do(rng):
    draws, diverging = rng.standard_normal((4, 500, 1)), np.zeros((4, 500), bool)
    diverging[0, :9] = True
    apart = draws + np.array([0, 0, 5.0, 5.0])[:, None, None]
    walk = rng.standard_normal((4, 500)).cumsum(1)
    heavy = np.random.default_rng(0).standard_t(2.5, (4, 500, 1))
    cases = [
        ({"draws": heavy}, r"deviation of x\[0\] has an error of \d+ %.*num_samples="),
        ({"draws": draws, "diverging": diverging}, r"9 of 2000.*target_accept_prob=0\.95"),
        ({"draws": apart}, r"do not agree.*num_warmup"),
        ({"draws": apart, "optimum": (0, 0, 1, 1)}, r"several optima.*num_chains"),
        ({"draws": draws[:, :80]}, r"effective draws.*num_samples=1\d0"),
        ({"draws": draws, "energy": walk}, r"E-BFMI.*by their modes"),
    ]
    for options, words in cases:
        with pytest.warns(UserWarning, match=words):
            found = judged(**options)
        assert found.accuracy.verdict == "doubtful"


# -- the density ----------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_of_an_exact_gaussian_the_density_is_that_of_white_noise(ppl):
    density = shared_result(ppl).whitened_density()
    z = ppl.array(np.random.default_rng(0).standard_normal((3, density.dim)))
    values = ppl.numpy(density.log_density(z))
    expected = stats.norm.logpdf(ppl.numpy(z)).sum(1) + log_evidence()
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    assert float(density.log_density(z[1])) == pytest.approx(values[1], rel=1e-12)
    gradient = ppl.grad(density.log_density, z[0])
    np.testing.assert_allclose(ppl.numpy(gradient), -ppl.numpy(z[0]), atol=1e-9)
    sites, one = density.constrain(z), density.constrain(z[1])
    np.testing.assert_allclose(ppl.numpy(sites["weights"])[1], ppl.numpy(one["weights"]))


def test_enumerated_latents_are_summed_out_of_it(ppl):
    fitted, evidence = two_components(ppl, [0.3, 2.6, -0.4])
    density, grid = fitted.whitened_density(), np.linspace(-12, 12, 400)
    values = ppl.numpy(density.log_density(ppl.array(grid[:, None])))
    assert np.trapezoid(np.exp(values), grid) == pytest.approx(evidence, rel=1e-6)


# -- runs -----------------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_the_ppl_s_nuts_gives_the_exact_posterior(ppl):
    mean, covariance, _ = models.exact_posterior()
    fitted = conjugate_result(ppl, shift=0.3, factor=0.9)
    with pytest.warns(UserWarning, match="effective draws"):  # the run is short
        found = fitted.nuts(120, num_warmup=40, num_chains=2, progress_bar=False)
    assert isinstance(found.mcmc, ppl.infer.MCMC) and not found.adapts_metric
    draws = found.draws["weights"]
    assert draws.shape == (2, 120, 3)
    np.testing.assert_allclose(ppl.numpy(found.mcmc.get_samples()["weights"])[:5], draws[0, :5])
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean((0, 1)), mean, atol=0.35 * sd.max())
    np.testing.assert_allclose(draws.std((0, 1)), sd, rtol=0.3)
    assert 400 < found.num_gradients < 6000 and not found.num_divergent
    assert found.energy_information > 0.3
    data = found.to_arviz(log_likelihood=False, predictive=False, prior=False)
    assert dict(data["posterior"].sizes) | {"chain": 2, "draw": 120} == dict(
        data["posterior"].sizes
    )
    assert "diverging" in data["sample_stats"] and "y" in data["observed_data"]
    with pytest.raises(TypeError, match="NutsResult.to_arviz has no argument groups=. It has log"):
        found.to_arviz(groups="posterior")


@pytest.mark.slow
def test_chains_jump_between_optima_as_often_as_these_have_mass(ppl):
    modes = Modes([0.7, 0.3])
    # By other weights and wider Gaussians: only the density says how often.
    units = np.vstack([np.zeros(2), 1.3 * np.eye(2)])
    jumps = Jumps.of(np.array([0.4, 0.6]), np.array(STATES)[:, None] + units)
    plan = planned(modes, STATES, num_chains=2)._replace(jumps=jumps)
    request = nuts.NutsRequest.checked(600, 50, 2, 0.8, False)
    density = WhitenedDensity(2, lambda z: modes.of_ppl(ppl, z), lambda z: {"x": z})
    end = (None,)
    if ppl.is_numpyro:
        import jax

        end = "vectorized", jax.random.key(0)
    run = ppl.module("inference.nuts").run
    found = run(density, ppl.array(plan.starts), plan, 50, request, *end)
    is_far = found.draws["x"][..., 0] > 10
    assert is_far.mean() == pytest.approx(0.3, abs=0.06)
    assert (np.diff(is_far, axis=1).sum(1) > 60).all()
    np.testing.assert_allclose(found.draws["x"][is_far].std(0), 1.0, atol=0.12)


@pytest.mark.slow
def test_a_density_with_a_jump_is_sampled_by_its_values(numpyro_backend):
    ppl = numpyro_backend

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.factor("jump", ppl.np.where(x > 0.5, x * 0 - 1.0, x * 0))

    fitted = result(ppl, model, at=(np.array([0.0]), np.array([[1.0]])))
    found = fitted.nuts(1500, num_warmup=100, num_chains=2, progress_bar=False)
    above = stats.norm.sf(0.5) * np.exp(-1.0)
    assert np.mean(found.draws["x"] > 0.5) == pytest.approx(
        above / (above + stats.norm.cdf(0.5)), abs=0.03
    )


# -- refusals -------------------------------------------------------------------------


def test_minibatches_and_lists_are_refused_with_the_way_out(ppl):
    model, args = conjugate(ppl)
    fitted = result(ppl, model, args, {"subsample_size": 5})
    for ask in (fitted.nuts, fitted.whitened_density):
        with pytest.raises(ValueError, match=r"minibatches.*all rows.*init=result"):
            ask()
    guide, gaussian = list_with_a_partner(ppl, two_latents(ppl))
    at = np.array([0.5]), np.array([[0.7]])
    fitted = result(ppl, two_latents(ppl), guide=guide, gaussian=gaussian, at=at)
    with pytest.raises(ValueError, match="no NaturalGaussianGuide"):
        fitted.nuts()
