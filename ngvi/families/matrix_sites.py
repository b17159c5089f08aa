"""Which latent sites are matrices, for :mod:`~ngvi.families.matrix_normal`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.latents.layout import Layout, Site
from ngvi.linalg.kronecker_root import Shapes


def find_matrices(layout: Layout, names: Sequence[str] | None, max_side: int) -> Shapes:
    """The matrices of a layout.

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
                "and is no matrix of at least two rows and two columns. Leave it out of "
                "sites=: what is no matrix has a standard deviation for each element."
            )
    if not found:
        shapes = ", ".join(f"{site.name!r} {site.shape}" for site in layout.sites[:10])
        more = ", ..." if len(layout.sites) > 10 else ""
        raise ValueError(
            "family='matrix_normal' needs a latent site that is a matrix of at least two rows "
            f"and two columns, and the latent sites are {shapes}{more}. Use family='diagonal' "
            "(any size), 'low_rank', or 'auto', which finds what suits the model."
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
