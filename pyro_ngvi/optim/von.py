"""VON, VOGN and IVON of torch; see :mod:`ngvi.optim.von`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.errors import check_rho
from ngvi.optim.von import GAUSS_NEWTON, STEIN, check_vogn, ivon, vogn, von
from pyro_ngvi.optim.blr import BLR, BLROptimizer

RATES = """
:param optim_args: ``lr`` (``alpha``, of the mean: ``"auto"``, the default, which falls as the
    bound stops to rise, :mod:`ngvi.optim.step_decay`, a number, or a schedule), ``beta1``
    (momentum of the gradient, in [0, 1), default 0.9; with ``"auto"`` the part of the mean that is
    an average over the steps, :mod:`ngvi.optim.averaging`) and ``beta2`` (how much of the
    precision a step keeps, in [0, 1), or ``"auto"``, the default, an average over all steps,
    :class:`~ngvi.optim.von.Averaging`).
"""


class VONOptimizer(BLROptimizer):
    """The torch optimiser of :class:`VON`, with the option ``lr``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": 0.1}
    check = staticmethod(partial(check_rho, name="lr"))
    rule = staticmethod(von)


@shared_doc(von, BLR)
class VON(BLR):
    """The rule as an optimiser of Pyro.

    >>> from pyro_ngvi.optim import VON
    >>> guide, loss = NaturalGaussianGuide(model, "diagonal"), NaturalELBO(10, "hessian")
    >>> svi = SVI(model, guide, VON({"lr": 0.1}), loss)
    >>> losses = [svi.step(y) for _ in range(100)]
    >>> f"{guide.median()['mean']:.1f}"
    '2.0'

    :param optim_args: ``lr`` (``beta_t``, of mean and precision, in (0, 1], default 0.1, or a
    schedule).
    """

    torch_optimizer = VONOptimizer


class VOGNOptimizer(BLROptimizer):
    """The torch optimiser of :class:`VOGN`, with options ``lr``, ``beta1`` and ``beta2``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "beta1": 0.9, "beta2": "auto"}
    check = staticmethod(partial(check_vogn, name="lr"))
    rule = staticmethod(vogn)


@shared_doc(vogn, RATES, BLR)
class VOGN(BLR):
    """Train a network with the same lines, on a larger model.

    >>> from pyro_ngvi.optim import VOGN
    >>> guide = NaturalGaussianGuide(model, "diagonal")
    >>> loss = NaturalELBO(1, "gauss_newton", num_gradients=1)
    >>> svi = SVI(model, guide, VOGN({"lr": 0.1, "beta2": 0.99}), loss)
    >>> losses = [svi.step(y) for _ in range(400)]
    >>> f"{guide.median()['mean']:.0f}"
    '2'
    """

    torch_optimizer = VOGNOptimizer
    curvature = GAUSS_NEWTON


class IVONOptimizer(VOGNOptimizer):
    """The torch optimiser of :class:`IVON`, with options ``lr``, ``beta1`` and ``beta2``."""

    rule = staticmethod(ivon)


@shared_doc(ivon, RATES, BLR)
class IVON(BLR):
    """Train a network with the same lines, on a larger model.

    >>> guide = NaturalGaussianGuide(model, "diagonal")
    >>> svi = SVI(model, guide, IVON({"lr": 0.1}), NaturalELBO(1, "stein"))
    >>> losses = [svi.step(y) for _ in range(400)]
    >>> f"{guide.median()['mean']:.0f}"
    '2'
    """

    torch_optimizer = IVONOptimizer
    curvature = STEIN
