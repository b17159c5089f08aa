"""VON, VOGN and IVON of JAX; see :mod:`ngvi.optim.von`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import check_rho
from ngvi.optim.von import GAUSS_NEWTON, STEIN, check_vogn, ivon, vogn, von
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import FIELDS, joint

if TYPE_CHECKING:
    import optax

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
