"""The blocks of a block-diagonal covariance: by site, by element of a plate, or as given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngvi.latents.hierarchy import find_hierarchy
from ngvi.latents.layout import Layout, Site

Blocks = Sequence[Sequence[str] | Sequence[int]]


def find_blocks(
    layout: Layout, blocks: Blocks | None = None
) -> tuple[list[np.ndarray], tuple[bool, ...]]:
    """Return groups of blocks of equal size.

    :param blocks: lists of site names or of indices; by default by site and plate element.
    :return: for each group the coordinates of its blocks, integers ``(k, n)``; and whether the
        group's blocks are independent of each other in the model, given the rest.
    :raises ValueError: if the blocks overlap or leave out latents, naming the sites.
    """
    layout = layout.with_coordinates()
    chosen = _by_plate(layout) if blocks is None else [_chosen(layout, b) for b in blocks]
    _check_partition(layout, [piece for piece, _ in chosen])
    independent = _independent_sites(layout, chosen)
    groups: dict[tuple, list[np.ndarray]] = {}
    for number, (piece, sites) in enumerate(chosen):
        is_probed_at_once = bool(sites) and piece.shape[1] > 1 and independent.issuperset(sites)
        # Blocks known to be independent are kept apart: they share their probes.
        key = (len(piece), number if is_probed_at_once else None)
        groups.setdefault(key, []).append(piece)
    pieces = [np.concatenate(same, 1) for same in groups.values()]
    return pieces, tuple(number is not None for _, number in groups)


def _by_plate(layout: Layout) -> list[tuple[np.ndarray, tuple[str, ...]]]:
    together: dict[tuple, list[Site]] = {}
    for site in layout.sites:
        key = tuple(p.name for p in site.plates) or (None, site.name)
        together.setdefault(key, []).append(site)
    return [_elements(sites) for sites in together.values()]


def _chosen(layout: Layout, block: Sequence) -> tuple[np.ndarray, tuple[str, ...]]:
    if all(isinstance(item, str) for item in block):
        return _elements([layout.site(name) for name in block])
    indices = np.asarray(list(block), int)
    if indices.ndim != 1 or (indices < 0).any() or (indices >= layout.dim).any():
        raise ValueError(
            f"BlockDiagonal(blocks=...): {block!r} is neither a list of site names nor of indices "
            f"from 0 to {layout.dim - 1}."
        )
    return indices[:, None], ()


def _elements(sites: list[Site]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return one block for each element of the plates that the sites share."""
    common = frozenset.intersection(*(site.plate_names for site in sites))
    order = [plate.name for plate in sites[0].plates if plate.name in common]
    piece = np.concatenate([site.indices(order) for site in sites], 1).T
    return piece, tuple(site.name for site in sites)


def _independent_sites(layout: Layout, chosen: list) -> set[str]:
    """Sites whose elements are independent in the model, given the rest."""
    if all(piece.shape[1] == 1 for piece, _ in chosen):
        return set()
    return set(find_hierarchy(layout).local_sites_by_element)


def _check_partition(layout: Layout, pieces: list[np.ndarray]) -> None:
    count = np.zeros(layout.dim, int)
    for piece in pieces:
        np.add.at(count, piece.reshape(-1), 1)
    for what, wrong in (("more than one block", count > 1), ("no block", count < 1)):
        if not wrong.any():
            continue
        names = [
            f"'{site.name}'"
            for site in layout.sites
            if wrong[site.start : site.start + site.size].any()
        ]
        verb = "belongs" if len(names) == 1 else "belong"
        raise ValueError(
            f"BlockDiagonal(blocks=...): {', '.join(names)} {verb} to {what}. Every latent belongs "
            "to exactly one."
        )
