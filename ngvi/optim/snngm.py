"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import NamedTuple

from ngvi.errors import check_momentum, check_step_size, is_auto
from ngvi.families import direction
from ngvi.optim import pace
from ngvi.optim.pace import Pace
from ngvi.optim.rule import Algebra, Families, Number, Rates, Rule


class SnngmRule(NamedTuple):
    """Momentum of the normalised natural gradient over all natural parameters jointly.

    With ``g_t`` the natural gradient of the bound over ``lambda``, the joint vector of all
    natural parameters (Tan, Table 5, middle column)::

        m_t = beta m_{t-1} + (1 - beta) g_t / ||g_t||
        lambda <- lambda + alpha m_t / (1 - beta^t),     alpha = alpha_0 sqrt(len(lambda))

    A step moves ``lambda`` by at most ``alpha``, whatever the size of the gradient: large
    steps cannot happen far from the optimum, and near it a constant ``alpha_0`` leaves a
    noise of that size, which a decreasing schedule removes. The scale of the loss plays no
    role.

    By default nothing needs tuning. A gradient is then cut to a length in the Fisher metric, for
    mean and scale separately, instead of normalised; that length and the step size adapt to
    whether fresh gradients agree with the last step, and the step size decreases once they do
    not, so that noise averages out (:mod:`~ngvi.optim.pace`). With ``r_t`` the length of what
    enters, ``min(rho_t |g_t|, limit_t)``::

        m_t = beta m_{t-1} + (1 - beta) r_t g_t / |g_t|, cut to |m_t| <= (1 - beta^t) r_t
        lambda <- lambda + m_t / (1 - beta^t)
    """

    algebra: Algebra
    rates: Rates
    beta: float

    def init(self, families: Families) -> Families:
        """The momentum."""
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: Number
    ) -> tuple[Families, Families]:
        on = self.algebra
        norm = direction.joint_norm(gradients)
        weight = (1 - self.beta) / on.where(norm > 0, norm, 1.0)
        momentum = direction.combine(self.beta, state, weight, gradients)
        size = math.sqrt(sum(family.num_parameters for family in families))
        steps = on.at_rates(self.rates, momentum, -size / (1 - self.beta ** (count + 1.0)), count)
        return direction.retract(families, steps), momentum


def snngm(algebra: Algebra, step_size: Rates | str, beta: float) -> Rule:
    """The rule of a step size, or that of ``"auto"``."""
    return PacedRule(algebra, beta) if step_size == "auto" else SnngmRule(algebra, step_size, beta)


def check_snngm(step_size: Rates | str, beta: float, name: str = "step_size") -> None:
    """Refuse values out of range.

    :param name: what the package calls the step size.
    :raises ValueError: naming the option.
    """
    if not is_auto(step_size, name):
        check_step_size(step_size, name)
    check_momentum(beta)


class PacedState(NamedTuple):
    """State of the rule that needs no step size."""

    paces: tuple  #: a :class:`~ngvi.optim.pace.Pace` of means, and one of scales
    momentum: Families
    change: Families  #: the last step, in coordinates


class PacedRule(NamedTuple):
    """Of a step size that adapts."""

    algebra: Algebra
    beta: float

    def init(self, families: Families) -> PacedState:
        still = direction.zeros(families)
        return PacedState(self.algebra.kept((Pace(), Pace()), families), still, still)

    def step(
        self, gradients: Families, state: PacedState, families: Families, count: Number
    ) -> tuple[Families, PacedState]:
        on = self.algebra
        # All that the rule wants to know of the three are their inner products: the lengths
        # of sums of them follow, and no vector is taken to the Fisher metric twice.
        parts = on.product_rows(families, [gradients, state.momentum], [state.change])
        norms = [pace.length(on, products, 1.0) for products in parts]
        paces = [
            pace.judge(on, Pace(*one), -products[0][2], norm, count)
            for one, products, norm in zip(state.paces, parts, norms, strict=True)
        ]
        of_means, of_scales = paces
        highest = on.minimum(of_scales.limit, pace.INITIAL_LIMIT)
        paces = [of_means, of_scales._replace(limit=highest)]
        limits = of_means.limit, pace.patience(on, of_means, norms[0]) * highest
        weight = 1 - self.beta ** (count + 1.0)
        kept, entering, lengths = [], [], []
        for now, products, norm, limit in zip(paces, parts, norms, limits, strict=True):
            amount = pace.within(on, 1.0 / now.slowness, limit, norm)
            amounts = -(1 - self.beta) * amount, self.beta
            whole = pace.length(on, products, *amounts) / weight
            # A momentum also grows long when q becomes narrow under it.
            cut = pace.within(on, 1.0, amount * norm, whole)
            entering.append(cut * amounts[0])
            kept.append(cut * amounts[1])
            lengths.append(cut * whole)
        old = direction.scale_parts(kept[0], kept[1], state.momentum)
        momentum = direction.add(old, direction.scale_parts(entering[0], entering[1], gradients))
        moved = direction.retract(families, direction.scale(1.0 / weight, momentum))
        paces = [now._replace(length=length) for now, length in zip(paces, lengths, strict=True)]
        change = direction.subtract(moved, families)
        return moved, PacedState(on.kept(tuple(paces), families), momentum, change)

    def recover(self, state: PacedState, families: Families) -> tuple[Families, PacedState]:
        """Back to where the last step began, with a tenth of its length."""
        on = self.algebra
        earlier, still = direction.subtract(families, state.change), direction.zeros(state.change)
        paces = tuple(pace.shortened(on, Pace(*one)) for one in state.paces)
        return earlier, PacedState(on.kept(paces, families), still, still)
