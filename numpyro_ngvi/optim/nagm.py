"""Nagm: natural gradient of the momentum of the Euclidean gradient (Tan, Table 5)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ngvi.checks import check_momentum, check_positive, check_step_size
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.rule import Schedule, step_size_at


def Nagm(
    step_size: float | Schedule = 1e-2,
    beta: float = 0.9,
    max_norm: float = 5e5,
    scale_step_size: float | Schedule | None = None,
    other: Any = None,
) -> optax.GradientTransformation:
    """Natural gradient of the momentum of the clipped Euclidean gradient.

    With ``g_t`` the Euclidean gradient of the bound over the joint vector ``lambda`` of all
    natural parameters, and ``F_t`` the Fisher information at ``lambda_t`` (Tan, Table 5,
    right column)::

        g_t <- min(1, max_norm / ||g_t||) g_t
        m_t = beta m_{t-1} + (1 - beta) g_t
        lambda <- lambda + alpha F_t^-1 m_t

    The guide delivers ``F_t^-1 g_t``; multiplying by ``F_t`` gives ``g_t`` back, at the cost
    of two triangular solves for a dense family. ``step_size`` is relative: 1 is a full
    natural-gradient step.

    :param step_size: ``alpha`` for means; a number or an optax schedule.
    :param beta: momentum, in [0, 1).
    :param max_norm: the clipping threshold ``T``, in nats per unit of ``lambda``.
    :param scale_step_size: ``alpha`` for scales and Cholesky factors; a number or a schedule.
        By default that of the mean, ten times smaller for a diagonal family and a hundred
        times for a dense one (Tan, section 6).
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for an argument outside its range; on ``init``, if there are no
        natural parameters.
    """
    check_step_size(step_size)
    check_momentum(beta)
    check_positive(max_norm, "max_norm")
    if scale_step_size is not None:
        check_step_size(scale_step_size, "scale_step_size")
    rule = NagmRule(step_size, beta, max_norm, scale_step_size)
    return joint(rule, other, "Nagm")


class NagmRule(NamedTuple):
    """Its state is the momentum."""

    step_size: float | Schedule
    beta: float
    max_norm: float
    scale_step_size: float | Schedule | None

    def init(self, families: Families) -> Families:
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: jax.Array
    ) -> tuple[Families, Families]:
        euclidean = direction.dual(families, gradients)
        norm = direction.joint_norm(euclidean)
        clip = jnp.where(norm > self.max_norm, self.max_norm / norm, 1.0)
        momentum = direction.combine(self.beta, state, (1 - self.beta) * clip, euclidean)
        steps = []
        for family, along in zip(families, direction.natural(families, momentum), strict=True):
            of_mean = of_scale = step_size_at(self.step_size, count)
            if self.scale_step_size is None:
                of_scale = family.relative_scale_step * of_scale
            else:
                of_scale = step_size_at(self.scale_step_size, count)
            steps += direction.scale_parts(-of_mean, -of_scale, [along])
        return direction.retract(families, steps), momentum
