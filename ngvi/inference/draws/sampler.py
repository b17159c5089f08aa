"""Chains of NUTS, their warm-up, and the latents in which these run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ngvi.errors import check_count, check_flag, is_number
from ngvi.inference.draws.accuracy import ENOUGH_DRAWS, Accuracy
from ngvi.inference.draws.chains import effective_draws
from ngvi.inference.draws.coordinates import WORTH, Coordinates
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.trajectories import StepSize, TooFewDrawsError, Trajectories, rectangle
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Prices, Problem
from ngvi.latents.layout import name_of

#: Transitions of the warm-up's windows, and of the first round. Draws of a longer window are worth
#: keeping. In shorter ones chains may not have met a tail yet, which asks for shorter steps.
WINDOWS, ROUND = (10, 15, 25, 50, 100, 200), 25
#: Acceptance that the step size aims at. Where transitions diverge it goes half of the way to one,
#: as long as it is at most the second number.
ACCEPT_PROB, MOST_ACCEPT_PROB = 0.8, 0.95
#: Part of a window's transitions that may diverge without smaller steps.
DIVERGENT_PART = 2e-3
#: Effective draws per draw, times how much shorter steps would be, below which chains try other
#: coordinates, once each has as many draws: of fewer, chains that hardly move count as if each had
#: been everywhere.
POOR, FEWEST_TO_TRY = 0.2, 100
#: Gradients of the model's density that take as long as one through conditional modes: Newton's
#: method takes four to ten steps, each a gradient and products with the Hessian.
BY_MODES = 8.0
#: Largest ratio of the seconds of a step with conditional modes and without at which chains begin
#: with modes: hierarchies take a quarter to a thirtieth of the gradients there.
DEAR = 4.0
#: Seconds of a step of all chains besides that of the model.
STEP_OF_CHAINS = 1e-3
#: Part of the transitions that may meet a density that is not finite.
NOT_FINITE_PART = 0.01


class NutsRequest(NamedTuple):
    """Arguments of ``nuts``."""

    num_samples: int | None = None
    num_warmup: int | None = None
    num_chains: int = 32
    target_accept_prob: float | None = None
    progress_bar: bool = False

    def checked(self) -> NutsRequest:
        """Check the arguments.

        :raises ValueError: for one that cannot be.
        """
        if self.num_samples is not None:
            check_count(self.num_samples, "num_samples", 4)
        check_count(self.num_chains, "num_chains")
        check_flag(self.progress_bar, "progress_bar")
        if self.num_warmup is not None:
            check_count(self.num_warmup, "num_warmup", 0)
        accepted = self.target_accept_prob
        if accepted is not None and not is_number(accepted, lambda value: 0 < value < 1):
            raise ValueError(
                f"target_accept_prob must be a number between 0 and 1, got {accepted!r}."
            )
        return self

    def windows(self) -> Iterator[int]:
        """Yield the lengths of the warm-up's windows."""
        left = math.inf if self.num_warmup is None else self.num_warmup
        for length in WINDOWS:
            if left > 0:
                yield int(min(length, left))
                left -= length


class Place(NamedTuple):
    """Latents in which chains run."""

    problem: Problem
    state: State
    coordinates: Coordinates
    theta: np.ndarray  #: Where chains begin, shape ``(chains, d)``.
    to_own: Callable[[np.ndarray], np.ndarray] = np.asarray  #: Map to the model's own latents.


class Sampler:
    """Chains of one density; see the module.

    :param optimum: index of each chain's optimum.
    :param is_over: whether there is to be no further evaluation.
    :param jumps: between optima.
    :param other: through conditional modes, where draws may be worth more.
    :ivar lost: latent vectors at which the density was not finite, since these chains began.
    """

    def __init__(
        self,
        place: Place,
        optimum: np.ndarray,
        rng: np.random.Generator,
        is_over: Callable[[], bool],
        jumps: Jumps | None = None,
        other: Place | None = None,
    ) -> None:
        self.lost: list[np.ndarray] = []
        self._optimum, self._rng, self._is_over, self._jumps = optimum, rng, is_over, jumps
        self._ways: list[Callable] = [partial(self._elsewhere, other)] if other else []
        if place.coordinates.scale.ndim > 1:
            self._ways.append(self._scaled)
        self._request, self._accepted = NutsRequest(), ACCEPT_PROB
        self._begin(place)

    def _begin(self, place: Place) -> None:
        self.place, self.coordinates, self._theta = place, place.coordinates, place.theta
        self._step = len(place.theta.T) ** -0.25
        self._chains: Any = None

    def warm_up(self, request: NutsRequest) -> None:
        """Adapt step size and coordinates."""
        self._accepted, self._request = request.target_accept_prob or ACCEPT_PROB, request
        for length in request.windows():
            chains = self._window(length)
            begin = min(map(len, chains.draws)) // 3  # where the chains had not settled
            for draws in chains.draws:
                del draws[:begin]
            draws, before = rectangle(chains.draws), self.coordinates
            z = draws.z.copy()
            for one in np.unique(self._optimum):
                own = self._optimum == one
                z[own] -= z[own].mean((0, 1))
            is_long = length > ROUND and request.num_warmup is None
            left = 1.0 - is_long * float(effective_draws(z).min()) / ENOUGH_DRAWS
            found, longer = before.adapted(z, draws.gradient, left)
            if not self._is_over():
                self.coordinates, self._step = found, self._step * longer
            is_spoilt = _is_spoilt(draws)
            if is_spoilt and self._aims_higher():
                continue
            if self.coordinates is before:
                if is_long and not is_spoilt and self._jumps is None:
                    self._chains = chains
                return

    def _window(self, length: int) -> Trajectories:
        """Run chains anew, and adapt their steps."""
        chains, step = self._new(None), StepSize(self._step, self._accepted, len(self._theta))
        chains.run(length, lambda: step.adapted(chains) and self._is_over())
        self._step = chains.step = step.best
        self._theta = self.coordinates.theta(rectangle(chains.draws).z[:, -1])
        return chains

    @property
    def _may_aim_higher(self) -> bool:
        is_given = self._request.target_accept_prob is not None
        return not is_given and self._accepted < MOST_ACCEPT_PROB

    def _aims_higher(self) -> bool:
        """Aim at more acceptance, if there can be more."""
        may = self._may_aim_higher
        self._accepted += 0.5 * (1.0 - self._accepted) * may
        return may

    def moved(self, found: Any) -> bool:
        """Tell whether the chains have begun anew where a gradient is worth more.

        :param found: all draws after the warm-up, as :meth:`run` returns them.
        """
        before = vars(self).copy()
        try:
            is_better = self._is_better_anew(found) and not self._is_over()
        except TooFewDrawsError:
            is_better = False
        if not is_better:
            vars(self).update(before)
        return is_better

    def _is_better_anew(self, found: Any) -> bool:
        """Begin anew, and tell whether a gradient is worth more than it was."""
        place = self.place
        if not (self._ways and self._ways[0](found)):
            return _is_spoilt(found) and self._shortens_steps(found.z[:, -1])
        del self._ways[0]  # also if all else is taken back
        pilot = self.run(ROUND)
        if _is_spoilt(pilot) != _is_spoilt(found):
            return _is_spoilt(found)
        price = 1.0 if self.place is place else BY_MODES
        return _worth(pilot) > WORTH * price * _worth(found)

    def _shortens_steps(self, theta: np.ndarray) -> bool:
        """Begin anew with shorter steps, if these can be."""
        if not self._aims_higher():
            return False
        self._theta = theta
        chains = self._window(ROUND)
        self._chains = chains if self._jumps is None else None
        return True

    def _elsewhere(self, other: Place, found: Any) -> bool:
        """Go to the other latents, where draws are worth little."""
        if _num_effective(found) > POOR * found.steps.size and not _is_spoilt(found):
            return False
        self._begin(other)
        self.warm_up(self._request)
        return True

    def _scaled(self, found: Any) -> bool:
        """Go to scaled latents, where draws are worth little: a funnel runs along these."""
        if found.steps.shape[1] < FEWEST_TO_TRY:
            return False
        z = self.coordinates.z(found.z.reshape(-1, found.z.shape[-1]))
        coordinates, longer = self.coordinates.of_scales(z - z.mean(0), found.gradient)
        if _num_effective(found) > POOR * min(longer, 1.0) * found.steps.size:
            return False
        self.coordinates, self._step = coordinates, self._step * longer
        self._theta, self._chains = found.z[:, -1], None
        self._window(ROUND)
        return True

    def run(self, count: int) -> Any:
        """Go on until each chain has as many draws after the warm-up; return all of them."""
        if self._chains is None:
            self._chains = self._new(self._jumps)
        self._chains.run(count, self._is_over)
        found = rectangle(self._chains.draws, count)
        return found._replace(z=self.coordinates.theta(found.z))

    def _new(self, jumps: Jumps | None) -> Trajectories:
        self.lost.clear()
        own = self.coordinates
        jumps = jumps and jumps.within(own)
        return Trajectories(self._density, own.z(self._theta), self._step, self._rng, jumps)

    def _density(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta = self.coordinates.theta(z)
        values, gradients = self.place.problem.objective.gradient(self.place.state, theta)
        self.lost.extend(theta[~np.isfinite(values)])
        return values, self.coordinates.slope(gradients)

    def is_in_vain(self, accuracy: Accuracy, draws: dict, diverged: np.ndarray) -> bool:
        """Tell whether draws are doubtful for transitions that have diverged, however many go on.

        :param draws: of each site, of which ``accuracy`` is.
        """
        may_mend = self._request.num_warmup is None and self._may_aim_higher
        may_mend &= bool(diverged.mean() > DIVERGENT_PART)
        if not diverged.any() or may_mend:
            return False
        noise = Accuracy.of_chains(draws, np.zeros_like(diverged))
        most = noise.limits + LEVELS.negligible
        return noise.is_accurate and bool((accuracy.limits > most).any())

    def fault(self, found: Any) -> str:
        """Say where the density was not finite, if that has ended too many transitions."""
        count = int((~found.is_finite).sum())
        if count <= NOT_FINITE_PART * found.is_finite.size:
            return ""
        rows = found.z.reshape(-1, found.z.shape[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.median(abs(np.stack(self.lost) - rows.mean(0)) / rows.std(0), 0)
        order = np.argsort(-np.nan_to_num(apart), kind="stable")[:3]
        names = [name_of(int(i), self.place.problem.space.sites) for i in order]
        return (
            f"in {count:,} of {found.is_finite.size:,} transitions the log density was not finite, "
            f"with {', '.join(dict.fromkeys(names))} the farthest from their means"
        )


def seconds_of_step(prices: Prices, chains: int, is_left_out: bool) -> float:
    """Return the seconds of a step of all chains, NaN if not known.

    All chains share a call of the model, which has a price beside that of the gradients.

    :param prices: of a fit, with conditional modes if its guide has these.
    :param is_left_out: whether the chains leave the modes out.
    """
    call = np.nan_to_num(prices.call) + chains * prices.gradient
    if is_left_out:
        call = call / BY_MODES if math.isnan(prices.own) else chains * prices.own
    return float(STEP_OF_CHAINS + call)


def are_modes_dear(prices: Prices, chains: int) -> bool:
    """Return whether chains begin without conditional modes.

    Chains leave modes out if prices are not known, or if the fit tried both ways, because modes had
    not made the posterior simple.
    """
    by_modes, own = (seconds_of_step(prices, chains, way) for way in (False, True))
    return not (math.isnan(prices.own) and by_modes <= DEAR * own)


def _worth(draws: Any) -> float:
    """Return effective draws per gradient."""
    return _num_effective(draws) / draws.steps.sum()


def _num_effective(draws: Any) -> float:
    return float(effective_draws(draws.z).min())


def _is_spoilt(draws: Any) -> bool:
    """Return whether more transitions have diverged than smaller steps would not mend."""
    return draws.diverged.mean() > DIVERGENT_PART
