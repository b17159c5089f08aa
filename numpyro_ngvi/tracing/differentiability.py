"""Which sites keep a model from having a Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ngvi.estimators.missed_curvature import what_is_missed
from numpyro_ngvi.tracing.log_density import Latents, LogDensity
from numpyro_ngvi.tracing.per_example import site_log_probs


def hessian_obstacle(
    density: LogDensity,
    latents: Latents,
    params: dict[str, Any],
    guide_key: jax.Array,
    missed: Callable[[], list[str] | None],
) -> Exception | None:
    """Why the log density has no Hessian, naming the sites; None if it has one.

    Only traces abstractly; nothing is evaluated but by ``missed``. A model that cannot even be run
    raises.

    :param missed: finds out which sites have a curvature that is not their Hessian's; None if the
        log density has none. It is called if the gradient may jump (:func:`may_jump`).
    """

    def function(values: Latents) -> jax.Array:
        return density(values, params, guide_key)

    jax.eval_shape(function, latents)
    try:
        twice = _twice(function, latents)
    except Exception as error:  # noqa: BLE001
        names = sites_without_hessian(density, latents, params, guide_key)
        reason = ValueError(what_is_missed(names, str(error)))
        reason.__cause__ = error
        return reason
    if not may_jump(twice.jaxpr):
        return None
    found = missed()
    return None if found is None else ValueError(what_is_missed(found))


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
    try:
        _twice(function, point)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _twice(function: Callable[[Any], jax.Array], point: Any) -> Any:
    """The program of a product with the Hessian.

    :raises Exception: whatever JAX says where there is none.
    """

    def twice(x: Any) -> Any:
        return jax.jvp(jax.grad(function), (x,), (x,))

    closed = jax.make_jaxpr(twice)(point)
    if "custom_lin" in _primitives(closed.jaxpr):
        # The forward mode of a custom_vjp, which does not exist. JAX does not notice before
        # it compiles, and need not: where a gradient has it, a Hessian may not.
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype),
            (closed.consts, jax.tree.leaves(point)),
        )
        jax.jit(lambda c, x: jax.core.eval_jaxpr(closed.jaxpr, c, *x)).lower(*shapes)
    return closed


#: Operations at which a gradient may jump; what is differentiated as a maximum has them, too.
_JUMPS = {"sign", "floor", "ceil", "round", "clamp", "sort", "argmax", "argmin", "is_finite"}
_JUMPS |= {"gt", "lt", "ge", "le", "eq", "ne"}


def may_jump(jaxpr: Any, depends: list[bool] | None = None) -> bool:
    """Whether a program has an operation whose result jumps as its arguments go on.

    Smooth functions may have some as well, such as ``log1p(exp(-abs(x)))``; one without any has no
    kink, and no wrong second derivative but by a function that a user differentiated by hand.

    :param jaxpr: of the gradient.
    :param depends: which of its arguments go on; by default all.
    """
    depends = [True] * len(jaxpr.invars) if depends is None else depends
    on = {var for var, yes in zip(jaxpr.invars, depends, strict=True) if yes}
    for equation in jaxpr.eqns:
        # Literals stand among the arguments as they are, and have no hash.
        of_arguments = [not hasattr(var, "val") and var in on for var in equation.invars]
        if not any(of_arguments):
            continue
        if equation.primitive.name in _JUMPS:
            return True
        for part in _parts(equation):
            # Loops and branches take other arguments than their bodies: all may go on.
            same = len(part.invars) == len(of_arguments)
            if may_jump(part, of_arguments if same and not _is_loop(equation) else None):
                return True
        on.update(equation.outvars)
    return False


def _is_loop(equation: Any) -> bool:
    return equation.primitive.name in ("scan", "while")


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all operations."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for part in _parts(equation):
            yield from _primitives(part)


def _parts(equation: Any) -> Iterator[Any]:
    """The programs that an operation runs."""
    for value in equation.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner
