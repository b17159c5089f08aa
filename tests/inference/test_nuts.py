"""NUTS on from a fit: its trajectories, coordinates, starts, and when it ends."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from ngvi.inference.draws import chains, nuts
from ngvi.inference.draws.accuracy import Accuracy, in_models, own_problem
from ngvi.inference.draws.coordinates import Coordinates
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.sampler import NutsRequest, Place, Sampler, are_modes_dear
from ngvi.inference.draws.trajectories import Trajectories, rectangle
from ngvi.inference.problem import Prices
from ngvi.latents.layout import Site
from tests import models
from tests.inference.results import conjugate, conjugate_result, log_evidence, result, shared_result
from tests.inference.test_draws import list_with_a_partner, two_components, two_latents
from tests.ppl import PPLS, SLOW_IN_NUMPYRO, load

# -- chains ---------------------------------------------------------------------------


def autoregressive(rng, rho, shape=(4, 500)):
    noise = rng.standard_normal(shape)
    for t in range(1, shape[1]):
        noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return noise


def test_chains_go_on_from_a_mixture_in_its_scales(ppl):
    model = two_latents(ppl)
    guide = ppl.guide(model, ppl.families.Mixture("diagonal", 2))
    fitted = result(ppl, model, guide=guide)
    with fitted._at_end() as (problem, state):
        own = Coordinates.of_fit(problem, state)
    assert problem.space.noise_dim == 3 and own.scale.shape == (2,)
    np.testing.assert_allclose(own.theta(np.zeros(2)), ppl.numpy(fitted.family.mean), rtol=1e-5)


def test_chains_that_disagree_in_place_or_width_are_found(rng):
    draws = rng.standard_normal((4, 500, 3))
    assert chains.r_hat(draws).max() < 1.01
    draws[0, :, 1] += 1.0
    draws[0, :, 2] *= 3.0
    assert chains.r_hat(draws)[0] < 1.01 and chains.r_hat(draws)[1:].min() > 1.03


def test_effective_draws_are_those_of_a_known_correlation(rng):
    draws = np.stack([autoregressive(rng, rho, (8, 4000)) for rho in (0.0, 0.8, -0.5)], 2)
    expected = 32_000 * np.array([1.0, 0.2 / 1.8, 1.5 / 0.5])
    np.testing.assert_allclose(chains.effective_draws(draws), expected, rtol=0.15)
    # Squares of a Gaussian have the square of the correlation.
    squared = 32_000 * np.array([1.0, 0.36 / 1.64, 0.75 / 1.25])
    errors = np.sqrt(0.5 / squared)
    np.testing.assert_allclose(chains.error_of_stddevs(draws), errors, rtol=0.15)
    short = [chains.effective_draws(rng.standard_normal((32, 25, 9))) for _ in range(20)]
    np.testing.assert_allclose(np.mean(short), 800, rtol=0.1)
    constant = np.ones((2, 10, 1))
    assert chains.r_hat(constant) == 1 and chains.effective_draws(constant) == 20
    assert chains.error_of_stddevs(constant) == 0


def test_chains_are_accurate_if_long_enough_and_if_few_have_diverged(rng):
    draws, none = {"x": rng.standard_normal((4, 500, 2))}, np.zeros((4, 500), bool)
    assert Accuracy.of_chains(draws, none).is_accurate
    assert not Accuracy.of_chains({"x": draws["x"][:, :40]}, none[:, :40]).is_accurate
    some = draws["x"][..., 1] < -2.0  # one in fifty, at an end
    found = Accuracy.of_chains(draws, some)
    assert not found.is_accurate and found.worst(1) == ["x[1]"]
    draws["x"][0] += 2.0
    found = Accuracy.of_chains(draws, none)
    assert found.verdict == "doubtful" and "do not agree (R-hat" in found.words


@pytest.mark.fast_in_numpyro
def test_latents_on_unlike_scales_have_coordinates(ppl):
    """A factor of 1e18 between standard deviations is a matter of units."""

    def model():
        ppl.sample("large", ppl.dist.Normal(ppl.array(0.0), 1e9))
        ppl.sample("small", ppl.dist.Normal(ppl.array(0.0), 1e-9))

    fitted = ppl.fit(model, allow_prior=True, draws="gaussian", effort="quick")
    with fitted._at_end() as (problem, state):
        own = Coordinates.of_fit(problem, state)
    np.testing.assert_allclose(own.z(own.theta(np.eye(2))), np.eye(2), atol=1e-6)


@pytest.mark.parametrize(
    ("apart", "count", "agree"), [(0.3, 32, True), (0.3, 4, False), (0.5, 32, False)]
)
def test_chains_agree_as_closely_as_their_number_and_400_draws_tell(rng, apart, count, agree):
    draws = rng.standard_normal((count, 400, 1)) + apart
    draws[: count // 2] *= -1.0  # R-hat is the root of 1 + apart^2
    found = Accuracy.of_chains({"x": draws}, np.zeros(draws.shape[:2], bool))
    assert bool(found.fault) != agree, found.words


# -- trajectories and coordinates ------------------------------------------------------


def test_trajectories_have_the_moments_of_their_density(rng):
    scales = np.array([0.5, 1.0, 3.0])

    def logistic(z):
        z = z / scales
        return (z - 2 * np.logaddexp(0, z)).sum(1), (1 - 2 / (1 + np.exp(-z))) / scales

    found = Trajectories(logistic, rng.standard_normal((16, 3)), 0.7, rng)
    found.run(400, lambda: False)
    draws = rectangle(found.draws, 400)
    z = draws.z / scales
    noise = 1.0 / np.sqrt(chains.effective_draws(z))
    assert noise.max() < 0.03
    np.testing.assert_allclose(z.mean((0, 1)), 0.0, atol=4 * 1.81 * noise.max())
    np.testing.assert_allclose(z.std((0, 1)), np.pi / np.sqrt(3), rtol=0.05)
    values, slopes = logistic(draws.z.reshape(-1, 3))
    np.testing.assert_allclose(draws.value.ravel(), values)
    np.testing.assert_allclose(draws.gradient.reshape(-1, 3), slopes)
    assert not draws.diverged.any() and 0.6 < draws.accepted.mean() < 1


def test_trajectories_of_many_latents_end_within_a_circle(rng):
    def normal(z):
        return -0.5 * np.square(z).sum(1), -z

    for step in (0.2, 0.3, 0.38, 0.43):
        found = Trajectories(normal, rng.standard_normal((16, 200)), step, rng)
        found.run(20, lambda: False)
        # The last doubling begins before half a circle has been gone.
        assert (rectangle(found.draws).steps * step <= 2 * np.pi + step).all()


def test_coordinates_are_mended_where_these_are_wrong(rng):
    root = rng.standard_normal((6, 6)) + 2 * np.eye(6)  # of the covariance
    precision = np.linalg.inv(root @ root.T)
    theta = rng.standard_normal((8, 40, 6)) @ root.T
    for scale in (root, root @ np.diag([1, 1, 1, 1, 1, 5.0]), np.eye(6)):
        own = Coordinates(np.zeros(6), scale)
        z, slopes = own.z(theta.reshape(-1, 6)).reshape(theta.shape), -theta @ precision @ scale
        found, longer = own.adapted(z, slopes)
        assert (found is own) == (scale is root)
        assert own.adapted(z, slopes, left=0.01)[0] is own  # nearly all draws are made
        mended = np.linalg.inv(found.scale) @ root
        assert np.linalg.cond(mended) < 2 or scale is root
        curvature = np.linalg.norm(scale.T @ precision @ scale, 2)
        after = np.linalg.norm(found.scale.T @ precision @ found.scale, 2)
        assert longer == pytest.approx(np.sqrt(curvature / after), rel=0.3)


def test_scales_alone_are_mended_of_very_many_latents(rng):
    sd = np.array([1.0, 4.0, 0.1])
    own = Coordinates(np.ones(3), np.ones(3))
    z = rng.standard_normal((8, 50, 3)) * sd
    found, _ = own.adapted(z, -z / sd**2)
    np.testing.assert_allclose(found.scale, sd)
    theta = found.theta(z)
    np.testing.assert_allclose(found.z(theta), z)
    assert found.adapted(z / sd, -z / sd)[0] is found


class Wide:
    """A Gaussian with independent latents of these scales."""

    sites = ()

    def __init__(self, sds):
        self.objective = self.space = self
        self.sds, self.dim = np.asarray(sds), len(sds)

    def gradient(self, state, latents):
        slopes = -latents / self.sds**2
        return 0.5 * (slopes * latents).sum(1), slopes


def test_chains_move_to_the_scales_of_latents_where_a_gradient_is_worth_more_there(rng):
    sds = np.array([10.0, *[1.0] * 24])
    for scale, moves in ((np.eye(25), True), (np.diag(sds), False), (sds, False)):
        own = Coordinates(np.zeros(25), scale)
        place = Place(Wide(sds), None, own, rng.standard_normal((8, 25)) * sds)
        sampler = Sampler(place, np.zeros(8, int), rng, lambda: False)
        sampler.warm_up(NutsRequest(num_warmup=0))
        before = sampler.run(100)
        assert sampler.moved(before) == moves
        assert (sampler.coordinates is own) != moves
        after = sampler.run(100)
        worth = [chains.effective_draws(x.z).min() / x.steps.sum() for x in (before, after)]
        assert worth[1] > 3 * worth[0] or not moves
        if moves:  # far from the mean an estimate is of few draws
            np.testing.assert_allclose(np.diag(sampler.coordinates.scale), sds, rtol=0.5)
        np.testing.assert_allclose(after.z.std((0, 1)), sds, rtol=0.3 if moves else 0.2)


@pytest.mark.parametrize(("least", "is_kept"), [(9, True), (10, False)])
def test_draws_of_a_long_last_window_are_kept(least, is_kept, rng, monkeypatch):
    monkeypatch.setattr("ngvi.inference.draws.sampler.ROUND", least)
    own = Coordinates(np.zeros(5), np.eye(5))
    place = Place(Wide(np.ones(5)), None, own, rng.standard_normal((32, 5)))
    sampler = Sampler(place, np.zeros(32, int), rng, lambda: False)
    sampler.warm_up(NutsRequest())
    ends, found = sampler._theta, sampler.run(7)  # seven of ten are left
    assert sampler.coordinates is own
    assert np.array_equal(found.z[:, -1], ends) == is_kept
    np.testing.assert_allclose(found.z.std(), 1.0, rtol=0.1)


@pytest.mark.parametrize(("accepted", "moves"), [(None, [True, True, False]), (0.8, [False])])
def test_chains_begin_anew_with_shorter_steps_where_transitions_diverge(accepted, moves, rng):
    place = Place(Wide(np.ones(5)), None, Coordinates(np.zeros(5), np.ones(5)), np.zeros((32, 5)))
    sampler = Sampler(place, np.zeros(32, int), rng, lambda: False)
    sampler.warm_up(NutsRequest(num_warmup=25, target_accept_prob=accepted))
    found, steps = sampler.run(50), [sampler._step]
    assert not sampler.moved(found)
    draws, diverged = {"x": found.z}, found.steps > 0
    apart = Accuracy((), limits=np.ones((2, 5)))
    for move in moves:
        sampler._request = NutsRequest(target_accept_prob=accepted)
        assert sampler.is_in_vain(apart, draws, diverged) != move
        assert sampler.moved(found._replace(diverged=diverged)) == move
        steps.append(sampler._step)
    assert (np.diff(steps) < 0).tolist() == moves


@pytest.mark.parametrize("has_time", [True, False])
def test_chains_with_shorter_steps_jump_on_unless_the_time_is_over(has_time, rng, monkeypatch):
    own, proposed, count = Coordinates(np.zeros(5), np.eye(5)), Jumps.proposed, []
    monkeypatch.setattr(Jumps, "proposed", lambda *args: count.append(1) or proposed(*args))
    jumps, is_late = Jumps(np.full(2, 0.5), [own, own]), []
    place = Place(Wide(np.ones(5)), None, own, rng.standard_normal((32, 5)))
    sampler = Sampler(place, np.zeros(32, int), rng, lambda: bool(is_late), jumps)
    sampler.warm_up(NutsRequest())
    found = sampler.run(50)
    before, step = len(count), sampler._step
    is_late += [] if has_time else [True]
    assert sampler.moved(found._replace(diverged=found.steps > 0)) == has_time
    again = sampler.run(50)
    assert (sampler._step < step) == has_time == (len(count) > before)
    assert np.array_equal(again.z, found.z) != has_time


def test_chains_stay_where_a_pilot_in_the_scales_of_latents_is_no_better(rng, monkeypatch):
    root = np.linalg.cholesky(0.99 * np.ones((4, 4)) + 0.01 * np.eye(4))
    precision = np.linalg.inv(root @ root.T)

    class Correlated(Wide):
        def gradient(self, state, latents):
            slopes = -latents @ precision
            return 0.5 * (slopes * latents).sum(1), slopes

    own = Coordinates(np.zeros(4), root)
    theta = rng.standard_normal((8, 4)) @ root.T
    place = Place(Correlated(np.ones(4)), None, own, theta)
    sampler = Sampler(place, np.zeros(8, int), rng, lambda: False)
    draws, step = sampler.run(100), sampler._step
    monkeypatch.setattr("ngvi.inference.draws.sampler.POOR", 1000.0)  # a pilot is tried
    assert not sampler.moved(draws)
    assert sampler.coordinates is own and sampler._step == step
    np.testing.assert_array_equal(sampler.run(100).z, draws.z)


class Funnel(Wide):
    """Latents whose common scale is the exponential of the first."""

    def gradient(self, state, latents):
        first, others = latents[:, :1], latents[:, 1:]
        squares = others**2 * np.exp(-2 * first)
        of_first = -first / 9 - others.shape[1] + squares.sum(1, keepdims=True)
        values = -(first[:, 0] ** 2) / 18 - others.shape[1] * first[:, 0] - 0.5 * squares.sum(1)
        return values, np.hstack([of_first, -others * np.exp(-2 * first)])


@pytest.mark.parametrize("is_funnel", [False, True])
def test_chains_go_through_modes_where_the_models_own_latents_are_a_funnel(
    is_funnel, rng, monkeypatch
):
    monkeypatch.setattr("ngvi.inference.draws.trajectories.MAX_DEPTH", 5)  # a funnel takes long
    z = rng.standard_normal((16, 6)) * [3.0, *[1.0] * 5]
    own = Coordinates(np.zeros(6), np.diag([3.0, *[1.0] * 5]))
    by_modes = Place(Wide([3.0, *[1.0] * 5]), None, own, z, lambda z: -z)
    theta = np.hstack([z[:, :1], z[:, 1:] * np.exp(z[:, :1])]) if is_funnel else z
    place = Place((Funnel if is_funnel else Wide)(np.ones(6)), None, own, theta)
    sampler = Sampler(place, np.zeros(16, int), rng, lambda: False, None, by_modes)
    sampler.warm_up(NutsRequest(num_warmup=25))
    assert sampler.moved(sampler.run(25)) == is_funnel
    assert sampler.place is (by_modes if is_funnel else place)


@pytest.mark.parametrize(
    ("prices", "is_dear"),
    [
        (Prices(gradient=3e-5, call=4e-4), False),
        (Prices(gradient=1e-4, call=1e-3), False),
        (Prices(gradient=6e-4, call=2e-2), True),
        (Prices(gradient=3e-5, call=4e-4, own=2e-5), True),  # a fit without modes was tried too
        (Prices(), True),
    ],
)
def test_chains_begin_by_conditional_modes_where_these_cost_little(prices, is_dear):
    assert are_modes_dear(prices, 32) is is_dear


COUNTS = np.array([0.0, 2, 7, 1, 15, 4, 1, 30])


def counts(ppl):
    def counts(y):
        scale = ppl.sample("scale", ppl.dist.HalfNormal(ppl.array(2.0)))
        with ppl.plate("groups", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), scale))
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(effect)), obs=y)

    return counts


@pytest.mark.slow
def test_both_packages_have_the_same_density_of_the_models_own_latents(rng):
    latents, found = rng.standard_normal((5, 9)), []
    for ppl in map(load, PPLS):
        with ppl.float64():
            options = {"reparametrize": True, "draws": "gaussian", "effort": "quick"}
            fitted = ppl.fit(counts(ppl), ppl.array(COUNTS), **options)
            theta = in_models(fitted, latents)
            with fitted._at_end() as (problem, state):
                by_modes, _ = problem.objective.gradient(state, latents)
                np.testing.assert_allclose(problem.objective.log_density(state, latents), by_modes)
                problem = own_problem(fitted, problem)
                found.append((theta, *problem.objective.gradient(problem.space.initial, theta)))
                of_draws = fitted._ppl.in_models(fitted, latents)[1]
                np.testing.assert_allclose(of_draws, by_modes, rtol=1e-10)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    effects = stats.poisson.logpmf(COUNTS, np.exp(theta[:, 1:])).sum(1)
    effects += stats.norm.logpdf(theta[:, 1:], 0.0, np.exp(theta[:, :1])).sum(1)
    scale = np.exp(theta[:, 0])
    np.testing.assert_allclose(
        found[0][1], effects + stats.halfnorm.logpdf(scale, scale=2.0) + theta[:, 0], rtol=1e-6
    )


@pytest.mark.slow
def test_chains_of_locals_by_their_modes_are_of_the_same_posterior(ppl):
    y, model = ppl.array(COUNTS), counts(ppl)
    found = [ppl.fit(model, y, reparametrize=way, draws="nuts") for way in (False, True)]
    tables, held = [one.summary() for one in found], found[1].diagnostics.chains
    limits = sum(one.diagnostics.accuracy.limits for one in found)
    assert limits.max() < 0.2
    assert (abs(tables[0]["mean"] - tables[1]["mean"]) < limits[0] * tables[1]["sd"]).all()
    assert (abs(tables[0]["sd"] / tables[1]["sd"] - 1.0) < limits[1]).all()
    np.testing.assert_allclose(held.draws["effect"], held.latents[..., 1:])


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

    def log_q(self, state, latents):
        return stats.norm.logpdf(latents - state).sum(1)

    def log_density(self, state, latents):
        parts = [
            np.log(weight) + stats.norm.logpdf(latents, mean, self.scale).sum(1)
            for weight, mean in zip(self.weights, STATES, strict=True)
        ]
        return np.logaddexp(*parts)

    def gradient(self, state, latents):
        gaps = latents[:, None] - np.stack(STATES)
        parts = np.log(self.weights) - 0.5 * np.square(gaps).sum(2)
        shares = np.exp(parts - np.logaddexp.reduce(parts, 1)[:, None])
        return self.log_density(state, latents), -(shares[:, :, None] * gaps).sum(1)


STATES = [np.zeros(2), np.full(2, 20.0)]


def test_optima_get_chains_by_their_evidence():
    problem, rng = Modes([0.7, 0.3]), np.random.default_rng(0)
    found, _ = nuts.starts_of(problem, STATES, 10, rng)
    assert list(found.optimum) == [0] * 7 + [1] * 3
    assert np.abs(found.theta[:7]).max() < 6 and np.abs(found.theta[7:] - 20).max() < 6
    np.testing.assert_allclose(found.jumps.weights, [0.7, 0.3], atol=0.02)
    points = np.array([[1.0, 0.5], [0.0, 0.0], [19.0, 20.0]])
    expected = Modes(found.jumps.weights).log_density(None, points)
    own = Coordinates(np.array([1.0, 2.0]), np.array([[2.0, 0.0], [1.0, 3.0]]))
    for jumps, z in ((found.jumps, points), (found.jumps.within(own), own.z(points))):
        np.testing.assert_allclose(np.diff(jumps.log_density(z)), np.diff(expected))
    assert nuts.starts_of(Modes([1.0, 1e-9]), STATES, 10, rng)[0].jumps is None


def test_chains_jump_between_optima_as_often_as_these_have_mass(rng):
    problem = Modes([0.7, 0.3])
    # By other weights and wider Gaussians: only the density says how often.
    parts = [Coordinates(mean, 1.3 * np.eye(2)) for mean in STATES]
    jumps = Jumps(np.array([0.4, 0.6]), parts)
    starts, _ = nuts.starts_of(problem, STATES, 8, rng)
    place = Place(problem, STATES[0], Coordinates(np.ones(2), np.eye(2)), starts.theta)
    sampler = Sampler(place, starts.optimum, rng, lambda: False, jumps)
    sampler.warm_up(NutsRequest())
    x = sampler.run(500).z
    is_far = x[..., 0] > 10
    assert is_far.mean() == pytest.approx(0.3, abs=0.04)
    assert (np.diff(is_far, axis=1).sum(1) > 50).all()
    np.testing.assert_allclose(x[is_far].std(0), 1.0, atol=0.08)


def test_a_density_that_is_not_finite_is_said_with_its_latents(rng):
    problem = Modes([1.0, 1e-300])
    plain = problem.gradient
    problem.sites = Site("x", 0, (1,)), Site("rate", 1, (1,))

    def gradient(state, latents):
        values, slopes = plain(state, latents)
        return np.where(latents[:, 1] > 1.5, np.nan, values), slopes

    problem.gradient = gradient
    theta = rng.standard_normal((8, 2)) - [0.0, 1.0]
    place = Place(problem, STATES[0], Coordinates(np.zeros(2), np.eye(2)), theta)
    sampler = Sampler(place, np.zeros(8, int), rng, lambda: False)
    sampler.warm_up(NutsRequest())
    found = sampler.run(100)
    assert found.z[..., 1].max() < 1.5
    assert "log density was not finite, with rate" in sampler.fault(found)


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


@pytest.mark.fast_in_numpyro
def test_enumerated_latents_are_summed_out_of_it(ppl):
    fitted, evidence = two_components(ppl, [0.3, 2.6, -0.4])
    density, grid = fitted.whitened_density(), np.linspace(-12, 12, 400)
    values = ppl.numpy(density.log_density(ppl.array(grid[:, None])))
    assert trapezoid(np.exp(values), grid) == pytest.approx(evidence, rel=1e-6)


# -- runs -----------------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_chains_end_when_the_exact_posterior_is_known_well_enough(ppl):
    mean, covariance, _ = models.exact_posterior()
    fitted = conjugate_result(ppl, shift=0.3, factor=0.9)
    found = fitted.nuts(progress_bar=False)
    assert found.verdict == "accurate" and found.num_gradients < 10_000
    assert found.effective_draws > 400 and found.r_hat < 1.077 and not found.num_divergent
    draws, sd = found.draws["weights"], np.sqrt(np.diag(covariance))
    assert draws.shape[0] == 32 and draws.shape[2:] == (3,)
    np.testing.assert_allclose((draws.mean((0, 1)) - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(draws.std((0, 1)), sd, rtol=0.1)
    own = ppl.numpy(fitted._ppl.at(fitted, found.latents[3])["weights"])
    np.testing.assert_allclose(own, draws[3])
    assert "accurate" in repr(found) and "divergences" in str(found)


@SLOW_IN_NUMPYRO
def test_chains_end_where_more_draws_would_not_make_up_for_divergences(ppl, monkeypatch):
    plain = Sampler.run

    def run(self, count):
        found = plain(self, count)
        far = found.z[..., 0] > found.z[..., 0].mean() + 2 * found.z[..., 0].std()
        return found._replace(diverged=far)

    monkeypatch.setattr(Sampler, "run", run)
    with pytest.warns(UserWarning, match="draws of these chains are doubtful"):
        found = conjugate_result(ppl, shift=0.3, factor=0.9).nuts(progress_bar=False)
    assert found.verdict == "doubtful" and found.latents.shape[1] <= 100


@SLOW_IN_NUMPYRO
def test_as_many_draws_as_are_asked_for_are_doubtful_if_few(ppl):
    fitted = conjugate_result(ppl, shift=0.3, factor=0.9)
    with pytest.warns(UserWarning, match="draws of these chains are doubtful.*worst: weights"):
        found = fitted.nuts(12, num_warmup=4, num_chains=3, progress_bar=False)
    assert found.draws["weights"].shape == (3, 12, 3)
    data = found.to_arviz(log_likelihood=False, predictive=False, prior=False)
    assert {"chain": 3, "draw": 12}.items() <= dict(data["posterior"].sizes).items()
    assert "diverging" in data["sample_stats"] and "y" in data["observed_data"]
    with pytest.raises(TypeError, match="NutsResult.to_arviz has no argument groups=. It has log"):
        found.to_arviz(groups="posterior")
    with pytest.raises(AttributeError, match="write draws, without an MCMC of the PPL"):
        _ = found.mcmc


@pytest.mark.slow
def test_a_density_with_a_jump_is_sampled_by_its_values(numpyro_backend):
    ppl = numpyro_backend

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.factor("jump", ppl.np.where(x > 0.5, x * 0 - 1.0, x * 0))

    fitted = result(ppl, model, at=(np.array([0.0]), np.array([[1.0]])))
    found = fitted.nuts(200, progress_bar=False)
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
    with pytest.raises(ValueError, match="not a NaturalGaussianGuide"):
        fitted.nuts()


def test_a_limit_ends_chains_at_once_and_takes_no_draws_away(rng):
    """A transition of short steps may take a thousand gradients."""
    own = Coordinates(np.zeros(5), np.eye(5))
    place = Place(Wide(np.ones(5)), None, own, rng.standard_normal((8, 5)))
    late = Sampler(place, np.zeros(8, int), rng, lambda: True)
    with pytest.raises(ValueError, match="before each chain had 4 draws"):
        late.warm_up(NutsRequest())
    is_late: list = []
    sampler = Sampler(place, np.zeros(8, int), rng, lambda: bool(is_late))
    sampler.warm_up(NutsRequest())
    found = sampler.run(30)
    is_late.append(True)
    assert not sampler.moved(found._replace(diverged=found.steps > 0))
    np.testing.assert_array_equal(sampler.run(30).z, found.z)
