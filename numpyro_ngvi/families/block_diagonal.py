"""Independent dense Gaussians: ``Sigma = blockdiag(C_1 C_1^T, ..., C_K C_K^T)``.

The Fisher information has a block for each mean and each factor (Tan, section 7.1), so that
everything is as for :class:`~numpyro_ngvi.families.covariance_cholesky.CovarianceCholesky`,
block by block (algorithm 1S)::

    dmu = Sigma dL/dmu,        dC_i = C_i Phi(C_i^T G_i)

Blocks of equal size are one array (:mod:`~numpyro_ngvi.linalg.batched`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.path import WhitenedPath
from ngvi.structure.blocks import find_blocks
from ngvi.structure.forest import Forest, forest_from_indices
from ngvi.structure.layout import Layout
from numpyro_ngvi.families.forest_family import ForestFamily
from numpyro_ngvi.linalg import batched
from numpyro_ngvi.linalg.arrow import Arrow, add_keeping_off_zero
from numpyro_ngvi.linalg.definite import CovarianceStep


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BlockDiagonal(ForestFamily):
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

    loc: jax.Array | None = None
    scale_tril: jax.Array | None = None
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
    factor_name: ClassVar[str] = "scale_tril"
    power: ClassVar[int] = 1

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

    # -- shape and moments ------------------------------------------------------------

    @property
    @jax.jit
    def stddev(self) -> jax.Array:
        return self._join([jnp.sqrt(jnp.sum(own**2, 1)) for (own,) in self._factor().blocks])

    # -- density ----------------------------------------------------------------------

    @jax.jit
    def whiten(self, value: jax.Array) -> jax.Array:
        return self._join(self._factor().solve(self._split(value - self.loc)))

    @jax.jit
    def sample(self, noise: jax.Array) -> jax.Array:
        return self._bound().loc + self._join(self._factor().times(self._split(noise)))

    # -- natural gradients ------------------------------------------------------------

    @jax.jit
    def displacement(self, change: BlockDiagonal, noise: jax.Array) -> jax.Array:
        factor = self._factor()
        inner = factor.transpose_matmul(change._factor()).map_diagonal(batched.halve_diagonal)
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

    def _own_products(self, index: int, rows: jax.Array) -> jax.Array:
        first, group = self._first_probes()[index], self.structure.groups[index]
        size, num = group.size, group.num
        if self._shared()[index]:
            return rows[first : first + size]
        own = rows[first : first + size * num].reshape(size, num, size, num)
        return jnp.diagonal(own, axis1=1, axis2=3)

    @jax.jit
    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> BlockDiagonal:
        factor = self._factor()
        curvature = Arrow.unpack(self.structure, hessian)
        inner = factor.combine(_whiten, curvature).map_diagonal(batched.halve_diagonal)
        return self._with(self._covariance_times(factor, gradient), factor.matmul(inner))

    # -- steps ------------------------------------------------------------------------

    def along(self, direction: BlockDiagonal) -> WhitenedPath:
        factor = self._factor()
        inner = factor.solve_matmul(direction._factor())
        shifts = factor.solve(self._split(direction.loc))
        blocks = [
            (jnp.moveaxis(-(own + batched.transpose(own)), -1, 0), shift.T)
            for (own,), shift in zip(inner.blocks, shifts, strict=True)
        ]

        def finish(_: Any, *steps: CovarianceStep) -> BlockDiagonal:
            root = Arrow(self.structure, tuple((jnp.moveaxis(step.root, 0, -1),) for step in steps))
            shift = factor.times([step.shift.T for step in steps])
            return self._with(self.loc + self._join(shift), factor.matmul(root))

        return WhitenedPath(blocks, CovarianceStep.along, finish)

    @jax.jit
    def retract(self, step: BlockDiagonal) -> BlockDiagonal:
        structure = self._bound().structure
        packed = add_keeping_off_zero(structure, self.scale_tril, step.scale_tril)
        return dataclasses.replace(self, loc=self.loc + step.loc, scale_tril=packed)

    # -- helpers ----------------------------------------------------------------------

    def _shared(self) -> tuple[bool, ...]:
        return self.independent or (False,) * len(self.structure.groups)

    def _first_probes(self) -> list[int]:
        sizes = [
            group.size * (1 if shared else group.num)
            for group, shared in zip(self.structure.groups, self._shared(), strict=True)
        ]
        return np.cumsum([0, *sizes[:-1]]).tolist()


def _whiten(factor: jax.Array, curvature: jax.Array) -> jax.Array:
    inner = batched.matmul(batched.transpose(factor), batched.matmul(curvature, factor))
    return inner + batched.identity(factor.shape[0], factor.shape[-1], factor)
