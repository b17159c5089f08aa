"""NUTS from a fit: where its chains start, in which coordinates they run, and when they end.

Chains start from draws corrected by importance weights, and each optimum gets a share of the chains
in proportion to its evidence. They run in coordinates in which the fitted Gaussian is standard
normal, and share one step size. Short windows of the warm-up improve these coordinates
(:mod:`~ngvi.inference.draws.coordinates`) until a change, which loses the draws made so far, would
not pay: after the first window if the Gaussian is good. Draws of the last one are kept if it was
long. The chains then run in rounds, each at most as long as all before, until their draws are
accurate, and begin anew with shorter steps where transitions have diverged. If draws have few
effective samples, a pilot run tests whether the model's own latents, scaled, are better: funnels
run along them. If the fit centres locals at conditional modes, chains start in the model's own
latents, whose gradients need no search for modes. A pilot run through the modes follows if draws
have few effective samples. Chains jump between several optima (:mod:`~ngvi.inference.draws.jumps`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ngvi._lock import Cached
from ngvi.inference.draws.accuracy import Accuracy, flat, in_models, numbers, own_problem
from ngvi.inference.draws.chains import effective_draws, r_hat
from ngvi.inference.draws.coordinates import MAX_DENSE, Coordinates
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.others import HEAVY, Elsewhere, elsewhere, states_of, with_others
from ngvi.inference.draws.proposals import Proposal, Weighed, proposal_for
from ngvi.inference.draws.sampler import ROUND, NutsRequest, Place, Sampler, are_modes_dear
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.tells import TellsWhatItHas, door_with_options_of

#: Draws of the best optimum that chains begin at, by their weights.
NUM_DRAWS = 1000
#: Draws of a chain at most.
MOST_DRAWS = 800
#: Statistics of transitions by ArviZ's names, each with numpy's kinds of its numbers.
STATISTICS = {"diverging": "b", "energy": "f", "n_steps": "iu", "acceptance_rate": "f"}
#: For a model without a density of all data.
WAY_OUT = (
    "Let the model see all rows (no subsample_size= or batches=), and go on with "
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
) -> tuple[Beginnings, list[Elsewhere]]:
    """Choose where chains begin.

    :param states: of the optima, the best first.
    :param known: draws at the best one, which serve if they are worth a start for each chain.
    :return: beside that, draws at the other optima.
    :raises ValueError: if the log density is finite at no draw.
    """
    if known is None or known.effective < num_chains:
        pilot = Proposal(problem, states[0]).weighed(NUM_DRAWS, rng)
        known = proposal_for(problem, states[0], pilot, rng).weighed(NUM_DRAWS, rng)
    others = elsewhere(problem, states, known.evidence)
    weights = np.array([1.0, *(one.shares.sum() for one in others)])
    weights /= weights.sum()
    middles = (np.arange(num_chains) + 0.5) / num_chains
    optimum = np.minimum(np.searchsorted(np.cumsum(weights), middles), len(states) - 1)
    counts = np.bincount(optimum, minlength=len(states))
    theta = [known.latents[known.picked(counts[0], rng)]]
    for one, count in zip(others, counts[1:], strict=True):
        parts = one.shares / max(one.shares.sum(), np.finfo(float).tiny)
        theta.append(one.latents[rng.choice(len(parts), count, p=parts)] if count else theta[0][:0])
    heavy, jumps = np.flatnonzero(weights >= HEAVY), None
    if len(heavy) > 1 and problem.space.dim <= MAX_DENSE:
        parts = [Coordinates.of_fit(problem, states[i]) for i in heavy]
        jumps = Jumps(weights[heavy] / weights[heavy].sum(), parts)
    return Beginnings(np.concatenate(theta), optimum, jumps), others


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

    :param limit_gradients: the most gradients.
    :param deadline: by ``time.perf_counter()``.
    :param request: what the user asks for; with ``num_samples`` each chain has as many draws.
    :param known: draws by weights at which chains may begin.
    :raises ValueError: if the log density is finite at no draw of the Gaussian, or the limit comes
        before each chain has four draws.
    """
    request, rng = request or NutsRequest(), np.random.default_rng(seed)
    bar = tqdm(desc="nuts", unit=" gradients", disable=not request.progress_bar)
    with bar, result._at_end() as (problem, state):
        cost = problem.objective.cost

        def is_over() -> bool:
            bar.update(cost.gradients - bar.n)
            return cost.gradients > limit_gradients or time.perf_counter() > deadline

        states = states_of(result, problem, state)
        starts, others = starts_of(problem, states, request.num_chains, rng, known)
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
                count = min(_enough(accuracy, count), most)
        rows = latents.reshape(found.diverged.size, -1)
        weights = np.full(len(rows), 1.0 / len(rows))
        accuracy = with_others(accuracy, result, rows, weights, others, most=HEAVY)
        gradients = math.ceil(cost.total)
    of_each = found.diverged, found.energy, found.steps, found.accepted
    stats = dict(zip(STATISTICS, of_each, strict=True))
    chains = NutsResult(latents, accuracy, gradients, stats, starts.optimum, result)
    vars(chains)["draws"] = draws
    return chains


def _enough(accuracy: Accuracy, count: int) -> int:
    """Return the number of draws per chain at which limits should hold: 1.25 to 2 times ``count``.

    Noise falls with the square root of the number of draws.
    """
    times = np.clip((accuracy.worst_limit / LEVELS.negligible) ** 2, 1.25, 2.0)
    return math.ceil(count * times)


def _places(result: Any, problem: Problem, state: State, starts: Beginnings) -> list[Place]:
    """Return where chains begin, and where else they may run.

    Locals by their conditional modes have a search in each gradient. Where that is dear, chains
    begin in the model's own latents, if data and parameters are those of the model, scales have a
    matrix, and no chain jumps.
    """
    own, to_own = Coordinates.of_fit(problem, state), partial(in_models, result)
    place = Place(problem, state, own, starts.theta, to_own)
    is_dear = are_modes_dear(result.cost.prices, len(starts.theta))
    if starts.jumps is not None or own.scale.ndim == 1 or not is_dear:
        return [place]
    other = own_problem(result, problem)
    if other is None:
        return [place]
    secants = Coordinates.of_fit(problem, state, to_own), to_own(starts.theta)
    return [Place(other, other.space.initial, *secants), place]


def draws_at(result: Any, latents: np.ndarray) -> dict[str, np.ndarray]:
    """Return the latent sites, constrained, at the model's own latents, ``(chains, draws, d)``."""
    found = numbers(result, latents.reshape(-1, latents.shape[2])).items()
    return {name: value.reshape(*latents.shape[:2], *value.shape[1:]) for name, value in found}
