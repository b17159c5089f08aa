"""``Nagm`` of torch; see :mod:`ngvi.optim.nagm`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.families.steps import relative_scale_step
from ngvi.optim.nagm import NagmRule, check_nagm
from pyro_ngvi.families.coordinates import Coordinate
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
        "momentum": 0.9,
        "max_norm": 5e5,
        "scale_lr": None,
    }
    per_coordinate: ClassVar[tuple[str, ...]] = ("lr", "scale_lr")
    check = staticmethod(partial(check_nagm, names=("lr", "scale_lr")))

    @staticmethod
    def rule(
        on: Any, lr: Rates, momentum: float, max_norm: float, scale_lr: Rates | None
    ) -> NagmRule:
        """The rates of scales are in ``lr``, by coordinate."""
        return NagmRule(on, lr, momentum, max_norm)

    @classmethod
    def group_options(cls, coordinate: Coordinate, options: dict[str, Any]) -> dict[str, Any]:
        if coordinate.field == "loc":
            return options
        if options["scale_lr"] is not None:
            return {**options, "lr": options["scale_lr"]}
        return {**options, "lr": relative_scale_step(coordinate.family) * options["lr"]}


@shared_doc(NagmRule, JointOptim)
class Nagm(JointOptim):
    """:param optim_args: ``lr`` (``alpha`` for means; a number, default 1e-2, or a schedule from
    the number of steps taken). ``momentum`` (in [0, 1), default 0.9). ``max_norm``
    (the clipping threshold ``T``, in nats per unit of ``lambda``, default 5e5).
    ``scale_lr`` (``alpha`` for scales and Cholesky factors; by default ``lr``, ten times
    smaller for a diagonal family and a hundred times for a dense one; Tan, section 6). Or a
    callable from a parameter's name to these.
    """

    torch_optimizer = NagmOptimizer
