"""The three rooms of an engine, for a NumPyro model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpyro
import optax
from numpyro import handlers

from ngvi.fit.engine import Engine
from numpyro_ngvi.fit.evaluator import Evaluator
from numpyro_ngvi.fit.geometry import Geometry
from numpyro_ngvi.fit.importance import check_has_gaussian
from numpyro_ngvi.fit.parameters import Parameters
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import Keyed


def make_engine(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    rng_key: jax.Array,
    curvature: str = "auto",
) -> Engine:
    """Set up guide and parameters.

    :param model: a NumPyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param rng_key: for the initial parameters.
    :param curvature: one of :data:`ngvi.curvature.CURVATURES_OF_FIT`.
    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    initial, constrain = _initial(model, guide, args, kwargs, rng_key)
    check_has_gaussian(guide, initial)
    parameters = Parameters(guide, initial, constrain)
    evaluator = Evaluator(model, guide, args, kwargs, parameters, curvature)
    return Engine(evaluator, parameters, Geometry)


def _initial(
    model: Callable, guide: Callable, args: tuple, kwargs: dict[str, Any], rng_key: jax.Array
) -> tuple[dict[str, Any], Callable]:
    """All parameters at first, unconstrained, and what constrains them."""
    if isinstance(guide, NaturalGaussianGuide):
        # Its set-up tells whether the model has parameters: where it has none, nothing is left to
        # run, operation by operation, each of which would be compiled.
        if guide.prototype_trace is None:
            with handlers.block(), Keyed(key=rng_key):
                guide._setup_prototype(*args, **kwargs)
        kinds = {site["type"] for site in guide.prototype_trace.values()}
        if not kinds & {"param", "mutable"}:
            return {guide._parameter_name: guide._initial_posterior}, lambda params: params
    svi = numpyro.infer.SVI(model, guide, optax.sgd(0.0), numpyro.infer.Trace_ELBO())
    state = svi.init(rng_key, *args, **kwargs)
    return svi.optim.get_params(state.optim_state), svi.constrain_fn
