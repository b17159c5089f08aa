"""Log likelihoods of single observations, by the plates around the observed sites.

An *example* is an element of the plates around an observed site. Observed sites with the same
plates share their examples: their log likelihoods are added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ngvi.networks.examples import Examples, aligned, check_not_enumerated, without_plate
from numpyro_ngvi.tracing import LogDensity
from numpyro_ngvi.tracing.log_density import Latents, site_log_probs


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


def one_by_one(density: LogDensity, params: dict[str, Any], count: int) -> tuple[Callable, list]:
    """Run the model on single examples: on their rows of its arguments, each in a batch of one.

    :param count: the number of examples; an array with as many rows has one for each.
    :return: the log likelihood of an example from latents, a key and its rows; and the rows of all.
    """
    leaves, structure = jax.tree.flatten((density.args, density.kwargs))
    at = [i for i, leaf in enumerate(leaves) if jnp.shape(leaf)[:1] == (count,)]

    def log_likelihood(latents: Latents, key: jax.Array, rows: list[jax.Array]) -> jax.Array:
        given = list(leaves)
        for index, row in zip(at, rows, strict=True):
            given[index] = row[None]
        one = copy.copy(density)
        one.args, one.kwargs = jax.tree.unflatten(structure, given)
        # In a plate of a fixed size the one example stands at all places.
        return examples(one, latents, params, key).log_likelihood.mean()

    return log_likelihood, [jnp.asarray(leaves[index]) for index in at]
