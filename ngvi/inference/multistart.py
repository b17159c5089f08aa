"""Several starts: the way to the best optimum, and the search for others.

- The guide's own start and the prior's (:mod:`~ngvi.inference.starts`) begin; the one that is
  highest after its first stage goes on.
- While the end is no optimum, a few other starts follow.
- From an optimum, others are looked for (:mod:`~ngvi.inference.exploration`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.exploration import Explorer
from ngvi.inference.map_ascent import map_ascents
from ngvi.inference.monitor import OTHERS, Monitor
from ngvi.inference.options import LEVELS, QUICK
from ngvi.inference.problem import Problem
from ngvi.inference.request import Request
from ngvi.inference.runs import Run, Runs, budget_left, same_bound
from ngvi.inference.search import Status
from ngvi.inference.starts import DRAW, GUIDE, MODE, Start, Starts
from ngvi.inference.stochastic import StochasticSearch
from ngvi.inference.verdict.checks import Finding, first_finding
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.validation import Validation


class MultiStart:
    """The starts of one fit; see the module."""

    def __init__(
        self, problem: Problem, rng: np.random.Generator, request: Request, monitor: Monitor
    ) -> None:
        options = request.options
        self.problem, self.options, self.monitor = problem, options, monitor
        num_groups = math.ceil(options.local.min_points / (2 * problem.space.dim + 1))
        self.starts = Starts(problem, rng, options, num_groups)
        self.runs = Runs(problem, rng, request, monitor)
        self.is_quick = request.effort == QUICK
        self.is_timed = math.isfinite(request.time_limit)
        self._explorer = Explorer(self.runs, self.starts, request.share)
        self.exploration = self._explorer.report

    def solve(
        self, state: State | None = None, is_good: Callable[[Optimum], bool] | None = None
    ) -> Optimum | None:
        """Return the best optimum that is found; None if the bound is finite at no start.

        :param state: begin here, and nowhere else.
        :param is_good: whether an optimum is worth a search for others. With this, what the first
            starts do not lead to is left to another search.
        """
        has_choice = state is None
        own = self.starts.own() if state is None else self.starts.usable(state, GUIDE)
        if own is None:
            return None
        if self.problem.objective.is_subsampled:
            search = StochasticSearch(self.runs.context, self.monitor, own.state)
            self.runs.current = run = Run(own.name, search)
            search.advance(self.runs.budget)
            self.runs.optima.append(self.runs.optimum(run))
            return self.runs.best
        if is_good is not None:
            if self._reach_at_once(own, has_choice) and is_good(self.runs.best) and has_choice:
                self._explore()
            return self.runs.best if self.runs.optima else None
        self._reach(own, has_choice)
        if has_choice:
            self._explore()
        return self.runs.best

    def _explore(self) -> None:
        best = self.runs.best
        jumps = best.validation.mismatch > self.runs.tolerance  # which ends the fit without a claim
        is_asked = self.options.other_optima and self._explorer.share > 0
        if is_asked and best.is_certified and not jumps:
            if self.is_timed:  # the claim is there, whenever the time ends
                self.check(best)
            self.monitor.phase = OTHERS
            self._explorer.explore()

    def check(self, optimum: Optimum) -> Finding | None:
        """Return what the checks find of an optimum, once."""
        if self.runs.checked[0] is not optimum.state:
            self.runs.checked = optimum.state, first_finding(self.runs.context, optimum)
        return self.runs.checked[1]

    def so_far(self, validates: bool = True) -> Optimum:
        """Return what there is before the end.

        :param validates: whether the model can still be asked.
        """
        runs, space = self.runs, self.problem.space
        if not validates:
            if runs.optima:
                return runs.best
            best = max(runs.waiting, key=lambda run: run.level, default=runs.current)
            if best is None:
                return Optimum(space.initial, Validation(-math.inf, math.nan))
            return Optimum(best.search.state, best.known, trace=best.search.trace)
        going = [] if runs.current is None else [runs.current]
        # What is unfinished takes no claim away from an optimum that has one.
        is_known = any(one.is_certified for one in runs.optima)
        for run in () if is_known else (*runs.waiting, *going):
            if not runs.optima or run.validation is not None or run is runs.current:
                runs.optima.append(runs.optimum(run))
        if not runs.optima:
            initial = Optimum(space.initial, Validation(-math.inf, math.nan), name=GUIDE)
            runs.optima.append(initial)
        return runs.best

    # -- the way to an optimum --------------------------------------------------------

    def _reach_at_once(self, own: Start, has_choice: bool) -> bool:
        """Follow the first starts, then the highest mode; return whether one is an optimum."""
        runs, most = self.runs, self.options.multi_start.first_steps
        for start in self._first_starts(own) if has_choice else [own]:
            runs.waiting.append(runs.coarse(start, most))
        best = runs.take_best()
        if not best.is_coarse and best.search.status is None:
            runs.coarse(best, most)
        if not best.is_coarse and (mode := next(self._other_starts(), None)) is not None:
            best = runs.coarse(mode, most)
        return best.is_coarse and runs.finish(best).is_certified

    def _reach(self, own: Start, has_choice: bool) -> None:
        """Follow starts until one comes to an optimum."""
        first, runs = self._first_starts(own) if has_choice else [own], self.runs
        most = self.options.multi_start.first_steps if has_choice else math.inf
        for start in first:
            runs.waiting.append(runs.coarse(start, most))
        end = runs.finish(runs.take_best())
        if has_choice and self.options.more_starts and end.status is not Status.UNBOUNDED:
            self._try_others()
        best = runs.best
        if best.status is None and budget_left(runs):  # left for others that have ended lower
            runs.optima.remove(best)
            runs.finish(Run(best.name, best.search, best.validation))

    def _first_starts(self, own: Start) -> list[Start]:
        """Return the guide's start, and the prior's where it is another."""
        first = [own]
        if self.options.prior_start and not self.is_quick and (prior := self.starts.of_prior()):
            first.append(prior)
        return first

    def _try_others(self) -> None:
        """Follow other starts while none has come to an optimum."""
        options, runs, others = self.options.multi_start, self.runs, self._other_starts()
        for _ in range(options.num_starts // 2):
            if runs.best.is_certified or runs.best.status is Status.CONTRADICTED:
                return
            if not budget_left(runs):
                return
            start = None if runs.waiting else next(others, None)
            if start is not None:
                runs.waiting.append(runs.coarse(start, options.first_steps))
            if not runs.waiting:
                return
            run, best = runs.take_best(), runs.best.validation
            if run.level + LEVELS.worth + 2 * run.known.error < best.lower:
                runs.optima.append(runs.optimum(run))
                continue
            end = runs.finish(run)
            # The same end twice for want of draws or along a ridge: no start is without.
            is_same = same_bound(best, end.validation, self.options.local.coarse_gap)
            if is_same and end.status in (Status.NOISE, Status.RISING):
                return

    def _other_starts(self) -> Iterator[Start]:
        """Modes to which ascents lead, the highest first, and in turn with them any points."""
        alike = self.starts.points(self.options.multi_start.num_starts)
        points = np.concatenate([self.starts.highest(2), alike])
        state = self.runs.best.state if self.runs.optima else self.problem.space.initial
        ends = map_ascents(self.problem, state, points, self.options.starts)
        self._explorer.led = list(zip(points, ends, strict=True))[len(points) - len(alike) :]
        ends = sorted(ends, key=lambda end: (not end.is_mode, -end.height))
        for end, point in zip(ends, points, strict=True):
            if math.isfinite(end.height):
                if start := self.starts.at(end.mean, MODE):
                    yield start
            if start := self.starts.at(point, DRAW):
                yield start
