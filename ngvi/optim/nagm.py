"""Nagm: natural gradient of the momentum of the Euclidean gradient (Tan, Table 5)."""

from __future__ import annotations

from typing import NamedTuple

from ngvi.errors import check_momentum, check_positive, check_step_size
from ngvi.families import direction
from ngvi.optim.rule import Algebra, Families, Number, PartRates, Rates
from ngvi.optim.snngm import within


def check_nagm(
    step_size: Rates,
    momentum: float,
    max_norm: float,
    scale_step_size: Rates | None,
    names: tuple[str, str] = ("step_size", "scale_step_size"),
) -> None:
    """Refuse values out of range.

    :param names: what the package calls the two step sizes.
    :raises ValueError: naming the option.
    """
    check_step_size(step_size, names[0])
    check_momentum(momentum, "momentum")
    check_positive(max_norm, "max_norm")
    if scale_step_size is not None:
        check_step_size(scale_step_size, names[1])


class NagmRule(NamedTuple):
    """Natural gradient of the momentum of the clipped Euclidean gradient.

    With ``g_t`` the Euclidean gradient of the bound over the joint vector ``lambda`` of all
    natural parameters, and ``F_t`` the Fisher information at ``lambda_t`` (Tan, Table 5,
    right column; ``beta`` is ``momentum``)::

        g_t <- min(1, max_norm / ||g_t||) g_t
        m_t = beta m_{t-1} + (1 - beta) g_t
        lambda <- lambda + alpha F_t^-1 m_t

    The guide delivers ``F_t^-1 g_t``; multiplying by ``F_t`` gives ``g_t`` back, at the cost
    of two triangular solves for a dense family. ``alpha`` is relative: 1 is a full
    natural-gradient step.
    """

    algebra: Algebra
    step_size: Rates
    momentum: float
    max_norm: float
    scale_step_size: Rates | None

    def init(self, families: Families) -> Families:
        """Return the momentum."""
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: Number
    ) -> tuple[Families, Families]:
        on, beta = self.algebra, self.momentum
        euclidean = direction.dual(families, gradients)
        clip = within(on, 1.0, self.max_norm, direction.joint_norm(euclidean))
        momentum = direction.combine(beta, state, (1 - beta) * clip, euclidean)
        rates = PartRates(self.step_size, self.scale_step_size)
        steps = on.at_rates(rates, direction.natural(families, momentum), -1.0, count)
        return direction.retract(families, steps), momentum
