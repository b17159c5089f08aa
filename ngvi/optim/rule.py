"""What a natural-gradient optimiser is: a rule by which families move.

A rule is pure: it has no memory but the state that it returns. It is written once, against an
:class:`Algebra`: a number is a float in Pyro and an array without axes in NumPyro, and a rule
branches by ``where``. Each algorithm's file in the packages makes an optimiser of its rule.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

#: A tensor of whichever library.
Array = Any
#: A number: of the state, or one that follows from it.
Number = Any
#: A place or a direction, see :mod:`ngvi.families.direction`.
Families = list[Any]
#: A length that is nothing, in any precision.
TINY = 1e-37
#: A step size: a number, a schedule, or one for each coordinate, as the package has it.
Rates = Any


class Rule(Protocol):
    """How families move."""

    def init(self, families: Families) -> Any:
        """The rule's state: a (nested) ``NamedTuple`` of families, tensors, numbers and None."""

    def step(
        self, gradients: Families, state: Any, families: Families, count: Number
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


class Algebra(Protocol):
    """What rules compute with, the modules ``optim.algebra`` of the packages.

    It has the functions of :mod:`ngvi.families.direction` besides, as they are.
    """

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """``yes`` or ``no``, of numbers; of tensors by element."""

    def minimum(self, left: Number, right: Number) -> Number:
        """The smaller number."""

    def maximum(self, left: Number, right: Number) -> Number:
        """The larger number."""

    def sqrt(self, number: Number) -> Number:
        """The root of a number."""

    def hypot(self, left: Number, right: Number) -> Number:
        """The length of a vector of two numbers."""

    def copysign(self, size: Array, sign: Array) -> Array:
        """The size of one tensor with the sign of another, by element."""

    def norm(self, vector: Array) -> Array:
        """The Euclidean norm of a vector."""

    def number(self, value: Array) -> Number:
        """A tensor without axes as a number, and several by :meth:`numbers`."""

    def cast(self, number: Number, like: Families) -> Number:
        """A number of the families' dtype."""

    def kept(self, numbers: tuple, like: Families) -> Any:
        """A ``NamedTuple`` of numbers, as a state holds it; it can be unpacked."""

    def rate(self, rates: Rates, count: Number) -> Number:
        """A step size after ``count`` steps."""

    def repeated(self, advance: Any, settled: Any, search: Any, path: Any) -> Any:
        """A search of :mod:`~ngvi.optim.trust_region` along a path, until it is settled."""

    def no_rows(self, most: int, like: Array) -> Array:
        """A matrix without rows, for vectors like this one."""

    def with_row(self, use: Array, blocks: tuple, rows: tuple, most: int) -> Any:
        """Matrices with one more row each, the newest ``most``; themselves without ``use``."""

    def product_rows(self, families: Families, directions: list, others: list) -> Any:
        """Fisher inner products as rows of numbers, see :mod:`ngvi.families.direction`."""

    def at_rates(self, rates: Rates, vectors: Families, factor: Number, count: Number) -> Families:
        """Every coordinate times its rate after ``count`` steps, and a factor."""

    def __getattr__(self, name: str) -> Any:
        """A function of :mod:`ngvi.families.direction`, or of the matrices."""
