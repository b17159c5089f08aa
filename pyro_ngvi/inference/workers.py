"""``fit`` on several workers: the first decides, and all evaluate, each on its own rows.

The bound of a worker is one of all rows, by the scale of its plate. So every answer of an evaluator
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

from ngvi.inference.batches import of_parts, parts_of
from ngvi.inference.engine import Around, Draws, Engine, Measured, Place
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
    """What was set up, with an engine that answers for all workers.

    :param set_up: sets up guide and engine, of this worker's rows.
    :raises ValueError: if the workers' models do not fit together, or do not see all rows.
    """
    found = []

    def summary() -> dict[str, Any]:
        ready = set_up()
        engine, seen = ready.engine, SeesRows(ready.model)
        evaluator, parameters = engine.evaluator, engine.parameters
        with repeatable_noise(), quiet(), poutine.block():
            trace = poutine.trace(ready.guide).get_trace(*evaluator.args, **evaluator.kwargs)
            poutine.replay(seen, trace=trace)(*evaluator.args, **evaluator.kwargs)
        if evaluator.is_subsampled:
            raise ValueError(
                "fit on several workers wants all rows, and a plate of the model draws some. "
                + HINT.format(plate=next(iter(seen.parts)))
            )
        if any(isinstance(family, LowRankPrecision) for family in parameters.initial.families):
            raise NotImplementedError(
                "fit on several workers does not support family='low_rank', whose natural "
                "gradients cannot be added up: take SVI with DataParallel(NaturalELBO()), or "
                "family='diagonal'."
            )
        found.append(ready)
        return {
            "parts": seen.parts,
            "visited": visited_elements(trace),
            "has_start": ready.has_start,
            "kinds": [(a.shape, str(a.dtype)) for a in parameters.arrays(parameters.initial)],
            "estimator": (evaluator.curvature, evaluator.groups),
        }

    said = workers.agree(summary)
    (ready,) = found
    for rank, one in enumerate(said):
        if one["kinds"] != said[0]["kinds"]:
            raise ValueError(
                f"Worker {rank} has parameters of shapes {one['kinds']}, and worker 0 of "
                f"{said[0]['kinds']}: all latents and parameters must be the same for all "
                "workers, which share rows of data only."
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
    evaluator, parameters = ready.engine.evaluator, ready.engine.parameters
    evaluator.estimate_as(*said[0]["estimator"])
    arrays = workers.object_of_first(parameters.arrays(parameters.initial))
    parameters.initial = parameters.of_arrays(arrays)
    weight = float(shares(plates, fractions)[workers.rank])
    engine = ready.engine._replace(evaluator=Evaluator(ready.engine, workers, weight))
    return ready._replace(engine=engine, has_start=all(one["has_start"] for one in said))


class Evaluator(Around):
    """An evaluator of all workers' rows."""

    is_dear = False  # places of independent latents are not sent

    def __init__(self, engine: Engine, workers: Workers, weight: float) -> None:
        super().__init__(engine.evaluator)
        self._parameters, self._workers, self._weight = engine.parameters, workers, weight

    # -- the first worker asks --------------------------------------------------------

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        return self._ask("measure", place, draws)

    def measure_values(self, place: Place, draws: list[Draws]) -> Measured:
        return self._ask("measure_values", place, draws)

    def values_and_gradients(
        self, place: Place, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._ask("values_and_gradients", place, theta)
        return values, gradients

    def values(self, place: Place, theta: np.ndarray) -> np.ndarray:
        return self._ask("values", place, theta)[0]

    def values_in_double(self, place: Place, theta: np.ndarray) -> None:
        """Not of all workers' rows."""

    def finished(self, search: Callable[[], Any]) -> Any:
        """What the search of the first worker comes to, for all of them.

        :param search: gives an outcome; only the first worker's is called.
        """
        workers, parameters = self._workers, self._parameters
        if workers.rank:
            outcome, arrays = self._serve()
            outcome.place = parameters.of_arrays(arrays)
            parameters.write(outcome.place)
            return outcome
        try:
            outcome = search()
        except WorkerLostError:
            raise
        except BaseException:
            workers.object_of_first((FAILED, None, None))
            raise
        place, outcome.place, outcome.rough = outcome.place, None, None
        workers.object_of_first((DONE, parameters.arrays(place), outcome))
        outcome.place = place
        return outcome

    def _ask(self, name: str, place: Place, about: Any) -> Any:
        self._workers.object_of_first((name, self._parameters.arrays(place), about))
        return self._answer(name, place, about)

    # -- the others answer ------------------------------------------------------------

    def _serve(self) -> tuple[Any, list[np.ndarray]]:
        while True:
            name, arrays, about = self._workers.object_of_first(None)
            if name == DONE:
                return about, arrays
            if name == FAILED:
                self._workers.check([SEE])
            self._answer(name, self._parameters.of_arrays(arrays), about)

    def _answer(self, name: str, place: Place, about: Any) -> Any:
        """The mean over the workers of their answers."""
        workers, function = self._workers, getattr(self._inner, name)
        try:
            answer = function(place, about)
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
