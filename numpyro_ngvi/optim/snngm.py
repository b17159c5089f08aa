"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from numpyro_ngvi.families.coordinates import num_parameters
from numpyro_ngvi.optim import adaptive
from numpyro_ngvi.optim.adaptive import Pace
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
    step_size: float | Schedule | str = "auto",
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

    By default nothing needs tuning. A gradient is then cut to a length in the Fisher metric, for
    mean and scale separately, instead of normalised; that length and the step size adapt to
    whether fresh gradients agree with the last step, and the step size decreases once they do
    not, so that noise averages out (:mod:`~numpyro_ngvi.optim.adaptive`)::

        m_t = beta m_{t-1} + (1 - beta) min(rho_t, limit_t / |g_t|) g_t
        lambda <- lambda + m_t / (1 - beta^t)

    :param step_size: ``"auto"``, or ``alpha_0`` in the units of the unconstrained latents: a
        number (Tan uses 1e-3) or an optax schedule.
    :param beta: momentum, in [0, 1).
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for a ``step_size`` or ``beta`` outside its range; on ``init``, if
        there are no natural parameters.
    """
    check_momentum(beta)
    if isinstance(step_size, str):
        if step_size != "auto":
            raise ValueError(
                f"step_size must be 'auto', a number or a schedule, got {step_size!r}."
            )
        rule = _AdaptiveRule(beta)
    else:
        rule = _SnngmRule(check_step_size(step_size), beta)
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


class SnngmState(NamedTuple):
    """State of the rule that needs no step size."""

    pace: Pace
    momentum: Families
    change: Families  #: the last step, in coordinates


class _AdaptiveRule(NamedTuple):
    beta: float

    def init(self, families: Families) -> SnngmState:
        pace = adaptive.start(families[0].loc.dtype)
        return SnngmState(pace, zeros_like(families), zeros_like(families))

    def step(
        self, gradients: Families, state: SnngmState, families: Families, count: jax.Array
    ) -> tuple[Families, SnngmState]:
        dtype = families[0].loc.dtype
        dual, of_mean, of_scale = adaptive.lengths(families, gradients)
        slope = -adaptive.product(dual, state.change)
        pace = adaptive.judge(state.pace, slope, jnp.hypot(of_mean, of_scale), count)
        limit = pace.limit
        limit_of_scale = jnp.minimum(limit, adaptive.INITIAL_LIMIT)
        rho = 1.0 / pace.slowness
        entering = adaptive.scaled(
            gradients,
            adaptive.within(rho, limit, of_mean),
            adaptive.within(rho, limit_of_scale, of_scale),
        )
        momentum = jax.tree.map(
            lambda m, g: self.beta * m - (1 - self.beta) * g, state.momentum, entering
        )
        # A momentum grows long when q becomes narrow under it.
        weight = (1 - self.beta ** (count + 1.0)).astype(dtype)
        _, of_mean, of_scale = adaptive.lengths(families, momentum)
        of_mean, of_scale = of_mean / weight, of_scale / weight
        cut_mean = adaptive.within(1.0, limit, of_mean)
        cut_scale = adaptive.within(1.0, limit_of_scale, of_scale)
        momentum = adaptive.scaled(momentum, cut_mean, cut_scale)
        moved = retract(families, jax.tree.map(lambda m: m / weight, momentum))
        change = jax.tree.map(jnp.subtract, moved, families)
        pace = pace._replace(length=jnp.hypot(cut_mean * of_mean, cut_scale * of_scale))
        return moved, SnngmState(pace, momentum, change)

    def recover(self, state: SnngmState, families: Families) -> tuple[Families, SnngmState]:
        """Back to where the last step began, with a tenth of its length."""
        earlier = jax.tree.map(jnp.subtract, families, state.change)
        pace = state.pace
        length = jnp.where(pace.length > 0, pace.length, pace.limit)
        limit = jnp.minimum(pace.limit, jnp.maximum(0.1 * length, adaptive.SMALLEST_LIMIT))
        pace = pace._replace(limit=limit, length=jnp.zeros_like(length))
        still = jax.tree.map(jnp.zeros_like, state.change)
        return earlier, SnngmState(pace, still, still)
