"""Steps of matrices with a Kronecker covariance.

Equation numbers are those of :mod:`~ngvi.networks.matrix_normal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ngvi.families.gaussian import Array
from ngvi.families.path import WhitenedPath
from ngvi.families.steps import attempts_are_costly
from ngvi.networks.kronecker import KroneckerSteps, NumberSteps
from ngvi.networks.kronecker_root import Pairs
from ngvi.networks.matrix_coordinates import MatrixCoordinates


class MatrixSteps(MatrixCoordinates):
    """The steps of (5), and additions, whose redundant scale is where it belongs."""

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        """Return the steps to (5)."""
        root = self._root()
        shift = root.split(of_mean * self._whitened_mean(direction))
        changes: list[Any] = []
        for pair in self._quotients(direction):
            # Each factor moves with the whole scale, which both share, and the step divides by it.
            traces = [-2.0 * one.diagonal().mean() for one in pair]
            add = zip(pair, reversed(traces), strict=True)
            changes.append(tuple(self.ops.plus_diagonal(x + x.mT, other, -1.0) for x, other in add))
        changes.append(-2.0 * direction.scale / self.scale)
        kronecker, numbers = KroneckerSteps(self.ops), NumberSteps(self.ops)

        def finish(_: Any, *steps: Any) -> Any:
            *of_matrices, of_rest = steps
            moved = zip(root.pairs, of_matrices, strict=True)
            product = self.ops.lower_product
            pairs = [(product(a, s.rows.lower), product(b, s.columns.lower)) for (a, b), s in moved]
            shifted = zip(pairs, of_matrices, strict=True)
            matrices = [a @ kronecker.inner_shift(step) @ b.mT for (a, b), step in shifted]
            loc = self.loc + root.join(matrices, self.scale * of_rest.shift)
            scale = self.scale * self.xp.sqrt(of_rest.ratio)
            return self._balanced(loc, pairs, scale, [step.size for step in of_matrices])

        def metrics(_: Sequence[Any], gradient: Array) -> Any:
            whitened = root.split(root.transpose_times(gradient))

            def of_steps(*steps: Any) -> Array:
                *of_matrices, of_rest = steps
                rows = zip(root.pairs, of_matrices, whitened.matrices, strict=True)
                moved = [a @ kronecker.metric(step, w) @ b.mT for (a, b), step, w in rows]
                return root.join(moved, self.scale * of_rest.ratio * whitened.rest)

            return of_steps

        kinds = [*[kronecker] * len(root.pairs), numbers]
        blocks = list(zip(changes, [*shift.matrices, shift.rest], strict=True))
        return WhitenedPath(blocks, kinds, finish, metrics=metrics)

    def _trace_ratio(self, other: Self) -> Array:
        total = ((self.scale / other.scale) ** 2).sum()
        for (a, b), (of_a, of_b) in zip(self._root().pairs, other._root().pairs, strict=True):
            of_rows = (self.ops.lower_quotient(of_a, a) ** 2).sum()
            total = total + of_rows * (self.ops.lower_quotient(of_b, b) ** 2).sum()
        return total

    def retract(self, step: Self) -> Self:
        """``lambda + step``, with the redundant scale where it belongs."""
        scale = self.ops.keep_off_zero(self._bound().scale, self.scale + step.scale)
        pairs = self._root().pairs, step._root().pairs
        moved = self._each(lambda factor, change, _: self.ops.add_off_zero(factor, change), *pairs)
        return self._balanced(self.loc + step.loc, moved, scale)

    def _balanced(
        self, loc: Array, pairs: Pairs, scale: Array, sizes: Sequence[Array] | None = None
    ) -> Self:
        """Return the family with ``|det A|^(1/m) = |det B|^(1/n)``.

        :param sizes: by what the covariance of each pair is multiplied; one by default.
        """
        of_rows, of_columns = map(self.xp.stack, zip(*self._mean_logs(pairs), strict=True))
        ratios = self.xp.exp(0.5 * (of_columns - of_rows))
        halves = 1.0 if sizes is None else self.xp.stack(list(sizes)) ** 0.25
        factors = zip(pairs, halves * ratios, halves / ratios, strict=True)
        return self._with(loc, [(one * a, other * b) for (a, b), one, other in factors], scale)

    def _quotients(self, direction: Self) -> Pairs:
        """``X`` and ``Y`` of a direction."""
        return self._root().quotients(direction._root().pairs)


# By the factorisation and the inverse of each factor.
attempts_are_costly.register(MatrixSteps, lambda family: True)
