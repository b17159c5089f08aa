"""Density and draws of independent latents; see :mod:`~ngvi.families.diagonal`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ngvi.families.draws import ExplicitDraws
from ngvi.families.gaussian import Array


class DiagonalDraws(ExplicitDraws):
    """Of a family with a ``scale``."""

    scale: Any

    def log_det_scale(self) -> Array:
        return self.xp.log(abs(self._bound().scale)).sum()

    def whiten(self, value: Array) -> Array:
        return (value - self._bound().loc) / self.scale

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self.scale * noise

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        return self._bound().scale * (change.loc + 0.5 * change.scale * noise)

    def transposed(self, vector: Array) -> Array:
        return self._bound().scale * vector

    def draw_vjp(self, noise: Array, slope: Array) -> Self:
        slope = (self._bound().scale * slope).reshape(-1, self.dim)
        of_scale = 0.5 * (slope * noise.reshape(-1, self.dim)).sum(0)
        direction = {"loc": slope.sum(0), "scale": of_scale}
        return dataclasses.replace(self, **direction)  # type: ignore[type-var]

    def log_det_jvp(self, change: Self) -> Array:
        return (0.5 * self.scale * change.scale).sum()
