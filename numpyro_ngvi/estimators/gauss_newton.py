"""Squares of the gradients of single examples; see :class:`ngvi.estimators.table.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Arrays, Families
from numpyro_ngvi.estimators.hessian import Hessian, value_gradients_hessians
from numpyro_ngvi.estimators.moments import Density, Gradients, masked_mean
from numpyro_ngvi.estimators.per_example.rows import ExampleRows
from numpyro_ngvi.estimators.per_example.squares import by_rows
from numpyro_ngvi.families.base import Family

#: Numbers in the gradients of the examples that are squared at once. Arenas of more than 32 MB are
#: new pages for every run, even where the branch that needs them is not taken.
NUMBERS_OF_ROWS = 2**20

#: ``split(latents, params, key)``: log likelihoods ``(N,)``, how many examples each stands for
#: ``(N,)``, and the rest of the log density, a scalar.
Split = Callable[[Arrays, Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


@shared_doc(table.GaussNewton, Hessian)
@dataclasses.dataclass(frozen=True)
class GaussNewton(Hessian):
    """:param split: the log density by examples."""

    split: Split

    def at(
        self, density: Density, here: Families, latents: Arrays, params: Any, key: jax.Array
    ) -> tuple[Gradients, dict[str, Any]]:
        def rest(latents: Arrays, params: Any, key: jax.Array) -> jax.Array:
            return self.split(latents, params, key)[2]

        def log_likelihoods(latents: Arrays, params: Any = params) -> jax.Array:
            return self.split(latents, params, key)[0]

        found, of_rest = value_gradients_hessians(rest, here, latents, params, key, is_rest=True)
        scale = jax.lax.stop_gradient(self.split(latents, params, key)[1])
        of_examples = _of_many if _are_many(scale, latents) else _at_once
        slopes, squares = of_examples(log_likelihoods, latents, scale, here)
        by_site, hessians = {}, {}
        for site, family in here.items():
            by_site[site] = found.by_site[site] + slopes[site]
            hessians[site] = of_rest[site], squares[site]
            if not family.keeps_rows():
                hessians[site] = jax.tree.map(jnp.subtract, *hessians[site])
        value, of_params = jax.value_and_grad(
            lambda params: jnp.sum(scale * log_likelihoods(latents, params))
        )(params)
        of_params = jax.tree.map(jnp.add, found.params, of_params)
        return Gradients(found.values + value, by_site, of_params), hessians

    def direction(self, family: Family, gradient: jax.Array, hessians: Any, kept: Any) -> Family:
        if not family.keeps_rows():
            return super().direction(family, gradient, hessians, kept)
        of_rest, rows = hessians
        if hasattr(family, "natural_gradient_from_squares"):
            sums = jax.tree.map(lambda leaf: masked_mean(leaf, kept), rows)
            return family.natural_gradient_from_squares(gradient, sums, -masked_mean(of_rest, kept))
        weights = jnp.where(kept, 1.0, 0.0).astype(rows.dtype) / jnp.sum(kept)
        rows = jnp.where(kept[:, None, None], jnp.sqrt(weights)[:, None, None] * rows, 0)
        rows = rows.reshape(-1, rows.shape[-1])
        return family.natural_gradient_from_rows(gradient, rows, -masked_mean(of_rest, kept))


def _takes_rows(family: Family) -> bool:
    """Whether nothing less than all rows will do."""
    return family.keeps_rows() and not hasattr(family, "natural_gradient_from_squares")


def _squares(family: Family, rows: jax.Array, scale: jax.Array) -> Any:
    """The sum of the rows' squares as much as the family needs, or the scaled rows."""
    if _takes_rows(family):
        return jnp.sqrt(scale)[:, None] * rows
    return family.outer_products(scale[:, None] * rows, rows)


def _at_once(
    function: Callable, latents: Arrays, scale: jax.Array, here: Families
) -> tuple[Arrays, dict[str, Any]]:
    """The gradient of the sum over examples, and the sum of squares, by site."""
    slopes, squares = {}, {}
    for site, family in here.items():
        jacobian = _jacobian(lambda x, site=site: function({**latents, site: x}), latents[site])
        slopes[site] = scale @ jacobian
        squares[site] = _squares(family, jacobian, scale)
    return slopes, squares


def _are_many(scale: jax.Array, latents: Arrays) -> bool:
    """Whether one draw's gradients by example are too large for memory, and are rows."""
    sizes = [value.size for value in latents.values()]
    return len(scale) < max(sizes) and len(scale) * sum(sizes) > NUMBERS_OF_ROWS


def _of_many(
    function: Callable, latents: Arrays, scale: jax.Array, here: Families
) -> tuple[Arrays, dict[str, Any]]:
    """As :func:`_at_once`, by rows of activations where that is right, else in chunks."""

    def in_chunks() -> tuple[Arrays, dict[str, Any]]:
        slopes = jax.vjp(function, latents)[1](scale)[0]
        return slopes, _in_chunks(function, latents, scale, here)

    examples = by_rows(function, latents, scale)
    if examples is None:
        return in_chunks()
    rows, holds = examples  # inside the condition convolutions would take a third longer
    found = {site: _of_rows(family, rows[site]) for site, family in here.items()}
    quickly = tuple({site: both[i] for site, both in found.items()} for i in (0, 1))
    if holds is None:
        return quickly
    return jax.lax.cond(holds, lambda: quickly, in_chunks)


def _of_rows(family: Family, rows: ExampleRows) -> tuple[jax.Array, Any]:
    """The gradient of the sum over examples, and what :func:`_squares` has, of one site."""
    if family.reads_diagonal():
        return rows.sums()
    if hasattr(family, "squares_of_examples"):
        return rows.gradient(), family.squares_of_examples(rows)
    entries = rows.entries(0, family.dim)
    squares = entries if family.keeps_rows() else family.outer_products(entries, entries)
    return rows.gradient(), squares


def _in_chunks(
    function: Callable, latents: Arrays, scale: jax.Array, here: Families
) -> dict[str, Any]:
    """The sum of squares by site, a few examples at a time.

    Each takes a backward pass of all examples, which may depend on each other: O(N^2).
    """
    pull = jax.vjp(function, latents)[1]
    count = len(scale)
    numbers = max(sum(value.size for value in latents.values()), _largest(function, latents))
    size = max(1, min(count, NUMBERS_OF_ROWS // numbers))

    def squares(some: jax.Array) -> dict[str, Any]:
        # Of an index beyond the last example both are zero.
        rows = jax.vmap(pull)(jax.nn.one_hot(some, count, dtype=scale.dtype))[0]
        weights = jnp.where(some < count, scale[jnp.minimum(some, count - 1)], 0)
        return {site: _squares(family, rows[site], weights) for site, family in here.items()}

    def add(total: Any, some: jax.Array) -> tuple[Any, Any]:
        new = squares(some)
        sums = {site: jax.tree.map(jnp.add, total[site], new[site]) for site in total}
        return sums, {site: new[site] for site in new.keys() - total.keys()}

    index = jnp.arange(-(-count // size) * size).reshape(-1, size)
    summed = [site for site, family in here.items() if not _takes_rows(family)]
    shapes = jax.eval_shape(lambda some: {site: squares(some)[site] for site in summed}, index[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    sums, rows = jax.lax.scan(add, nothing, index)
    joined = {site: some.reshape(-1, some.shape[-1])[:count] for site, some in rows.items()}
    return sums | joined


def _largest(function: Callable, latents: Arrays) -> int:
    """Numbers in the largest intermediate result."""
    program = jax.make_jaxpr(function)(latents).jaxpr
    made = (v.aval for equation in program.eqns for v in equation.outvars)
    return max((getattr(aval, "size", 1) for aval in made), default=1)


def _jacobian(function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
    # Rows cost a reverse pass each, columns a forward pass each.
    by_rows = jax.jacrev(function)
    if jax.eval_shape(function, theta).size < theta.size:
        return by_rows(theta)
    try:
        return jax.jacfwd(function)(theta)
    except Exception:  # noqa: BLE001
        return by_rows(theta)  # a custom_vjp, say, has no forward mode
