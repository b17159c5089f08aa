"""Latents inside a subsampled plate: which a minibatch has, and which families move those alone.

The latent vector holds all elements of the plate; a step sees those of its minibatch. A family
whose precision couples elements of the plate with each other has no parameters of single ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ngvi.latents.forest import Forest
from ngvi.latents.layout import Site


class SubsampledLatent(NamedTuple):
    """A latent site inside a subsampled plate."""

    site: str
    plate: str
    axis: int  #: Axis of the plate in the constrained value, from the right.
    size: int  #: The elements that the trace has.
    full_size: int


#: What to do about them.
WITHOUT_PLATES = "without create_plates this guide does not support local latent variables."
WAYS_OUT = (
    "Pass create_plates=... together with family='diagonal', 'block_diagonal' or "
    "'sparse_precision', draw the site in a plate without subsampling and index it inside the "
    "subsampled one, or give it a guide of its own in an AutoGuideList; or give its data to obs=."
)


def check_no_local_latents(
    latents: Iterable[SubsampledLatent], reason: str = f"{WITHOUT_PLATES} {WAYS_OUT}"
) -> None:
    """Refuse latents inside a subsampled plate, whose number is not the plate's.

    :param reason: why, and what to do instead.
    :raises ValueError: naming the first one's site, its plate and the ways out.
    """
    for site, plate, _, size, full_size in latents:
        raise ValueError(
            f"Latent site '{site}' is inside plate '{plate}', which is subsampled ({size} of "
            f"{full_size}): {reason}"
        )


@dataclasses.dataclass(frozen=True)
class MinibatchElements:
    """Elements of a minibatch in the plates around latents.

    :param sites: of the latent vector, all elements.
    :param indices: by plate, the elements of the minibatch, shape ``(B,)``.
    """

    sites: tuple[Site, ...]
    indices: dict[str, Any]

    def subsampled(self, site: Site) -> list[str]:
        """Return the plates around a site of which the minibatch has fewer elements."""
        return [
            plate.name
            for plate in site.plates
            if plate.name in self.indices and len(self.indices[plate.name]) < plate.size
        ]

    @property
    def plates(self) -> frozenset[str]:
        """The subsampled plates around latents."""
        return frozenset(name for site in self.sites for name in self.subsampled(site))

    @property
    def are_partial(self) -> bool:
        """Return whether there is a latent that the minibatch does not have."""
        return bool(self.plates)

    def check(self, family: Any, has_parts: bool) -> None:
        """Refuse a family that cannot move some elements without the others.

        :param has_parts: whether its latents, or blocks of them, have coordinates of their own.
        :raises ValueError: naming a site, its plate and the ways out.
        """
        forest = family.couples()
        if forest == "none" or not self.are_partial:
            return
        if not isinstance(forest, Forest) or not has_parts:
            self._refuse(family, next(site for site in self.sites if self.subsampled(site)))
        elements = self._elements()
        pieces = forest.split_indices()
        for index, piece in enumerate(pieces):
            for of_plate in elements.values():
                own = of_plate[piece]
                mixed = (own != own[:1]).any(0)
                for ancestor in forest.ancestors(index):
                    above = of_plate[pieces[ancestor][:1]]
                    above = np.repeat(above, own.shape[1] // above.shape[1], 1)
                    mixed |= ((above >= 0) & (above != own[:1])).any(0)
                if mixed.any():
                    wrong = piece[:, mixed][of_plate[piece[:, mixed]] >= 0]
                    first = int((wrong if wrong.size else piece[:, mixed].reshape(-1))[0])
                    site = next(s for s in self.sites if s.start <= first < s.start + s.size)
                    self._refuse(family, site)

    def _elements(self) -> dict[str, np.ndarray]:
        """Return the element of each coordinate by subsampled plate, or -1."""
        elements = {name: np.full(sum(s.size for s in self.sites), -1) for name in self.plates}
        for site in self.sites:
            for name in self.subsampled(site):
                indices = site.indices([name])
                elements[name][indices] = np.arange(len(indices))[:, None]
        return elements

    def _refuse(self, family: Any, site: Site) -> None:
        inside = next(s for s in (site, *self.sites) if self.subsampled(s))
        name = self.subsampled(inside)[0]
        size = next(plate.size for plate in inside.plates if plate.name == name)
        raise ValueError(
            f"Latent site '{site.name}' is inside plate '{name}', which is subsampled "
            f"({len(self.indices[name])} of {size}): a family={family.name!r} guide of these "
            f"latents does not support local latent variables. {WAYS_OUT}"
        )
