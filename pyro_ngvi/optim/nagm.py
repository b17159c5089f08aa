"""Nagm: natural gradient of the momentum of the Euclidean gradient (Tan, Table 5)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from ngvi.checks import check_momentum, check_positive, check_step_size
from pyro_ngvi.families import direction
from pyro_ngvi.families.coordinates import Coordinate
from pyro_ngvi.families.direction import Families
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.rule import Rates, Rule, at_rates
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class NagmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Nagm`, with its options.

    The ``lr`` of a scale's or factor's group is that of the scale, so that torch schedulers
    move both.
    """

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "beta": 0.9,
        "max_norm": 5e5,
        "scale_lr": None,
    }
    per_coordinate: ClassVar[tuple[str, ...]] = ("lr", "scale_lr")

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        check_step_size(options["lr"], "lr")
        check_momentum(options["beta"])
        check_positive(options["max_norm"], "max_norm")
        if options["scale_lr"] is not None:
            check_step_size(options["scale_lr"], "scale_lr")

    @classmethod
    def group_options(cls, coordinate: Coordinate, options: dict[str, Any]) -> dict[str, Any]:
        if coordinate.field == "loc":
            return options
        if options["scale_lr"] is not None:
            return {**options, "lr": options["scale_lr"]}
        return {**options, "lr": coordinate.family.relative_scale_step * options["lr"]}

    @classmethod
    def make_rule(cls, lr: Rates, beta: float, max_norm: float, scale_lr: Any) -> Rule:
        return NagmRule(lr, beta, max_norm)


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


class NagmRule(NamedTuple):
    """Its state is the momentum."""

    lr: Rates
    beta: float
    max_norm: float

    def init(self, families: Families) -> Families:
        return direction.zeros(families)

    def step(
        self, gradients: Families, state: Families, families: Families, count: int
    ) -> tuple[Families, Families]:
        euclidean = direction.dual(families, gradients)
        norm = direction.joint_norm(euclidean)
        clip = self.max_norm / norm if norm > self.max_norm else 1.0
        momentum = direction.combine(self.beta, state, (1 - self.beta) * clip, euclidean)
        steps = at_rates(self.lr, direction.natural(families, momentum), -1.0)
        return direction.retract(families, steps), momentum
