"""VON, VOGN and IVON: the Bayesian learning rule with its authors' settings.

What tells them apart besides is where the curvature comes from: pair each with the
``NaturalELBO`` that its docstring names.
"""

from __future__ import annotations

from ngvi.checks import check_momentum, check_step_size
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Algebra, Rates


def check_vogn(step_size: Rates, beta1: float, beta2: float, name: str = "step_size") -> None:
    """Refuse what :func:`vogn` and :func:`ivon` cannot take.

    :param name: what the package calls the step size.
    :raises ValueError: naming the option.
    """
    check_step_size(step_size, name)
    check_momentum(beta1, "beta1")
    check_momentum(beta2, "beta2")


def von(algebra: Algebra, step_size: Rates) -> BlrRule:
    """Variational online Newton: one step size, no momentum.

    Swaroop, eq. for VON (Khan et al., 2018): exact Hessians of a minibatch, with
    ``NaturalELBO(num_particles=1, curvature="hessian")``.
    """
    return BlrRule(algebra, step_size, None, 0.0, None)


def vogn(algebra: Algebra, step_size: Rates, beta1: float, beta2: float) -> BlrRule:
    """Variational online Gauss-Newton (Khan et al., 2018; Tan, S5.1).

    With ``NaturalELBO(num_particles=1, curvature="gauss_newton")``::

        m <- beta1 m + (1 - beta1) g,        S <- beta2 S + (1 - beta2) A
        mu <- mu + alpha S_new^-1 m / (1 - beta1^t)
    """
    return BlrRule(algebra, step_size, 1 - beta2, beta1, None)


def ivon(algebra: Algebra, step_size: Rates, beta1: float, beta2: float) -> BlrRule:
    """Improved variational online Newton (Shen et al., 2024; Khan, Figure 1).

    ``VOGN``'s update with the curvature of ``NaturalELBO(num_particles=1,
    curvature="stein")``, which needs a minibatch's gradient only. The estimate may be negative;
    a step that would leave the precision negative halves it, the most that the Riemannian
    correction of Lin, Schmidt and Khan (2020) takes away
    (:mod:`~ngvi.linalg.definite`). The precision begins at ``1 / init_scale^2`` of
    the guide.
    """
    return vogn(algebra, step_size, beta1, beta2)
