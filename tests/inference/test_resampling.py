"""Draws of the posterior itself, by the importance weights of a Gaussian's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from ngvi.inference.draws import psis, resampling
from ngvi.inference.draws.weights_verdict import WAY_ON
from ngvi.inference.verdict.outcome import FoundOptimum
from ngvi.inference.verdict.validation import Validation
from ngvi.latents.layout import Plate, Site
from tests import models
from tests.inference.results import conjugate, conjugate_result, result

NUM = 20_000


@dataclasses.dataclass
class Skew:
    """A problem: a global with the law of a gamma variable's logarithm, and two locals around it.

    Its state is the Gaussian that is the best by the bound, or any other: mean, and a root of the
    covariance.
    """

    shape: float = 2.0
    dim: int = 3

    @property
    def noise_dim(self):
        return self.dim

    sites = (Site("local", 0, (2,), (Plate("groups", 2, 0),)), Site("scale", 2, ()))

    def __post_init__(self):
        self.objective = self.space = self

    def mean(self, state):
        return state[0]

    def draw(self, state, noise):
        mean, root = state
        log_q = stats.norm.logpdf(noise).sum(1) - np.log(np.diag(root)).sum()
        return mean + noise @ root.T, log_q

    def log_density(self, state, latents):
        local, scale = latents[:, :2], latents[:, 2]
        own = stats.loggamma.logpdf(scale, self.shape)
        return own + stats.norm.logpdf(local, scale[:, None], 0.5).sum(1)

    def gradient(self, state, latents):
        steps = 1e-5 * np.eye(self.dim)
        ends = [[self.log_density(state, latents + s * one) for s in (1, -1)] for one in steps]
        return self.log_density(state, latents), np.array([a - b for a, b in ends]).T / 2e-5


def _best() -> tuple[np.ndarray, np.ndarray]:
    # log q of the global has the mean where E[exp(u)] = shape, and that curvature.
    variance = 1.0 / 2.0
    mean = np.log(2.0) - 0.5 * variance
    covariance = variance * np.ones((3, 3)) + np.diag([0.25, 0.25, 0.0])
    return np.full(3, mean), np.linalg.cholesky(covariance)


def corrected(problem, state, count):
    return resampling.corrected(problem, state, count, np.random.default_rng(0)).latents


def test_moments_that_the_gaussian_misses_are_those_of_the_posterior():
    state, exact = _best(), stats.loggamma(2.0)
    found = corrected(Skew(), state, NUM)
    assert found.shape == (NUM, 3)
    gaussian_sd = state[1][2] @ state[1][2]
    assert gaussian_sd**0.5 < 0.9 * exact.std()  # what there is to mend
    error = exact.std() / np.sqrt(NUM)
    assert found[:, 2].mean() == pytest.approx(exact.mean(), abs=5 * error)
    assert found[:, 2].std() == pytest.approx(exact.std(), rel=0.03)
    assert found[:, 0].std() == pytest.approx(np.hypot(exact.std(), 0.5), rel=0.03)
    slope = np.cov(found[:, 0], found[:, 2])[0, 1] / found[:, 2].var()
    assert slope == pytest.approx(1.0, abs=0.03)
    # Further out than the Gaussian's draws ever come.
    low = exact.ppf(0.001)
    assert np.mean(found[:, 2] < low) == pytest.approx(0.001, abs=0.0007)


def test_where_heavier_tails_do_what_the_gaussian_s_weights_cannot_it_is_said():
    """The law of a half-Cauchy variable's logarithm, whose tails are exponential."""

    class Scale(Skew):
        dim, sites = 1, (Site("scale", 0, ()),)

        def log_density(self, state, latents):
            return latents[:, 0] - np.logaddexp(0.0, 2.0 * latents[:, 0])

    state = np.zeros(1), np.eye(1)
    found = psis.Diagnostics(4000, 1.1, f"poor: distrust its tails: {WAY_ON}", are_trusted=False)
    mended = resampling.with_heavier_tails(Scale(dim=1), state, found, 0)
    assert "heavier tails mend that (k-hat " in mended.verdict
    assert WAY_ON not in mended.verdict and mended.pareto_k == 1.1
    # ... and not where these are no better, or are not needed.
    narrow = np.zeros(2), np.diag([0.01, 0.01])
    assert resampling.with_heavier_tails(Banana(dim=2), narrow, found, 0) is found
    trusted = dataclasses.replace(found, are_trusted=True)
    assert resampling.with_heavier_tails(Scale(dim=1), state, trusted, 0) is trusted


@pytest.mark.parametrize(("variance", "is_faulty"), [(1.2, False), (2.4, True)])
def test_too_few_effective_draws_are_told(variance, is_faulty):
    """A posterior in 12 dimensions that is wider than the Gaussian: k-hat is near 0.7."""

    class Wide(Skew):
        sites = (Site("w", 0, (12,), (Plate("groups", 12, 0),)),)
        noise_dim = 13  # as a mixture's, along which no tail is made heavier

        def log_density(self, state, latents):
            return stats.norm.logpdf(latents, 0.0, variance**0.5).sum(1)

        def draw(self, state, noise):
            return noise[:, :12], stats.norm.logpdf(noise[:, :12]).sum(1)

    for seed in range(3):
        rng = np.random.default_rng(seed)
        found = resampling.corrected(Wide(dim=12), (np.zeros(12), np.eye(12)), 500, rng)
        assert bool(found.fault) is is_faulty
        assert "a k-hat of" in found.fault or "above 0.7" in found.fault or not is_faulty
        assert found.are_many is not is_faulty  # of few the Gaussian's own draws are kept


class Banana(Skew):
    """A ridge that no draw of the Gaussian, and none along an axis, follows to its ends."""

    dim = 2
    sites = (Site("x", 0, ()), Site("y", 1, ()))
    width, far = 0.05, 3.0

    def log_density(self, state, latents):
        x, y = latents.T
        return stats.norm.logpdf(x, 0, self.far) + stats.norm.logpdf(y, 0.5 * x**2, self.width)


class Rare(Skew):
    """The global is a Student's t, with tails that are heavier than those of the proposal."""

    def log_density(self, state, latents):
        local, scale = latents[:, :2], latents[:, 2]
        own = stats.t.logpdf(scale, 2.6)
        return own + stats.norm.logpdf(local, scale[:, None], 0.5).sum(1)


def test_a_variance_that_hangs_on_rare_draws_is_told_where_the_weights_do_not():
    root = np.linalg.cholesky(np.ones((3, 3)) + np.diag([0.25, 0.25, 0.0]))
    found = resampling.weighed(Rare(), (np.zeros(3), root), NUM, np.random.default_rng(0))
    mass, _, rare = found.judged.errors.faults(1)
    assert not mass.any() and rare.all()  # the locals hang on the global
    told = resampling.corrected(Rare(), (np.zeros(3), root), NUM, np.random.default_rng(0))
    assert "scale" in told.fault
    light = resampling.weighed(Skew(), _best(), NUM, np.random.default_rng(0))
    assert light.judged.are_right(2)


def _moments(draws: dict) -> tuple[np.ndarray, np.ndarray]:
    values = np.concatenate([np.asarray(v).reshape(len(v), -1) for v in draws.values()], 1)
    return values.mean(0), values.std(0)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_result_draws_from_the_exact_posterior_beside_its_gaussian(ppl, precision):
    mean, covariance, _ = models.exact_posterior()
    sd = np.sqrt(np.diag(covariance))
    with ppl.precision(precision):
        fitted = conjugate_result(ppl, shift=0.3, factor=0.8)
        draws = fitted.sample(8000, corrected=True)
        dtype = ppl.array(mean).dtype
    assert all(value.dtype == dtype for value in draws.values())
    assert {k: v.shape for k, v in draws.items()} == {
        k: v.shape for k, v in fitted.sample(8000).items()
    }
    found_mean, found_sd = _moments(draws)
    np.testing.assert_allclose(found_mean, mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(found_sd, sd, rtol=0.05)


def test_without_weights_it_is_an_error(ppl):
    model, args = conjugate(ppl)
    fitted = result(ppl, model, args, {"subsample_size": 5})
    with pytest.raises(ValueError, match=r"corrected=True.*minibatches.*Leave it out"):
        fitted.sample(10, corrected=True)
    with pytest.raises((TypeError, ValueError), match="corrected"):
        fitted.sample(10, corrected="yes")


# -- draws as they come ---------------------------------------------------------------


def validated(ppl, spread, **options):
    """A result whose own check has found weights with this standard deviation, in nats."""
    return conjugate_result(ppl, validation=Validation(-30.0, 0.01, spread=spread), **options)


def test_draws_are_corrected_where_the_fit_has_found_something_to_correct(ppl):
    mean, covariance, _ = models.exact_posterior()
    sd = np.sqrt(np.diag(covariance))
    some = validated(ppl, 0.6, shift=0.3, factor=0.8)
    found_mean, found_sd = _moments(some.sample(8000))
    np.testing.assert_allclose(found_mean, mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(found_sd, sd, rtol=0.05)
    _, own_sd = _moments(some.sample(8000, corrected=False))
    np.testing.assert_allclose(own_sd, 0.8 * sd, rtol=0.05)
    # Where its weights hardly vary they are the Gaussian's, and nothing is evaluated.
    _, own_sd = _moments(validated(ppl, 0.1, factor=0.8).sample(8000))
    np.testing.assert_allclose(own_sd, 0.8 * sd, rtol=0.05)


def test_where_weights_cannot_be_believed_draws_are_the_gaussian_s_and_it_warns(ppl):
    _, covariance, _ = models.exact_posterior()
    far = validated(ppl, 9.0, shift=8.0, factor=0.3)
    with pytest.warns(UserWarning, match=r"draws are the Gaussian's.*k-hat.*result\.nuts\(\)"):
        draws = far.sample(4000)
    np.testing.assert_allclose(_moments(draws)[1], 0.3 * np.sqrt(np.diag(covariance)), rtol=0.05)


def test_a_part_of_the_posterior_at_other_optima_is_told(pyro_backend):
    own = FoundOptimum({}, -30.0, 0.1, 3, True), FoundOptimum({}, -30.8, 0.1, 2, True)
    fitted = conjugate_result(pyro_backend, shift=0.1, optima=own)
    with pytest.warns(UserWarning, match=r"other optima hold about 31 %"):
        fitted.sample(100, corrected=True)
    assert fitted.diagnostics.verdict.startswith("partial: other optima hold about 31 %")
    with pytest.warns(UserWarning, match="other optima hold"):
        validated(pyro_backend, 0.01, optima=own).sample(100)
