"""Checks that declared sites are conjugate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from ngvi.conjugate.site import ConjugateSite, num_columns, signs_of_runs

Values = Mapping[str, np.ndarray]
Density = Callable[[Values], tuple[float, Values]]

WAY_OUT = "Leave it to the Gaussian (out of conjugate=)"


def with_columns(
    sites: dict[str, ConjugateSite], density: Density, tolerance: float
) -> dict[str, ConjugateSite]:
    """Refuse sites that are not conjugate, and give columns of signs to those that meet others.

    It costs about ``5 F + 2 F log2 n`` gradients for ``F`` sites of ``n`` elements.

    :param sites: of numpy, by name, around the model's start.
    :param density: the log density and its gradient in each site, at values of the sites, with all
        other latents at values that are not special.
    :param tolerance: values or gradients agree if they differ by less, relatively.
    :raises ValueError: naming the site.
    """
    probes = {
        name: ConjugateSite.initial(one.family.checked_as or one.name, name, one.mean)
        for name, one in sites.items()
    }
    start = {name: one.points(np.ones(one.shape)) for name, one in probes.items()}
    base, meets = density(start)[1], set[str]()
    for name, one in probes.items():

        def slope(x: np.ndarray, name: str = name) -> np.ndarray:
            return density({**start, name: x})[1][name]

        if not np.isfinite(base[name]).all():
            raise ValueError(
                f"The log density has no finite gradient at site '{name}', declared conjugate: "
                "check the data and the priors, or start elsewhere with init_loc_fn=."
            )
        _check_independent(one, slope, base[name], tolerance)
        moved = density({**start, name: one.points(-np.ones(one.shape))})[1]
        for other in sites:
            if other != name and not _are_same(moved[other], base[other], tolerance):
                meets |= {name, other}
        points = [one.points(np.full(one.shape, sign)) for sign in (1.0, -1.0, 0.4, -1.6)]
        slopes = [slope(x) for x in points]
        c = one.coefficients(slopes[0], slopes[1])
        declared = f"Site '{name}' is declared {sites[name].name!r}, and"
        for x, actual in zip(points[2:], slopes[2:], strict=True):
            expected, size = one.predicted(c, x)
            if not np.all(np.abs(actual - expected) <= tolerance * size):
                raise ValueError(
                    f"{declared} is not conjugate: given the other latents, its log density is not "
                    f"linear in the statistics of that family. {WAY_OUT}, or change its prior."
                )
        proper = dataclasses.replace(sites[name], loc=c.reshape(-1)).is_proper()
        if not np.all(proper):
            raise ValueError(
                f"{declared} its conditional is improper: its natural parameters are "
                f"{c[..., ~proper].T[0]}. {WAY_OUT}, or give it a proper prior."
            )
    # Products with a site that meets no other are not in the log density.
    columns = {name: column for column, name in enumerate(n for n in sites if n in meets)}
    pairs = sites.items()
    result = {name: dataclasses.replace(one, column=columns.get(name, 0)) for name, one in pairs}
    if len(columns) > 3:
        _check_products(result, density, tolerance)
    return result


def _are_same(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    size = np.abs(one) + np.abs(other)
    return bool(np.all(np.abs(one - other) <= tolerance * (size + 1e-3 * size.max(initial=0.0))))


def _check_independent(
    one: ConjugateSite, slope: Callable, base: np.ndarray, tolerance: float
) -> None:
    """Refuse elements whose gradients change as others move. Each pair is apart once."""
    index = np.arange(base.size).reshape(one.shape)
    for bit in range(max(base.size - 1, 0).bit_length()):
        for moves in (index >> bit & 1 == 1, index >> bit & 1 == 0):
            found = slope(one.points(np.where(moves, -1.0, 1.0)))
            if not _are_same(found[~moves], base[~moves], tolerance):
                raise ValueError(
                    f"Elements of site '{one.site}' depend on each other given the other latents. "
                    f"{WAY_OUT}, or give each element a site of its own."
                )


def _check_products(sites: dict[str, ConjugateSite], density: Density, tolerance: float) -> None:
    """Refuse a model that multiplies more sites than the signs of all runs can average."""
    rng, means, spread = np.random.default_rng(0), [], 0.0
    for _ in range(3):
        count = num_columns(sites.values())
        runs = signs_of_runs(count) * rng.choice([-1.0, 1.0], count)
        each = [
            density({name: one.points(one.signs(run[None])[0]) for name, one in sites.items()})[0]
            for run in runs
        ]
        means.append(np.mean(each))
        spread = max(spread, np.ptp(each))
    if np.ptp(means) > tolerance * spread:
        raise ValueError(
            "The log density multiplies more than three of the elements of sites "
            f"{', '.join(map(repr, sites))}: leave some sites to the Gaussian."
        )
