"""A call of ``fit``, but for what a package does with its PPL."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.errors import check_model
from ngvi.inference.api import account, found_optima, no_start, optimise
from ngvi.inference.arguments import GAUSSIAN, ModelCall
from ngvi.inference.batches import Batches
from ngvi.inference.data_passes import OverBatches
from ngvi.inference.draws.conditions import check_may_draw
from ngvi.inference.draws.diagnostics import undefined
from ngvi.inference.draws.drawn import made
from ngvi.inference.estimate import State
from ngvi.inference.first_look import check_seen, warn_of_unknown_sites, without_density
from ngvi.inference.mixture_fit import check_beside, check_density, mixed
from ngvi.inference.mode_centred import (
    NOT_TRIED,
    Attempt,
    alone,
    check_reparametrize,
    compared,
    may_gain,
)
from ngvi.inference.monitor import COMPONENTS, DRAWS
from ngvi.inference.multistart import MultiStart
from ngvi.inference.prices import FREE
from ngvi.inference.problem import Problem
from ngvi.inference.request import FitArguments, check_same_latents, check_start, warn_of_names
from ngvi.inference.saved.checkpoint import Checkpoint
from ngvi.inference.set_up import INIT_SCALE, Given, Ready, check_size
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import NOT_CONVERGED, Ending, Outcome
from ngvi.inference.verdict.validation import height
from ngvi.latents.local_blocks import NoLocalsError


class FitCall:
    """A call of ``fit`` from its arguments to its result; a package subclasses it.

    :param fit: the package's function.
    :param args: of the model, as ``kwargs``.
    """

    result_type: Any  #: The package's ``FitResult``.
    guide_type: Any  #: The package's ``NaturalGaussianGuide``.
    mode_centred_guide: Any  #: The package's ``ReparametrizedGaussianGuide``.
    mixture: Any  #: The package's family ``Mixture``.
    starts: tuple = ()  #: Strategies of a guide that ``fit`` makes.
    rng: np.random.Generator  #: Random numbers of the search.
    seed_in_words: str  #: The user's way to give a seed.
    first_phase = "setting up"  #: Phase before the first step.
    has_loops = False  #: True if the model runs a loop.

    def __init__(
        self, fit: Callable, model: Callable, args: tuple, kwargs: dict, given: FitArguments
    ) -> None:
        self.given = self.request = given = given.of_one_family(self.mixture)
        self.ppl = self.result_type._ppl
        self.model, self.args, self.kwargs = model, args, kwargs
        check_model(model)
        self.batches: Batches | None = None
        if given.batches is not None:
            self.batches = Batches(given.batches, args, kwargs, self.to_own)
            self.args, self.kwargs = self.batches.first()
        self.of_user = Given(model, self.args, self.kwargs, given.guide, self._guide)
        self.model_call = ModelCall(fit, model, self.args, self.kwargs, self.seed_in_words)
        self.model_call.check()
        self.monitor = given.monitor()
        self.monitor.first_phase = self.first_phase
        warn_of_names(fit, model, self.args, given)
        check_start(self.result_type, given)
        self.is_mixed = given.num_components != 1
        if self.is_mixed:
            check_beside(given)
        # A mixture takes locals as they are.
        self.reparametrize = False if self.is_mixed else check_reparametrize(given)
        if given.init_loc_fn is not None:
            self.starts = (given.init_loc_fn,)
        path = given.checkpoint
        self.checkpoint = None if path is None else Checkpoint(path)

    # -- what a package adds ----------------------------------------------------------

    @staticmethod
    def to_own(batch: Any) -> Any:
        """Return a batch as the model expects it."""
        return batch

    def set_up(self, given: Given, curvature: str = "auto") -> Ready:
        """Set up guide and problem at the first usable start."""
        raise NotImplementedError

    def by_modes(self, first: Ready) -> Attempt | None:
        """Return a fit with locals by their conditional modes, which may be all that is needed."""
        return alone(first, self)

    def set_up_by_modes(self, first: Ready) -> Ready:
        """Return the first set-up with a guide by conditional modes."""
        return self.set_up(
            self.of_user._replace(model=first.model, make_guide=self._guide_by_modes)
        )

    def _guide(self, model: Callable, init_loc_fn: Callable) -> Any:
        """Make the guide of a model, of the kind that ``init`` has if there is one."""
        family, init = self.given.family, self.given.init
        make = partial(self.guide_type, family=family) if init is None else init._gaussian().again
        return make(model, init_loc_fn=init_loc_fn, init_scale=INIT_SCALE)

    def _guide_by_modes(self, model: Callable, init_loc_fn: Callable) -> Any:
        return self.mode_centred_guide(model, init_loc_fn=init_loc_fn, init_scale=INIT_SCALE)

    def better(
        self, first: Ready, outcome: Outcome, at_first: Attempt | None
    ) -> tuple[Ready, Outcome]:
        """Return the better fit, of all latents or with locals by their conditional modes."""
        found = first, outcome
        if at_first is not None:
            found = compared(first, outcome, at_first, self)
        if self.reparametrize is True and found[0] is first and outcome.ending is None:
            warn(
                "reparametrize=True had no effect: conditional modes gave no better bound, and the "
                "Gaussian over all latents is kept. The report of "
                "fit(..., guide=ReparametrizedGaussianGuide(model)) says why."
            )
        return found

    def mixed(self, first: Ready, outcome: Outcome) -> tuple[Ready, Outcome]:
        """Search for several components, from the optima of one Gaussian."""
        self.monitor.phase = COMPONENTS
        return mixed(first, outcome, self)

    def set_up_mixture(self, first: Ready, count: int) -> Ready:
        """Return the first set-up with a mixture in place of its family."""
        family = self.mixture(first.guide.family, count)

        def make(model: Callable, init_loc_fn: Callable) -> Any:
            return self.guide_type(model, family, init_loc_fn=init_loc_fn, init_scale=INIT_SCALE)

        return self.set_up(self.of_user._replace(model=first.model, make_guide=make))

    def own_fields(self) -> dict[str, Any]:
        """Return fields of the result that only the package has."""
        return {}

    # -- the call ---------------------------------------------------------------------

    def ready(self) -> Ready:
        """Return the first set-up, checked."""
        given = self.given
        if (seen := self.ppl.look(self.model, self.args, self.kwargs)) is not None:
            check_seen(seen, self.model, given.allow_prior, self._log_densities)
            warn_of_unknown_sites(seen, given.init_loc_fn)
            self.has_loops = seen.has_loops
        self._begin_at_file()
        given = self.given
        try:
            ready = self.set_up(self.of_user, given.curvature)
        except Exception as error:
            own = getattr(self.model, "__qualname__", type(self.model).__name__)
            of_guide = getattr(given.guide, "_model_name", own)
            if of_guide != own:
                error.add_note(f"guide= was made for the model {of_guide}, and fit has {own}.")
            self.model_call.explain(error)
            raise
        parts = self.ppl.gaussians(ready.guide)
        check_size(parts, given.family, given.guide, self.request.init)
        if given.init is not None:
            check_same_latents(given.init, parts)
        if ready.has_start:
            is_alone, has_batches = parts == [ready.guide], self.batches is not None
            check_may_draw(given.draws, ready.problem, is_alone, has_batches)
        if self.is_mixed and ready.has_start:
            check_density(ready.problem)
            self.mixture(ready.guide.family)  # whether it can be a base
        return ready

    def optimise(
        self, problem: Problem, state: State | None = None, is_good: Callable | None = None
    ) -> Outcome:
        """Search, as the user asks for it; see :func:`~ngvi.inference.api.optimise`."""
        keep = None if self.checkpoint is None else self._keep
        return optimise(problem, self.rng, self.request, state, self.monitor, is_good, keep)

    def _begin_at_file(self) -> None:
        """Begin at the result in the checkpoint, if there is one, with the guide of this call."""
        file, kind = self.checkpoint, self.result_type
        saved = None if file is None else file.read(kind._ppl.library)
        if saved is None:
            return
        given = self.of_user
        if self.reparametrize and saved.meta["guide"]["name"] == self.mode_centred_guide.__name__:
            given = given._replace(make_guide=self._guide_by_modes)
        try:
            found = kind._files.result(kind, saved, given)
        except NoLocalsError as error:
            raise ValueError(f"The checkpoint is of another model: {error}") from error
        self.given = dataclasses.replace(self.given, init=found)
        self.reparametrize = False  # as with init=

    def _keep(self, problem: Any, search: MultiStart) -> None:
        """Write the best result so far into the checkpoint, if the last one is old."""
        if self.checkpoint is None or not self.checkpoint.is_due:
            return
        space, best = problem.space, search.so_far(validates=False)
        result = self.result_type(
            model=self.model,
            guide=space.guide,
            params=space.params(best.state),
            trace=best.trace or Trace(),
            verdict=NOT_CONVERGED,
            reason="it is the best result so far of a fit that goes on",
            cost=dataclasses.replace(problem.objective.cost),
            validation=best.validation if math.isfinite(best.validation.bound) else None,
            seconds=self.request.seconds,
            **self.own_fields(),
        )
        self.checkpoint.keep(result, best.validation.bound)

    def result(self, ready: Ready) -> Any:
        """Search, compare, and say what has come of it."""
        problem, outcome = ready.problem, None
        if self.batches is not None:
            objective = OverBatches(problem.objective, self.batches)
            problem = problem.replace(objective=objective)
        if not ready.has_start:
            outcome = no_start(problem)
        else:
            state = None
            if self.given.init is not None:
                state = problem.space.restored(self.given.init.params)
            elif self.given.guide is not None:
                state = problem.space.initial
            ready, outcome, problem = self._fitted(ready, problem, state)
        starts = outcome.search and outcome.search.starts  # none of a mixture
        has_time = outcome.ending is not Ending.TIME_LIMIT
        cut_off = starts.cut_off(has_time) if starts else ""
        parts, why = self.ppl.gaussians(ready.guide), ready.error or self._why_no_start(outcome)
        result = self.result_type(
            model=ready.model,
            args=self.args,
            kwargs=self.kwargs,
            guide=ready.guide,
            params=problem.space.params(outcome.optimum.state),
            optima=found_optima(outcome, problem),
            _draws=self.given.draws,
            **self.own_fields(),
            **account(outcome, problem, self.request, why),
        )
        self.keep_plan(result)
        self._draw(result, outcome, problem)
        # Of rows in batches, or of other guides, no one run is the density.
        if self.batches is None and parts == [ready.guide]:
            at_mean = height(problem, outcome.optimum.state)
            known = result.validation
            result.validation = known and dataclasses.replace(known, height=at_mean)
        if self.checkpoint is not None and outcome.ending is not Ending.NO_START:
            self.checkpoint.keep(result, math.inf)
        if cut_off:
            result.reason += f"; {cut_off}"
            warn(f"{cut_off[0].upper()}{cut_off[1:]}.")
        self.monitor.finish(result.verdict, result.bound, result.bound_error)
        return result

    def keep_plan(self, result: Any) -> None:
        """Let a result know what the fit has found out of the model."""

    def _draw(self, result: Any, outcome: Outcome, problem: Problem) -> None:
        """Make the draws of a result, the last phase."""
        if self.batches is not None:
            vars(result)["diagnostics"] = undefined("the rows came in batches")
        elif outcome.ending is Ending.NO_START:
            vars(result)["diagnostics"] = undefined("the fit has no start")
        elif outcome.is_endless and not problem.space.has_model_parameters:
            vars(result)["diagnostics"] = undefined("the posterior runs away without limit")
        left = self.request.time_limit - self.request.seconds
        is_long = result.cost.prices.program > max(left, FREE) or not math.isfinite(result.bound)
        if outcome.ending is Ending.TIME_LIMIT and is_long:
            why = "time_limit= is over before the draws: result.with_draws() judges them"
            vars(result)["diagnostics"] = undefined(why)
        if self.given.draws == GAUSSIAN or "diagnostics" in vars(result):
            return
        self.monitor.phase = DRAWS
        with contextlib.suppress(KeyboardInterrupt):  # they are made when they are asked for
            vars(result)["diagnostics"] = made(
                result, self.given.draws, left, has_ended=outcome.ending is None
            )
        result.seconds = self.request.seconds

    def _log_densities(self) -> dict[str, np.ndarray]:
        return self.ppl.log_densities(self.model, self.args, self.kwargs)

    def _why_no_start(self, outcome: Outcome) -> str:
        if outcome.ending is not Ending.NO_START:
            return ""
        try:
            return without_density(self._log_densities())
        except Exception:  # noqa: BLE001  it is only to say more
            return ""

    def _fitted(
        self, ready: Ready, problem: Problem, state: State | None
    ) -> tuple[Ready, Outcome, Problem]:
        """Return the guide that is kept, its outcome and its problem."""
        first, found = ready, None
        is_slow = self.has_loops and self.reparametrize == "auto" and may_gain(ready, "auto")
        if not is_slow:
            found = self.by_modes(ready)
            if found is not None and found.is_enough:
                return found.ready, found.outcome, found.ready.problem
        outcome = self.optimise(problem, state)
        outcome.by_modes = NOT_TRIED if is_slow else outcome.by_modes
        if self.is_mixed:
            ready, outcome = self.mixed(ready, outcome)
        else:
            ready, outcome = self.better(ready, outcome, found)
        return ready, outcome, problem if ready is first else ready.problem
