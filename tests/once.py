"""A function of which its library knows one derivative and no second one."""

from __future__ import annotations

import importlib


def once(x):
    """``-x^2 / 2``, of an array of JAX or of torch."""
    return (_in_torch if type(x).__module__.startswith("torch") else _in_jax)(x)


def _in_jax(x):
    jax = importlib.import_module("jax")

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


def _in_torch(x):
    autograd = importlib.import_module("torch.autograd")

    class Once(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return -0.5 * x.square()

        @staticmethod
        @autograd.function.once_differentiable
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return -grad * x

    return Once.apply(x)
