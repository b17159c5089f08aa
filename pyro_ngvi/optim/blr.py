"""``BLR`` of torch; see :mod:`ngvi.optim.blr`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.errors import check_learning_rule
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Rule
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
    check = staticmethod(partial(check_learning_rule, names=("lr", "precision_lr")))
    rule: ClassVar[Callable[..., Rule]] = BlrRule


@shared_doc(BlrRule, JointOptim)
class BLR(JointOptim):
    """Solve a conjugate model by one step of ``rho = 1``.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR({"lr": 1.0}), NaturalELBO())
    >>> losses = [svi.step(y) for _ in range(1)]
    >>> f"{guide.median()['mean']:.2f}"
    '1.99'

    :param optim_args: ``lr`` (``rho``, in (0, 1]: ``"auto"``, the default, a number, or a
    schedule from the number of steps taken). ``precision_lr`` (``rho`` for the precision, if
    it differs from that of the mean). ``momentum`` (of ``g``, in [0, 1), default 0, with bias
    correction; Tan, S5.1). ``max_kl`` (the largest ``KL(q_new || q_old)`` of a step, in nats:
    ``"auto"`` adapts it, starting at 1, if ``lr`` is ``"auto"``, and otherwise sets no limit;
    None sets no limit).
    """

    torch_optimizer = BLROptimizer
