"""Natural-gradient steps without units, in the time that there is."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ngvi.errors import check_flag
from ngvi.inference.arguments import check_seconds
from ngvi.inference.monitor import LOGGER
from ngvi.workflow.climb import Steps, climb_all
from ngvi.workflow.expected import points
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target

#: Seconds from which on a bar is shown.
BAR_AFTER = 2.0
#: Most steps, from a cavity, of a unit by points: k-hat says whether they were enough.
NUM_STEPS = 4
#: Most steps of a unit with predictors: a hundred change rows on a ridge by less than 0.03 nats.
NUM_STEPS_BY_PREDICTORS = 16


class Clock(NamedTuple):
    """The time and the gradients that single units may take, and whether steps are shown."""

    end: float = math.inf  #: Of :func:`time.perf_counter`.
    gradients: float = math.inf  #: Of the model; predictors take none.
    progress_bar: bool = False
    num_draws: int = DEFAULTS.num_joint  #: Draws of the posterior, each a value.

    @classmethod
    def of(cls, time_limit: float | None, gradients: float, progress_bar: bool) -> Clock:
        """Start a clock."""
        check_flag(progress_bar, "progress_bar")
        seconds = check_seconds(time_limit, "time_limit")
        return cls(time.perf_counter() + seconds, gradients, progress_bar)

    @property
    def is_over(self) -> bool:
        """True when the time is up."""
        return time.perf_counter() > self.end

    def num_units(self, gradients: float) -> int:
        """Return how many units may have this many gradients each."""
        return int(min(DEFAULTS.max_refits, self.gradients // gradients))


def gradients_of_steps(q: DenseGaussian) -> int:
    """Return about how many gradients the steps of a unit without predictors take."""
    return NUM_STEPS * len(points(q.dim)[0])


def steps_without(
    target: Target,
    q: DenseGaussian,
    left_out: list[np.ndarray],
    clock: Clock,
    starts: list[DenseGaussian] | None = None,
) -> list[Steps | None]:
    """Take natural-gradient steps without each of some units, while there is time.

    :param left_out: the elements of each.
    :param starts: Gaussians that the steps begin at; ``q`` by default.
    """
    each = q.dim if target.predictors is not None else len(points(q.dim)[0])
    size = max(1, DEFAULTS.numbers_at_once // max(1, len(target.weights) * each))
    found: list[Steps | None] = [None] * len(left_out)
    most = NUM_STEPS_BY_PREDICTORS if target.predictors is not None else NUM_STEPS
    if target.predictors is not None and left_out:
        start = time.perf_counter()
        target.under(DenseGaussian.several([q]), target.weights[None])
        price = most * len(left_out) * (time.perf_counter() - start)
        LOGGER.info("loo: steps without %d units take up to %.2g s", len(left_out), price)
    words = {"desc": "leave-one-out", "unit": "step", "delay": BAR_AFTER}
    with tqdm(total=most * len(left_out), disable=not clock.progress_bar, **words) as bar:
        for first in range(0, len(left_out), size):
            if clock.is_over:
                break
            some = slice(first, first + size)
            weights = np.repeat(target.weights[None], len(left_out[some]), 0)
            for own, elements in zip(weights, left_out[some], strict=True):
                own[elements] = 0.0
            begin = None if starts is None else starts[some]
            found[some] = climb_all(
                target, q, weights, starts=begin, most=most, end=clock.end, after=bar.update
            )
            bar.update(most * (first + len(weights)) - bar.n)
    return found
