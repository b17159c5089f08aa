"""Runs of searches, and what is known of their ends."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.local_search import LocalSearch
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.request import Request
from ngvi.inference.search import NO_PROGRESS, Context, Status
from ngvi.inference.starts import Start
from ngvi.inference.verdict.certificate import Certificate
from ngvi.inference.verdict.checks import Finding
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.runaway import runaway
from ngvi.inference.verdict.validation import Validation, validate

#: Squared distance, in standard deviations, beyond which a Gaussian has hardly any density.
FAR = -2.0 * math.log(LEVELS.tiny)


@dataclasses.dataclass(eq=False)
class Run:
    """A search from one start, which waits or has ended."""

    name: str  #: Name of the start, in words.
    search: Any  #: A ``LocalSearch``, or over minibatches a ``StochasticSearch``.
    validation: Validation | None = None  #: Validation of its present state.

    @property
    def known(self) -> Validation:
        """Validation of the run, which knows nothing if there were no independent draws."""
        return self.validation or Validation(-math.inf, math.nan)

    @property
    def level(self) -> float:
        """The bound by independent draws, or minus infinity."""
        return self.known.bound

    @property
    def is_coarse(self) -> bool:
        """Return whether its first stage has ended at the optimum of its draws."""
        return self.search.coarse_state is not None and self.search.status is None


class Runs:
    """The runs of one fit.

    :ivar waiting: at their coarse ends.
    :ivar optima: where others have ended.
    :ivar current: the one that is going on, if any.
    :ivar budget: the cost beyond which nothing new begins without an optimum.
    :ivar checked: the state that has been checked, and what was found.
    """

    def __init__(
        self, problem: Problem, rng: np.random.Generator, request: Request, monitor: Monitor
    ) -> None:
        self.problem, self.rng, self.monitor = problem, rng, monitor
        self.tolerance, self.options = request.tolerance, request.options
        self.waiting: list[Run] = []
        self.optima: list[Optimum] = []
        self.current: Run | None = None
        self.checked: tuple[State | None, Finding | None] = None, None
        self.budget = self.options.multi_start.gradient_budget * max(1.0, request.share)

    @property
    def context(self) -> Context:
        """Everything that a search or a check needs besides a state."""
        return Context(self.problem, self.rng, self.tolerance, self.options)

    @property
    def best(self) -> Optimum:
        """The optimum with the highest bound."""
        return max(self.optima, key=lambda one: one.rank(LEVELS.same))

    # -- one run ----------------------------------------------------------------------

    def coarse(self, start: Start | Run, max_steps: float, max_cost: float = math.inf) -> Run:
        """Take a start, or a run, to the end of its first stage or of its steps."""
        if isinstance(start, Start):
            start = Run(start.name, LocalSearch(self.context, self.monitor, start.state))
        self.current = run = start
        run.validation = None
        run.search.coarsen(max_cost, max_steps)
        self.current = None
        return run

    def finish(self, run: Run) -> Optimum:
        """Take a run to its end, whose last stages may cost as much as the way there."""
        self.current = run
        if run.search.status is None and not run.is_coarse:
            self.coarse(run, math.inf, budget_left(self))
            self.current = run
        if run.is_coarse:
            if not self.optima and not self.problem.space.has_model_parameters:
                self.problem.objective.begin_near(self.problem.space.mean(run.search.state))
            run.search.advance(max(self.problem.objective.cost.total, budget_left(self)))
        return self._known_end(run)

    def refine(self, run: Run, max_cost: float = math.inf) -> Optimum:
        """Take a run to the fit's tolerance that has ended at a greater one."""
        self.current = run
        run.search.refine(self.tolerance, max_cost)
        return self._known_end(run)

    def _known_end(self, run: Run) -> Optimum:
        run.validation = self.validated(run.search.state)
        is_stuck = run.search.status in NO_PROGRESS and self.options.checks
        if is_stuck and runaway(self.problem, run.search.state):
            run.search.status = Status.UNBOUNDED
        return self.end(run)

    def end(self, run: Run) -> Optimum:
        """Note where a run has ended."""
        optimum = self.optimum(run)
        if run.search.status is not None:
            run.search.release()
        self.current = None
        return self.note(optimum)

    # -- what is known of runs --------------------------------------------------------

    def ranked(self) -> list[Run]:
        """Return runs that wait, the best first."""
        if len(self.waiting) > 1 or self.optima:  # the only one needs no rank
            for run in self.waiting:
                if run.validation is None:
                    run.validation = self.validated(run.search.state, coarsely=True)
        return sorted(self.waiting, key=lambda run: -run.level)

    def take_best(self) -> Run:
        """Return the one that waits with the highest bound."""
        run = self.ranked()[0]
        self.waiting.remove(run)
        return run

    def validated(self, state: State, coarsely: bool = False) -> Validation:
        """Validate a state by independent draws, few of them to rank ends of first stages."""
        if self.problem.objective.is_subsampled:
            assert self.current is not None
            return Validation(-self.current.search.trace.last_loss, math.nan)
        options = self.options.validation
        options = options.coarse() if coarsely else options
        if not self.options.checks:
            options = dataclasses.replace(options, in_double=False)
        found = validate(self.problem, state, self.rng, options, self.tolerance)
        self.monitor.best = max(self.monitor.best, found.lower)
        return found

    def optimum(self, run: Run) -> Optimum:
        """Return the optimum at the present state of a run."""
        if run.validation is None:
            run.validation = self.validated(run.search.state)
        search = run.search
        certificate = search.certificate if search.status else Certificate(search.gap, math.inf)
        return Optimum(
            search.state,
            run.validation,
            certificate,
            search.status,
            run.name,
            trace=search.trace,
            search=search,
        )

    def note(self, new: Optimum) -> Optimum:
        """Add an optimum, or let one of the same bound have what is new; return the one of both."""
        for one in self.optima:
            is_same = same_bound(one.validation, new.validation, LEVELS.same)
            if is_same and one.is_certified == new.is_certified:
                return self.joined(one, new)
        self.optima.append(new)
        return new

    def joined(self, one: Optimum, new: Optimum) -> Optimum:
        """Let an optimum have what is new of the same bound: an image of it, or a better end."""
        known = one, *one.images
        apart = [are_apart(self.problem, each.state, new.state) for each in known]
        if new.is_certified and all(apart):
            one.images.append(new)
        elif new.rank() > one.rank() and not apart[0]:
            one.take(new)
        return one

    def is_inside(self, state: State, point: np.ndarray) -> bool:
        """Return whether a point is where a Gaussian's draws are."""
        dim, outside = self.problem.space.dim, LEVELS.certain
        distance = self.problem.space.square_distance(state, point)
        return distance < dim + outside * math.sqrt(2 * dim) + outside

    def level(self, optimum: Optimum) -> float:
        """Return the log density at the mean."""
        mean = self.problem.space.mean(optimum.state)
        return float(self.problem.objective.log_density(optimum.state, mean[None])[0])


def budget_left(runs: Runs) -> float:
    """Return what may be spent before something comes to an optimum."""
    return max(0.0, runs.budget - runs.problem.objective.cost.total)


def are_apart(problem: Problem, one: State, other: State) -> bool:
    """Return whether two Gaussians hold different parts of the posterior.

    Each mean is where the other Gaussian has hardly any density, as far as the means say, and the
    model's density is lower between them: along a ridge both may be ends of one search. Angles are
    compared after as many turns.
    """
    space = problem.space
    means = [space.mean(state) for state in (one, other)]
    turns = _turns(problem, one, means[1] - means[0])
    pairs = (one, means[1] - turns), (other, means[0] + turns)
    if any(space.square_distance(*pair) < FAR for pair in pairs):
        return False
    places = np.stack([means[0], means[1] - turns, 0.5 * (means[0] + means[1] - turns)])
    heights = [float(problem.objective.log_density(one, place[None])[0]) for place in places]
    return heights[2] < min(heights[:2]) - LEVELS.notable


def _turns(problem: Problem, state: State, apart: np.ndarray) -> np.ndarray:
    """Return the half turns of angles in a distance, or zero.

    They leave the density as it is at all draws, and so do twice as many, and those back: of two
    modes that are as far from each other one would lead to where there is none.
    """
    turns = math.pi * np.round(apart / math.pi)
    if not turns.any():
        return turns
    noise = np.random.default_rng(0).standard_normal((10, problem.space.noise_dim))
    theta, _ = problem.space.draw(state, noise)
    places = np.concatenate([theta + times * turns for times in (0, 1, 2, -1)])
    heights = problem.objective.log_density(state, places).reshape(4, -1)
    rounding = LEVELS.rounding_units * problem.rounding(np.abs(heights).max())
    return turns * bool(np.ptp(heights, 0).max() < LEVELS.tiny + rounding)


def same_bound(one: Validation, other: Validation, slack: float) -> bool:
    """Return whether two bounds are the same but for noise.

    :param slack: in nats.
    """
    return abs(one.bound - other.bound) < slack + 2 * math.hypot(one.error, other.error)
