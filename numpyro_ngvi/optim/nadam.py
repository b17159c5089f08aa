"""NAdam: elementwise Adam on natural gradients, a baseline (Tan, section 6)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ngvi.checks import check_momentum, check_positive, check_step_size
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.rule import Schedule, step_size_at


def NAdam(
    step_size: float | Schedule = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    other: Any = None,
) -> optax.GradientTransformation:
    """Adam on the natural gradient of the bound, element by element.

    With ``g_t`` the natural gradient of the bound over ``lambda`` (Tan, Table 5, left column)::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + step_size m_hat / (sqrt(v_hat) + eps)

    where ``m_hat = m_t / (1 - beta1^t)`` and ``v_hat = v_t / (1 - beta2^t)``. It is here to be
    compared with: dividing each element by its own size undoes what the Fisher information
    did, and in Tan's experiments it is the slowest of all. Use ``BLR`` or ``Snngm`` instead.
    It is not the Adam with Nesterov's momentum that goes by the same name.

    :param step_size: ``alpha``, in the units of the unconstrained latents; a number or an
        optax schedule.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: momentum of its square, in [0, 1).
    :param eps: keeps the division away from zero, positive.
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for a number outside its range; on ``init``, if there are no natural
        parameters.
    """
    rule = NAdamRule(
        check_step_size(step_size),
        check_momentum(beta1, "beta1"),
        check_momentum(beta2, "beta2"),
        check_positive(eps, "eps"),
    )
    return joint(rule, other, "NAdam")


class Moments(NamedTuple):
    """Moving averages of a gradient and of its square, element by element."""

    first: Families  #: ``m_t``
    second: Families  #: ``v_t``

    @classmethod
    def zeros(cls, families: Families) -> Moments:
        """Before the first gradient."""
        return cls(direction.zeros(families), direction.zeros(families))

    def update(self, gradients: Families, beta1: float, beta2: float) -> Moments:
        """After one more gradient; zeros at first, without a correction of that bias."""
        squares = jax.tree.map(jnp.square, gradients)
        return Moments(
            direction.combine(beta1, self.first, 1 - beta1, gradients),
            direction.combine(beta2, self.second, 1 - beta2, squares),
        )


class NAdamRule(NamedTuple):
    """Its state are the moments."""

    step_size: float | Schedule
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        return Moments.zeros(families)

    def step(
        self, gradients: Families, state: Moments, families: Families, count: jax.Array
    ) -> tuple[Families, Moments]:
        moments = state.update(gradients, self.beta1, self.beta2)
        alpha = step_size_at(self.step_size, count) / (1 - self.beta1 ** (count + 1.0))
        bias = 1 - self.beta2 ** (count + 1.0)

        def along(m: jax.Array, v: jax.Array) -> jax.Array:
            return -(alpha * m / (jnp.sqrt(v / bias) + self.eps)).astype(m.dtype)

        return direction.retract(families, jax.tree.map(along, *moments)), moments
