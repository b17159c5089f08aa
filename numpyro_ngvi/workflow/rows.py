"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.additive_terms import AdditiveTerms, Term, evaluate
from ngvi.estimators.nodes import TermMoments, pairs
from ngvi.latents.layout import Plate
from ngvi.workflow.predictors import joined
from ngvi.workflow.rows import Predictors, RowSite, WeightedTerms, first_nodes
from numpyro_ngvi.estimators.quadrature import JaxCalculus, derivatives
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing import LogDensity
from numpyro_ngvi.tracing.additive_terms import elementwise_terms_of
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import blocks, compiled
from numpyro_ngvi.tracing.partly_observed import is_masked, mask_of
from numpyro_ngvi.tracing.per_example import site_log_probs
from numpyro_ngvi.workflow.runs import has_data, unscaled

#: Draws of a pass, and of what has a Jacobian each.
VALUES_AT_ONCE, JACOBIANS_AT_ONCE = 128, 16
#: Numbers of terms that a program works on at once.
NUMBERS_AT_ONCE = 2**18
#: Where rows are many, a call takes so many times the number of first nodes of them.
MANY_TIMES = 16


class ModelRows:
    """Those of a model and its guide.

    :param model: a NumPyro model.
    :param guide: its guide, with these parameters.
    :param params: all of them.
    :param here: the Gaussians by the guide's sites.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        params: dict[str, Any],
        here: dict[str, Family],
    ) -> None:
        self._params, self._here = params, here
        self._arguments, self._dims = Arguments(args, kwargs), [q.dim for q in here.values()]
        self._dtype = next(iter(here.values())).loc.dtype
        self.eps, found = float(jnp.finfo(self._dtype).eps), {}
        self._density = LogDensity(model, guide, args, kwargs, random.key(0))
        self.is_enumerated = self._density.is_enumerated

        def run(means: dict[str, jax.Array]) -> dict[str, jax.Array]:
            log_probs, trace, _ = self._run(means, self._arguments.arrays)
            for name, log_prob in log_probs.items():
                site = trace[name]
                is_even = site["scale"] is None and not is_masked(site["fn"])
                found[name] = site, np.shape(log_prob), is_even
            return log_probs

        if not self.is_enumerated:
            jax.eval_shape(run, {site: family.mean for site, family in here.items()})
        rows = {k: one for k, one in found.items() if has_data(one[0])}
        self.sites = tuple(_row_site(name, *one[:2]) for name, one in rows.items())
        self.factors = tuple(
            k for k, (site, *_) in found.items() if site["is_observed"] and k not in rows
        )
        count = sum(site.size for site in self.sites)
        self.weights, self.is_masked = np.ones(count), np.zeros(count, bool)
        if not all(is_even for *_, is_even in rows.values()):
            counted = self._arguments.call(compiled(self._counted, runs_once=True))
            self.weights, self.is_masked = np.asarray(counted[0], float), ~np.asarray(counted[1])
        self._values = compiled(self._some_values, runs_few=True)
        self._slopes = compiled(self._some_slopes, runs_few=True)
        self._sums = compiled(self._some_sums, runs_few=True)

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        some = blocks(theta.astype(self._dtype), min(VALUES_AT_ONCE, len(theta)))
        found = [self._arguments.call(self._values, part) for part in some]
        return np.concatenate([np.asarray(part, float) for part in found])[: len(theta)]

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = blocks(theta.astype(self._dtype), min(JACOBIANS_AT_ONCE, len(theta)))
        return _joined([self._arguments.call(self._slopes, part) for part in some], len(theta))

    def weighted(
        self, theta: np.ndarray, weights: np.ndarray, prior: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        size = min(VALUES_AT_ONCE, len(theta))
        parts = (blocks(array.astype(self._dtype), size) for array in (theta, weights))
        times = self._dtype.type(prior)
        found = [
            self._arguments.call(self._sums, *some, times) for some in zip(*parts, strict=True)
        ]
        return _joined(found, len(theta))

    def _some_values(self, theta: jax.Array, arrays: list) -> jax.Array:
        return jax.vmap(lambda one: self._flat(one, arrays))(theta)

    def _some_slopes(self, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        def forward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, push = jax.linearize(lambda at: self._flat(at, arrays), one)
            return value, jax.vmap(push, out_axes=1)(jnp.eye(len(one), dtype=one.dtype))

        def backward(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, back = jax.vjp(lambda at: self._flat(at, arrays), one)
            return value, jax.vmap(back)(jnp.eye(len(value), dtype=value.dtype))[0]

        if theta.shape[1] > len(self.weights):
            return jax.lax.map(backward, theta)
        try:
            return jax.lax.map(forward, theta)
        except TypeError:  # an operation whose rule is for the way back
            return jax.lax.map(backward, theta)

    def _some_sums(
        self, theta: jax.Array, weights: jax.Array, prior: jax.Array, arrays: list
    ) -> tuple[jax.Array, jax.Array]:
        def value(one: jax.Array, weights: jax.Array) -> jax.Array:
            parts, rest = self._parts(one, arrays)
            values = jnp.concatenate([part.reshape(-1) for part in parts])
            # What does not count may be infinite.
            return jnp.where(weights != 0, values, 0.0) @ weights + prior * rest

        return jax.vmap(jax.value_and_grad(value))(theta, weights)

    def _flat(self, theta: jax.Array, arrays: list) -> jax.Array:
        parts, _ = self._parts(theta, arrays)
        return jnp.concatenate([part.reshape(-1) for part in parts])

    def _parts(self, theta: jax.Array, arrays: list) -> tuple[list[jax.Array], jax.Array]:
        """The elements by site, and the rest of the log density."""
        vectors = jnp.split(theta, np.cumsum(self._dims)[:-1])
        log_probs, trace, of_guide = self._run(dict(zip(self._here, vectors, strict=True)), arrays)
        names = [site.name for site in self.sites]
        others = [jnp.sum(value) for name, value in log_probs.items() if name not in names]
        parts = [unscaled(trace[name], log_probs[name]) for name in names]
        return parts, sum(others, start=jnp.zeros((), self._dtype)) - of_guide

    def _counted(self, arrays: list) -> tuple[jax.Array, jax.Array]:
        """How many times each counts, and where masks let it count."""
        _, trace, _ = self._run({k: family.mean for k, family in self._here.items()}, arrays)
        scales = [trace[site.name]["scale"] for site in self.sites]
        masks = [mask_of(trace[site.name]["fn"]) for site in self.sites]

        def flat(values: list) -> jax.Array:
            pairs = zip(values, self.sites, strict=True)
            parts = [jnp.broadcast_to(value, site.shape).reshape(-1) for value, site in pairs]
            return jnp.concatenate(parts)

        return flat([1.0 if scale is None else scale for scale in scales]), flat(masks)

    def _run(self, latents: dict[str, jax.Array], arrays: list) -> tuple:
        density = copy.copy(self._density)
        density.args, density.kwargs = self._arguments.rebuilt(arrays)
        return site_log_probs(density, latents, self._params, random.key(0))

    # -- predictors -------------------------------------------------------------------

    def predictors(self) -> tuple[Predictors, WeightedTerms | None] | None:
        try:
            with jax.default_matmul_precision("highest"):
                return self._predictors()
        except Exception:  # noqa: BLE001  a model may do what this cannot follow
            return None

    def _predictors(self) -> tuple[Predictors, WeightedTerms | None]:
        # Unlike a run of torch, a program of JAX has every way through the model: no check_same.
        families = list(self._here.values())

        def of_vectors(*vectors: jax.Array) -> list[jax.Array]:
            parts, rest = self._parts(jnp.concatenate(vectors), self._arguments.arrays)
            return [*parts, rest]

        latents, terms, rest = elementwise_terms_of(of_vectors, [q.mean for q in families])
        found = AdditiveTerms(terms[0].node, tuple(latents), tuple(terms))
        found.check_size(sum(self._dims))
        offset, slope, *_ = self._affine(found, lambda zeros: (jnp.zeros(()), []))
        predictors = Predictors(offset, slope, *_Terms(terms, self._dtype).functions, self.eps)
        if rest is None or not rest.terms:
            return predictors, None
        offset, slope, constant, weights = self._affine(rest, jax.value_and_grad(rest.value))
        own = Predictors(offset, slope, *_Terms(rest.terms, self._dtype).functions, self.eps)
        flat = np.concatenate([np.asarray(one, float).ravel() for one in weights])
        return predictors, WeightedTerms(own, flat, float(constant))

    def _affine(self, terms: AdditiveTerms, value: Callable[[list[jax.Array]], tuple]) -> tuple:
        """Offsets and slopes of the terms' predictors, and a value and slopes at terms of zero."""
        nodes = [list(term.predictors) for term in terms.terms]

        def affine(*vectors: jax.Array) -> list[jax.Array]:
            known = dict(zip(map(id, terms.latents), vectors, strict=True))
            return evaluate([one for some in nodes for one in some], known)

        @partial(compiled, runs_once=True)
        def linear(zeros: list[jax.Array], eyes: list[jax.Array], nothing: list) -> tuple:
            offsets, push, _ = JaxCalculus().linear(affine, zeros)
            return offsets, push(eyes), *value(nothing)

        zeros = [np.zeros(dim, self._dtype) for dim in self._dims]
        eye = np.eye(sum(self._dims), dtype=self._dtype)
        nothing = [np.zeros(term.node.shape, self._dtype) for term in terms.terms]
        offsets, slopes, constant, weights = linear(
            zeros, np.split(eye, np.cumsum(self._dims)[:-1], 1), nothing
        )
        offsets, slopes = ([np.asarray(x, float) for x in part] for part in (offsets, slopes))
        return *joined(offsets, slopes, [len(some) for some in nodes]), constant, weights


class _Terms:
    """Terms as functions of all their elements' predictors, each one program."""

    def __init__(self, terms: Sequence[Term], dtype: Any) -> None:
        self._terms, self._dtype = terms, dtype
        #: Of few rows at a time, and of many.
        self._values, self._derivatives = (
            (compiled(function, runs_few=True), compiled(function))
            for function in (self._of_values, self._of_derivatives)
        )
        numbers = sum(math.prod(term.node.shape) for term in terms)
        few = len(first_nodes(max(len(term.predictors) for term in terms)))
        fits = max(1, NUMBERS_AT_ONCE // max(1, numbers))
        #: Rows of a call, so that two programs do for any number of them.
        self._sizes = min(few, fits), min(MANY_TIMES * few, fits)

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
        are_many = shape[0] > self._sizes[0] * MANY_TIMES // 2
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


def _row_site(name: str, site: dict[str, Any], shape: tuple[int, ...]) -> RowSite:
    frames = site["cond_indep_stack"]
    plates = (Plate(frame.name, int(frame.size), len(shape) + frame.dim) for frame in frames)
    return RowSite(name, shape, tuple(plates))


def _joined(found: list[tuple], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients of all blocks."""
    parts = zip(*found, strict=True)
    values, slopes = (
        np.concatenate([np.asarray(x, float) for x in part])[:count] for part in parts
    )
    return values, slopes
