"""Bad input: the error names the site or argument, and nothing good is lost."""

from __future__ import annotations

import contextlib
import re
import warnings

import numpy as np
import pytest

from tests import models
from tests.ppl import load


def _data(ppl, values=(1.0, 2.0, 3.0)):
    return ppl.array(values)


def _svi(ppl, model, guide, *args, optimiser="Snngm"):
    optimiser = ppl.optimiser(optimiser, step_size=0.01)
    return ppl.svi(model, guide, optimiser, ppl.elbo(), args)


# -- the model ------------------------------------------------------------------------


def test_a_failed_setup_leaves_the_guide_usable_with_good_arguments(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Exponential(ppl.np.exp(mu)), obs=y)

    guide = ppl.guide(model)
    with pytest.raises(ValueError, match="'y'"):
        ppl.call(guide, _data(ppl, (np.nan, 1.0, 2.0)))
    ppl.call(guide, _data(ppl))
    assert "d=1" in repr(guide)


@pytest.mark.fast_in_numpyro("BLR")
@pytest.mark.parametrize("optimiser", ["BLR", "Snngm"])
def test_an_empty_minibatch_is_refused_and_nothing_is_lost(ppl, optimiser):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", 30, subsample_size=len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)

    y = _data(ppl)
    svi = _svi(ppl, model, ppl.guide(model), y, optimiser=optimiser)
    svi.step()
    before = svi.gaussian
    with pytest.raises((ValueError, IndexError, ZeroDivisionError)):
        svi.step(ppl.array([]))
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step(y)


# -- values ---------------------------------------------------------------------------


@pytest.mark.fast_in_numpyro
def test_a_fit_starts_at_the_priors_where_zero_and_about_it_are_impossible(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(30.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(ppl.np.log(x - 25.0), 0.2), obs=ppl.array(1.6))

    result = ppl.fit(model, family="diagonal", max_steps=20)
    assert result.converged
    assert 29.0 < float(result.posterior.mean[0]) < 31.0


@pytest.mark.fast_in_numpyro("Snngm")
@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.filterwarnings("ignore:A step of")
def test_a_bad_minibatch_leaves_the_last_good_parameters(ppl, name):
    model, good = models.location(ppl), _data(ppl)
    guide = ppl.guide(model)
    svi = _svi(ppl, model, guide, good, optimiser=name)
    svi.step()
    before = svi.gaussian
    bad = _data(ppl, (1.0, np.nan, 3.0))
    with contextlib.nullcontext() if ppl.is_numpyro else ppl.lib.validation_enabled(False):
        svi.step(bad)
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step()
    assert all(np.isfinite(x).all() for x in svi.gaussian)
    assert any((a != b).any() for a, b in zip(svi.gaussian, before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BLR", "IVON", "Snngm"])
def test_bad_minibatches_inside_a_scan_in_float32_are_steps_not_taken_numpyro(name):
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.precision("float32"):
        model, y = models.location(ppl), _data(ppl)
        options = {"curvature": "stein"} if name == "IVON" else {}
        loss = ppl.elbo("Trace_ELBO" if name == "Snngm" else "NaturalELBO", **options)
        guide = ppl.guide(model, "diagonal")
        svi = ppl.package.SVI(model, guide, ppl.optimiser(name), loss)
        state = svi.init(jax.random.key(0), y)
        run = jax.jit(lambda state, batches: jax.lax.scan(svi.update, state, batches))
        good = ppl.np.tile(y, (6, 1))
        bad = good.at[2:4, 1].set(ppl.np.array([np.nan, np.inf]))
        for batches, skipped in ((good, 0), (bad, 2)):
            after, losses = run(state, batches)
            assert np.isfinite(losses).sum() == 6 - skipped
            counts = [s for s in _states(after) if hasattr(s, "num_skipped")]
            assert [int(s.num_skipped) for s in counts] == [skipped]
            leaves = jax.tree.leaves(svi.get_params(after))
            assert {str(leaf.dtype) for leaf in leaves} == {"float32"}
            assert all(np.isfinite(leaf).all() for leaf in leaves)


def _states(tree):
    """The named tuples of an optimiser's state."""
    if isinstance(tree, tuple):
        yield tree
        for part in tree:
            yield from _states(part)


def test_a_first_loss_that_is_not_finite_is_an_error_of_step_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():

        def model(y):
            mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
            # Finite at the start, and far too wide a guess around it.
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)
            ppl.factor("wall", ppl.np.where(ppl.np.abs(mu) < 1e-3, 0.0, -np.inf))

        guide = ppl.guide(model, init_loc_fn=ppl.start_at(mu=0.0), init_scale=10.0)
        key = jax.random.key(0)
        svi = ppl.package.SVI(model, guide, ppl.optimiser(), ppl.elbo(), rng_key=key)
        with pytest.raises(ValueError, match="first loss.*init_scale"):
            svi.step(ppl.array(0.0))
        assert svi.state is None


def test_a_step_that_is_skipped_names_the_step_size_pyro():
    ppl = load("pyro")
    model, y = models.location(ppl), _data(ppl)
    optim, loss = ppl.package.BLR({"lr": 0.1}), ppl.elbo("Trace_ELBO")
    svi = ppl.package.SVI(model, ppl.guide(model), optim, loss)
    svi.step(y)
    with pytest.warns(UserWarning, match=r"was skipped.*step size that is given.*BLR\(\)"):
        svi.step(y + np.inf)


def test_a_step_that_is_skipped_is_warned_of_once_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():
        model, y = models.location(ppl), _data(ppl)
        guide, loss = ppl.guide(model), ppl.elbo("Trace_ELBO")
        svi = ppl.package.SVI(model, guide, ppl.optimiser("Snngm"), loss, rng_key=jax.random.key(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            svi.step(y)
            float(svi.step(y * np.nan))
        with pytest.warns(UserWarning, match="A step was skipped.*not finite.*BLR"):
            svi.step(y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            float(svi.step(y))
            svi.step(y)


# -- calls of a result ----------------------------------------------------------------


ERRORS = TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, RuntimeError


def line(ppl):
    def model(x, y=None):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.np.zeros(2), 2.0).to_event(1))
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Normal(x @ slope, 1.0), obs=y)

    return model


def test_calls_of_a_result_name_the_argument(ppl):
    x, y = ppl.array(np.random.default_rng(0).normal(size=(6, 2))), ppl.array(np.arange(6.0))
    result = ppl.fit(line(ppl), x, y, effort="quick")
    for call, words in (
        (lambda: result.summary(0.95), "var_names= has 0.95; the latent sites are 'slope'"),
        (lambda: result.to_arviz("slope"), "num_samples must be an integer"),
        (lambda: result.to_arviz(prior="yes"), "prior must be True or False"),
        (lambda: result.predictive(x[:, :1]), r"argument 0 is \w+ of shape \(6, 1\), and was"),
        (lambda: result.predictive(x, samples=10), "Is num_samples= meant"),
        (lambda: result.update(x[:, :1], y), r"of shape \(6, 1\), and was \w+ of shape \(6, 2"),
        (lambda: result.update(x, y, tolerance=0.1), "Options of update are none"),
        (lambda: result.without(np.ones(6, bool)), r"got an array of shape \(6,\); for a mask"),
        (lambda: result.without(range(6)), "leaves no row"),
        (lambda: result.sample_groups(5), r"sample_groups\(num_samples=5\)"),
        (lambda: result.nuts(cores=4), "a pass evaluates all chains"),
        (lambda: result.rhat, "write result.diagnostics"),
    ):
        with pytest.raises(ERRORS) as told:
            call()
        assert re.search(words, " ".join([str(told.value), *getattr(told.value, "__notes__", ())]))


def test_what_fit_is_given_in_the_place_of_a_model_or_guide_is_named(ppl, tmp_path):
    x, y = ppl.array(np.ones((6, 2))), ppl.array(np.arange(6.0))
    model, location = line(ppl), models.location(ppl)
    density = ppl.package.fit_density
    for call, words in (
        (lambda: ppl.fit(ppl.guide(model), x, y), "model is a guide"),
        (lambda: ppl.fit(model, x, y, guide=ppl.guide(location)), "made for the model "),
        (lambda: ppl.fit(model, x[:0], y[:0]), "a plate without elements.*at plate 'rows'"),
        (lambda: density(ppl.dist.Normal(0.0, 1.0), 1), "log_density must be a function such as"),
        (lambda: density(lambda v: v, 1, y, effort="quick"), "too many positional"),
    ):
        with pytest.raises(ERRORS) as told:
            call()
        assert re.search(words, " ".join([str(told.value), *getattr(told.value, "__notes__", ())]))


# -- changes between calls ------------------------------------------------------------


def test_a_latent_whose_size_changes_is_named_and_nothing_is_lost(ppl):
    def model(y):
        with ppl.plate("data", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=y)

    guide = ppl.guide(model)
    svi = _svi(ppl, model, guide, _data(ppl))
    svi.step()
    before = svi.gaussian
    with pytest.raises(ValueError, match=r"'effect'.*\(4,\).*\(3,\)"):
        svi.step(_data(ppl, (1.0, 2.0, 3.0, 4.0)))
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step()  # and the run goes on
