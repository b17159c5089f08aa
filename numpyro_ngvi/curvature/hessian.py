"""Exact Hessians, as much of them as a family needs.

A family names its probes (:meth:`~numpyro_ngvi.families.Family.hessian_probes`); one
Hessian-vector product each, forward over reverse, gives its part of the Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ngvi.curvature.moments import Density, Moments, average, first_draws, over_draws
from numpyro_ngvi.families.base import Family

#: Products computed together.
PRODUCTS_AT_ONCE = 256


def num_products(family: Family) -> int:
    """How many Hessian-vector products the family's part of a Hessian takes."""
    return int(family.hessian_probes().max()) + 1


def hessian_moments(
    density: Density, draws: jax.Array, context: Any, family: Family, num_hessians: int
) -> Moments:
    """``E[grad l]`` and ``E[hess l]`` by automatic differentiation.

    :param density: the log density.
    :param draws: ``theta``, shape ``(G, d)``.
    :param context: of each draw, a pytree with leading axes of length ``G``.
    :param family: what part of the Hessian is needed.
    :param num_hessians: ``K``, at how many of the draws Hessians are taken, the first.
    """

    def at(argument: Any) -> tuple[jax.Array, jax.Array, Any]:
        theta, of_draw = argument
        return value_gradient_hessian(lambda x: density(x, of_draw), theta, family)

    arguments = first_draws(num_hessians, draws, context)
    at_draws = over_draws(at, arguments, num_products(family))
    return average(at_draws, density, draws, context)


def value_gradient_hessian(
    function: Callable[[jax.Array], jax.Array], theta: jax.Array, family: Family
) -> tuple[jax.Array, jax.Array, Any]:
    """Value, gradient, and the family's part of the Hessian at one point."""
    (value, gradient), push = jax.linearize(jax.value_and_grad(function), theta)
    products = _products(lambda v: push(v)[1], family, theta.dtype)
    return value, gradient, family.assemble_hessian(products)


def _products(push: Callable, family: Family, dtype: jnp.dtype) -> jax.Array:
    number = jnp.asarray(family.hessian_probes())
    count = num_products(family)

    def product(index: jax.Array) -> jax.Array:
        return push((number == index).astype(dtype))

    indices = jnp.asarray(np.arange(count))
    if count <= PRODUCTS_AT_ONCE:
        return jax.vmap(product)(indices)
    return jax.lax.map(product, indices, batch_size=PRODUCTS_AT_ONCE)
