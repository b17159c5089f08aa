"""Common parts of the families with a dense covariance."""

from __future__ import annotations

from typing import ClassVar, Self

from ngvi.families.base import Array, Family
from ngvi.families.curvature import (
    GroupSpread,
    natural_gradient_from_groups,
    natural_gradient_from_points,
    spread_of,
)
from ngvi.families.draws import has_free_scales
from ngvi.latents.layout import Layout
from ngvi.linalg.matrices import symmetric


class DenseFamily(Family):
    """A Gaussian with ``d (d + 1) / 2`` free coordinates beside its mean.

    Its part of a Hessian is the whole of it, shape ``(d, d)``.
    """

    #: The most latents: a matrix of more has gigabytes, and a step several of them.
    max_dim: ClassVar[int] = 2**15

    def for_layout(self, layout: Layout) -> Self:
        """Return the specification itself.

        :raises ValueError: for so many latents that a matrix would not fit the memory.
        """
        if layout.dim > self.max_dim:
            raise ValueError(
                f"family={self.name!r} would hold matrices of {layout.dim:,} x {layout.dim:,}, "
                f"{layout.dim**2 / 2**28:,.0f} GB each. Use family='auto', or 'diagonal'."
            )
        return self

    @property
    def num_parameters(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    def whitened_rows(self, gradients: Array) -> Array:
        """``C^T g`` for each of the rows ``g``, shape ``(N, d)``."""
        raise NotImplementedError

    def natural_gradient_from_whitened(self, gradient: Array, hessian: Array) -> Self:
        """:meth:`bonnet_price` from ``C^T E[grad l]`` and ``C^T E[hess l] C``, symmetric."""
        raise NotImplementedError

    @property
    def lower_factor(self) -> Array:
        """The lower triangular ``C`` with a positive diagonal and ``Sigma = C C^T``."""
        raise NotImplementedError


has_free_scales.register(DenseFamily, lambda family: True)


@natural_gradient_from_points.register(DenseFamily)
def _(family: DenseFamily, gradients: Array, noise: Array) -> DenseFamily:
    rows = family.whitened_rows(gradients)  # without a solve for the draws
    return family.natural_gradient_from_whitened(rows.sum(0), symmetric(rows.mT @ noise))


@natural_gradient_from_groups.register(DenseFamily)
def _(
    family: DenseFamily, gradients: Array, noise: Array, num_groups: int
) -> tuple[DenseFamily, GroupSpread]:
    rows, points = (
        x.reshape(num_groups, -1, family.dim) for x in (family.whitened_rows(gradients), noise)
    )
    means, hessians = family.ops.sum_rows(rows), symmetric(rows.mT @ points)
    # The inner products of all pairs of groups, of directions in whitened coordinates.
    eye = family.ops.eye(family.dim, family.loc)
    inner = (hessians + eye / num_groups).reshape(num_groups, -1)
    products = means @ means.mT + 0.5 * (inner @ inner.mT)
    found = family.natural_gradient_from_whitened(means.sum(0), hessians.sum(0))
    return found, spread_of(products.sum(), family.ops.diagonals(products).sum(), num_groups)
