"""Importance weights tell whether to believe a posterior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from ngvi.inference.draws import psis
from ngvi.inference.draws.pareto import smoothed_weights
from ngvi.inference.draws.psis import from_log_weights
from ngvi.inference.draws.weights_verdict import Errors, Weights
from ngvi.latents.layout import Site
from tests import models
from tests.inference.results import conjugate, conjugate_result, log_evidence, result, shared_result
from tests.ppl import PPLS, SLOW_IN_NUMPYRO, load

# -- conjugate: everything is known ---------------------------------------------------


@SLOW_IN_NUMPYRO
def test_of_an_exact_posterior_the_weights_are_the_evidence(ppl):
    found = shared_result(ppl).diagnostics
    assert found.pareto_k < 0.5 and "good" in found.verdict
    assert found.num_draws == len(found.log_weights) == 4000
    assert found.importance_weighted_bound == pytest.approx(log_evidence(), abs=1e-9)
    assert found.bound == pytest.approx(log_evidence(), abs=1e-9)
    assert found.importance_weighted_bound_error < 1e-9
    assert found.effective_sample_size == pytest.approx(4000)
    for marginal in found.marginals:
        assert abs(marginal.shift) < 1e-9 and abs(marginal.scale_ratio - 1) < 1e-9


@pytest.mark.parametrize("name", PPLS)
def test_float32_is_enough(name):
    ppl = load(name)
    with ppl.precision("float32"):
        found = conjugate_result(ppl, shift=0.3).diagnostics
    assert 0 < found.pareto_k < 0.7
    error = found.importance_weighted_bound_error
    assert found.importance_weighted_bound == pytest.approx(log_evidence(), abs=4 * error)
    assert found.worst(1)[0].shift == pytest.approx(-0.3, abs=0.1)


def test_a_posterior_that_is_a_little_off_is_corrected(ppl):
    found = conjugate_result(ppl, shift=0.3, factor=1.2).diagnostics
    assert found.pareto_k < 0.7
    error = found.importance_weighted_bound_error
    assert 0 < error < 0.1
    assert abs(found.importance_weighted_bound - log_evidence()) < 4 * error
    assert found.bound < found.importance_weighted_bound - 4 * found.bound_error
    assert 400 < found.effective_sample_size < 3900
    for marginal in found.marginals:
        assert marginal.shift == pytest.approx(-0.3 / 1.2, abs=0.08)
        assert marginal.scale_ratio == pytest.approx(1 / 1.2, abs=0.08)


def test_a_scale_that_is_far_too_small_is_found_out(ppl):
    found = shared_result(ppl, factor=0.2).diagnostics
    assert found.pareto_k > 0.7
    assert found.verdict.startswith(("poor", "bad"))
    assert found.importance_weighted_bound_error is None
    assert found.worst(1)[0].scale_ratio > 1.2


# -- both packages --------------------------------------------------------------------


def test_both_packages_give_the_same_numbers_on_the_same_draws():
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
                found.append(psis.diagnose(problem, state, 1000, seed=2))
    one, other = found
    np.testing.assert_allclose(one.log_weights, other.log_weights, rtol=1e-10)
    for field in (
        "pareto_k",
        "bound",
        "bound_error",
        "importance_weighted_bound",
        "importance_weighted_bound_error",
        "effective_sample_size",
    ):
        value = getattr(one, field)
        assert getattr(other, field) == (value if value is None else pytest.approx(value)), field
    assert one.verdict == other.verdict
    for left, right in zip(one.marginals, other.marginals, strict=True):
        assert left.name == right.name
        np.testing.assert_allclose(left[1:], right[1:], rtol=1e-7)


# -- models ---------------------------------------------------------------------------


def test_minibatches_have_no_weights_and_say_so(ppl):
    model, args = conjugate(ppl)
    fitted = result(ppl, model, args, {"subsample_size": 5})
    found = fitted.diagnostics
    assert found.pareto_k is None and found.importance_weighted_bound is None
    assert "minibatches" in found.verdict
    assert not found.worst() and "minibatches" in str(fitted)


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
    assert [marginal.name for marginal in found.marginals] == ["centre"]
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


@SLOW_IN_NUMPYRO
def test_partners_in_a_list_are_weighed_too(ppl):
    model = two_latents(ppl)
    guide, gaussian = list_with_a_partner(ppl, model)
    exact = np.array([0.5]), np.array([[np.sqrt(0.5)]])
    fitted = result(ppl, model, guide=guide, gaussian=gaussian, at=exact)
    found = fitted.diagnostics
    evidence = 2 * stats.norm(0, np.sqrt(2)).logpdf(1.0)
    error = found.importance_weighted_bound_error
    assert abs(found.importance_weighted_bound - evidence) < 4 * error
    assert found.bound < evidence - 0.05  # the partner is not at its best
    assert [marginal.name for marginal in found.marginals] == ["a"]
    assert set(fitted.sample(4)) == {"a", "b"}
    assert "effective draws" in str(fitted)
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
    found = result(ppl, model, guide=guide).diagnose(40)
    assert len(found.marginals) == dim
    assert found.importance_weighted_bound == pytest.approx(0.0, abs=1e-6)


def test_diagnostics_of_pyro_leave_its_random_numbers_alone(pyro_backend):
    import torch

    fitted = conjugate_result(pyro_backend)
    before = torch.get_rng_state()
    str(fitted)
    assert torch.equal(torch.get_rng_state(), before)


# -- weights that are not numbers -----------------------------------------------------


def from_weights(log_weights, rounding=1e-12):
    theta = np.random.default_rng(0).normal(size=(len(log_weights), 2))
    return from_log_weights(
        log_weights, lambda w: (w @ theta, w @ theta**2), (Site("x", 0, (2,)),), rounding
    )


def test_weights_that_are_not_numbers_are_dropped_and_counted(rng):
    log_weights = 0.3 * rng.normal(size=1000)
    expected = from_weights(log_weights[4:])
    log_weights[:4] = np.nan, np.inf, np.nan, np.inf
    found = from_weights(log_weights)
    assert found.num_dropped == 4 and "4 of 1000 draws" in found.verdict
    assert found.pareto_k == pytest.approx(expected.pareto_k)
    assert found.importance_weighted_bound == pytest.approx(expected.importance_weighted_bound)


def test_rounding_that_hides_the_weights_is_told(rng):
    log_weights = 1e7 + np.round(2 * rng.normal(size=1000))
    found = from_weights(log_weights, rounding=1.0)
    assert found.pareto_k is None
    assert "rounding" in found.verdict and "float64" in found.verdict
    assert "float64" in from_weights(40 * rng.normal(size=1000), rounding=0.1).verdict


@pytest.mark.parametrize("count", [6, 26, 100, 1000, 20_000])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_smoothed_weights_are_those_of_arviz(count, spread, rng):
    arviz = pytest.importorskip("arviz")
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1 has no psislw")
    log_weights = spread * rng.standard_t(5, count) + 100.0
    expected, shape = arviz.psislw(log_weights.copy())
    smoothed, found = smoothed_weights(log_weights)
    np.testing.assert_allclose(smoothed, expected, atol=1e-9)
    assert found == pytest.approx(float(shape), rel=1e-9)


# -- the verdict ----------------------------------------------------------------------


def weights(k, error=0.05, share=0.6, gap=0.3, shift=0.3, ratio=0.2, errors=None):
    return Weights(k, error, share, gap, 4000, shift, ratio, errors)


def errors(mass=(0.0, 0.0), squares=(0.0, 0.0), noise=0.01):
    return Errors(np.array(mass), np.array(squares)[:, None], np.full((2, 1), noise))


def test_the_verdict_is_one_function_of_all_that_is_known():
    words = [
        (weights(0.4, shift=0.05, ratio=0.05), "good", True),
        (weights(0.4), "usable", True),
        (weights(0.68), "undecided", None),
        (weights(0.9), "poor", False),
        (weights(1.5), "poor", False),  # half of the draws count
        (weights(1.5, share=0.01), "bad", False),
        # Whatever the tail of equal weights is, it carries nothing.
        (weights(1.6, share=0.993, shift=0.03, ratio=0.02), "good", True),
        # What the tail still holds counts, and not its shape.
        (weights(0.9, errors=errors(mass=(0.02, 0.15), squares=(0.05, 0.05))), "usable", True),
        (weights(0.6, errors=errors(squares=(0.1, 0.3))), "undecided", None),
        (weights(0.6, errors=errors(squares=(0.3, 0.5))), "poor", False),
        (weights(0.6, errors=errors(mass=(0.3, np.inf))), "poor", False),
        (weights(0.2, errors=errors(noise=0.06)), "undecided", None),
    ]
    for found, word, trusted in words:
        assert found.verdict.startswith(word + ":") and found.are_trusted is trusted
    untold = [found.verdict for found, _, trusted in words if not trusted]
    assert all("result.nuts()" in verdict for verdict in untold)


class Narrow:
    """Three standard normal latents, and a Gaussian that is too narrow by a factor, the state."""

    sites, dim, noise_dim, is_subsampled, rows = (Site("x", 0, (3,)),), 3, 3, False, None

    def __init__(self):
        self.objective = self.space = self
        self.num_values = 0

    def mean(self, state):
        return np.zeros(3)

    def draw(self, state, noise):
        return state * noise, stats.norm.logpdf(noise).sum(1) - 3 * np.log(state)

    def log_density(self, state, theta):
        self.num_values += len(theta)
        return stats.norm.logpdf(theta).sum(1)

    def rounding(self, value):
        return 1e-16 * value


def test_draws_are_added_until_the_word_is_certain():
    """Of tails that the first draws cannot tell, and only of these."""
    certain, unsure = psis.diagnose(Narrow(), 0.98, None, 0), Narrow()
    assert certain.num_draws == 4000 and certain.verdict.startswith("good")
    first = psis.diagnose(Narrow(), 0.75, 4000, 1)
    assert first.are_trusted is None and first.verdict.startswith("undecided")
    more = psis.diagnose(unsure, 0.75, None, 1)
    assert more.num_draws == unsure.num_values == 16_000
    whole = psis.diagnose(Narrow(), 0.75, 16_000, 1)
    np.testing.assert_array_equal(more.log_weights, whole.log_weights)
    assert more.verdict == whole.verdict and more.pareto_k_error < first.pareto_k_error


def test_what_weights_show_is_the_least_where_they_are_not_trusted(ppl):
    trusted, poor = conjugate_result(ppl, shift=0.3), shared_result(ppl, factor=0.2)
    assert "at least" in str(poor) and "at least" not in str(trusted)
    worst = trusted.diagnostics.worst(1)[0]
    assert f"mean {worst.shift:+.2f} ± {worst.shift_error:.2f} sd" in str(trusted)
    assert 0 < worst.shift_error < 0.1 and worst.shift == pytest.approx(-0.3, abs=0.1)
