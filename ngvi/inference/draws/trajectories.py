"""The no-U-turn sampler of many chains at once (Hoffman and Gelman, 2014; Betancourt, 2017).

Each pass evaluates one point of every chain. No chain waits for the longer trajectory of another,
and evaluating all chains costs little more than evaluating one. Turns within a trajectory are found
from a few checkpoints (Phan et al., 2019, *Composable effects for flexible and accelerated
probabilistic programming in NumPyro*). When two halves are joined, each is also compared with the
nearest point of the other, as in Stan since release 2.21. Without this, a trajectory of many
latents on one scale would run in circles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

#: Most doublings of a trajectory, and loss of energy in nats from which it has diverged, as in
#: Stan.
MAX_DEPTH, DIVERGENCE = 10, 1000.0
#: How many ones the binary digits of a leaf's number have.
ONES = np.array([bin(leaf).count("1") for leaf in range(2**MAX_DEPTH)])
#: Fewest draws of a chain, which both halves have a variance from.
FEWEST = 4

#: Map points ``(K, d)`` to log densities ``(K,)`` and gradients ``(K, d)``.
Gradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class TooFewDrawsError(ValueError):
    """A limit of time or gradients that comes before each chain has a few draws."""


class Draw(NamedTuple):
    """The end of one transition of a chain."""

    z: np.ndarray  #: Position, shape ``(d,)``.
    value: float  #: Log density in nats.
    gradient: np.ndarray
    energy: float  #: Hamiltonian of the trajectory.
    accepted: float  #: Mean acceptance of its points.
    steps: int
    diverged: bool
    is_finite: bool  #: Whether the density was finite at all points.


class Trajectories:
    """Chains in coordinates in which the momentum is ``N(0, I)``.

    :param gradient: of the log density.
    :param z: where chains begin, shape ``(K, d)``.
    :param step: length of a leapfrog step, which whoever drives them may change.
    :param jumps: ``Jumps`` that follow each transition.
    :ivar draws: of each chain, in order.
    """

    def __init__(
        self,
        gradient: Gradient,
        z: np.ndarray,
        step: float,
        rng: np.random.Generator,
        jumps: Any = None,
    ) -> None:
        self.step = step
        self.draws: list[list[Draw]] = [[] for _ in z]
        self._gradient, self._rng, self._jumps = gradient, rng, jumps
        shape, count = z.shape, len(z)
        self._z, (self._value, self._slope) = z.copy(), gradient(z)
        self._ends = np.zeros((2, 3, *shape))  # backward and forward: z, momentum, gradient
        self._total, self._below = np.zeros(shape), np.zeros(shape)  # sums of momenta
        self._at, self._chosen = np.zeros((3, *shape)), np.zeros((2, *shape))
        self._chosen_value = np.zeros(count)
        # Of checkpoints: own momenta, sums up to there, and momenta of the points before.
        self._momenta = np.zeros((3, MAX_DEPTH, *shape))
        self._energy, self._log_weight, self._log_below, self._accepted = np.zeros((4, count))
        self._depth, self._leaf, self._steps = np.zeros((3, count), int)
        self._way, self._is_finite = np.ones(count, int), np.ones(count, bool)
        self._is_jump = np.zeros(count, bool)
        self._begin(np.arange(count))

    def run(self, count: int, is_over: Callable[[], Any]) -> None:
        """Go on until each chain has as many draws.

        :param is_over: asked after each pass: whether to stop.
        :raises TooFewDrawsError: if that is before each chain has four, or as many.
        """
        while min(map(len, self.draws)) < count:
            self._pass()
            if is_over():
                if min(map(len, self.draws)) < min(count, FEWEST):
                    raise TooFewDrawsError(f"the limit came before each chain had {FEWEST} draws")
                break

    def _begin(self, chains: np.ndarray) -> None:
        """Begin transitions of some chains."""
        momenta = self._rng.standard_normal((len(chains), self._z.shape[1]))
        self._ends[:, :, chains] = np.stack([self._z[chains], momenta, self._slope[chains]])
        self._total[chains] = momenta
        self._energy[chains] = 0.5 * np.square(momenta).sum(1) - self._value[chains]
        self._log_weight[chains] = 0.0
        for array in (self._depth, self._steps, self._accepted):
            array[chains] = 0
        self._is_finite[chains] = True
        self._double(chains)

    def _double(self, chains: np.ndarray) -> None:
        """Begin another half of some chains' trajectories."""
        forward = self._rng.integers(2, size=len(chains))
        self._way[chains] = 2 * forward - 1
        self._at[:, chains] = self._ends[forward, :, chains].swapaxes(0, 1)
        self._below[chains], self._log_below[chains], self._leaf[chains] = 0.0, -np.inf, 0

    def _pass(self) -> None:
        """Evaluate one more point of each chain."""
        z, momentum, slope = self._at
        step = (self.step * self._way)[:, None]
        half = momentum + 0.5 * step * slope
        points, jumping = z + step * half, np.flatnonzero(self._is_jump)
        if jumping.size:
            points[jumping] = self._jumps.proposed(len(jumping), self._rng)
        values, slopes = self._gradient(points)
        if jumping.size:
            self._jump(jumping, points, values, slopes)
        self._at = np.stack([points, half + 0.5 * step * slopes, slopes])
        own = np.flatnonzero(~self._is_jump)
        turned, diverged = self._leaves(own, values, momentum[own])
        whole = own[(self._leaf[own] == 2 ** self._depth[own]) & ~turned & ~diverged]
        is_over = self._join(whole)
        over = np.concatenate([own[turned | diverged], whole[is_over]])
        for chain in over:
            self._record(chain, chain in own[diverged])
        self._is_jump[jumping] = False
        if self._jumps is not None:
            self._is_jump[over], over = True, jumping
        self._begin(over)
        self._double(whole[~is_over])

    def _leaves(
        self, own: np.ndarray, values: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the new points to the halves; tell which of these have turned, or diverged.

        :param before: momenta of the points before.
        """
        momentum, value = self._at[1, own], values[own]
        with np.errstate(invalid="ignore", over="ignore"):
            gain = value - 0.5 * np.square(momentum).sum(1) + self._energy[own]
        diverged = ~(gain > -DIVERGENCE)
        self._is_finite[own] &= np.isfinite(gain)
        gain = np.where(diverged, -np.inf, gain)
        self._accepted[own] += np.exp(np.minimum(gain, 0.0))
        self._steps[own] += 1
        self._below[own] += momentum
        total = np.logaddexp(self._log_below[own], gain)
        with np.errstate(invalid="ignore"):
            taken = np.log(self._rng.random(len(own))) < gain - total
        self._log_below[own] = total
        at = own[taken]
        self._chosen[:, at], self._chosen_value[at] = self._at[::2, at], values[at]
        return self._turns(own, momentum, before), diverged

    def _turns(self, own: np.ndarray, momentum: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Tell which halves have made a turn, by the checkpoints at which their parts begin."""
        leaf, turned = self._leaf[own], np.zeros(len(own), bool)
        place = ONES[leaf >> 1]
        even = leaf % 2 == 0
        at = own[even]
        here = momentum[even], self._below[at], before[even]
        self._momenta[:, place[even], at] = np.stack(here)
        parts = ONES[leaf & ~(leaf + 1)]  # that end here
        some = np.repeat(np.arange(len(own)), parts)
        back = np.arange(len(some)) - np.repeat(np.cumsum(parts) - parts, parts)
        begins, last = place[some] - back, momentum[some]
        first, sums, _ = self._momenta[:, begins, own[some]]
        span = self._below[own[some]] - sums + first
        turned[some[_has_turned(first, last, span)]] = True
        # Of four points and more the second half begins at the next checkpoint.
        some, begins, last, first, sums = (
            rows[back > 0] for rows in (some, begins, last, first, sums)
        )
        second, middle, near = self._momenta[:, begins + 1, own[some]]
        turned[some[_has_turned(first, second, middle - sums + first)]] = True
        span = self._below[own[some]] - middle + second + near
        turned[some[_has_turned(near, last, span)]] = True
        self._leaf[own] += 1
        return turned

    def _join(self, chains: np.ndarray) -> np.ndarray:
        """Join whole halves to the trajectories; tell which of these are over."""
        forward = (self._way[chains] > 0).astype(int)
        far, last = self._ends[1 - forward, 1, chains], self._at[1, chains]
        first, _, near = self._momenta[:, 0, chains]  # of the new half, and before it
        is_over = _has_turned(far, first, self._total[chains] + first)
        is_over |= _has_turned(near, last, self._below[chains] + near)
        self._ends[forward, :, chains] = self._at[:, chains].swapaxes(0, 1)
        self._total[chains] += self._below[chains]
        gain = self._log_below[chains] - self._log_weight[chains]
        taken = chains[np.log(self._rng.random(len(chains))) < gain]
        self._z[taken], self._slope[taken] = self._chosen[:, taken]
        self._value[taken] = self._chosen_value[taken]
        self._log_weight[chains] = np.logaddexp(self._log_weight[chains], self._log_below[chains])
        self._depth[chains] += 1
        ends = self._ends[:, 1, chains]
        is_over |= _has_turned(ends[0], ends[1], self._total[chains])
        return is_over | (self._depth[chains] >= MAX_DEPTH)

    def _record(self, chain: int, diverged: bool) -> None:
        steps = int(self._steps[chain])
        self.draws[chain].append(
            Draw(
                self._z[chain].copy(),
                float(self._value[chain]),
                self._slope[chain].copy(),
                float(self._energy[chain]),
                float(self._accepted[chain]) / steps,
                steps,
                diverged,
                bool(self._is_finite[chain]),
            )
        )

    def _jump(
        self, chains: np.ndarray, points: np.ndarray, values: np.ndarray, slopes: np.ndarray
    ) -> None:
        """Take the jumps of some chains, or leave them."""
        before = self._jumps.log_density(self._z[chains])
        gain = values[chains] - self._value[chains] + before
        with np.errstate(invalid="ignore"):  # of a density of zero it is not taken
            gain = gain - self._jumps.log_density(points[chains])
            taken = chains[np.log(self._rng.random(len(chains))) < gain]
        self._z[taken], self._slope[taken] = points[taken], slopes[taken]
        self._value[taken] = values[taken]
        for i in taken:
            here = {"z": self._z[i].copy(), "value": self._value[i], "gradient": slopes[i]}
            self.draws[i][-1] = self.draws[i][-1]._replace(**here)


class StepSize:
    """Dual averaging of the step size (Hoffman and Gelman, 2014), over transitions of all chains.

    :ivar best: the average of the steps.
    """

    def __init__(self, step: float, accept_prob: float, num_chains: int) -> None:
        self.best, self._centre, self._accept_prob = step, math.log(2.0 * step), accept_prob
        self._num_chains, self._seen = num_chains, [0] * num_chains
        self._new: list[float] = []
        self._count, self._short = 0, 0.0

    def adapted(self, chains: Trajectories) -> bool:
        """Set the step after as many transitions as there are chains; return True."""
        for i, draws in enumerate(chains.draws):
            self._new += [draw.accepted for draw in draws[self._seen[i] :]]
            self._seen[i] = len(draws)
        if len(self._new) < self._num_chains:
            return True
        short, self._new = self._accept_prob - float(np.mean(self._new)), []
        self._count += 1
        self._short += (short - self._short) / (self._count + 10)
        log_step = self._centre - self._short * math.sqrt(self._count) / 0.05
        part = self._count**-0.75
        self.best = math.exp(part * log_step + (1.0 - part) * math.log(self.best))
        chains.step = math.exp(log_step)
        return True


def rectangle(draws: list[list[Draw]], most: int | None = None) -> Any:
    """Return as many draws of each chain as all have, fields of arrays ``(chains, draws, ...)``."""
    count = min(map(len, draws))
    count = count if most is None else min(count, most)
    columns = (zip(*chain[:count], strict=True) for chain in draws)
    fields = zip(*columns, strict=True)
    arrays: list[Any] = [np.array(field) for field in fields]
    return Draw(*arrays)


def _has_turned(first: np.ndarray, last: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Tell which spans have made a turn, by the momenta at both ends and their sum."""
    way = total - 0.5 * (first + last)
    return (np.einsum("ij,ij->i", first, way) <= 0) | (np.einsum("ij,ij->i", last, way) <= 0)
