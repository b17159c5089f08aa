"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.additive_terms import AdditiveTerms, NotAdditiveError, Term
from ngvi.estimators.nodes import TermMoments, nodes
from ngvi.estimators.quadrature import predictors_of
from ngvi.latents.layout import plates_of
from ngvi.workflow.predictors import joined, moments_of
from ngvi.workflow.rows import Predictors, RowSite, WeightedTerms
from numpyro_ngvi.estimators.quadrature import JaxCalculus, derivatives
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing import LogDensity
from numpyro_ngvi.tracing.additive_terms import elementwise_terms_of
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import blocks, compiled, few_in_all
from numpyro_ngvi.tracing.log_density import site_log_probs
from numpyro_ngvi.tracing.partly_observed import is_masked, mask_of
from numpyro_ngvi.tracing.traced import Operations, Traced
from numpyro_ngvi.workflow.runs import has_data, unscaled

#: Draws of a pass, and of what has a Jacobian each; fewer of more numbers.
VALUES_AT_ONCE, JACOBIANS_AT_ONCE = 128, 16
#: Numbers of terms that a program works on at once.
NUMBERS_AT_ONCE = 2**18


class ModelRows:
    """Log likelihoods of the rows of a model and its guide.

    :param run: model and guide, with their arguments.
    :param here: the Gaussians by the guide's sites.
    :param is_mapped: whether latents are no affine functions of the Gaussians' coordinates.
    """

    def __init__(
        self, run: tuple, params: dict[str, Any], here: dict[str, Family], is_mapped: bool = False
    ) -> None:
        self._params, self._here, self._is_mapped = params, here, is_mapped
        self._arguments, self._dims = Arguments(*run[2:]), [q.dim for q in here.values()]
        self._dtype = next(iter(here.values())).loc.dtype
        self.eps = float(jnp.finfo(self._dtype).eps)
        self._density = LogDensity(*run, random.key(0))
        self.is_enumerated = self._density.is_enumerated
        facts: dict[str, _Facts] = {}
        if not self.is_enumerated:
            # The model's handlers run once, and all programs are made of what they were traced to.
            like = jax.ShapeDtypeStruct((sum(self._dims),), self._dtype)
            traced = Traced(partial(self._parts, facts))
            operations, self._held = self._arguments.call(traced.at, like)
            self._programs = _Programs(operations)
            self._values, self._slopes, self._sums = map(
                self._program, ("values", "slopes", "sums")
            )
        rows = {name: fact for name, fact in facts.items() if fact.is_row}
        self.sites = tuple(fact.site for fact in rows.values())
        self.factors = tuple(k for k, fact in facts.items() if fact.is_observed and k not in rows)
        count = sum(site.size for site in self.sites)
        self.weights, self.is_masked = np.ones(count), np.zeros(count, bool)
        if not all(fact.is_even for fact in rows.values()):
            mean = np.concatenate([np.asarray(q.mean) for q in here.values()])
            scales, masks = self._program("counted", runs_once=True)(mean)
            self.weights, self.is_masked = np.asarray(scales, float), ~np.asarray(masks)

    running = staticmethod(contextlib.nullcontext)

    def parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = blocks(theta.astype(self._dtype), self._at_once)
        return _joined([self._values(part) for part in some], len(theta))

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = blocks(theta.astype(self._dtype), JACOBIANS_AT_ONCE)
        return _joined([self._slopes(part) for part in some], len(theta))

    def weighted(
        self, theta: np.ndarray, weights: np.ndarray, prior: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        arrays = theta.astype(self._dtype), weights.astype(self._dtype)
        parts = (blocks(array, self._at_once) for array in arrays)
        times = self._dtype.type(prior)
        found = [self._sums(*some, times) for some in zip(*parts, strict=True)]
        return _joined(found, len(theta))

    @property
    def _at_once(self) -> int:
        """The size of a call, so that one program does for any number of draws."""
        return min(VALUES_AT_ONCE, max(1, NUMBERS_AT_ONCE // max(1, len(self.weights))))

    def _program(self, name: str, runs_once: bool = False) -> Callable[..., Any]:
        of = self._programs if self._programs.parts.is_known else None
        function = getattr(self._programs, name)
        # Where locals are at their modes a run is a search for these.
        is_short = not self._is_mapped or few_in_all(0, self._arguments.data_size)
        run = compiled(function, of=of, runs_once=runs_once, runs_few=is_short)
        return lambda *arrays: run(self._held, *arrays, self._arguments.arrays)

    def _parts(self, facts: dict[str, _Facts], theta: jax.Array, arrays: list) -> tuple:
        """Return the elements by site, the rest of the log density, weights and masks."""
        vectors = jnp.split(theta, np.cumsum(self._dims)[:-1])
        density, latents = copy.copy(self._density), dict(zip(self._here, vectors, strict=True))
        density.args, density.kwargs = self._arguments.rebuilt(arrays)
        log_probs, trace, of_guide = site_log_probs(density, latents, self._params, random.key(0))
        facts.clear()
        facts.update((name, _Facts.of(name, trace[name], log_probs[name])) for name in log_probs)
        parts, scales, masks, rest = [], [], [], jnp.zeros((), self._dtype)
        for name, log_prob in log_probs.items():
            site = trace[name]
            if not facts[name].is_row:
                rest = rest + jnp.sum(log_prob)
                continue
            scale = 1.0 if site["scale"] is None else site["scale"]
            parts.append(unscaled(site, log_prob))
            scales.append(jnp.broadcast_to(scale, jnp.shape(log_prob)))
            masks.append(jnp.broadcast_to(mask_of(site["fn"]), jnp.shape(log_prob)))
        return parts, rest - of_guide, scales, masks

    # -- predictors -------------------------------------------------------------------

    def predictors(self) -> tuple[Predictors, WeightedTerms | None] | None:
        if self._is_mapped:
            return None
        try:
            with jax.default_matmul_precision("highest"):
                return self._predictors()
        except (NotAdditiveError, NotImplementedError, TypeError):
            return None  # it has none, or operations without a rule for the way forward

    def _predictors(self) -> tuple[Predictors, WeightedTerms | None]:
        # Unlike a run of torch, a program of JAX has every way through the model: no check_same.
        families = list(self._here.values())

        def of_vectors(*vectors: jax.Array) -> list[jax.Array]:
            theta = jnp.concatenate(vectors)
            parts, rest, *_ = self._programs.parts(self._held, theta, self._arguments.arrays)
            return [*parts, rest]

        means = [q.mean for q in families]
        terms, rest = elementwise_terms_of(of_vectors, means)
        numbers = compiled(lambda: self._numbers(terms, rest), runs_once=True)()
        numbers = jax.tree.map(lambda x: np.asarray(x, float), numbers)
        own = self._made(terms, numbers[0])
        if rest is None or not rest.terms:
            return own, None
        constant, weights = numbers[2]
        flat = np.concatenate([one.ravel() for one in weights])
        return own, WeightedTerms(self._made(rest, numbers[1]), flat, float(constant))

    def _made(self, terms: AdditiveTerms, affine: tuple) -> Predictors:
        offset, slope = joined(*affine, terms.places)

        def of_term(term: Term, own: list[jax.Array]) -> TermMoments:
            return jax.vmap(lambda *one: derivatives(term.value, list(one)))(*own)

        def of_block(*at: jax.Array) -> TermMoments:
            return moments_of(terms.terms, at, of_term, jnp)

        program = compiled(of_block, runs_few=True)
        # A call has one number of rows, so that one program does for any.
        fits = max(1, NUMBERS_AT_ONCE // offset.shape[1])
        size = min(len(nodes(len(offset))[0]), fits)

        def of_all(at: list[np.ndarray]) -> TermMoments:
            rows = [one.astype(self._dtype) for one in np.broadcast_arrays(*at)]
            found = [
                program(*some) for some in zip(*(blocks(one, size) for one in rows), strict=True)
            ]
            return jax.tree.map(lambda *parts: _whole(parts, len(rows[0])), *found)

        return Predictors(offset, slope, of_all, self.eps)

    def _numbers(self, own: AdditiveTerms, rest: AdditiveTerms | None) -> list[tuple]:
        """Return offsets and slopes of all predictors, and the rest's value and slopes at zero."""
        own.check_size(sum(self._dims))
        found = [self._affine(own)]
        if rest is not None and rest.terms:
            nothing = [jnp.zeros(term.node.shape, self._dtype) for term in rest.terms]
            found += [self._affine(rest), jax.value_and_grad(rest.value)(nothing)]
        return found

    def _affine(self, terms: AdditiveTerms) -> tuple[list[jax.Array], list[jax.Array]]:
        zeros = [jnp.zeros(dim, self._dtype) for dim in self._dims]
        eye = jnp.eye(sum(self._dims), dtype=self._dtype)
        offsets, push, _ = JaxCalculus().linear(predictors_of(terms), zeros)
        return offsets, push(jnp.split(eye, np.cumsum(self._dims)[:-1], 1))


class _Facts(NamedTuple):
    """Facts about a site, whatever its values."""

    site: RowSite
    is_observed: bool
    is_row: bool
    is_even: bool  #: True if each element counts once.

    @classmethod
    def of(cls, name: str, site: dict[str, Any], log_prob: jax.Array) -> _Facts:
        row_site = RowSite(name, jnp.shape(log_prob), plates_of(site, jnp.ndim(log_prob)))
        is_even = site["scale"] is None and not is_masked(site["fn"])
        return cls(row_site, site["is_observed"], has_data(site), is_even)


@dataclasses.dataclass(frozen=True)
class _Programs:
    """Programs of the elements at latent vectors; each is given the arrays that they hold.

    :param parts: see :meth:`ModelRows._parts`.
    """

    parts: Operations

    def values(self, held: list, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        """Return the elements at vectors ``(K, d)``, and the rest of the log density."""

        def both(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            parts, rest, *_ = self.parts(held, one, arrays)
            return _in_a_row(parts), rest

        return jax.vmap(both)(theta)

    def slopes(self, held: list, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        """Return the elements at vectors ``(K, d)``, and their slopes."""

        def elements(one: jax.Array) -> jax.Array:
            return _in_a_row(self.parts(held, one, arrays)[0])

        def forward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            values, push = jax.linearize(elements, one)
            return values, jax.vmap(push, 1, 1)(jnp.eye(len(one), dtype=one.dtype))

        def backward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            values, pull = jax.vjp(elements, one)
            return values, jax.vmap(pull)(jnp.eye(len(values), dtype=values.dtype))[0]

        if theta.shape[1] > jax.eval_shape(elements, theta[0]).size:
            return jax.lax.map(backward, theta)
        try:
            return jax.lax.map(forward, theta)
        except TypeError:  # an operation whose rule is for the way back
            return jax.lax.map(backward, theta)

    def sums(
        self, held: list, theta: jax.Array, weights: jax.Array, prior: jax.Array, arrays: list
    ) -> tuple[jax.Array, jax.Array]:
        """Return the weighted log density, and its gradient."""

        def value(one: jax.Array, weights: jax.Array) -> jax.Array:
            parts, rest, *_ = self.parts(held, one, arrays)
            # What does not count may be infinite.
            return jnp.where(weights != 0, _in_a_row(parts), 0.0) @ weights + prior * rest

        return jax.vmap(jax.value_and_grad(value))(theta, weights)

    def counted(self, held: list, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        """Return how many times each element counts, and where masks let it count."""
        _, _, scales, masks = self.parts(held, theta, arrays)
        return _in_a_row(scales), _in_a_row(masks)


def _in_a_row(parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _joined(found: list[tuple], count: int) -> tuple[np.ndarray, ...]:
    """Return what blocks give, such as values and gradients, for all rows."""
    return tuple(_whole(part, count) for part in zip(*found, strict=True))


def _whole(parts: Sequence[jax.Array], count: int) -> np.ndarray:
    return np.concatenate([np.asarray(part, float) for part in parts])[:count]
