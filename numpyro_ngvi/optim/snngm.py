"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ngvi.checks import check_momentum, check_step_size, is_auto
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.coordinates import num_parameters
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.optim import pace
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.pace import Pace
from numpyro_ngvi.optim.rule import Schedule, step_size_at


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
    not, so that noise averages out (:mod:`~numpyro_ngvi.optim.pace`)::

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
    if is_auto(step_size, "step_size"):
        return joint(PacedRule(beta), other, "Snngm")
    return joint(SnngmRule(check_step_size(step_size), beta), other, "Snngm")


class SnngmRule(NamedTuple):
    """Of a given step size. Its state is the momentum."""

    step_size: float | Schedule
    beta: float

    def init(self, families: Families) -> Families:
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: jax.Array
    ) -> tuple[Families, Families]:
        norm = direction.joint_norm(gradients)
        weight = (1 - self.beta) / jnp.where(norm > 0, norm, 1.0)
        momentum = direction.combine(self.beta, state, weight, gradients)
        alpha = step_size_at(self.step_size, count) * math.sqrt(num_parameters(families))
        step = direction.scale(-alpha / (1 - self.beta ** (count + 1.0)), momentum)
        return direction.retract(families, step), momentum


class PacedState(NamedTuple):
    """State of the rule that needs no step size."""

    pace: jax.Array  #: the numbers of a :class:`~numpyro_ngvi.optim.pace.Pace`, shape ``(4,)``
    momentum: Families
    change: Families  #: the last step, in coordinates


class PacedRule(NamedTuple):
    """Of a step size that adapts."""

    beta: float

    def init(self, families: Families) -> PacedState:
        still = direction.zeros(families)
        return PacedState(jnp.stack(pace.start(families[0].loc.dtype)), still, still)

    def step(
        self, gradients: Families, state: PacedState, families: Families, count: jax.Array
    ) -> tuple[Families, PacedState]:
        dtype = families[0].loc.dtype
        # All that the rule wants to know of the three are their inner products: the lengths
        # of sums of them follow, and no vector is taken to the Fisher metric twice.
        of_means, of_scales = direction.products(
            families, [gradients, state.momentum], [state.change]
        )
        slope = -of_means[0][2] - of_scales[0][2]
        norm = jnp.hypot(pace.length(of_means, 1.0), pace.length(of_scales, 1.0))
        now = pace.judge(Pace(*state.pace), slope, norm, count)
        limits = now.limit, jnp.minimum(now.limit, pace.INITIAL_LIMIT)
        # A momentum grows long when q becomes narrow under it: it is cut as well.
        weight = (1 - self.beta ** (count + 1.0)).astype(dtype)
        kept, entering, lengths = [], [], []
        for products, limit in zip((of_means, of_scales), limits, strict=True):
            amount = pace.within(1.0 / now.slowness, limit, pace.length(products, 1.0))
            amounts = -(1 - self.beta) * amount, self.beta
            whole = pace.length(products, *amounts) / weight
            cut = pace.within(1.0, limit, whole)
            entering.append(cut * amounts[0])
            kept.append(cut * amounts[1])
            lengths.append(cut * whole)
        momentum = direction.add(
            direction.scale_parts(*kept, state.momentum),
            direction.scale_parts(*entering, gradients),
        )
        moved = direction.retract(families, direction.scale(1.0 / weight, momentum))
        change = direction.subtract(moved, families)
        # One array leaves the program sooner than four numbers.
        now = jnp.stack(now._replace(length=jnp.hypot(*lengths)))
        return moved, PacedState(now, momentum, change)

    def recover(self, state: PacedState, families: Families) -> tuple[Families, PacedState]:
        """Back to where the last step began, with a tenth of its length."""
        earlier = direction.subtract(families, state.change)
        still = direction.zeros(state.change)
        return earlier, PacedState(jnp.stack(pace.shortened(Pace(*state.pace))), still, still)
