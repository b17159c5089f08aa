"""Bad input is refused in terms of the user's own sites and arguments, and nothing is lost.

One file for both packages: each claim is a small scenario written in either PPL.
"""

from __future__ import annotations

import contextlib
import math
import warnings

import numpy as np
import pytest

from tests import backends

NUMBERS = np.array([0.3, -1.2, 0.8, 2.0])


class NumPyroScenario:
    """The models of this file in NumPyro, and how to run them."""

    def __init__(self):
        import jax
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        self.adapter = backends.load("numpyro")
        self.jax, self.jnp, self.ppl, self.dist = jax, jnp, numpyro, dist
        self.package = self.adapter.package

    def array(self, values):
        return self.jnp.asarray(values)

    def discrete(self, kind):
        return self.dist.Poisson(3.0) if kind == "poisson" else self.dist.Bernoulli(0.5)

    def vector_normal(self, size):
        return self.dist.Normal(self.jnp.zeros(size), 1.0).to_event(1)

    def adam(self):
        return self.ppl.optim.Adam(1e-3)

    def svi(self, model, guide, optim=None):
        from numpyro.infer import Trace_ELBO

        optim = self.package.Snngm() if optim is None else optim
        return self.package.SVI(model, guide, optim, Trace_ELBO(), rng_key=self.jax.random.key(0))

    def posterior(self, svi, guide):
        posterior = guide.get_posterior(svi.params)
        return np.asarray(posterior.mean), np.asarray(posterior.variance)

    def unvalidated(self):
        return contextlib.nullcontext()

    def start_at(self, **values):
        from numpyro.infer import init_to_value

        return init_to_value(values=values)

    def plain_guide(self):
        loc = self.ppl.param("loc", 0.0)
        self.ppl.sample("x", self.dist.Normal(loc, 1.0))


class PyroScenario:
    """The models of this file in Pyro, and how to run them."""

    def __init__(self):
        import pyro
        import pyro.distributions as dist
        import torch

        self.adapter = backends.load("pyro")
        self.torch, self.ppl, self.dist = torch, pyro, dist
        self.package = self.adapter.package

    def array(self, values):
        return self.torch.as_tensor(np.asarray(values), dtype=self.torch.float)

    def discrete(self, kind):
        return self.dist.Poisson(3.0) if kind == "poisson" else self.dist.Bernoulli(0.5)

    def vector_normal(self, size):
        return self.dist.Normal(self.torch.zeros(size), 1.0).to_event(1)

    def adam(self):
        return self.ppl.optim.Adam({"lr": 1e-3})

    def svi(self, model, guide, optim=None):
        from pyro.infer import Trace_ELBO

        optim = self.package.Snngm() if optim is None else optim
        return self.package.SVI(model, guide, optim, Trace_ELBO())

    def posterior(self, svi, guide):
        posterior = guide.get_posterior()
        return tuple(m.detach().numpy().copy() for m in (posterior.mean, posterior.variance))

    def unvalidated(self):
        # Else Pyro itself refuses the data, before there is a gradient.
        return self.ppl.validation_enabled(False)

    def start_at(self, **values):
        from pyro.infer.autoguide import init_to_value

        return init_to_value(values={k: self.torch.tensor(v) for k, v in values.items()})

    def plain_guide(self):
        loc = self.ppl.param("loc", self.torch.tensor(0.0))
        self.ppl.sample("x", self.dist.Normal(loc, 1.0))


@pytest.fixture(params=backends.BACKENDS)
def scenario(request):
    backends.load(request.param)
    return NumPyroScenario() if request.param == "numpyro" else PyroScenario()


def _normal_model(s):
    def model(y):
        x = s.ppl.sample("x", s.dist.Normal(0.0, 1.0))
        with s.ppl.plate("data", len(y)):
            s.ppl.sample("y", s.dist.Normal(x, 1.0), obs=y)

    return model


@pytest.mark.parametrize("kind", ["poisson", "bernoulli"])
def test_a_discrete_latent_is_named_with_the_way_out(scenario, kind):
    s = scenario

    def model():
        s.ppl.sample("x", s.dist.Normal(0.0, 1.0))
        s.ppl.sample("count", s.discrete(kind))

    with pytest.raises(ValueError, match=r"discrete sample site 'count'.*enumerate"):
        s.svi(model, s.package.NaturalGaussianGuide(model)).step()


def test_an_empty_model_says_so(scenario):
    s = scenario

    def model(y):
        s.ppl.sample("y", s.dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(RuntimeError, match="found no latent variables"):
        s.svi(model, s.package.NaturalGaussianGuide(model)).step(s.array(0.5))


@pytest.mark.parametrize("init_scale", [0.0, -1.0, math.nan])
def test_init_scale_must_be_positive(scenario, init_scale):
    with pytest.raises(ValueError, match="init_scale > 0"):
        scenario.package.NaturalGaussianGuide(_normal_model(scenario), init_scale=init_scale)


def test_an_unknown_family_lists_the_known_ones(scenario):
    with pytest.raises(ValueError, match=r"'banana'.*'covariance_cholesky'.*'diagonal'"):
        scenario.package.NaturalGaussianGuide(_normal_model(scenario), "banana")


def test_sticking_the_landing_is_a_flag_or_auto(scenario):
    with pytest.raises(ValueError, match=r"sticking_the_landing.*'maybe'"):
        scenario.package.NaturalGaussianGuide(
            _normal_model(scenario), sticking_the_landing="maybe"
        )


def test_data_that_make_the_start_impossible_name_their_site(scenario):
    s = scenario
    model = _normal_model(s)
    guide = s.package.NaturalGaussianGuide(model)
    with pytest.raises(ValueError, match=r"not finite.*observed site 'y'"):
        s.svi(model, guide).step(s.array([0.1, math.nan]))


def test_a_guide_that_failed_to_set_up_can_be_used_with_good_data(scenario):
    s = scenario
    model = _normal_model(s)
    guide = s.package.NaturalGaussianGuide(model)
    with pytest.raises(ValueError, match="not finite"):
        s.svi(model, guide).step(s.array([0.1, math.nan]))
    assert math.isfinite(float(s.svi(model, guide).step(s.array(NUMBERS))))


def test_an_infinite_first_bound_is_an_error_not_a_frozen_run(scenario):
    s = scenario

    def model(y):
        # Finite at the start, infinite a standard deviation away from it.
        x = s.ppl.sample("x", s.dist.Normal(0.0, 1.0))
        s.ppl.sample("y", s.dist.Normal(1e30 * x**3, 1.0), obs=y)

    start = s.start_at(x=0.0)
    guide = s.package.NaturalGaussianGuide(model, init_loc_fn=start, init_scale=1.0)
    with pytest.raises(ValueError, match=r"first (loss|gradient).*init_scale"):
        s.svi(model, guide).step(s.array(0.0))


def test_a_latent_that_follows_the_data_is_named_when_it_changes_size(scenario):
    s = scenario

    def model(y):
        x = s.ppl.sample("x", s.vector_normal(len(y)))
        s.ppl.sample("y", s.dist.Normal(x, 1.0).to_event(1), obs=y)

    guide = s.package.NaturalGaussianGuide(model)
    svi = s.svi(model, guide)
    svi.step(s.array(NUMBERS))
    before = s.posterior(svi, guide)
    with pytest.raises(ValueError, match=r"'x' has unconstrained shape \(3,\).*\(4,\)"):
        svi.step(s.array(NUMBERS[:3]))
    svi.step(s.array(NUMBERS))  # and the run goes on
    assert not np.array_equal(before[0], s.posterior(svi, guide)[0])


def test_data_may_change_size_when_the_latents_do_not(scenario):
    s = scenario
    model = _normal_model(s)
    svi = s.svi(model, s.package.NaturalGaussianGuide(model))
    assert math.isfinite(float(svi.step(s.array(NUMBERS))))
    assert math.isfinite(float(svi.step(s.array(NUMBERS[:2]))))


def test_a_local_latent_in_a_subsampled_plate_is_named_with_the_way_out(scenario):
    s = scenario

    def model(y):
        with s.ppl.plate("people", len(y), subsample_size=2) as index:
            z = s.ppl.sample("z", s.dist.Normal(0.0, 1.0))
            s.ppl.sample("y", s.dist.Normal(z, 1.0), obs=y[index])

    with pytest.raises(ValueError, match=r"'z'.*'people'.*2 of 4.*local latent variables"):
        s.svi(model, s.package.NaturalGaussianGuide(model)).step(s.array(NUMBERS))


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_an_optimiser_without_natural_parameters_says_whom_to_use(scenario, name):
    s = scenario

    def model():
        s.ppl.sample("x", s.dist.Normal(0.0, 1.0))

    optim = getattr(s.package, name)()
    with pytest.raises(ValueError, match=rf"{name} sees no natural parameters.*Adam"):
        s.svi(model, s.plain_guide, optim).step()


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_a_step_that_is_not_finite_leaves_the_parameters_as_they_are(scenario, name):
    s = scenario
    model = _normal_model(s)
    guide = s.package.NaturalGaussianGuide(model)
    svi = s.svi(model, guide, getattr(s.package, name)())
    for _ in range(3):
        svi.step(s.array(NUMBERS))
    before = s.posterior(svi, guide)
    with warnings.catch_warnings(), s.unvalidated():
        warnings.simplefilter("ignore")
        svi.step(s.array([math.nan] * 4))
    for old, new in zip(before, s.posterior(svi, guide), strict=True):
        np.testing.assert_array_equal(old, new)
    assert math.isfinite(float(svi.step(s.array(NUMBERS))))
    assert np.isfinite(s.posterior(svi, guide)[0]).all()
    assert not np.array_equal(before[0], s.posterior(svi, guide)[0])


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_options_out_of_range_are_named(scenario, name):
    optimiser = getattr(scenario.package, name)
    rate = "lr" if scenario.adapter.name == "pyro" else "step_size"

    def make(**options):
        return optimiser(options) if scenario.adapter.name == "pyro" else optimiser(**options)

    with pytest.raises(ValueError, match=rate):
        make(**{rate: 0.0})
    with pytest.raises(ValueError, match="beta"):
        make(beta=1.0)


def test_step_before_a_random_key_says_how_to_give_one():
    s = NumPyroScenario()
    from numpyro.infer import Trace_ELBO

    model = _normal_model(s)
    guide = s.package.NaturalGaussianGuide(model)
    svi = s.package.SVI(model, guide, s.package.Snngm(), Trace_ELBO())
    with pytest.raises(ValueError, match="rng_key"):
        svi.step(s.array(NUMBERS))
    with pytest.raises(RuntimeError, match="first svi.step"):
        _ = svi.params


def test_a_posterior_before_the_first_call_says_what_to_do():
    s = PyroScenario()
    guide = s.package.NaturalGaussianGuide(_normal_model(s))
    with pytest.raises(RuntimeError, match="first call"):
        guide.get_posterior()


def test_other_peoples_params_are_refused_by_name():
    s = NumPyroScenario()
    model = _normal_model(s)
    guide = s.package.NaturalGaussianGuide(model, prefix="mine")
    s.svi(model, guide).step(s.array(NUMBERS))
    with pytest.raises(ValueError, match="mine_posterior"):
        guide.median({"auto_posterior": None})
