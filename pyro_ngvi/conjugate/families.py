"""Exponential families of sites, of torch; see :mod:`ngvi.conjugate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ngvi.conjugate import families, site


class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are a tensor."""

    xp: ClassVar[Any] = torch
    digamma: ClassVar[Any] = staticmethod(torch.digamma)
    lgamma: ClassVar[Any] = staticmethod(torch.lgamma)

    def specification(self) -> Self:
        """The site without its tensor."""
        return dataclasses.replace(self, loc=None)

    def detach(self) -> Self:
        """The same site, through which no gradient flows."""
        return self.map(Tensor.detach)

    def at(self, signs: Any) -> Tensor:
        here, signs = self.detach(), torch.as_tensor(signs).to(self.loc)
        change = self.natural - here.natural
        return here.points(signs) + here.draw_jvp(change, signs)

    def _jvp(self, function: Callable, at: Tensor, tangent: Tensor) -> Tensor:
        return torch.func.jvp(function, (at,), (tangent,))[1]


class Random:
    """Independent draws.

    :param sample_shape: leading axes.
    """

    def __init__(self, sample_shape: tuple[int, ...] = ()) -> None:
        self._sample_shape = sample_shape

    def gamma(self, concentration: Tensor) -> Tensor:
        return torch._standard_gamma(concentration.expand(self._shape(concentration)))

    def normal(self, like: Tensor) -> Tensor:
        return like.new_empty(self._shape(like)).normal_()

    def uniform(self, like: Tensor) -> Tensor:
        return like.new_empty(self._shape(like)).uniform_()

    def _shape(self, like: Tensor) -> tuple[int, ...]:
        return (*self._sample_shape, *like.shape)


class Beta(families.Beta, ConjugateSite): ...


class Dirichlet(families.Dirichlet, ConjugateSite): ...


class Gamma(families.Gamma, ConjugateSite): ...


class GammaMode(families.GammaMode, ConjugateSite): ...


class InverseGamma(families.InverseGamma, ConjugateSite): ...


class InverseGaussian(families.InverseGaussian, ConjugateSite): ...


class Normal(families.Normal, ConjugateSite): ...


#: By the name that a user declares a site by.
FAMILIES: dict[str, type[ConjugateSite]] = {one.name: one for one in ConjugateSite.__subclasses__()}
