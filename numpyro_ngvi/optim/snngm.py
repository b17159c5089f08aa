"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from numpyro_ngvi.families.coordinates import num_parameters
from numpyro_ngvi.optim.joint import (
    Families,
    Schedule,
    check_momentum,
    check_step_size,
    joint,
    joint_norm,
    retract,
    step_size_at,
    zeros_like,
)


def Snngm(
    step_size: float | Schedule = 1e-3,
    beta: float = 0.9,
    other: Any = None,
) -> optax.GradientTransformation:
    """Momentum of the normalised natural gradient over all natural parameters jointly.

    With ``g_t`` the natural gradient of the bound over ``lambda``, the joint vector of all
    natural parameters (Tan, Table 5, middle column)::

        m_t = beta m_{t-1} + (1 - beta) g_t / ||g_t||
        lambda <- lambda + alpha m_t / (1 - beta^t),     alpha = step_size sqrt(len(lambda))

    A step moves ``lambda`` by at most ``alpha``, whatever the size of the gradient: large
    steps cannot happen far from the optimum, and near it a constant ``step_size`` leaves a
    noise of that size, which a decreasing schedule removes. The scale of the loss plays no
    role.

    :param step_size: ``alpha_0``, in the units of the unconstrained latents; a number or an
        optax schedule.
    :param beta: momentum, in [0, 1).
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for a ``step_size`` or ``beta`` outside its range; on ``init``, if
        there are no natural parameters.
    """
    rule = _SnngmRule(check_step_size(step_size), check_momentum(beta))
    return joint(rule, optax.adam(1e-3) if other is None else other, "Snngm")


class _SnngmRule(NamedTuple):
    step_size: float | Schedule
    beta: float

    def init(self, families: Families) -> Families:
        return zeros_like(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: jax.Array
    ) -> tuple[Families, Families]:
        norm = joint_norm(gradients)
        weight = (1 - self.beta) / jnp.where(norm > 0, norm, 1.0)
        momentum = jax.tree.map(lambda m, g: self.beta * m + weight * g, state, gradients)
        alpha = step_size_at(self.step_size, count) * math.sqrt(num_parameters(families))
        scale = alpha / (1 - self.beta ** (count + 1.0))
        step = jax.tree.map(lambda m: -(scale * m).astype(m.dtype), momentum)
        return retract(families, step), momentum
