"""Parameters that are the coordinates of a family, and the model's own.

Pyro hands an optimiser an unordered set of tensors. So that it sees what it is moving, the
guide marks each of its tensors with the family that the tensor belongs to. Optimisers move
families jointly and leave the model's parameters to a torch optimiser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor

from pyro_ngvi.families.base import Family

_ATTRIBUTE = "_ngvi_coordinate"


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """Description of a parameter tensor.

    :param family: the specification of the family.
    :param owner: the full name of the posterior whose coordinate the tensor is.
    :param field: which coordinate, for instance ``"loc"``.
    """

    family: Family
    owner: str
    field: str

    @property
    def name(self) -> str:
        """The full name of the parameter."""
        return f"{self.owner}.{self.field}"


def mark(tensor: Tensor, coordinate: Coordinate) -> None:
    """Say that ``tensor`` is a coordinate of a family."""
    setattr(tensor, _ATTRIBUTE, coordinate)


def coordinate_of(tensor: Tensor) -> Coordinate | None:
    """Return what :func:`mark` said of ``tensor``, if anything."""
    return getattr(tensor, _ATTRIBUTE, None)


def split(tensors: Iterable[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Coordinates of families, by name in a fixed order, and the model's parameters."""
    natural, model_parameters = {}, []
    for tensor in tensors:
        coordinate = coordinate_of(tensor)
        if coordinate is None:
            model_parameters.append(tensor)
        else:
            natural[coordinate.name] = tensor
    return dict(sorted(natural.items())), model_parameters


def families_in(tensors: Iterable[Tensor]) -> list[Family]:
    """Return the families whose coordinates ``tensors`` are, by the names of their owners.

    :raises ValueError: if a family is incomplete.
    """
    coordinates: dict[str, dict[str, Tensor]] = {}
    specifications: dict[str, Family] = {}
    for tensor in tensors:
        coordinate = coordinate_of(tensor)
        if coordinate is not None:
            coordinates.setdefault(coordinate.owner, {})[coordinate.field] = tensor
            specifications[coordinate.owner] = coordinate.family
    families = []
    for owner, values in sorted(coordinates.items()):
        specification = specifications[owner]
        missing = [name for name in specification.coordinates() if name not in values]
        if missing:
            raise ValueError(
                f"{owner} moves as a whole, but its {', '.join(missing)} is hidden from the "
                "optimiser. Do not block or freeze single coordinates of a posterior."
            )
        families.append(dataclasses.replace(specification, **values))
    return families
