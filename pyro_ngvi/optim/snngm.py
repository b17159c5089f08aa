"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_ngvi.families.coordinates import num_parameters
from pyro_ngvi.optim import adaptive
from pyro_ngvi.optim.adaptive import Pace
from pyro_ngvi.optim.joint import (
    Families,
    JointOptim,
    JointOptimizer,
    check_momentum,
    check_step_size,
    joint_norm,
)


class SnngmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Snngm`, with options ``lr`` and ``beta``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "beta": 0.9}

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        lr = options["lr"]
        if isinstance(lr, str):
            if lr != "auto":
                raise ValueError(f"lr must be 'auto', a number or a schedule, got {lr!r}.")
        else:
            check_step_size(lr, "lr")
        check_momentum(options["beta"])

    def direction(self, gradients: Families, families: Families) -> Families:
        momentum, scale = self._advance(gradients, families)
        return [m.map(lambda m: scale * m) for m in momentum]

    def move(self, gradients: Families, families: Families) -> Families:
        if self.option("lr") == "auto":
            return self._adapt(gradients, families)
        # As by direction, with one product instead of two.
        momentum, scale = self._advance(gradients, families)
        return [
            family.retract(m.map(lambda m, param: (-self.rate(param) * scale) * m, family))
            for family, m in zip(families, momentum, strict=True)
        ]

    def _advance(self, gradients: Families, families: Families) -> tuple[Families, float]:
        """The new momentum, stored, and by what to multiply it."""
        beta = self.option("beta")
        norm = float(joint_norm(gradients))
        weight = (1 - beta) / norm if norm > 0 else 0.0

        def advance(m: Tensor, g: Tensor) -> Tensor:
            if self.may_overwrite_gradients:
                return g.mul_(weight).add_(m, alpha=beta)
            return (beta * m).add_(g, alpha=weight)

        momentum = [
            m.map(advance, g) for m, g in zip(self.momentum(families), gradients, strict=True)
        ]
        self.set_momentum(families, momentum)
        scale = math.sqrt(num_parameters(families)) / (1 - beta ** (self.count(families) + 1))
        return momentum, scale

    # -- without a step size ----------------------------------------------------------
    # What is common to all families is kept with the mean of the first.

    def _adapt(self, gradients: Families, families: Families) -> Families:
        beta, count = self.option("beta"), self.count(families)
        here = [family.detach() for family in families]
        dual, of_mean, of_scale = adaptive.lengths(here, gradients)
        slope = -float(adaptive.product(dual, self._change(families)))
        pace = adaptive.judge(self._pace(families), slope, math.hypot(of_mean, of_scale), count)
        limit = pace.limit
        limit_of_scale = min(limit, adaptive.INITIAL_LIMIT)
        rho = 1.0 / pace.slowness
        entering = adaptive.scaled(
            gradients,
            adaptive.within(rho, limit, of_mean),
            adaptive.within(rho, limit_of_scale, of_scale),
        )
        momentum = [
            m.map(lambda m, g: (beta * m).sub_(g, alpha=1 - beta), g)
            for m, g in zip(self.momentum(families), entering, strict=True)
        ]
        # A momentum grows long when q becomes narrow under it.
        weight = 1 - beta ** (count + 1)
        _, of_mean, of_scale = adaptive.lengths(here, momentum)
        of_mean, of_scale = of_mean / weight, of_scale / weight
        cut_mean = adaptive.within(1.0, limit, of_mean)
        cut_scale = adaptive.within(1.0, limit_of_scale, of_scale)
        momentum = adaptive.scaled(momentum, cut_mean, cut_scale)
        moved = [
            family.retract(m.map(lambda m: m / weight))
            for family, m in zip(here, momentum, strict=True)
        ]
        change = [new.map(torch.sub, old) for new, old in zip(moved, here, strict=True)]
        length = math.hypot(cut_mean * of_mean, cut_scale * of_scale)
        self._remember(families, pace._replace(length=length), momentum, change)
        return moved

    def recover(self, families: Families) -> Families | None:
        """Back to where the last step began, with a tenth of its length."""
        if self.option("lr") != "auto":
            return None
        earlier = [
            family.detach().map(torch.sub, change)
            for family, change in zip(families, self._change(families), strict=True)
        ]
        pace = self._pace(families)
        length = pace.length if pace.length > 0 else pace.limit
        limit = min(pace.limit, max(0.1 * length, adaptive.SMALLEST_LIMIT))
        still = [family.map(torch.zeros_like) for family in families]
        self._remember(families, pace._replace(limit=limit, length=0.0), still, still)
        return earlier

    def _pace(self, families: Families) -> Pace:
        return Pace(*self.state[families[0].loc].get("pace", Pace()))

    def _change(self, families: Families) -> Families:
        return [
            family.map(lambda p: self.state[p].get("change", torch.zeros_like(p)))
            for family in families
        ]

    def _remember(
        self, families: Families, pace: Pace, momentum: Families, change: Families
    ) -> None:
        self.set_momentum(families, momentum)
        for family, value in zip(families, change, strict=True):
            for name, param in family.coordinates().items():
                self.state[param]["change"] = getattr(value, name)
        self.state[families[0].loc]["pace"] = tuple(pace)


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
    not, so that noise averages out (:mod:`~pyro_ngvi.optim.adaptive`)::

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
