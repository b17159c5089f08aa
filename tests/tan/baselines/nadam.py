"""NAdam: elementwise Adam on natural gradients, a baseline (Tan, section 6)."""

from __future__ import annotations

from typing import NamedTuple

from ngvi.errors import check_finite, check_momentum, check_step_size
from ngvi.families import direction
from ngvi.optim.rule import Algebra, Array, Families, Number, Rates


def check_adam(
    step_size: Rates, beta1: float, beta2: float, eps: float, name: str = "step_size"
) -> None:
    """Refuse values out of range.

    :param name: what the package calls the step size.
    :raises ValueError: naming the option.
    """
    check_step_size(step_size, name)
    check_momentum(beta1, "beta1")
    check_momentum(beta2, "beta2")
    check_finite(eps, "eps")


class Moments(NamedTuple):
    """Moving averages of a gradient and of its square, element by element."""

    first: Families  #: ``m_t``
    second: Families  #: ``v_t``

    def update(self, on: Algebra, gradients: Families, beta1: float, beta2: float) -> Moments:
        """After one more gradient; zeros at first, without a correction of that bias."""
        squares = direction.each(lambda g: g * g, gradients)
        return Moments(
            direction.combine(beta1, self.first, 1 - beta1, gradients),
            direction.combine(beta2, self.second, 1 - beta2, squares),
        )


class NAdamRule(NamedTuple):
    """Adam on the natural gradient of the bound, element by element.

    With ``g_t`` the natural gradient of the bound over ``lambda`` (Tan, Table 5, left column)::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + alpha m_hat / (sqrt(v_hat) + eps)

    where ``m_hat = m_t / (1 - beta1^t)`` and ``v_hat = v_t / (1 - beta2^t)``. It is here to be
    compared with: dividing each element by its own size undoes what the Fisher information
    did, and in Tan's experiments it is the slowest of all. Use ``BLR`` or ``Snngm`` instead.
    It is not the Adam with Nesterov's momentum that goes by the same name.
    """

    algebra: Algebra
    rates: Rates
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        return Moments(direction.zeros(families), direction.zeros(families))

    def step(
        self, gradients: Families, state: Moments, families: Families, count: Number
    ) -> tuple[Families, Moments]:
        on = self.algebra
        moments = state.update(on, gradients, self.beta1, self.beta2)
        bias = 1 - self.beta2 ** (count + 1.0)

        def along(m: Array, v: Array) -> Array:
            return m / ((v / bias) ** 0.5 + self.eps)

        factor = -1.0 / (1 - self.beta1 ** (count + 1.0))
        steps = on.at_rates(self.rates, direction.each(along, *moments), factor, count)
        return direction.retract(families, steps), moments
