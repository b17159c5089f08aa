"""What happens after each step of a fit: the progress bar, the user's function, the time limit."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Self

from tqdm.auto import tqdm


class TimeLimitReached(Exception):  # noqa: N818
    """The user's time limit is reached."""


@dataclasses.dataclass
class Monitor:
    """Counts steps; a context manager that shows them.

    :ivar phase: what the fit is doing, in a word or two.
    :ivar best: the highest bound that independent draws have confirmed, in nats.
    """

    max_steps: int = 1000
    progress_bar: bool = False
    time_limit: float = math.inf  #: in seconds, from ``started`` on
    callback: Callable[[int, float, float], object] | None = None
    started: float = dataclasses.field(default_factory=time.perf_counter)
    num_steps: int = 0
    phase: str = "optimum"
    best: float = -math.inf
    _bar: Any = None

    def __enter__(self) -> Self:
        if self.progress_bar:
            self._bar = tqdm(total=self.max_steps, desc="fit", unit="step")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._bar is None:
            return
        if kind is None:
            self._bar.total = self._bar.n
        self._bar.refresh()
        self._bar.close()
        self._bar = None

    def after_step(self, loss: float, step_size: float, gap: float) -> None:
        """Count a step.

        :param loss: minus the bound before it, in nats.
        :param gap: what is left to the optimum, estimated in nats.
        :raises TimeLimitReached: if the time is up.
        """
        self.num_steps += 1
        if self._bar is not None:
            # The bar redraws a few times a second, however often it is updated.
            text = progress_text(self.phase, max(-loss, self.best), step_size, gap)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.total = max(self._bar.total, self.num_steps)
            self._bar.update(1)
        if self.callback is not None:
            self.callback(self.num_steps, -loss, gap)
        if time.perf_counter() - self.started > self.time_limit:
            raise TimeLimitReached


def progress_text(phase: str, bound: float, step_size: float, gap: float) -> str:
    """The words beside the bar."""
    left = f", {gap:.2g} nats to go" if gap < 1e6 else ""
    return f"{phase}: bound {bound:,.2f}, step size {step_size:.2g}{left}"
