"""Squares of the gradients of single examples; see :class:`ngvi.estimators.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ngvi import estimators
from ngvi.estimators import Arrays, Families
from ngvi.page import page
from numpyro_ngvi.curvature.hessian import Hessian, value_gradients_hessians
from numpyro_ngvi.curvature.moments import Density, Gradients

#: ``split(latents, ordinary, key)``: log likelihoods ``(N,)``, how many examples each stands for
#: ``(N,)``, and the rest of the log density, a scalar.
Split = Callable[[Arrays, Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


@page(estimators.GaussNewton, Hessian)
@dataclasses.dataclass(frozen=True)
class GaussNewton(Hessian):
    """:param split: the log density by examples."""

    split: Split

    def at(
        self, density: Density, here: Families, latents: Arrays, ordinary: Any, key: jax.Array
    ) -> tuple[Gradients, dict[str, Any]]:
        def rest(latents: Arrays, ordinary: Any, key: jax.Array) -> jax.Array:
            return self.split(latents, ordinary, key)[2]

        found, hessians = value_gradients_hessians(rest, here, latents, ordinary, key)
        log_likelihood, scale, _ = self.split(latents, ordinary, key)
        scale = jax.lax.stop_gradient(scale)
        by_site = {}
        for site, family in here.items():
            jacobian = _jacobian(
                lambda x, site=site: self.split({**latents, site: x}, ordinary, key)[0],
                latents[site],
            )
            by_site[site] = found.by_site[site] + scale @ jacobian
            curvature = family.outer_products(scale[:, None] * jacobian, jacobian)
            hessians[site] = jax.tree.map(jnp.subtract, hessians[site], curvature)

        def likelihood(ordinary: Any) -> jax.Array:
            return jnp.sum(scale * self.split(latents, ordinary, key)[0])

        of_ordinary = jax.tree.map(jnp.add, found.ordinary, jax.grad(likelihood)(ordinary))
        value = found.values + jnp.sum(scale * log_likelihood)
        return Gradients(value, by_site, of_ordinary), hessians


def _jacobian(function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
    # Rows cost a reverse pass each, columns a forward pass each.
    by_rows = jax.jacrev(function)
    if jax.eval_shape(function, theta).size < theta.size:
        return by_rows(theta)
    try:
        return jax.jacfwd(function)(theta)
    except Exception:  # noqa: BLE001
        return by_rows(theta)  # a custom_vjp, say, has no forward mode
