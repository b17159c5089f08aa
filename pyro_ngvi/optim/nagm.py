"""Nagm: natural gradient of the momentum of the Euclidean gradient (Tan, Table 5)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.optim.joint import (
    Families,
    JointOptim,
    JointOptimizer,
    check_step_size,
    joint_norm,
)


class NagmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Nagm`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "beta": 0.9,
        "max_norm": 5e5,
        "scale_lr": None,
    }

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        super().check_values(options)
        if not options["max_norm"] > 0:
            raise ValueError(f"max_norm must be positive, got {options['max_norm']}.")
        if options["scale_lr"] is not None:
            check_step_size(options["scale_lr"], "scale_lr")

    def group_options(self, param: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        coordinate = coordinate_of(param)
        if coordinate.field == "loc":
            return options
        if options["scale_lr"] is not None:
            return {**options, "lr": options["scale_lr"]}
        return {**options, "lr": coordinate.family.relative_scale_step * options["lr"]}

    def direction(self, gradients: Families, families: Families) -> Families:
        beta, max_norm = self.option("beta"), self.option("max_norm")
        euclidean = [
            family.euclidean_gradient(gradient)
            for family, gradient in zip(families, gradients, strict=True)
        ]
        norm = float(joint_norm(euclidean))
        weight = (1 - beta) * min(1.0, max_norm / norm if norm > 0 else 1.0)
        momentum = [
            m.map(lambda m, g: (beta * m).add_(g, alpha=weight), g)
            for m, g in zip(self.momentum(families), euclidean, strict=True)
        ]
        self.set_momentum(families, momentum)
        return [family.natural_gradient(m) for family, m in zip(families, momentum, strict=True)]


class Nagm(JointOptim):
    """Natural gradient of the momentum of the clipped Euclidean gradient.

    With ``g_t`` the Euclidean gradient of the bound over the joint vector ``lambda`` of all
    natural parameters, and ``F_t`` the Fisher information at ``lambda_t`` (Tan, Table 5,
    right column)::

        g_t <- min(1, max_norm / ||g_t||) g_t
        m_t = beta m_{t-1} + (1 - beta) g_t
        lambda <- lambda + alpha F_t^-1 m_t

    The guide delivers ``F_t^-1 g_t``; multiplying by ``F_t`` gives ``g_t`` back, at the cost
    of two triangular solves for a dense family. ``lr`` is relative: 1 is a full
    natural-gradient step.

    :param optim_args: ``lr`` (``alpha`` for means; a number, default 1e-2, or a schedule from
        the number of steps taken), ``beta`` (momentum in [0, 1), default 0.9), ``max_norm``
        (the clipping threshold ``T``, default 5e5) and ``scale_lr`` (``alpha`` for scales and
        Cholesky factors; by default ``lr``, ten times smaller for a diagonal family and a
        hundred times for a dense one; Tan, section 6); or a callable from a parameter's name
        to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser;
        ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    torch_optimizer = NagmOptimizer
