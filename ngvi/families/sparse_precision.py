"""Sparse Gaussian by the arrow-shaped Cholesky factor of its precision, ``S = T T^T``.

In a hierarchical model the locals are independent given the globals, and the optimal precision
has the zeros of the Hessian. With the locals first, ``T`` keeps them (Tan, eq. (4))::

    T = [ T_1             ]
        [      ...        ]
        [           T_n   ]
        [ T_g1 ...  T_gn  T_g ]

and for nested plates in the same way, each local with its own ancestors below it
(:mod:`~ngvi.linalg.arrow`). The Fisher information is ``S`` for the mean and has one
block for every block of columns of ``T``. Let ``G = dL/dT`` where ``T`` has entries, and write
``Phi`` for the lower triangle with the diagonal halved, applied to the diagonal blocks. Then

    dmu = S^-1 dL/dmu,        dT = T M,        M = Phi(T^T G),                     (1)

where ``T^T G`` is needed only where ``T`` has entries. This is Theorem 4: its
``H_i = T_i^T (A_i + T_i^-T T_gi^T G_gi)`` is the block ``T_i^T A_i + T_gi^T G_gi`` of ``T^T G``,
and no triangular solve is left. For a draw ``theta = mu + T^-T z`` with gradient ``g``, in
Tan's notation ``v = T^-1 g`` and ``u = T_d^-T T^T (theta - mu)``, it has ``G = -u v^T`` (S6.2);
:meth:`~SparsePrecision.draw_jvp` is the transpose, ``T^-1 dL/dmu - M^T z``. The entropy's
natural gradient is ``-T / 2``, and Bonnet's and Price's, with ``H = E[hess l]``,

    dmu = S^-1 E[grad l],        dT = -T Phi(T^-1 H T^-T + I).                     (2)

Every operation is linear in the number of locals, and nothing is densified.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ngvi._warn import warn
from ngvi.families.base import Array, Family
from ngvi.families.curvature import natural_gradient_from_points
from ngvi.families.forest_family import ForestFamily
from ngvi.families.path import WhitenedPath
from ngvi.latents.hierarchy import MAX_GLOBALS, find_structure
from ngvi.latents.layout import Layout
from ngvi.linalg.arrow import Arrow
from ngvi.linalg.arrow_step import ArrowStep, ArrowSteps


@dataclasses.dataclass(frozen=True, eq=False)
class SparsePrecision(ForestFamily):
    """Gaussian whose locals are independent given the globals.

    >>> q = families.SparsePrecision().initial(y, 0.1)
    >>> f"{float(q.entropy()):.2f}"
    '-2.65'

    :param loc: mean, shape ``(d,)``, in the order of the latent vector.
    :param precision_tril: the blocks of ``T``, packed: for each group of locals its diagonal
        blocks ``(k, k, n)``, then its blocks ``(g, k, n)`` in the rows of the globals; the
        globals' own ``(g, g, 1)`` last.
    :param locals: names of the sites that are local, each in a plate; by default they are
        found from the model's conditional independences.
    :param structure: the blocks, a ``Forest``; found by the guide. Without it every latent is
        global.
    """

    loc: Array = None
    precision_tril: Array = None
    locals: Sequence[str] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )
    structure: Any = dataclasses.field(default=None, kw_only=True, metadata={"static": True})

    name: ClassVar[str] = "sparse_precision"
    factor_name: ClassVar[str] = "precision_tril"
    power: ClassVar[int] = -1
    #: A package's family for a model without locals.
    _dense: ClassVar[type[Family]]

    def __post_init__(self) -> None:
        if self.locals is not None and not isinstance(self.locals, tuple):
            names = (self.locals,) if isinstance(self.locals, str) else tuple(self.locals)
            object.__setattr__(self, "locals", names)

    def for_layout(self, layout: Layout) -> Family:
        if self.structure is not None:
            return self
        structure, obstacle = find_structure(layout, self.locals)  # type: ignore[arg-type]  # a tuple
        if structure is not None:
            return dataclasses.replace(self, structure=structure)
        if layout.dim > MAX_GLOBALS:
            raise ValueError(
                f"family='sparse_precision' {obstacle}: put independent elements into a plate, use "
                "family='block_diagonal' or 'diagonal', or say SparsePrecision(locals=[...])."
            )
        warn(f"family='sparse_precision' {obstacle}. The guide is dense instead.")
        return self._dense()

    def describe(self) -> str:
        """Return the structure in words."""
        return "no structure yet" if self.structure is None else self.structure.describe()

    # -- shape and moments ------------------------------------------------------------

    @property
    def stddev(self) -> Array:
        factor = self._factor()
        inverse = factor.solve_matmul(self._arrow.identity(self.structure, self.loc))
        variance = [sum((block**2).sum(0) for block in mine) for mine in inverse.blocks]
        return self.xp.sqrt(self._join(variance))

    # -- density ----------------------------------------------------------------------

    def whiten(self, value: Array) -> Array:
        factor = self._factor()
        return self._join(factor.transpose_times(self._split(value - self.loc)))

    def sample(self, noise: Array) -> Array:
        factor = self._factor()
        return self.loc + self._join(factor.solve_transpose_linear(self._split(noise)))

    # -- natural gradients ------------------------------------------------------------

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        factor, gradient = self._factor(), change._factor()
        of_loc = factor.solve_linear(self._split(change.loc))
        noise = self._split(noise)
        of_tril, ops = [], self._arrow.ops
        chains = factor.above(noise)
        for index, (own, *below) in enumerate(gradient.blocks):
            first, *mine = factor.blocks[index]
            inner = ops.matmul(ops.transpose(first), own)
            for block, entry in zip(mine, below, strict=True):
                inner = inner + ops.matmul(ops.transpose(block), entry)
            inner = ops.halve_diagonal(inner)
            total = ops.transpose_times(inner, noise[index])
            for entry, above in zip(below, chains[index], strict=True):
                above = factor.at(index, above)
                total = total + ops.transpose_times(entry, above)
            of_tril.append(total)
        return self._join([a - b for a, b in zip(of_loc, of_tril, strict=True)])

    # -- curvature --------------------------------------------------------------------

    def hessian_probes(self) -> np.ndarray:
        self._bound()
        return self.structure.colours()

    def _own_products(self, index: int, rows: Array) -> Array:
        first = self.structure.offsets()[index]
        return rows[first : first + self.structure.groups[index].size]

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        factor = self._factor()
        whitened = factor.congruence(self._arrow.unpack(self.structure, hessian))
        return self._natural(factor, gradient, whitened)

    def _natural(self, factor: Arrow, gradient: Array, whitened: Arrow) -> Self:
        """Equation (2), with ``T^-1 H T^-T``."""
        inner = whitened.combine(operator.add, self._arrow.identity(self.structure, self.loc))
        inner = inner.map_diagonal(self._arrow.ops.halve_diagonal).combine(operator.neg)
        return self._with(self._covariance_times(factor, gradient), factor.matmul(inner))

    # -- steps ------------------------------------------------------------------------

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        factor = self._factor()
        block = (
            factor.solve_matmul(direction._factor()),
            factor.transpose_times(self._split(of_mean * direction.loc)),
        )

        def finish(_: Any, step: ArrowStep) -> Any:
            shift = self._join(factor.solve_transpose(step.shift))
            return self._with(self.loc + shift, factor.matmul(step.root))

        return WhitenedPath([block], ArrowSteps(self.ops), finish)

    def retract(self, step: Self) -> Self:
        factor = self._factor()
        packed = self.precision_tril + step.precision_tril
        new = self._arrow.unpack(self.structure, packed).kept_off_zero(factor)
        # The moved factor moves the mean (algorithm 2S, step 5, as in Corollary 1).
        shift = new.solve_transpose(factor.transpose_times(self._split(step.loc)))
        return self._with(self.loc + self._join(shift), new)


@natural_gradient_from_points.register(SparsePrecision)
def _(family: SparsePrecision, gradients: Array, noise: Array) -> SparsePrecision:
    # Products of one local's gradient and another's noise, of which only the average over many
    # points is zero, are none of these: T^-1 H T^-T = E[(T^-1 grad l) z^T].
    factor = family._factor()
    slopes, noise = factor.solve(family._split(gradients)), family._split(noise)
    blocks = []
    for index, slope in enumerate(slopes):
        mine = [family._symmetric(family._outer(slope, noise[index]))]
        chain = family.structure.ancestors(index)
        mine.extend(family._outer(noise[ancestor], slope) for ancestor in chain)
        blocks.append(tuple(mine))
    whitened = family._arrow(family.structure, tuple(blocks))
    return family._natural(factor, gradients.sum(0), whitened)
