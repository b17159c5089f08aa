"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.additive_terms import AdditiveTerms, Term, evaluate
from ngvi.estimators.nodes import TermMoments, pairs
from ngvi.latents.layout import Plate
from ngvi.workflow.predictors import check_same, joined
from ngvi.workflow.rows import Predictors, RowSite
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
        self._model, self._guide, self._params, self._here = model, guide, params, here
        self._arguments, self._dims = Arguments(args, kwargs), [q.dim for q in here.values()]
        self._dtype = next(iter(here.values())).loc.dtype
        self.eps, found = float(jnp.finfo(self._dtype).eps), {}
        density = LogDensity(model, guide, args, kwargs, random.key(0))
        self.is_enumerated = density.is_enumerated

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

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        some = blocks(theta.astype(self._dtype), min(VALUES_AT_ONCE, len(theta)))
        found = [self._arguments.call(self._values, part) for part in some]
        return np.concatenate([np.asarray(part, float) for part in found])[: len(theta)]

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = blocks(theta.astype(self._dtype), min(JACOBIANS_AT_ONCE, len(theta)))
        found = [self._arguments.call(self._slopes, part) for part in some]
        values, slopes = (
            np.concatenate([np.asarray(part, float) for part in parts])[: len(theta)]
            for parts in zip(*found, strict=True)
        )
        return values, slopes

    def _some_values(self, theta: jax.Array, arrays: list) -> jax.Array:
        return jax.vmap(lambda one: self._flat(one, arrays))(theta)

    def _some_slopes(self, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        def of_one(one: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, back = jax.vjp(lambda at: self._flat(at, arrays), one)
            (slopes,) = jax.vmap(back)(jnp.eye(len(value), dtype=value.dtype))
            return value, slopes

        return jax.lax.map(of_one, theta)

    def _flat(self, theta: jax.Array, arrays: list) -> jax.Array:
        return jnp.concatenate([part.reshape(-1) for part in self._by_site(theta, arrays)])

    def _by_site(self, theta: jax.Array, arrays: list) -> list[jax.Array]:
        parts = jnp.split(theta, np.cumsum(self._dims)[:-1])
        log_probs, trace, _ = self._run(dict(zip(self._here, parts, strict=True)), arrays)
        return [unscaled(trace[site.name], log_probs[site.name]) for site in self.sites]

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
        args, kwargs = self._arguments.rebuilt(arrays)
        density = LogDensity(self._model, self._guide, args, kwargs, random.key(0))
        return site_log_probs(density, latents, self._params, random.key(0))

    # -- predictors -------------------------------------------------------------------

    def predictors(self) -> Predictors | None:
        try:
            with jax.default_matmul_precision("highest"):
                return self._predictors()
        except Exception:  # noqa: BLE001  a model may do what this cannot follow
            return None

    def _predictors(self) -> Predictors:
        calculus, families = JaxCalculus(), list(self._here.values())

        def of_vectors(*vectors: jax.Array) -> list[jax.Array]:
            return self._by_site(jnp.concatenate(vectors), self._arguments.arrays)

        latents, terms = elementwise_terms_of(of_vectors, [family.mean for family in families])
        found = AdditiveTerms(terms[0].node, tuple(latents), tuple(terms))
        found.check_size(sum(self._dims))
        nodes = [list(term.predictors) for term in terms]

        def affine(*vectors: jax.Array) -> list[jax.Array]:
            known = dict(zip(map(id, latents), vectors, strict=True))
            return evaluate([one for some in nodes for one in some], known)

        @compiled
        def linear(zeros: list[jax.Array], eyes: list[jax.Array]) -> tuple:
            offsets, push, _ = calculus.linear(affine, zeros)
            return offsets, push(eyes)

        zeros = [np.zeros(dim, self._dtype) for dim in self._dims]
        eye = np.eye(sum(self._dims), dtype=self._dtype)
        offsets, slopes = linear(zeros, np.split(eye, np.cumsum(self._dims)[:-1], 1))
        as_numpy = ([np.asarray(x, float) for x in part] for part in (offsets, slopes))
        offset, slope = joined(*as_numpy, [len(some) for some in nodes])
        own = _Terms(terms, self.sites, self._dtype)
        predictors = Predictors(offset, slope, own.values, own.derivatives, self.eps)
        check_same(predictors, self, sum(self._dims))
        return predictors


class _Terms:
    """The sites' terms as functions of all elements' predictors, each one program."""

    def __init__(self, terms: list[Term], sites: tuple[RowSite, ...], dtype: Any) -> None:
        self._terms, self._sites, self._dtype = terms, sites, dtype
        self._values = compiled(self._of_values)
        self._derivatives = compiled(self._of_derivatives)

    def values(self, at: list[np.ndarray]) -> np.ndarray:
        return self._in_blocks(self._values, at)[0]

    def derivatives(self, at: list[np.ndarray]) -> TermMoments:
        value, *rest = self._in_blocks(self._derivatives, at)
        return TermMoments(value, rest[: len(at)], rest[len(at) :])

    def _in_blocks(self, program: Callable, at: list[np.ndarray]) -> list[np.ndarray]:
        """Of powers of two rows, so that few programs are compiled."""
        count, shape = len(at[0]), np.broadcast_shapes(*(one.shape for one in at))
        padded = 2 ** (count - 1).bit_length() - count
        rows = [np.broadcast_to(one, shape).astype(self._dtype) for one in at]
        rows = [np.pad(one, ((0, padded), (0, 0)), "edge") for one in rows]
        return [np.asarray(part, float)[:count] for part in program(rows)]

    def _places(self, at: list[jax.Array]) -> list[tuple[Term, list[jax.Array]]]:
        """Of each site's term its own predictors."""
        found, start = [], 0
        for term, site in zip(self._terms, self._sites, strict=True):
            stop = start + site.size
            own = [one[start:stop].reshape(site.shape) for one in at[: len(term.predictors)]]
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
