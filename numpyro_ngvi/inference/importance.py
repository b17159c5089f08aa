"""Group from a posterior and their importance weights ``p(y, theta) / q(theta)``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform

from ngvi.inference.diagnostics import NUM_DRAWS, Diagnostics, from_log_weights, undefined
from ngvi.inference.problem import Rows
from ngvi.inference.resampling import NUM_DRAWS as MANY_DRAWS
from ngvi.latents.layout import sites_of_all
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.tracing import LogDensity, latent_site, posteriors_in
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled

#: Group share a pass as long as their intermediate results stay below.
BYTES_PER_PASS = 2**28

#: Of the largest array. Radon, 919 homes: compiled in 2.8 instead of 6.8 s, 18 instead of 4 ms
#: for a group of draws.
FEW_DATA = 2000


def diagnose(
    model: Callable,
    guide: Callable,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict,
    rng_key: jax.Array,
    *,
    num_draws: int = NUM_DRAWS,
) -> Diagnostics:
    """Diagnostics of a fitted guide.

    The weights are those of all that the guide draws: partners in an ``AutoGuideList`` included,
    whose own coordinates are not among the marginals. Discrete latents marked for enumeration
    are summed out.

    :param model: a NumPyro model.
    :param guide: a ``NaturalGaussianGuide``, or a guide with one in it.
    :param params: all parameters of both.
    :param args: arguments of both.
    :param kwargs: keyword arguments of both.
    :param rng_key: a JAX random key.
    :param num_draws: how many draws.
    :raises ValueError: if there is no ``NaturalGaussianGuide``.
    """
    check_has_gaussian(guide, params)
    plates = subsampled_plates(model, params, args, kwargs)
    if plates:
        return undefined(
            f"undefined: the model sees minibatches (of plate '{plates[0].plate}'), whose density "
            "is not that of all data"
        )
    draws = ImportanceDraws(model, guide, params, args, kwargs, rng_key, num_draws)
    log_weights, rounding = draws.log_weights()
    return from_log_weights(log_weights, draws.moments, draws.sites, rounding)


def gaussians(guide: Any) -> list[NaturalGaussianGuide]:
    """The ``NaturalGaussianGuide`` in a guide: itself, or parts of an ``AutoGuideList``."""
    if isinstance(guide, NaturalGaussianGuide):
        return [guide]
    parts = getattr(guide, "_guides", ())
    return [gaussian for part in parts for gaussian in gaussians(part)]


def compiles_longer_than_it_runs(guide: Any, data_size: int) -> bool:
    """Newton's method in a program takes long to compile, and few data hardly any time to run."""
    return isinstance(guide, ReparametrizedGaussianGuide) and data_size <= FEW_DATA


def check_has_gaussian(guide: Any, params: dict[str, Any]) -> None:
    """Raise a ``ValueError`` if no ``NaturalGaussianGuide`` is behind the parameters."""
    if not any(isinstance(value, Family) for value in params.values()):
        raise ValueError(
            "fit and diagnostics need a NaturalGaussianGuide, alone or in an AutoGuideList, and "
            f"there is none in the guide ({type(guide).__name__}). numpyro.infer.importance has "
            "psis_diagnostic for guides of any kind."
        )


class ImportanceDraws:
    """The same draws each time they are asked for, a chunk at a time.

    With ``d = 10^5`` four thousand draws would not fit the memory: they are drawn anew for their
    moments, when their weights are known.

    :ivar sites: that the coordinates belong to.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        params: dict[str, Any],
        args: tuple,
        kwargs: dict,
        rng_key: jax.Array,
        num_draws: int = NUM_DRAWS,
    ) -> None:
        self.model, self.guide, self.params, self.num_draws = model, guide, params, num_draws
        self.model_key, self.guide_key, self.draw_key = random.split(rng_key, 3)
        self.families = posteriors_in(params)
        known = {latent_site(part._parameter_name): part.own_sites for part in gaussians(guide)}
        self.sites = sites_of_all({s: q.dim for s, q in self.families.items()}, known)
        self.dim = sum(family.dim for family in self.families.values())
        self.dtype = jnp.result_type(*(family.loc for family in self.families.values()))
        self._arguments = Arguments(args, kwargs)
        self._num_chunks = -(-num_draws // self._draws_per_pass())
        self._chunk = -(-num_draws // self._num_chunks)

    def log_weights(self) -> tuple[np.ndarray, float]:
        """``log w`` in nats, shape ``(num_draws,)``, and the rounding error of one."""
        densities, log_q = [], []
        of_chunk = self._compiled(functools.partial(self._values, self._chunk))
        for index in range(self._num_chunks):
            values = of_chunk(index, self.params, self._arguments.arrays)
            densities.append(np.asarray(values[0], np.float64))
            log_q.append(np.asarray(values[1], np.float64))
        density = np.concatenate(densities)[: self.num_draws]
        finite = density[np.isfinite(density)]
        size = np.abs(finite).max(initial=0.0) + self.dim
        rounding = float(jnp.finfo(self.dtype).eps) * size
        return density - np.concatenate(log_q)[: self.num_draws], rounding

    def log_densities(self, site: str, latents: np.ndarray) -> np.ndarray:
        """``log p(y, theta)`` in nats at vectors of one family, shape ``(n, d)``."""
        count = min(self._chunk, len(latents))
        padded = np.pad(latents, ((0, -len(latents) % count), (0, 0)), "edge")
        keys, arrays = random.split(self.guide_key, count), self._arguments.arrays

        def of_some(some: jax.Array, params: dict[str, Any], arrays: list) -> jax.Array:
            return self._densities({site: some}, keys, params, arrays)

        of_some = self._compiled(of_some)
        found = [
            of_some(jnp.asarray(some, self.dtype), self.params, arrays)
            for some in padded.reshape(-1, count, latents.shape[1])
        ]
        return np.concatenate([np.asarray(part, np.float64) for part in found])[: len(latents)]

    def moments(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weighted means and mean squares of the draws, in sds of ``q`` from its mean.

        :param weights: shape ``(m, num_draws)``.
        :return: two arrays of shape ``(m, d)``.
        """

        @jax.jit
        def of_chunk(index: jax.Array, weights: jax.Array, families: Any) -> tuple:
            noise = self._noise(index, self._chunk)
            parts = [
                (family.sample(noise[site]) - family.mean) / family.stddev
                for site, family in families.items()
            ]
            standard = jnp.concatenate(parts, -1)
            return weights @ standard, weights @ standard**2

        missing = self._num_chunks * self._chunk - self.num_draws
        padded = np.pad(weights, ((0, 0), (0, missing)))
        means = squares = np.zeros((len(weights), self.dim))
        for index in range(self._num_chunks):
            some = padded[:, index * self._chunk : (index + 1) * self._chunk]
            first, second = of_chunk(index, jnp.asarray(some, self.dtype), self.families)
            means, squares = means + np.asarray(first), squares + np.asarray(second)
        return means, squares

    # -- chunks -----------------------------------------------------------------------

    def _noise(self, index: jax.Array | int, count: int) -> dict[str, jax.Array]:
        keys = random.split(random.fold_in(self.draw_key, index), len(self.families))
        return {
            site: random.normal(key, (count, family.dim), family.loc.dtype)
            for key, (site, family) in zip(keys, self.families.items(), strict=True)
        }

    def _draws_per_pass(self) -> int:
        """How many draws' intermediate results fit; those of the data are shared."""
        try:
            few = self._bytes(2)
        except Exception:  # noqa: BLE001  whatever stops the tracer; constants will do
            self._arguments.hold_constant()
            few = self._bytes(2)
        return int(max(1, BYTES_PER_PASS // max((self._bytes(7) - few) / 5, 1.0)))

    def _bytes(self, count: int) -> int:
        of_count = functools.partial(self._values, count, 0)
        jaxpr = jax.make_jaxpr(of_count)(self.params, self._arguments.arrays)
        return sum(_result_bytes(jaxpr.jaxpr))

    # -- values -----------------------------------------------------------------------

    def _values(
        self, count: int, index: jax.Array | int, params: dict[str, Any], arrays: list
    ) -> tuple[jax.Array, jax.Array]:
        """``log p(y, theta)`` and ``log q(theta)`` at the draws of a chunk."""
        families, noise = posteriors_in(params), self._noise(index, count)
        latents = {site: family.sample(noise[site]) for site, family in families.items()}
        log_q = sum(
            family.noise_log_prob(noise[site]) - family.log_det_scale()
            for site, family in families.items()
        )
        keys = random.split(random.fold_in(self.guide_key, index), count)
        return self._densities(latents, keys, params, arrays), log_q

    def _densities(
        self, latents: dict[str, jax.Array], keys: jax.Array, params: dict[str, Any], arrays: list
    ) -> jax.Array:
        """``log p(y, theta)`` at latent vectors, with keys for a guide's other parts."""
        args, kwargs = self._arguments.rebuilt(arrays)
        density = LogDensity(self.model, self.guide, args, kwargs, self.model_key)
        return jax.vmap(lambda theta, key: density(theta, params, key))(latents, keys)

    def _compiled(self, of_chunk: Callable) -> Callable:
        data_size = max((np.size(array) for array in self._arguments.arrays), default=1)
        is_short = compiles_longer_than_it_runs(self.guide, data_size)
        return compiled(of_chunk, runs_once=is_short)


class FittedGaussian:
    """See :class:`ngvi.inference.resampling.Posterior`."""

    def __init__(
        self, model: Callable, guide: Any, params: dict[str, Any], args: tuple, kwargs: dict
    ) -> None:
        self._draws = ImportanceDraws(model, guide, params, args, kwargs, random.key(0), MANY_DRAWS)
        ((self._site, self._family),) = self._draws.families.items()
        self.sites = self._draws.sites
        self.mean = np.asarray(self._family.mean, np.float64)
        self.log_det_scale = float(self._family.log_det_scale())

    def sample(self, noise: np.ndarray) -> np.ndarray:
        return np.asarray(self._family.sample(jnp.asarray(noise, self._draws.dtype)), np.float64)

    def covariance(self, indices: np.ndarray) -> np.ndarray:
        family, dim = self._family, self._draws.dim
        origin = jnp.zeros(dim, self._draws.dtype)
        transposed = jax.vjp(lambda noise: family.sample(noise) - family.mean, origin)[1]
        rows = jnp.zeros((len(indices), dim), origin.dtype)
        rows = rows.at[np.arange(len(indices)), indices].set(1.0)
        (halves,) = jax.vmap(transposed)(rows)
        return np.asarray(family.sample(halves) - family.mean, np.float64).T

    def log_density(self, latents: np.ndarray) -> np.ndarray:
        return self._draws.log_densities(self._site, latents)


def subsampled_plates(
    model: Callable, params: dict[str, Any], args: tuple, kwargs: dict
) -> list[Rows]:
    """The plates of which the model sees a part."""
    found: list[Rows] = []

    arguments = Arguments(args, kwargs)

    def run(arrays: list) -> None:
        args, kwargs = arguments.rebuilt(arrays)
        values = {name: value for name, value in params.items() if not isinstance(value, Family)}
        started = handlers.substitute(handlers.seed(model, rng_seed=0), data=values)
        # Improper priors cannot be sampled, but their supports have points.
        started = handlers.substitute(started, substitute_fn=init_to_uniform)
        with handlers.block():
            trace = handlers.trace(started).get_trace(*args, **kwargs)
        for name, site in trace.items():
            if site["type"] == "plate":
                size, subsample_size = site["args"]
                if subsample_size is not None and subsample_size < size:
                    found.append(Rows(name, size, subsample_size))

    try:
        jax.eval_shape(run, arguments.arrays)
    except Exception:  # noqa: BLE001  the model does with an array what cannot be traced
        arguments.hold_constant()
        found.clear()
        jax.eval_shape(run, [])
    return found


def _result_bytes(jaxpr: Any) -> Iterator[int]:
    """Of all intermediate results."""
    for equation in jaxpr.eqns:
        for result in equation.outvars:
            yield getattr(result.aval, "size", 0) * getattr(
                getattr(result.aval, "dtype", None), "itemsize", 0
            )
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _result_bytes(inner)
