"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

from typing import Any, ClassVar

from ngvi.checks import check_learning_rule
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Rule
from ngvi.page import page
from pyro_ngvi.optim import algebra
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class BLROptimizer(JointOptimizer):
    """The torch optimiser of :class:`BLR`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": "auto",
        "precision_lr": None,
        "momentum": 0.0,
        "max_kl": "auto",
    }
    #: A step of the precision moves the mean as well: they have one length.
    per_coordinate: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        check_learning_rule(
            *(options[name] for name in cls.default_options), names=("lr", "precision_lr")
        )

    @classmethod
    def make_rule(
        cls,
        lr: float | str,
        precision_lr: float | None,
        momentum: float,
        max_kl: float | str | None,
    ) -> Rule:
        return BlrRule.of(algebra, lr, precision_lr, momentum, max_kl)


@page(BlrRule, JointOptim)
class BLR(JointOptim):
    """:param optim_args: ``lr`` (``rho``, in (0, 1]: ``"auto"``, the default, a number, or a
    schedule from the number of steps taken), ``precision_lr`` (``rho`` for the precision, if
    it differs from that of the mean), ``momentum`` (of ``g``, in [0, 1), default 0, with bias
    correction; Tan, S5.1) and ``max_kl`` (no step moves ``q`` by more than this
    ``KL(q_new || q_old)``, in nats: ``"auto"`` adapts, from 1, if ``lr`` is ``"auto"``, and
    else does not limit; None does not limit); or a callable from a parameter's name to these.
    """

    torch_optimizer = BLROptimizer
