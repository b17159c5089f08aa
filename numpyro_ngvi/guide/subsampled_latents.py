"""Latents inside a subsampled plate; see :mod:`ngvi.guide.subsampled_latents`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import UnpackTransform, biject_to
from numpyro.distributions.util import periodic_repeat

from ngvi.guide import subsampled_latents as shared
from ngvi.guide.subsampled_latents import first_bound
from ngvi.latents.subsampling import SubsampledLatent
from numpyro_ngvi.tracing.arguments import is_traced


def one_support(support: Constraint, axes: list[int], site: str) -> Constraint:
    """See :class:`ngvi.guide.subsampled_latents.Minibatch`."""
    if not axes:
        return support
    return jax.tree.map(lambda bound: first_bound(bound, axes, site), support)


class Minibatch(shared.Minibatch):
    """The elements that a minibatch of NumPyro's has."""

    ppl, dist, biject_to, enters_whole_plates = numpyro, dist, biject_to, False
    get_mask, one_support = staticmethod(numpyro.get_mask), staticmethod(one_support)

    @staticmethod
    def _indices_of(plate: Any) -> Any:
        is_plate = isinstance(plate, numpyro.plate)
        return plate._indices if is_plate else np.arange(plate.size)

    @staticmethod
    def _take(value: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
        return jnp.take(value, indices, axis=axis)

    @staticmethod
    def _counts(size: int, indices: jax.Array, each: float, like: jax.Array) -> jax.Array:
        return jnp.zeros(size, like.dtype).at[indices].add(each)


class InPlates(Minibatch):
    """Sites are in their plates also where these have all elements, as ``TraceEnum_ELBO`` wants."""

    enters_whole_plates = True


def full_locs(
    locs: dict[str, jax.Array], trace: dict[str, Any], local: list[SubsampledLatent]
) -> dict[str, jax.Array]:
    """Return starting points of all elements: those of the first minibatch, repeated.

    :param locs: unconstrained, by site.
    :param local: the sites in subsampled plates.
    """
    locs = dict(locs)
    for site, _, axis, _, full_size in local:
        value = locs[site]
        # Constraints change the event dimensions only, which are on the right.
        axis = axis + jnp.ndim(trace[site]["value"]) - jnp.ndim(value)
        locs[site] = periodic_repeat(value, full_size, axis)
    return locs


def unpacking(locs: dict[str, jax.Array]) -> tuple[jax.Array, UnpackTransform]:
    """Return the latent vector of these values, and the way back."""
    shapes = {name: jnp.shape(value) for name, value in locs.items()}
    return _packed(locs, shapes), UnpackTransform(
        partial(_unpacked, shapes=shapes), partial(_packed, shapes=shapes)
    )


def _packed(values: dict[str, jax.Array], shapes: dict[str, tuple]) -> jax.Array:
    parts = [values[name].reshape(-1) for name in shapes]
    if is_traced(parts):
        return jnp.concatenate(parts)
    return jax.device_put(np.concatenate(parts))  # without a program


def _unpacked(latent: jax.Array, shapes: dict[str, tuple]) -> dict[str, jax.Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
    pairs = zip(shapes.items(), jnp.split(latent, ends), strict=True)
    return {name: piece.reshape(shape) for (name, shape), piece in pairs}
