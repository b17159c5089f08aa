"""Results at posteriors of the tests' choice, in both packages, without a fit."""

from __future__ import annotations

import functools

import numpy as np

from ngvi.inference.problem import Cost
from ngvi.inference.trace import Trace
from tests import models
from tests.ppl import load

DIM = 3


def conjugate(ppl):
    """Linear regression with known noise, and its arguments."""
    return models.regression(ppl), tuple(map(ppl.array, models.regression_data()))


def result(ppl, model, args=(), kwargs=None, *, guide=None, gaussian=None, at=None, **options):
    """A result whose guide is where it starts, or at the coordinates ``at``.

    :param gaussian: which part of the guide that is.
    """
    guide = ppl.guide(model, "full") if guide is None else guide
    kwargs = kwargs or {}
    params = ppl.set_up(guide, *args, **kwargs)
    if at is not None:
        params |= _moved(ppl, gaussian or guide, at)
    if ppl.is_numpyro:
        import jax

        options.setdefault("_rng_key", jax.random.key(3))
    defaults = {
        "trace": trace(),
        "verdict": "certified",
        "reason": "the bound is within 0.02 nats of its optimum",
        "cost": Cost(2000, 600, 3000),
        "seconds": 1.25,
        "_draws": "gaussian",
    }
    return ppl.module("inference").FitResult(
        model=model,
        guide=guide,
        args=args,
        kwargs=kwargs,
        params=params,
        **{**defaults, **options},
    )


def _moved(ppl, guide, at):
    """New parameters of a ``NaturalGaussianGuide`` with a dense covariance."""
    loc, tril = (ppl.array(value) for value in at)
    if ppl.is_numpyro:
        return {guide._parameter_name: ppl.families.CovarianceCholesky(loc, tril)}
    guide.posterior.loc, guide.posterior.scale_tril = loc, tril
    return {
        f"{guide.posterior._pyro_name}.{name}": value
        for name, value in (("loc", loc), ("scale_tril", tril))
    }


def conjugate_result(ppl, shift=0.0, factor=1.0, **options):
    """At the exact posterior, or away from it in units of its standard deviations."""
    model, args = conjugate(ppl)
    mean, covariance, _ = models.exact_posterior()
    tril = np.linalg.cholesky(covariance)
    at = (mean + shift * np.sqrt(np.diag(covariance)), factor * tril)
    return result(ppl, model, args, at=at, **options)


def log_evidence():
    return models.exact_posterior()[2]


def trace():
    steps = np.arange(20)
    return Trace(
        losses=list(30.0 + 50.0 * 0.5**steps),
        loss_errors=[0.1] * 20,
        step_sizes=list(1.0 / (1 + steps)),
        distances=list(50.0 * 0.5**steps),
        num_draws=[10] * 20,
    )


@functools.cache
def _shared(ppl_name, shift, factor):
    return conjugate_result(load(ppl_name), shift, factor)


def shared_result(ppl, shift=0.0, factor=1.0):
    """:func:`conjugate_result`, made once for all tests, which leave it as it is."""
    return _shared(ppl.name, shift, factor)


def by_row(found):
    """What leave-one-out has of each row, by its name in ArviZ 0 or 1."""
    return found.loo_i if hasattr(found, "loo_i") else found.elpd_i
