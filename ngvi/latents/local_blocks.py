"""The locals of a model: latents that meet only globals, as small blocks."""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.latents.hierarchy import find_hierarchy
from ngvi.latents.layout import Layout


class NoLocalsError(ValueError):
    """A model has no locals that are independent of each other given its other latents."""


@dataclasses.dataclass(frozen=True)
class LocalBlocks:
    """Blocks of latents that are independent of each other given all other latents.

    :param forest: a group of blocks for each set of plates, and last the other latents, if any, as
        one block.
    :param sites: for each group of locals the names of its sites.
    :param obstacles: why other sites that lie in plates are not local, in words.
    """

    forest: Forest
    sites: tuple[tuple[str, ...], ...]
    obstacles: tuple[str, ...] = ()

    @property
    def groups(self) -> list[np.ndarray]:
        """Coordinates of the blocks of each group of locals, integers ``(k, n)``."""
        return self.forest.split_indices()[: len(self.sites)]

    @property
    def others(self) -> np.ndarray:
        """The coordinates of the latents that are not local."""
        return np.flatnonzero(~self.mask)

    @property
    def mask(self) -> np.ndarray:
        """Return which coordinates are local, shape ``(d,)``."""
        mask = np.zeros(self.forest.dim, bool)
        for group in self.groups:
            mask[group] = True
        return mask

    @property
    def paths(self) -> Forest:
        """The forest with the other latents as the parent of all locals."""
        groups = self.forest.groups
        if len(groups) == len(self.sites):
            return self.forest
        locals = [dataclasses.replace(group, parent=len(groups) - 1) for group in groups[:-1]]
        return dataclasses.replace(self.forest, groups=(*locals, groups[-1]))

    @property
    def probes(self) -> np.ndarray:
        """Coordinate ``j`` of every block, shape ``(r, d)``.

        Blocks do not meet, so that ``r`` products with a Hessian hold all of them.
        """
        probes = np.zeros((max(map(len, self.groups)), self.forest.dim))
        for group in self.groups:
            for row, coordinates in enumerate(group):
                probes[row, coordinates] = 1.0
        return probes

    def describe(self) -> str:
        """Describe the blocks, and say why sites in plates are among the others.

        Such as "59 locals of size 2 ('a', 'b') given 9 others".
        """
        words = [
            f"{group.shape[1]} locals of size {len(group)} ({', '.join(map(repr, names))})"
            for group, names in zip(self.groups, self.sites, strict=True)
        ]
        why = f" ({'; '.join(self.obstacles)})" if self.obstacles else ""
        return f"{' and '.join(words)} given {len(self.others)} others{why}"


def find_local_blocks(layout: Layout, names: tuple[str, ...] | None = None) -> LocalBlocks:
    """Return the leaves of the forest of a model's latents.

    Of nested plates the innermost latents are the locals; their parents count as globals.

    :param names: of sites that are known to be local, though there may be one group only; by
        default they are found.
    :raises NoLocalsError: if there are none, or if the model cannot be differentiated twice.
    """
    way_out = "Use NaturalGaussianGuide, which needs none."
    if names is None and not any(plate.size > 1 for site in layout.sites for plate in site.plates):
        latents = ", ".join(repr(site.name) for site in layout.sites)
        raise NoLocalsError(
            "ReparametrizedGaussianGuide needs local latents, and no latent site of this model "
            f"({latents}) is in a plate of more than one element. {way_out}"
        )
    if layout.dependencies.hessian_product is None:
        raise NoLocalsError(
            "ReparametrizedGaussianGuide needs second derivatives of the model's log density, "
            "which has none, or is not finite, near the guide's start. Use NaturalGaussianGuide."
        )
    found = find_hierarchy(layout, names)
    groups: list[np.ndarray] = []
    sites: list[tuple[str, ...]] = []
    for index, blocks in enumerate(found.blocks):
        of_block = tuple(
            site.name
            for site in layout.sites
            if site.name in found.local_sites and np.isin(site.start, blocks)
        )
        is_many = blocks.shape[1] > 1 or names is not None
        if of_block and index not in found.parents and is_many:
            groups.append(blocks)
            sites.append(of_block)
    if not groups:
        raise NoLocalsError(
            "ReparametrizedGaussianGuide finds no locals that are independent of each other given "
            f"the other latents: {'; '.join(found.obstacles)}. {way_out}"
        )
    local = np.concatenate([group.reshape(-1) for group in groups])
    others = np.setdiff1d(np.arange(layout.dim), local)
    pieces = [*groups, others[:, None]] if len(others) else groups
    return LocalBlocks(forest_from_indices(pieces), tuple(sites), found.obstacles)
