"""Groups that a fit has not seen: elements of plates whose latents have no posterior but the prior.

A prediction for them draws their latents from the prior given the globals. What belongs to the
fit's own groups keeps its posterior.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ngvi.latents.layout import Site

#: Which elements of plates are new: names of plates, with all of their elements; or by name the
#: indices of the new ones.
Asked = str | Sequence[str] | Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class NewGroups:
    """Places of the groups of a fit among those of a prediction.

    :param known: by plate with new elements, where the fit's are among its elements, in the
        fit's order; none of them is there if all are new.
    :param sites: the latents of the prediction that are in such plates.
    """

    known: dict[str, np.ndarray]
    sites: dict[str, Site]

    def split(self, draws: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return draws of sites outside of such plates, and of those inside."""
        own = {name: value for name, value in draws.items() if name in self.sites}
        return {name: value for name, value in draws.items() if name not in own}, own

    def where(self, name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, ...] | None:
        """Return the index of the fit's elements in a value of a site, or None if all are new.

        :param shape: of the value.
        :raises ValueError: if the model sees a part of the plate only.
        """
        axes = [np.arange(size) for size in shape]
        for plate in self.sites[name].plates:
            if shape[plate.axis] != plate.size:
                raise ValueError(
                    f"new_groups needs all elements of plate '{plate.name}', and the model sees "
                    f"{shape[plate.axis]} of {plate.size}: leave its subsample_size out."
                )
            axes[plate.axis] = self.known.get(plate.name, axes[plate.axis])
        return np.ix_(*axes) if all(map(len, axes)) else None


def latent_names(result: Any) -> set[str]:
    """Return the latents of a result that have a posterior of their own."""
    own = {site.name for part in result._gaussians() for site in part.sites}
    return own | {*getattr(result.guide, "conjugate", ())}


def guide_for_groups(result: Any) -> Any:
    """Return a guide for other groups, not set up, of a result with locals by conditional modes.

    :raises ValueError: if its guide has none.
    """
    guide = result._gaussian()
    if not hasattr(guide, "for_groups"):
        raise ValueError(
            "sample_groups needs locals at conditional modes, and in this fit each has its own "
            "parameters: fit(..., guide=ReparametrizedGaussianGuide(model))."
        )
    return guide.for_groups(result.model)


def new_groups(asked: Asked, fitted: Iterable[Site], found: Iterable[Site]) -> NewGroups | None:
    """Return the latents of a prediction that come from the prior; None if none does.

    :param found: those of the model with the arguments of the prediction.
    :raises ValueError: for latents of another size than in the fit of which the user says nothing,
        or says something that cannot be; naming plates and sites.
    """
    found = list(found)
    if not found:  # the model does not run, and says why
        return None
    of_fit, of_run = ({site.name: site for site in sites} for sites in (fitted, found))
    pairs = [(of_fit[name], of_run[name]) for name in of_fit if name in of_run]
    sizes = {
        plate.name: (plate.size, other.size)
        for one, two in pairs
        for plate in one.plates
        for other in two.plates
        if plate.name == other.name
    }
    inside = {
        name: [site.name for site in of_run.values() if name in site.plate_names] for name in sizes
    }
    known = {name: _known(name, new, *sizes[name]) for name, new in _asked(asked, sizes).items()}
    for name, (before, now) in sizes.items():
        if name not in known and before != now:
            raise ValueError(_another_size(name, before, now, inside[name]))
    for one, two in pairs:
        axes = {plate.axis for plate in two.plates if plate.name in known}
        if len(one.shape) != len(two.shape) or any(
            before != now and axis not in axes
            for axis, (before, now) in enumerate(zip(one.shape, two.shape, strict=False))
        ):
            raise ValueError(
                f"Latent site '{one.name}' has unconstrained shape {two.shape} for these arguments,"
                f" and {one.shape} in the fit: draw the site in a plate with the axis that differs."
            )
    sites = {site.name: site for _, site in pairs if site.plate_names & known.keys()}
    return NewGroups(known, sites) if known else None


def _asked(asked: Asked, sizes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Return the indices of new elements by plate, or None for all."""
    if asked is None:
        return {}
    if isinstance(asked, Mapping):
        wanted = dict(asked)
    else:
        try:
            wanted = dict.fromkeys([asked] if isinstance(asked, str) else asked)
        except TypeError:
            raise TypeError(
                "new_groups must be the name of a plate, several names, or a dictionary from names "
                f"to indices, got {asked!r}; the plates around latents are {_listed(sizes)}."
            ) from None
    for name in wanted:
        if name not in sizes:
            raise ValueError(
                f"new_groups names {name!r}, and the plates around latents are {_listed(sizes)}."
            )
    return wanted


def _known(name: str, new: Any, before: int, now: int) -> np.ndarray:
    """Return the places of the fit's elements of a plate among those of the prediction."""
    if new is None:
        return np.zeros(0, int)
    indices = np.atleast_1d(np.asarray(new))
    if indices.dtype == bool and indices.shape == (now,):
        indices = np.flatnonzero(indices)
    is_whole = indices.ndim == 1 and (indices.dtype.kind in "iu" or not indices.size)
    if not is_whole or len({*indices.tolist()} & {*range(now)}) < len(indices):
        raise ValueError(
            f"new_groups[{name!r}] must be different indices of the plate's {now} elements, from 0 "
            f"to {now - 1}, got {new!r}."
        )
    known = np.setdiff1d(np.arange(now), indices)
    if len(known) not in (0, before):
        raise ValueError(
            f"new_groups[{name!r}] leaves {len(known)} of the plate's {now} elements to the fit, "
            f"which has {before}: include all of the fit's in their order, or none."
        )
    return known


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _another_size(plate: str, before: int, now: int, sites: list[str]) -> str:
    has = f"{now} element{'s' * (now != 1)}"
    text = (
        f"Plate '{plate}' has {has} for these arguments, and {before} in the fit. To predict for "
        f"the fit's groups, keep the plate's size. With new_groups={plate!r}, every element is a "
        f"group that the fit has not seen, and draws its {_listed(sites)} from the prior given the "
        "other latents"
    )
    if now > before:
        some = f"[{before}]" if now == before + 1 else f"range({before}, {now})"
        text += f"; with new_groups={{{plate!r}: {some}}}, only those beyond the fit's"
    return f"{text}. Where they have data of their own, see sample_groups."


def beyond(message: str, found: Iterable[Site]) -> str | None:
    """Explain an index beyond the end of an array of latents; None if it is of others.

    :param message: of the array library.
    """
    numbers = {int(digits) for digits in re.findall(r"size (\d+)", message)}
    named = {
        plate.name: (plate.size, site.name)
        for site in found
        for plate in site.plates
        if not numbers or plate.size in numbers
    }
    if not named:
        return None
    plates = " or ".join(
        f"'{name}', which has {size} elements" for name, (size, _) in named.items()
    )
    sites = _listed(dict.fromkeys(site for _, site in named.values()))
    return (
        f"The model asks for a group beyond the last of plate {plates} ({message.strip()}), and "
        f"the fit has no {sites} for it. Make the plate larger for these arguments (by an argument "
        "of the model, say), and pass its name as new_groups=: the new groups are then drawn from "
        "the prior given the other latents."
    )
