"""Which latents are local, given which others: the forest of a model's latents.

A site in plates may be local: its elements independent of each other given the rest. The
forest has one group of blocks for each set of plates; a block's parent is the element of an
outer plate that it lies in, or the globals. Three kinds of evidence decide:

- the plates: without one a site is global;
- the model's dependencies, site by site, which are cautious: wherever a model picks elements of a
  plate by an index (``effect[group]``) they cannot tell which;
- the Hessian at one point. If a local site's elements are independent given their ancestors,
  then ``H (s * e)`` is ``s * (H e)`` below them, for ``e`` one coordinate of every element and
  random ``s``: two products a coordinate of a block, whatever the number of blocks. Anything
  else contradicts the independence, and names the sites.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.latents.layout import Dependencies, Layout, Site

Plates = frozenset[str]

#: Globals are one dense block: up to 100 MB for its three arrays in float64.
MAX_GLOBALS = 2000

#: Coordinates of a site's block that are checked against a Hessian, at most.
MAX_CHECKED = 32

#: Two sites' couplings smaller than this share of the tolerance, relative to their curvatures, are
#: rounding: of an intercept and the slope of a centred covariate, say.
ROUNDING = 0.05


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """The forest of a model's latents.

    :param blocks: for each group the coordinates of its blocks, integers ``(k, n)``, children
        before parents.
    :param parents: for each group that of its parents.
    :param local_sites: names of the sites that are local.
    :param local_sites_by_element: those that are local across every one of their plates.
    :param obstacles: why the other sites that lie in plates are not, in words.
    """

    blocks: list[np.ndarray]
    parents: list[int | None]
    local_sites: tuple[str, ...]
    local_sites_by_element: tuple[str, ...]
    obstacles: tuple[str, ...]


def find_hierarchy(layout: Layout, locals: tuple[str, ...] | None = None) -> Hierarchy:
    """The forest of the latents.

    :param locals: names of the sites that are to be local; by default as many as possible.
    :raises ValueError: if a named site does not exist, is in no plate, or is not independent
        across its plates according to the model's Hessian.
    """
    search = _Search(layout, locals)
    search.run()
    return search.result()


class _Search:
    def __init__(self, layout: Layout, declared: tuple[str, ...] | None) -> None:
        if declared is not None:
            declared = tuple(name for name in declared if layout.site(name).size)
        self.layout, self.declared = layout.with_coordinates(), declared
        layout = self.layout
        self.dependencies: Dependencies = layout.dependencies
        self.pairs = dict(self.dependencies.pairs)
        self.obstacles: list[str] = []
        names = [site.name for site in layout.sites] if declared is None else declared
        self.plates: dict[str, Plates] = {site.name: frozenset() for site in layout.sites}
        for name in names:
            self.plates[name] = layout.site(name).plate_names
            if declared is not None and not self.plates[name]:
                raise ValueError(
                    f"SparsePrecision(locals=...) names {name!r}, which is in no plate: there is "
                    "nothing it could be local to. Put it into a plate, or leave it out."
                )

    def run(self) -> None:
        for pair, plates in self.dependencies.certain.items():
            self._couple(*pair, plates)
        if self.dependencies.hessian_product is None and self.declared is None:
            for pair, plates in self.pairs.items():
                self._couple(*pair, plates)
        self._make_forest()
        while contradiction := self._contradiction():
            self._refuse(*contradiction)
            self._make_forest()

    def result(self) -> Hierarchy:
        forest = self._forest()
        blocks, parents = [], []
        for plates in forest:
            order = self._plate_order(plates, forest)
            sites = [site for site in self.layout.sites if self.plates[site.name] == plates]
            blocks.append(np.concatenate([site.indices(order) for site in sites], 1).T)
            parent = self._parent(plates, forest)
            parents.append(None if parent is None else forest.index(parent))
        local_sites = tuple(name for name, plates in self.plates.items() if plates)
        by_element = tuple(
            n for n in local_sites if self.plates[n] == self.layout.site(n).plate_names
        )
        obstacles = tuple(dict.fromkeys(self.obstacles))
        return Hierarchy(blocks, parents, local_sites, by_element, obstacles)

    # -- the forest: sets of plates, children before parents --------------------------

    def _forest(self) -> list[Plates]:
        return sorted(set(self.plates.values()), key=lambda p: (-len(p), sorted(p)))

    def _parent(self, plates: Plates, forest: list[Plates]) -> Plates | None:
        return max((other for other in forest if other < plates), key=len, default=None)

    def _plate_order(self, plates: Plates, forest: list[Plates]) -> list[str]:
        """The plates, outermost first: an element's parent is a prefix of its index."""
        parent = self._parent(plates, forest)
        outer = [] if parent is None else self._plate_order(parent, forest)
        site = next(site for site in self.layout.sites if self.plates[site.name] == plates)
        inner = [p.name for p in site.plates if p.name in plates and p.name not in outer]
        return [*outer, *inner]

    def _make_forest(self) -> None:
        """Make sites global until the plates of related sites are nested."""
        while conflict := self._conflict():
            smaller, (a, b) = conflict
            self.obstacles.append(
                f"{_words(self.layout.site(a))} depends on {_words(self.layout.site(b))}, "
                "and neither's plates are among the other's"
            )
            if self.declared is not None:
                raise ValueError(
                    f"SparsePrecision(locals={list(self.declared)}): {self.obstacles[-1]}. "
                    f"Leave {a!r} or {b!r} out of locals."
                )
            for name, plates in self.plates.items():
                if plates == smaller:
                    self.plates[name] = frozenset()

    def _conflict(self) -> tuple[Plates, tuple[str, str]] | None:
        members: dict[Plates, list[str]] = {}
        for name, plates in self.plates.items():
            if plates:
                members.setdefault(plates, []).append(name)
        size = {p: sum(self.layout.site(n).size for n in names) for p, names in members.items()}
        by_size = sorted(members, key=lambda p: (-size[p], sorted(p)))
        for i, smaller in enumerate(by_size):
            for larger in by_size[:i]:
                if smaller < larger or larger < smaller:
                    continue
                related = [
                    (a, b)
                    for a in members[smaller]
                    for b in members[larger]
                    if (a, b) in self.pairs or (b, a) in self.pairs
                ]
                shared = [p for p in by_size if smaller < p and larger < p]
                if shared and not related:
                    related = [(members[smaller][0], members[shared[0]][0])]
                if related:
                    return smaller, related[0]
        return None

    # -- evidence ---------------------------------------------------------------------

    def _couple(self, a: str, b: str, plates: Plates) -> None:
        """Two sites interact across these plates: their elements cannot be blocks."""
        plates = plates & self.plates[a] & self.plates[b]
        if not plates:
            return
        names = " and ".join(repr(name) for name in sorted(plates))
        what = "itself" if a == b else _words(self.layout.site(b))
        obstacle = f"{_words(self.layout.site(a))} depends on {what} across plate {names}"
        if self.declared is not None:
            raise ValueError(
                f"SparsePrecision(locals={list(self.declared)}) declares an independence that the "
                f"model contradicts: {obstacle}. Leave it out of locals, or use a dense family."
            )
        self.obstacles.append(obstacle)
        self.plates[a] -= plates
        self.plates[b] -= plates

    def _refuse(self, a: str, b: str) -> None:
        """The Hessian couples two sites where the forest has zeros."""
        common = self.plates[a] & self.plates[b]
        if not common:
            self.pairs[a, b] = frozenset()
            return
        told = self.pairs.get((a, b), frozenset()) & common
        self._couple(a, b, told or common)

    def _contradiction(self) -> tuple[str, str] | None:
        """Two sites which the Hessian couples where the forest has zeros."""
        product = self.dependencies.hessian_product
        if product is None:
            return None
        forest = self._forest()
        rng = np.random.default_rng(0)
        for site in self.layout.sites:
            plates = self.plates[site.name]
            if not plates:
                continue
            indices = site.indices(self._plate_order(plates, forest))
            num, width = indices.shape
            checked = np.arange(width)
            if width > MAX_CHECKED:
                checked = rng.choice(width, MAX_CHECKED, replace=False)
            for column in checked:
                scale = rng.uniform(0.5, 1.5, num) * rng.choice([-1.0, 1.0], num)
                probes = np.zeros((2, self.layout.dim))
                probes[0, indices[:, column]] = 1.0
                probes[1, indices[:, column]] = scale
                ones, scaled = np.asarray(product(probes))
                if not (np.isfinite(ones).all() and np.isfinite(scaled).all()):
                    continue
                for other in self.layout.sites:
                    gap = self._gap(other, plates, scale, ones, scaled, forest)
                    if gap > 0.0:
                        own = np.abs(ones[indices[:, column]]).max()
                        if gap > ROUNDING * (own * self._curvature(other)) ** 0.5:
                            return other.name, site.name
        return None

    def _curvature(self, site: Site) -> float:
        """The size of the Hessian within a site."""
        product = self.dependencies.hessian_product
        assert product is not None  # which has shown a gap
        own = slice(site.start, site.start + site.size)
        probes = np.zeros((2, self.layout.dim))
        probes[:, own] = np.random.default_rng(0).choice([-1.0, 1.0], site.size)
        return float(np.abs(np.asarray(product(probes))[:, own]).max())

    def _gap(
        self,
        other: Site,
        plates: Plates,
        scale: np.ndarray,
        ones: np.ndarray,
        scaled: np.ndarray,
        forest: list[Plates],
    ) -> float:
        """The largest coupling where the forest has zeros, over the tolerance; 0 if it is less than
        that of the couplings that may be.
        """
        mine = self.plates[other.name]
        if mine < plates:
            return 0.0  # an ancestor sums over its descendants
        indices = other.indices(self._plate_order(mine, forest))
        ones, scaled = ones[indices], scaled[indices]
        expected = np.zeros_like(ones)
        if plates <= mine:
            expected = np.repeat(scale, len(indices) // len(scale))[:, None] * ones
        size = max(np.abs(ones).max(), np.abs(scaled).max())
        gap, tolerance = float(np.abs(scaled - expected).max()), self.dependencies.tolerance
        return 0.0 if gap <= tolerance * size else gap / tolerance


def _words(site: Site) -> str:
    names = " and ".join(repr(plate.name) for plate in site.plates)
    return f"'{site.name}' (plate {names})" if names else f"'{site.name}'"


def find_structure(
    layout: Layout, locals: tuple[str, ...] | None = None
) -> tuple[Forest | None, str]:
    """The blocks of a model's latents, or what stands in the way, in words.

    :param locals: names of the sites that are to be local; by default they are found.
    :raises ValueError: if the model contradicts that they are local.
    """
    found = find_hierarchy(layout, locals)
    reasons = "; ".join(found.obstacles)
    if found.obstacles and not found.local_sites:
        return None, f"finds no locals: {reasons}"
    sites = [site for site in layout.sites if site.name not in found.local_sites]
    num = sum(site.size for site in sites)
    if num > MAX_GLOBALS:
        largest = sorted(sites, key=lambda site: -site.size)[:3]
        names = ", ".join(f"'{site.name}' ({site.size})" for site in largest)
        return None, (
            f"has {num} globals, and they are one dense block of at most {MAX_GLOBALS}. The "
            f"largest are {names}: {reasons or 'sites without a plate are global'}"
        )
    return forest_from_indices(found.blocks, found.parents), ""
