"""Latents inside a subsampled plate; see :mod:`ngvi.guide.visits`."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import UnpackTransform, biject_to
from numpyro.distributions.util import periodic_repeat, sum_rightmost

from ngvi.guide import visits
from ngvi.guide.visits import refuse_bounds
from ngvi.latents.subsampling import SubsampledLatent


def one_support(support: Constraint, axes: list[int], site: str) -> Constraint:
    """See :meth:`ngvi.guide.visits.Visits.one_support`."""

    def narrow(bound: Any) -> Any:
        for axis in axes:
            if jnp.ndim(bound) < -axis or jnp.shape(bound)[axis] == 1:
                continue
            bound = np.asarray(bound)
            first = bound.take([0], axis)
            if (bound != first).any():
                refuse_bounds(site)
            bound = first
        return bound

    return jax.tree.map(narrow, support)


class Visits(visits.Visits):
    """Of NumPyro."""

    ppl, delta = numpyro, dist.Delta
    biject_to, sum_rightmost = staticmethod(biject_to), staticmethod(sum_rightmost)
    enters_whole_plates = False

    def _take(self, value: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
        return jnp.take(value, indices, axis=axis)

    def _counts(self, size: int, visited: jax.Array, each: float, like: jax.Array) -> jax.Array:
        return jnp.zeros(size, like.dtype).at[visited].add(each)

    def _is_masked(self) -> bool:
        return numpyro.get_mask() is False

    one_support = staticmethod(one_support)


def full_locs(
    locs: dict[str, jax.Array], trace: dict[str, Any], local: list[SubsampledLatent]
) -> dict[str, jax.Array]:
    """Starting points of all elements: those of the first minibatch, again and again.

    :param locs: unconstrained, by site.
    :param trace: of the model.
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
    """The latent vector of these values, and the way back, as ``AutoContinuous`` has them."""
    shapes = {name: jnp.shape(value) for name, value in locs.items()}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]

    def unpack(latent: jax.Array) -> dict[str, jax.Array]:
        pieces = jnp.split(latent, ends, -1)
        batch = jnp.shape(latent)[:-1]
        return {
            name: piece.reshape(batch + shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    def pack(values: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([values[name].reshape(-1) for name in shapes])

    return pack(locs), UnpackTransform(unpack, pack)
