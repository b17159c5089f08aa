"""The metric of a place's Gaussians, and their steps, in three compiled programs.

They are compiled once for all fits with the same families, whatever the number of directions.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.families.direction import Families, dual
from ngvi.families.path import JointPath
from ngvi.inference import geometry
from ngvi.inference.engine import Direction, Place, Step
from ngvi.optim.trust_region import longest_within
from numpyro_ngvi.families.coordinates import families_in, replace_families
from numpyro_ngvi.optim.algebra import algebra
from numpyro_ngvi.tracing.compilation import blocks, compiled


class Geometry(geometry.Geometry):
    """The metric of the families of a place; see :class:`ngvi.inference.geometry.Geometry`.

    :param place: the parameters.
    :param pairs: of the quasi-Newton memory.
    """

    def __init__(self, place: Place, pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self._families = families_in(place)
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(self._families))
        restricted = any(family.leaves_out_correlations for family in self._families)
        super().__init__(place, size, pairs, is_restricted=restricted)

    def covectors(self, vectors: np.ndarray) -> np.ndarray:
        at_once = 2 * max(self.max_pairs, 1)  # so many have the pairs
        some = blocks(vectors, at_once)
        found = [np.asarray(_covectors(self._families, block)) for block in some]
        return np.concatenate(found)[: len(vectors)]

    def step(self, direction: Direction, rho: float, radius: float) -> Step | None:
        dtype = direction.vector.dtype.type
        moved, change, numbers = _advance(
            self._families, direction.vector, dtype(rho), dtype(radius)
        )
        change = np.asarray(change)
        length, backward, rho = np.asarray(numbers).tolist()
        with np.errstate(all="ignore"):
            slope = float(direction.covector @ change)
        if not (np.isfinite(slope) and length <= radius):
            return None
        place = replace_families(self.place, moved)
        return Step(place, change, slope, length, backward, rho)


def flat(families: Families) -> jax.Array:
    """All coordinates, one after another."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(families)])


def unflat(vector: jax.Array, like: Families) -> Families:
    """The inverse of :func:`flat`, for families like these."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = jnp.split(vector, ends)
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def covector(families: Families, direction: Families) -> jax.Array:
    """``F`` times a direction, whose products with others are their Fisher inner products."""
    return flat(dual(families, direction))


@partial(compiled, runs_few=True)
def _covectors(families: Families, vectors: jax.Array) -> jax.Array:
    return jax.vmap(lambda vector: covector(families, unflat(vector, families)))(vectors)


@partial(compiled, runs_few=True)
def _advance(
    families: Families, vector: jax.Array, rho: jax.Array, radius: jax.Array
) -> tuple[Families, jax.Array, jax.Array]:
    path = JointPath(families, unflat(vector, families))
    attempt, length, rho = longest_within(algebra, radius, path, rho)
    moved, backward = path.end(attempt), path.backward_kl(attempt)
    return moved, flat(moved) - flat(families), jnp.stack([length, backward, rho])
