"""What the families with a dense covariance have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ngvi.family import Array, Family

if TYPE_CHECKING:
    from ngvi.structure.layout import Layout

#: The most latents: a matrix of more has gigabytes, and a step several of them.
MAX_DIM = 2**15


class DenseFamily(Family):
    """A Gaussian with ``d (d + 1) / 2`` free coordinates beside its mean.

    Its part of a Hessian is the whole of it, shape ``(d, d)``.
    """

    def for_layout(self, layout: Layout) -> Self:
        """The specification itself.

        :raises ValueError: for so many latents that a matrix would not fit the memory.
        """
        if layout.dim > MAX_DIM:
            raise ValueError(
                f"family={self.name!r} would hold matrices of {layout.dim:,} x {layout.dim:,} for "
                f"this model's latents, {layout.dim**2 / 2**28:,.0f} GB each in float32. Use "
                "family='diagonal' or 'low_rank'; family='auto' chooses."
            )
        return self

    @property
    def num_parameters(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    @property
    def lower_factor(self) -> Array:
        """The lower triangular ``C`` with a positive diagonal and ``Sigma = C C^T``."""
        raise NotImplementedError
