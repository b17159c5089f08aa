"""``Snngm`` of JAX; see :mod:`ngvi.optim.snngm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.optim.snngm import SnngmRule, check_snngm, snngm
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import FIELDS, joint

if TYPE_CHECKING:
    import optax


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
