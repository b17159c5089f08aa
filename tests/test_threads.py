"""Runs of ``SVI`` in several threads: each is what it would be alone."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests import models
from tests.models import Y

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
        list(threads.map(work, arguments))


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
