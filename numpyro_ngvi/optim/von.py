"""VON, VOGN and IVON: the Bayesian learning rule with its authors' settings.

What tells them apart besides is where the curvature comes from: pair each with the
``NaturalELBO`` that its docstring names.
"""

from __future__ import annotations

from typing import Any

import optax

from ngvi.checks import check_momentum
from numpyro_ngvi.optim.algebra import Schedule
from numpyro_ngvi.optim.blr import BLR


def VON(step_size: float | Schedule = 0.1, *, other: Any = None) -> optax.GradientTransformation:
    """Variational online Newton: one step size, no momentum.

    Swaroop, eq. for VON (Khan et al., 2018): exact Hessians of a minibatch, with
    ``NaturalELBO(num_particles=1, curvature="hessian")``.

    :param step_size: ``beta_t``, of mean and precision, in (0, 1].
    :param other: as in :func:`~numpyro_ngvi.BLR`.
    :raises ValueError: for a ``step_size`` outside its range.
    """
    return BLR(step_size, max_kl=None, other=other)


def VOGN(
    step_size: float | Schedule = 1e-3,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    other: Any = None,
) -> optax.GradientTransformation:
    """Variational online Gauss-Newton (Khan et al., 2018; Tan, S5.1).

    With ``NaturalELBO(num_particles=1, curvature="gauss_newton")``::

        m <- beta1 m + (1 - beta1) g,        S <- beta2 S + (1 - beta2) A
        mu <- mu + step_size S_new^-1 m / (1 - beta1^t)

    :param step_size: ``alpha``, of the mean.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: how much of the precision a step keeps, in [0, 1).
    :param other: as in :func:`~numpyro_ngvi.BLR`.
    :raises ValueError: for a number outside its range.
    """
    return BLR(
        step_size,
        precision_step_size=1 - check_momentum(beta2, "beta2"),
        momentum=check_momentum(beta1, "beta1"),
        max_kl=None,
        other=other,
    )


def IVON(
    step_size: float | Schedule = 0.1,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99999,
    other: Any = None,
) -> optax.GradientTransformation:
    """Improved variational online Newton (Shen et al., 2024; Khan, Figure 1).

    :func:`VOGN`'s update with the curvature of ``NaturalELBO(num_particles=1,
    curvature="stein")``, which needs a minibatch's gradient only. The estimate may be negative;
    a step that would leave the precision negative halves it, the most that the Riemannian
    correction of Lin, Schmidt and Khan (2020) takes away
    (:mod:`~numpyro_ngvi.linalg.definite`). The precision begins at ``1 / init_scale^2`` of
    the guide.

    :param step_size: ``alpha``, of the mean.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: how much of the precision a step keeps, in [0, 1).
    :param other: as in :func:`~numpyro_ngvi.BLR`.
    :raises ValueError: for a number outside its range.
    """
    return VOGN(step_size, beta1=beta1, beta2=beta2, other=other)
