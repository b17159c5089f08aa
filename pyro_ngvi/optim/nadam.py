"""NAdam: elementwise Adam on natural gradients, a baseline (Tan, section 6)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_ngvi.optim.joint import (
    Families,
    JointOptim,
    JointOptimizer,
    check_momentum,
    check_positive,
    check_step_size,
)


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

    def initial_state(self, param: Tensor) -> dict[str, Any]:
        return {"first_moment": torch.zeros_like(param), "second_moment": torch.zeros_like(param)}

    def update_moments(self, gradients: Families, families: Families) -> tuple[Families, Families]:
        """Moving averages of the gradients and of their squares, element by element.

        Zeros at first, without a correction of that bias.
        """
        beta1, beta2 = self.option("beta1"), self.option("beta2")
        for family, gradient in zip(families, gradients, strict=True):
            for name, param in family.coordinates().items():
                state, g = self.state[param], getattr(gradient, name)
                state["first_moment"] = beta1 * state["first_moment"] + (1 - beta1) * g
                state["second_moment"] = beta2 * state["second_moment"] + (1 - beta2) * g**2
        first = [f.map(lambda param: self.state[param]["first_moment"]) for f in families]
        second = [f.map(lambda param: self.state[param]["second_moment"]) for f in families]
        return first, second

    def direction(self, gradients: Families, families: Families) -> Families:
        count = self.count(families) + 1
        of_first, of_second = (1 - self.option(beta) ** count for beta in ("beta1", "beta2"))
        eps = self.option("eps")

        def along(m: Tensor, v: Tensor) -> Tensor:
            return (m / of_first) / ((v / of_second).sqrt() + eps)

        moments = self.update_moments(gradients, families)
        return [m.map(along, v) for m, v in zip(*moments, strict=True)]


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
