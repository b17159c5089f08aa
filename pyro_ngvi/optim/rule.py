"""What a natural-gradient optimiser is: a rule by which families move.

A rule is pure: it has no memory but the state that it returns. Each algorithm's file has its
rule, the torch optimiser of it, and the ``PyroOptim`` around that.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from pyro_ngvi.families import direction
from pyro_ngvi.families.direction import Families

#: One step size for all coordinates, or one for each, by family and name.
Rates = float | list[dict[str, float]]


class Rule(Protocol):
    """How families move."""

    def init(self, families: Families) -> Any:
        """The rule's state: a (nested) ``NamedTuple`` of families, tensors, numbers and None."""

    def step(
        self, gradients: Families, state: Any, families: Families, count: int
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


def at_rates(rates: Rates, vectors: Families, factor: float = 1.0) -> Families:
    """Every coordinate times its rate, and a factor."""
    if not isinstance(rates, list):
        return direction.scale(factor * rates, vectors)

    def scaled(values: dict[str, Tensor], sizes: dict[str, float]) -> dict[str, Tensor]:
        return {name: (factor * sizes[name]) * value for name, value in values.items()}

    return [
        dataclasses.replace(vector, **scaled(vector.coordinates(), sizes))
        for vector, sizes in zip(vectors, rates, strict=True)
    ]
