"""Mean field: ``Sigma = diag(scale^2)``.

With ``G = dL/dscale`` the Fisher information is ``diag(1 / scale^2)`` for the mean and
``diag(2 / scale^2)`` for the scale, whence ``dscale = scale^2 G / 2`` (Tan, below
Theorem 1). Every operation costs O(d).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg.definite import new_variance_ratio
from pyro_ngvi.linalg.triangular import keep_off_zero


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Family):
    """Independent Gaussians.

    :param loc: mean, shape ``(d,)``.
    :param scale: standard deviations, shape ``(d,)``. The sign is free.
    """

    loc: Tensor | None = None
    scale: Tensor | None = None

    name: ClassVar[str] = "diagonal"
    relative_scale_step: ClassVar[float] = 0.1
    leaves_out_correlations: ClassVar[bool] = True

    def initial(self, loc: Tensor, scale: float | Tensor) -> Diagonal:
        return Diagonal(loc, scale * torch.ones_like(loc))

    def couples(self) -> str:
        return "none"

    def describe(self) -> str:
        """The structure in words."""
        return "independent latents"

    @property
    def num_parameters(self) -> int:
        return 2 * self.dim

    @property
    def stddev(self) -> Tensor:
        return self._bound().scale.abs()

    @property
    def covariance_matrix(self) -> Tensor:
        return torch.diag(self._bound().scale ** 2)

    @property
    def precision_matrix(self) -> Tensor:
        return torch.diag(self._bound().scale ** -2)

    def log_det_scale(self) -> Tensor:
        return self._bound().scale.abs().log().sum()

    def whiten(self, value: Tensor) -> Tensor:
        return (value - self._bound().loc) / self.scale

    def sample(self, noise: Tensor) -> Tensor:
        return self._bound().loc + self.scale * noise

    def displacement(self, change: Diagonal, noise: Tensor) -> Tensor:
        return self._bound().scale * (change.loc + 0.5 * change.scale * noise)

    def log_det_displacement(self, change: Diagonal) -> Tensor:
        return (0.5 * self.scale * change.scale).sum()

    def natural_gradient(self, gradient: Diagonal) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(variance * gradient.loc, 0.5 * variance * gradient.scale)

    def euclidean_gradient(self, natural_gradient: Diagonal) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(natural_gradient.loc / variance, 2.0 * natural_gradient.scale / variance)

    def hessian_probes(self) -> np.ndarray:
        return np.arange(self.dim)

    def assemble_hessian(self, products: Tensor) -> Tensor:
        return products.diagonal()

    def outer_products(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum(0)

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(variance * gradient, 0.5 * self.scale * (variance * hessian + 1.0))

    def natural_step(self, direction: Diagonal, step_size: Tensor | float) -> Diagonal:
        scale = self._bound().scale
        ratio = new_variance_ratio(-2.0 * step_size * direction.scale / scale)
        loc = self.loc + step_size * ratio * direction.loc
        return Diagonal(loc, scale * ratio.sqrt())

    def kl_divergence(self, other: Diagonal) -> Tensor:
        ratio = self._bound().scale / other.scale
        shift = (self.loc - other.loc) / other.scale
        return (0.5 * (ratio**2 - 1.0 + shift**2) - ratio.abs().log()).sum()

    def retract(self, step: Diagonal) -> Diagonal:
        scale = keep_off_zero(self._bound().scale, self.scale + step.scale)
        return Diagonal(self.loc + step.loc, scale)
