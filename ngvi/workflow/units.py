"""Units of observations that are left out together: rows, or groups by a plate's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ngvi.errors import shown
from ngvi.latents.layout import Plate, Site
from ngvi.workflow.rows import ObservedRows, RowSite


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Elements of the observed sites, by what is left out together.

    :param plates: whose elements the units are, with their sizes.
    :param of_element: the unit of each element, shape ``(M,)``.
    """

    plates: tuple[tuple[str, int], ...]
    of_element: np.ndarray
    #: The sites whose latents several units share, by the name of their plate.
    shared: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes by plate."""
        return tuple(size for _, size in self.plates)

    @property
    def count(self) -> int:
        """The number of units."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def are_single(self) -> bool:
        """True if each unit is one element."""
        return bool((np.bincount(self.of_element, minlength=self.count) == 1).all())

    def numbers(self, given: Any) -> np.ndarray:
        """Return numbers of units as a user gives them, sorted, each once.

        :raises ValueError: for what are none.
        """
        try:
            known = np.unique(np.atleast_1d(np.asarray(given)))
        except (TypeError, ValueError):  # of different lengths, or kinds
            known = np.empty(0)
        if known.dtype.kind not in "iu" or ((known < 0) | (known >= self.count)).any():
            raise ValueError(
                f"rows must be numbers of rows from 0 to {self.count - 1}, got {shown(given)}; for "
                "a mask, np.flatnonzero(mask)."
            )
        return known

    def elements(self, unit: int) -> np.ndarray:
        """Return the elements of a unit."""
        return np.flatnonzero(self.of_element == unit)

    def observed(self, is_masked: np.ndarray) -> np.ndarray:
        """Return which units have an element that no mask leaves out, shape ``(R,)``."""
        return self.sums((~is_masked).astype(float)) > 0

    def sums(self, of_elements: np.ndarray) -> np.ndarray:
        """Return sums over each unit's elements, along the last axis."""
        found = np.zeros((self.count, *of_elements.shape[:-1]))
        np.add.at(found, self.of_element, np.moveaxis(of_elements, -1, 0))
        return np.moveaxis(found, 0, -1)

    def label(self, unit: int) -> str:
        """Return ``"rows[3]"``, or ``"days[3], people[1]"``."""
        index = np.unravel_index(unit, self.shape)
        names = zip(self.plates, index, strict=True)
        return ", ".join(f"{name}[{int(i)}]" for (name, _), i in names)


def check_rows(rows: ObservedRows, factors: Iterable[str], ppl: str) -> None:
    """Refuse a likelihood that has no rows.

    :param factors: statements that add to the log density, and have none.
    :param ppl: whose words are used.
    :raises ValueError: saying how to write it.
    """
    example = f"with {ppl}.plate('rows', len(y)): {ppl}.sample('y', ..., obs=y)"
    if not rows.sites:
        names = ", ".join(map(repr, factors))
        why = f"its likelihood is in the factor {names}" if names else "it observes nothing"
        raise ValueError(f"With these arguments the model has no rows: {why}. Write {example}.")
    for site in rows.sites:
        if not site.plates:
            raise ValueError(f"The observed site '{site.name}' is in no plate. Write {example}.")


def make_units(
    rows: ObservedRows,
    plate: str | None,
    latents: Iterable[Site],
    depends: Callable[[], np.ndarray],
) -> Units:
    """Return units by a plate's name, by default of all plates of the observed sites together.

    :param depends: which latents each element depends on, shape ``(M, d)``.
    :raises ValueError: for a plate that tells no elements apart.
    """
    if not (plate is None or isinstance(plate, str)):
        raise TypeError(f"plate must be the name of one plate, or None, got {plate!r}.")
    of_rows = [{p.name for p in site.plates} for site in rows.sites]
    latents = tuple(latents)
    if plate is None:
        if any(names != of_rows[0] for names in of_rows):
            words = "; ".join(
                f"'{site.name}' in {', '.join(map(repr, sorted(names)))}"
                for site, names in zip(rows.sites, of_rows, strict=True)
            )
            raise ValueError(
                f"The observed sites are in different plates ({words}): say of which an element is "
                "left out, plate='...', of observations or of latents that each depends on."
            )
        # Whichever was entered first: rows are numbered as the data are in memory.
        plates = tuple(sorted(rows.sites[0].plates, key=lambda p: p.axis))
        return _by_index(rows, [p.name for p in plates], _shared(plates, latents))
    if all(plate in names for names in of_rows):
        return _by_index(rows, [plate], {})
    inside = [site for site in latents if plate in site.plate_names]
    if not inside:
        known = sorted(set().union(*of_rows, *(site.plate_names for site in latents)))
        raise ValueError(
            f"There is no plate {plate!r} around all observed sites, or around latents; the plates "
            f"are {', '.join(map(repr, known))}."
        )
    return _by_latents(plate, inside, depends())


def _shared(plates: tuple[Plate, ...], latents: Iterable[Site]) -> dict[str, tuple[str, ...]]:
    names = {p.name for p in plates}
    found: dict[str, tuple[str, ...]] = {}
    for site in latents:
        for other in site.plate_names - names:
            found[other] = (*found.get(other, ()), site.name)
    return found


def _by_index(rows: ObservedRows, names: list[str], shared: dict[str, tuple[str, ...]]) -> Units:
    sizes = {p.name: p.size for site in rows.sites for p in site.plates if p.name in names}
    shape = tuple(sizes[name] for name in names)
    found = []
    for site in rows.sites:
        axes = {p.name: p.axis for p in site.plates}
        index = np.indices(site.shape).reshape(len(site.shape), -1)
        places = tuple(_index_along(site, index, axes[name], sizes[name]) for name in names)
        found.append(np.ravel_multi_index(places, shape))
    plates = tuple((name, sizes[name]) for name in names)
    return Units(plates, np.concatenate(found), shared)


def _index_along(site: RowSite, index: np.ndarray, axis: int, size: int) -> np.ndarray:
    if axis < 0 or site.shape[axis] != size:
        raise ValueError(
            f"The observed site '{site.name}' has one value for all elements of a plate of {size}. "
            "Give it data of the plate's size."
        )
    return index[axis]


def _by_latents(plate: str, inside: list[Site], depends: np.ndarray) -> Units:
    """Return units in which the group of an element is that of its latents."""
    size = next(p.size for p in inside[0].plates if p.name == plate)
    member = np.zeros((len(depends), size), bool)
    for site in inside:
        for group, columns in enumerate(site.indices([plate])):
            member[:, group] |= depends[:, columns].any(1)
    counts = member.sum(1)
    if (counts != 1).any():
        first = int(np.flatnonzero(counts != 1)[0])
        raise ValueError(
            f"Element {first} of the observations depends on latents of {counts[first]} elements "
            f"of plate {plate!r}, not of one: leave out elements of another plate."
        )
    return Units(((plate, size),), member.argmax(1))
