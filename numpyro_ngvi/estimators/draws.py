"""Standard normal draws: independent, or in antithetic pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def standard_normal(
    key: jax.Array,
    counts: tuple[int, ...],
    dim: int,
    dtype: jnp.dtype,
    *,
    antithetic: bool = True,
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
