"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch

from ngvi.checks import check_momentum, check_step_size, is_auto
from pyro_ngvi.families import direction
from pyro_ngvi.families.coordinates import num_parameters
from pyro_ngvi.families.direction import Families
from pyro_ngvi.optim import pace
from pyro_ngvi.optim.pace import Pace
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.rule import Rates, Rule, at_rates
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class SnngmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Snngm`, with options ``lr`` and ``beta``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "beta": 0.9}

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        if not is_auto(options["lr"], "lr"):
            check_step_size(options["lr"], "lr")
        check_momentum(options["beta"])

    @classmethod
    def make_rule(cls, lr: Rates | str, beta: float) -> Rule:
        return PacedRule(beta) if lr == "auto" else SnngmRule(lr, beta)


class Snngm(JointOptim):
    """Momentum of the normalised natural gradient over all natural parameters jointly.

    With ``g_t`` the natural gradient of the bound over ``lambda``, the joint vector of all
    natural parameters (Tan, Table 5, middle column)::

        m_t = beta m_{t-1} + (1 - beta) g_t / ||g_t||
        lambda <- lambda + alpha m_t / (1 - beta^t),     alpha = lr sqrt(len(lambda))

    A step moves ``lambda`` by at most ``alpha``, whatever the size of the gradient: large
    steps cannot happen far from the optimum, and near it a constant ``lr`` leaves a noise of
    that size, which a decreasing schedule removes. The scale of the loss plays no role.

    By default nothing needs tuning. A gradient is then cut to a length in the Fisher metric, for
    mean and scale separately, instead of normalised; that length and the step size adapt to
    whether fresh gradients agree with the last step, and the step size decreases once they do
    not, so that noise averages out (:mod:`~pyro_ngvi.optim.pace`)::

        m_t = beta m_{t-1} + (1 - beta) min(rho_t, limit_t / |g_t|) g_t
        lambda <- lambda + m_t / (1 - beta^t)

    :param optim_args: ``lr`` (``"auto"``, the default, or ``alpha_0`` in the units of the
        unconstrained latents: a number, such as Tan's 1e-3, or a schedule from the number of
        steps taken) and ``beta`` (momentum in [0, 1), default 0.9); or a callable from a
        parameter's name to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser, for a
        numeric ``lr``; ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    torch_optimizer = SnngmOptimizer


class SnngmRule(NamedTuple):
    """Of a given step size. Its state is the momentum."""

    lr: Rates
    beta: float

    def init(self, families: Families) -> Families:
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: int
    ) -> tuple[Families, Families]:
        norm = direction.joint_norm(gradients)
        weight = (1 - self.beta) / norm if norm > 0 else 0.0
        momentum = direction.combine(self.beta, state, weight, gradients)
        scale = math.sqrt(num_parameters(families)) / (1 - self.beta ** (count + 1))
        return direction.retract(families, at_rates(self.lr, momentum, -scale)), momentum


class PacedState(NamedTuple):
    """State of the rule that needs no step size."""

    pace: Pace
    momentum: Families
    change: Families  #: the last step, in coordinates


class PacedRule(NamedTuple):
    """Of a step size that adapts."""

    beta: float

    def init(self, families: Families) -> PacedState:
        still = direction.zeros(families)
        return PacedState(Pace(), still, still)

    def step(
        self, gradients: Families, state: PacedState, families: Families, count: int
    ) -> tuple[Families, PacedState]:
        # All that the rule wants to know of the three are their inner products: the lengths
        # of sums of them follow, and no vector is taken to the Fisher metric twice.
        products = direction.products(families, [gradients, state.momentum], [state.change])
        of_all, *of_parts = torch.stack([sum(products), *products]).tolist()
        slope, norm = -of_all[0][2], pace.length(of_all, 1.0)
        now = pace.judge(state.pace, slope, norm, count)
        limits = now.limit, min(now.limit, pace.INITIAL_LIMIT)
        # A momentum grows long when q becomes narrow under it: it is cut as well.
        weight = 1 - self.beta ** (count + 1)
        kept, entering, lengths = [], [], []
        for of_part, limit in zip(of_parts, limits, strict=True):
            amount = pace.within(1.0 / now.slowness, limit, pace.length(of_part, 1.0))
            amounts = -(1 - self.beta) * amount, self.beta
            whole = pace.length(of_part, *amounts) / weight
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
        return moved, PacedState(now._replace(length=math.hypot(*lengths)), momentum, change)

    def recover(self, state: PacedState, families: Families) -> tuple[Families, PacedState]:
        """Back to where the last step began, with a tenth of its length."""
        earlier = direction.subtract(families, state.change)
        still = direction.zeros(state.change)
        return earlier, PacedState(pace.shortened(state.pace), still, still)
