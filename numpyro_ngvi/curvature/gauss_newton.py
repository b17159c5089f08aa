"""The Gauss-Newton curvature of VOGN: squares of the gradients of single examples.

For a likelihood of independent examples, ``-hess log p(y_i | theta)`` is replaced by
``g_i g_i^T``, positive semi-definite, and equal to it in expectation over the model's own data
(Tan, S5.1; Swaroop, VOGN). What is not an example, the prior above all, keeps its exact Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.curvature.hessian import num_products, value_gradient_hessian
from numpyro_ngvi.curvature.moments import Moments, average, first_draws, over_draws
from numpyro_ngvi.families.base import Family

#: ``split(theta, context)``: log likelihoods ``(N,)``, how many examples each stands for
#: ``(N,)``, and the rest of the log density, a scalar.
Split = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array, jax.Array]]


def gauss_newton_moments(
    split: Split, draws: jax.Array, context: Any, family: Family, num_hessians: int
) -> Moments:
    """``E[grad l]``, and the Gauss-Newton estimate in place of ``E[hess l]``.

    :param split: the log density by examples.
    :param draws: ``theta``, shape ``(G, d)``.
    :param context: of each draw, a pytree with leading axes of length ``G``.
    :param family: what part of the Hessian is needed.
    :param num_hessians: ``K``, at how many of the draws curvature is taken, the first.
    """

    def at(argument: Any) -> tuple[jax.Array, jax.Array, Any]:
        theta, of_draw = argument
        log_likelihood, scale, _ = split(theta, of_draw)
        scale = jax.lax.stop_gradient(scale)
        jacobian = _jacobian(lambda x: split(x, of_draw)[0], theta)
        value, of_rest, hessian = value_gradient_hessian(
            lambda x: split(x, of_draw)[2], theta, family
        )
        curvature = family.outer_products(scale[:, None] * jacobian, jacobian)
        return (
            value + jnp.sum(scale * log_likelihood),
            of_rest + scale @ jacobian,
            jax.tree.map(jnp.subtract, hessian, curvature),
        )

    def density(theta: jax.Array, of_draw: Any) -> jax.Array:
        log_likelihood, scale, rest = split(theta, of_draw)
        return jnp.sum(scale * log_likelihood) + rest

    arguments = first_draws(num_hessians, draws, context)
    at_draws = over_draws(at, arguments, num_products(family))
    return average(at_draws, density, draws, context)


def _jacobian(function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
    # Rows cost a reverse pass each, columns a forward pass each.
    by_rows = jax.jacrev(function)
    if jax.eval_shape(function, theta).size < theta.size:
        return by_rows(theta)
    try:
        return jax.jacfwd(function)(theta)
    except Exception:  # noqa: BLE001
        return by_rows(theta)  # a custom_vjp, say, has no forward mode
