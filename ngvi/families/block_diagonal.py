"""Independent dense Gaussians: ``Sigma = blockdiag(C_1 C_1^T, ..., C_K C_K^T)``.

The Fisher information has a block for each mean and each factor (Tan, section 7.1), so that
everything is as for :class:`~ngvi.families.covariance_cholesky.CovarianceCholesky`,
block by block (algorithm 1S)::

    dmu = Sigma dL/dmu,        dC_i = C_i Phi(C_i^T G_i)

Blocks of equal size are one array (:mod:`~ngvi.linalg.batched`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.families.base import Array
from ngvi.families.forest_family import ForestFamily
from ngvi.families.path import WhitenedPath
from ngvi.families.steps import leaves_out_correlations
from ngvi.latents.blocks import find_blocks
from ngvi.latents.forest import forest_from_indices
from ngvi.latents.layout import Layout
from ngvi.linalg.definite import CovarianceStep, CovarianceSteps


@dataclasses.dataclass(frozen=True, eq=False)
class BlockDiagonal(ForestFamily):
    """Gaussian with independent blocks.

    >>> q = families.BlockDiagonal().initial(y, 0.1)
    >>> f"{float(q.entropy()):.2f}"
    '-2.65'

    :param loc: mean, shape ``(d,)``, in the order of the latent vector.
    :param scale_tril: the factors, packed: for each group of ``n`` blocks of size ``k`` an array
        ``(k, k, n)``, flattened.
    :param blocks: lists of site names, each one block (or one for each element of the plates
        that all of its sites lie in), or lists of indices of the latent vector. Every latent
        belongs to exactly one. By default every site is a block, and sites in plates are
        one block for each element of the plates.
    :param structure: the blocks, a ``Forest``; found by the guide. Without it all latents are one.
    :param independent: for each group of ``structure``, whether its blocks are independent in
        the model, given the rest: then fewer Hessian-vector products are needed.
    """

    loc: Array = None
    scale_tril: Array = None
    blocks: Sequence[Sequence[str] | Sequence[int]] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )
    structure: Any = dataclasses.field(default=None, kw_only=True, metadata={"static": True})
    independent: tuple[bool, ...] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )

    name: ClassVar[str] = "block_diagonal"
    factor_name: ClassVar[str] = "scale_tril"
    power: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.blocks is not None and not isinstance(self.blocks, tuple):
            names = [(b,) if isinstance(b, str) else tuple(b) for b in self.blocks]
            object.__setattr__(self, "blocks", tuple(names))

    def for_layout(self, layout: Layout) -> Self:
        if self.structure is not None:
            return self
        pieces, independent = find_blocks(layout, self.blocks)
        return dataclasses.replace(
            self, structure=forest_from_indices(pieces), independent=independent
        )

    def describe(self) -> str:
        """Return the blocks in words."""
        if self.structure is None:
            return "no blocks yet"
        count: dict[int, int] = {}
        for group in self.structure.groups:
            count[group.size] = count.get(group.size, 0) + group.num
        words = [
            f"{num} block{'s' if num > 1 else ''} of size {size}" for size, num in count.items()
        ]
        return " and ".join(words)

    # -- shape and moments ------------------------------------------------------------

    @property
    def stddev(self) -> Array:
        return self._join([self.xp.sqrt((own**2).sum(1)) for (own,) in self._factor().blocks])

    # -- density ----------------------------------------------------------------------

    def whiten(self, value: Array) -> Array:
        return self._join(self._factor().solve(self._split(value - self.loc)))

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self._join(self._factor().times(self._split(noise)))

    # -- natural gradients ------------------------------------------------------------

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        factor = self._factor()
        inner = factor.transpose_matmul(change._factor()).map_diagonal(
            self._arrow.ops.halve_diagonal
        )
        of_loc = factor.transpose_times(self._split(change.loc))
        of_scale = inner.times(self._split(noise))
        return self._join([a + b for a, b in zip(of_loc, of_scale, strict=True)])

    # -- curvature --------------------------------------------------------------------

    def hessian_probes(self) -> np.ndarray:
        self._bound()
        numbers = np.zeros(self.dim, int)
        pieces = self.structure.split_indices()
        for piece, first, shared in zip(pieces, self._first_probes(), self._shared(), strict=True):
            rows, blocks = np.indices(piece.shape)
            numbers[piece] = first + (rows if shared else rows * piece.shape[1] + blocks)
        return numbers

    def _own_products(self, index: int, rows: Array) -> Array:
        first, group = self._first_probes()[index], self.structure.groups[index]
        size, num = group.size, group.num
        if self._shared()[index]:
            return rows[first : first + size]
        own = rows[first : first + size * num].reshape(size, num, size, num)
        return own.diagonal(0, 1, 3)

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        factor = self._factor()
        curvature = self._arrow.unpack(self.structure, hessian)
        inner = factor.combine(self._whitened, curvature).map_diagonal(
            self._arrow.ops.halve_diagonal
        )
        return self._with(self._covariance_times(factor, gradient), factor.matmul(inner))

    # -- steps ------------------------------------------------------------------------

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        factor = self._factor()
        inner = factor.solve_matmul(direction._factor())
        shifts = factor.solve(self._split(of_mean * direction.loc))
        blocks = [
            (self.xp.moveaxis(-(own + self._arrow.ops.transpose(own)), -1, 0), shift.mT)
            for (own,), shift in zip(inner.blocks, shifts, strict=True)
        ]

        def finish(_: Any, *steps: CovarianceStep) -> Any:
            roots = [self.xp.moveaxis(step.root, 0, -1) for step in steps]
            root = self._arrow(self.structure, tuple((root,) for root in roots))
            shift = factor.times([step.shift.mT for step in steps])
            return self._with(self.loc + self._join(shift), factor.matmul(root))

        def metrics(_: Any, gradient: Array) -> Any:
            whitened = factor.transpose_times(self._split(gradient))

            def of_steps(*steps: CovarianceStep) -> Array:
                pairs = zip(steps, whitened, strict=True)
                return self._join(factor.times([step.metric(w.mT).mT for step, w in pairs]))

            return of_steps

        return WhitenedPath(blocks, CovarianceSteps(self.ops), finish, metrics=metrics)

    def retract(self, step: Self) -> Self:
        factor, packed = self._factor(), self.scale_tril + step.scale_tril
        new = self._arrow.unpack(self.structure, packed).kept_off_zero(factor)
        return self._with(self.loc + step.loc, new)

    # -- helpers ----------------------------------------------------------------------

    def _shared(self) -> tuple[bool, ...]:
        return self.independent or (False,) * len(self.structure.groups)

    def _first_probes(self) -> list[int]:
        sizes = [
            group.size * (1 if shared else group.num)
            for group, shared in zip(self.structure.groups, self._shared(), strict=True)
        ]
        return np.cumsum([0, *sizes[:-1]]).tolist()

    def _whitened(self, factor: Array, curvature: Array) -> Array:
        ops = self._arrow.ops
        inner = ops.matmul(ops.transpose(factor), ops.matmul(curvature, factor))
        return inner + ops.identity(factor.shape[0], factor.shape[-1], factor)


leaves_out_correlations.register(BlockDiagonal, lambda family: True)
