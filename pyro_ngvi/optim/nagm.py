"""Nagm: natural gradient of the momentum of the Euclidean gradient (Tan, Table 5)."""

from __future__ import annotations

from typing import Any, ClassVar

from ngvi.checks import check_momentum, check_positive, check_step_size
from ngvi.optim.nagm import NagmRule
from ngvi.optim.rule import Rule
from ngvi.page import page
from pyro_ngvi.families.coordinates import Coordinate
from pyro_ngvi.optim import algebra
from pyro_ngvi.optim.algebra import Rates
from pyro_ngvi.optim.pyro_optim import JointOptim
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
        return NagmRule(algebra, lr, beta, max_norm)


@page(NagmRule, JointOptim)
class Nagm(JointOptim):
    """:param optim_args: ``lr`` (``alpha`` for means; a number, default 1e-2, or a schedule from
    the number of steps taken), ``beta`` (momentum in [0, 1), default 0.9), ``max_norm``
    (the clipping threshold ``T``, in nats per unit of ``lambda``, default 5e5) and
    ``scale_lr`` (``alpha`` for scales and Cholesky factors; by default ``lr``, ten times
    smaller for a diagonal family and a hundred times for a dense one; Tan, section 6); or a
    callable from a parameter's name to these.
    """

    torch_optimizer = NagmOptimizer
