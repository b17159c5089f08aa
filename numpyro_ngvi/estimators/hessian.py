"""Exact Hessians, as much of them as a family needs, by products forward over reverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.from_gradients import Averages
from ngvi.estimators.points import (
    MAX_PROBED_DIAGONAL,
    Arrays,
    Families,
    PointsBySite,
    num_products,
    scales,
)
from ngvi.families.curvature import keeps_rows, reads_diagonal
from numpyro_ngvi.estimators.differentiate import Differentiator
from numpyro_ngvi.estimators.moments import Density, Draws, finite_draws, gradients, masked_mean
from numpyro_ngvi.families.base import Family

#: Products computed together.
PRODUCTS_AT_ONCE = 256

#: Numbers in the products of a diagonal that are computed together.
NUMBERS_AT_ONCE = 2**20

#: Draws are batched only up to this many Hessian-vector products each: beyond, a single draw
#: keeps the processor busy, and memory is what runs out.
MAX_BATCHED_PRODUCTS = 128


@shared_doc(table.Hessian)
@dataclasses.dataclass(frozen=True)
class Hessian:
    """All draws that share a pass have their products together."""

    num_hessians: int

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        density, params, latents = evaluate.density, evaluate.params, points.of(here)
        first = jax.tree.map(lambda leaf: leaf[: self.num_hessians], (latents, points.keys))
        found, hessians = over_draws(
            lambda draw: self.at(density, here, draw[0], params, draw[1]), first, here
        )
        kept = finite = finite_draws((found.values, found.by_site, hessians))
        values = found.values
        if len(points.weights) > len(kept):
            rest = jax.tree.map(lambda leaf: leaf[len(kept) :], (latents, points.keys))
            more = gradients(density, rest[0], params, rest[1], evaluate.at_once)
            found = jax.tree.map(lambda *parts: jnp.concatenate(parts), found, more)
            kept = jnp.concatenate([kept, finite_draws((more.values, more.by_site))])
        directions = {
            site: self.direction(
                family, masked_mean(found.by_site[site], kept), hessians[site], finite
            )
            for site, family in here.items()
        }
        of_params = jax.tree.map(lambda leaf: masked_mean(leaf, kept), found.params)
        return Averages(directions, values, kept, of_params)

    @jax.named_scope("direction")
    def direction(self, family: Family, gradient: jax.Array, hessians: Any, kept: Any) -> Family:
        """Return the natural gradient from the parts of the Hessian at the draws that are kept."""
        hessian = jax.tree.map(lambda leaf: masked_mean(leaf, kept), hessians)
        return family.bonnet_price(gradient, hessian)

    def at(
        self, density: Density, here: Families, latents: Arrays, params: Any, key: jax.Array
    ) -> tuple[Draws, dict[str, Any]]:
        """Value, gradients, and the families' parts of the Hessian at one draw."""
        return value_gradients_hessians(density, here, latents, params, key)


def value_gradients_hessians(
    density: Density,
    here: Families,
    latents: Arrays,
    params: Any,
    key: jax.Array,
    *,
    is_rest: bool = False,
) -> tuple[Draws, dict[str, Any]]:
    """Value, gradients, and the families' parts of the Hessian at one draw.

    :param is_rest: whether this is what examples leave, of which a family that keeps their
        gradients as they are gets the diagonal.
    """

    def first(latents: Arrays) -> tuple[Arrays, tuple]:
        value, (of_latents, of_params) = jax.value_and_grad(density, (0, 1))(latents, params, key)
        return of_latents, (value, of_params)

    by_site, push, (value, of_params) = jax.linearize(first, latents, has_aux=True)
    hessians = {}
    for site, family in here.items():

        def product(vector: jax.Array, site: str = site) -> jax.Array:
            nowhere = jax.tree.map(jnp.zeros_like, latents)
            return push({**nowhere, site: vector})[site]

        is_diagonal = reads_diagonal(family) and family.dim > MAX_PROBED_DIAGONAL
        if is_diagonal or (is_rest and keeps_rows(family)):
            hessians[site] = diagonal(product, family.dim, latents[site].dtype)
        else:
            products = _products(product, family, latents[site].dtype)
            hessians[site] = family.assemble_hessian(products)
    return Draws(value, by_site, of_params), hessians


def over_draws(function: Callable, arguments: Any, here: Families) -> Any:
    """Apply a function to every draw, all at once where that is cheap, else one after another."""
    if len(jax.tree.leaves(arguments)[0]) == 1:  # in a loop convolutions take twice as long
        found = function(jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], found)
    if max(map(num_products, here.values())) <= MAX_BATCHED_PRODUCTS:
        return jax.vmap(function)(arguments)
    return jax.lax.map(function, arguments)


def _products(product: Callable, family: Family, dtype: jnp.dtype) -> jax.Array:
    number = jnp.asarray(family.hessian_probes())
    count = num_products(family)

    def of_probe(index: jax.Array) -> jax.Array:
        return product((number == index).astype(dtype))

    indices = np.arange(count)
    if count <= PRODUCTS_AT_ONCE:
        return jax.vmap(of_probe)(indices)
    return jax.lax.map(of_probe, indices, batch_size=PRODUCTS_AT_ONCE)


def diagonal(product: Callable, dim: int, dtype: jnp.dtype) -> jax.Array:
    """Return the diagonal of a Hessian, from two products if nothing else is in it, else ``dim``.

    :param product: with a vector.
    """
    ones = jnp.ones(dim, dtype)
    whole = product(ones)
    scale = jnp.asarray(scales(dim), dtype)
    scaled = product(scale)
    differs = jnp.abs(scaled - scale * whole) > jnp.finfo(dtype).eps ** 0.5 * jnp.abs(whole)

    def each() -> jax.Array:
        number = jnp.arange(dim)

        def entry(index: jax.Array) -> jax.Array:
            return product((number == index).astype(dtype))[index]

        return jax.lax.map(entry, number, batch_size=max(1, NUMBERS_AT_ONCE // dim))

    return jax.lax.cond(jnp.any(differs), each, lambda: whole)
