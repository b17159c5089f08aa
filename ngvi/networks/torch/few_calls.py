"""The equations of IVON by fewer calls of torch, each of which is a launch on a GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ngvi.networks.equations import IvonEquations


class FewCalls(IvonEquations):
    """The same numbers but for rounding."""

    def scale(self, hess: Tensor) -> Tensor:
        """``sigma``, (8)."""
        return torch.rsub(hess, self.ess * self.weight_decay, alpha=-self.ess).rsqrt_()

    def new_momentum(self, momentum: Tensor, gradient: Tensor) -> Tensor:
        """``g``, (4)."""
        return momentum.lerp(gradient, 1 - self.beta1)

    def new_hess(self, hess: Tensor, product: Tensor) -> Tensor:
        """``h``, (3) and (5)."""
        precision, part = torch.add(hess, self.weight_decay), 1 - self.beta2
        change = torch.mul(hess, -part).addcmul_(product, precision, value=self.ess * part)
        new = torch.add(hess, change)
        return new.addcdiv_(change.square_(), precision, value=0.5)

    def moved(
        self, mean: Tensor, momentum: Tensor, hess: Tensor, step_size: float, count: int
    ) -> Tensor:
        """``m``, (6) and (7)."""
        biased = 1 - self.beta1**count if self.debias else 1.0
        slope = torch.add(momentum, mean, alpha=self.weight_decay * biased)
        precision = torch.add(hess, self.weight_decay)
        if self.rescale_lr:
            step_size = step_size * (self.hess_init + self.weight_decay)
        if self.clip_radius == math.inf:
            return torch.addcdiv(mean, slope, precision, value=-step_size / biased)
        most = self.clip_radius * biased
        return torch.add(mean, slope.div_(precision).clamp_(-most, most), alpha=-step_size / biased)
