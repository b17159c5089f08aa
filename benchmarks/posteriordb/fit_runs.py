"""Runs of `fit`, with nothing but the model, its arguments and a seed, of one Gaussian."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.results import is_certified, num_gradients

from .runs import Run
from .scores import Scorer
from .target import Target

METHOD = "fit"
#: What the best bounds known are of: Gaussians over all latents as they are.
OPTIONS: dict[str, Any] = {"progress_bar": False, "reparametrize": False, "allow_prior": True}


def fit_numpyro(target: Target, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """The result; the mean and the covariance in the coordinates of `Target`."""
    import jax

    from numpyro_ngvi import fit

    key = jax.random.key(seed)
    result = fit(target.model, *target.args, rng_key=key, **OPTIONS)
    posterior = result.posterior
    return result, np.asarray(posterior.mean), np.asarray(posterior.covariance_matrix)


def fit_pyro(target: Target, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """The result; the mean and the covariance in the coordinates of `Target`."""
    import pyro

    from pyro_ngvi import fit

    from . import pyro_models

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    model, args = pyro_models.POSTERIORS[target.name].build(target.data)
    result = fit(model, *args, **OPTIONS)
    order = target.order(site.name for site in result.guide.sites)
    mean = result.posterior.mean.numpy(force=True)[order]
    cov = result.posterior.covariance_matrix.numpy(force=True)[np.ix_(order, order)]
    return result, mean, cov


FITS = {"numpyro": fit_numpyro, "pyro": fit_pyro}


def fit_run(scorer: Scorer, ppl: str, seed: int) -> Run:
    """One run and what became of it. Its seconds include compilation."""
    target = scorer.target
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged is in the table
        result, mean, cov = FITS[ppl](target, seed)
    return Run(
        ppl=ppl,
        posterior=target.name,
        method=METHOD,
        seed=seed,
        evaluations=num_gradients(result),
        seconds=result.seconds,
        mean=mean.tolist(),
        cov=cov.tolist(),
        score=scorer(mean, cov),
        converged=is_certified(result),
        reason=result.reason,
    )
