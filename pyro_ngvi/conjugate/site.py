"""Conjugate sites with the tensors of torch; see :mod:`ngvi.conjugate.site`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from ngvi.conjugate import site


class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are a tensor."""

    xp = torch
    digamma = staticmethod(torch.digamma)
    lgamma = staticmethod(torch.lgamma)

    def specification(self) -> Self:
        """Return the site without its tensor."""
        return dataclasses.replace(self, loc=None)

    def detach(self) -> Self:
        """Return the same site, through which no gradient flows."""
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
        shape = (*self._sample_shape, *concentration.shape)
        return torch._standard_gamma(concentration.expand(shape))

    def normal(self, like: Tensor) -> Tensor:
        return like.new_empty((*self._sample_shape, *like.shape)).normal_()

    def uniform(self, like: Tensor) -> Tensor:
        return like.new_empty((*self._sample_shape, *like.shape)).uniform_()
