"""NumPyro's set-up of a guide, compiled.

NumPyro runs the model operation by operation: for its trace, for the start and for the gradient
there, which says whether the start is valid. In a new process each operation is a program of its
own to be compiled, and these are most of the seconds until the first step. Here the three are one
program. Whatever it cannot do (a model that cannot be traced, a start that is not valid, arguments
that are being traced themselves) is left to NumPyro, with its further attempts and its errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.initialization import init_to_mean, init_to_median
from numpyro.infer.util import get_potential_fn, potential_energy, transform_fn
from numpyro.primitives import Messenger

from ngvi.guide import calm
from numpyro_ngvi.tracing.arguments import Arguments, as_jax
from numpyro_ngvi.tracing.compilation import compiled

Trace = dict[str, dict[str, Any]]


class CompiledPrototype(AutoGuide):
    """``AutoGuide`` whose prototype comes from one program; a base to be listed last."""

    #: The initial sd of the latents that the user asks for; None leaves it to the set-up.
    _requested_scale: float | None = None
    _init_scale: Any  #: what it is, by the set-up

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        rng_key = numpyro.prng_key()
        with handlers.block():
            found = self._started(rng_key, args, kwargs)
            if found is None and self._hide_data(args, kwargs):
                found = self._started(rng_key, args, kwargs)
        args, kwargs = as_jax((args, kwargs))
        if found is None:
            with Keyed(key=rng_key):
                super()._setup_prototype(*args, **kwargs)
            self._know_all_plates()
            self._init_scale = self._requested_scale or calm.SCALE
            return
        self._init_scale = self._requested_scale or self._calm_scale(found, args, kwargs)
        self.prototype_trace, self._init_locs = found.trace, found.locs
        model = _prepared(self.model, self.prototype_trace)
        transforms = _transforms(self.prototype_trace)
        self._potential_fn_gen, postprocess_fn_gen = get_potential_fn(
            model,
            transforms,
            replay_model=_is_replayed(self.prototype_trace),
            dynamic_args=True,
            model_args=args,
            model_kwargs=kwargs,
        )
        self._potential_fn = self._potential_fn_gen(*args, **kwargs)
        self._postprocess_fn = handlers.seed(postprocess_fn_gen(*args, **kwargs), rng_seed=0)
        self._prototype_plate_sizes = {}
        self._prototype_frames = _frames(self.prototype_trace)
        self._prototype_frame_full_sizes = {
            name: site["args"][0]
            for name, site in self.prototype_trace.items()
            if site["type"] == "plate"
        }
        self._know_all_plates()

    def _started(self, rng_key: jax.Array, args: tuple, kwargs: dict) -> _Prototype | None:
        """A prototype at a valid start, a calm one where the choice is the guide's; or None."""
        # With plates, the model's minibatch has not all latents.
        looks_around = self._requested_scale is None and self.create_plates is None
        options = rng_key, args, kwargs, looks_around
        found = _prototype(self.model, self.init_loc_fn, *options)
        if found is not None and self.init_loc_fn is init_to_median:
            for strategy in (_medians_of_many, _means):
                if not calm.is_low(found.log_density):
                    break
                other = _prototype(self.model, strategy, *options)
                if other is not None and calm.is_calmer(other.log_density, found.log_density):
                    found = other
        return found if found is not None and math.isfinite(found.log_density) else None

    def _calm_scale(self, found: _Prototype, args: tuple, kwargs: dict) -> float:
        if not calm.explodes(found.around, found.log_density):
            return calm.SCALE
        arguments = Arguments(args, kwargs)

        def run(locs: dict[str, jax.Array], arrays: list) -> jax.Array:
            args, kwargs = arguments.rebuilt(arrays)
            density = _density(self.model, found.trace, args, kwargs)
            return _around(density, found.trace, locs, *calm.NARROWER)

        with handlers.block():
            levels = compiled(run, runs_once=True)(found.locs, arguments.arrays)
        dim = sum(map(jnp.size, found.locs.values()))
        return calm.narrow_scale(np.asarray(levels), found.log_density, dim)

    def _know_all_plates(self) -> None:
        # A plate inside scan leaves no site in the trace, and takes no minibatches.
        sizes = {name: frame.size for name, frame in self._prototype_frames.items()}
        self._prototype_frame_full_sizes = {**sizes, **self._prototype_frame_full_sizes}

    def _hide_data(self, args: tuple, kwargs: dict) -> bool:
        """Leave the data out of the set-up, if they are the only reason for its failure.

        :return: whether they are.
        """
        raise NotImplementedError


def _medians_of_many(site: dict[str, Any]) -> jax.Array | None:
    """``init_to_median``, of so many draws that they are hardly random."""
    if site["type"] != "sample":
        return None
    return init_to_median(site, num_samples=calm.num_samples(math.prod(site["fn"].shape())))


def _means(site: dict[str, Any]) -> jax.Array | None:
    """Means of priors on all reals, where they are finite, and medians of many draws of others."""
    median = _medians_of_many(site)
    if median is None:
        return None
    support = site["fn"].support
    if getattr(support, "base_constraint", support) is not constraints.real:
        return median
    mean = init_to_mean(site)
    return jnp.where(jnp.isfinite(mean), mean, median)


class _Prototype(NamedTuple):
    """A start."""

    trace: Trace  #: of the model
    locs: dict[str, jax.Array]  #: unconstrained, by site
    log_density: float  #: in nats; NaN if its gradient is not finite
    around: np.ndarray  #: the log density at draws about the start, if it was looked there


def _prototype(
    model: Callable,
    init_loc_fn: Callable,
    rng_key: jax.Array,
    args: tuple,
    kwargs: dict,
    looks_around: bool,
) -> _Prototype | None:
    """The model at its start; None if it has none by one program."""
    arguments = Arguments(args, kwargs)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((rng_key, args, kwargs))):
        return None
    for _ in range(2):
        try:
            found = _run(model, init_loc_fn, rng_key, arguments, looks_around)
            if math.isfinite(found.log_density):
                # These need distributions that survive being taken apart.
                _transforms(found.trace), _frames(found.trace)
            return found
        except Exception:  # noqa: BLE001  NumPyro, or the model in its hands, knows what to say
            arguments.hold_constant()
    return None


def _run(
    model: Callable,
    init_loc_fn: Callable,
    rng_key: jax.Array,
    arguments: Arguments,
    looks_around: bool,
) -> _Prototype:
    """The start, by one program."""
    recorded: list[_Recorded] = []

    def run(rng_key: jax.Array, arrays: list) -> tuple:
        args, kwargs = arguments.rebuilt(arrays)
        started = handlers.substitute(handlers.seed(model, rng_key), substitute_fn=init_loc_fn)
        trace = handlers.trace(started).get_trace(*args, **kwargs)
        latents = _latents(trace)
        if any(isinstance(site["fn"], dist.Delta) for site in latents.values()):
            raise NotImplementedError("NumPyro has advice.")
        values = {name: site["value"] for name, site in latents.items()}
        locs = transform_fn(_transforms(trace), values, invert=True)
        density = _density(model, trace, args, kwargs)
        level, gradient = jax.value_and_grad(density)(locs)
        finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((level, gradient))]
        recorded[:] = [_Recorded(trace)]
        level = jnp.where(jnp.stack(finite).all(), level, jnp.nan)
        around = _around(density, trace, locs, calm.SCALE) if looks_around else jnp.zeros(0)
        return recorded[0].computed, locs, level, around

    run_once = compiled(run, runs_once=True)
    computed, locs, level, around = run_once(rng_key, arguments.arrays)
    trace = recorded[0].rebuilt(computed)
    # In the model's order again, which is that of the latent vector.
    locs = {name: locs[name] for name in _latents(trace)}
    return _Prototype(trace, locs, float(level), np.ravel(around))


def _density(model: Callable, trace: Trace, args: tuple, kwargs: dict) -> Callable:
    """The model's log density at unconstrained values, of the trace's minibatch.

    Whoever asks again, for a gradient say, does not run the model again.
    """
    plates = {name: site["value"] for name, site in trace.items() if site["type"] == "plate"}
    prepared = handlers.substitute(_prepared(model, trace), data=plates)
    return jax.jit(lambda locs: -potential_energy(prepared, args, kwargs, locs), inline=True)


def _around(density: Callable, trace: Trace, locs: dict, *scales: float) -> jax.Array:
    """The log density at draws about a start, shape ``(scales, draws)``."""
    names = [*_latents(trace)]  # in the latent vector's order, which is not a dictionary's
    start, unpack = ravel_pytree([locs[name] for name in names])
    directions = jnp.asarray(calm.directions(start.size), start.dtype)
    if not directions.size:
        return jnp.zeros((len(scales), 0))
    steps = jnp.asarray(scales, start.dtype)[:, None, None] * directions

    def at(step: jax.Array) -> jax.Array:
        return density(dict(zip(names, unpack(start + step), strict=True)))

    # One after the other: the model need not be one that can be run for many at a time.
    return jax.lax.map(at, steps.reshape(-1, start.size)).reshape(len(scales), -1)


def started_trace(
    model: Callable, init_loc_fn: Callable, rng_key: jax.Array, args: tuple, kwargs: dict
) -> Trace:
    """The model's trace from values of a strategy, by one program if it can be compiled."""
    arguments, recorded = Arguments(args, kwargs), []

    def run(rng_key: jax.Array, arrays: list) -> list[jax.Array]:
        args, kwargs = arguments.rebuilt(arrays)
        started = handlers.substitute(handlers.seed(model, rng_key), substitute_fn=init_loc_fn)
        recorded[:] = [_Recorded(handlers.trace(started).get_trace(*args, **kwargs))]
        return recorded[0].computed

    with handlers.block():
        try:
            computed = compiled(run, runs_once=True)(rng_key, arguments.arrays)
            return recorded[0].rebuilt(computed)
        except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
            started = handlers.substitute(handlers.seed(model, rng_key), substitute_fn=init_loc_fn)
            return handlers.trace(started).get_trace(*args, **kwargs)


class _Recorded:
    """A trace, without what is computed in it."""

    def __init__(self, trace: Trace) -> None:
        self._names = list(trace)
        # A dictionary would come back sorted.
        self._leaves, self._structure = jax.tree.flatten(list(trace.values()))
        self._indices = [
            index for index, leaf in enumerate(self._leaves) if isinstance(leaf, jax.core.Tracer)
        ]
        self.computed = [self._leaves[index] for index in self._indices]

    def rebuilt(self, computed: Iterable[jax.Array]) -> Trace:
        leaves = list(self._leaves)
        for index, value in zip(self._indices, computed, strict=True):
            leaves[index] = value
        return dict(zip(self._names, jax.tree.unflatten(self._structure, leaves), strict=True))


class Keyed(Messenger):
    """Answers ``numpyro.prng_key()`` with always the same key, by default ``random.key(0)``.

    As a seed, it saves the programs that split a key.
    """

    def __init__(self, fn: Callable | None = None, key: jax.Array | None = None) -> None:
        super().__init__(fn)
        self.key = key

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0) if self.key is None else self.key


def _prepared(model: Callable, trace: Trace) -> Callable:
    """The model with the values that its parameters and mutable state have in the trace."""
    values = {
        name: site["value"] for name, site in trace.items() if site["type"] in ("param", "mutable")
    }
    return Keyed(handlers.substitute(model, data=values))


def _latents(trace: Trace) -> Trace:
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def _frames(trace: Trace) -> dict[str, Any]:
    """The plates around latents, by name."""
    frames: dict[str, Any] = {}
    for site in _latents(trace).values():
        for frame in site["cond_indep_stack"]:
            if frames.setdefault(frame.name, frame) != frame:
                raise ValueError(f"Plate '{frame.name}' has two sizes or dimensions.")
    return frames


def _transforms(trace: Trace) -> dict[str, Any]:
    """From unconstrained values of latents and parameters, by site."""
    of_params = {
        name: site["kwargs"].get("constraint", constraints.real)
        for name, site in trace.items()
        if site["type"] == "param"
    }
    supports = {name: site["fn"].support for name, site in _latents(trace).items()}
    return {name: biject_to(support) for name, support in {**supports, **of_params}.items()}


def _is_replayed(trace: Trace) -> bool:
    """Whether constraining takes a run of the model: for its deterministic sites, or supports
    that depend on other sites.
    """
    supports = [site["fn"].support for site in _latents(trace).values()]
    bounds = [leaf for leaf in jax.tree.leaves(supports) if not isinstance(leaf, (int, float))]
    return bool(bounds) or any(site["type"] == "deterministic" for site in trace.values())
