"""``Nagm`` of torch; see :mod:`ngvi.optim.nagm`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.optim.nagm import NagmRule, check_nagm
from ngvi.optim.rule import Rule
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class NagmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Nagm`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "momentum": 0.9,
        "max_norm": 5e5,
        "scale_lr": None,
    }
    check = staticmethod(partial(check_nagm, names=("lr", "scale_lr")))

    rule: ClassVar[Callable[..., Rule]] = NagmRule


@shared_doc(NagmRule, JointOptim)
class Nagm(JointOptim):
    """The rule as an optimiser of Pyro.

    >>> from pyro.infer import Trace_ELBO
    >>> from pyro_ngvi.optim import Nagm
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Nagm({"lr": 0.3}), Trace_ELBO())
    >>> losses = [svi.step(y) for _ in range(1000)]
    >>> bool(abs(guide.median()["mean"] - 2.0) < 1.0)
    True

    :param optim_args: ``lr`` (``alpha`` for means; a number, default 1e-2, or a schedule from
    the number of steps taken). ``momentum`` (in [0, 1), default 0.9). ``max_norm``
    (the clipping threshold ``T``, in nats per unit of ``lambda``, default 5e5).
    ``scale_lr`` (``alpha`` for scales and Cholesky factors; by default ``lr``, ten times
    smaller for a diagonal family and a hundred times for a dense one; Tan, section 6).
    """

    torch_optimizer = NagmOptimizer
