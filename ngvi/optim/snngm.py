"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import NamedTuple

from ngvi.errors import check_momentum, check_step_size, is_auto
from ngvi.families import direction
from ngvi.optim.rule import COMMON, TINY, Algebra, Families, Number, Rates, Rule


class SnngmRule(NamedTuple):
    """Momentum of the normalised natural gradient over all natural parameters jointly.

    With ``g_t`` the natural gradient of the bound over ``lambda``, the joint vector of all
    natural parameters (Tan, Table 5, middle column; ``beta`` is ``momentum``)::

        m_t = beta m_{t-1} + (1 - beta) g_t / ||g_t||
        lambda <- lambda + alpha m_t / (1 - beta^t),     alpha = alpha_0 sqrt(len(lambda))

    A step moves ``lambda`` by at most ``alpha``, whatever the size of the gradient. So steps are
    not large far from the optimum, and near it a constant ``alpha_0`` leaves noise of that size,
    which a decreasing schedule removes. The scale of the loss does not matter.

    By default nothing needs tuning. A gradient is then clipped in the Fisher metric, separately for
    mean and scale, instead of normalised. The clipping length and the step size adapt to
    whether fresh gradients agree with the last step, and the step size decreases once they do
    not, so that noise averages out (:class:`~ngvi.optim.snngm.AdaptiveStep`). With the clipped
    length ``r_t = min(rho_t |g_t|, limit_t)``::

        m_t = beta m_{t-1} + (1 - beta) r_t g_t / |g_t|, cut to |m_t| <= (1 - beta^t) r_t
        lambda <- lambda + m_t / (1 - beta^t)
    """

    algebra: Algebra
    rates: Rates
    momentum: float

    def init(self, families: Families) -> Families:
        """Return the momentum."""
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: Number
    ) -> tuple[Families, Families]:
        on, beta = self.algebra, self.momentum
        norm = direction.joint_norm(gradients)
        weight = (1 - beta) / on.where(norm > 0, norm, 1.0)
        momentum = direction.combine(beta, state, weight, gradients)
        size = math.sqrt(sum(family.num_parameters for family in families))
        steps = on.at_rates(self.rates, momentum, -size / (1 - beta ** (count + 1.0)), count)
        return direction.retract(families, steps), momentum


def snngm(algebra: Algebra, step_size: Rates | str, momentum: float) -> Rule:
    """Return the rule of a step size, or that of ``"auto"``."""
    kind = AdaptiveSnngmRule(algebra, momentum)
    return kind if step_size == "auto" else SnngmRule(algebra, step_size, momentum)


def check_snngm(step_size: Rates | str, momentum: float, name: str = "step_size") -> None:
    """Refuse values out of range.

    :param name: what the package calls the step size.
    :raises ValueError: naming the option.
    """
    if not is_auto(step_size, name):
        check_step_size(step_size, name)
    check_momentum(momentum, "momentum")


# -- the step size that adapts --------------------------------------------------------


class StepState(NamedTuple):
    """State of means, or of scales."""

    limit: Number  #: Largest Fisher length of a gradient that enters.
    inverse_rho: Number
    agreement: Number  #: Smoothed cosine.
    length: Number  #: Fisher length of the last step.


class AdaptiveStep(NamedTuple):
    """Length and step size of first-order steps.

    Each natural gradient of the bound enters the momentum with a step size of at most ``rho``,
    clipped to a limit in Fisher length (half its square is the KL divergence). Both adapt,
    separately for means and scales, to the cosine ``c``, in the Fisher metric, between a fresh
    natural gradient and the last change of ``q``:

    - The *limit*, where it is what shortens a gradient, is multiplied by ``growth^c``: noise alone
      changes nothing on average. The limit of scales is at most the first: one draw says little
      about a covariance, and larger steps in noise make ``q`` collapse.
    - ``1 / rho`` grows by ``decrease`` when the smoothed cosine is negative and falls by a fifth
      when it is clearly positive (Kesten, 1958, *Accelerated stochastic approximation*). Near the
      optimum the natural gradient is about the distance to it, so that ``rho`` of order ``1 / t``
      averages noise as it should.

    Two more things matter on a long way. While means are far and keep going one way, scales hardly
    move: there a draw's noise is larger than what it knows of curvature (:meth:`patience`). And no
    step is longer than what its own fresh gradient would make of it: a momentum of large gradients
    would run on over the optimum for as long as it takes to decay.

    The gradients are clipped, not normalised: the mean of normalised gradients vanishes elsewhere
    than the bound's gradient if noise is skewed, and as ``rho`` decreases nothing is clipped any
    more.
    """

    first_limit: float = 0.2  #: First limit, in Fisher length; the smallest is a hundredth of it.
    recovery: float = 0.8  #: Factor of ``1 / rho`` where the smoothed cosine is clearly positive.
    clearly_positive: float = 0.3  #: Smoothed cosine above which ``rho`` grows.

    @property
    def smallest_limit(self) -> float:
        """The smallest limit, in Fisher length."""
        return 0.01 * self.first_limit

    def judge(
        self, on: Algebra, state: StepState, slope: Number, norm: Number, count: Number
    ) -> StepState:
        """Return the new numbers, after looking at the end of the last step.

        :param slope: Fisher product of the fresh natural gradient and the last change.
        :param norm: Fisher length of the fresh natural gradient.
        :param count: the number of steps taken so far.
        """
        known = (state.length > 0) & (norm > 0)
        cosine = on.where(known, slope / on.where(known, norm * state.length, 1.0), 0.0)
        cosine = on.minimum(on.maximum(cosine, -1.0), 1.0)
        # The mean of the cosines so far, as long as they are few.
        weight = (1 - COMMON.memory) / (1 - COMMON.memory ** on.maximum(count, 1.0))
        agreement = state.agreement + weight * (cosine - state.agreement)
        changed = on.maximum(state.limit * COMMON.growth**cosine, self.smallest_limit)
        limit = on.where(norm > state.limit * state.inverse_rho, changed, state.limit)
        agrees = agreement > self.clearly_positive
        inverse_rho = on.where(agrees, self.recovery, 1.0) * state.inverse_rho
        inverse_rho = inverse_rho + on.where(agreement < 0, COMMON.decrease, 0.0)
        return StepState(limit, on.maximum(inverse_rho, 1.0), agreement, state.length)

    def patience(self, on: Algebra, of_means: StepState, norm: Number) -> Number:
        """Return the factor of scales' limit while means are distant and keep their direction.

        :param norm: Fisher length of the means' fresh natural gradient.
        """
        far = norm > of_means.limit * of_means.inverse_rho
        return on.where(far, 1.0 - on.maximum(of_means.agreement, 0.0), 1.0)

    def shortened(self, on: Algebra, state: StepState) -> StepState:
        """Return the state after a step to where nothing is finite: a tenth of its length."""
        length = on.where(state.length > 0, state.length, state.limit)
        limit = on.minimum(state.limit, on.maximum(0.1 * length, self.smallest_limit))
        return state._replace(limit=limit, length=0.0 * state.inverse_rho)


def fisher_length(on: Algebra, products: list, *amounts: Number) -> Number:
    """Return the Fisher length of a sum of directions, each times its amount.

    :param products: the directions' inner products, ``k`` rows of ``k`` numbers.
    """
    pairs = [(i, j) for i in range(len(amounts)) for j in range(len(amounts))]
    sizes = [(amounts[i] * amounts[j], products[i][j]) for i, j in pairs]
    # No amount of what has overflowed is nothing.
    square = sum(on.where(size == 0, 0.0, size * product) for size, product in sizes)
    return on.sqrt(on.maximum(square, 0.0))


def within(on: Algebra, largest: Number, limit: Number, length: Number) -> Number:
    """Return the factor, ``largest`` at most, that keeps ``length`` within the limit."""
    return on.minimum(largest, limit / on.maximum(length, TINY))


class AdaptiveSnngmState(NamedTuple):
    """State of the rule that needs no step size."""

    steps: tuple  #: A :class:`StepState` of means, and one of scales.
    momentum: Families
    change: Families  #: The last step, in coordinates.


class AdaptiveSnngmRule(NamedTuple):
    """``Snngm`` of a step size that adapts."""

    algebra: Algebra
    momentum: float
    adaptive: AdaptiveStep = AdaptiveStep()

    def init(self, families: Families) -> AdaptiveSnngmState:
        still = direction.zeros(families)
        first = StepState(self.adaptive.first_limit, 1.0, 0.0, 0.0)
        return AdaptiveSnngmState(self.algebra.kept((first, first), families), still, still)

    def step(
        self, gradients: Families, state: AdaptiveSnngmState, families: Families, count: Number
    ) -> tuple[Families, AdaptiveSnngmState]:
        on, adaptive, beta = self.algebra, self.adaptive, self.momentum
        # All that the rule wants to know of the three are their inner products: the lengths
        # of sums of them follow, and no vector is taken to the Fisher metric twice.
        parts = on.product_rows(families, [gradients, state.momentum], [state.change])
        norms = [fisher_length(on, products, 1.0) for products in parts]
        of_means, of_scales = (
            adaptive.judge(on, StepState(*one), -products[0][2], norm, count)
            for one, products, norm in zip(state.steps, parts, norms, strict=True)
        )
        highest = on.minimum(of_scales.limit, adaptive.first_limit)
        states: tuple = (of_means, of_scales._replace(limit=highest))
        limits = of_means.limit, adaptive.patience(on, of_means, norms[0]) * highest
        weight = 1 - beta ** (count + 1.0)
        kept, entering, lengths = [], [], []
        for now, products, norm, limit in zip(states, parts, norms, limits, strict=True):
            amount = within(on, 1.0 / now.inverse_rho, limit, norm)
            amounts = -(1 - beta) * amount, beta
            whole = fisher_length(on, products, *amounts) / weight
            # A momentum also grows long when q becomes narrow under it.
            cut = within(on, 1.0, amount * norm, whole)
            entering.append(cut * amounts[0])
            kept.append(cut * amounts[1])
            lengths.append(cut * whole)
        old = direction.scale_parts(kept[0], kept[1], state.momentum)
        momentum = direction.add(old, direction.scale_parts(entering[0], entering[1], gradients))
        moved = direction.retract(families, direction.scale(1.0 / weight, momentum))
        pairs = zip(states, lengths, strict=True)
        states = tuple(one._replace(length=length) for one, length in pairs)
        change = direction.subtract(moved, families)
        return moved, AdaptiveSnngmState(on.kept(states, families), momentum, change)

    def recover(
        self, state: AdaptiveSnngmState, families: Families
    ) -> tuple[Families, AdaptiveSnngmState]:
        """Back to where the last step began, with a tenth of its length."""
        on = self.algebra
        earlier, still = direction.subtract(families, state.change), direction.zeros(state.change)
        states = tuple(self.adaptive.shortened(on, StepState(*one)) for one in state.steps)
        return earlier, AdaptiveSnngmState(on.kept(states, families), still, still)
