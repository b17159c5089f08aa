"""The forest of a model's latents: local latents and their parents.

A site in plates may be local: its elements are independent of each other given the rest. The
forest has one group of blocks for each set of plates. A block's parent is the element of the outer
plate around it, or the globals. Three kinds of evidence decide:

- the plates: without one a site is global;
- the model's dependencies, site by site, which are cautious: if a model selects elements of a
  plate by an index (``effect[group]``), they do not say which;
- the Hessian near the start, and where the elements of sites are equal. Let ``e`` have one
  coordinate of every element, and let ``s`` be random. If a local site's elements are independent
  given their ancestors, ``H (s * e)`` equals ``s * (H e)`` below them. This takes two products per
  coordinate of a block, for any number of blocks. A difference names the dependent sites.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.latents.layout import Dependencies, Layout, Site

Plates = frozenset[str]
Product = Callable[[np.ndarray], np.ndarray]

#: Globals are one dense block: up to 100 MB for its three arrays in float64.
MAX_GLOBALS = 2000


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
    """Return the forest of the latents.

    :param locals: names of the sites that are to be local; by default as many as possible.
    :raises ValueError: if a named site does not exist, is in no plate, or is not independent
        across its plates according to the model's Hessian.
    """
    search = _LocalsSearch(layout, locals)
    search.run()
    return search.result()


class _LocalsSearch:
    #: Coordinates of a site's block that are checked against a Hessian, at most.
    max_checked = 32
    #: Couplings smaller than this part of the tolerance, relative to the curvatures of both sites,
    #: are rounding: of an intercept and the slope of a centred covariate, say.
    rounding = 0.05

    def __init__(self, layout: Layout, declared: tuple[str, ...] | None) -> None:
        if declared is not None:
            declared = tuple(name for name in declared if layout.site(name).size)
        self.layout, self.declared = layout.with_coordinates(), declared
        self.dependencies: Dependencies = self.layout.dependencies
        self.pairs = dict(self.dependencies.pairs)
        self.obstacles: list[str] = []
        self._where_alike: tuple[Product | None] | None = None  # once it is asked for
        sites = self.layout.sites
        self.plates: dict[str, Plates] = {site.name: frozenset() for site in sites}
        for name in [site.name for site in sites] if declared is None else declared:
            self.plates[name] = self.layout.site(name).plate_names
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
        forest, coordinates = self._forest(), self._coordinates()
        blocks, parents = [], []
        for plates in forest:
            names = [name for name, others in self.plates.items() if others == plates]
            blocks.append(np.concatenate([coordinates[name] for name in names], 1).T)
            parent = self._parent(plates)
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

    def _parent(self, plates: Plates) -> Plates | None:
        outer = (other for other in self._forest() if other < plates)
        return max(outer, key=len, default=None)

    def _plate_order(self, plates: Plates) -> list[str]:
        """Return the plates, outermost first: an element's parent is a prefix of its index."""
        parent = self._parent(plates)
        outer = [] if parent is None else self._plate_order(parent)
        site = next(site for site in self.layout.sites if self.plates[site.name] == plates)
        inner = [p.name for p in site.plates if p.name in plates and p.name not in outer]
        return [*outer, *inner]

    def _coordinates(self) -> dict[str, np.ndarray]:
        """Return the coordinates by site, shape ``(elements, coordinates of each)``."""
        orders = {plates: self._plate_order(plates) for plates in self._forest()}
        return {s.name: s.indices(orders[self.plates[s.name]]) for s in self.layout.sites}

    def _make_forest(self) -> None:
        """Make sites global until the plates of related sites are nested."""
        while conflict := self._conflict():
            smaller, (a, b) = conflict
            self.obstacles.append(
                f"{_words(self.layout.site(a))} depends on {_words(self.layout.site(b))}, "
                "and the plates of neither contain those of the other"
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
        """Return the Hessian couples two sites where the forest has zeros."""
        common = self.plates[a] & self.plates[b]
        if not common:
            self.pairs[a, b] = frozenset()
            return
        known = self.pairs.get((a, b), frozenset()) & common
        self._couple(a, b, known or common)

    def _contradiction(self) -> tuple[str, str] | None:
        """Two sites which the Hessian couples where the forest has zeros."""
        product = self.dependencies.hessian_product
        if product is None:
            return None
        found = self._contradiction_of(product)
        are_doubtful = any(
            shared & self.plates[a] & self.plates[b]
            for (a, b), shared in self.pairs.items()
            if a in self.plates and b in self.plates
        )
        if found is None and are_doubtful:
            if self._where_alike is None:
                self._where_alike = (self.dependencies.where_alike(),)
            (product,) = self._where_alike
            found = None if product is None else self._contradiction_of(product)
        return found

    def _contradiction_of(self, product: Product) -> tuple[str, str] | None:
        coordinates, rng = self._coordinates(), np.random.default_rng(0)
        for name, plates in self.plates.items():
            if not plates:
                continue
            num, width = coordinates[name].shape
            checked = np.arange(width)
            if width > self.max_checked:
                checked = rng.choice(width, self.max_checked, replace=False)
            for own in coordinates[name].T[checked]:
                scale = rng.uniform(0.5, 1.5, num) * rng.choice([-1.0, 1.0], num)
                probes = np.zeros((2, self.layout.dim))
                probes[:, own] = np.ones(num), scale
                products = np.asarray(product(probes))
                if not np.isfinite(products).all():
                    continue
                for other, mine in coordinates.items():
                    gap = self._gap(self.plates[other], plates, scale, products[:, mine])
                    if gap > 0.0:
                        sizes = np.abs(products[0, own]).max(), self._curvature(other)
                        if gap > self.rounding * np.prod(np.sqrt(sizes)):
                            return other, name
        return None

    def _curvature(self, name: str) -> float:
        """Return the size of the Hessian within a site."""
        product = self.dependencies.hessian_product
        assert product is not None  # which has shown a gap
        site = self.layout.site(name)
        own = slice(site.start, site.start + site.size)
        probes = np.zeros((2, self.layout.dim))
        probes[:, own] = np.random.default_rng(0).choice([-1.0, 1.0], site.size)
        return float(np.abs(np.asarray(product(probes))[:, own]).max())

    def _gap(self, mine: Plates, plates: Plates, scale: np.ndarray, products: np.ndarray) -> float:
        """Return the largest coupling where the forest has zeros, over the tolerance.

        It is 0 if it is less than the tolerance of the couplings that may be.

        :param mine: the plates of a site.
        :param plates: those of the site that was probed, by 1 and by ``scale``.
        :param products: with the Hessian, at the first site's coordinates.
        """
        if mine < plates:
            return 0.0  # an ancestor sums over its descendants
        ones, scaled = products
        expected = np.zeros_like(ones)
        if plates <= mine:
            expected = np.repeat(scale, len(ones) // len(scale))[:, None] * ones
        gap, tolerance = float(np.abs(scaled - expected).max()), self.dependencies.tolerance
        return 0.0 if gap <= tolerance * np.abs(products).max() else gap / tolerance


def _words(site: Site) -> str:
    names = " and ".join(repr(plate.name) for plate in site.plates)
    return f"'{site.name}' (plate {names})" if names else f"'{site.name}'"


def find_structure(
    layout: Layout, locals: tuple[str, ...] | None = None
) -> tuple[Forest | None, str]:
    """Return the blocks of a model's latents, or what stands in the way, in words.

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
