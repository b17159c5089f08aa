"""``NAdam`` and ``ProxGenAdam`` of JAX."""

from __future__ import annotations

from typing import Any

import optax

from ngvi._docs import shared_doc
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import FIELDS, joint

from .nadam import NAdamRule, check_adam
from .prox_gen_adam import ProxGenAdamRule


@shared_doc(NAdamRule, FIELDS)
def NAdam(
    step_size: float | Schedule = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    other: Any = None,
) -> optax.GradientTransformation:
    """:param step_size: ``alpha``, in the units of the unconstrained latents; a number or an
        optax schedule.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: momentum of its square, in [0, 1).
    :param eps: keeps the division away from zero, positive.
    """
    check_adam(step_size, beta1, beta2, eps)
    return joint(NAdamRule(algebra, step_size, beta1, beta2, eps), other, "NAdam")


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
