"""NUTS on from a fit: where its chains begin, in which coordinates, and when they end.

Chains begin at draws that importance weights have corrected, at each optimum as many as its
evidence earns, in coordinates in which the fitted Gaussian is standard normal. All chains share one
step size and one map to these coordinates, which short windows of the warm-up improve
(:mod:`~ngvi.inference.draws.coordinates`) until nothing changes any more: after the first window,
where the Gaussian is good. Then the chains go on in rounds, each as long as all before, until their
draws are accurate. Where draws turn out to be worth little, a pilot in the model's own latents,
scaled, says whether a gradient is worth more there: a funnel runs along these. Where the fit has
locals by their conditional modes, whose gradients search for these, chains begin without, and a
pilot with them says the same. Between several optima chains jump
(:mod:`~ngvi.inference.draws.jumps`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ngvi._lock import Cached
from ngvi.errors import check_count, check_flag, is_number
from ngvi.inference.draws.accuracy import Accuracy, flat, in_models, is_by_modes, numbers
from ngvi.inference.draws.chains import effective_draws, r_hat
from ngvi.inference.draws.coordinates import MAX_DENSE, WORTH, Coordinates
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.proposals import Proposal, Weighed, proposal_for
from ngvi.inference.draws.trajectories import StepSize, Trajectories, rectangle
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.tells import TellsWhatItHas, door_with_options_of
from ngvi.latents.layout import name_of

#: Draws of each optimum that chains begin at, by their weights.
NUM_DRAWS = 1000
#: Evidence of an optimum, as a part of all, from which chains jump to it.
HEAVY = 0.01
#: Nats below the best bound from which an optimum gets no chain.
FAR_BELOW = 10.0
#: Transitions of the warm-up's windows, of the first round, and draws of a chain at most.
WINDOWS, ROUND, MOST_DRAWS = (10, 15, 25, 50, 100, 200), 25, 800
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
#: Part of the transitions that may meet a density that is not finite.
NOT_FINITE_PART = 0.01
#: Statistics of transitions by ArviZ's names, each with numpy's kinds of its numbers.
STATISTICS = {"diverging": "b", "energy": "f", "n_steps": "iu", "acceptance_rate": "f"}
#: For a model without a density of all data.
WAY_OUT = (
    "Let the model see all rows, as one without subsample_size= or batches=, and go on with "
    "fit(model, ..., init=result).nuts()."
)


class WhitenedDensity(NamedTuple):
    """A posterior's density where the fitted Gaussian is ``N(0, I)``, for any sampler."""

    dim: int  #: ``d``, the number of coordinates.
    #: Map ``z`` of shape ``(d,)`` or ``(N, d)`` to ``log p(y, theta(z)) + log |d theta / dz|`` in
    #: nats, a scalar or shape ``(N,)``; it can be differentiated.
    log_density: Callable[[Any], Any]
    #: Map ``z`` to the model's sites, constrained, with an axis of draws for shape ``(N, d)``.
    constrain: Callable[[Any], dict[str, Any]]


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


class Beginnings(NamedTuple):
    """Points at which chains begin."""

    theta: np.ndarray  #: Latent vectors in the guide's coordinates, ``(chains, d)``.
    optimum: np.ndarray  #: Index of each chain's optimum.
    #: Between optima; None of a single one.
    jumps: Jumps | None = None


def starts_of(
    problem: Problem,
    states: list[State],
    num_chains: int,
    rng: np.random.Generator,
    known: Weighed | None = None,
) -> Beginnings:
    """Choose where chains begin.

    :param states: of the optima, the best first.
    :param known: draws of a single optimum.
    :raises ValueError: if the log density is finite at no draw.
    """
    if known is not None and len(states) == 1:
        return Beginnings(known.resampled(num_chains, rng), np.zeros(num_chains, int))
    how = NUM_DRAWS, rng
    pilots = [Proposal(problem, state).weighed(*how) for state in states]
    pairs = zip(states, pilots, strict=True)
    found = [proposal_for(problem, *pair, rng).weighed(*how) for pair in pairs]
    evidence = np.array([one.evidence for one in found])
    weights = np.exp(evidence - np.logaddexp.reduce(evidence))
    middles = (np.arange(num_chains) + 0.5) / num_chains
    optimum = np.minimum(np.searchsorted(np.cumsum(weights), middles), len(states) - 1)
    counts = np.bincount(optimum, minlength=len(states))
    theta = np.concatenate([one.resampled(n, rng) for one, n in zip(found, counts, strict=True)])
    heavy, jumps = np.flatnonzero(weights >= HEAVY), None
    if len(heavy) > 1 and problem.space.dim <= MAX_DENSE:
        parts = [Coordinates.of_fit(problem, states[i]) for i in heavy]
        jumps = Jumps(weights[heavy] / weights[heavy].sum(), parts)
    return Beginnings(theta, optimum, jumps)


def _as_they_are(latents: np.ndarray) -> np.ndarray:
    return latents


class Place(NamedTuple):
    """Latents in which chains run."""

    problem: Problem
    state: State
    coordinates: Coordinates
    theta: np.ndarray  #: Where chains begin, shape ``(chains, d)``.
    to_own: Callable[[np.ndarray], np.ndarray] = _as_they_are  #: Map to the model's own latents.
    price: float = 1.0  #: Gradients of the model's density that take as long as one here.


class Sampler:
    """Chains of one density; see the module.

    :param optimum: index of each chain's optimum.
    :param is_over: whether there is to be no further evaluation.
    :param jumps: between optima.
    :param other: where draws may be worth more.
    :ivar lost: latent vectors at which the density was not finite, after the warm-up.
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
        self._other, self._ways = other, [self._elsewhere] if other else []
        if place.coordinates.scale.ndim > 1:
            self._ways.append(self._scaled)
        self._request, self._accepted = NutsRequest(), ACCEPT_PROB
        self._begin(place)

    def _begin(self, place: Place) -> None:
        self.place, self.coordinates, self._theta = place, place.coordinates, place.theta
        self._step, self._chains = len(place.theta.T) ** -0.25, None

    def warm_up(self, request: NutsRequest) -> None:
        """Adapt step size and coordinates."""
        self._accepted, self._request = request.target_accept_prob or ACCEPT_PROB, request
        for length in request.windows():
            draws = self._window(length)
            before, begin = self.coordinates, draws.z.shape[1] // 3  # where it had not settled
            z, slopes = draws.z[:, begin:].copy(), draws.gradient[:, begin:]
            for one in np.unique(self._optimum):
                own = self._optimum == one
                z[own] -= z[own].mean((0, 1))
            self.coordinates, longer = before.adapted(z, slopes)
            self._step *= longer
            if _is_spoilt(draws) and request.target_accept_prob is None:
                if self._accepted < MOST_ACCEPT_PROB:
                    self._accepted = 0.5 * (1.0 + self._accepted)
                    continue
            if self.coordinates is before or self._is_over():
                return

    def _window(self, length: int) -> Any:
        chains, step = self._new(None), StepSize(self._step, self._accepted, len(self._theta))
        chains.run(length, lambda: step.adapted(chains) and self._is_over())
        draws = rectangle(chains.draws)
        self._step, self._theta = step.best, self.coordinates.theta(draws.z[:, -1])
        return draws

    def moved(self, found: Any) -> bool:
        """Tell whether the chains have begun anew where a gradient is worth more.

        :param found: all draws after the warm-up, as :meth:`run` returns them.
        """
        before = vars(self).copy()
        if not (self._ways and self._ways[0](found)):
            return False
        del self._ways[0]  # also if all else is taken back
        self._chains = None
        pilot, is_better = self.run(ROUND), _is_spoilt(found)
        if _is_spoilt(pilot) == is_better:
            price = self.place.price / before["place"].price
            is_better = _worth(pilot) > WORTH * price * _worth(found)
        is_better = is_better and not self._is_over()
        if not is_better:
            vars(self).update(before)
        return is_better

    def _elsewhere(self, found: Any) -> bool:
        """Go to the other latents, where draws are worth little."""
        if _num_effective(found) > POOR * found.steps.size and not _is_spoilt(found):
            return False
        self._begin(self._other)
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
        self._theta = found.z[:, -1]
        self._window(ROUND)
        return True

    def run(self, count: int) -> Any:
        """Go on until each chain has as many draws after the warm-up; return all of them."""
        if self._chains is None:
            self.lost.clear()
            self._chains = self._new(self._jumps)
        self._chains.run(count, self._is_over)
        found = rectangle(self._chains.draws, count)
        return found._replace(z=self.coordinates.theta(found.z))

    def _new(self, jumps: Jumps | None) -> Trajectories:
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
        if not diverged.any():
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


def _worth(draws: Any) -> float:
    """Return effective draws per gradient."""
    return _num_effective(draws) / draws.steps.sum()


def _num_effective(draws: Any) -> float:
    return float(effective_draws(draws.z).min())


def _is_spoilt(draws: Any) -> bool:
    """Return whether more transitions have diverged than smaller steps would not mend."""
    return draws.diverged.mean() > DIVERGENT_PART


@dataclasses.dataclass(frozen=True, eq=False)
class NutsResult(TellsWhatItHas):
    """Draws of a posterior by NUTS, and whether to trust them."""

    #: Vectors of the model's own latents, unconstrained, shape ``(chains, draws, d)``.
    latents: np.ndarray
    #: Errors of means and standard deviations.
    accuracy: Accuracy
    #: Gradients of the log density, those of the warm-up among them.
    num_gradients: int
    #: Statistics of each transition, shape ``(chains, draws)``, for ArviZ.
    sample_stats: dict[str, np.ndarray]
    #: Index of the optimum at which each chain has begun.
    optima: np.ndarray
    _result: Any  # from which the chains go on

    @Cached
    def draws(self) -> dict[str, np.ndarray]:
        """Draws of the latent sites, constrained, arrays of shape ``(chains, draws, ...)``."""
        return draws_at(self._result, self.latents)

    @property
    def verdict(self) -> str:
        """``"accurate"`` or ``"doubtful"``."""
        return self.accuracy.verdict

    @property
    def num_divergent(self) -> int:
        """The number of divergent transitions after the warm-up."""
        return int(self.sample_stats["diverging"].sum())

    @property
    def r_hat(self) -> float:
        """The largest R-hat of all latents, near 1 if the chains agree."""
        return float(r_hat(flat(self.draws, 2)).max())

    @property
    def effective_draws(self) -> float:
        """The smallest effective number of draws of all latents."""
        return float(effective_draws(flat(self.draws, 2)).min())

    @door_with_options_of("_result._chains_for_arviz")
    def to_arviz(self, **options: Any) -> Any:
        """Return the draws with their chains, and statistics of transitions, for ArviZ.

        It includes everything in the fit's own ``to_arviz``.

        :param options: its options, such as ``log_likelihood=False`` and ``coords=``.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        """
        return self._result._chains_for_arviz(self, **options)

    def __repr__(self) -> str:
        chains, count = self.latents.shape[:2]
        return (
            f"NutsResult({self.verdict}: {chains} chains of {count:,} draws, "
            f"{self.num_gradients:,} gradients, {self.num_divergent:,} divergences; "
            f"{self.accuracy.words})"
        )


def run_until(
    result: Any,
    seed: int | list[int],
    limit_gradients: float = math.inf,
    deadline: float = math.inf,
    request: NutsRequest | None = None,
    known: Weighed | None = None,
) -> NutsResult:
    """Run chains until their draws are accurate, or a limit is reached.

    Four draws of each chain are made in any case.

    :param limit_gradients: the most gradients.
    :param deadline: by ``time.perf_counter()``.
    :param request: what the user asks for; with ``num_samples`` each chain has as many draws.
    :param known: draws by weights at which chains may begin.
    :raises ValueError: if the log density is finite at no draw of the Gaussian.
    """
    request, rng = request or NutsRequest(), np.random.default_rng(seed)
    bar = tqdm(desc="nuts", unit=" gradients", disable=not request.progress_bar)
    with bar, result._at_end() as (problem, state):
        cost = problem.objective.cost

        def is_over() -> bool:
            bar.update(cost.gradients - bar.n)
            return cost.gradients > limit_gradients or time.perf_counter() > deadline

        states = states_of(result, problem, state)
        starts = starts_of(problem, states, request.num_chains, rng, known)
        places = _places(result, problem, state, starts)
        sampler = Sampler(places[0], starts.optimum, rng, is_over, starts.jumps, *places[1:])
        sampler.warm_up(request)
        most = request.num_samples or MOST_DRAWS
        count = min(ROUND, most)
        while True:
            found = sampler.run(count)
            latents = sampler.place.to_own(found.z.reshape(-1, result.dim)).reshape(found.z.shape)
            draws = draws_at(result, latents)
            accuracy = Accuracy.of_chains(draws, found.diverged, sampler.fault(found))
            is_enough = accuracy.is_accurate or sampler.is_in_vain(accuracy, draws, found.diverged)
            if (is_enough and request.num_samples is None) or is_over() or count >= most:
                break
            if request.num_warmup is not None or not sampler.moved(found):
                count = min(2 * count, most)
        gradients = math.ceil(cost.total)
    of_each = found.diverged, found.energy, found.steps, found.accepted
    stats = dict(zip(STATISTICS, of_each, strict=True))
    chains = NutsResult(latents, accuracy, gradients, stats, starts.optimum, result)
    vars(chains)["draws"] = draws
    return chains


def _places(result: Any, problem: Problem, state: State, starts: Beginnings) -> list[Place]:
    """Return where chains begin, and where else they may run.

    Locals by their conditional modes have a search in each gradient. So chains begin in the model's
    own latents, as long as these have a matrix of scales and no chain jumps.
    """
    own, to_own = Coordinates.of_fit(problem, state), partial(in_models, result)
    place = Place(problem, state, own, starts.theta, to_own)
    is_other = is_by_modes(result) and result.change is None and starts.jumps is None
    if not is_other or own.scale.ndim == 1:
        return [place]
    other = result._ppl.problem_in_models(result)
    other.objective.cost = problem.objective.cost
    secants = Coordinates.of_fit(problem, state, to_own), to_own(starts.theta)
    return [Place(other, other.space.initial, *secants), place._replace(price=BY_MODES)]


def draws_at(result: Any, latents: np.ndarray) -> dict[str, np.ndarray]:
    """Return the latent sites, constrained, at the model's own latents, ``(chains, draws, d)``."""
    found = numbers(result, latents.reshape(-1, latents.shape[2])).items()
    return {name: value.reshape(*latents.shape[:2], *value.shape[1:]) for name, value in found}


def states_of(result: Any, problem: Problem, state: State) -> list[State]:
    """Return the fit's own state, and those of optima that may hold a part of the posterior."""
    optima = result.optima
    if problem.space.has_model_parameters:
        return [state]  # others are optima with other parameters of the model
    others = [optimum for optimum in optima[1:] if optimum.bound > optima[0].bound - FAR_BELOW]
    return [state, *(result._ppl.state_of(problem, optimum.params) for optimum in others)]
