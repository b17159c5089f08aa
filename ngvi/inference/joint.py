"""Gaussians and ordinary parameters as one vector, for a search that sees all data.

An ordinary parameter (a network's weights, a noise) has no Fisher information of its own. The
metric of each is a number, ``1 / gamma``, that of the curvature along its last short step, as the
first matrix of L-BFGS (Nocedal and Wright, 2006, equation 7.20): an intercept of thousands and the
logarithm of a scale need other ones. The quasi-Newton memory does the rest: it sees how parameters
and Gaussians depend on each other, which alternating steps do not. A parameter's step is limited
in its own units, to a length that grows while the gradient keeps its direction.

The vectors of measurements hold ordinary gradients as they are. Only a geometry knows ``gamma``,
and scales them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ngvi.inference import geometry
from ngvi.inference.engine import Around, Direction, Draws, Engine, Measured, Place, Step
from ngvi.optim.radius import INITIAL_RADIUS

#: Pairs of the quasi-Newton memory: a network's weights have many curvatures, and a memory of 20
#: steps ends tens of nats below one of 100.
MAX_PAIRS = 100
#: Parameters along each of which the curvature may be probed.
MAX_PROBES = 20
#: The length of the first step of a parameter, the root of its mean square.
FIRST = 0.1
#: A length that refused steps have made so short, a hundredth of that, may tell nothing.
TOO_SHORT = 1e-2 * FIRST
#: The next may be so many times as long, if this part of the gradient is left along the step;
#: after a refused one it is shorter.
LONGER, LEFT, SHORTER = 2.0, 0.25, 0.25
#: What one step may change ``gamma`` by.
MAX_CHANGE = 10.0
#: The part of a parameter's limit by which it is moved to see the curvature.
PROBE = 0.1
#: The next step may then be so many times as long as its limit, or as the first step.
MOST_ALLOWED = 10.0


def joint(engine: Engine) -> Engine:
    """An engine whose vectors have the ordinary parameters at their end."""
    if not engine.parameters.has_ordinary:
        return engine

    evaluator = _Evaluator(engine.evaluator)

    def metric(place: Place, pairs: list[tuple[np.ndarray, np.ndarray]]) -> geometry.Geometry:
        return _Geometry(place, pairs, engine, evaluator)

    return Engine(evaluator, engine.parameters, metric)


class _Evaluator(Around):
    """An evaluator whose vectors hold the ordinary gradients."""

    #: Where one parameter ends and the next begins, but for the last.
    ends: tuple[int, ...] = ()

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.limits = np.empty(0)  #: of the steps, by parameter
        self.gamma = np.empty(0)  #: by parameter

    def parts(self, count: int) -> list[slice]:
        """Where each parameter is in a vector of all of them."""
        starts = [0, *self.ends]
        return [slice(*pair) for pair in zip(starts, [*self.ends, count], strict=True)]

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        values, vectors, mean = self._inner.measure(place, draws)
        ordinary = np.concatenate([np.ravel(part) for part in mean.ordinary])
        self.ends = tuple(np.cumsum([np.size(part) for part in mean.ordinary])[:-1].tolist())
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

    # That of a parameter is its steepest direction's: another may be far flatter.
    min_curvature = 1e-8

    def __init__(
        self,
        place: Place,
        pairs: list[tuple[np.ndarray, np.ndarray]],
        engine: Engine,
        evaluator: _Evaluator,
    ) -> None:
        self._inner, self._moved = engine.geometry(place, []), engine.parameters.moved
        self._at = lambda place: engine.geometry(place, [])
        self._size, self._state = self._inner.size, evaluator
        scaled = [(change, self.scaled(fall)) for change, fall in pairs]
        super().__init__(place, self._size, scaled, MAX_PAIRS, self._inner.is_restricted)

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        state, ordinary = self._state, vectors[..., self._size :]
        if not len(state.gamma):
            first = ordinary.reshape(-1, ordinary.shape[-1])[0]
            state.gamma = self._first_gamma(first)
            state.limits = np.full(len(state.gamma), FIRST)
        scaled = vectors.copy()
        scaled[..., self._size :] *= self._each(state.gamma, ordinary.shape[-1])
        return scaled

    def _first_gamma(self, gradient: np.ndarray) -> np.ndarray:
        """Where nothing is known but the gradient of the parameters."""
        norms = np.array([_norm(gradient[part]) for part in self._state.parts(len(gradient))])
        return FIRST / np.where((norms > 0) & np.isfinite(norms), norms, 1.0)

    def accepted(self, step: Step, before: Direction, after: Direction, is_short: bool) -> None:
        # In single precision a fall of 2e19 has an infinite square, and no curvature of its own.
        change, old, new = (
            vector[self._size :].astype(float)
            for vector in (step.change, before.vector, after.vector)
        )
        state = self._state
        ends = float(after.covector @ step.change)
        for index, part in enumerate(state.parts(len(change))):
            moved, square = change[part], float(old[part] @ change[part])
            left = float(new[part] @ moved) / square if square > 0 else 0.0
            length = _norm(moved)
            # What moves together, along a ridge say, gains together.
            goes_on = ends > LEFT * step.slope if self._pairs else left > LEFT
            if goes_on and length > 0.5 * state.limits[index]:
                state.limits[index] *= LONGER
            fall = old[part] - new[part]
            product, squares = float(moved @ fall), float(fall @ fall)
            gamma = state.gamma[index]
            if is_short and product > 0 and squares > 0:
                bounds = gamma / MAX_CHANGE, gamma * MAX_CHANGE
                state.gamma[index] = np.clip(product / squares, *bounds)
            elif not is_short and left > LEFT:
                state.gamma[index] *= LONGER
            elif not is_short and left < -LEFT:
                state.gamma[index] *= SHORTER

    def refused(self) -> None:
        self._state.limits *= SHORTER

    def allow(self, direction: Direction) -> None:
        state, change = self._state, direction.vector[self._size :]
        wanted = [_norm(change[part]) for part in state.parts(len(change))]
        most = MOST_ALLOWED * np.maximum(state.limits, FIRST)
        state.limits = np.maximum(state.limits, np.minimum(wanted, most))

    def probes(
        self, measured: Measured, draws: list[Draws], widely: bool = False
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Along each parameter, with the Gaussians' answer to it.

        The bound may be flat only where both move, as along an intercept and the effects of all
        groups. Costs two measurements a parameter.

        :param widely: as before the first step, for parameters whose steps have become far shorter.
            What moved the Gaussians a long way may have made theirs so short that nothing is
            left of a parameter's step, nor of what its gradient promises.
        """
        state = self._state
        self.scaled(measured.mean.vector)  # before the first step there are no limits
        short = state.limits < TOO_SHORT
        if widely and short.any():
            before = state.gamma, state.limits
            first = self._first_gamma(measured.mean.vector[self._size :])
            state.gamma = np.where(short, first, state.gamma)
            state.limits = np.where(short, FIRST, state.limits)
            found = self._probes(measured, draws)
            if found and all(np.isfinite(fall).all() for _, fall in found):
                return found
            state.gamma, state.limits = before
        return self._probes(measured, draws)

    def _probes(
        self, measured: Measured, draws: list[Draws]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        vector, pairs = measured.mean.vector, []
        count = len(vector) - self._size
        limits = self._each(self._state.limits, count)
        for index in range(count if count <= MAX_PROBES else 0):
            change = np.zeros(count, vector.dtype)
            change[index] = PROBE * limits[index]
            parts = [change[part] for part in self._state.parts(count)]
            like = measured.mean.ordinary
            moves = [a.reshape(np.shape(b)) for a, b in zip(parts, like, strict=True)]
            moved = self._moved(self.place, moves)
            answer = self._state.measure(moved, draws).mean.vector[: self._size]
            answer = answer - vector[: self._size]
            covector = self._inner.covectors(answer[None])[0]
            step = self._at(moved).step(Direction(answer, covector), 1.0, INITIAL_RADIUS)
            if step is not None:
                fall = vector - self._state.measure(step.place, draws).mean.vector
                pairs.append((np.concatenate([step.change, change]), fall))
        return self._conjugate(pairs)

    def _conjugate(
        self, pairs: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The pairs of a quadratic bound along directions that do not meet in its curvature.

        With these the memory is exact on all that they span.
        """
        found: list[tuple[np.ndarray, np.ndarray]] = []
        dual: list[np.ndarray] = []
        for change, fall in pairs:
            for (other, its_fall), covector in zip(found, dual, strict=True):
                part = float(covector @ change) / float(covector @ other)
                change, fall = change - part * other, fall - part * its_fall
            of_gaussians = self._inner.covectors(fall[None, : self._size])[0]
            covector = np.concatenate([of_gaussians, fall[self._size :]])
            if float(covector @ change) > 0:
                found.append((change, fall))
                dual.append(covector)
        return found

    def _each(self, values: np.ndarray, count: int) -> np.ndarray:
        """A number of each parameter for each of its elements."""
        parts = self._state.parts(count)
        return np.concatenate(
            [np.full(part.stop - part.start, v) for part, v in zip(parts, values, strict=True)]
        )

    def covectors(self, vectors: np.ndarray) -> np.ndarray:
        ordinary = vectors[:, self._size :]
        gamma = self._each(self._state.gamma, ordinary.shape[1])
        of_gaussians = self._inner.covectors(vectors[:, : self._size])
        return np.concatenate([of_gaussians, (ordinary / gamma).astype(ordinary.dtype)], 1)

    def step(self, direction: Direction, rho: float, radius: float) -> Step | None:
        parts = np.split(direction.vector, [self._size])
        slopes = np.split(direction.covector, [self._size])
        if not np.isfinite(parts[1]).all():
            return None
        places = self._state.parts(len(parts[1]))
        lengths = rho * np.array([_norm(parts[1][part]) for part in places])
        shares = np.minimum(1.0, self._state.limits / np.where(lengths > 0, lengths, 1.0))
        if self._pairs:  # what moves together is shortened together
            shares[:] = shares.min()
            rho *= shares[0]
        step = self._inner.step(Direction(parts[0], slopes[0]), rho, radius)
        if step is None:
            return None
        if self._pairs:
            rho, shares[:] = step.rho, 1.0
        change, moves = rho * parts[1], []
        for part, share, like in zip(places, shares, direction.ordinary, strict=True):
            change[part] *= share
            moves.append(change[part].reshape(np.shape(like)))
        return step._replace(
            place=self._moved(step.place, moves),
            change=np.concatenate([step.change, change]),
            slope=step.slope + float(slopes[1] @ change),
        )


def _norm(values: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=float))))
