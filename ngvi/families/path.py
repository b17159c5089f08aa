"""Steps of Gaussians along one direction, for every step size.

A search for the step size makes several attempts. An attempt (:meth:`Path.at`) computes only what
its KL divergence (:meth:`Path.kl`) needs; the accepted one becomes a Gaussian (:meth:`Path.end`).
The direction is whitened once, so that an attempt costs one factorisation and no solve against the
old factor (:class:`WhitenedPath`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ngvi.families.steps import covariance_times


@dataclasses.dataclass(frozen=True)
class Path:
    """Steps that are known by their ends.

    :param start: a family, which knows its ``kl_divergence``.
    :param advance: the family after a step of a given size.
    """

    start: Any
    advance: Callable[[Any], Any]

    def damped(self, step_size: Any) -> Path:
        """Return the path of a curvature that is noise for the most part, for a step of this size.

        See :meth:`~ngvi.linalg.definite.Definite.damped`; families without whitened steps correct
        the direction (:func:`~ngvi.families.steps.corrected`).
        """
        return self

    def at(self, step_size: Any) -> Any:
        """Return the attempt with this step size, ``rho``."""
        return self.advance(step_size)

    def kl(self, attempt: Any) -> Any:
        """``KL(new || old)`` in nats, a scalar."""
        return attempt.kl_divergence(self.start)

    def backward_kl(self, attempt: Any) -> Any:
        """``KL(old || new)`` in nats, a scalar."""
        return self.start.kl_divergence(attempt)

    def metric(self, gradient: Any) -> Callable[[Any], Any]:
        """Return a function of an attempt: ``Sigma_new g``, shape ``(d,)``."""
        return lambda attempt: covariance_times(attempt, gradient)

    def end(self, attempt: Any) -> Any:
        """Return the family after the step."""
        return attempt


@dataclasses.dataclass(frozen=True)
class WhitenedPath:
    """Steps in whitened coordinates, of one block or of several independent ones.

    :param blocks: of each ``-P``, see :mod:`ngvi.linalg.definite`, and ``w = C^-1 dmu``.
    :param steps: makes a step of ``rho``, ``-P`` and ``w``, and knows how far it leads, such as
        :class:`~ngvi.linalg.definite.CovarianceSteps`; or a list with one for each block.
    :param finish: the family, from ``rho`` and the blocks' steps.
    :param metrics: :meth:`metric`, from ``steps`` and the gradient, a function of the blocks'
        steps; None for the end's.
    """

    blocks: Sequence[tuple[Any, Any]]
    steps: Any
    finish: Callable[..., Any]
    metrics: Callable[[Any, Any], Callable[..., Any]] | None = None

    def damped(self, step_size: Any) -> WhitenedPath:
        """See :class:`Path`."""
        pairs = zip(self._steps(), self.blocks, strict=True)
        blocks = [(steps.damped(step_size, p), w) for steps, (p, w) in pairs]
        definite = [
            dataclasses.replace(steps, are_definite=True)
            if hasattr(steps, "are_definite")
            else steps
            for steps in self._steps()
        ]
        return dataclasses.replace(self, blocks=blocks, steps=definite)

    def at(self, step_size: Any) -> Any:
        """See :class:`Path`."""
        pairs = zip(self._steps(), self.blocks, strict=True)
        return step_size, [steps.along(step_size, p, w) for steps, (p, w) in pairs]

    def kl(self, attempt: Any) -> Any:
        """See :class:`Path`."""
        return sum(steps.kl(one) for steps, one in zip(self._steps(), attempt[1], strict=True))

    def backward_kl(self, attempt: Any) -> Any:
        """See :class:`Path`."""
        pairs = zip(self._steps(), attempt[1], strict=True)
        return sum(steps.backward_kl(one) for steps, one in pairs)

    def metric(self, gradient: Any) -> Callable[[Any], Any]:
        """See :class:`Path`."""
        if self.metrics is None:
            return lambda attempt: covariance_times(self.end(attempt), gradient)
        of_steps = self.metrics(self._steps(), gradient)
        return lambda attempt: of_steps(*attempt[1])

    def end(self, attempt: Any) -> Any:
        """See :class:`Path`."""
        return self.finish(attempt[0], *attempt[1])

    def _steps(self) -> Sequence[Any]:
        each = isinstance(self.steps, Sequence)
        return self.steps if each else [self.steps] * len(self.blocks)


class JointPath:
    """The steps of several families, all with one step size.

    :param families: where they begin.
    :param directions: natural gradients of the bound.
    :param of_mean: how many times as far the means move as the directions say.
    """

    def __init__(
        self, families: Sequence[Any], directions: Sequence[Any], of_mean: Any = 1.0
    ) -> None:
        pairs = zip(families, directions, strict=True)
        self._ops = families[0].ops
        self._paths = [family.along(one, of_mean) for family, one in pairs]

    def damped(self, step_size: Any) -> JointPath:
        """See :class:`Path`."""
        return self._with([path.damped(step_size) for path in self._paths])

    def at(self, step_size: Any) -> list:
        """See :class:`Path`."""
        return [path.at(step_size) for path in self._paths]

    def kl(self, attempt: list) -> Any:
        """See :class:`Path`; rounding never takes it below zero."""
        pairs = zip(self._paths, attempt, strict=True)
        return self._ops.at_least(sum(path.kl(one) for path, one in pairs), 0.0)

    def backward_kl(self, attempt: list) -> Any:
        """See :meth:`kl`."""
        pairs = zip(self._paths, attempt, strict=True)
        return self._ops.at_least(sum(path.backward_kl(one) for path, one in pairs), 0.0)

    def metric(self, gradients: Sequence[Any]) -> Callable[[list], list]:
        """See :class:`Path`; one for each family."""
        pairs = zip(self._paths, gradients, strict=True)
        found = [path.metric(gradient) for path, gradient in pairs]
        return lambda attempt: [of(one) for of, one in zip(found, attempt, strict=True)]

    def end(self, attempt: list) -> list:
        """See :class:`Path`; one for each family."""
        return [path.end(one) for path, one in zip(self._paths, attempt, strict=True)]

    def _with(self, paths: list) -> JointPath:
        new = copy.copy(self)
        new._paths = paths
        return new
