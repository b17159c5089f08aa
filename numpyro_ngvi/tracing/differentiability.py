"""A check that a model has a Hessian which is its curvature, and sites that are the reason if not.

See :mod:`ngvi.estimators.missed_curvature`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.missed_curvature import Along, half_segment, missed, what_is_missed
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.log_density import Latents, LogDensity, site_log_probs


def hessian_obstacle(
    density: LogDensity,
    latents: Latents,
    params: dict[str, Any],
    guide_key: jax.Array,
    missed: Callable[[], list[str] | None],
) -> Exception | None:
    """Return why the log density has no Hessian, naming the sites; None if it has one.

    Only traces abstractly; nothing is evaluated but by ``missed``. A model that cannot even be run
    raises.

    :param missed: finds out which sites have a curvature that is not their Hessian's; None if the
        log density has none.
    """

    def function(values: Latents) -> jax.Array:
        return density(values, params, guide_key)

    jax.eval_shape(function, latents)
    try:
        _differentiate_twice(function, latents)
    except Exception as error:  # noqa: BLE001
        names = sites_without_hessian(density, latents, params, guide_key)
        reason = ValueError(what_is_missed(names, str(error)))
        reason.__cause__ = error
        return reason
    found = missed()
    return None if found is None else ValueError(what_is_missed(found))


def sites_without_hessian(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> list[str]:
    """Return the sites whose log density cannot be differentiated twice.

    Only traces abstractly; nothing is evaluated.
    """
    if density.is_enumerated:
        return []

    def log_probs(values: Latents) -> dict[str, jax.Array]:
        return site_log_probs(density, values, params, guide_key)[0]

    def has_hessian(name: str) -> bool:
        try:
            _differentiate_twice(lambda values: jnp.sum(log_probs(values)[name]), latents)
        except Exception:  # noqa: BLE001  whatever JAX says where there is none
            return False
        return True

    return [name for name in jax.eval_shape(log_probs, latents) if not has_hessian(name)]


def sites_with_missed_curvature(
    run: tuple[Any, ...], here: dict[str, Family], params: dict[str, Any]
) -> list[str] | None:
    """Return sites with a curvature that is not their Hessian's; None if the log density has none.

    Compiles a gradient and a product with the Hessian, and runs them seven times; where they
    disagree, once more 82 times, and for each site. In the trace of another program it needs
    arguments that are no part of that. Of arrays that several processes share nothing is found.

    :param run: model and guide, with their arguments.
    :param here: the guide's Gaussians by the site that draws from them.
    :param params: all parameters of model and guide, or some, where they can find the others.
    """
    model, guide, *given = run
    arguments = Arguments(*given)
    if not all(getattr(array, "is_fully_addressable", True) for array in arguments.arrays):
        return None

    def density_of(arrays: list) -> LogDensity:
        return LogDensity(model, guide, *arguments.rebuilt(arrays), key)

    def whole(at: Latents, params: dict[str, Any], arrays: list) -> dict[str, jax.Array]:
        return {"": density_of(arrays)(at, params, key)}

    def by_site(at: Latents, params: dict[str, Any], arrays: list) -> dict[str, jax.Array]:
        log_probs = site_log_probs(density_of(arrays), at, params, key)[0]
        return {name: jnp.sum(value) for name, value in log_probs.items()}

    with jax.ensure_compile_time_eval():
        key = random.key(0)
        centre = {site: family.mean for site, family in here.items()}
        step = {site: half_segment(family) for site, family in here.items()}
        if not _missed(whole, centre, step, params, arguments):
            return None
        if density_of(arguments.arrays).is_enumerated:  # there is no log density of a site
            return []
        return _missed(by_site, centre, step, params, arguments)


def _missed(
    functions: Callable[[Latents, dict[str, Any], list], dict[str, jax.Array]],
    centre: Latents,
    step: Latents,
    params: dict[str, Any],
    arguments: Arguments,
) -> list[str]:
    """Return which of the functions change other than their Hessians say."""

    def run(t: jax.Array, centre: Latents, step: Latents, params: Any, arrays: list) -> Any:
        def function(latents: Latents) -> dict[str, jax.Array]:
            return functions(latents, params, arrays)

        here = jax.tree.map(lambda theta, v: theta + t.astype(theta.dtype) * v, centre, step)
        return function(here), *jax.jvp(jax.jacrev(function), (here,), (step,))

    program = compiled(run, runs_once=True)

    def at_nodes(nodes: np.ndarray, names: set[str] | None) -> dict[str, Along]:
        # One after another: a loop in a program fails while JAX 0.7 traces another one.
        found = [arguments.call(program, np.asarray(t), centre, step, params) for t in nodes]
        values, gradients, products = jax.tree.map(lambda *parts: np.stack(parts), *found)
        return {
            name: (_joined(gradients[name]), _joined(products[name]))
            for name, value in values.items()
            if (names is None or name in names) and np.isfinite(value).all()
        }

    eps = float(jnp.finfo(jax.tree.leaves(step)[0].dtype).eps)
    return missed(at_nodes, _joined(step), eps)


def _joined(by_site: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(part, float) for part in by_site.values()], -1)


def _differentiate_twice(function: Callable[[Any], jax.Array], point: Any) -> None:
    """Trace the program of a product with the Hessian of a function of a pytree.

    :param point: arrays of the shapes of its argument.
    :raises Exception: whatever JAX says where there is none.
    """

    def twice(x: Any) -> Any:
        return jax.jvp(jax.grad(function), (x,), (x,))

    closed = jax.make_jaxpr(twice)(point)
    if any(one.primitive.name == "custom_lin" for one in _equations(closed.jaxpr)):
        # The forward mode of a custom_vjp, which does not exist. JAX does not notice before
        # it compiles, and need not: where a gradient has it, a Hessian may not.
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype),
            (closed.consts, jax.tree.leaves(point)),
        )
        jax.jit(lambda c, x: jax.core.eval_jaxpr(closed.jaxpr, c, *x)).lower(*shapes)


def has_loops(jaxpr: Any) -> bool:
    """Return whether a program runs a loop that has a derivative."""
    loops = (one for one in _equations(jaxpr) if one.primitive.name in ("scan", "while"))
    results = (var for one in loops for var in one.outvars)
    return any(jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in results)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Return all operations, those that others run included."""
    for equation in jaxpr.eqns:
        yield equation
        for part in _parts(equation):
            yield from _equations(part)


def _parts(equation: Any) -> Iterator[Any]:
    """Return the programs that an operation runs."""
    for value in equation.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner
