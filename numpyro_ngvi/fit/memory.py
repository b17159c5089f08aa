"""The two-loop recursion of L-BFGS in the Fisher metric of the present Gaussians.

Nocedal (1980, *Updating quasi-Newton matrices with limited storage*), with ``F`` in place of the
identity: far from the optimum the natural gradient is the better direction, and close to it, where
the bound is flatter or steeper than the metric, the pairs say by how much.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.optim.trust_region import slope_along

#: A pair counts if the bound's curvature along it is at least this fraction of the Fisher
#: metric's: of flatter ones the noise of the draws decides.
MIN_CURVATURE = 1e-3


@jax.jit
def quasi_newton(
    families: list[Family], direction: list[Family], steps: list[Family], falls: list[Family]
) -> tuple[list[Family], jax.Array, jax.Array]:
    """The corrected direction.

    :param families: the place.
    :param direction: a natural gradient, one family each.
    :param steps: changes of the families, with a leading axis of pairs, the newest last; a pair of
        zeros is none.
    :param falls: of the natural gradient along them.
    :return: the direction, the gain that a quadratic bound would have along it, and the gain
        that the Fisher metric predicts, both in nats.
    """

    def covectors(vectors: list) -> list:
        return [
            jax.vmap(family.euclidean_gradient)(vector)
            for family, vector in zip(families, vectors, strict=True)
        ]

    def dots(left: Any, right: Any) -> jax.Array:
        products = jax.tree.map(
            lambda a, b: jnp.sum((a * b).reshape(a.shape[0], -1), -1), left, right
        )
        return sum(jax.tree.leaves(products))

    def dot(left: Any, right: Any) -> jax.Array:
        return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)))

    def plus(vector: Any, amount: jax.Array, other: Any) -> Any:
        return jax.tree.map(lambda a, b: a + amount * b, vector, other)

    of_steps, of_falls = covectors(steps), covectors(falls)
    curvature = dots(of_steps, falls)
    squares, fall_squares = dots(of_steps, steps), dots(of_falls, falls)
    eps = float(jnp.finfo(curvature.dtype).eps) ** 0.5
    used = (curvature > MIN_CURVATURE * squares) & (
        curvature > eps * jnp.sqrt(jnp.abs(squares * fall_squares))
    )
    weights = jnp.where(used, 1.0 / jnp.where(used, curvature, 1.0), 0.0)

    def backward(rest: Any, pair: tuple) -> tuple:
        of_step, fall, weight = pair
        amount = weight * dot(of_step, rest)
        return plus(rest, -amount, fall), amount

    def forward(result: Any, pair: tuple) -> tuple:
        step, of_fall, weight, amount = pair
        return plus(result, amount - weight * dot(of_fall, result), step), None

    rest, amounts = jax.lax.scan(backward, direction, (of_steps, falls, weights), reverse=True)
    result, _ = jax.lax.scan(forward, rest, (steps, of_falls, weights, amounts))
    gain = 0.5 * slope_along(families, direction, result)
    return result, gain, 0.5 * slope_along(families, direction, direction)
