"""Whether declared sites are conjugate, and which of their elements need signs of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ngvi.conjugate.numpy_sites import NUMPY_FAMILIES
from ngvi.conjugate.site import num_columns, signs_of_runs

Values = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ConjugacyCheck:
    """A check of (1) of :mod:`ngvi.conjugate.site`, by the log density at points of the sites.

    It costs about ``6 F + 2 F log2 n`` gradients for ``F`` sites of ``n`` elements that do not
    depend on each other.

    :param sites: of numpy, by name, around the model's start.
    :param density: the log density and its gradient in each site, at values of the sites, with all
        other latents at values that are not special.
    :param tolerance: values or gradients agree if they differ by less, relatively.
    :param elsewhere: where on the curve of its two points a site is tried besides.
    :param max_columns: of signs; with each doubling a step evaluates the model twice as often.
    """

    sites: dict[str, Any]
    density: Callable[[Values], tuple[float, Values]]
    tolerance: float
    elsewhere: tuple[float, ...] = (0.4, -1.6)
    max_columns: int = 32

    def checked(self) -> dict[str, Any]:
        """The sites with their columns of signs.

        :raises ValueError: naming a site that is not conjugate.
        """
        columns = self._columns()
        found = {
            name: dataclasses.replace(one, columns=columns[name])
            for name, one in self.sites.items()
        }
        self._check_products(found)
        return found

    def _columns(self) -> dict[str, tuple[int, ...]]:
        """By site, one column for all elements, or one for each that depends on others."""
        probes = {
            name: NUMPY_FAMILIES[one.checked_as or one.name].initial(name, one.mean)
            for name, one in self.sites.items()
        }
        start = {name: one.points(np.ones(one.elements)) for name, one in probes.items()}
        base = self.density(start)[1]
        meets, within = {}, {}
        for name, one in probes.items():
            if not np.isfinite(base[name]).all():
                raise ValueError(
                    f"The log density has no finite gradient at site '{name}', declared conjugate: "
                    "check the data and the priors, or start elsewhere with init_loc_fn=."
                )
            probe = _Probe(self, one, start, base[name])
            found = self.density({**start, name: one.points(-np.ones(one.elements))})[1]
            meets[name] = {
                other
                for other in probes
                if other != name and not _same(found[other], base[other], self.tolerance)
            }
            within[name] = probe.elements_depend_on_each_other()
            self._check_count(one.num_elements * within[name], (name,))
            probe.check_conjugate(self.sites[name], within[name])
        columns: dict[str, tuple[int, ...]] = {}
        taken = 0
        for name, one in probes.items():
            if within[name] or meets[name] or any(name in others for others in meets.values()):
                size = one.num_elements if within[name] else 1
                columns[name] = tuple(range(taken, taken + size))
                taken += size
            else:  # products with it are not in the log density
                columns[name] = (0,)
        self._check_count(taken, tuple(probes))
        return columns

    def _check_count(self, count: int, names: tuple[str, ...]) -> None:
        if count > self.max_columns:
            raise ValueError(
                f"{count} elements of {', '.join(map(repr, names))} depend on each other given the "
                f"other latents, and ConjugateGuide takes up to {self.max_columns} of these: leave "
                "some sites to the Gaussian (out of conjugate=)."
            )

    def _check_products(self, sites: dict[str, Any]) -> None:
        """Refuse a model that multiplies more sites than the signs of all runs can average."""
        count = num_columns(sites.values())
        if count < 4:
            return
        runs, rng = signs_of_runs(count), np.random.default_rng(0)
        means, spread = [], 0.0
        for _ in range(3):
            signs = runs * rng.choice([-1.0, 1.0], count)
            points = [
                {name: one.points(one.signs(run[None])[0]) for name, one in sites.items()}
                for run in signs
            ]
            each = [self.density(values)[0] for values in points]
            means.append(np.mean(each))
            spread = max(spread, np.ptp(each))
        if np.ptp(means) > self.tolerance * spread:
            raise ValueError(
                "The log density multiplies more than three of the elements of sites "
                f"{', '.join(map(repr, sites))}: leave some sites to the Gaussian."
            )


@dataclasses.dataclass(frozen=True)
class _Probe:
    """The gradient in one site, the others being at their start.

    :param one: the site, of numpy, as it is checked.
    :param base: the gradient at its start.
    """

    check: ConjugacyCheck
    one: Any
    start: Values
    base: np.ndarray

    def _slope(self, x: np.ndarray) -> np.ndarray:
        name = self.one.site
        return self.check.density({**self.start, name: x})[1][name]

    def elements_depend_on_each_other(self) -> bool:
        """Whether moving some elements changes the gradient of others.

        Each pair of elements is apart once.
        """
        one = self.one
        index = np.arange(one.num_elements).reshape(one.elements)
        for bit in range(max(one.num_elements - 1, 0).bit_length()):
            for moves in (index >> bit & 1 == 1, index >> bit & 1 == 0):
                found = self._slope(one.points(np.where(moves, -1.0, 1.0)))
                if not _same(found[~moves], self.base[~moves], self.check.tolerance):
                    return True
        return False

    def check_conjugate(self, declared: Any, within: bool) -> None:
        """Compare gradients with those of a member of the family.

        :param declared: the site, of the family that it is declared of.
        :param within: whether its elements depend on each other, and are moved one by one.
        :raises ValueError: naming the site, and the family that it has if there is one.
        """
        one = self.one
        count = one.num_elements
        for moved in np.eye(count, dtype=bool) if within else np.ones((1, count), bool):
            moved = moved.reshape(one.elements)
            verdict = self._verdict(one, declared, moved)
            if verdict is None:
                continue
            start = f"Site '{one.site}' is declared {declared.name!r}, and"
            for name, family in NUMPY_FAMILIES.items():
                if family.support == one.support and name != one.name and not family.checked_as:
                    other = family.initial(one.site, one.mean)
                    if self._verdict(other, other, moved) is None:
                        raise ValueError(
                            f"{start} its conditional density is of family {name!r}: declare it so."
                        )
            raise ValueError(
                f"{start} {verdict} Leave it to the Gaussian (out of conjugate=), or give it a "
                "prior that is conjugate."
            )

    def _verdict(self, one: Any, declared: Any, moved: np.ndarray) -> str | None:
        """Why the gradients are not those of a member of the family; None if they are.

        :param moved: the elements that are moved.
        """
        signs = (1.0, -1.0, *self.check.elsewhere)
        points = [one.points(np.where(moved, sign, 1.0)) for sign in signs]
        slopes = [self._slope(x) for x in points]
        c = one.coefficients(slopes[0], slopes[1])
        for x, slope in zip(points[2:], slopes[2:], strict=True):
            expected, size = one.predicted(c, x)
            right = np.abs(one.inside(x, slope) - expected) <= self.check.tolerance * size
            if not np.all(right[moved]):
                return (
                    "is not conjugate: given the other latents, its log density is not linear in "
                    "the statistics of that family."
                )
        proper = dataclasses.replace(declared, loc=c.reshape(-1)).is_proper()
        if not np.all(proper[moved]):
            return (
                f"its conditional is improper: natural parameters {c[..., ~proper & moved].T[0]} "
                "are outside of the family's."
            )
        return None


def _same(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    size = np.abs(one) + np.abs(other)
    return bool(np.all(np.abs(one - other) <= tolerance * (size + 1e-3 * size.max(initial=0.0))))
