"""Several starts: the way to the best optimum, and the search for others.

- The guide's own start, the prior's and a mean-field run (:mod:`~ngvi.inference.starts`) begin; the
  one that is highest after its first stage goes on. Where none comes to the end of that, as with a
  network, others join, and halves of them go on with twice the steps (successive halving, Jamieson
  and Talwalkar, 2016).
- From an optimum, others are looked for. Points that are drawn alike, from the prior and a box,
ascend
  to modes of the log density. One that ends inside a known optimum's Gaussian has led to it. From
  another a run begins, and says to which optimum it leads.
- That ends when it is unlikely that as many starts again find a better one
  (:mod:`~ngvi.inference.optima`), or when the search for others has cost its share of what led to
  the best.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from ngvi.inference.by_values import search_by_values
from ngvi.inference.certificate import UNKNOWN, Certificate
from ngvi.inference.local_search import LocalSearch
from ngvi.inference.map_ascent import Ascent, KnownMode, map_ascents
from ngvi.inference.monitor import Monitor
from ngvi.inference.optima import Optimum, better_elsewhere
from ngvi.inference.options import FitOptions
from ngvi.inference.problem import Problem, State
from ngvi.inference.search import NO_PROGRESS, Search, Status
from ngvi.inference.starts import DRAW, GUIDE, MODE, Start, Starts
from ngvi.inference.stochastic import StochasticSearch
from ngvi.inference.validation import Validation, validate


@dataclasses.dataclass(eq=False)
class Run:
    """A search from one start, which waits or has ended."""

    name: str  #: of the start, in words
    search: Search
    validation: Validation | None = None  #: of its present state

    @property
    def level(self) -> float:
        """The bound by independent draws, or minus infinity."""
        return -math.inf if self.validation is None else self.validation.bound


@dataclasses.dataclass
class Exploration:
    """The search for other optima.

    :ivar num_starts: that were made, drawn alike.
    :ivar num_nowhere: of these, that have come to no optimum within a few steps.
    :ivar cost: in gradients.
    :ivar probability: that as many starts as one round has would find a better optimum.
    :ivar is_over: whether that is small enough.
    """

    num_starts: int = 0
    num_nowhere: int = 0
    cost: float = 0.0
    probability: float = 1.0
    is_over: bool = False


class MultiStart:
    """The starts of one fit; see the module.

    :param exploration: cost of the search for other optima, per cost of the way to the best.
    :param has_choice: whether the starts are left to the fit; else only the guide's begins.
    """

    def __init__(
        self,
        problem: Problem,
        rng: np.random.Generator,
        tolerance: float,
        options: FitOptions,
        monitor: Monitor,
        exploration: float = 1.0,
        has_choice: bool = True,
    ) -> None:
        self.problem, self.rng, self.tolerance = problem, rng, tolerance
        self.options, self.monitor = options, monitor
        self.has_choice = has_choice
        self.budget_per_cost = exploration
        num_groups = math.ceil(options.local.min_points / (2 * problem.space.dim + 1))
        self.starts = Starts(problem, rng, options, num_groups)
        self.runs: list[Run] = []  # that wait at their coarse ends
        self.optima: list[Optimum] = []
        self.exploration = Exploration()
        self.current: Run | None = None
        self._modes: list[tuple[Ascent, Optimum]] = []

    # -- all of it --------------------------------------------------------------------

    def solve(self, state: State | None = None) -> Optimum | None:
        """The best optimum that is found; None if the bound is finite at no start.

        :param state: begin here, and nowhere else.
        """
        own = self.starts.own() if state is None else self.starts.usable(state, GUIDE)
        if own is None:
            return None
        self._reach(own, alone=state is not None or not self.has_choice)
        if state is None and self.has_choice and self.budget_per_cost > 0:
            self._explore()
        return self.best

    @property
    def best(self) -> Optimum:
        """The optimum with the highest bound."""
        return max(self.optima, key=lambda one: one.rank(self.options.multi_start.same))

    def so_far(self, validates: bool = True) -> Optimum:
        """What there is before the end.

        :param validates: whether the model can still be asked.
        """
        if not validates:
            states = [one.state for one in self.optima] or [self.problem.space.initial]
            state = states[0] if self.current is None else self.current.search.state
            return Optimum(state, Validation(-math.inf, math.nan))
        found = list(self.optima)
        if self.current is not None:
            self.runs.append(self.current)
        for run in self.runs:
            if not found or run.validation is not None or run is self.current:
                found.append(self._optimum(run))
        if not found:
            initial = self.problem.space.initial
            found.append(Optimum(initial, Validation(-math.inf, math.nan), name=GUIDE))
        self.optima = found
        return self.best

    # -- the way to an optimum --------------------------------------------------------

    def _reach(self, own: Start, alone: bool) -> None:
        """Follow the first starts until one comes to an optimum."""
        if self.problem.objective.is_subsampled:
            self._finish(self._new_run(self._higher(own, alone), StochasticSearch))
            return
        first = [own]
        if not alone:
            if prior := self.starts.of_prior():
                first.append(prior)
            if self.problem.objective.groups.is_dear:
                highest = max(first, key=lambda start: start.value)
                if start := self.starts.mean_field(self.monitor, highest):
                    first.insert(0, start)
        most = math.inf if len(first) == 1 else self.options.multi_start.first_steps
        for start in first:
            self._coarse(start, most)
        if not alone and not any(map(_has_come_to_its_coarse_end, self.runs)):
            self._halve()
        self._finish(self._take_best())
        if not alone:
            self._try_others()
        self._persist()

    def _try_others(self) -> None:
        """Follow other starts while none has come to an optimum."""
        options, others = self.options.multi_start, self._other_starts()
        for _ in range(int(options.keep * options.num_starts)):
            if self.best.is_certified:
                return
            start = None if self.runs else next(others, None)
            if start is not None:
                self._coarse(start, options.first_steps)
            if self.runs:
                run = self._take_best()
                noise = 2 * math.hypot(self.best.validation.error, run.validation.error)
                if run.level > self.best.validation.bound - options.rough_gap - noise:
                    before = self.best
                    found = self._finish(run)
                    slack = self.options.local.coarse_gap
                    if same_bound(before.validation, found.validation, slack):
                        return  # the same end twice: noise or a ridge, which no start is without
                else:
                    self._lower(run)

    def _other_starts(self) -> Iterator[Start]:
        """Modes to which ascents lead, the highest first, and in turn with them any points."""
        count = self.options.multi_start.num_starts
        points = np.concatenate([self.starts.highest(2), self.starts.points(count)])
        ends = sorted(self._ascents(points), key=lambda end: (not end.is_mode, -end.height))
        if start := self.starts.high_point():
            yield start
        for end, point in zip(ends, points, strict=True):
            if math.isfinite(end.height):
                if start := self.starts.at(end.mean, MODE, end.is_mode):
                    yield start
            if start := self.starts.at(point, DRAW):
                yield start

    def _higher(self, own: Start, alone: bool) -> Start:
        """Of a model that sees minibatches."""
        if alone or not self.problem.objective.groups.is_dear:
            return own
        return self.starts.mean_field(self.monitor, own) or own

    def _coarse(self, start: Start, max_steps: float, max_cost: float = math.inf) -> Run:
        """A run at the end of its first stage."""
        run = self._new_run(start, LocalSearch)
        run.search.coarsen(max_cost, max_steps)
        return self._wait(run)

    def _halve(self) -> None:
        """More starts until one comes to its coarse end; if none does, the best half of them goes
        on with twice the steps, until two are left.
        """
        options, others = self.options.multi_start, self._other_starts()
        while len(self.runs) < options.num_starts:
            start = next(others, None)
            if start is None:
                break
            if _has_come_to_its_coarse_end(self._coarse(start, options.first_steps)):
                return
        steps = options.first_steps
        while len(self.runs) > 2:
            ranked = self._ranked()
            self.runs = ranked[: max(2, math.ceil(options.keep * len(ranked)))]
            self.optima += [self._optimum(run) for run in ranked[len(self.runs) :]]
            for run in list(self.runs):
                self._go_on_stochastically(run, steps)
            steps *= 2

    def _go_on_stochastically(self, run: Run, max_steps: int) -> None:
        """Some steps with few fresh draws from the end of a first stage."""
        self.current = run
        search = self._search(StochasticSearch, _best_state(run.search), run.search)
        search.most_groups = search.num_groups
        search.advance(max_steps=max_steps)
        run.search, run.validation = search, self._validated(search.state)
        search.most_groups = self.options.stochastic.max_groups
        search.resume()
        self.current = None

    def _take_best(self) -> Run:
        run = self._ranked()[0]
        self.runs.remove(run)
        return run

    def _finish(self, run: Run, max_cost: float = math.inf) -> Optimum:
        """The rest of a run."""
        self.current = run
        run.search.advance(max_cost)
        run.validation = self._validated(run.search.state)
        is_noisy = isinstance(run.search, StochasticSearch)
        if is_noisy and run.search.status is Status.OPTIMUM:
            self._certify(run, max_cost)
        return self._end(run)

    def _end(self, run: Run, by_values: bool = False) -> Optimum:
        optimum = self._optimum(run)
        optimum.by_values = by_values
        self.current = None
        return self._note(optimum)

    def _persist(self) -> None:
        """Go on from the best end with what is dear: fresh draws at every step, or values alone."""
        options, best = self.options.multi_start, self.best
        run = Run(best.name, best.search, best.validation)
        self.current = run
        if best.status in NO_PROGRESS and isinstance(run.search, LocalSearch):
            self._try_fresh_draws(run, options.max_persistence)
            self._end(run)
        if self._is_contradicted(run) and self._try_values(run, options.max_persistence):
            self._end(run, by_values=True)
        self.current = None

    def _try_fresh_draws(self, run: Run, max_cost: float) -> None:
        """Fresh draws at every step; the better end is kept."""
        before, old = run.search, run.validation
        search = self._search(StochasticSearch, _best_state(before), before)
        run.search = search
        search.advance(max_cost, max(self.monitor.max_steps // 4, 100))
        run.validation = self._validated(search.state)
        if search.status is Status.OPTIMUM:
            self._certify(run, max_cost)
        is_worse = old.lower > run.validation.bound and run.search.status is not Status.OPTIMUM
        if is_worse or not math.isfinite(run.validation.bound):
            run.search, run.validation = before, old

    def _certify(self, run: Run, max_cost: float) -> None:
        """Say what is left to an optimum that fresh draws at every step have found."""
        if self.problem.objective.is_subsampled:
            return
        search = self._search(LocalSearch, run.search.state, run.search)
        search.certify(max_cost)
        run.search, run.validation = search, self._validated(search.state)

    def _is_contradicted(self, run: Run) -> bool:
        """Whether values promise what gradients do not see."""
        if self.problem.objective.is_subsampled or run.validation is None:
            return False
        return run.validation.mismatch > self.tolerance and run.search.status is not None

    def _try_values(self, run: Run, max_cost: float) -> bool:
        """Go on by values alone; whether that has led higher."""
        search = search_by_values(
            self.problem, self.rng, self.tolerance, self.options, self.monitor, run.search, max_cost
        )
        validation = self._validated(search.state)
        if validation.lower < run.validation.lower:
            return False
        run.search, run.validation = search, validation
        return True

    # -- other optima -----------------------------------------------------------------

    def _explore(self) -> None:
        """Look for other optima, for a share of what led to the best."""
        options, cost = self.options.multi_start, self.problem.objective.cost
        if self.problem.objective.is_subsampled or not self.best.is_certified:
            return
        self.monitor.phase = "other optima"
        start, spent = cost.total, cost.total
        limit = start + self.budget_per_cost * spent + options.exploration_floor
        for run in self._ranked():
            if cost.total < limit:
                self.runs.remove(run)
                self._lead(run, limit - cost.total)
        while cost.total < limit and self.exploration.num_starts < options.max_starts:
            best = self.best
            if not self._begin_others(limit) or self._is_unlikely():
                break
            if self.best is not best:  # a better one: what led to it counts as well
                spent, start = cost.total, cost.total
                limit = max(limit, start + self.budget_per_cost * spent)
        self.exploration.cost = cost.total - spent
        self.exploration.is_over = self._is_unlikely()

    def _is_unlikely(self) -> bool:
        """Whether as many starts as one round has would hardly find a better optimum."""
        options = self.options.multi_start
        nowhere = self.exploration.num_nowhere
        num_optima = sum(one.count > 0 for one in self.optima) + (nowhere > 0)
        found = better_elsewhere(self.exploration.num_starts, num_optima, options.num_starts)
        self.exploration.probability = found
        return found <= options.unseen and self.best.count > 0

    def _begin_others(self, limit: float) -> bool:
        """One round of starts, drawn alike; whether there were any."""
        count = self.options.multi_start.num_starts
        if self.problem.space.has_model_parameters:
            return self._begin_with_other_parameters(count, limit)
        points = self.starts.points(count)
        if not self.exploration.num_starts:  # chosen for their height, they do not count
            highest = self.starts.highest(2)
            for point, end in zip(highest, self._ascents(highest), strict=True):
                self._led_by(point, end, limit)
        cost = self.problem.objective.cost
        for point, end in zip(points, self._ascents(points), strict=True):
            if math.isfinite(end.height) and (self._known(end) or cost.total < limit):
                self._count(self._led_by(point, end, limit))
        return len(points) > 0

    def _led_by(self, point: np.ndarray, end: Ascent, limit: float) -> Optimum | None:
        """The optimum to which a point leads.

        A run begins where the ascent has come to. If that is so high that it has hardly any mass,
        as in a funnel, it begins at the point, as broad as the prior.

        :param end: of the ascent from it.
        """
        known, cost = self._known(end), self.problem.objective.cost
        if known is not None or not cost.total < limit or not math.isfinite(end.height):
            return known
        if end.height - self._level(self.best) < self._spread():
            start = self.starts.at(end.mean, MODE, end.is_mode)
        else:
            start = self.starts.broad(point)
        known = None if start is None else self._follow(start, limit)
        if known is not None and end.is_mode:
            self._modes.append((end, known))
        return known

    def _spread(self) -> float:
        """The nats by which the log density of a Gaussian's draws is below its mode, and more."""
        return 10.0 + 0.5 * self.problem.space.dim

    def _follow(self, start: Start, limit: float) -> Optimum | None:
        """The optimum to which a start leads, if a few steps tell."""
        cost = self.problem.objective.cost
        steps = 2 * self.options.multi_start.first_steps
        run = self._coarse(start, steps, limit - cost.total)
        self.runs.remove(run)
        return self._lead(run, limit - cost.total)

    def _count(self, known: Optimum | None) -> None:
        """Count a start that has led to an optimum, or nowhere."""
        self.exploration.num_starts += 1
        if known is None:
            self.exploration.num_nowhere += 1
        else:
            known.count += 1

    def _begin_with_other_parameters(self, count: int, limit: float) -> bool:
        cost = self.problem.objective.cost
        own = Start(self.best.state, GUIDE)
        for _ in range(count):
            if cost.total >= limit or self._is_unlikely():
                break
            start = self.starts.other_parameters(own)
            if start is None:
                continue
            self._count(self._follow(start, limit))
        return True

    def _ascents(self, points: np.ndarray) -> list[Ascent]:
        """Uphill, in the coordinates of the best Gaussian where that is cheap."""
        space, options = self.problem.space, self.options.starts
        state = self.best.state if self.optima else space.initial
        factor = known = None
        if not len(points):
            return []
        if self.optima and space.dim <= options.max_whitened:
            draws, _ = space.draw(state, np.eye(space.dim))
            factor = (draws - space.mean(state)).T
            known = KnownMode.of(self.problem, state, factor)
        return map_ascents(self.problem, state, points, options, factor, known)

    def _known(self, end: Ascent) -> Optimum | None:
        """The optimum to which an ascent has led, if that is plain.

        A Gaussian as broad as the prior covers every narrow mode, and is the end of none that is
        far above it.
        """
        for optimum in sorted(self.optima, key=lambda one: -one.validation.lower):
            if optimum.is_certified and self._is_inside(optimum.state, end.mean):
                above = end.height - self._level(optimum)
                if not (end.is_mode and above > 2.0 + 0.25 * self.problem.space.dim):
                    return optimum
        for mode, optimum in self._modes:
            if end.is_mode and abs(mode.height - end.height) <= 0.1 + end.rounding:
                return optimum
        return None

    def _lead(self, run: Run, max_cost: float) -> Optimum | None:
        """The optimum to which a run leads, as far as it can be followed.

        :return: None if it is not known.
        """
        best, rough = self.best, self.options.multi_start.rough_gap
        if run.validation is None:
            run.validation = self._validated(run.search.state, coarsely=True)
        if not (math.isfinite(run.level) and run.validation.error < rough):
            return None
        gap = best.validation.bound - run.level
        noise = 2 * math.hypot(best.validation.error, run.validation.error)
        if gap > rough + noise:
            return self._lower(run)
        is_inside = self._is_inside(best.state, self.problem.space.mean(run.search.state))
        if is_inside and gap > -noise - self.options.multi_start.same:
            return best
        return self._followed(run, max_cost)

    def _followed(self, run: Run, max_cost: float) -> Optimum | None:
        """The optimum at the end of a run that may be as high as the best.

        That is known before it is as near to it as an optimum that is returned.
        """
        self.current, best, cost = run, self.best, self.problem.objective.cost
        same, limit = self.options.multi_start.same, cost.total + max_cost
        run.search.tolerance = max(self.tolerance, same)
        run.search.advance(max_cost)
        run.validation = self._validated(run.search.state)
        self.current = None
        if run.search.status is not Status.OPTIMUM:
            return None
        noise = math.hypot(best.validation.error, run.validation.error)
        is_higher = run.level > best.validation.bound + noise
        if same_bound(best.validation, run.validation, same) and not is_higher:
            return best
        if is_higher:
            self.current = run
            run.search.refine(self.tolerance, limit - cost.total)
            run.validation = self._validated(run.search.state)
        found = self._end(run)
        return found if found.is_certified else None

    def _lower(self, run: Run) -> Optimum | None:
        """Another optimum that is far below the best, or one that has been met before."""
        if not _has_come_to_its_coarse_end(run):
            return None  # it was on its way
        new, options = self._optimum(run), self.options.multi_start
        gap = self.best.validation.bound - new.validation.bound
        slack = max(self.options.local.coarse_gap, options.alike * gap)
        for one in self.optima:
            if same_bound(one.validation, new.validation, slack):
                return one
        self.optima.append(new)
        return new

    def _note(self, new: Optimum) -> Optimum:
        """Add an optimum, or let one of the same bound have what is new; return the one of both."""
        for one in self.optima:
            is_same = same_bound(one.validation, new.validation, self.options.multi_start.same)
            if is_same and one.is_certified == new.is_certified:
                if new.rank() > one.rank():
                    one.take(new)
                return one
        self.optima.append(new)
        return new

    # -- what is known of a state -----------------------------------------------------

    def _is_inside(self, state: State, point: np.ndarray) -> bool:
        """Whether a point is where a Gaussian's draws are."""
        dim, outside = self.problem.space.dim, self.options.multi_start.outside
        distance = self.problem.space.square_distance(state, point)
        return distance < dim + outside * math.sqrt(2 * dim) + outside

    def _level(self, optimum: Optimum) -> float:
        """The log density at the mean."""
        mean = self.problem.space.mean(optimum.state)
        return float(self.problem.objective.log_density(optimum.state, mean[None])[0])

    def _validated(self, state: State, coarsely: bool = False) -> Validation:
        """By independent draws, few of them to rank coarse ends."""
        if self.problem.objective.is_subsampled:
            return Validation(-self.current.search.trace.last_loss, math.nan)
        options = self.options.validation
        if coarsely:
            options = dataclasses.replace(options, max_draws=options.min_draws)
        found = validate(self.problem, state, self.rng, options)
        self.monitor.best = max(self.monitor.best, found.lower)
        return found

    def _optimum(self, run: Run) -> Optimum:
        if run.validation is None:
            run.validation = self._validated(run.search.state)
        search = run.search
        certificate = search.certificate if search.status else Certificate(search.gap, math.inf)
        return Optimum(
            search.state,
            run.validation,
            certificate or UNKNOWN,
            search.status,
            run.name,
            trace=search.trace,
            search=search,
        )

    # -- runs -------------------------------------------------------------------------

    def _new_run(self, start: Start, kind: type[Search]) -> Run:
        run = Run(start.name, self._search(kind, start.state))
        self.current = run
        return run

    def _search(self, kind: type[Search], state: State, before: Search | None = None) -> Search:
        trace = None if before is None else before.trace
        options = self.tolerance, self.options, self.monitor
        return kind(self.problem, self.rng, *options, state, trace)

    def _wait(self, run: Run) -> Run:
        self.runs.append(run)
        self.current = None
        return run

    def _ranked(self) -> list[Run]:
        """Runs that wait, the best first."""
        if len(self.runs) > 1 or self.optima:  # the only one needs no rank
            for run in self.runs:
                if run.validation is None:
                    run.validation = self._validated(run.search.state, coarsely=True)
        return sorted(self.runs, key=lambda run: -run.level)


def _has_come_to_its_coarse_end(run: Run) -> bool:
    """Whether its first stage has ended at the optimum of its draws."""
    search = run.search
    is_over = isinstance(search, LocalSearch) and search.coarse_state is not None
    return is_over and search.status is None


def _best_state(search: Search) -> State:
    """The end of a search, or the state that draws not learnt from like best."""
    return search.best if isinstance(search, LocalSearch) else search.state


def same_bound(one: Validation, other: Validation, slack: float) -> bool:
    """Whether two bounds are the same but for noise.

    :param slack: in nats.
    """
    return abs(one.bound - other.bound) < slack + 2 * math.hypot(one.error, other.error)
