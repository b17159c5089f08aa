"""Standard normal draws: independent, in antithetic pairs, or quasi-random."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from scipy.stats import qmc

#: Sobol's sequence has direction numbers up to this dimension.
MAX_SOBOL_DIM = 21201

#: Digits of its points.
SOBOL_BITS = 30


def standard_normal(
    key: jax.Array,
    counts: tuple[int, ...],
    dim: int,
    dtype: jnp.dtype,
    *,
    antithetic: bool = True,
    quasi_random: bool = False,
) -> jax.Array:
    """Draws ``z`` from ``N(0, I)``, in groups.

    With pairs ``z, -z`` the noise of a linear function's mean vanishes: for a quadratic log
    density, the gradient of the bound with respect to the mean is then exact.

    :param key: a JAX random key.
    :param counts: how many draws each group has; ``K`` in all.
    :param dim: ``d``.
    :param dtype: of the result.
    :param antithetic: whether the draws of a group come in pairs; an odd one out is independent.
    :param quasi_random: whether the draws are a Sobol sequence with random digits flipped.
    :return: shape ``(K, d)``, group after group.
    """
    sizes = [-(-count // 2) if antithetic else count for count in counts]
    if quasi_random and dim <= MAX_SOBOL_DIM:
        # Flipping the same random digits of every point keeps them as evenly spread as they
        # are, and makes each of them uniform (Owen, 2003, *Variance with alternative scramblings
        # of digital nets*); adding a random number modulo one would spread them less evenly.
        shift = jax.random.bits(key, (dim,), jnp.uint32) >> (32 - SOBOL_BITS)
        uniform = ((jnp.asarray(_sobol(sum(sizes), dim)) ^ shift) + 0.5).astype(dtype)
        uniform = uniform * 2.0**-SOBOL_BITS
        eps = float(jnp.finfo(dtype).eps)
        free = ndtri(jnp.clip(uniform, eps, 1.0 - eps))
    else:
        free = jax.random.normal(key, (sum(sizes), dim), dtype)
    if not antithetic:
        return free
    groups = jnp.split(free, np.cumsum(sizes)[:-1])
    pairs = [
        half
        for group, count in zip(groups, counts, strict=True)
        for half in (group, -group[: count - len(group)])
    ]
    return jnp.concatenate(pairs)


def _sobol(num_points: int, dim: int) -> np.ndarray:
    """The digits of the sequence's first points, as integers."""
    power = max(0, (num_points - 1).bit_length())
    points = qmc.Sobol(dim, scramble=False, bits=SOBOL_BITS).random_base2(power)[:num_points]
    return (points * 2**SOBOL_BITS).astype(np.uint32)
