"""Optima of a bound: whether two are one, and how likely it is that a better one has not been seen.

A start that is drawn from the prior and a box leads to an optimum. ``n`` of them, drawn alike, have
led to ``K`` distinct optima. Ewens' sampling formula, the number of partitions of a Dirichlet
process of concentration ``a``, says how likely that is,

    p(K | a, n) ~ a^K Gamma(a) / Gamma(a + n),

and how many of the next ``n`` starts find an optimum that has not been met,
``M = sum_{j < n} a / (a + n + j)``. Nothing is known of ``a`` but a range, over which it is
integrated out. The values of distinct optima are exchangeable, so that the best of ``K + M`` is a
new one with probability ``M / (K + M)``. A mode higher than the best Gaussian's own that led to no
optimum counts in ``K`` where ``a`` is inferred, and in ``M`` where the best is.

Optima of the same bound count as one, for none of them is better: they may be mirror images, as
where labels or signs change places. Each image holds as much of the posterior. They are images
where each mean is far from the other Gaussian, and the density between both is lower
(:func:`~ngvi.inference.runs.are_apart`). What no counting can see is a small basin that holds
the best: one of 3 % is missed by eight starts as often as it must be.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy

from ngvi.inference.estimate import State
from ngvi.inference.search import Status
from ngvi.inference.verdict.certificate import UNKNOWN, Certificate
from ngvi.inference.verdict.validation import Validation

#: Concentrations, from one optimum for all starts to another for each; a log-uniform prior.
CONCENTRATIONS = np.exp(np.linspace(math.log(0.02), math.log(500.0), 300))


@dataclasses.dataclass(eq=False)
class Optimum:
    """Optimum to which one or more starts have led.

    :ivar state: the parameters there.
    :ivar validation: what independent draws say of it.
    :ivar certificate: what is left to it; unknown of one that is far lower, and was not finished.
    :ivar status: how the search ended that found it; None if it was not finished.
    :ivar name: of the start that found it, in words.
    :ivar count: how many starts, drawn alike, have led to it or to one of its images.
    :ivar images: optima of the same bound elsewhere, as far as they are known.
    """

    state: State
    validation: Validation
    certificate: Certificate = UNKNOWN
    status: Status | None = None
    name: str = ""
    count: int = 0
    trace: Any = None
    search: Any = None  #: Search that has found the optimum.
    images: list[Optimum] = dataclasses.field(default_factory=list)

    @property
    def is_certified(self) -> bool:
        """Return whether its search has ended at an optimum."""
        return self.status is Status.OPTIMUM

    def take(self, other: Optimum) -> None:
        """Be what another is, with the starts of both."""
        count, images = self.count + other.count, self.images + other.images
        vars(self).update(vars(other))
        self.count, self.images = count, images

    def rank(self, tie: float = 0.0) -> tuple[bool, float]:
        """Rank optima: a little noise is no reason to give up an optimum.

        :param tie: in nats.
        """
        found = self.validation
        bound = found.lower if found.error > 1.0 else found.bound
        return math.isfinite(bound), bound + tie * self.is_certified


@dataclasses.dataclass
class Exploration:
    """Result of a search for other optima.

    :ivar num_starts: that were made, drawn alike.
    :ivar num_without_optimum: of these, that have come to no optimum within a few steps.
    :ivar probability: of a better optimum, at a mode that was seen or for as many starts again.
    :ivar is_over: whether it is small enough.
    :ivar has_few: whether so few have come to an optimum that it says little.
    :ivar has_lost: whether a mode higher than the best Gaussian's own led to no optimum.
    """

    num_starts: int = 0
    num_without_optimum: int = 0
    probability: float = 1.0
    is_over: bool = False
    has_few: bool = False
    has_lost: bool = False


def better_elsewhere(num_starts: int, num_optima: int, num_lost: int = 0) -> float:
    """Return the probability of a better optimum, at a lost mode or for as many starts again.

    :param num_starts: ``n``, drawn alike.
    :param num_optima: ``K``, distinct ones that they have led to.
    :param num_lost: the number of distinct higher modes that led to no optimum.
    :return: one if there were no starts.
    """
    if not num_starts:
        return 1.0
    a, gammaln = CONCENTRATIONS, scipy.special.gammaln
    log_weights = (num_optima + num_lost) * np.log(a) + gammaln(a) - gammaln(a + num_starts)
    weights = np.exp(log_weights - log_weights.max())
    new = (a[:, None] / (a[:, None] + num_starts + np.arange(num_starts))).sum(1)
    others = num_lost + new
    return float(weights @ (others / (num_optima + others)) / weights.sum())
