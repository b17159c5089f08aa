"""Proposals of draws for importance weights: the Gaussian, a few latents of it with heavier tails.

Latents outside of plates have the tails of a Student's t, or all if they are few or all in plates:
of many those of which the Gaussian's weights know least. All others are the Gaussian's given these.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from ngvi.inference.draws.accuracy import Accuracy
from ngvi.inference.draws.pareto import EQUAL, USABLE, smoothed
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.starts import Prior

#: Draws of the Gaussian for weights, and draws that a result holds.
NUM_DRAWS = 4000
#: Numbers of the draws that are in memory at once, 128 MiB.
NUMBERS_AT_ONCE = 2**24
#: Most rounds, before the draws, that see where the globals are and how wide.
ROUNDS = 2
#: Degrees of freedom of the t, which then has a variance and a third moment.
DEGREES = 5.0
#: Most latents with heavy tails, and of a mixture: in more dimensions all draws of a t are far from
#: the Gaussian's, and all components of a mixture far from the others.
MAX_HEAVY = 10
#: Most latents of which a mixture in doubt is believed rather than chains.
MAX_FEW = 7
#: Draws of a prior, which tell where the prior is; as many as starts of a fit take, because in
#: NumPyro one program does for both.
NUM_OF_PRIOR = 100
#: Components of each half of a mixture.
NUM_COMPONENTS = 250


#: The log density at vectors of latents, and the model's own latents there.
Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Weighed:
    """Draws of a proposal, and what they weigh.

    :param latents: shape ``(n, d)``.
    :param raw: logarithms of their weights, shape ``(n,)``; minus infinity where the density of a
        draw is not finite.
    :param own: the model's own latents there, shape ``(n, d)``, if they are others.
    :ivar log_weights: smoothed and normalised, shape ``(n,)``.
    :ivar missing: what their tail holds beyond the largest of them.
    :ivar pareto_k: of the weights' tail; zero if they hardly vary.
    :ivar evidence: ``log mean(w)`` of all draws, in nats, before smoothing.
    """

    def __init__(self, latents: np.ndarray, raw: np.ndarray, own: np.ndarray | None = None) -> None:
        self.latents, self.raw, self.own = latents, raw, latents if own is None else own
        self.evidence = float(np.logaddexp.reduce(raw)) - math.log(len(raw))
        self.log_weights, shape, self.missing = smoothed(raw)
        self.pareto_k = 0.0 if raw[np.isfinite(raw)].std() < EQUAL else shape

    def joined(self, other: Weighed) -> Weighed:
        """Return all draws together, so that none of the first that weighs much is forgotten."""
        latents, own = (
            np.vstack(pair) for pair in ((self.latents, other.latents), (self.own, other.own))
        )
        return Weighed(latents, np.append(self.raw, other.raw), own)

    @property
    def share(self) -> float:
        """Effective draws per draw."""
        return self.effective / len(self.log_weights)

    @property
    def effective(self) -> float:
        """Draws that they are worth."""
        return float(1.0 / np.exp(2.0 * self.log_weights).sum())

    def picked(
        self, count: int, rng: np.random.Generator, times: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Return indices of draws, each as often as its weight says, shape ``(count,)``.

        :param times: factors of the weights.
        """
        # One uniform number for all: a draw is there as often as its weight says, but for one.
        places = (np.arange(count) + rng.uniform()) / count
        cumulative = np.cumsum(np.exp(self.log_weights) * times)
        return rng.permutation(np.searchsorted(cumulative / cumulative[-1], places))


class Proposal:
    """The Gaussian as it is.

    :param density: that of the problem's objective by default.
    :ivar indices: of the latents that have heavier tails.
    """

    def __init__(
        self,
        problem: Problem,
        state: State,
        indices: Sequence[int] = (),
        density: Density | None = None,
    ) -> None:
        self._problem, self._state, self.indices = problem, state, np.array(indices, int)
        self._mean = problem.space.mean(state)[self.indices]
        self._density = density or (lambda z: (problem.objective.log_density(state, z), z))

    def weighed(self, count: int, rng: np.random.Generator) -> Weighed:
        """Return weighed draws.

        :raises ValueError: if there is none.
        """
        noise = rng.standard_normal((count, self._problem.space.noise_dim))
        latents, log_q = self._moved(*self._problem.space.draw(self._state, noise), rng)
        values, own = self._density(latents)
        log_weights = values - log_q
        finite = np.isfinite(log_weights)
        if not finite.any():
            raise ValueError("The model's log density is finite at no draw of the Gaussian.")
        return Weighed(latents, np.where(finite, log_weights, -np.inf), own)

    def _moved(
        self, latents: np.ndarray, log_q: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the proposal's draws from those of the Gaussian, and their log densities."""
        return latents, log_q

    def _covariance(self) -> np.ndarray:
        """Return columns of the covariance ``C C'``, shape ``(d, indices)``."""
        space, dim = self._problem.space, self._problem.space.dim
        columns = np.zeros((dim, self.indices.size))
        origin, _ = space.draw(self._state, np.zeros((1, dim)))
        at_once = max(1, NUMBERS_AT_ONCE // dim)
        for start in range(0, dim, at_once):
            units = np.eye(min(at_once, dim - start), dim, start)
            of_scale = space.draw(self._state, units)[0] - origin  # some columns of C, as rows
            columns += of_scale.T @ of_scale[:, self.indices]
        return columns


class _Part(NamedTuple):
    """Student's t's of one scale, at one or several centres."""

    share: float  #: Of the draws.
    centres: np.ndarray  #: Shape ``(m, k)``.
    scale: np.ndarray  #: A Cholesky factor, shape ``(k, k)``.

    def log_density(self, at: np.ndarray) -> np.ndarray:
        """Return the log density of its share, shape ``(n, k) -> (n,)``."""
        degrees, size = DEGREES, len(self.scale)
        ends, centres = (
            scipy.linalg.solve_triangular(self.scale, rows.T, lower=True).T
            for rows in (at, self.centres)
        )
        found = np.empty(len(at))
        for start in range(0, len(at), NUM_DRAWS):
            some = slice(start, start + NUM_DRAWS)
            squares = scipy.spatial.distance.cdist(ends[some], centres, "sqeuclidean")
            logs = -0.5 * (degrees + size) * np.log1p(squares / degrees)
            found[some] = scipy.special.logsumexp(logs, 1)
        return (
            found
            + math.log(self.share / len(centres))
            + math.lgamma(0.5 * (degrees + size))
            - math.lgamma(0.5 * degrees)
            - 0.5 * size * math.log(degrees * math.pi)
            - _log_det(self.scale)
        )


class JointTails(Proposal):
    """The Gaussian with Student's t's for a few latents, whose locations and scales adapt.

    :param prior: the distribution of each two latents in a part of the draws, if latents are few.
        Two of which data say nothing, such as level and scale before an early change point, return
        to the prior.
    """

    def __init__(self, *args: Any, prior: Prior | None = None) -> None:
        super().__init__(*args)
        columns = self._covariance()
        self._root, self._prior = np.linalg.cholesky(columns[self.indices]), prior
        # The others' mean given these is linear in them.
        self._pull = np.linalg.solve(columns[self.indices], columns.T)
        self._parts = self._around(self._mean, columns[self.indices])

    def _around(self, location: np.ndarray, covariance: np.ndarray) -> list[_Part]:
        whole = _Part(1.0, location[None], np.linalg.cholesky(covariance))
        if self._prior is None:
            return [whole]
        found, size = [whole._replace(share=0.5)], len(location)
        pairs = list(itertools.combinations_with_replacement(range(size), 2))
        for pair in pairs:
            are_there = np.isin(range(size), pair)
            center = np.where(are_there, self._prior.mean, location)
            apart = np.where(are_there | are_there[:, None], 0.0, covariance)
            spread = apart + np.diag(np.where(are_there, np.square(self._prior.sd), 0.0))
            found.append(_Part(0.5 / len(pairs), center[None], np.linalg.cholesky(spread)))
        return found

    def adapt(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Take location and scale from weighted draws."""
        location = weights @ values
        deviations = values - location
        with contextlib.suppress(np.linalg.LinAlgError):  # of too few draws
            self._parts = self._around(location, (weights * deviations.T) @ deviations)

    def spread(self, found: Weighed, times: np.ndarray, rng: np.random.Generator) -> None:
        """Become a mixture of narrow t's, each at a draw (West, 1993).

        :param found: draws; those that weigh most serve for half of the t's.
        :param times: factors of their weights, by which those for the other half are chosen.
        """
        parts, size = [], len(self.indices)
        # Silverman's width for as many draws of a Gaussian.
        width = (4.0 / (size + 2) / NUM_COMPONENTS) ** (1.0 / (size + 4))
        for share, factors in ((0.25, np.ones(len(times))), (0.5, times)):
            weights = np.exp(found.log_weights) * factors
            self.adapt(found.latents[:, self.indices], weights / weights.sum())
            rows = found.picked(NUM_COMPONENTS, rng, factors)
            scale = width * self._parts[0].scale
            parts.append(_Part(share, found.latents[rows][:, self.indices], scale))
        rest = self._parts
        self._parts = parts + [one._replace(share=0.25 * one.share) for one in rest]

    def _moved(
        self, latents: np.ndarray, log_q: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        deviations = latents[:, self.indices] - self._mean
        standard = np.linalg.solve(self._root, deviations.T).T
        squares, size = np.square(standard), len(self.indices)
        normal = -0.5 * (squares.sum(1) + size * math.log(2 * math.pi)) - _log_det(self._root)
        steps = np.sqrt(DEGREES / rng.chisquare(DEGREES, len(latents)))[:, None] * standard
        ends = np.rint(np.cumsum([part.share for part in self._parts]) * len(latents)).astype(int)
        moved, start = np.empty_like(steps), 0
        for part, end in zip(self._parts, ends, strict=True):
            centres = part.centres[np.arange(end - start) % len(part.centres)]
            moved[start:end] = centres + steps[start:end] @ part.scale.T
            start = end
        latents = latents + (moved - latents[:, self.indices]) @ self._pull
        logs = [part.log_density(moved) for part in self._parts]
        return latents, log_q - normal + scipy.special.logsumexp(logs, 0)


def proposal_for(
    problem: Problem,
    state: State,
    weighed: Weighed,
    rng: np.random.Generator,
    density: Density | None = None,
    looks_far: bool = False,
) -> Proposal:
    """Return the Gaussian, with Student's tails of those latents that need them most.

    :param weighed: draws of the Gaussian, which tell which ones.
    :param looks_far: whether a part of the draws of few latents follows the prior, which is then
        sampled.
    """
    space = problem.space
    # A mixture has no covariance along which tails could be heavier.
    if space.noise_dim > space.dim:
        return Proposal(problem, state, (), density)
    prior = None
    if looks_far and space.dim <= MAX_HEAVY:
        prior = Prior.of(problem.objective.prior(rng, NUM_OF_PRIOR)[0])
    sites = [site for site in space.sites if prior or not site.plates] or space.sites
    found = np.concatenate([np.arange(site.start, site.start + site.size) for site in sites])
    of_weights = weighed.log_weights, weighed.missing, NUM_DRAWS, False
    judged = Accuracy.of_weights({"": weighed.latents[:, found]}, *of_weights)
    errors, limits = judged.errors.max(0), judged.limits.max(0)
    if len(found) > MAX_HEAVY:  # the worst ones, and no others with them
        needed = min(LEVELS.negligible, limits.max())
        worst = np.lexsort([-errors, -limits])[:MAX_HEAVY]
        found = found[worst[limits[worst] >= needed]]
    try:
        joint = JointTails(problem, state, list(found), density, prior=prior)
    except np.linalg.LinAlgError:  # the covariance is singular at this precision
        return Proposal(problem, state, (), density)
    for _ in range(ROUNDS):
        pilot = joint.weighed(NUM_DRAWS, rng)
        joint.adapt(pilot.latents[:, joint.indices], np.exp(pilot.log_weights))
        if pilot.pareto_k <= USABLE:
            break
    return joint


def _log_det(root: np.ndarray) -> float:
    return float(np.log(np.diag(root)).sum())
