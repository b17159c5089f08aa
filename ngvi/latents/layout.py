"""Layout of the latent vector: its sites, their plates, who depends on whom.

The guide makes a :class:`Layout` from its model and hands it to
``Family.for_layout``; families know nothing of the PPL.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

#: For pairs of sites the plates across whose elements they may interact.
Pairs = dict[tuple[str, str], frozenset[str]]


@dataclasses.dataclass(frozen=True)
class Plate:
    """A plate around a site.

    :param name: of the plate.
    :param size: the number of its elements.
    :param axis: the axis of the site's unconstrained value, counted from the left.
    """

    name: str
    size: int
    axis: int


def plates_of(site: Mapping[str, Any], num_axes: int) -> tuple[Plate, ...]:
    """Return the vectorised plates around a site of a run, whose value has this many axes."""
    frames = [f for f in site["cond_indep_stack"] if getattr(f, "vectorized", True)]
    return tuple(Plate(f.name, int(f.size), num_axes + f.dim) for f in frames)


@dataclasses.dataclass(frozen=True)
class Site:
    """A latent site.

    :param name: of the site.
    :param start: its first coordinate in the latent vector.
    :param shape: of its unconstrained value, which is flattened row by row.
    :param plates: the plates around it, by axis.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    plates: tuple[Plate, ...] = ()

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def plate_names(self) -> frozenset[str]:
        """The names of the plates around the site."""
        return frozenset(plate.name for plate in self.plates)

    def indices(self, plates: Iterable[str]) -> np.ndarray:
        """Return the site's coordinates by elements of some of its plates.

        :param plates: their names, the slowest first.
        :return: integers, shape ``(elements, coordinates of each)``.
        """
        axes = {plate.name: plate.axis for plate in self.plates}
        coordinates = self.start + np.arange(self.size).reshape(self.shape)
        front = [axes[name] for name in plates]
        num = int(np.prod([self.shape[axis] for axis in front], dtype=int))
        return np.moveaxis(coordinates, front, range(len(front))).reshape(num, -1)


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """Pairs of latents that interact in the posterior.

    :param pairs: for each pair of sites that may interact (a site with itself included, both
        orders) the plates across whose elements they may do so; within an element of the others.
    :param certain: pairs, and plates, which a Hessian does not see because the coupling comes
        from a latent outside of the latent vector.
    :param hessian_product: ``v`` to ``H v``, with the Hessian of the log density at a point where
        nothing vanishes by accident; ``(m, d)`` to ``(m, d)``. None if there is no Hessian.
    :param tolerance: relative rounding error of a product.
    :param where_alike: gives the same where all elements of a site are equal, or None. At a
        start where one component of a mixture has no rows, they seem independent; not there.
    """

    pairs: Pairs
    certain: Pairs = dataclasses.field(default_factory=dict)
    hessian_product: Callable[[np.ndarray], np.ndarray] | None = None
    tolerance: float = 1e-9
    where_alike: Callable[[], Callable[[np.ndarray], np.ndarray] | None] = lambda: None


def curvature_of(
    pairs: tuple[Pairs, Pairs],
    product_at: Callable[[np.ndarray], Callable | None],
    start: np.ndarray,
    sites: Iterable[Site],
    parts: tuple[float, ...] = (1.0, 0.1, 0.01),
) -> Dependencies:
    """Add products with the Hessian near the start, and where elements of sites are alike.

    Half a unit away, for a Hessian may vanish by symmetry; or nearer, where the density of a model
    in raw units is not finite there.

    :param pairs: that may interact, and that certainly do.
    :param product_at: products with the Hessian at a latent vector ``(d,)``; None if they are not
        finite.
    :param parts: of half a unit, that are tried.
    """
    offset, sites = np.random.default_rng(0).uniform(-0.5, 0.5, len(start)), tuple(sites)

    def near(move: Callable[[np.ndarray], np.ndarray]) -> Callable | None:
        points = (move(start + part * offset) for part in parts)
        return next(filter(None, map(product_at, points)), None)

    def alike(point: np.ndarray) -> np.ndarray:
        for site in sites:
            axes, own = tuple(plate.axis for plate in site.plates), site.indices(())[0]
            if site.size and axes:
                mean = point[own].reshape(site.shape).mean(axes, keepdims=True)
                point[own] = np.broadcast_to(mean, site.shape).reshape(-1)
        return point

    tolerance = 1e-9 if start.dtype == np.float64 else 2e-4
    return Dependencies(*pairs, near(lambda point: point), tolerance, lambda: near(alike))


class Layout:
    """The sites of a latent vector.

    :param sites: in the order of the vector.
    :param find_dependencies: finds out which latents interact; called at most once, and only
        by families that ask.
    :param is_sum: finds out whether the log density is a sum of terms
        (:mod:`ngvi.estimators.additive_terms`), all of whose parameters are in the vector.
    """

    def __init__(
        self,
        sites: Iterable[Site],
        find_dependencies: Callable[[], Dependencies] | None = None,
        is_sum: Callable[[], bool] | None = None,
    ) -> None:
        self.sites = tuple(sites)
        self._find_dependencies, self._is_sum = find_dependencies, is_sum

    @property
    def dim(self) -> int:
        """The length of the latent vector."""
        return sum(site.size for site in self.sites)

    @functools.cached_property
    def dependencies(self) -> Dependencies:
        """Return which latents interact; every pair, if nobody knows."""
        if self._find_dependencies is not None:
            return self._find_dependencies()
        pairs = {
            (a.name, b.name): a.plate_names & b.plate_names for a in self.sites for b in self.sites
        }
        return Dependencies(pairs)

    def is_sum_of_terms(self) -> bool:
        """Return whether the log density is a sum of terms, for quadrature."""
        return self._is_sum is not None and self._is_sum()

    def with_coordinates(self) -> Layout:
        """Leave out sites without elements, which are in no block."""
        sites = [site for site in self.sites if site.size]
        if len(sites) == len(self.sites):
            return self

        def find_dependencies() -> Dependencies:
            found, names = self.dependencies, {site.name for site in sites}
            pairs, certain = _among(found.pairs, names), _among(found.certain, names)
            return dataclasses.replace(found, pairs=pairs, certain=certain)

        return Layout(sites, find_dependencies, self._is_sum)

    def site(self, name: str) -> Site:
        """Return the site of this name.

        :raises ValueError: if there is none, with the names of those there are.
        """
        for site in self.sites:
            if site.name == name:
                return site
        known = ", ".join(repr(site.name) for site in self.sites)
        raise ValueError(f"There is no latent site {name!r}. The latent sites are {known}.")


def name_of(index: int, sites: Iterable[Site]) -> str:
    """Name a coordinate of the latent vector, such as ``"beta[2]"``."""
    site = next(site for site in sites if index < site.start + site.size)
    if not site.shape:
        return site.name
    within = np.unravel_index(index - site.start, site.shape)
    return f"{site.name}[{','.join(str(int(i)) for i in within)}]"


def pieces(sites: Iterable[Site], vector: np.ndarray) -> dict[str, np.ndarray]:
    """Return the elements of a latent vector by its sites, without empty ones."""
    return {s.name: vector[s.start : s.start + s.size] for s in sites if s.size}


def sites_of_all(dims: Mapping[str, int], known: Mapping[str, Iterable[Site]]) -> tuple[Site, ...]:
    """Return the sites of several latent vectors, one vector after the other.

    :param dims: by name, the length of a vector.
    :param known: by name, the sites of a vector; any other is one site.
    """
    sites, start = [], 0
    for name, dim in dims.items():
        for site in known.get(name, (Site(name.strip("_"), 0, (dim,)),)):
            sites.append(dataclasses.replace(site, start=start + site.start))
        start += dim
    return tuple(sites)


def interacting_pairs(
    found: dict[str, dict[str, set[str]]], sites: Mapping[str, Any], latents: Iterable[str]
) -> tuple[Pairs, Pairs]:
    """Pairs of latents that may interact once the others are integrated out.

    :param found: ``posterior_dependencies`` as the PPL's ``get_dependencies`` gives them.
    :param sites: of a run of the model, by name.
    :param latents: names of the sites that stay.
    :return: for each pair, in both orders, the plates across whose elements the sites may
        interact; and the same for the pairs that interact through a latent that is integrated out.
    """
    plates = {
        name: {f.name for f in site["cond_indep_stack"] if getattr(f, "vectorized", True)}
        for name, site in sites.items()
        if site["type"] == "sample"
    }
    pairs: dict[tuple[str, str], set[str]] = {}
    for a, others in found.items():
        for b, across in others.items():
            if b in found:
                for pair in ((a, b), (b, a)):
                    pairs.setdefault(pair, set()).update(across)
    certain: dict[tuple[str, str], set[str]] = {}
    kept = set(latents)
    for gone in [name for name in found if name not in kept]:
        neighbours = [b for a, b in list(pairs) if a == gone and b != gone]
        for a in neighbours:
            for b in neighbours:
                shared = plates[a] & plates[b]
                across = shared - plates[gone]
                across |= shared & (pairs[a, gone] | pairs[gone, b])
                pairs.setdefault((a, b), set()).update(across)
                certain.setdefault((a, b), set()).update(across)
    return _among(pairs, kept), _among(certain, kept)


def _among(pairs: Mapping[tuple[str, str], Iterable[str]], names: set[str]) -> Pairs:
    return {pair: frozenset(plates) for pair, plates in pairs.items() if names.issuperset(pair)}
