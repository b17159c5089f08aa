"""The guide whose Gaussian is over the globals and standardised locals.

Its map is that of :mod:`ngvi.guide.reparametrization`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ngvi.families.base import Array
from ngvi.guide.reparametrization import Reparametrization
from ngvi.latents.choice import Choice, Registry
from ngvi.latents.forest import Forest
from ngvi.latents.layout import Layout, Site
from ngvi.latents.local_blocks import find_local_blocks


def check_order(order: Any) -> int:
    """Raise a ``ValueError`` for an order that is neither 1 nor 2."""
    if order not in (1, 2) or isinstance(order, bool):
        raise ValueError(
            f"order must be 2 (expand about the conditional mode of the locals) or 1 (one Newton "
            f"step from a fixed point), got {order!r}."
        )
    return order


class ReparametrizedGaussianGuide:
    """A Gaussian over the globals and standardised locals, whose gradients are natural gradients.

    A ``NaturalGaussianGuide`` in which each local latent is ``mode + scale * z``, where mode and
    scale are those of its conditional density given globals and data. Newton's method finds them as
    the guide runs (RVB of Tan, 2021; section 8.5 of Tan's paper on natural gradients). Without a
    mode, it is ``start + z``. The Gaussian is over ``z`` and the globals. It follows the
    funnel between a scale and its effects, whether or not the model is centred. Locals are
    latents in plates (the innermost, if nested) whose elements are independent given the other
    latents. They are found from the model, and ``print(guide)`` says which.

    Draws, medians, quantiles (for locals from the same 2000 draws each time) and predictions are in
    the model's own coordinates; ``get_posterior`` and ``get_transform`` in those of ``z`` and the
    globals. The arguments of the guide's first call determine the map: later calls, with other
    arguments, draw from the same posterior. For unseen groups, use ``FitResult.sample_groups``.

    :param model: a model of the PPL, without minibatches, whose log density has two derivatives
        (and a third to be fitted).
    :param family: the family of the Gaussian. ``"auto"`` is dense up to 40 latents; beyond,
        sparse, with each local linked only to the globals.
    :param order: 2 expands at the conditional mode of the locals (RVB2). 1 (RVB1) uses a fixed
        point, the conditional mode for the guide's initial globals: its curvature, and one Newton
        step from it. That is cheaper, and good if the likelihood alone determines the locals.
    :param init_scale: initial standard deviation of the globals; that of standardised locals is 1.
        None, the default, is 0.1 or narrower, as for :class:`NaturalGaussianGuide`.
    :raises ValueError: on the first call, for a model without locals, with locals that depend
        on each other or have no modes, with minibatches or with enumerated latents, naming the
        sites.
    """

    #: The reason why latents in a subsampled plate are refused.
    _no_local_latents: ClassVar[str] = (
        "ReparametrizedGaussianGuide needs all data to find the modes of locals. Leave "
        "subsample_size out, or use NaturalGaussianGuide with create_plates=..., whose minibatches "
        "move the locals that they have."
    )

    #: Up to this many latents ``family="auto"`` is dense. Beyond, a family whose locals meet only
    #: the globals has the same optimum, and ``fit`` needs few points for it.
    max_dense_dim: ClassVar[int] = 40
    num_draws: ClassVar[int] = 2000  #: Draws for the quantiles of locals.
    draws_at_once: ClassVar[int] = 100  #: Draws that are mapped at once, or fewest.

    # What a package writes.
    _registry: ClassVar[Registry]
    _map_of: ClassVar[type[Reparametrization]]
    _start_vector: Callable[[], Array]  #: Return the start ``(d,)`` in the model's coordinates.
    _own_vector: Callable[[np.ndarray], Array]  #: Return a tensor like the latent vector.
    #: Return the end of Newton's method given the globals of a vector, and 1 where it has not
    #: arrived, both ``(d,)``.
    _modes_at: Callable[[Array], tuple[np.ndarray, np.ndarray]]

    order: int
    family: Any
    _requested_family: Choice | None
    sites: tuple[Site, ...]
    _blocks: Any = None  #: The locals, :class:`LocalBlocks`.
    _reparametrization: Reparametrization
    #: The start of Newton's method in another guide with the same map.
    _start_of_another: Any = None
    #: The local sites of a guide for other groups.
    _names_of_locals: tuple[str, ...] | None = None

    # -- set-up -----------------------------------------------------------------------

    def _choose_family(self, layout: Layout) -> Choice:
        """Find the locals and their modes, and the family that suits."""
        start, self.sites = self._start_vector(), tuple(layout.sites)
        self._blocks = blocks = find_local_blocks(layout, self._names_of_locals)
        self._reparametrization = self._map_of(blocks, start, self.order)
        if (other := self._start_of_another) is not None:
            if len(other) != len(start):
                raise ValueError(
                    f"The result is of another model: its locals begin at {len(other)} latents, "
                    f"and there are {len(start)} here."
                )
            self._reparametrization.start = self._own_vector(other)
        self._begin_at(*self._modes_at(self._reparametrization.start))
        if self._requested_family is not None:
            return self._requested_family
        families, limit = self._registry.families, self.max_dense_dim
        if layout.dim <= limit:
            return Choice(families["covariance_cholesky"](), f"auto: dense up to {limit}")
        sparse = families["sparse_precision"](structure=blocks.paths)
        return Choice(sparse, f"auto: dense only up to {limit}")

    def _begin_at(self, found: Array, unsettled: Array) -> None:
        """Begin Newton's method at the modes for the globals of the guide's start from now on.

        :param found: where it has ended from the present start, numpy, shape ``(d,)``.
        :param unsettled: 1 where it has not arrived there.
        :raises ValueError: if most locals have no mode.
        """
        start = np.asarray(self._reparametrization.start)
        for group, names in zip(self._blocks.groups, self._blocks.sites, strict=True):
            # A block that has not moved has started between two modes.
            lost = (unsettled[group] > 0).any(0) & (found[group] != start[group]).any(0)
            if 2 * lost.sum() > len(lost):
                sites = " and ".join(map(repr, names))
                raise ValueError(
                    f"ReparametrizedGaussianGuide finds no mode of {sites} given the other latents,"
                    f" in {lost.sum()} of {len(lost)} elements. Use NaturalGaussianGuide."
                )
        modes = self._own_vector(np.where(unsettled > 0, start, found))
        self._reparametrization.begin_at(modes)

    def begin_near(self, latent: np.ndarray) -> None:
        """Begin Newton's method at the modes for these globals, if each local has one.

        From there the posterior's draws take a third of the iterations where the guide's start is
        far away.

        :param latent: shape ``(d,)``.
        """
        if self.order == 2:
            found, unsettled = self._modes_at(self._own_vector(latent))
            if not unsettled.any():
                self._begin_at(found, unsettled)

    @property
    def paths(self) -> Forest | None:
        """The forest of the latents: the log density is a sum over its locals."""
        couples = self.family.couples()
        return self._blocks.paths if isinstance(couples, Forest) or couples == "none" else None

    @property
    def own_sites(self) -> tuple[Site, ...]:
        """The sites by what the Gaussian is over: locals are standardised."""
        return tuple(
            dataclasses.replace(site, name=f"standardised {site.name}")
            if self._is_local(site)
            else site
            for site in self.sites
        )

    def _is_local(self, site: Site) -> bool:
        return bool(site.size and self._blocks.mask[site.start])

    def for_groups(self, model: Any) -> Any:
        """Make a guide for other groups of the model, which is there for its map.

        It has no parameters: its first call, with the data of these groups, sets it up.
        """
        new: Any = type(self)(model, family="diagonal")  # type: ignore[call-arg]
        new._names_of_locals = tuple(name for names in self._blocks.sites for name in names)
        return new

    def _globals(self) -> dict[str, Site]:
        return {site.name: site for site in self.sites if not self._is_local(site)}

    def _pairs_of_globals(self, other: ReparametrizedGaussianGuide) -> tuple[np.ndarray, ...]:
        """Return the coordinates of the globals in both guides.

        :raises ValueError: for a site that is not of the same shape in both.
        """
        mine, others = self._globals(), other._globals()
        for name in mine.keys() | others.keys():
            shapes = [found[name].shape if name in found else None for found in (mine, others)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"Other groups need the globals of the fit, and '{name}' has shape "
                    f"{shapes[1]} with their data, {shapes[0]} in the fit. For groups without "
                    "data there is predictive(..., new_groups=)."
                )

        def coordinates(found: dict[str, Site]) -> np.ndarray:
            none = np.zeros(0, int)
            return np.concatenate([none, *(found[n].indices(()).reshape(-1) for n in mine)])

        return coordinates(mine), coordinates(others)

    def again(self, model: Any, create_plates: None = None, **options: Any) -> Any:
        """Make a guide of another model with the same latents, of the same order and family."""
        new: Any = type(self)(  # type: ignore[call-arg]
            model, self.family, order=self.order, **options
        )
        return new.begun_at(self._reparametrization.start)

    def begun_at(self, latent: Any) -> Any:
        """Begin Newton's method at this vector ``(d,)``, and return the guide."""
        self._start_of_another = latent
        return self

    def __repr__(self) -> str:
        text = super().__repr__().replace("NaturalGaussianGuide", type(self).__name__, 1)
        if self._blocks is None:
            return text
        return f"{text[:-1]}, {self._blocks.describe()}, order={self.order})"

    def _log_volume(self) -> float:
        """``-log N(z)`` of standardised locals at 0, for Laplace's formula."""
        return 0.5 * float(self._blocks.mask.sum()) * math.log(2 * math.pi)

    def _count_without_mode(self, troubled: np.ndarray) -> dict[str, float]:
        """Return the mean number of blocks by site, from flags ``(N, d)`` of their coordinates."""
        counts = {
            name: float(troubled[:, group].any(1).sum(-1).mean())
            for group, names in zip(self._blocks.groups, self._blocks.sites, strict=True)
            for name in names
        }
        return {name: count for name, count in counts.items() if count}


def check_whole(subsampled: list[str], enumerated: list[str]) -> None:
    """Refuse models whose locals have no mode given globals and data.

    :param subsampled: names of plates of which the model sees a part.
    :param enumerated: names of latents that are summed out.
    :raises ValueError: naming them and the way out.
    """
    if subsampled:
        raise ValueError(
            f"ReparametrizedGaussianGuide needs all data, and plate '{subsampled[0]}' is "
            "subsampled. Leave subsample_size out, or use NaturalGaussianGuide."
        )
    if enumerated:
        raise ValueError(
            "ReparametrizedGaussianGuide cannot sum out discrete latents inside of its map, and "
            f"'{enumerated[0]}' is enumerated. Use NaturalGaussianGuide."
        )
