"""Log likelihoods of single observations, by the plates around the observed sites.

An *example* is an element of the plates around an observed site. Observed sites with the same
plates share their examples: their log likelihoods are added.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro import handlers
from numpyro.infer.util import compute_log_probs

from ngvi.estimators.points import Examples, aligned, check_not_enumerated, without_plate
from numpyro_ngvi.tracing.log_density import Latents, LogDensity


def site_log_probs(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, Any], jax.Array]:
    """Log densities of the model's sites, elementwise and scaled.

    :return: log densities by site, the model's trace, and the log density of the guide's own
        sites, to be subtracted.
    """
    guide = density.conditioned_guide(latents, guide_key)
    of_guide, guide_trace = compute_log_probs(guide, density.args, density.kwargs, params)
    # The stock ELBOs split their key so: the minibatch is that of the bound's value.
    run_key, _ = random.split(density.model_key)
    model = handlers.replay(handlers.seed(density.model, run_key), guide_trace)
    of_model, model_trace = compute_log_probs(
        model, density.args, density.kwargs, params, sum_log_prob=False
    )
    return of_model, model_trace, sum(of_guide.values())


def examples(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> Examples:
    """Split the log density of :class:`LogDensity` by examples.

    The arguments are those of calling ``density``.

    :raises ValueError: if an observed site is in no plate, or if there are no observed sites, or
        if the model has enumerated latents.
    """
    check_not_enumerated(density.is_enumerated)
    log_probs, trace, rest = site_log_probs(density, latents, params, guide_key)
    rest = -rest
    groups: dict[tuple, list[tuple[jax.Array, Any]]] = {}
    for name, log_prob in log_probs.items():
        site = trace[name]
        if not site["is_observed"]:
            rest = rest + jnp.sum(log_prob)
            continue
        frames = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
        if not frames:
            raise ValueError(without_plate(name, "numpyro"))
        scale = jnp.asarray(1.0 if site["scale"] is None else site["scale"], log_prob.dtype)
        axes = tuple(log_prob.ndim + frame.dim for frame in frames)
        others = tuple(axis for axis in range(log_prob.ndim) if axis not in axes)
        scale = jnp.broadcast_to(scale, log_prob.shape).max(others, initial=0.0)
        per_example = (jnp.sum(log_prob, others) / scale).reshape(-1)
        key = tuple((frame.name, frame.size) for frame in frames)
        groups.setdefault(key, []).append((per_example, scale.reshape(-1)))
    log_likelihoods, scales = map(jnp.concatenate, aligned(groups.values()))
    return Examples(log_likelihoods, scales, rest)
