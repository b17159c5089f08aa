"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.additive_terms import AdditiveTerms, NotAdditiveError, Term, evaluate
from ngvi.estimators.nodes import TermMoments, pairs
from ngvi.latents.layout import Plate
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.predictors import joined
from ngvi.workflow.rows import Predictors, RowSite, WeightedTerms, first_nodes
from numpyro_ngvi.estimators.quadrature import JaxCalculus, derivatives
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing import LogDensity
from numpyro_ngvi.tracing.additive_terms import elementwise_terms_of
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import blocks, compiled
from numpyro_ngvi.tracing.log_density import site_log_probs
from numpyro_ngvi.tracing.partly_observed import is_masked, mask_of
from numpyro_ngvi.tracing.traced import Operations, Traced
from numpyro_ngvi.workflow.runs import has_data, unscaled

#: Draws of a pass, and of what has a Jacobian each; fewer of more numbers.
VALUES_AT_ONCE, JACOBIANS_AT_ONCE = 128, 16
#: Numbers of terms that a program works on at once.
NUMBERS_AT_ONCE = 2**18
#: Where rows are many, a call takes so many times the number of first nodes of them.
MANY_TIMES = 16


class ModelRows:
    """Those of a model and its guide.

    :param here: the Gaussians by the guide's sites.
    :param is_mapped: whether latents are no affine functions of the Gaussians' coordinates.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        params: dict[str, Any],
        here: dict[str, Family],
        is_mapped: bool = False,
    ) -> None:
        self._params, self._here, self._is_mapped = params, here, is_mapped
        self._arguments, self._dims = Arguments(args, kwargs), [q.dim for q in here.values()]
        self._dtype = next(iter(here.values())).loc.dtype
        self.eps = float(jnp.finfo(self._dtype).eps)
        self._density = LogDensity(model, guide, args, kwargs, random.key(0))
        self.is_enumerated = self._density.is_enumerated
        facts: dict[str, _Facts] = {}
        if not self.is_enumerated:
            # The model's handlers run once, and all programs are made of what they were traced to.
            like = jax.ShapeDtypeStruct((sum(self._dims),), self._dtype)
            traced = Traced(partial(self._parts, facts))
            operations, self._held = self._arguments.call(traced.at, like)
            self._programs = _Programs(operations)
            programs = map(self._program, ("values", "slopes", "sums"))
            self._values, self._slopes, self._sums = programs
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

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        count = len(self.weights)
        if len(theta) * count <= DEFAULTS.numbers_by_sums:
            return self._summed(theta, np.zeros((len(theta), count)), 0.0)[0]
        found = [self._values(part) for part in blocks(theta.astype(self._dtype), self._at_once)]
        return np.concatenate([np.asarray(part, float) for part in found])[: len(theta)]

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        num, count = len(theta), len(self.weights)
        if num * count**2 <= DEFAULTS.numbers_by_sums:
            of_each = np.repeat(theta, count, 0), np.tile(np.eye(count), (num, 1))
            values, _, slopes = self._summed(*of_each, 0.0)
            return values[::count], slopes.reshape(num, count, -1)
        some = blocks(theta.astype(self._dtype), JACOBIANS_AT_ONCE)
        values, slopes = _joined([self._slopes(part) for part in some], num)
        return values, slopes

    def weighted(
        self, theta: np.ndarray, weights: np.ndarray, prior: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        _, values, slopes = self._summed(theta, weights, prior)
        return values, slopes

    def _summed(
        self, theta: np.ndarray, weights: np.ndarray, prior: float
    ) -> tuple[np.ndarray, ...]:
        """The elements, their weighted sums and the gradients of these."""
        arrays = theta.astype(self._dtype), weights.astype(self._dtype)
        parts = (blocks(array, self._at_once) for array in arrays)
        times = self._dtype.type(prior)
        found = [self._sums(*some, times) for some in zip(*parts, strict=True)]
        return _joined(found, len(theta))

    @property
    def _at_once(self) -> int:
        """One number, so that one program does for any number of draws."""
        return min(VALUES_AT_ONCE, max(1, NUMBERS_AT_ONCE // max(1, len(self.weights))))

    def _program(self, name: str, runs_once: bool = False) -> Callable[..., Any]:
        of = self._programs if self._programs.parts.is_known else None
        function = getattr(self._programs, name)
        run = compiled(function, of=of, runs_once=runs_once, runs_few=True)
        return lambda *arrays: run(self._held, *arrays, self._arguments.arrays)

    def _parts(self, facts: dict[str, _Facts], theta: jax.Array, arrays: list) -> tuple:
        """The elements by site, the rest of the log density, how many times each element counts, by
        site, and where masks let it count.

        :param facts: of the sites, which are written here.
        """
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
        _, terms, rest, numbers = elementwise_terms_of(of_vectors, means, self._numbers)
        numbers = jax.tree.map(lambda x: np.asarray(x, float), numbers)
        own = self._made(terms, numbers[0])
        if rest is None or not rest.terms:
            return own, None
        constant, weights = numbers[2]
        flat = np.concatenate([one.ravel() for one in weights])
        return own, WeightedTerms(self._made(rest.terms, numbers[1]), flat, float(constant))

    def _made(self, terms: Sequence[Term], affine: tuple) -> Predictors:
        offset, slope = joined(*affine, [len(term.predictors) for term in terms])
        return Predictors(offset, slope, *_Terms(terms, self._dtype).functions, self.eps)

    def _numbers(self, latents: list, terms: list[Term], rest: AdditiveTerms | None) -> list[tuple]:
        """Offsets and slopes of all predictors, and the rest's value and slopes at terms of 0."""
        own = AdditiveTerms(terms[0].node, tuple(latents), tuple(terms))
        own.check_size(sum(self._dims))
        found = [self._affine(own)]
        if rest is not None and rest.terms:
            nothing = [jnp.zeros(term.node.shape, self._dtype) for term in rest.terms]
            found += [self._affine(rest), jax.value_and_grad(rest.value)(nothing)]
        return found

    def _affine(self, terms: AdditiveTerms) -> tuple[list[jax.Array], list[jax.Array]]:
        nodes = [one for term in terms.terms for one in term.predictors]

        def affine(*vectors: jax.Array) -> list[jax.Array]:
            return evaluate(nodes, dict(zip(map(id, terms.latents), vectors, strict=True)))

        zeros = [jnp.zeros(dim, self._dtype) for dim in self._dims]
        eye = jnp.eye(sum(self._dims), dtype=self._dtype)
        offsets, push, _ = JaxCalculus().linear(affine, zeros)
        return offsets, push(jnp.split(eye, np.cumsum(self._dims)[:-1], 1))


class _Terms:
    """Terms as functions of all their elements' predictors, each one program."""

    def __init__(self, terms: Sequence[Term], dtype: Any) -> None:
        self._terms, self._dtype = terms, dtype
        few = compiled(self._of_derivatives, runs_few=True)
        #: Of few rows at a time, and of many; of few the values are there with the derivatives.
        self._values, self._derivatives = (
            (few, compiled(function)) for function in (self._of_values, self._of_derivatives)
        )
        numbers = sum(math.prod(term.node.shape) for term in terms)
        size = len(first_nodes(max(len(term.predictors) for term in terms)))
        self._numbers = max(1, numbers)
        fits = max(1, NUMBERS_AT_ONCE // self._numbers)
        #: Rows of a call, so that one program does for few numbers, and another one for many.
        self._sizes = min(size, fits), min(MANY_TIMES * size, fits)

    @property
    def functions(self) -> tuple[Callable, Callable]:
        """Values, and derivatives."""
        return self.values, self.derivatives

    def values(self, at: list[np.ndarray]) -> np.ndarray:
        return self._in_blocks(self._values, at)[0]

    def derivatives(self, at: list[np.ndarray]) -> TermMoments:
        value, *rest = self._in_blocks(self._derivatives, at)
        return TermMoments(value, rest[: len(at)], rest[len(at) :])

    def _in_blocks(self, programs: tuple, at: list[np.ndarray]) -> list[np.ndarray]:
        shape = np.broadcast_shapes(*(one.shape for one in at))
        rows = [np.broadcast_to(one, shape).astype(self._dtype) for one in at]
        are_many = shape[0] * self._numbers > NUMBERS_AT_ONCE
        size, program = self._sizes[are_many], programs[are_many]
        some = zip(*(blocks(one, size) for one in rows), strict=True)
        parts = zip(*(program(list(part)) for part in some), strict=True)
        return [np.concatenate([np.asarray(x, float) for x in part])[: shape[0]] for part in parts]

    def _places(self, at: list[jax.Array]) -> list[tuple[Term, list[jax.Array]]]:
        """Of each term its own predictors."""
        found, start = [], 0
        for term in self._terms:
            shape = term.node.shape
            stop = start + math.prod(shape)
            own = [one[start:stop].reshape(shape) for one in at[: len(term.predictors)]]
            found.append((term, own))
            start = stop
        return found

    def _of_values(self, at: list[jax.Array]) -> list[jax.Array]:
        def of_one(at: list[jax.Array]) -> jax.Array:
            parts = [term.value(own).reshape(-1) for term, own in self._places(at)]
            return jnp.concatenate(parts)

        return [jax.vmap(of_one)(at)]

    def _of_derivatives(self, at: list[jax.Array]) -> list[jax.Array]:
        count = len(at)

        def of_one(at: list[jax.Array]) -> list[jax.Array]:
            found = []
            for term, own in self._places(at):
                moments, few = derivatives(term.value, own), len(own)
                second = dict(zip(pairs(few), moments.second, strict=True))
                nothing = jnp.zeros_like(moments.value)
                firsts = [*moments.first, *[nothing] * (count - few)]
                seconds = [second.get(pair, nothing) for pair in pairs(count)]
                found.append([moments.value, *firsts, *seconds])
            return [jnp.concatenate([x.reshape(-1) for x in xs]) for xs in zip(*found, strict=True)]

        return jax.vmap(of_one)(at)


class _Facts(NamedTuple):
    """What a site is, whatever its values."""

    site: RowSite
    is_observed: bool
    is_row: bool
    is_even: bool  #: whether each element counts once

    @classmethod
    def of(cls, name: str, site: dict[str, Any], log_prob: jax.Array) -> _Facts:
        shape, frames = jnp.shape(log_prob), site["cond_indep_stack"]
        plates = (Plate(frame.name, int(frame.size), len(shape) + frame.dim) for frame in frames)
        is_even = site["scale"] is None and not is_masked(site["fn"])
        row_site = RowSite(name, shape, tuple(plates))
        return cls(row_site, site["is_observed"], has_data(site), is_even)


@dataclasses.dataclass(frozen=True)
class _Programs:
    """Of the elements at one latent vector or many; each is given the arrays that they hold.

    :param parts: see :meth:`ModelRows._parts`.
    """

    parts: Operations

    def values(self, held: list, theta: jax.Array, arrays: list) -> jax.Array:
        """Of vectors ``(K, d)``, shape ``(K, M)``."""
        return jax.vmap(lambda one: self._flat(held, one, arrays))(theta)

    def slopes(self, held: list, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        """The same, and their gradients, shape ``(K, M, d)``."""

        def forward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, push = jax.linearize(lambda at: self._flat(held, at, arrays), one)
            return value, jax.vmap(push, out_axes=1)(jnp.eye(len(one), dtype=one.dtype))

        def backward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, back = jax.vjp(lambda at: self._flat(held, at, arrays), one)
            return value, jax.vmap(back)(jnp.eye(len(value), dtype=value.dtype))[0]

        count = jax.eval_shape(lambda one: self._flat(held, one, arrays), theta[0]).size
        if theta.shape[1] > count:
            return jax.lax.map(backward, theta)
        try:
            return jax.lax.map(forward, theta)
        except TypeError:  # an operation whose rule is for the way back
            return jax.lax.map(backward, theta)

    def sums(
        self, held: list, theta: jax.Array, weights: jax.Array, prior: jax.Array, arrays: list
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The elements, the log density with so many times each, and its gradient."""

        def value(one: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            parts, rest, *_ = self.parts(held, one, arrays)
            values = _in_a_row(parts)
            # What does not count may be infinite.
            return jnp.where(weights != 0, values, 0.0) @ weights + prior * rest, values

        both = jax.vmap(jax.value_and_grad(value, has_aux=True))
        (sums, values), slopes = both(theta, weights)
        return values, sums, slopes

    def counted(self, held: list, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        """How many times each element counts, and where masks let it count."""
        _, _, scales, masks = self.parts(held, theta, arrays)
        return _in_a_row(scales), _in_a_row(masks)

    def _flat(self, held: list, theta: jax.Array, arrays: list) -> jax.Array:
        return _in_a_row(self.parts(held, theta, arrays)[0])


def _in_a_row(parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _joined(found: list[tuple], count: int) -> tuple[np.ndarray, ...]:
    """What blocks give, such as values and gradients, of all rows."""
    parts = zip(*found, strict=True)
    return tuple(np.concatenate([np.asarray(x, float) for x in part])[:count] for part in parts)
