"""``Snngm`` of torch; see :mod:`ngvi.optim.snngm`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.optim.snngm import SnngmRule, check_snngm, snngm
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.torch_optimizer import JointOptimizer


class SnngmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Snngm`, with options ``lr`` and ``momentum``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "momentum": 0.9}
    check = staticmethod(partial(check_snngm, name="lr"))
    rule = staticmethod(snngm)


@shared_doc(SnngmRule, JointOptim)
class Snngm(JointOptim):
    """Use it with any stock ELBO.

    >>> from pyro.infer import Trace_ELBO
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Snngm(), Trace_ELBO())
    >>> losses = [svi.step(y) for _ in range(300)]
    >>> f"{guide.median()['mean']:.1f}"
    '2.0'

    :param optim_args: ``lr`` (``"auto"``, the default, or ``alpha_0`` in the units of the
    unconstrained latents: a number, such as Tan's 1e-3, or a schedule from the number of
    steps taken). ``momentum`` (in [0, 1), default 0.9).
    """

    torch_optimizer = SnngmOptimizer

    @property
    def wanders(self) -> bool:
        """True if latents of subsampled plates make spreads of the others wander."""
        options: Any = self.pt_optim_args
        return not callable(options) and options.get("lr", "auto") == "auto"
