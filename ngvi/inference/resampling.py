"""Draws of the posterior itself, from those of a Gaussian by their importance weights.

The bound is blind to where the Gaussian is and the posterior is not: between the scale of some
effects and zero there is a tail that a Gaussian in the scale's logarithm does not have. So the
latents outside of plates, if they are few, are drawn from a Student's t, and all others from the
Gaussian given them. The t has the Gaussian's location and scale, or where weights of a few draws
have too heavy a tail the moments by these (Paananen et al., 2021, *Implicitly adaptive importance
sampling*, Statistics and Computing 31). Weights are Pareto smoothed
(:mod:`~ngvi.inference.psis`), and draws resampled systematically (Kitagawa, 1996).
"""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

import numpy as np

from ngvi._warn import warn
from ngvi.inference.estimate import State
from ngvi.inference.problem import Problem
from ngvi.inference.psis import LIMITS, NUMBERS_AT_ONCE, smoothed_weights
from ngvi.inference.weights_verdict import USABLE


class Resampling(NamedTuple):
    """Numbers of :func:`corrected`."""

    num_draws: int = 20_000  #: errors of moments are then below 0.05 standard deviations
    rounds: int = 2  #: at most, before them, to see where the globals are and how wide
    num_pilots: int = 4000  #: draws of a round
    degrees: float = 5.0  #: of the t, which then has a variance and a third moment
    max_globals: int = 20  #: in more dimensions all draws of a t are far from the Gaussian's


class Weighed(NamedTuple):
    """Draws of a proposal with finite densities, and what they weigh."""

    latents: np.ndarray  #: shape ``(n, d)``
    log_weights: np.ndarray  #: smoothed and normalised, shape ``(n,)``
    pareto_k: float  #: of the weights' tail; zero if they hardly vary
    evidence: float  #: ``log mean(w)`` of all draws, in nats, before smoothing

    def resampled(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws as often as their weights say, shape ``(count, d)``."""
        # One uniform number for all: a draw is there as often as its weight says, but for one.
        places = (np.arange(count) + rng.uniform()) / count
        cumulative = np.cumsum(np.exp(self.log_weights))
        return self.latents[rng.permutation(np.searchsorted(cumulative / cumulative[-1], places))]


def weighed(
    problem: Problem,
    state: State,
    count: int,
    rng: np.random.Generator,
    options: Resampling = Resampling(),  # noqa: B008  it is immutable
) -> Weighed:
    """Draws for the model's posterior, of a proposal that up to two rounds have adapted.

    :param count: how many.
    :param rng: of all random numbers.
    :raises ValueError: if the log density is finite at no draw.
    """
    proposal = _Proposal(problem, state, options)
    for _ in range(options.rounds if proposal.indices.size else 0):
        found = proposal.weighed(min(options.num_pilots, count), rng)
        if found.pareto_k <= USABLE:
            break
        proposal.adapt(found.latents[:, proposal.indices], np.exp(found.log_weights))
    return proposal.weighed(count, rng)


def corrected(
    problem: Problem,
    state: State,
    num_samples: int,
    rng: np.random.Generator,
    options: Resampling = Resampling(),  # noqa: B008  it is immutable
) -> np.ndarray:
    """Draws of the model's posterior, shape ``(num_samples, d)``; some are the same.

    Warns where the weights' tail has a k-hat above 0.7.

    :param state: of which they are made, by their weights.
    :param num_samples: how many.
    :param rng: of all random numbers.
    :raises ValueError: if the log density is finite at no draw.
    """
    found = weighed(problem, state, max(options.num_draws, num_samples), rng, options)
    if found.pareto_k > USABLE:
        warn(
            f"corrected=True resamples by importance weights, whose k-hat is {found.pareto_k:.2f}: "
            f"above {USABLE} they may miss a part of the posterior. result.nuts() goes on by NUTS."
        )
    return found.resampled(num_samples, rng)


class _Proposal:
    """The Gaussian, but for the globals: Student's t, whose location and scale may be others'.

    :ivar indices: of the globals; none where they are many.
    """

    def __init__(self, problem: Problem, state: State, options: Resampling) -> None:
        self._problem, self._state, self._degrees = problem, state, options.degrees
        sites = [site for site in problem.space.sites if not site.plates]
        found = [i for site in sites for i in range(site.start, site.start + site.size)]
        # A mixture has no covariance along which tails could be heavier.
        is_mixture = problem.space.noise_dim > problem.space.dim
        has_tails = len(found) <= options.max_globals and not is_mixture
        self.indices = np.array(found if has_tails else [], int)
        self._mean = self._location = problem.space.mean(state)[self.indices]
        if self.indices.size:
            columns = self._covariance()
            self._root = self._scale = np.linalg.cholesky(columns[self.indices])
            # The others' mean given these is linear in them.
            self._pull = np.linalg.solve(columns[self.indices], columns.T)

    def _covariance(self) -> np.ndarray:
        """The globals' columns of the covariance ``C C'``, shape ``(d, globals)``."""
        space, dim = self._problem.space, self._problem.space.dim
        columns = np.zeros((dim, self.indices.size))
        origin, _ = space.draw(self._state, np.zeros((1, dim)))
        at_once = max(1, NUMBERS_AT_ONCE // dim)
        for start in range(0, dim, at_once):
            units = np.eye(min(at_once, dim - start), dim, start)
            of_scale = space.draw(self._state, units)[0] - origin  # some columns of C, as rows
            columns += of_scale.T @ of_scale[:, self.indices]
        return columns

    def adapt(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Take location and scale from weighted draws."""
        location = weights @ values
        deviations = values - location
        covariance = (weights * deviations.T) @ deviations
        with contextlib.suppress(np.linalg.LinAlgError):  # of too few draws
            self._scale, self._location = np.linalg.cholesky(covariance), location

    def weighed(self, count: int, rng: np.random.Generator) -> Weighed:
        """So many draws, less those at which the density is not finite.

        :raises ValueError: if there is none.
        """
        noise = rng.standard_normal((count, self._problem.space.noise_dim))
        latents, log_q = self._problem.space.draw(self._state, noise)
        if self.indices.size:
            latents, log_q = self._with_tails(latents, log_q, rng)
        log_weights = self._problem.objective.log_density(self._state, latents) - log_q
        finite = np.isfinite(log_weights)
        if not finite.any():
            raise ValueError(
                "corrected=True weighs draws by the model's density, which is finite at none of "
                "them: leave it out, and look at result.diagnostics."
            )
        found = log_weights[finite]
        evidence = float(np.logaddexp.reduce(found)) - math.log(count)
        smoothed, shape = smoothed_weights(found)
        varies = found.std() > LIMITS.equal
        return Weighed(latents[finite], smoothed, shape if varies else 0.0, evidence)

    def _with_tails(
        self, latents: np.ndarray, log_q: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        deviations, degrees = latents[:, self.indices] - self._mean, self._degrees
        standard = np.linalg.solve(self._root, deviations.T).T
        factors = np.sqrt(degrees / rng.chisquare(degrees, len(latents)))[:, None]
        moved = self._location + factors * standard @ self._scale.T
        latents = latents + (moved - latents[:, self.indices]) @ self._pull
        squares, size = np.square(standard), len(self.indices)
        normal = -0.5 * (squares.sum(1) + size * math.log(2 * math.pi)) - _log_det(self._root)
        student = (
            math.lgamma(0.5 * (degrees + size))
            - math.lgamma(0.5 * degrees)
            - 0.5 * size * math.log(degrees * math.pi)
            - 0.5 * (degrees + size) * np.log1p((factors**2 * squares).sum(1) / degrees)
            - _log_det(self._scale)
        )
        return latents, log_q - normal + student


def _log_det(root: np.ndarray) -> float:
    return float(np.log(np.diag(root)).sum())
