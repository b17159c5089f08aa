"""The rules of :mod:`ngvi.optim` as optimisers of Pyro."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ngvi._docs import shared_doc
from ngvi.errors import check_learning_rule, check_rho
from ngvi.optim.blr import BlrRule
from ngvi.optim.nagm import NagmRule, check_nagm
from ngvi.optim.rule import Rule
from ngvi.optim.snngm import SnngmRule, check_snngm, snngm
from ngvi.optim.von import GAUSS_NEWTON, STEIN, check_vogn, ivon, vogn, von
from pyro_ngvi.optim.pyro_optim import JointOptim


@shared_doc(BlrRule, JointOptim)
class BLR(JointOptim):
    """Solve a conjugate model by one step of ``rho = 1``.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR({"lr": 1.0}), NaturalELBO())
    >>> losses = [svi.step(y) for _ in range(1)]
    >>> f"{guide.median()['mean']:.2f}"
    '1.99'

    :param optim_args: ``lr`` (``rho``, in (0, 1]: ``"auto"``, the default, a number, or a
    schedule from the number of steps taken). ``precision_lr`` (``rho`` for the precision, if
    it differs from that of the mean). ``momentum`` (of ``g``, in [0, 1), default 0, with bias
    correction; Tan, S5.1). ``max_kl`` (the largest ``KL(q_new || q_old)`` of a step, in nats:
    ``"auto"`` adapts it, starting at 1, if ``lr`` is ``"auto"``, and otherwise sets no limit;
    None sets no limit).
    """

    default_options: ClassVar[dict[str, Any]] = {
        "lr": "auto",
        "precision_lr": None,
        "momentum": 0.0,
        "max_kl": "auto",
    }
    check = staticmethod(partial(check_learning_rule, names=("lr", "precision_lr")))
    rule: ClassVar[Callable[..., Rule]] = BlrRule


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

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "momentum": 0.9}
    check = staticmethod(partial(check_snngm, name="lr"))
    rule = staticmethod(snngm)

    @property
    def wanders(self) -> bool:
        """True if latents of subsampled plates make spreads of the others wander."""
        options: Any = self.pt_optim_args
        return options.get("lr", "auto") == "auto"


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

    default_options: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "momentum": 0.9,
        "max_norm": 5e5,
        "scale_lr": None,
    }
    check = staticmethod(partial(check_nagm, names=("lr", "scale_lr")))
    rule: ClassVar[Callable[..., Rule]] = NagmRule


RATES = """
:param optim_args: ``lr`` (``alpha``, of the mean: ``"auto"``, the default, which falls as the
    bound stops to rise, :mod:`ngvi.optim.step_decay`, a number, or a schedule), ``beta1``
    (momentum of the gradient, in [0, 1), default 0.9; with ``"auto"`` the part of the mean that is
    an average over the steps, :mod:`ngvi.optim.averaging`) and ``beta2`` (how much of the
    precision a step keeps, in [0, 1), or ``"auto"``, the default, an average over all steps,
    :class:`~ngvi.optim.von.Averaging`).
"""


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

    default_options: ClassVar[dict[str, Any]] = {"lr": 0.1}
    check = staticmethod(partial(check_rho, name="lr"))
    rule = staticmethod(von)


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

    default_options: ClassVar[dict[str, Any]] = {"lr": "auto", "beta1": 0.9, "beta2": "auto"}
    check = staticmethod(partial(check_vogn, name="lr"))
    rule = staticmethod(vogn)
    curvature = GAUSS_NEWTON


@shared_doc(ivon, RATES, BLR)
class IVON(VOGN):
    """Train a network with the same lines, on a larger model.

    >>> guide = NaturalGaussianGuide(model, "diagonal")
    >>> svi = SVI(model, guide, IVON({"lr": 0.1}), NaturalELBO(1, "stein"))
    >>> losses = [svi.step(y) for _ in range(400)]
    >>> f"{guide.median()['mean']:.0f}"
    '2'
    """

    rule = staticmethod(ivon)
    curvature = STEIN
