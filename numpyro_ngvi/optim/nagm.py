"""``Nagm`` of JAX; see :mod:`ngvi.optim.nagm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.optim.nagm import NagmRule, check_nagm
from numpyro_ngvi.optim.algebra import Schedule, algebra
from numpyro_ngvi.optim.joint import FIELDS, joint

if TYPE_CHECKING:
    import optax


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
