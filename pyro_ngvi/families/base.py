"""Base of every Gaussian family; see :mod:`ngvi.families.base` for the contract.

Families are plain dataclasses, usable with plain PyTorch. What hooks a derivative,
``precondition`` above all, is written straight-through, ``x.detach() + M(x - x.detach())``, with
ordinary operations, which ``torch.jit`` and ``torch.func`` understand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.func import jvp

from ngvi.families import base as family
from ngvi.families.gaussian import noise_log_prob
from pyro_ngvi.linalg.matrices import matrices


class Family(family.Family):
    """A Gaussian in some coordinates, which are tensors; a family of your own derives from it.

    >>> narrow, wide = (families.CovarianceCholesky().initial(y, scale) for scale in (0.1, 0.2))
    >>> isinstance(wide, families.Family), f"{narrow.kl_divergence(wide):.2f} nats"
    (True, '0.95 nats')
    """

    ops, xp = matrices, torch

    loc: Tensor | None

    def specification(self) -> Self:
        """Return the family without its tensors."""
        return dataclasses.replace(self, **dict.fromkeys(self.coordinates()))

    def map(self, function: Callable[..., Tensor], *others: Self) -> Self:
        values = {
            name: function(value, *(getattr(other, name) for other in others))
            for name, value in self.coordinates().items()
        }
        return dataclasses.replace(self, **values)

    def detach(self) -> Self:
        return self._bound().map(Tensor.detach)

    def precondition(self) -> Self:
        here = self.detach()
        change = here.natural_gradient(self.map(torch.sub, here))
        return here.map(torch.add, change)

    def reparametrised(self, noise: Tensor) -> Tensor:
        here = self.detach()
        return noise + here.draw_jvp(self.map(torch.sub, here), noise)

    def scores(self, noise: Tensor) -> Tensor:
        here = self.detach()
        with torch.enable_grad():
            draws = here.sample(noise).detach().requires_grad_()
            return torch.autograd.grad(-here.log_prob(draws).sum(), draws)[0]

    def draw_log_prob(self, noise: Tensor) -> Tensor:
        here = self.detach()
        change = here.log_det_jvp(self.map(torch.sub, here))
        return noise_log_prob(here, noise) - (here.log_det_scale() + change)

    def _derivative(self, function: Callable[[Self], Tensor], change: Self) -> Tensor:
        names, tangents = self.coordinates(), self.natural_gradient(change).coordinates()

        def of_coordinates(*values: Tensor) -> Tensor:
            return function(dataclasses.replace(self, **dict(zip(names, values, strict=True))))

        return jvp(of_coordinates, tuple(names.values()), tuple(tangents.values()))[1]


class Reparametrised(torch.autograd.Function):
    """``noise``, whose derivative is a family's: ``apply(noise, *coordinates, family)``.

    Not straight-through, as in :class:`Family`: that would compute the jvp of a zero,
    and give autograd every product in it. Of a precision of low rank with ``d = 10^6`` it takes
    three times as long. The family has ``draw_vjp``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(noise: Tensor, *others: Any) -> Tensor:
        return noise.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        noise, *_, ctx.here = inputs
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gradient = ctx.here.draw_vjp(ctx.saved_tensors[0], slope)
        return slope, *gradient.coordinates().values(), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        noise, *coordinates = tangents[:-1]
        values = ctx.here.coordinates()
        change = {
            name: torch.zeros_like(value) if tangent is None else tangent
            for (name, value), tangent in zip(values.items(), coordinates, strict=True)
        }
        moved = ctx.here.draw_jvp(dataclasses.replace(ctx.here, **change), ctx.saved_tensors[0])
        return moved if noise is None else noise + moved
