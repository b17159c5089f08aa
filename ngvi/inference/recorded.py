"""An objective whose answers are in the file of a checkpoint, or get there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ngvi.inference.checkpoint import Checkpoint
from ngvi.inference.data_passes import parts_of
from ngvi.inference.estimate import Direction, Estimate, Sample, State
from ngvi.inference.problem import Forwarding, Problem
from ngvi.inference.records import Arrays


def recorded(problem: Problem, checkpoint: Checkpoint) -> Problem:
    """A problem whose answers are in the file, or get there."""
    return problem.replace(objective=_Recorded(problem, checkpoint))


class _Recorded(Forwarding):
    """An objective that looks into the file first."""

    def __init__(self, problem: Problem, checkpoint: Checkpoint) -> None:
        super().__init__(problem.objective)
        self._space, self._checkpoint = problem.space, checkpoint

    def bound(self, state: State, sample: Sample) -> Estimate:
        return self._estimate("bound", state, sample)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._parts("gradient", _of_points(theta), state, theta)
        return values, gradients

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        question = {**_of_points(theta), "mean": self._space.mean(state)}
        return self._parts("log_density", question, state, theta)[0]

    def _estimate(self, name: str, state: State, sample: Sample) -> Estimate:
        question = {"seeds": np.array([group.seed for group in sample])}
        question["mean"] = self._space.mean(state)
        values, naturals, natural, gradient, *own = self._parts(name, question, state, sample)
        return Estimate(values, naturals, Direction(natural, gradient, own))

    def _parts(self, name: str, question: Arrays, *arguments: Any) -> list[np.ndarray]:
        """The arrays of an answer."""

        def ask() -> Arrays:
            found = parts_of(getattr(self.inner, name)(*arguments))
            return {str(i): np.asarray(part, order="C") for i, part in enumerate(found)}

        question = {"name": np.array(name), **question}
        return list(self._checkpoint.answer(question, ask, self.cost).values())


def _of_points(theta: np.ndarray) -> Arrays:
    """By what points are known, without all of their numbers."""
    return {"count": np.array(len(theta)), "first": theta[0], "points": theta.mean(0)}
