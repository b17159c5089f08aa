"""What a natural-gradient optimiser is: a rule by which families move.

A rule is pure: it has no memory but the state that it returns. Each algorithm's file has its
rule, and the public function that makes an optimiser of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

from numpyro_ngvi.families.direction import Families

Schedule = Callable[[jax.Array], jax.Array]


class Rule(Protocol):
    """How families move."""

    def init(self, families: Families) -> Any:
        """The rule's state: a pytree of arrays."""

    def step(
        self, gradients: Families, state: Any, families: Families, count: jax.Array
    ) -> tuple[Families, Any]:
        """The families after the step, and the new state.

        :param gradients: natural gradients of the loss.
        :param count: the number of steps taken so far.
        """


@runtime_checkable
class Recovering(Protocol):
    """A rule that knows where to go when something is not finite."""

    def recover(self, state: Any, families: Families) -> tuple[Families, Any]:
        """The families to continue from, and the state."""


def step_size_at(step_size: float | Schedule, count: jax.Array) -> jax.Array | float:
    """A constant step size, or the value of an optax schedule."""
    return step_size(count) if callable(step_size) else step_size
