"""The rules of :mod:`ngvi.optim` as optax transformations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import check_learning_rule, check_rho
from ngvi.optim.blr import BlrRule
from ngvi.optim.nagm import NagmRule, check_nagm
from ngvi.optim.snngm import SnngmRule, check_snngm, snngm
from ngvi.optim.von import GAUSS_NEWTON, STEIN, check_vogn, ivon, vogn, von
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import FIELDS, joint

if TYPE_CHECKING:
    import optax


@door
@shared_doc(BlrRule, FIELDS)
def BLR(
    step_size: float | Schedule | str = "auto",
    *,
    precision_step_size: float | Schedule | None = None,
    momentum: float = 0.0,
    max_kl: float | str | None = "auto",
    other: Any = None,
) -> optax.GradientTransformation:
    """Solve a conjugate model by one step of ``rho = 1``.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR(step_size=1.0), NaturalELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(1)]
    >>> f"{guide.median(svi.params)['mean']:.2f}"
    '1.99'

    :param step_size: ``rho``, in (0, 1]: ``"auto"``, a number, or an optax schedule.
    :param precision_step_size: ``rho`` for the precision, if it differs from that of the mean.
    :param momentum: momentum of ``g``, in [0, 1), with bias correction (Tan, S5.1).
    :param max_kl: the largest ``KL(q_new || q_old)`` of a step, in nats. ``"auto"`` adapts it,
        starting at 1, if ``step_size`` is ``"auto"``, and otherwise sets no limit; None sets no
        limit.
    """
    check_learning_rule(step_size, precision_step_size, momentum, max_kl)
    rule = BlrRule(algebra, step_size, precision_step_size, momentum, max_kl)
    return joint(rule, other, "BLR")


@door
@shared_doc(SnngmRule, FIELDS)
def Snngm(
    step_size: float | Schedule | str = "auto", momentum: float = 0.9, other: Any = None
) -> optax.GradientTransformation:
    """Use it with any stock ELBO.

    >>> from numpyro.infer import Trace_ELBO
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Snngm(), Trace_ELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(300)]
    >>> f"{guide.median(svi.params)['mean']:.1f}"
    '2.0'

    :param step_size: ``"auto"``, or ``alpha_0`` in the units of the unconstrained latents: a
        number (Tan uses 1e-3) or an optax schedule.
    :param momentum: the momentum, in [0, 1).
    """
    check_snngm(step_size, momentum)
    return joint(snngm(algebra, step_size, momentum), other, "Snngm")


@door
@shared_doc(NagmRule, FIELDS)
def Nagm(
    step_size: float | Schedule = 1e-2,
    momentum: float = 0.9,
    max_norm: float = 5e5,
    scale_step_size: float | Schedule | None = None,
    other: Any = None,
) -> optax.GradientTransformation:
    """Make an optax transformation of the rule.

    >>> from numpyro.infer import Trace_ELBO
    >>> from numpyro_ngvi.optim import Nagm
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Nagm(0.3), Trace_ELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(1000)]
    >>> bool(abs(guide.median(svi.params)["mean"] - 2.0) < 1.0)
    True

    :param step_size: ``alpha`` for means; a number or an optax schedule.
    :param momentum: the momentum, in [0, 1).
    :param max_norm: the clipping threshold ``T``, in nats per unit of ``lambda``.
    :param scale_step_size: ``alpha`` for scales and Cholesky factors; a number or a schedule.
        By default that of the mean, ten times smaller for a diagonal family and a hundred
        times for a dense one (Tan, section 6).
    """
    check_nagm(step_size, momentum, max_norm, scale_step_size)
    rule = NagmRule(algebra, step_size, momentum, max_norm, scale_step_size)
    return joint(rule, other, "Nagm")


RATES = """
:param step_size: ``alpha``, of the mean: a number, an optax schedule, or ``"auto"``, which falls as
    the bound stops to rise (:mod:`ngvi.optim.step_decay`).
:param beta1: momentum of the gradient, in [0, 1); where the step size is ``"auto"``, the part of
    the mean that is an average over the steps (:mod:`ngvi.optim.averaging`).
:param beta2: how much of the precision a step keeps, in [0, 1), or ``"auto"``, an average
    over all steps (:class:`~ngvi.optim.von.Averaging`).
"""


@door
@shared_doc(von, FIELDS)
def VON(step_size: float | Schedule = 0.1, *, other: Any = None) -> optax.GradientTransformation:
    """Make an optax transformation of the rule.

    >>> from numpyro_ngvi.optim import VON
    >>> guide, loss = NaturalGaussianGuide(model, "diagonal"), NaturalELBO(10, "hessian")
    >>> svi = SVI(model, guide, VON(0.1), loss, rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(100)]
    >>> f"{guide.median(svi.params)['mean']:.1f}"
    '2.0'

    :param step_size: ``beta_t``, of mean and precision, in (0, 1].
    """
    check_rho(step_size, "step_size")
    return joint(von(algebra, step_size), other, "VON")


@door
@shared_doc(vogn, RATES, FIELDS)
def VOGN(
    step_size: float | Schedule | str = "auto",
    *,
    beta1: float = 0.9,
    beta2: float | str = "auto",
    other: Any = None,
) -> optax.GradientTransformation:
    """Train a network with the same lines, on a larger model.

    >>> from numpyro_ngvi.optim import VOGN
    >>> guide = NaturalGaussianGuide(model, "diagonal")
    >>> loss = NaturalELBO(1, "gauss_newton", num_gradients=1)
    >>> svi = SVI(model, guide, VOGN(0.1, beta2=0.99), loss, rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(400)]
    >>> f"{guide.median(svi.params)['mean']:.0f}"
    '2'
    """
    check_vogn(step_size, beta1, beta2)
    return joint(vogn(algebra, step_size, beta1, beta2), other, "VOGN", GAUSS_NEWTON)


@door
@shared_doc(ivon, RATES, FIELDS)
def IVON(
    step_size: float | Schedule | str = "auto",
    *,
    beta1: float = 0.9,
    beta2: float | str = "auto",
    other: Any = None,
) -> optax.GradientTransformation:
    """Train a network with the same lines, on a larger model.

    >>> guide = NaturalGaussianGuide(model, "diagonal")
    >>> loss = NaturalELBO(1, "stein")
    >>> svi = SVI(model, guide, IVON(0.1), loss, rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(400)]
    >>> f"{guide.median(svi.params)['mean']:.0f}"
    '2'
    """
    check_vogn(step_size, beta1, beta2)
    return joint(ivon(algebra, step_size, beta1, beta2), other, "IVON", STEIN)
