"""The matrices of a matrix-normal family: which sites they are, and their factors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ngvi.families.base import Array, Family
from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.latents.layout import Layout, Site
from ngvi.networks.kronecker_root import KroneckerRoot, Pairs, Shapes


def find_matrices(layout: Layout, names: Sequence[str] | None, max_side: int) -> Shapes:
    """Return the matrices of a layout.

    :param names: of the sites that are matrices; by default all that have at least two rows and two
        columns.
    :param max_side: the most rows or columns of a site that is not named.
    :raises ValueError: if there is none, or a named site is none.
    """
    found = []
    for site in layout.sites if names is None else map(layout.site, names):
        sides = _sides(site)
        if min(sides) >= 2 and (names is not None or max(sides) <= max_side):
            found.append((site.start, *sides))
        elif names is not None:
            raise ValueError(
                f"Latent site {site.name!r} of MatrixNormal(sites=...) has shape {site.shape}, "
                "and is not a matrix of at least two rows and two columns. Leave it out of sites=."
            )
    if not found:
        shapes = ", ".join(f"{site.name!r} {site.shape}" for site in layout.sites[:10])
        more = ", ..." if len(layout.sites) > 10 else ""
        raise ValueError(
            "family='matrix_normal' needs a latent site that is a matrix of at least two rows "
            f"and two columns, and the latent sites are {shapes}{more}. Use family='auto'."
        )
    return tuple(sorted(found))


def _sides(site: Site) -> tuple[int, int]:
    """Rows and columns of a site, of which each index of either is a run of axes."""
    if len(site.shape) < 2 or not site.size:
        return 1, site.size
    first, last = site.shape[0], site.shape[-1]
    pairs = (first, site.size // first), (site.size // last, last)
    return min(pairs, key=lambda sides: sides[0] ** 2 + sides[1] ** 2)


@functools.lru_cache(maxsize=16)
def blocks(matrices: Shapes, dim: int) -> Forest:
    """Each matrix a block, and each other latent."""
    pieces = [np.arange(start, start + m * n)[:, None] for start, m, n in matrices]
    rest = np.setdiff1d(np.arange(dim), np.concatenate(pieces))
    return forest_from_indices([*pieces, rest[None]] if rest.size else pieces)


class MatrixCoordinates(Family):
    """See :class:`~ngvi.networks.matrix_normal.MatrixNormal`, whose fields these are."""

    row_tril: Any
    column_tril: Any
    scale: Any
    matrices: Shapes | None

    def _whitened_mean(self, direction: Self) -> Array:
        """``C^-1 dmu`` of a direction, shape ``(d,)``."""
        return self._root().solve(direction.loc)

    def _root(self) -> KroneckerRoot:
        """``C``; of a direction its factors."""
        shapes, dim = self.matrices or (), self.dim
        pairs = self._unpacked(self.row_tril, self.column_tril)
        return KroneckerRoot(self.ops, shapes, dim, pairs, self.scale)

    def _mean_logs(self, pairs: Pairs) -> list[tuple[Array, Array]]:
        """``log |det A| / m`` and ``log |det B| / n``."""
        factors = [one for pair in pairs for one in pair]
        diagonals = self.xp.concatenate([self.ops.diagonals(one) for one in factors])
        parts = self.ops.split(self.xp.log(abs(diagonals)), [len(one) for one in factors])
        means = [part.mean() for part in parts]
        return list(zip(means[::2], means[1::2], strict=True))

    def _each(self, function: Callable[..., Any], *pairs: Pairs) -> Pairs:
        """Map the same side of all pairs, and the other side's size, by ``function``."""
        found = []
        for (_, m, n), *same in zip(self.matrices or (), *pairs, strict=True):
            rows, columns = zip(*same, strict=True)
            found.append((function(*rows, n), function(*columns, m)))
        return found

    def _with(self, loc: Array, pairs: Pairs, scale: Array) -> Self:
        """Return these coordinates."""
        rows, columns = self._packed(pairs)
        new = {"loc": loc, "row_tril": rows, "column_tril": columns, "scale": scale}
        return dataclasses.replace(self, **new)  # type: ignore[type-var]

    def _direction(self, loc: Array, inner: Pairs, scale: Array) -> Self:
        """Return the direction ``A X`` and ``B Y``."""
        pairs = self._root().pairs, inner
        return self._with(
            loc, self._each(lambda f, x, _: self.ops.lower_product(f, x), *pairs), scale
        )

    def _packed(self, pairs: Pairs) -> tuple[Array, Array]:
        """Return the first of all pairs one after another, flattened, and the second."""
        rows, columns = (
            self.xp.concatenate([factor.reshape(-1) for factor in side])
            for side in zip(*pairs, strict=True)
        )
        return rows, columns

    def _unpacked(self, *packed: Array) -> Pairs:
        """Return the inverse of :meth:`_packed`."""
        sides = []
        for side, factors in enumerate(packed, 1):
            sizes = [shape[side] for shape in self.matrices or ()]
            pieces = self.ops.split(factors, [size**2 for size in sizes])
            sides.append([x.reshape(size, size) for x, size in zip(pieces, sizes, strict=True)])
        return list(zip(*sides, strict=True))
