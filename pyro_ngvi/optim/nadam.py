"""NAdam: elementwise Adam on natural gradients, a baseline (Tan, section 6)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ngvi.checks import check_momentum, check_positive, check_step_size
from pyro_ngvi.families import direction
from pyro_ngvi.families.direction import Families
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.rule import Rates, Rule, at_rates
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class NAdamOptimizer(JointOptimizer):
    """The torch optimiser of :class:`NAdam`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
    }

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        check_step_size(options["lr"], "lr")
        check_momentum(options["beta1"], "beta1")
        check_momentum(options["beta2"], "beta2")
        check_positive(options["eps"], "eps")

    @classmethod
    def make_rule(cls, **options: Any) -> Rule:
        return NAdamRule(**options)


class NAdam(JointOptim):
    """Adam on the natural gradient of the bound, element by element.

    With ``g_t`` the natural gradient of the bound over ``lambda`` (Tan, Table 5, left column)::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + lr m_hat / (sqrt(v_hat) + eps)

    where ``m_hat = m_t / (1 - beta1^t)`` and ``v_hat = v_t / (1 - beta2^t)``. It is here to be
    compared with: dividing each element by its own size undoes what the Fisher information
    did, and in Tan's experiments it is the slowest of all. Use ``BLR`` or ``Snngm`` instead.
    It is not the Adam with Nesterov's momentum that goes by the same name.

    :param optim_args: ``lr`` (``alpha``, in the units of the unconstrained latents; a number,
        default 1e-3, or a schedule from the number of steps taken), ``beta1`` (momentum of the
        gradient, in [0, 1), default 0.9), ``beta2`` (momentum of its square, in [0, 1), default
        0.999) and ``eps`` (keeps the division away from zero, positive, default 1e-8); or a
        callable from a parameter's name to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser;
        ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    torch_optimizer = NAdamOptimizer


class Moments(NamedTuple):
    """Moving averages of a gradient and of its square, element by element."""

    first: Families  #: ``m_t``
    second: Families  #: ``v_t``

    @classmethod
    def zeros(cls, families: Families) -> Moments:
        """Before the first gradient."""
        return cls(direction.zeros(families), direction.zeros(families))

    def update(self, gradients: Families, beta1: float, beta2: float) -> Moments:
        """After one more gradient; zeros at first, without a correction of that bias."""
        squares = direction.each(torch.square, gradients)
        return Moments(
            direction.combine(beta1, self.first, 1 - beta1, gradients),
            direction.combine(beta2, self.second, 1 - beta2, squares),
        )


class NAdamRule(NamedTuple):
    """Its state are the moments."""

    lr: Rates
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        return Moments.zeros(families)

    def step(
        self, gradients: Families, state: Moments, families: Families, count: int
    ) -> tuple[Families, Moments]:
        moments = state.update(gradients, self.beta1, self.beta2)
        alpha = 1.0 / (1 - self.beta1 ** (count + 1))
        bias = 1 - self.beta2 ** (count + 1)

        def along(m: Tensor, v: Tensor) -> Tensor:
            return m / ((v / bias).sqrt() + self.eps)

        steps = at_rates(self.lr, direction.each(along, *moments), -alpha)
        return direction.retract(families, steps), moments
