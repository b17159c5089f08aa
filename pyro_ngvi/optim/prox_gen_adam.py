"""``ProxGenAdam`` of torch; see :mod:`ngvi.optim.prox_gen_adam`."""

from __future__ import annotations

from ngvi._docs import shared_doc
from ngvi.optim.prox_gen_adam import ProxGenAdamRule
from pyro_ngvi.optim.nadam import NAdam, NAdamOptimizer
from pyro_ngvi.optim.pyro_optim import JointOptim


class ProxGenAdamOptimizer(NAdamOptimizer):
    """The torch optimiser of :class:`ProxGenAdam`, with its options."""

    rule = ProxGenAdamRule


@shared_doc(ProxGenAdamRule, NAdam)
class ProxGenAdam(JointOptim):
    """:raises ValueError: for options unknown or outside their range; on the first step, if
    there are no natural parameters, for a family other than ``Diagonal``,
    ``CovarianceCholesky``, ``PrecisionCholesky``, ``BlockDiagonal`` and ``SparsePrecision``, or
    if the first gradient is not finite.
    """

    torch_optimizer = ProxGenAdamOptimizer
