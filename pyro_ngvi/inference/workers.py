"""``fit`` on several workers: the first decides, and all evaluate, each on its own rows.

The bound of a worker is one of all rows, by the scale of its plate. So every answer of an objective
is the mean over workers of their answers to the same question: values, natural gradients and
gradients are linear in the log density. The first worker asks the others what its search asks it;
neither clock nor rounding can lead them to different decisions, and only one of them needs a
checkpoint, a progress bar or a callback.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from pyro import poutine

from ngvi.inference.data_passes import of_parts, parts_of
from ngvi.inference.estimate import Estimate, Sample, State
from ngvi.inference.problem import Forwarding, Problem
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.parallel.rows import (
    HINT,
    SeesRows,
    check_disjoint,
    shared_plates,
    shares,
    visited_elements,
)
from pyro_ngvi.parallel.workers import SEE, WorkerLostError, Workers
from pyro_ngvi.tracing.messengers import quiet, repeatable_noise

#: What the first worker says instead of a question.
DONE, FAILED = "done", "failed"
#: What a worker says before an answer. An interruption is the first one's own affair.
ANSWERS, RAISES, INTERRUPTED = 0.0, 1.0, 2.0


def shared(set_up: Callable[[], Any], workers: Workers) -> Any:
    """What was set up, with an objective that answers for all workers.

    :param set_up: sets up guide and problem, of this worker's rows.
    :raises ValueError: if the workers' models do not fit together, or do not see all rows.
    """
    found = []

    def summary() -> dict[str, Any]:
        found.append(set_up())
        return _summary(found[0])

    said = workers.agree(summary)
    (ready,) = found
    weight = _weights(said)[workers.rank]
    problem, space = ready.problem, ready.problem.space
    problem.objective.estimate_as(*said[0]["estimator"])
    arrays = workers.object_of_first(space.arrays(space.initial))
    space.initial = space.of_arrays(arrays)
    shared_by_all = SharedObjective(problem, workers, weight)
    return ready._replace(
        problem=problem.replace(objective=shared_by_all),
        has_start=all(one["has_start"] for one in said),
    )


def _summary(ready: Any) -> dict[str, Any]:
    """What the workers compare of their models.

    :raises ValueError: if a plate draws some of the rows.
    :raises NotImplementedError: for a family whose answers cannot be added up.
    """
    seen, objective, space = SeesRows(ready.model), ready.problem.objective, ready.problem.space
    with repeatable_noise(), quiet(), poutine.block():
        trace = poutine.trace(ready.guide).get_trace(*objective.args, **objective.kwargs)
        poutine.replay(seen, trace=trace)(*objective.args, **objective.kwargs)
    if objective.is_subsampled:
        raise ValueError(
            "fit on several workers wants all rows, and a plate of the model draws some. "
            + HINT.format(plate=next(iter(seen.parts)))
        )
    if any(isinstance(family, LowRankPrecision) for family in space.initial.families):
        raise NotImplementedError(
            "fit on several workers does not support family='low_rank', whose natural "
            "gradients cannot be added up: take SVI with DataParallel(NaturalELBO()), or "
            "family='diagonal'."
        )
    return {
        "parts": seen.parts,
        "visited": visited_elements(trace),
        "has_start": ready.has_start,
        "shapes": [(a.shape, str(a.dtype)) for a in space.arrays(space.initial)],
        "estimator": (objective.estimator, objective.groups),
    }


def _weights(said: list[dict[str, Any]]) -> list[float]:
    """The workers' shares of the mean, by their summaries.

    :raises ValueError: if their models do not fit together, or do not see all rows.
    """
    shapes = said[0]["shapes"]
    for rank, one in enumerate(said):
        if one["shapes"] != shapes:
            raise ValueError(
                f"Worker {rank} has parameters of shapes {one['shapes']}, and worker 0 of "
                f"{shapes}: all latents and parameters must be the same for all workers, which "
                "share rows of data only."
            )
    plates = shared_plates([one["parts"] for one in said])
    check_disjoint([one["visited"] for one in said])
    fractions = np.array([[one["parts"][name].fraction for name in plates] for one in said])
    for plate, covered in zip(plates, fractions.sum(0), strict=True):
        if not math.isclose(covered, 1.0):
            raise ValueError(
                f"The workers see {100 * covered:.4g}% of the rows of plate '{plate}' together, "
                "and fit wants all of them, once. For minibatches take SVI with DataParallel(...)."
            )
    return [float(share) for share in shares(plates, fractions)]


class SharedObjective(Forwarding):
    """An objective of all workers' rows."""

    def __init__(self, problem: Problem, workers: Workers, weight: float) -> None:
        super().__init__(problem.objective)
        self._space, self._workers, self._weight = problem.space, workers, weight

    # -- the first worker asks --------------------------------------------------------

    def bound(self, state: State, sample: Sample) -> Estimate:
        return self._ask("bound", state, sample)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._ask("gradient", state, theta)
        return values, gradients

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        return self._ask("log_density", state, theta)[0]

    def in_double(self, state: State, theta: np.ndarray) -> None:
        """Not of all workers' rows."""

    def finished(self, search: Callable[[], Any]) -> Any:
        """What the search of the first worker comes to, for all of them.

        :param search: gives an outcome; only the first worker's is called.
        """
        workers, space = self._workers, self._space
        if workers.rank:
            outcome, arrays = self._serve()
            outcome.optimum.state = space.of_arrays(arrays)
            space.write(outcome.optimum.state)
            return outcome
        try:
            outcome = search()
        except WorkerLostError:
            raise
        except BaseException:
            workers.object_of_first((FAILED, None, None))
            raise
        workers.object_of_first(
            (DONE, space.arrays(outcome.optimum.state), outcome.without_states())
        )
        return outcome

    def _ask(self, name: str, state: State, about: Any) -> Any:
        self._workers.object_of_first((name, self._space.arrays(state), about))
        return self._answer(name, state, about)

    # -- the others answer ------------------------------------------------------------

    def _serve(self) -> tuple[Any, list[np.ndarray]]:
        while True:
            name, arrays, about = self._workers.object_of_first(None)
            if name == DONE:
                return about, arrays
            if name == FAILED:
                self._workers.check([SEE])
            self._answer(name, self._space.of_arrays(arrays), about)

    def _answer(self, name: str, state: State, about: Any) -> Any:
        """The mean over the workers of their answers."""
        workers, function = self._workers, getattr(self.inner, name)
        try:
            answer = function(state, about)
        except BaseException as error:
            is_error = isinstance(error, Exception)
            workers.table([RAISES if is_error else INTERRUPTED])
            raise
        said = workers.table([ANSWERS])[:, 0]
        workers.check([SEE if word == RAISES else None for word in said])
        if (said == INTERRUPTED).any():
            return None  # of which the one who has asked has no more use
        parts = [np.asarray(part, float) for part in parts_of(answer)]
        total = workers.total_of_array(self._weight * np.concatenate([p.ravel() for p in parts]))
        split = np.split(total, np.cumsum([part.size for part in parts])[:-1])
        return of_parts(answer, [s.reshape(p.shape) for s, p in zip(split, parts, strict=True)])
