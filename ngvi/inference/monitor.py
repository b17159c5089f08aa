"""Progress of a fit: the bar, the log, the user's function, the time limit.

The bar names the phase, and shows the best bound confirmed by independent draws; worse starts do
not lower it. Until one is confirmed, it shows the bound of the last step, marked as estimated from
few draws, which may be overfitted. The distance to the optimum is shown only on the way to the
first optimum. The last line is the result.
``logging.getLogger("ngvi")`` gets the same: phases and the result at ``INFO``, steps at ``DEBUG``.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Self

from tqdm.auto import tqdm

LOGGER = logging.getLogger("ngvi")

#: What a fit does, one after another.
OPTIMUM, OTHERS, VERIFYING = "optimum", "other optima", "verifying"
COMPONENTS, DRAWS = "components", "draws"
#: The bar: no share of a whole, which nobody knows.
FORMAT = "fit: {desc}, {n} steps, {elapsed}{postfix}"


class TimeLimitReached(Exception):  # noqa: N818
    """The user's time limit is reached: the best result so far is kept."""


class StoppedByCallback(Exception):  # noqa: N818
    """The user's function has ended the fit: the best result so far is kept."""


@dataclasses.dataclass
class Monitor:
    """Counts steps; a context manager that shows them.

    :ivar best: the highest bound that independent draws have confirmed, in nats.
    """

    max_steps: float = math.inf
    progress_bar: bool = False
    time_limit: float = math.inf  #: Time limit in seconds, from ``started`` on.
    callback: Callable[[int, float, float], object] | None = None
    started: float = dataclasses.field(default_factory=time.perf_counter)
    num_steps: int = 0
    best: float = -math.inf
    keep: Callable[[], None] | None = None  #: Called after each step, for a checkpoint.
    first_phase: str = "setting up"  #: First phase until the first step.
    _phase: str = ""
    _last: float = -math.inf  #: Bound over the draws of the last step.
    _bar: Any = None

    def __enter__(self) -> Self:
        if self.progress_bar:
            self._bar = tqdm(desc=self.first_phase, bar_format=FORMAT)
        self.phase = self.first_phase
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @property
    def phase(self) -> str:
        """Words for the part of the fit that is under way."""
        return self._phase

    @phase.setter
    def phase(self, words: str) -> None:
        if words == self._phase:
            return
        self._phase = words
        LOGGER.info("%s, after %d steps and %.1f s", words, self.num_steps, self.seconds)
        self._show(words, self._bound_in_words())

    @property
    def seconds(self) -> float:
        """Since the fit has begun."""
        return time.perf_counter() - self.started

    def after_step(self, loss: float, gap: float) -> None:
        """Count a step.

        :param loss: minus the bound before it, in nats.
        :param gap: what is left to the optimum, estimated in nats.
        :raises TimeLimitReached: if the time is up.
        :raises StoppedByCallback: if the user's function says so.
        """
        self.num_steps += 1
        if self.phase == self.first_phase:
            self.phase = OPTIMUM
        self._last = -loss
        LOGGER.debug("step %d: bound %.3f, %.2g nats to go", self.num_steps, -loss, gap)
        if self._bar is not None:
            # The bar redraws a few times a second, however often it is updated.
            is_first = self.phase == OPTIMUM and self.best == -math.inf
            is_near = is_first and 0 <= gap < 100  # or a number means nothing
            text = self._bound_in_words() + (f", about {gap:.2g} to go" if is_near else "")
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
        if self.keep is not None:
            self.keep()
        if self.callback is not None:
            try:
                is_over = self.callback(self.num_steps, -loss, gap) is True
            except StopIteration:
                is_over = True
            if is_over:
                raise StoppedByCallback
        if self.seconds > self.time_limit:
            raise TimeLimitReached

    def look_at_clock(self, needed: float) -> None:
        """Refuse what does not end in time; before the first step, what begins after the limit.

        :param needed: seconds of what is to begin, and of what must follow it.
        :raises TimeLimitReached: if there is less time left.
        """
        if self.seconds + (needed if self.num_steps else 0.0) > self.time_limit:
            raise TimeLimitReached

    def finish(self, verdict: str, bound: float, error: float) -> None:
        """Say what has come of it: the last line.

        :param error: the standard error of the bound, or NaN.
        """
        noise = f" ± {error:.2g}" if math.isfinite(error) else ""
        words = f"bound {bound:,.2f}{noise} nats"
        LOGGER.info(
            "%s after %d steps and %.1f s: %s", verdict, self.num_steps, self.seconds, words
        )
        self._show(verdict, words)

    def _bound_in_words(self) -> str:
        bound, how = (self.best, "") if self.best > -math.inf else (self._last, " by few draws")
        return f"bound {bound:,.2f} nats{how}" if math.isfinite(bound) else ""

    def _show(self, words: str, bound: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(words, refresh=False)
            self._bar.set_postfix_str(bound, refresh=False)
            self._bar.refresh()
