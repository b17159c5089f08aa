"""Gaussians and ordinary parameters as one vector, for a search that sees all data.

An ordinary parameter (a network's weight, a noise) has no Fisher information of its own. Its
metric is a number, ``1 / gamma``, that of the curvature along the last step, as the first matrix
of L-BFGS (Nocedal and Wright, 2006, equation 7.20), and the quasi-Newton memory does the rest: it
sees how parameters and Gaussians depend on each other, which alternating steps do not.

The vectors of :class:`Joint`'s measurements hold ordinary gradients as they are. Only a geometry
knows ``gamma``, and scales them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ngvi.fit import geometry
from ngvi.fit.engine import Direction, Draws, Engine, Measured, Place, Step

#: Pairs of the quasi-Newton memory.
MAX_PAIRS = 20
#: The length of the first step of a parameter.
FIRST = 0.1


def joint(engine: Engine) -> Engine:
    """An engine whose vectors have the ordinary parameters at their end."""
    if not engine.parameters.has_ordinary:
        return engine

    def metric(place: Place, pairs: list[tuple[np.ndarray, np.ndarray]]) -> geometry.Geometry:
        return _Geometry(place, pairs, engine)

    return Engine(_Evaluator(engine.evaluator), engine.parameters, metric)


class _Evaluator:
    """An evaluator whose vectors hold the ordinary gradients."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        values, vectors, mean = self._inner.measure(place, draws)
        ordinary = np.concatenate([np.ravel(part) for part in mean.ordinary])
        ordinary = ordinary.astype(vectors.dtype)
        rows = np.broadcast_to(ordinary, (len(vectors), len(ordinary)))
        return Measured(
            values,
            np.concatenate([vectors, rows], 1),
            Direction(
                np.concatenate([mean.vector, ordinary]),
                np.concatenate([mean.covector, ordinary]),
                mean.ordinary,
            ),
        )


class _Geometry(geometry.Geometry):
    """The metric of a place's Gaussians and parameters."""

    def __init__(
        self, place: Place, pairs: list[tuple[np.ndarray, np.ndarray]], engine: Engine
    ) -> None:
        self._inner, self._moved = engine.geometry(place, []), engine.parameters.moved
        self._size = self._inner.size
        self._gamma = math.nan  # until a pair, or the first vector, tells
        for change, fall in pairs:
            step, lost = change[self._size :], fall[self._size :]
            product, square = float(step @ lost), float(lost @ lost)
            if product > 0 and math.isfinite(square):
                self._gamma = product / square
        scaled = [(change, self.scaled(fall)) for change, fall in pairs]
        super().__init__(place, self._size, scaled, MAX_PAIRS)

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        if math.isnan(self._gamma):
            ordinary = vectors[..., self._size :]
            norm = float(np.sqrt(np.mean(ordinary**2)))
            self._gamma = FIRST / norm if norm > 0 and math.isfinite(norm) else FIRST
        scaled = vectors.copy()
        scaled[..., self._size :] *= self._gamma
        return scaled

    def covectors(self, vectors: np.ndarray) -> np.ndarray:
        of_gaussians = self._inner.covectors(vectors[:, : self._size])
        return np.concatenate([of_gaussians, vectors[:, self._size :] / self._gamma], 1)

    def step(self, direction: Direction, rho: float, radius: float) -> Step | None:
        parts = np.split(direction.vector, [self._size])
        slopes = np.split(direction.covector, [self._size])
        square = 0.5 * float(parts[1] @ parts[1]) / self._gamma
        if not math.isfinite(square):
            return None
        # Each of the two may take half of the radius.
        rho = min(rho, math.sqrt(0.5 * radius / square)) if square > 0 else rho
        step = self._inner.step(Direction(parts[0], slopes[0]), rho, 0.5 * radius)
        if step is None:
            return None
        change = step.rho * parts[1]
        shapes = [np.shape(part) for part in direction.ordinary]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        moves = [
            part.reshape(shape) for part, shape in zip(np.split(change, ends), shapes, strict=True)
        ]
        return step._replace(
            place=self._moved(step.place, moves),
            change=np.concatenate([step.change, change]),
            slope=step.slope + float(slopes[1] @ change),
            length=step.length + step.rho**2 * square,
        )
