"""Draws that a stage of a local search does not learn from."""

from __future__ import annotations

from ngvi.inference.estimate import Sample, State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem


class HeldOut:
    """Draws that a stage does not learn from.

    :ivar sample: these draws; none where the stage's cannot be overfitted.
    :ivar best: of the states that they have seen, the one that they like best.
    """

    def __init__(self, problem: Problem, start: State) -> None:
        self.problem, self.best = problem, start
        self.begin()

    def begin(self) -> None:
        """Begin a stage, without draws."""
        self.sample: Sample = []
        self._values: list[float] = []
        self._unlearnt = 0  # times in a row that they have gained too little

    def is_overfitted(self, state: State, gained: float) -> bool:
        """Return whether the bound rises over the draws of the stage alone.

        :param gained: over those, in nats, since the last time.
        """
        if not self.sample:
            return False
        values = self._values
        value = self.problem.objective.bound(state, self.sample).value
        if not values or value >= max(values):
            self.best = state
        values.append(value)
        if len(values) < 2 or gained < LEVELS.notable:
            return False
        learnt = (values[-1] - values[-2]) / gained
        self._unlearnt = 0 if learnt > LEVELS.negligible else self._unlearnt + 1
        return not learnt > -LEVELS.negligible or self._unlearnt > 1
