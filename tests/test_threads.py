"""Several threads: runs of ``SVI``, ``fit`` and all that a result can, as they would be alone."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests import models
from tests.inference import results
from tests.models import Y
from tests.ppl import SLOW_IN_NUMPYRO

SHIFTS, STEPS = (0.0, 1.0, 2.0), 30


@contextlib.contextmanager
def _settled(ppl):
    """Float64 in all threads; in Pyro guides keep their parameters themselves."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ppl.float64())
        if not ppl.is_numpyro:
            stack.enter_context(ppl.lib.settings.context(module_local_params=True))
        yield


def _together(work, arguments):
    """``work`` of each in a thread of its own; raises what a thread raised."""
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(work, arguments))


def _svi(ppl, **options):
    model = models.location(ppl)
    return ppl.package.SVI(
        model, ppl.guide(model, "full"), ppl.optimiser("BLR"), ppl.elbo("NaturalELBO"), **options
    )


@pytest.mark.parametrize("style", ["step", "update"])
def test_steps_of_several_threads_do_not_get_into_each_others_way(ppl, style):
    means, begin = {}, threading.Barrier(len(SHIFTS))

    def work(shift):
        begin.wait()
        with ppl.float64():  # JAX's precision is a thread's
            y = ppl.array(Y + shift)
            if not ppl.is_numpyro:
                svi = _svi(ppl)
                for _ in range(STEPS):
                    svi.step(y)
                    if style == "update":
                        svi.evaluate_loss(y)
                mean = svi.guide.get_posterior().mean
            elif style == "step":
                import jax

                svi = _svi(ppl, rng_key=jax.random.key(0))
                for _ in range(STEPS):
                    svi.step(y)
                mean = svi.guide.get_posterior(svi.params).mean
            else:
                import jax

                svi = _svi(ppl)
                state, update = svi.init(jax.random.key(0), y), jax.jit(svi.update)
                for _ in range(STEPS):
                    state, _ = update(state, y)
                mean = svi.guide.get_posterior(svi.get_params(state)).mean
            means[shift] = float(ppl.numpy(mean)[0])

    with _settled(ppl):
        _together(work, SHIFTS)
    exact = [models.LOCATION_VARIANCE * (Y + shift).sum() for shift in SHIFTS]
    np.testing.assert_allclose([means[shift] for shift in SHIFTS], exact, atol=0.02)


# -- results --------------------------------------------------------------------------

NUM_THREADS = 4
FEW = {"num_samples": 4, "num_warmup": 4, "num_chains": 2, "progress_bar": False}


def _fitted(ppl, shift=0.0):
    options = {"effort": "quick", "draws": "gaussian"}
    return ppl.fit(models.location(ppl), ppl.array(Y + shift), **options)


def _saved(ppl, result, path):
    result.save(path)
    return type(result).load(path, result.model).posterior.mean


def _density(ppl, result, path):
    z, density = ppl.array([0.5]), result.whitened_density()
    return density.log_density(z) + density.constrain(z)["mu"]


def _groups(ppl):
    """A result with locals by their modes."""

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, 0.5))
            ppl.sample("y", ppl.dist.Normal(effect, 0.5), obs=y)

    guide, y = ppl.package.ReparametrizedGaussianGuide(model), ppl.array(Y)
    return results.result(ppl, model, (y,), guide=guide)


def _of_guide(ppl, result, path):
    """Draws of a guide, which runs the model, and medians."""
    guide, params = result.groups.guide, result.groups.params
    if not ppl.is_numpyro:
        return guide(ppl.array(Y))["effect"].shape[0] + guide.median()["effect"]
    import jax

    draws = guide.sample_posterior(jax.random.key(0), params)
    return draws["effect"].shape[0] + guide.median(params)["effect"]


#: Each method, and what of it two threads can compare: numbers, or shapes of draws.
METHODS = {
    "influence": lambda ppl, result, path: result.influence().divergence,
    "load": _saved,
    "loo": lambda ppl, result, path: results.by_row(result.loo(progress_bar=False)).values,
    "nuts": lambda ppl, result, path: result.nuts(**FEW).to_arviz().posterior["mu"].shape,
    "plot": lambda ppl, result, path: len(result.plot().axes),
    "posterior_of": lambda ppl, result, path: result.posterior_of(result.optima[0]).mean,
    "predictive": lambda ppl, result, path: result.predictive(num_samples=5)["y"].shape,
    "sample": lambda ppl, result, path: result.sample(5)["mu"].shape,
    "sample_groups": lambda ppl, result, path: (
        result.groups.sample_groups(ppl.array(Y), num_samples=5)["effect"].shape
    ),
    "save": _saved,
    "sites": lambda ppl, result, path: result.sites().gradient,
    "summary": lambda ppl, result, path: result.summary().shape,
    "to_arviz": lambda ppl, result, path: result.to_arviz(5).posterior["mu"].shape,
    "update": lambda ppl, result, path: result.update(ppl.array(Y + 1.0)).posterior.mean,
    "whitened_density": _density,
    "with_draws": lambda ppl, result, path: result.with_draws("corrected").diagnostics.pareto_k < 1,
    "without": lambda ppl, result, path: result.without([0]).posterior.mean,
}
OTHERS = {
    "fit": lambda ppl, result, path: _fitted(ppl).posterior.mean,
    "guide": _of_guide,
    "print": lambda ppl, result, path: len(str(result).splitlines()),
}


@SLOW_IN_NUMPYRO
@pytest.mark.filterwarnings("ignore::ngvi.UsageWarning")  # of few draws, and of rows once more
def test_all_of_a_result_and_fits_at_once(ppl, pyplot, tmp_path):
    public = {name for name in dir(ppl.package.FitResult) if not name.startswith("_")}
    assert {name for name in public if callable(getattr(ppl.package.FitResult, name))} == {*METHODS}
    calls, begin = list({**METHODS, **OTHERS}.items()), threading.Barrier(NUM_THREADS)

    def everything(result, number):
        """Call all, in another order in each thread."""
        first = number * len(calls) // NUM_THREADS
        path, found = tmp_path / f"{number}.npz", {}
        for name, call in calls[first:] + calls[:first]:
            value = call(ppl, result, path)
            value = value.detach() if hasattr(value, "detach") else value
            found[name] = np.asarray(value, float)
        for name in public - {*METHODS}:
            getattr(result, name)
        return found

    def work(number):
        begin.wait()
        with ppl.float64():  # JAX's precision is a thread's
            return everything(shared[number % 2], number)

    with _settled(ppl):
        shared = [_fitted(ppl) for _ in range(3)]  # two threads ask the same result
        groups = _groups(ppl)
        for result in shared:
            result.groups = groups
        alone = everything(shared[2], 0)
        together = _together(work, range(NUM_THREADS))
    for found in together:
        for name, value in alone.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
