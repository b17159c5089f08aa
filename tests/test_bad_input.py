"""Bad input: the error names the site or argument, and nothing good is lost."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.backends import load


class NumPyro:
    """The few calls in which the two PPLs differ."""

    name = "numpyro"

    def __init__(self):
        import jax
        import numpyro
        import numpyro.distributions as dist
        from numpyro import handlers
        from numpyro.infer import SVI, Trace_ELBO
        from numpyro.infer.initialization import init_to_value

        import numpyro_ngvi

        self.jax, self.handlers, self.ngvi = jax, handlers, numpyro_ngvi
        self.sample, self.plate, self.dist = numpyro.sample, numpyro.plate, dist
        self.svi, self.elbo, self.init_to_value = SVI, Trace_ELBO, init_to_value
        self.array = jax.numpy.asarray

    def call(self, guide, *args, **kwargs):
        with self.handlers.seed(rng_seed=0), self.handlers.trace():
            return guide(*args, **kwargs)

    def optimiser(self, name="Snngm"):
        return getattr(self.ngvi, name)(0.01)

    def start(self, model, guide, optimiser, *args):
        svi = self.svi(model, guide, optimiser, self.elbo())
        return SimpleNamespace(svi=svi, state=svi.init(self.jax.random.key(0), *args))

    def step(self, run, *args, **kwargs):
        run.state, loss = run.svi.update(run.state, *args, **kwargs)
        return float(loss)

    def posterior(self, run):
        params = run.svi.get_params(run.state)
        return [np.array(x) for x in params["auto_posterior"].coordinates().values()]

    def plain_guide(self):
        import numpyro

        def guide(*args):
            loc = numpyro.param("loc", 0.0)
            numpyro.sample("mu", self.dist.Normal(loc, 1.0))

        return guide


class Pyro:
    name = "pyro"

    def __init__(self):
        import pyro
        import pyro.distributions as dist
        import torch
        from pyro.infer import SVI, Trace_ELBO
        from pyro.infer.autoguide.initialization import init_to_value

        import pyro_ngvi

        self.pyro, self.torch, self.ngvi = pyro, torch, pyro_ngvi
        self.sample, self.plate, self.dist = pyro.sample, pyro.plate, dist
        self.svi, self.elbo, self.init_to_value = SVI, Trace_ELBO, init_to_value
        self.array = torch.as_tensor

    def call(self, guide, *args, **kwargs):
        return guide(*args, **kwargs)

    def optimiser(self, name="Snngm"):
        return getattr(self.ngvi, name)({"lr": 0.01})

    def start(self, model, guide, optimiser, *args):
        return SimpleNamespace(
            svi=self.svi(model, guide, optimiser, self.elbo()), guide=guide, args=args
        )

    def step(self, run, *args, **kwargs):
        return run.svi.step(*args, **kwargs)

    def posterior(self, run):
        return [p.detach().numpy().copy() for p in run.guide.posterior.parameters()]

    def plain_guide(self):
        def guide(*args):
            loc = self.pyro.param("loc", self.torch.tensor(0.0))
            self.pyro.sample("mu", self.dist.Normal(loc, 1.0))

        return guide


@pytest.fixture(params=["numpyro", "pyro"])
def ppl(request):
    with load(request.param).float64():
        yield NumPyro() if request.param == "numpyro" else Pyro()


def _conjugate(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)

    return model


def _data(ppl, values=(1.0, 2.0, 3.0)):
    return ppl.array(np.array(values))


# -- the model ------------------------------------------------------------------------


def test_a_discrete_latent_without_enumeration_is_named(ppl):
    def model():
        ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("coin", ppl.dist.Bernoulli(ppl.array(0.5)))

    with pytest.raises(ValueError, match=r"'coin'.*enumerate.*TraceEnum_ELBO"):
        ppl.call(ppl.ngvi.NaturalGaussianGuide(model))


def test_an_empty_model_says_that_there_are_no_latents(ppl):
    def model():
        ppl.sample("y", ppl.dist.Normal(ppl.array(0.0), 1.0), obs=ppl.array(1.0))

    with pytest.raises(RuntimeError, match="no latent variables"):
        ppl.call(ppl.ngvi.NaturalGaussianGuide(model))


def test_local_latents_in_a_subsampled_plate_are_named(ppl):
    def model():
        with ppl.plate("data", 10, subsample_size=3):
            ppl.sample("local", ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises((ValueError, NotImplementedError), match="'local'") as error:
        ppl.call(ppl.ngvi.NaturalGaussianGuide(model))
    assert "'data'" in str(error.value)
    assert "create_plates" in str(error.value)


def test_a_failed_setup_leaves_the_guide_usable_with_good_arguments(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample(
                "y", ppl.dist.Exponential(mu.exp() if ppl.name == "pyro" else _exp(mu)), obs=y
            )

    def _exp(x):
        return ppl.jax.numpy.exp(x)

    guide = ppl.ngvi.NaturalGaussianGuide(model)
    with pytest.raises(ValueError, match="'y'"):
        ppl.call(guide, _data(ppl, (np.nan, 1.0, 2.0)))
    ppl.call(guide, _data(ppl))
    assert "d=1" in repr(guide)


# -- arguments ------------------------------------------------------------------------


@pytest.mark.parametrize("init_scale", [0.0, -1.0, float("nan")])
def test_init_scale_must_be_positive(ppl, init_scale):
    with pytest.raises(ValueError, match="init_scale"):
        ppl.ngvi.NaturalGaussianGuide(_conjugate(ppl), init_scale=init_scale)


@pytest.mark.parametrize("init_scale", [float("inf")])
def test_init_scale_must_be_finite(ppl, init_scale):
    with pytest.raises(ValueError, match="init_scale"):
        ppl.ngvi.NaturalGaussianGuide(_conjugate(ppl), init_scale=init_scale)


def test_an_unknown_family_fails_at_once_and_lists_the_known_ones(ppl):
    with pytest.raises(ValueError, match="family='mean_field'.*'diagonal'"):
        ppl.ngvi.NaturalGaussianGuide(_conjugate(ppl), "mean_field")


def test_an_unknown_way_of_landing_is_refused(ppl):
    with pytest.raises(ValueError, match="sticking_the_landing"):
        ppl.ngvi.NaturalGaussianGuide(_conjugate(ppl), sticking_the_landing="sometimes")


# -- values ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_observation_is_named_before_the_first_step(ppl, bad):
    model = _conjugate(ppl)
    guide = ppl.ngvi.NaturalGaussianGuide(model)
    with pytest.raises(ValueError, match="'y'"):
        run = ppl.start(model, guide, ppl.optimiser(), _data(ppl, (1.0, bad, 2.0)))
        ppl.step(run, _data(ppl, (1.0, bad, 2.0)))


def test_data_outside_the_likelihoods_support_are_named(ppl):
    def model(y):
        scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Gamma(scale, scale), obs=y)

    with pytest.raises(ValueError, match="'y'"):
        ppl.call(ppl.ngvi.NaturalGaussianGuide(model), _data(ppl, (-1.0, 1.0, 2.0)))


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.filterwarnings("ignore:A step of")
def test_a_bad_minibatch_leaves_the_last_good_parameters(ppl, name):
    model, good = _conjugate(ppl), _data(ppl)
    guide = ppl.ngvi.NaturalGaussianGuide(model)
    run = ppl.start(model, guide, ppl.optimiser(name), good)
    ppl.step(run, good)
    before = ppl.posterior(run)
    if ppl.name == "pyro":
        with ppl.pyro.validation_enabled(False):
            ppl.step(run, _data(ppl, (1.0, np.nan, 3.0)))
    else:
        ppl.step(run, _data(ppl, (1.0, np.nan, 3.0)))
    for a, b in zip(ppl.posterior(run), before, strict=True):
        np.testing.assert_array_equal(a, b)
    ppl.step(run, good)
    after = ppl.posterior(run)
    assert all(np.isfinite(x).all() for x in after)
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


def test_a_first_loss_that_is_not_finite_is_an_error_of_step_numpyro():
    with load("numpyro").float64():
        ppl = NumPyro()

        def model(y):
            mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
            # Finite at the start, and far too wide a guess around it.
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)
            import numpyro

            numpyro.factor("wall", ppl.jax.numpy.where(ppl.jax.numpy.abs(mu) < 1e-3, 0.0, -np.inf))

        guide = ppl.ngvi.NaturalGaussianGuide(
            model, init_loc_fn=ppl.init_to_value(values={"mu": 0.0}), init_scale=10.0
        )
        svi = ppl.ngvi.SVI(model, guide, ppl.optimiser(), ppl.elbo(), rng_key=ppl.jax.random.key(0))
        with pytest.raises(ValueError, match="first loss.*init_scale"):
            svi.step(ppl.array(0.0))
        assert svi.state is None


def test_step_without_a_key_says_so_numpyro():
    with load("numpyro").float64():
        ppl = NumPyro()
        model = _conjugate(ppl)
        guide = ppl.ngvi.NaturalGaussianGuide(model)
        svi = ppl.ngvi.SVI(model, guide, ppl.optimiser(), ppl.elbo())
        with pytest.raises(ValueError, match="rng_key"):
            svi.step(_data(ppl))
        with pytest.raises(RuntimeError, match="first svi.step"):
            _ = svi.params


# -- changes between calls ------------------------------------------------------------


def test_a_latent_whose_size_changes_is_named_and_nothing_is_lost(ppl):
    def model(y):
        with ppl.plate("data", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=y)

    guide = ppl.ngvi.NaturalGaussianGuide(model)
    run = ppl.start(model, guide, ppl.optimiser(), _data(ppl))
    ppl.step(run, _data(ppl))
    before = ppl.posterior(run)
    with pytest.raises(ValueError, match=r"'effect'.*\(4,\).*\(3,\)"):
        ppl.step(run, _data(ppl, (1.0, 2.0, 3.0, 4.0)))
    for a, b in zip(ppl.posterior(run), before, strict=True):
        np.testing.assert_array_equal(a, b)
    ppl.step(run, _data(ppl))  # and the run goes on


def test_data_of_another_size_with_the_same_latents_are_welcome(ppl):
    model = _conjugate(ppl)
    guide = ppl.ngvi.NaturalGaussianGuide(model)
    run = ppl.start(model, guide, ppl.optimiser(), _data(ppl))
    assert np.isfinite(ppl.step(run, _data(ppl)))
    assert np.isfinite(ppl.step(run, _data(ppl, (1.0, 2.0))))


# -- the optimiser --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_an_optimiser_that_sees_no_natural_parameters_says_so(ppl, name):
    model = _conjugate(ppl)
    with pytest.raises(ValueError, match=f"{name} sees no natural parameters.*NaturalGaussian"):
        run = ppl.start(model, ppl.plain_guide(), ppl.optimiser(name), _data(ppl))
        ppl.step(run, _data(ppl))
