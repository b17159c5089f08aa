"""What problems compute besides bounds: values, the prior's draws, and Gaussians by their draws."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.special import polygamma

from ngvi.inference.options import LEVELS
from ngvi.inference.verdict.validation import excess
from tests.inference.numpy_problem import normal
from tests.ppl import load


def constrained(ppl):
    """A positive latent, a plate of probabilities, and one latent in thousands."""

    def model(y):
        ppl.sample("far", ppl.dist.Normal(ppl.array(1000.0), 200.0))
        scale = ppl.sample("scale", ppl.dist.HalfNormal(ppl.array(1.0)))
        with ppl.plate("rows", 3):
            p = ppl.sample("p", ppl.dist.Beta(ppl.array(2.0), 2.0))
            ppl.sample("y", ppl.dist.Normal(p, scale), obs=y)

    return model, (ppl.array([0.1, 0.5, 0.9]),)


@functools.cache
def problem_of(name, family="diagonal", make=constrained, precision="float64", **options):
    ppl = load(name)
    with ppl.precision(precision):
        model, args = make(ppl)
        seed = 0
        if ppl.is_numpyro:
            import jax

            seed = jax.random.key(0)
        guide = ppl.guide(model, family, **options)
        return ppl.module("inference.set_up").make_problem((model, guide, args, {}), seed)


# -- values ---------------------------------------------------------------------------


def cancelling(ppl, on_trace=lambda x: None):
    """Large numbers that cancel: in single precision the log density is off by nats."""

    def model(large, y):
        x = ppl.sample("x", ppl.dist.Normal(0.0 * large, 1.0))
        on_trace(x)
        ppl.factor("cancels", (large - (x - y) ** 2) - large)

    return model, (ppl.array(1e8), ppl.array(2.0))


CANCELLING = np.array([[-1.5], [0.5], [3.25]])
NOT_CANCELLED = normal(CANCELLING) - (CANCELLING[:, 0] - 2.0) ** 2


def test_values_in_double_precision_are_those_of_the_model_in_it(ppl):
    """Also where large numbers cancel."""
    one, theta = problem_of.__wrapped__(ppl.name, make=cancelling, precision="float32"), CANCELLING
    state, expected = one.space.initial, NOT_CANCELLED
    found = one.objective.in_double(state, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-8)  # as 1e8 is rounded
    many = one.objective.in_double(state, np.tile(theta, (7, 1)))  # in blocks, NumPyro's
    np.testing.assert_allclose(many, np.tile(expected, 7), rtol=1e-8)
    single = one.objective.log_density(state, theta)
    np.testing.assert_allclose(excess(one, state, theta, single), single - expected)
    assert abs(single - expected).min() > LEVELS.notable


def test_arrays_that_a_model_has_captured_are_double_there_as_well(ppl):
    """JAX knows them in single precision, from the values before; an index has 32 bits there."""
    large, rows = np.array([1e8, 2e8]), np.array([0, 1, 1])
    if not ppl.is_numpyro:
        large, rows = (
            ppl.module("inference.objective").torch.tensor(array) for array in (large, rows)
        )
        large = large.float()

    def make(ppl):
        def model(y):
            with ppl.plate("groups", 2):
                x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.factor("cancels", (((large + x) - large)[..., rows] * y).sum(-1))

        return model, (ppl.array([1.0, -1.0, 2.0]),)

    one, theta = problem_of.__wrapped__(ppl.name, make=make, precision="float32"), CANCELLING
    state, theta = one.space.initial, np.concatenate([theta, 2.0 * theta + 0.5], 1)
    expected = normal(theta) + theta @ [1.0, 1.0]
    with ppl.precision("float32"):
        single = one.objective.log_density(state, theta)
        assert abs(single - expected).max() > LEVELS.notable
        found = one.objective.in_double(state, theta)
    if found is not None or not ppl.is_numpyro:  # which may not trace what has captured integers
        np.testing.assert_allclose(found, expected, rtol=1e-6)


# -- the prior ------------------------------------------------------------------------


@pytest.mark.fast_in_numpyro
def test_draws_of_the_prior_have_its_moments_on_the_unconstrained_scale(ppl):
    """Of ``log |z|`` and of the logit of a beta variable they are known."""
    one, count = problem_of(ppl.name), 400
    draws, _ = one.objective.prior(np.random.default_rng(0), count)
    assert draws.shape == (count, 5)
    moments = {
        "far": (1000.0, 200.0),
        "scale": (-(np.euler_gamma + np.log(2)) / 2, np.pi / np.sqrt(8)),
        "p": (0.0, np.sqrt(2 * polygamma(1, 2))),
    }
    for site in one.space.guide.sites:
        mean, sd = moments[site.name]
        some = draws[:, site.start : site.start + site.size]
        np.testing.assert_array_less(np.abs(some.mean(0) - mean), 4 * sd / np.sqrt(count))
        # The kurtosis of ``log |z|``, the largest, is 7.
        np.testing.assert_array_less(np.abs(some.std(0) / sd - 1), 4 * np.sqrt(6 / 4 / count))
    again, _ = one.objective.prior(np.random.default_rng(0), count)
    np.testing.assert_array_equal(again, draws)
    assert abs(np.corrcoef(draws.T) - np.eye(5)).max() < 0.2


def test_runs_that_end_at_the_last_latent_draw_the_same(monkeypatch):
    one = problem_of("pyro")
    draws, _ = one.objective.prior(np.random.default_rng(0), 60)
    monkeypatch.setattr("pyro_ngvi.inference.objective.WHOLE_RUNS", 60)
    np.testing.assert_array_equal(one.objective.prior(np.random.default_rng(0), 60)[0], draws)


def improper(ppl):
    def model():
        real = ppl.dist.constraints.real
        ppl.sample("flat", ppl.dist.ImproperUniform(real, (), event_shape=()))
        ppl.sample("far", ppl.dist.Normal(ppl.array(1000.0), 200.0))

    return model, ()


def test_a_site_whose_prior_is_improper_leaves_the_others_theirs(ppl):
    starts = ppl.start_at(flat=0.0, far=1000.0)  # Pyro's own needs a draw
    one = problem_of.__wrapped__(ppl.name, make=improper, init_loc_fn=starts)
    draws, _ = one.objective.prior(np.random.default_rng(0), 400)
    start = {site.name: site.start for site in one.space.guide.sites}
    assert np.isfinite(draws).all()
    assert draws[:, start["far"]].mean() == pytest.approx(1000.0, abs=40)
    assert np.abs(draws[:, start["flat"]]).max() < 10


def test_a_draw_of_the_prior_at_which_a_model_in_pyro_raises_is_one_fewer():
    def make(ppl):
        def model():
            if ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), 1.0)) > 1.0:
                raise ArithmeticError("no solution")

        return model, ()

    pytest.importorskip("pyro")
    one = problem_of.__wrapped__("pyro", make=make)
    draws, _ = one.objective.prior(np.random.default_rng(0), 400)
    assert np.nanmax(draws) < 1.0 and np.isnan(draws).mean() == pytest.approx(0.16, abs=0.06)


#: What is observed given a normal latent, and the parameter that it makes impossible.
IMPOSSIBLE = {
    "scale=": lambda ppl, x: ppl.dist.Normal(0.0, x),
    "concentration=": lambda ppl, x: ppl.dist.Gamma(x, ppl.np.exp(x)),
    "rate=": lambda ppl, x: ppl.dist.Poisson(2.0 * x),
    "df=": lambda ppl, x: ppl.dist.StudentT(x, x, ppl.np.exp(30.0 * x)),
    "concentration1=": lambda ppl, x: ppl.dist.Beta(x, ppl.np.exp(x)),
    "probs=": lambda ppl, x: ppl.dist.Bernoulli(probs=0.5 + 0.5 * x),
    "": lambda ppl, x: ppl.dist.Normal(x, ppl.np.exp(30.0 * x)),
}


@pytest.mark.fast_in_numpyro("scale=")
@pytest.mark.parametrize("parameter", IMPOSSIBLE)
def test_parameters_that_a_prior_takes_outside_of_their_domain_are_counted(ppl, parameter):
    def make(ppl):
        def model():
            x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.2), 1.0))
            is_count = parameter in ("rate=", "probs=")
            ppl.sample("y", IMPOSSIBLE[parameter](ppl, x), obs=ppl.array(1.0 if is_count else 0.2))

        return model, ()

    one = problem_of.__wrapped__(ppl.name, make=make)
    outside = one.objective.prior(np.random.default_rng(0), 100)[1]
    words = {name.split()[0]: part for name, part in outside.items() if part}
    assert list(words) == [parameter] * bool(parameter)
    assert 0.14 < words.get(parameter, 0.4) < 0.62


@pytest.mark.filterwarnings("ignore:fit has not converged")
def test_a_fit_says_that_a_scale_may_be_negative(ppl):
    def model(y):
        scale = ppl.sample("scale", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(0.0, scale).expand([9]).to_event(1), obs=y)

    with pytest.warns(UserWarning, match="scale= of site 'y' is negative"):
        result = ppl.fit(model, ppl.array(np.linspace(-1.0, 1.0, 9)), draws="gaussian")
    assert "the posterior is cut off" in result.reason
