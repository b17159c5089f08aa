"""``ProxGenAdam`` of JAX; see :mod:`ngvi.optim.prox_gen_adam`."""

from __future__ import annotations

from typing import Any

import optax

from ngvi._docs import shared_doc
from ngvi.optim.nadam import check_adam
from ngvi.optim.prox_gen_adam import ProxGenAdamRule
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.nadam import NAdam


@shared_doc(ProxGenAdamRule, NAdam)
def ProxGenAdam(
    step_size: float | Schedule = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    other: Any = None,
) -> optax.GradientTransformation:
    """:raises ValueError: for a number outside its range; on ``init``, if there are no natural
    parameters, or for a family other than ``Diagonal``, ``CovarianceCholesky``,
    ``PrecisionCholesky``, ``BlockDiagonal`` and ``SparsePrecision``.
    """
    check_adam(step_size, beta1, beta2, eps)
    return joint(ProxGenAdamRule(algebra, step_size, beta1, beta2, eps), other, "ProxGenAdam")
