"""Interface of natural-gradient optimisers: a rule by which families move.

A rule is pure: it has no memory but the state that it returns. It is written once, against the
directions of :mod:`ngvi.families.direction` and an :class:`Algebra` of numbers: a number is a float
in Pyro and an array without axes in NumPyro, and a rule branches by ``where``. Each algorithm's
file in the packages makes an optimiser of its rule.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

from ngvi.errors import step_size_at
from ngvi.families import direction
from ngvi.families.steps import relative_scale_step

#: A tensor of whichever library.
Array = Any
#: A number: of the state, or one that follows from it.
Number = Any
#: Families, or a direction at them, see :mod:`ngvi.families.direction`.
Families = list[Any]
#: A length that is nothing, in any precision.
TINY = 1e-37
#: A step size: a number, a schedule from the number of steps taken, or :class:`PartRates`.
Rates = Any

#: What a warning says of a step that is not taken.
SKIPPED = (
    "was skipped: a gradient or the step's result is not finite, or the step before led far off. "
    "Parameters keep their last good value. A step size that is given may be too large: BLR() "
    "without one adapts."
)


class PartRates(NamedTuple):
    """Step sizes of means and of scales."""

    mean: Rates
    scale: Rates | None  #: None for the step size of the mean, times what the family says.


class Common(NamedTuple):
    """Numbers that several rules share."""

    #: What a step that went too far adds to the inverse of a step size (Kesten, 1958).
    decrease: float = 0.5
    growth: float = 1.2  #: Factor of a length by a step along which all agrees.
    memory: float = 0.9  #: Part of a running average that a step leaves.


COMMON = Common()


class Rule(Protocol):
    """A rule by which families move.

    A rule may know where to go when something is not finite: then it has a ``recover(state,
    families)``, which gives the families to continue from, and the state.
    """

    def init(self, families: Families) -> Any:
        """Return the rule's state, a ``NamedTuple`` of families, tensors, numbers and None."""

    def step(
        self, gradients: Families, state: Any, families: Families, count: Number
    ) -> tuple[Families, Any]:
        """Return the families after the step, and the new state.

        :param gradients: natural gradients of the loss.
        :param count: the number of steps taken so far.
        """


class Algebra:
    """Operations on numbers that rules use; a package writes the rest in ``optim.algebra``."""

    minimum: ClassVar[Any]  #: The smaller of two numbers.
    maximum: ClassVar[Any]
    sqrt: ClassVar[Any]  #: The square root of a number.
    norm: ClassVar[Any]  #: The length of a vector.
    concatenate: ClassVar[Any]  #: Joins a list of vectors.
    split: ClassVar[Any]  #: Cuts a vector into pieces of these sizes.
    scan: ClassVar[Any]  #: See :func:`ngvi.optim.two_loop.two_loop`.
    where: ClassVar[Any]  #: ``yes`` or ``no`` by a condition, of numbers; of tensors by element.
    eps: ClassVar[Any]  #: The unit of precision of a tensor's dtype.
    #: Tensors without axes as numbers, read at once; what is a number stays one.
    numbers: ClassVar[Any]
    #: A function of none that gives the same, read with the next numbers that are, or when called.
    later: ClassVar[Any]
    #: ``measured(compute, measure)``: what ``compute()`` returns, which may be called twice, and
    #: numbers, the tensors without axes that ``measure`` makes of it.
    measured: ClassVar[Any]
    #: ``cast(number, families)``: of their dtype, whatever a schedule or ``count`` made it.
    cast: ClassVar[Any]
    #: ``kept(numbers, families)``: a ``NamedTuple`` of numbers, as a state holds it.
    kept: ClassVar[Any]
    #: Fisher inner products as rows of numbers, see :func:`ngvi.families.direction.products`.
    product_rows: ClassVar[Any]
    #: ``no_rows(most, vector)``: a matrix without rows, for ``most`` vectors like this one.
    no_rows: ClassVar[Any]
    #: ``with_row(use, matrices, rows, most)``: matrices with one more row each, the newest
    #: ``most``; themselves without ``use``.
    with_row: ClassVar[Any]
    #: ``repeated(advance, settled, search, path)``: a search of :mod:`~ngvi.optim.trust_region`
    #: along a path, until it is settled.
    repeated: ClassVar[Any]

    def at_rates(self, rates: Rates, vectors: Families, factor: Number, count: Number) -> Families:
        """Directions times their step sizes after ``count`` steps, and a factor."""
        if not isinstance(rates, PartRates):
            return direction.scale(factor * step_size_at(rates, count), vectors)
        of_mean, steps = factor * step_size_at(rates.mean, count), []
        for one in vectors:
            if rates.scale is None:
                of_scale = relative_scale_step(one) * of_mean
            else:
                of_scale = factor * step_size_at(rates.scale, count)
            steps += direction.scale_parts(of_mean, of_scale, [one])
        return steps

    def joined(self, parts: list[Array]) -> Array:
        """Vectors one after another."""
        return self.concatenate(parts) if len(parts) > 1 else parts[0]

    def means(self, families: Families) -> Array:
        """Return the means of all families, one after another; of a direction their change."""
        return self.joined([family.loc for family in families])

    def by_family(self, vector: Array, families: Families) -> list[Array]:
        """Return the inverse of :meth:`joined`."""
        return self.split(vector, [family.dim for family in families])
