"""The progress bar of a fit."""

from __future__ import annotations

import math
from typing import Any, Self

from tqdm.auto import tqdm


class Progress:
    """A bar with the bound, the step size and the distance to convergence; a context manager.

    A fit that converges before ``total`` steps leaves a bar that is full.

    :param total: the most steps there will be.
    :param enabled: whether anything is shown.
    """

    def __init__(self, total: int, enabled: bool = True) -> None:
        self.total, self.enabled = total, enabled
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self.enabled:
            self._bar = tqdm(total=self.total, desc="fit", unit="step")
        return self

    def update(self, step: int, loss: float, step_size: float, distance: float) -> None:
        """Show the state after a step.

        :param step: how many steps are done.
        :param loss: minus the bound, in nats.
        :param step_size: of the step, 1 being a whole natural-gradient step.
        :param distance: estimated distance of the bound to its optimum, in nats.
        """
        if self._bar is None:
            return
        # The bar redraws a few times a second, however often it is updated.
        self._bar.set_postfix_str(progress_text(loss, step_size, distance), refresh=False)
        self._bar.total = max(self._bar.total, step)
        self._bar.update(step - self._bar.n)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._bar is None:
            return
        if kind is None:
            self._bar.total = self._bar.n
        self._bar.refresh()
        self._bar.close()
        self._bar = None


def progress_text(loss: float, step_size: float, distance: float) -> str:
    """The words beside the bar."""
    to_go = f"{distance:.2g} nats to go" if math.isfinite(distance) else "far to go"
    return f"bound {-loss:,.2f}, step size {step_size:.2g}, {to_go}"
