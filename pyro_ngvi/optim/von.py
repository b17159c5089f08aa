"""VON, VOGN and IVON: the Bayesian learning rule with its authors' settings.

What tells them apart besides is where the curvature comes from: pair each with the
``NaturalELBO`` that its docstring names.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ngvi.checks import check_momentum, check_rho, check_step_size
from ngvi.optim.rule import Rule
from pyro_ngvi.optim.blr import BLR, BLROptimizer


class VONOptimizer(BLROptimizer):
    """The torch optimiser of :class:`VON`, with the option ``lr``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": 0.1}

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        check_rho(options["lr"], "lr")

    @classmethod
    def make_rule(cls, lr: float) -> Rule:
        return super().make_rule(lr=lr, max_kl=None)


class VON(BLR):
    """Variational online Newton: one step size, no momentum.

    Swaroop, eq. for VON (Khan et al., 2018): exact Hessians of a minibatch, with
    ``NaturalELBO(num_particles=1, curvature="hessian")``.

    :param optim_args: ``lr`` (``beta_t``, of mean and precision, in (0, 1], default 0.1, or a
        schedule); or a callable from a parameter's name to it.
    :raises ValueError: for an ``lr`` outside its range.
    """

    torch_optimizer = VONOptimizer


class VOGNOptimizer(BLROptimizer):
    """The torch optimiser of :class:`VOGN`, with options ``lr``, ``beta1`` and ``beta2``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999}

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        check_step_size(options["lr"], "lr")
        check_momentum(options["beta1"], "beta1")
        check_momentum(options["beta2"], "beta2")

    @classmethod
    def make_rule(cls, lr: float, beta1: float, beta2: float) -> Rule:
        return super().make_rule(lr=lr, precision_lr=1 - beta2, momentum=beta1, max_kl=None)


class VOGN(BLR):
    """Variational online Gauss-Newton (Khan et al., 2018; Tan, S5.1).

    With ``NaturalELBO(num_particles=1, curvature="gauss_newton")``::

        m <- beta1 m + (1 - beta1) g,        S <- beta2 S + (1 - beta2) A
        mu <- mu + lr S_new^-1 m / (1 - beta1^t)

    :param optim_args: ``lr`` (``alpha``, of the mean, default 1e-3, or a schedule), ``beta1``
        (momentum of the gradient, in [0, 1), default 0.9) and ``beta2`` (how much of the
        precision a step keeps, in [0, 1), default 0.999); or a callable from a parameter's
        name to these.
    :raises ValueError: for options unknown or outside their range.
    """

    torch_optimizer = VOGNOptimizer


class IVONOptimizer(VOGNOptimizer):
    """The torch optimiser of :class:`IVON`, with options ``lr``, ``beta1`` and ``beta2``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99999}


class IVON(BLR):
    """Improved variational online Newton (Shen et al., 2024; Khan, Figure 1).

    :class:`VOGN`'s update with the curvature of ``NaturalELBO(num_particles=1,
    curvature="stein")``, which needs a minibatch's gradient only. The estimate may be negative;
    a step that would leave the precision negative halves it, the most that the Riemannian
    correction of Lin, Schmidt and Khan (2020) takes away
    (:mod:`~pyro_ngvi.linalg.definite`). The precision begins at ``1 / init_scale^2`` of
    the guide.

    :param optim_args: ``lr`` (``alpha``, of the mean, default 0.1, or a schedule), ``beta1``
        (momentum of the gradient, in [0, 1), default 0.9) and ``beta2`` (how much of the
        precision a step keeps, in [0, 1), default 0.99999); or a callable from a parameter's
        name to these.
    :raises ValueError: for options unknown or outside their range.
    """

    torch_optimizer = IVONOptimizer
