"""Expectations of single terms; see :class:`ngvi.estimators.table.Quadrature`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.estimators import from_gradients
from ngvi.estimators.additive_terms import Term
from ngvi.estimators.additivity import check_paths, check_smooth
from ngvi.estimators.from_gradients import Averages
from ngvi.estimators.nodes import (
    NodeSums,
    PredictorCovariance,
    TermMoments,
    max_halvings,
    nodes,
    pairs,
)
from ngvi.estimators.points import Families, PointsBySite
from ngvi.estimators.quadrature import Integrand, Pull, Push, find_terms
from numpyro_ngvi.tracing.additive_terms import terms_of
from numpyro_ngvi.tracing.compilation import compiled

#: Numbers of a term at all nodes that are computed together; a few nodes always are, as sums over
#: them are products of matrices.
NUMBERS_AT_ONCE, FEWEST_AT_ONCE = 2**15, 4


class Quadrature(from_gradients.Quadrature):
    """The terms are found whenever it is traced."""

    def __call__(self, evaluate: Any, here: Families, points: PointsBySite) -> Averages:
        # Large numbers cancel at the optimum; a GPU's default (tf32) keeps ten bits of them.
        with jax.default_matmul_precision("highest"):
            return super().__call__(evaluate, here, points)


class JaxCalculus:
    """See :class:`ngvi.estimators.quadrature.Calculus`."""

    xp = jnp

    def linear(
        self, function: Callable[..., list[jax.Array]], at: list[jax.Array]
    ) -> tuple[list[jax.Array], Push, Pull]:
        values, along = jax.linearize(function, *at)
        back = jax.linear_transpose(along, *at)

        def push(rows: list[jax.Array]) -> list[jax.Array]:
            return jax.vmap(along, out_axes=-1)(*rows)

        def pull(changes: list[jax.Array]) -> list[jax.Array]:
            return list(jax.vmap(back, in_axes=-1)(changes))

        return values, push, pull

    def value_and_gradient(
        self, function: Callable[[list[jax.Array]], jax.Array], at: list[jax.Array]
    ) -> tuple[jax.Array, list[jax.Array]]:
        return jax.value_and_grad(function)(at)

    def means(self, integrands: list[Integrand]) -> list[TermMoments]:
        return [_mean(*one) for one in integrands]

    def compiled(self, function: Callable) -> Callable:
        return compiled(function, runs_once=True)

    def numpy(self, array: jax.Array) -> np.ndarray:
        return np.asarray(array)

    def line(
        self, terms: Sequence[Term], centres: list[list[jax.Array]]
    ) -> Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
        shapes = [term.node.shape for term in terms]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]

        def by_term(flat: jax.Array) -> list[jax.Array]:
            parts = jnp.split(flat, ends)
            return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

        @partial(compiled, runs_few=True)
        def at(t: jax.Array, half: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
            halves = list(zip(*map(by_term, half), strict=True))

            def at_one(t: jax.Array) -> tuple[jax.Array, jax.Array]:
                found = map(_along, terms, centres, halves, by_term(t))
                values, slopes = zip(*found, strict=True)
                return jnp.concatenate(values), jnp.concatenate(slopes)

            return jax.vmap(at_one)(t)

        return lambda t, half: jax.device_get(at(t, half))


def _along(
    term: Term, centre: list[jax.Array], half: tuple[jax.Array, ...], t: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return a term and its derivative at ``centre + t half``, flat."""
    steps = [step.astype(one.dtype) for one, step in zip(centre, half, strict=True)]
    places = [one + t.astype(one.dtype) * step for one, step in zip(centre, steps, strict=True)]
    found = jax.jvp(term.value, (places,), (steps,))
    value, slope = (jnp.broadcast_to(part, t.shape).ravel() for part in found)
    return value, slope


def _mean(term: Term, means: list[jax.Array], covariance: PredictorCovariance) -> TermMoments:
    dtype, dim = means[0].dtype, len(means)
    points, distance = nodes(dim)
    points, eps = jnp.asarray(points, dtype), float(jnp.finfo(dtype).eps)

    def at_some(noise: jax.Array) -> NodeSums:
        found = jax.vmap(lambda z: derivatives(term.value, covariance.at(means, z)))(noise)
        return NodeSums.at(noise, found, means, covariance, jnp)

    wanted = max(NUMBERS_AT_ONCE // max(1, means[0].size), FEWEST_AT_ONCE)
    points = points.reshape(-1, _divisor(len(points), wanted), dim)
    shapes = jax.eval_shape(at_some, points[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def sums_of(halvings: jax.Array) -> NodeSums:
        count = 2**halvings

        def add_all(number: jax.Array, sums: NodeSums) -> NodeSums:
            digits = number // count ** jnp.arange(dim) % count
            shift = ((digits + 0.5) / count - 0.5).astype(dtype) * distance

            def add(sums: NodeSums, noise: jax.Array) -> tuple[NodeSums, None]:
                return jax.tree.map(jnp.add, sums, at_some(noise + shift)), None

            return jax.lax.scan(add, sums, points)[0]

        return jax.lax.fori_loop(0, count**dim, add_all, nothing)

    def halve(state: tuple) -> tuple:
        sums = sums_of(state[0])
        return state[0] + 1, sums.misses(covariance, eps, jnp), sums

    def goes_on(state: tuple) -> jax.Array:
        return (state[0] <= max_halvings(means[0].size, dim)) & state[1]

    return jax.lax.while_loop(goes_on, halve, (0, jnp.array(True), nothing))[2].mean()


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor up to a limit."""
    return max(count for count in range(1, max(most, 1) + 1) if number % count == 0)


def derivatives(
    function: Callable[[list[jax.Array]], jax.Array], at: list[jax.Array]
) -> TermMoments:
    """Differentiate a function that goes element by element."""

    def along(one: Callable, index: int) -> Callable:
        def derivative(predictors: list[jax.Array]) -> jax.Array:
            tangents = [jnp.full_like(value, k == index) for k, value in enumerate(predictors)]
            return jax.jvp(one, (predictors,), (tangents,))[1]

        return derivative

    firsts = [along(function, index) for index in range(len(at))]
    seconds = [along(firsts[one], two) for one, two in pairs(len(at))]
    return TermMoments(function(at), [each(at) for each in firsts], [each(at) for each in seconds])


def why_not_additive(density: Callable, here: Families, *, check: bool = True) -> Exception | None:
    """Return why a log density is no sum of smooth terms, or None.

    :param density: of latent vectors by site.
    :param check: whether to look for kinks; not while it is traced.
    """
    try:
        terms = find_terms(partial(terms_of, is_traced=not check), density, here)
        if check:
            check_paths(terms, list(here.values()), JaxCalculus())
            check_smooth(terms, list(here.values()), JaxCalculus())
    except Exception as error:  # noqa: BLE001  a model may do what this cannot follow
        return error
    return None
