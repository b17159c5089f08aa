"""The three rooms of an engine, for a NumPyro model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import numpyro
import optax

from ngvi.inference.engine import Engine
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import Keyed
from numpyro_ngvi.inference.evaluator import Evaluator
from numpyro_ngvi.inference.geometry import Geometry
from numpyro_ngvi.inference.importance import check_has_gaussian
from numpyro_ngvi.inference.parameters import Parameters, Place


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
    :param curvature: one of :data:`ngvi.estimators.choice.CURVATURES_OF_FIT`.
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
) -> tuple[Place, Callable[[Place], Place]]:
    """The first parameters of model and guide, and what constrains parameters."""
    is_set_up = isinstance(guide, NaturalGaussianGuide) and guide.model_as_given is model
    if is_set_up:
        with Keyed(key=rng_key):
            initial = guide.set_up(*args, **kwargs)
        sites = guide.prototype_trace.values()
        if not any(site["type"] in ("param", "mutable") for site in sites):
            return dict(initial), dict  # without a run, whose operations are compiled one by one
    # The loss is not called; this one takes discrete latents, of which others warn.
    svi = numpyro.infer.SVI(model, guide, optax.sgd(0.0), numpyro.infer.TraceEnum_ELBO())
    # It runs the model at a draw of a guide that may be far broader than the start that was found
    # valid, where a distribution may be none: what is asked for are the parameters alone.
    with numpyro.validation_enabled(False) if is_set_up else nullcontext():
        state = svi.init(rng_key, *args, **kwargs)
    return svi.optim.get_params(state.optim_state), svi.constrain_fn
