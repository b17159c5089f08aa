"""Squares of the gradients of single examples; see :class:`ngvi.estimators.table.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi._docs import shared_doc
from ngvi.conjugate.guide import check_no_conjugate_sites
from ngvi.estimators import table
from ngvi.estimators.points import Arrays, Families
from ngvi.families.curvature import keeps_rows
from ngvi.networks.examples import FEW_NUMBERS, NOT_BY_ROWS, NUMBERS_ON_GPU, are_same
from numpyro_ngvi.estimators.hessian import Hessian, value_gradients_hessians
from numpyro_ngvi.estimators.moments import Density, Draws, masked_mean
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.networks.examples import examples, one_by_one
from numpyro_ngvi.tracing import conjugate_sites_in

#: Numbers in the gradients of the examples that are squared at once on a CPU. Arenas of more than
#: 32 MB are new pages for every run.
NUMBERS_AT_ONCE = 2**20

#: ``split(latents, params, key)``: log likelihoods ``(N,)``, how many examples each stands for
#: ``(N,)``, and the rest of the log density, a scalar.
Split = Callable[[Arrays, Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


@shared_doc(table.GaussNewton, Hessian)
@dataclasses.dataclass(frozen=True)
class GaussNewton(Hessian):
    """Curvature of the examples by their gradients, and of the rest by its Hessian.

    :param split: the log density by examples.
    :param alone: from the number of examples to what
        :func:`~numpyro_ngvi.networks.examples.one_by_one` gives.
    """

    split: Split | None = None
    alone: Callable[[int], tuple[Callable, list]] | None = None

    def prepared(self, step: Any) -> GaussNewton:
        """Return the estimator for a step of ``NaturalELBO``.

        :raises ValueError: if there are many examples of many latents, and they are not those of
            single rows.
        """
        check_no_conjugate_sites(one.site for one in conjugate_sites_in(step.params).values())
        start = step.set_up.at_start()
        if start is not None:
            _check_rows(*start)
        density, params = step.density, step.params
        return dataclasses.replace(
            self,
            split=lambda latents, _, key: tuple(examples(density, latents, params, key)),
            alone=lambda count: one_by_one(density, params, count),
        )

    def at(
        self, density: Density, here: Families, latents: Arrays, params: Any, key: jax.Array
    ) -> tuple[Draws, dict[str, Any]]:
        def rest(latents: Arrays, params: Any, key: jax.Array) -> jax.Array:
            return self.split(latents, params, key)[2]

        def log_likelihoods(latents: Arrays, params: Any = params) -> jax.Array:
            return self.split(latents, params, key)[0]

        found, of_rest = value_gradients_hessians(rest, here, latents, params, key, is_rest=True)
        scale = jax.lax.stop_gradient(self.split(latents, params, key)[1])
        if _are_many(scale, latents):
            function, rows = self.alone(len(scale))
            slopes, squares = _by_rows(
                lambda latents, row: function(latents, key, row), rows, latents, scale, here
            )
        else:
            slopes, squares = _at_once(log_likelihoods, latents, scale, here)
        by_site, hessians = {}, {}
        for site, family in here.items():
            by_site[site] = found.by_site[site] + slopes[site]
            hessians[site] = of_rest[site], squares[site]
            if not keeps_rows(family):
                hessians[site] = jax.tree.map(jnp.subtract, *hessians[site])
        value, of_params = jax.value_and_grad(
            lambda params: jnp.sum(scale * log_likelihoods(latents, params))
        )(params)
        of_params = jax.tree.map(jnp.add, found.params, of_params)
        return Draws(found.values + value, by_site, of_params), hessians

    def direction(self, family: Family, gradient: jax.Array, hessians: Any, kept: Any) -> Family:
        if not keeps_rows(family):
            return super().direction(family, gradient, hessians, kept)
        of_rest, rows = hessians
        weights = jnp.where(kept, 1.0, 0.0).astype(rows.dtype) / jnp.sum(kept)
        rows = jnp.where(kept[:, None, None], jnp.sqrt(weights)[:, None, None] * rows, 0)
        rows = rows.reshape(-1, rows.shape[-1])
        return family.natural_gradient_from_rows(gradient, rows, -masked_mean(of_rest, kept))


def _check_rows(density: Any, here: Families, params: dict[str, Any], key: jax.Array) -> None:
    """Refuse many examples that are not those of single rows.

    :raises ValueError: saying what is.
    """
    with jax.ensure_compile_time_eval():
        latents = {
            site: family.mean + random.normal(key, family.mean.shape, family.mean.dtype)
            for site, family in here.items()
        }
    scale = jax.eval_shape(lambda: examples(density, latents, params, key).scale)
    if not _are_many(scale, latents):
        return

    def both(latents: Arrays, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        together = examples(density, latents, params, key).log_likelihood
        function, rows = one_by_one(density, params, len(together))
        return together, jax.vmap(lambda row: function(latents, key, row))(rows)

    try:  # a program that is compiled runs even inside of a trace
        program = jax.jit(both).lower(latents, key).compile()
    except Exception as error:
        raise ValueError(NOT_BY_ROWS) from error
    together, alone = map(np.asarray, program(latents, key))
    if not are_same(alone, together):
        raise ValueError(NOT_BY_ROWS)


def _are_many(scale: Any, latents: Arrays) -> bool:
    """Return whether there are more latents than examples, and many gradients by example."""
    sizes, (count,) = [value.size for value in latents.values()], scale.shape
    return count < max(sizes) and count * sum(sizes) > FEW_NUMBERS


def _squares(family: Family, rows: jax.Array, scale: jax.Array) -> Any:
    """Return the sum of the rows' squares as much as the family needs, or the scaled rows."""
    if keeps_rows(family):
        return jnp.sqrt(scale)[:, None] * rows
    return family.outer_products(scale[:, None] * rows, rows)


def _at_once(
    function: Callable, latents: Arrays, scale: jax.Array, here: Families
) -> tuple[Arrays, dict[str, Any]]:
    """Return the gradient of the sum over examples, and the sum of squares, by site."""
    slopes, squares = {}, {}
    for site, family in here.items():
        jacobian = _jacobian(lambda x, site=site: function({**latents, site: x}), latents[site])
        slopes[site] = scale @ jacobian
        squares[site] = _squares(family, jacobian, scale)
    return slopes, squares


def _by_rows(
    function: Callable, rows: list[jax.Array], latents: Arrays, scale: jax.Array, here: Families
) -> tuple[Arrays, dict[str, Any]]:
    """Return what :func:`_at_once` does, from runs of single examples, a few together.

    :param function: the log likelihood of an example from latents and its rows.
    :raises ValueError: if the model does not run on one example.
    """
    count, sizes = len(scale), [value.size for value in latents.values()]
    most = NUMBERS_AT_ONCE if jax.default_backend() == "cpu" else NUMBERS_ON_GPU
    at_once = max(1, min(count, most // sum(sizes)))
    index = jnp.arange(-(-count // at_once) * at_once).reshape(-1, at_once)
    kept = [site for site, family in here.items() if keeps_rows(family)]

    def some(index: jax.Array) -> tuple[Any, Arrays]:
        own = jnp.minimum(index, count - 1)
        weights = jnp.where(index < count, scale[own], 0)
        gradients = jax.vmap(jax.grad(function), (None, 0))(latents, [leaf[own] for leaf in rows])
        squares = {site: _squares(q, gradients[site], weights) for site, q in here.items()}
        scaled = {site: squares.pop(site) for site in kept}
        return ({site: weights @ gradients[site] for site in here}, squares), scaled

    def add(total: Any, index: jax.Array) -> tuple[Any, Arrays]:
        new, scaled = some(index)
        return jax.tree.map(jnp.add, total, new), scaled

    try:
        shapes = jax.eval_shape(some, index[0])[0]
    except Exception as error:
        raise ValueError(NOT_BY_ROWS) from error
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (slopes, squares), scaled = jax.lax.scan(add, nothing, index)
    joined = {site: some.reshape(-1, some.shape[-1])[:count] for site, some in scaled.items()}
    return slopes, squares | joined


def _jacobian(function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
    # Rows cost a reverse pass each, columns a forward pass each.
    by_rows = jax.jacrev(function)
    if jax.eval_shape(function, theta).size < theta.size:
        return by_rows(theta)
    try:
        return jax.jacfwd(function)(theta)
    except Exception:  # noqa: BLE001
        return by_rows(theta)  # a custom_vjp, say, has no forward mode
