"""VON, VOGN and IVON: the Bayesian learning rule as their authors have it.

They differ in where the curvature comes from besides: each is for the ``NaturalELBO`` that its
docstring names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.errors import check_momentum, check_step_size
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Algebra, Number, Rates
from ngvi.optim.step_decay import StepDecay

#: The ``curvature`` of ``NaturalELBO`` that VOGN is for, and that IVON is for.
GAUSS_NEWTON, STEIN = "gauss_newton", "stein"


class Averaging(NamedTuple):
    """``1 - beta2`` of ``beta2="auto"``: the precision is an average over all steps so far.

    Step ``t`` counts ``t``-fold, as if 50 steps had gone before, and after 850 steps ``t^2``-fold.
    The curvature of a mean that was still on its way is then forgotten sooner, at a time when there
    are enough steps for an average over fewer of them. From ``3 10^5`` steps on ``beta2`` is
    IVON's own 0.99999, which in fewer leaves the precision near where it began.

    The average is robust: of a mean field a step changes no precision by more than a quarter. Far
    from the optimum, as where a rate is the exponential of a network, single gradients are a
    thousand times those at the optimum. Their squares would narrow ``q`` until it no longer moves,
    and the average would remember them for as long as it took to get there.
    """

    algebra: Algebra
    earlier: float = 50.0
    earlier_of_squares: float = 500.0
    smallest: float = 1e-5
    #: Largest relative change of a precision in a step: 20 steps from a ``q`` ten times too wide.
    largest_change: float = 0.25

    def __call__(self, count: Number) -> Number:
        on = self.algebra
        part = on.maximum(2 / (count + self.earlier), 3 / (count + self.earlier_of_squares))
        return on.maximum(part, self.smallest)


def check_vogn(step_size: Rates | str, beta1: float, beta2: Any, name: str = "step_size") -> None:
    """Refuse what :func:`vogn` and :func:`ivon` cannot take.

    :param name: what the package calls the step size.
    :raises ValueError: naming the option.
    """
    if step_size != "auto":
        check_step_size(step_size, name)
    check_momentum(beta1, "beta1")
    if beta2 != "auto":
        check_momentum(beta2, "beta2")


def check_curvature_of(optim: Any, loss: Any) -> None:
    """Refuse a ``NaturalELBO`` whose curvature is not that of the optimiser.

    :param optim: :func:`vogn` and :func:`ivon` are for one, which it has as ``curvature``.
    :raises ValueError: naming both, and what to write.
    """
    needed, found = getattr(optim, "curvature", None), getattr(loss, "curvature", None)
    if needed is not None and found is not None and found != needed:
        name = "VOGN" if needed == GAUSS_NEWTON else "IVON"
        raise ValueError(
            f"{name} is the rule of curvature={needed!r}, and the loss has curvature={found!r}: "
            f"write NaturalELBO(1, {needed!r}), or take BLR(), which moves along any curvature."
        )


def von(algebra: Algebra, step_size: Rates) -> BlrRule:
    """Variational online Newton: one step size, no momentum.

    Swaroop, eq. for VON (Khan et al., 2018): exact Hessians of a minibatch, with
    ``NaturalELBO(num_particles=1, curvature="hessian")``.
    """
    return BlrRule(algebra, step_size, None, 0.0, None)


def vogn(algebra: Algebra, step_size: Rates | str, beta1: float, beta2: Any) -> BlrRule:
    """Variational online Gauss-Newton (Khan et al., 2018; Tan, S5.1).

    With ``NaturalELBO(num_particles=1, curvature="gauss_newton")``::

        m <- beta1 m + (1 - beta1) g,        S <- beta2 S + (1 - beta2) A
        mu <- mu + alpha S_new^-1 m / (1 - beta1^t)

    With a step size of ``"auto"``, a fraction ``beta1`` of the mean is an average of the steps
    ``mu <- mu + alpha S_new^-1 g`` (:mod:`~ngvi.optim.averaging`).
    """
    of_precision = Averaging(algebra) if beta2 == "auto" else 1 - beta2
    of_mean = StepDecay(algebra) if step_size == "auto" else step_size
    largest = of_precision.largest_change if isinstance(of_precision, Averaging) else None
    return BlrRule(algebra, of_mean, of_precision, beta1, None, largest_change=largest)


def ivon(algebra: Algebra, step_size: Rates | str, beta1: float, beta2: Any) -> BlrRule:
    """Improved variational online Newton (Shen et al., 2024; Khan, Figure 1).

    ``VOGN``'s update with the curvature of ``NaturalELBO(num_particles=1,
    curvature="stein")``, which needs only a minibatch's gradient. The estimate may be negative, so
    a mean field's precision gets the full Riemannian correction of Lin, Schmidt and Khan (2020,
    :meth:`~ngvi.families.base.Family.corrected`): large noise narrows ``q``, which reduces it.
    Halving only negative precisions would widen ``q``, and diverge. Other families also damp the
    noise of one draw (:meth:`~ngvi.linalg.definite.Definite.damped`); otherwise networks diverge.
    The precision starts at ``1 / init_scale^2`` of the guide.
    """
    return vogn(algebra, step_size, beta1, beta2)._replace(is_noisy=True)
