"""Independent dense Gaussians: ``Sigma = blockdiag(C_1 C_1^T, ..., C_K C_K^T)``.

The Fisher information has a block for each mean and each factor (Tan, section 7.1), so that
everything is as for :class:`~pyro_ngvi.families.covariance_cholesky.CovarianceCholesky`,
block by block (algorithm 1S)::

    dmu = Sigma dL/dmu,        dC_i = C_i Phi(C_i^T G_i)

Blocks of equal size are one array (:mod:`~pyro_ngvi.linalg.batched`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ngvi.structure.blocks import find_blocks
from ngvi.structure.forest import Forest, check_dense, forest_from_indices
from ngvi.structure.layout import Layout
from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg import batched
from pyro_ngvi.linalg.arrow import Arrow, Vector, add_keeping_off_zero, join, split
from pyro_ngvi.linalg.definite import covariance_root


@dataclasses.dataclass(frozen=True, eq=False)
class BlockDiagonal(Family):
    """Gaussian with independent blocks.

    :param loc: mean, shape ``(d,)``, in the order of the latent vector.
    :param scale_tril: the factors, packed: for each group of ``n`` blocks of size ``k`` an array
        ``(k, k, n)``, flattened.
    :param blocks: lists of site names, each one block (or one for each element of the plates
        that all of its sites lie in), or lists of indices of the latent vector. Every latent
        belongs to exactly one. By default every site is a block, and sites in plates are
        one block for each element of the plates.
    :param structure: the blocks; found by the guide. Without it all latents are one.
    :param independent: for each group of ``structure``, whether its blocks are independent in
        the model, given the rest: then fewer Hessian-vector products are needed.
    """

    loc: Tensor | None = None
    scale_tril: Tensor | None = None
    blocks: Sequence[Sequence[str] | Sequence[int]] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )
    structure: Forest | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )
    independent: tuple[bool, ...] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )

    name: ClassVar[str] = "block_diagonal"
    relative_scale_step: ClassVar[float] = 0.01
    leaves_out_correlations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.blocks is not None and not isinstance(self.blocks, tuple):
            names = [(b,) if isinstance(b, str) else tuple(b) for b in self.blocks]
            object.__setattr__(self, "blocks", tuple(names))

    def for_layout(self, layout: Layout) -> BlockDiagonal:
        if self.structure is not None:
            return self
        pieces, independent = find_blocks(layout, self.blocks)
        return dataclasses.replace(
            self, structure=forest_from_indices(pieces), independent=independent
        )

    def couples(self) -> str | Forest:
        return self.structure if self.structure is not None else super().couples()

    def describe(self) -> str:
        """The blocks in words."""
        if self.structure is None:
            return "no blocks yet"
        count = {}
        for group in self.structure.groups:
            count[group.size] = count.get(group.size, 0) + group.num
        words = [
            f"{num} block{'s' if num > 1 else ''} of size {size}" for size, num in count.items()
        ]
        return " and ".join(words)

    def initial(self, loc: Tensor, scale: float) -> BlockDiagonal:
        dim = loc.shape[-1]
        structure = self.structure or forest_from_indices([np.arange(dim)[:, None]])
        if structure.dim != dim:
            raise ValueError(f"The blocks have {structure.dim} latents, but loc has {dim}.")
        eye = torch.as_tensor(structure.packed_identity()).to(loc)
        return dataclasses.replace(self, loc=loc, scale_tril=eye * scale, structure=structure)

    # -- shape and moments ------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        return self.dim + self.structure.num_lower

    @property
    def stddev(self) -> Tensor:
        return self._join([own.square().sum(1).sqrt() for (own,) in self._factor().blocks])

    @property
    def covariance_matrix(self) -> Tensor:
        factor = self._factor()
        check_dense(self)
        dense = factor.to_dense()
        return dense @ dense.mT

    @property
    def precision_matrix(self) -> Tensor:
        factor = self._factor()
        check_dense(self)
        eye = self._split(torch.eye(self.dim).to(self.loc))
        root = self._join(factor.solve(eye))
        return root @ root.mT

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Tensor:
        return sum(d.abs().log().sum() for d in self._factor().diagonals())

    def whiten(self, value: Tensor) -> Tensor:
        return self._join(self._factor().solve(self._split(value - self.loc)))

    def sample(self, noise: Tensor) -> Tensor:
        return self._bound().loc + self._join(self._factor().times(self._split(noise)))

    # -- natural gradients ------------------------------------------------------------

    def displacement(self, change: BlockDiagonal, noise: Tensor) -> Tensor:
        factor = self._factor()
        inner = factor.transpose_matmul(change._factor()).map_diagonal(batched.halve_diagonal)
        of_loc = factor.transpose_times(self._split(change.loc))
        of_scale = inner.times(self._split(noise))
        return self._join([a + b for a, b in zip(of_loc, of_scale, strict=True)])

    def log_det_displacement(self, change: BlockDiagonal) -> Tensor:
        self._bound()
        return 0.5 * (self.scale_tril * change.scale_tril).sum()

    def natural_gradient(self, gradient: BlockDiagonal) -> BlockDiagonal:
        factor = self._factor()
        inner = factor.transpose_matmul(gradient._factor()).map_diagonal(batched.halve_diagonal)
        return self._with(self._covariance_times(factor, gradient.loc), factor.matmul(inner))

    def euclidean_gradient(self, natural_gradient: BlockDiagonal) -> BlockDiagonal:
        factor = self._factor()
        inner = factor.solve_matmul(natural_gradient._factor())
        symmetric = inner.map_diagonal(lambda block: block + batched.transpose(block))
        loc = factor.solve_transpose(factor.solve(self._split(natural_gradient.loc)))
        return self._with(self._join(loc), factor.solve_transpose_products(symmetric))

    # -- curvature --------------------------------------------------------------------

    def hessian_probes(self) -> np.ndarray:
        self._bound()
        numbers = np.zeros(self.dim, int)
        pieces = self.structure.split_indices()
        for piece, first, shared in zip(pieces, self._first_probes(), self._shared(), strict=True):
            rows, blocks = np.indices(piece.shape)
            numbers[piece] = first + (rows if shared else rows * piece.shape[1] + blocks)
        return numbers

    def assemble_hessian(self, products: Tensor) -> Tensor:
        self._bound()
        blocks = []
        rows = self._split(products)
        for index, group in enumerate(self.structure.groups):
            first, shared = self._first_probes()[index], self._shared()[index]
            size, num = group.size, group.num
            if shared:
                own = rows[index][first : first + size]
            else:
                own = rows[index][first : first + size * num].reshape(size, num, size, num)
                own = own.diagonal(dim1=1, dim2=3)
            blocks.append((0.5 * (own + batched.transpose(own)),))
        return Arrow(self.structure, tuple(blocks)).pack()

    def outer_products(self, left: Tensor, right: Tensor) -> Tensor:
        self._bound()
        blocks = []
        for a, b in zip(self._split(left), self._split(right), strict=True):
            own = torch.einsum("Npn,Nqn->pqn", a, b)
            blocks.append((0.5 * (own + batched.transpose(own)),))
        return Arrow(self.structure, tuple(blocks)).pack()

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> BlockDiagonal:
        factor = self._factor()
        curvature = Arrow.unpack(self.structure, hessian)
        inner = factor.combine(_whiten, curvature).map_diagonal(batched.halve_diagonal)
        return self._with(self._covariance_times(factor, gradient), factor.matmul(inner))

    # -- steps ------------------------------------------------------------------------

    def natural_step(self, direction: BlockDiagonal, step_size: Tensor | float) -> BlockDiagonal:
        factor = self._factor()
        inner = factor.solve_matmul(direction._factor())
        root = inner.map_diagonal(lambda block: _covariance_root(block, step_size))
        shift = root.transpose_times(factor.solve(self._split(direction.loc)))
        new = factor.matmul(root)
        return self._with(self.loc + step_size * self._join(new.times(shift)), new)

    def kl_divergence(self, other: BlockDiagonal) -> Tensor:
        ratio = other._factor().solve_matmul(self._factor())
        trace = sum(own.square().sum() for (own,) in ratio.blocks)
        change = 0.5 * (trace - self.dim + other.whiten(self.loc).square().sum())
        return change - self.log_det_scale() + other.log_det_scale()

    def retract(self, step: BlockDiagonal) -> BlockDiagonal:
        structure = self._bound().structure
        packed = add_keeping_off_zero(structure, self.scale_tril, step.scale_tril)
        return dataclasses.replace(self, loc=self.loc + step.loc, scale_tril=packed)

    # -- helpers ----------------------------------------------------------------------

    def _factor(self) -> Arrow:
        return Arrow.unpack(self._bound().structure, self.scale_tril)

    def _split(self, vector: Tensor) -> Vector:
        return split(self.structure, vector)

    def _join(self, vector: Vector) -> Tensor:
        return join(self.structure, vector)

    def _with(self, loc: Tensor, factor: Arrow) -> BlockDiagonal:
        return dataclasses.replace(self, loc=loc, scale_tril=factor.pack())

    def _covariance_times(self, factor: Arrow, vector: Tensor) -> Tensor:
        return self._join(factor.times(factor.transpose_times(self._split(vector))))

    def _shared(self) -> tuple[bool, ...]:
        return self.independent or (False,) * len(self.structure.groups)

    def _first_probes(self) -> list[int]:
        sizes = [
            group.size * (1 if shared else group.num)
            for group, shared in zip(self.structure.groups, self._shared(), strict=True)
        ]
        return np.cumsum([0, *sizes[:-1]]).tolist()


def _whiten(factor: Tensor, curvature: Tensor) -> Tensor:
    inner = batched.matmul(batched.transpose(factor), batched.matmul(curvature, factor))
    return inner + batched.identity(factor.shape[0], factor.shape[-1], factor)


def _covariance_root(inner: Tensor, step_size: Any) -> Tensor:
    change = (-step_size * (inner + batched.transpose(inner))).movedim(-1, 0)
    return covariance_root(change).movedim(0, -1)
