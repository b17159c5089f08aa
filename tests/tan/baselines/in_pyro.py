"""``NAdam`` and ``ProxGenAdam`` of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.optim.rule import Rule
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.torch_optimizer import JointOptimizer

from .nadam import NAdamRule, check_adam
from .prox_gen_adam import ProxGenAdamRule


class NAdamOptimizer(JointOptimizer):
    """The torch optimiser of :class:`NAdam`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
    }
    check = staticmethod(partial(check_adam, name="lr"))
    rule: ClassVar[Callable[..., Rule]] = NAdamRule


class ProxGenAdamOptimizer(NAdamOptimizer):
    """The torch optimiser of :class:`ProxGenAdam`, with its options."""

    rule = ProxGenAdamRule


@shared_doc(NAdamRule, JointOptim)
class NAdam(JointOptim):
    """:param optim_args: ``lr`` (``alpha``, in the units of the unconstrained latents; a number,
    default 1e-3, or a schedule from the number of steps taken), ``beta1`` (momentum of the
    gradient, in [0, 1), default 0.9), ``beta2`` (momentum of its square, in [0, 1), default
    0.999) and ``eps`` (keeps the division away from zero, positive, default 1e-8); or a
    callable from a parameter's name to these.
    """

    torch_optimizer = NAdamOptimizer


@shared_doc(ProxGenAdamRule, NAdam)
class ProxGenAdam(JointOptim):
    """:raises ValueError: for options unknown or outside their range; on the first step, if
    there are no natural parameters, for a family other than ``Diagonal``,
    ``CovarianceCholesky``, ``PrecisionCholesky``, ``BlockDiagonal`` and ``SparsePrecision``, or
    if the first gradient is not finite.
    """

    torch_optimizer = ProxGenAdamOptimizer
