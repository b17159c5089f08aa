"""A function of which JAX knows one derivative and no second one."""

from __future__ import annotations

import jax


def once(x):
    """``-x^2 / 2``, of which JAX knows one derivative."""

    @jax.custom_vjp
    def slope(x):
        return -x

    @jax.custom_vjp
    def function(x):
        return -0.5 * x**2

    slope.defvjp(lambda x: (slope(x), None), lambda _, cotangent: (-cotangent,))
    # In forward mode a custom_vjp has no derivative, and here one is the gradient.
    function.defvjp(lambda x: (function(x), x), lambda x, cotangent: (cotangent * slope(x),))
    return function(x)
