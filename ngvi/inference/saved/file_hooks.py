"""The PPL's part in files of results."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import numpy as np

from ngvi.inference.draws.diagnostics import Diagnostics
from ngvi.inference.saved import serialize
from ngvi.inference.saved.serialize import Saved
from ngvi.inference.set_up import Given


class FileHooks(Protocol):
    """Turn the PPL's arrays, parameters and guides into numbers and back.

    Each package has one object of a subclass. It holds nothing.
    """

    #: Families by name, and the classes of guides that a file holds.
    families: ClassVar[dict[str, type]]
    guides: ClassVar[tuple[type, ...]]
    #: The keyword of ``load`` that says where arguments in the file go.
    device_option: ClassVar[str]

    def flat(self, params: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the numbers of parameters, by flat names."""

    def others(self, result: Any) -> dict[str, Any]:
        """Return what a file has to know besides, for JSON."""
        return serialize.guide_options(result.guide, self.families, self.guides)

    def as_array(self, value: Any) -> np.ndarray | None:
        """Return the numbers of one of the PPL's arrays, or None for anything else."""

    def place(self, value: Any) -> str:
        """Return the name of the device where one of the PPL's own arrays is."""

    def device(self, given: Any) -> Any:
        """Return the device that a user names.

        :raises ValueError: if it is none.
        """

    def own(self, array: np.ndarray, place: Any = "") -> Any:
        """Return an array of the PPL.

        :param place: a device, or a name of :meth:`place`, for where the PPL has it by itself if
            there is no such device.
        """

    def at_a_third(self, support: Any, shape: tuple[int, ...], like: Any) -> float:
        """Return the sum of the value into which a support takes unconstrained thirds.

        :param shape: of these.
        :param like: an array of their kind.
        """

    def result(self, kind: type, saved: Saved, given: Given) -> Any:
        """Return the result in a file.

        :param kind: the package's ``FitResult``.
        :param given: which may make the guide, in place of what the file says of it.
        """
        if given.guide is None:
            given = given._replace(make_guide=saved.make_guide(self, given.make_guide))
        fields = saved.fields()
        rebuilt = self.rebuilt(saved, given)
        found = kind(args=given.args, kwargs=given.kwargs, **rebuilt, **fields)
        with saved.whole():
            for params in (found.params, *(one.params for one in found.optima)):
                for part in found._gaussians():
                    part._distribution(part._family_of(params))
            if found.change is not None:
                found.change.check(found.dim)
            if (words := saved.meta["draws"]) is not None:
                draws = Diagnostics.of(words, saved.under("draws/"), found)
                vars(found)["diagnostics"] = draws
        return found

    def num_numbers(self, family: Any, dim: int) -> int:
        """Return how many numbers a family of ``dim`` latents has, without them."""
        found = self.abstract(family, dim).coordinates().values()
        return sum(math.prod(one.shape) for one in found)

    def abstract(self, family: Any, dim: int) -> Any:
        """Return a family of ``dim`` latents with shapes in the place of its numbers."""

    def rebuilt(self, saved: Saved, given: Given) -> dict[str, Any]:
        """Return model, guide, parameters, optima, and fields of the package."""
