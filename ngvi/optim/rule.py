"""What a natural-gradient optimiser is: a rule by which families move.

A rule is pure: it has no memory but the state that it returns. It is written once, against the
directions of :mod:`ngvi.families.direction` and an :class:`Algebra` of numbers: a number is a float
in Pyro and an array without axes in NumPyro, and a rule branches by ``where``. Each algorithm's
file in the packages makes an optimiser of its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Algebra:
    """What rules compute numbers with; a package's ``optim.algebra`` writes all of it."""

    minimum: Any  #: of two numbers
    maximum: Any
    sqrt: Any  #: of a number
    hypot: Any  #: of two
    norm: Any  #: of a vector
    concatenate: Any  #: a list of vectors
    scan: Any  #: see :func:`ngvi.optim.two_loop.two_loop`

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """``yes`` or ``no``, of numbers; of tensors by element."""
        raise NotImplementedError

    def numbers(self, *values: Array | Number) -> Sequence[Number]:
        """Tensors without axes as numbers, read at once; what is a number stays one."""
        raise NotImplementedError

    def later(self, *values: Array) -> Callable[[], Sequence[Number]]:
        """The same, to be read with the next numbers that are, or when they are wanted."""
        raise NotImplementedError

    def measured(
        self, compute: Callable[[], Any], measure: Callable[[Any], Sequence[Array]]
    ) -> tuple[Any, Sequence[Number]]:
        """What a function returns, and numbers that follow from it.

        :param compute: it may be called twice.
        :param measure: tensors without axes, from what it returns.
        """
        raise NotImplementedError

    def cast(self, number: Number, like: Families) -> Number:
        """A number of the families' dtype, whatever a schedule or ``count`` made it."""
        raise NotImplementedError

    def kept(self, numbers: tuple, like: Families) -> Any:
        """A ``NamedTuple`` of numbers, as a state holds it; it can be unpacked."""
        raise NotImplementedError

    def eps(self, like: Array) -> float:
        """The unit of precision of its dtype."""
        raise NotImplementedError

    def split(self, vector: Array, sizes: list[int]) -> list[Array]:
        """The vector cut into pieces."""
        raise NotImplementedError

    def rate(self, rates: Rates, count: Number) -> Number:
        """A step size after ``count`` steps."""
        raise NotImplementedError

    def at_rates(self, rates: Rates, vectors: Families, factor: Number, count: Number) -> Families:
        """Every coordinate times its rate after ``count`` steps, and a factor."""
        raise NotImplementedError

    def product_rows(self, families: Families, directions: list, others: list) -> Any:
        """Fisher inner products as rows of numbers, see :mod:`ngvi.families.direction`."""
        raise NotImplementedError

    def no_rows(self, most: int, like: Array) -> Array:
        """A matrix without rows, for vectors like this one."""
        raise NotImplementedError

    def with_row(self, use: Any, blocks: tuple, rows: tuple, most: int) -> Any:
        """Matrices with one more row each, the newest ``most``; themselves without ``use``."""
        raise NotImplementedError

    def repeated(self, advance: Callable, settled: Callable, search: Any, path: Any) -> Any:
        """A search of :mod:`~ngvi.optim.trust_region` along a path, until it is settled."""
        raise NotImplementedError
