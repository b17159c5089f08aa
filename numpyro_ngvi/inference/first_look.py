"""A first run of a NumPyro model; see :mod:`ngvi.inference.first_look`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.extend.core import ClosedJaxpr
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform
from numpyro.primitives import Messenger

from ngvi._foreign import in_arguments
from ngvi.inference.first_look import (
    Seen,
    check_handlers,
    constant_support,
    known_data,
    nan_in,
    unknown_sites,
)
from numpyro_ngvi.inference.new_groups import out_of_bounds
from numpyro_ngvi.tracing.differentiability import has_loops
from numpyro_ngvi.tracing.programs import what_it_does


def look(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Seen | None:
    """Return what a run shows that computes nothing; None if the model does not run so.

    Only where the model takes elements of arrays by indices, or arguments hold NaN, does the model
    run in earnest, once.
    """
    check_handlers(_handlers(model))
    seen = Seen(as_numpy((args, kwargs)))

    def run() -> None:
        seen.latents, seen.others, seen.data = [], [], {}
        trace = _trace(keys := _Keys(model), args, kwargs)
        seen.state = next((k for k, site in trace.items() if site["type"] == "mutable"), "")
        if keys.has_any and not seen.state:
            # But for the first values of parameters, which are drawn once.
            params = {k: site["value"] for k, site in trace.items() if site["type"] == "param"}
            _trace(keys := _Keys(handlers.substitute(model, data=params)), args, kwargs)
        seen.unrepeatable = "as at numpyro.prng_key()" * keys.has_any
        seen.unknown = unknown_sites(_handlers(model), trace, lambda one: _trace(one, args, kwargs))
        for name, site in trace.items():
            if site["type"] == "deterministic":
                seen.others.append(name)
            elif site["type"] == "sample" and site["is_observed"]:
                with jax.ensure_compile_time_eval():
                    support = constant_support(site["fn"], dist.constraints.Constraint)
                    seen.observe(name, known_data(site, as_numpy), support)
            elif site["type"] == "sample":
                seen.latents.append(name)

    try:
        program, data = jax.make_jaxpr(run)(), seen.data
        if seen.state:
            return seen
        seen.has_loops = has_loops(program.jaxpr)
        again = jax.make_jaxpr(lambda: run())()  # another function, which is traced anew
        seen.unrepeatable = (
            seen.unrepeatable
            or _hidden(model, args, kwargs)
            or _unrepeatable(program, data, again, seen.data)
        )
        if any(map(_are_indices, jax.tree.leaves((args, kwargs)))) and "gather" in str(program):
            seen.beyond = out_of_bounds(model, args, kwargs)
        if in_arguments(nan_in, *seen.arguments):
            run()  # in earnest, for data that the model has computed
    except Exception:  # noqa: BLE001  the set-up fails as well, and says why
        return None
    return seen


class _Keys(Messenger):
    """Notes whether a model asks for a random key, as ``numpyro.prng_key()`` does."""

    has_any = False

    def process_message(self, site: dict[str, Any]) -> None:
        self.has_any |= site["type"] == "prng_key"


def _unrepeatable(
    program: ClosedJaxpr, data: dict[str, Any], again: ClosedJaxpr, data_again: dict[str, Any]
) -> str:
    """Say which data, or that all of what another run computes, differ, if they do."""
    names = [k for k in {**data, **data_again} if not _is_same(data.get(k), data_again.get(k))]
    if names:
        return f"as at site '{names[0]}'"
    does = what_it_does(program.jaxpr)
    is_same = does is None or does == what_it_does(again.jaxpr)
    constants = zip(program.consts, again.consts, strict=False)
    is_same = is_same and all(_is_same(*pair) for pair in constants)
    return "" if is_same else "as what it computes"


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two arrays are, if they are arrays of numbers that this process has."""
    if one is other:
        return True
    one, other = as_numpy((one, other))
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return True
    is_float = jnp.issubdtype(one.dtype, jnp.inexact)
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=is_float)


def _hidden(model: Callable, args: tuple, kwargs: dict[str, Any]) -> str:
    """Say which latent a handler hides, so that it is drawn, if any does."""
    for handler, inner in _handlers(model):
        if type(handler) is handlers.block:
            outer = _trace(handler, args, kwargs)
            for name, site in _trace(inner, args, kwargs).items():
                if site["type"] == "sample" and not site["is_observed"] and name not in outer:
                    return f"as at site '{name}'"
    return ""


def _handlers(model: Any) -> Iterator[tuple[Any, Callable]]:
    """Yield the handlers around a model, each with what it is around."""
    while isinstance(model, Messenger) and callable(model.fn):
        yield model, model.fn
        model = model.fn


def _are_indices(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer) and jnp.ndim(leaf) > 0


def as_numpy(tree: Any) -> Any:
    """Take numpy's arrays in place of JAX's, as far as this process has them."""

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        is_number = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        return np.asarray(leaf) if is_number and leaf.is_fully_addressable else leaf

    return jax.tree.map(own, tree)


def _trace(
    model: Callable, args: tuple, kwargs: dict[str, Any], radius: float = 0.0
) -> dict[str, Any]:
    """Trace a run, with unconstrained latents within this distance of zero."""
    started = handlers.substitute(
        handlers.seed(model, 0), substitute_fn=init_to_uniform(radius=radius)
    )
    with handlers.block(), numpyro.validation_enabled(False):
        return handlers.trace(started).get_trace(*args, **kwargs)


def log_densities(model: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return log densities of each element of the observed sites, at a run somewhere."""
    sites = _trace(model, args, kwargs, radius=2.0).items()
    observed = [(k, site) for k, site in sites if site["type"] == "sample" and site["is_observed"]]
    with numpyro.validation_enabled(False):
        return {name: np.asarray(site["fn"].log_prob(site["value"])) for name, site in observed}
