"""Which sites keep a model from having a Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.tracing.log_density import Latents, LogDensity
from numpyro_ngvi.tracing.per_example import site_log_probs


def hessian_obstacle(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> Exception | None:
    """Why the log density has no Hessian, naming the sites; None if it has one.

    Only traces abstractly; nothing is evaluated. A model that cannot even be run raises.
    """

    def function(values: Latents) -> jax.Array:
        return density(values, params, guide_key)

    jax.eval_shape(function, latents)
    error = why_no_hessian(function, latents)
    if error is None:
        return None
    names = ", ".join(map(repr, sites_without_hessian(density, latents, params, guide_key)))
    of_sites = f" of {names}" if names else ""
    reason = ValueError(f"The log density{of_sites} cannot be differentiated twice ({error})")
    reason.__cause__ = error
    return reason


def sites_without_hessian(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> list[str]:
    """The sites whose log density cannot be differentiated twice.

    Only traces abstractly; nothing is evaluated.
    """
    if density.is_enumerated:
        return []

    def log_probs(values: Latents) -> dict[str, jax.Array]:
        return site_log_probs(density, values, params, guide_key)[0]

    def of_site(name: str) -> Callable[[Latents], jax.Array]:
        return lambda values: jnp.sum(log_probs(values)[name])

    names = jax.eval_shape(log_probs, latents)
    return [name for name in names if why_no_hessian(of_site(name), latents) is not None]


def why_no_hessian(function: Callable[[Any], jax.Array], point: Any) -> Exception | None:
    """What JAX says when it is asked for a second derivative, None if it has one.

    Only traces abstractly; nothing is evaluated.

    :param function: scalar, of a pytree.
    :param point: arrays of the shapes of its argument.
    """

    def twice(x: Any) -> Any:
        return jax.jvp(jax.grad(function), (x,), (x,))

    try:
        closed = jax.make_jaxpr(twice)(point)
        if "custom_lin" in _primitives(closed.jaxpr):
            # The forward mode of a custom_vjp, which does not exist. JAX does not notice before
            # it compiles, and need not: where a gradient has it, a Hessian may not.
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype),
                (closed.consts, jax.tree.leaves(point)),
            )
            jax.jit(lambda c, x: jax.core.eval_jaxpr(closed.jaxpr, c, *x)).lower(*shapes)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all operations."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _primitives(inner)
