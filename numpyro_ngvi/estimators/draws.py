"""Standard normal draws: independent, or in antithetic pairs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.families.points import LEVELS, radius_polynomial


def standard_normal(
    key: jax.Array, counts: tuple[int, ...], dim: int, dtype: jnp.dtype, *, antithetic: bool = True
) -> jax.Array:
    """Draw ``z`` from ``N(0, I)``, in groups.

    With pairs ``z, -z`` the noise of a linear function's mean vanishes: for a quadratic log
    density, the gradient of the bound with respect to the mean is then exact.

    :param key: a JAX random key.
    :param counts: how many draws each group has; ``K`` in all.
    :param dim: ``d``.
    :param dtype: of the result.
    :param antithetic: whether the draws of a group come in pairs; an odd one out is independent.
    :return: shape ``(K, d)``, group after group.
    """
    sizes = [-(-count // 2) if antithetic else count for count in counts]
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


def orthogonal_points(
    key: jax.Array, dim: int, num_groups: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """Return the noise and the weights of some groups, whose radii are stratified.

    As :func:`ngvi.families.points.spherical_points`, inside a compiled function.

    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    # One call, as that of jax.random.normal, for another takes as long again to compile.
    lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    uniform = random.uniform(key, (num_groups * dim * dim + 1,), dtype, lowest, 1.0)
    strata = 0.5 + np.arange(num_groups, dtype=dtype) / num_groups
    levels = (0.5 * uniform[-1] + strata) % 1.0
    levels = 2.0 * jnp.clip(levels, *LEVELS) - 1.0
    normal = math.sqrt(2.0) * jax.lax.erf_inv(uniform[:-1])
    of_levels = math.sqrt(2.0) * jax.lax.erf_inv(levels)
    # A quotient is a kernel of its own: of a product, whoever needs it would compute it all again.
    narrow = 1.0 / jnp.polyval(jnp.asarray(radius_polynomial(dim), dtype), of_levels)
    inverse, radii = narrow[:, None] ** 3, 1.0 / (narrow * jnp.sqrt(narrow))
    # The signs of its columns are not uniformly distributed, but each comes with its opposite.
    rotation, _ = jnp.linalg.qr(normal.reshape(num_groups, dim, dim))
    pairs = rotation[:, None] * (np.array([1, -1]) * radii[:, None])[:, :, None, None]
    noise = jnp.pad(pairs.reshape(num_groups, 2 * dim, dim), ((0, 0), (0, 1), (0, 0)))
    is_centre = np.arange(2 * dim + 1) == 2 * dim
    weights = jnp.where(is_centre, 1.0 - dim * inverse, 0.5 * inverse) / num_groups
    return noise.reshape(-1, dim), weights.reshape(-1)
