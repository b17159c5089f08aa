"""``BLR`` of JAX; see :mod:`ngvi.optim.blr`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import check_learning_rule
from ngvi.optim.blr import BlrRule
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
