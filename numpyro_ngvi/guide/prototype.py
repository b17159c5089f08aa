"""NumPyro's set-up of a guide, compiled.

To set up a guide, NumPyro runs the model operation by operation: for a trace, for the start, and
for the gradient that shows whether the start is valid. In a new process, each operation is compiled
separately, which takes most of the time until the first step. Here all three runs are one program.
NumPyro does the rest, with its further attempts and its errors: models that cannot be traced,
starts that are not valid, and arguments that are tracers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.util import get_potential_fn, potential_energy, transform_fn
from numpyro.primitives import Messenger

from ngvi.guide.robust_init import ROBUST_INIT
from numpyro_ngvi.guide.dynamic_supports import dynamic_sites
from numpyro_ngvi.guide.robust_init import density_around, strategies_of
from numpyro_ngvi.tracing.arguments import Arguments, as_jax, is_traced
from numpyro_ngvi.tracing.compilation import compiled

Trace = dict[str, dict[str, Any]]


def set_up_prototype(guide: Any, args: tuple, kwargs: dict) -> float:
    """Set up what ``AutoGuide`` knows of its model.

    :return: the initial standard deviation of its latents.
    """
    rng_key = numpyro.prng_key()
    with handlers.block():
        found = _cached_start(guide, rng_key, args, kwargs)
        if found is None and guide.hide_data(args, kwargs):
            found = _cached_start(guide, rng_key, args, kwargs)
    if found is None:
        own, options = as_jax((args, kwargs))
        with Keyed(key=rng_key):
            AutoGuide._setup_prototype(guide, *own, **options)
        trace, scale = guide.prototype_trace, guide._requested_scale or ROBUST_INIT.scale
        # In the model's order again, as below.
        guide._init_locs = {n: guide._init_locs[n] for n in trace if n in guide._init_locs}
    else:
        trace, guide._init_locs, scale = found
        guide.prototype_trace, guide._prototype_frames = trace, _frames(trace)
    try:
        _set_up_replay(guide, trace, *as_jax((args, kwargs)))
    except (TypeError, IndexError):  # the model takes plain numbers of its data, which numpy gives
        _set_up_replay(guide, trace, args, kwargs)
    # A plate inside scan leaves no site in the trace, and takes no minibatches.
    guide._prototype_frame_full_sizes = {
        name: trace[name]["args"][0] if name in trace else frame.size
        for name, frame in guide._prototype_frames.items()
    }
    return scale


def _set_up_replay(guide: Any, trace: Trace, args: tuple, kwargs: dict) -> None:
    """Set up what runs the model for supports, and for deterministic sites."""
    guide._dynamic = dynamic_sites(guide.model, trace, args, kwargs)
    has_deterministic = any(site["type"] == "deterministic" for site in trace.values())
    _, postprocess_fn = get_potential_fn(
        _prepared(guide.model, trace),
        _transforms(trace),
        replay_model=has_deterministic or bool(guide._dynamic),
        model_args=args,
        model_kwargs=kwargs,
    )
    guide._postprocess_fn = handlers.seed(postprocess_fn, rng_seed=0)
    if has_deterministic and Arguments(args, kwargs).arrays:
        with handlers.block():  # whoever runs the guide sees no sites of this run
            jax.eval_shape(guide._postprocess_fn, guide._init_locs)


def cached_of_fit(guide: Any, kind: str, find: Callable) -> Any:
    """Return what another guide of the same fit has found for a strategy, or find it now.

    :param kind: of what is found.
    """
    cache, by = guide._of_fit, (guide.model_as_given, guide.init_loc_fn)
    if cache is None:
        return find()
    rest = guide._requested_scale, guide.create_plates, guide.model.hides_data
    key = kind, *map(id, by), *rest
    if key not in cache:
        cache[key] = find(), by  # which keeps the ids
    return cache[key][0]


def _cached_start(guide: Any, *run: Any) -> tuple[Trace, dict[str, jax.Array], float] | None:
    found, enumerated = cached_of_fit(
        guide, "start", lambda: (_find_start(guide, *run), guide.model.enumerated)
    )
    guide.model.enumerated |= enumerated
    if found is None:
        return None
    trace, locs, scale = found
    return {name: dict(site) for name, site in trace.items()}, dict(locs), scale


def _find_start(guide: Any, *run: Any) -> tuple[Trace, dict[str, jax.Array], float] | None:
    """Find the model's trace, unconstrained values and initial scale at a valid start.

    :param run: a key, and the arguments.
    :return: None if there is no such start by one program.
    """
    strategies = strategies_of(guide.init_loc_fn)
    level, found = ROBUST_INIT.best(strategies, lambda strategy: _start(guide, strategy, *run))
    if not math.isfinite(level):
        return None
    trace, locs, around = found
    scale = guide._requested_scale or ROBUST_INIT.scale
    if ROBUST_INIT.explodes(around, level):
        arguments = Arguments(*run[1:])

        def levels(arrays: list) -> jax.Array:
            density = _density(guide.model, trace, *arguments.rebuilt(arrays))
            return density_around(density, locs, *ROBUST_INIT.narrower)

        around = np.asarray(compiled(levels, runs_once=True)(arguments.arrays))
        scale = ROBUST_INIT.narrow_scale(around, level, sum(map(jnp.size, locs.values())))
    return trace, locs, scale


def _start(
    guide: Any, strategy: Callable, rng_key: jax.Array, args: tuple, kwargs: dict
) -> tuple[float, tuple | None]:
    """Evaluate the start of a strategy.

    The log density is NaN if its gradient is not finite. With it come the trace, the unconstrained
    values and the log density at draws about them, if these count.
    """
    if is_traced((rng_key, args, kwargs)):
        return math.nan, None
    # With plates, the model's minibatch has not all latents.
    scales = [ROBUST_INIT.scale] * (guide._requested_scale is None and guide.create_plates is None)

    def evaluated(trace: Trace, args: tuple, kwargs: dict) -> tuple:
        latents = _latents(trace)
        if any(isinstance(site["fn"], dist.Delta) for site in latents.values()):
            raise NotImplementedError("NumPyro has advice.")
        values = {name: site["value"] for name, site in latents.items()}
        locs = transform_fn(_transforms(trace), values, invert=True)
        density = _density(guide.model, trace, args, kwargs)
        level, gradient = jax.value_and_grad(density)(locs)
        finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((level, gradient))]
        level = jnp.where(jnp.stack(finite).all(), level, jnp.nan)
        ordered = {name: locs[name] for name in latents}
        return locs, level, density_around(density, ordered, *scales) if scales else jnp.zeros(0)

    arguments = Arguments(args, kwargs)
    for _ in range(2):
        try:
            trace, (locs, level, around) = _traced(
                guide.model, strategy, rng_key, arguments, evaluated
            )
            if math.isfinite(level):
                # These need distributions that survive being taken apart.
                _transforms(trace), _frames(trace)
            # In the model's order again, which is that of the latent vector.
            locs = {name: locs[name] for name in _latents(trace)}
            return float(level), (trace, locs, np.ravel(around))
        except Exception:  # noqa: BLE001  NumPyro, or the model in its hands, knows what to say
            arguments.hold_constant()
    return math.nan, None


def _traced(
    model: Callable,
    init_loc_fn: Callable,
    rng_key: jax.Array,
    arguments: Arguments,
    also: Callable = lambda trace, args, kwargs: (),
) -> tuple[Trace, Any]:
    """Trace the model from values of a strategy, and compute more of it, by one program.

    :param also: of the trace and the arguments.
    """
    recorded: list = []

    def run(rng_key: jax.Array, arrays: list) -> tuple:
        args, kwargs = arguments.rebuilt(arrays)
        trace = _started(model, init_loc_fn, rng_key, args, kwargs)
        # A dictionary would come back sorted.
        leaves, structure = jax.tree.flatten(list(trace.values()))
        recorded[:] = list(trace), leaves, structure
        computed = [leaf if isinstance(leaf, jax.core.Tracer) else None for leaf in leaves]
        return computed, also(trace, args, kwargs)

    computed, found = compiled(run, runs_once=True)(rng_key, arguments.arrays)
    names, leaves, structure = recorded
    pairs = zip(leaves, computed, strict=True)
    sites = jax.tree.unflatten(structure, [leaf if one is None else one for leaf, one in pairs])
    return dict(zip(names, sites, strict=True)), found


def _started(
    model: Callable, init_loc_fn: Callable, rng_key: jax.Array, args: tuple, kwargs: dict
) -> Trace:
    started = handlers.substitute(handlers.seed(model, rng_key), substitute_fn=init_loc_fn)
    return handlers.trace(started).get_trace(*args, **kwargs)


def started_trace(
    model: Callable, init_loc_fn: Callable, rng_key: jax.Array, args: tuple, kwargs: dict
) -> Trace:
    """Trace the model from values of a strategy, by one program if it can be compiled."""
    with handlers.block():
        try:
            return _traced(model, init_loc_fn, rng_key, Arguments(args, kwargs))[0]
        except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
            return _started(model, init_loc_fn, rng_key, args, kwargs)


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
    """Give parameters and mutable state of the model the values that they have in the trace."""
    values = {
        name: site["value"] for name, site in trace.items() if site["type"] in ("param", "mutable")
    }
    return Keyed(handlers.substitute(model, data=values))


def _density(model: Callable, trace: Trace, args: tuple, kwargs: dict) -> Callable:
    """Return the model's log density at unconstrained values, of the trace's minibatch.

    Whoever asks again, for a gradient say, does not run the model again.
    """
    plates = {name: site["value"] for name, site in trace.items() if site["type"] == "plate"}
    prepared = handlers.substitute(_prepared(model, trace), data=plates)
    return jax.jit(lambda locs: -potential_energy(prepared, args, kwargs, locs), inline=True)


def _latents(trace: Trace) -> Trace:
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def _frames(trace: Trace) -> dict[str, Any]:
    """Return the plates around latents, by name."""
    frames: dict[str, Any] = {}
    for site in _latents(trace).values():
        for frame in site["cond_indep_stack"]:
            if frames.setdefault(frame.name, frame) != frame:
                raise ValueError(f"Plate '{frame.name}' has two sizes or dimensions.")
    return frames


def _transforms(trace: Trace) -> dict[str, Any]:
    """Return the maps from unconstrained values of latents and parameters, by site."""
    params = {name: site["kwargs"] for name, site in trace.items() if site["type"] == "param"}
    supports = {name: site["fn"].support for name, site in _latents(trace).items()}
    supports |= {name: of.get("constraint", constraints.real) for name, of in params.items()}
    return {name: biject_to(support) for name, support in supports.items()}
