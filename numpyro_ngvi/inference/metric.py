"""The metric of a state's Gaussians, and their steps, in three compiled programs.

They are compiled once for all fits with the same families, whatever the number of directions.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ngvi.families.direction import Families, dual
from ngvi.families.path import JointPath
from ngvi.families.steps import leaves_out_correlations
from ngvi.inference import metric
from ngvi.inference.estimate import Pairs, State
from ngvi.optim.trust_region import longest_within
from numpyro_ngvi.families.coordinates import families_in, replace_families
from numpyro_ngvi.optim.algebra import algebra
from numpyro_ngvi.tracing.compilation import blocks, compiled

#: Numbers of a direction from which on its product with the metric takes longer than a call.
DEAR = 2**16


class Metric(metric.Metric):
    """The metric of the families of a state; see :class:`ngvi.inference.metric.Metric`."""

    def __init__(self, state: State, pairs: Pairs) -> None:
        self._families = families_in(state)
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(self._families))
        restricted = any(map(leaves_out_correlations, self._families))
        super().__init__(state, size, pairs, leaves_out_correlations=restricted)

    def gradients(self, naturals: np.ndarray) -> np.ndarray:
        # The pairs have so many; where a product is dear none is to fill a block up.
        at_once = 2 * max(self.max_pairs, 1) if self.size < DEAR else 1
        some = blocks(naturals, at_once)
        found = [np.asarray(_gradients(self._families, block)) for block in some]
        return np.concatenate(found)[: len(naturals)]

    def _advance(
        self, natural: np.ndarray, step_size: float, radius: float
    ) -> tuple[State, np.ndarray, list[float]]:
        limits = map(natural.dtype.type, (step_size, radius))
        moved, change, numbers = _advance(self._families, natural, *limits)
        state = replace_families(self.state, moved)
        return state, np.asarray(change), np.asarray(numbers).tolist()


def flat(families: Families) -> jax.Array:
    """Return all coordinates as one vector."""
    return ravel_pytree(families)[0]


def gradient_of(families: Families, direction: Families) -> jax.Array:
    """``F`` times a direction, whose products with others are their Fisher inner products."""
    return flat(dual(families, direction))


@partial(compiled, runs_few=True)
def _gradients(families: Families, vectors: jax.Array) -> jax.Array:
    unravel = ravel_pytree(families)[1]
    return jax.vmap(lambda vector: gradient_of(families, unravel(vector)))(vectors)


@partial(compiled, runs_few=True)
def _advance(
    families: Families, vector: jax.Array, rho: jax.Array, radius: jax.Array
) -> tuple[Families, jax.Array, jax.Array]:
    path = JointPath(families, ravel_pytree(families)[1](vector))
    attempt, length, rho = longest_within(algebra, radius, path, rho)
    moved, backward = path.end(attempt), path.backward_kl(attempt)
    return moved, flat(moved) - flat(families), jnp.stack([length, backward, rho])
