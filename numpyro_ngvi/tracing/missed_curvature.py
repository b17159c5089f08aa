"""Whether a model's Hessian is its curvature (:mod:`ngvi.estimators.missed_curvature`), and if not,
of which sites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.missed_curvature import Along, half_segment, missed
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.log_density import Latents, LogDensity
from numpyro_ngvi.tracing.per_example import site_log_probs


def sites_with_missed_curvature(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict,
    here: dict[str, Family],
    params: dict[str, Any],
) -> list[str] | None:
    """Which sites have a curvature that is not their Hessian's; None if the log density has none.

    Compiles a gradient and a product with the Hessian, and runs them seven times; where they
    disagree, once more 82 times, and for each site. In the trace of another program it needs
    arguments that are no part of that. Of arrays that several processes share nothing is found.

    :param here: the guide's Gaussians by the site that draws from them.
    :param params: all parameters of model and guide, or some, where they can find the others.
    """
    arguments = Arguments(args, kwargs)
    if not all(getattr(array, "is_fully_addressable", True) for array in arguments.arrays):
        return None

    def density_of(arrays: list) -> LogDensity:
        return LogDensity(model, guide, *arguments.rebuilt(arrays), key)

    def whole(at: Latents, params: dict[str, Any], arrays: list) -> dict[str, jax.Array]:
        return {"": density_of(arrays)(at, params, key)}

    def by_site(at: Latents, params: dict[str, Any], arrays: list) -> dict[str, jax.Array]:
        log_probs = site_log_probs(density_of(arrays), at, params, key)[0]
        return {name: jnp.sum(value) for name, value in log_probs.items()}

    with jax.ensure_compile_time_eval():
        key = random.key(0)
        centre = {site: family.mean for site, family in here.items()}
        step = {site: _step(family) for site, family in here.items()}
        if not _missed(whole, centre, step, params, arguments):
            return None
        if density_of(arguments.arrays).is_enumerated:  # there is no log density of a site
            return []
        return _missed(by_site, centre, step, params, arguments)


def _step(family: Family) -> jax.Array:
    whitened = jnp.asarray(half_segment(family.dim), family.loc.dtype)
    return family.sample(whitened) - family.mean


def _missed(
    functions: Callable[[Latents, dict[str, Any], list], dict[str, jax.Array]],
    centre: Latents,
    step: Latents,
    params: dict[str, Any],
    arguments: Arguments,
) -> list[str]:
    """Which of the functions change other than their Hessians say."""

    def run(t: jax.Array, centre: Latents, step: Latents, params: Any, arrays: list) -> Any:
        def function(latents: Latents) -> dict[str, jax.Array]:
            return functions(latents, params, arrays)

        here = jax.tree.map(lambda theta, v: theta + t.astype(theta.dtype) * v, centre, step)
        gradients, products = jax.jvp(jax.jacrev(function), (here,), (step,))
        values = function(here)
        return {name: (values[name], gradients[name], products[name]) for name in values}

    program = compiled(run, runs_once=True)

    def at(node: np.floating) -> Any:
        given = np.asarray(node), centre, step, params
        try:
            return program(*given, arguments.arrays)
        except (TypeError, ValueError, IndexError):
            if not arguments.arrays:
                raise
            arguments.hold_constant()  # the model does what cannot be traced
            return program(*given, arguments.arrays)

    def at_nodes(nodes: np.ndarray, names: set[str] | None) -> dict[str, Along]:
        # One after another: a loop in a program fails while JAX 0.7 traces another one.
        found = jax.tree.map(lambda *parts: np.stack(parts), *map(at, nodes))
        return {
            name: (_joined(gradients), _joined(products))
            for name, (values, gradients, products) in found.items()
            if (names is None or name in names) and np.isfinite(values).all()
        }

    whole = _joined(step)
    return missed(at_nodes, whole, float(jnp.finfo(jax.tree.leaves(step)[0].dtype).eps))


def _joined(by_site: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(part, float) for part in by_site.values()], -1)
