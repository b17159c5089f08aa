"""Validation of a state by independent draws, which no search has seen.

A validation uses only values of the log density, so it shares no assumption with the search. It
does not assume that gradients match the values (at a jump they do not), that a few points represent
all (heavy tails), or that fixed draws are not overfitted. It does not trust single precision
either: rounding errors are small relative to the terms of a sum, but these may be far larger than
the sum. The rounded log density is then smooth, has an optimum, and is wrong, and nothing in the
same precision can detect it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from ngvi.inference.draws.coordinates import MAX_DENSE
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS, ValidationOptions
from ngvi.inference.prices import FREE
from ngvi.inference.problem import Problem

#: Units of precision above which numbers are not double.
SINGLE = 1e-10
#: Number of draws checked in double precision, by one pass of the model.
NUM_IN_DOUBLE = 16
#: Lines through the mean along which gradients are integrated.
NUM_LINES = 8
#: Nodes of a line: a smooth density needs few, one with kinks more.
NODES = (9, 129)
#: Factor by which one latent is stretched in most draws that look for rare losses.
STRETCH = 2.5


@dataclasses.dataclass(frozen=True)
class Validation:
    """The bound of one state, from draws of its own."""

    bound: float  #: The mean of ``log w``, in nats; minus infinity if a draw has no density.
    error: float  #: Standard error of the bound.
    #: The gain in nats that a natural gradient by the score function predicts, as far as it is
    #: certain: values contradict the gradients by so much.
    mismatch: float = 0.0
    #: The standard deviation of ``log w``, in nats: half its square is about ``KL(q || p)``, where
    #: that is small.
    spread: float = 0.0
    #: By how much the logarithm of the weights' average is above the bound, in nats: an estimate
    #: from below of ``KL(q || p)``.
    gap: float = 0.0
    #: By how much the log density is rounded up at the draws, in nats, beyond what rounding of its
    #: own size can explain; the bound is less by that.
    rounded_up: float = 0.0
    #: True if a few of the draws make up most of the variance: others may be as far off, and have
    #: not been met.
    is_heavy_tailed: bool = False
    #: The log density at the mean, which is another one if data or model have changed since the
    #: fit; NaN where the model has no one density.
    height: float = math.nan

    @property
    def lower(self) -> float:
        """The bound less two standard errors."""
        return self.bound - 2 * self.error if math.isfinite(self.bound) else -math.inf


def height(problem: Problem, state: State) -> float:
    """Return the log density at the mean; NaN where the model has no one density."""
    objective, space = problem.objective, problem.space
    if objective.is_random or objective.rows is not None:
        return math.nan
    return float(objective.log_density(state, space.mean(state)[None])[0])


def num_draws(problem: Problem, options: ValidationOptions) -> int:
    """Return how many draws a validation takes: few for a model fitted by few gradients."""
    count = problem.objective.cost.gradients // 2
    return int(np.clip(count, options.min_draws, options.max_draws))


def validate(
    problem: Problem,
    state: State,
    rng: np.random.Generator,
    options: ValidationOptions,
    tolerance: float = math.inf,
) -> Validation:
    """Estimate the bound by independent draws, and compare values with the state's gradient.

    With the whitened draws ``z``, the natural gradient of the bound for the mean and for the
    standard deviations is ``E[log w z]`` and ``E[log w (z^2 - 1)] / sqrt(2)`` (the score function),
    both zero at the optimum. Half its squared norm, less what noise adds, is the gain it predicts.
    While it may be above the tolerance or below, the draws double.
    """
    draws = _Draws.of(
        problem, state, rng.standard_normal((num_draws(problem, options), problem.space.noise_dim))
    )
    while np.isfinite(draws.weights).all():
        signal, noise = draws.mismatch(problem.space.has_free_scales)
        low, high = signal - LEVELS.certain * noise, signal + LEVELS.likely * noise
        in_doubt = 0.5 * low < tolerance < 0.5 * high
        count, dim = draws.noise.shape
        most = LEVELS.more_draws * options.max_draws if options.may_double else count
        if not in_doubt or count >= most:
            return _validation(problem, state, draws, 0.5 * max(0.0, low), options)
        count = min(count, most - count)
        more = _Draws.of(problem, state, rng.standard_normal((count, dim)))
        draws = _Draws(*(np.concatenate(pair) for pair in zip(draws, more, strict=True)))
    return Validation(-math.inf, math.nan)


class _Draws(NamedTuple):
    """Independent draws of a state."""

    noise: np.ndarray  #: Shape ``(N, k)``.
    theta: np.ndarray  #: Shape ``(N, d)``.
    values: np.ndarray  #: The log density, shape ``(N,)``.
    weights: np.ndarray  #: ``log w``, shape ``(N,)``.

    @classmethod
    def of(cls, problem: Problem, state: State, noise: np.ndarray) -> _Draws:
        theta, log_q = problem.space.draw(state, noise)
        values = problem.objective.log_density(state, theta)
        return cls(noise, theta, values, values - log_q)

    def mismatch(self, has_free_scales: bool) -> tuple[float, float]:
        """Return the squared norm of the natural gradient by the score function, and its noise.

        A family without a scale of each latent is at its optimum where the sum of their gradients
        is zero; ``has_free_scales`` tells.
        """
        centred, count = self.weights - self.weights.mean(), len(self.weights)
        with np.errstate(over="ignore", invalid="ignore"):  # of draws 1e77 nats down
            # Moments of c z and c (z^2 - 1) / sqrt(2) by products: z may have millions of numbers.
            squares, weights = self.noise**2, centred**2
            second, size = weights @ squares, 1
            if not has_free_scales:
                size = squares.shape[1]
                squares = squares.sum(1, keepdims=True)
            of_scales = (centred @ squares - size * centred.sum()) / math.sqrt(2.0 * size)
            means = np.concatenate([centred @ self.noise, of_scales]) / count
            fourth = 0.5 * (weights @ squares**2 + size**2 * weights.sum()) / size
            fourth = fourth - weights @ squares
            variances = np.concatenate([second, fourth]) / count - means**2
            variances /= count - 1
            return float(np.sum(means**2 - variances)), math.sqrt(2 * float(np.sum(variances**2)))


def _validation(
    problem: Problem, state: State, draws: _Draws, mismatch: float, options: ValidationOptions
) -> Validation:
    weights, some = draws.weights, slice(NUM_IN_DOUBLE if options.in_double else 0)
    excesses = excess(problem, state, draws.theta[some], draws.values[some])
    off = float(np.mean(excesses)) if len(excesses) else 0.0
    mean, top = float(weights.mean()), weights.max()
    with np.errstate(over="ignore"):
        spread = float(weights.std())
    return Validation(
        bound=mean - off,
        error=spread / math.sqrt(len(weights) - 1),
        mismatch=mismatch,
        spread=spread,
        gap=max(float(np.log(np.mean(np.exp(weights - top))) + top - mean), 0.0),
        rounded_up=off,
        is_heavy_tailed=_is_by_few(weights - mean),
    )


def _is_by_few(gaps: np.ndarray) -> bool:
    """Return whether a few of these make up most of the sum of their squares."""
    squares = (gaps / max(np.abs(gaps).max(), np.finfo(float).tiny)) ** 2
    few = max(3, int(LEVELS.negligible**2 * len(squares)))
    return bool(2.0 * np.sort(squares)[-few:].sum() > squares.sum())


def unseen_jump(problem: Problem, state: State, rng: np.random.Generator) -> float:
    """Return the change of the log density along lines that its gradients do not show, in nats.

    Between two ends of a line, a log density without jumps changes by the integral of its gradient.
    Each line goes from a draw of the Gaussian through the mean to the opposite draw. The quadrature
    is Clenshaw-Curtis. It takes 72 gradients, and 1,032 more if these leave a difference. A pass
    of more than a second is left out if it takes more gradients than the fit has.

    :return: the root mean square over the lines; zero below 0.1 nats, the error of quadrature at
        kinks, and below rounding.
    """
    objective, space = problem.objective, problem.space
    if objective.is_subsampled or space.noise_dim != space.dim:
        return 0.0
    mean = space.mean(state)
    # A copy leaves the random numbers of the search as they are.
    noise = copy.deepcopy(rng).standard_normal((NUM_LINES, space.dim))
    way = space.draw(state, noise)[0] - mean
    ends = objective.log_density(state, np.concatenate([mean + way, mean - way]))
    least = max(LEVELS.same, LEVELS.rounding_units * problem.rounding(float(abs(ends).max())))
    for count in NODES:
        asked, cost = count * NUM_LINES, objective.cost
        if asked > cost.gradients and asked * cost.prices.gradient > FREE:
            return 0.0
        nodes = np.cos(np.pi * np.arange(count) / (count - 1))
        powers = np.polynomial.legendre.legvander(nodes, count - 1)
        weights = np.linalg.solve(powers.T, 2.0 * np.eye(count)[0])
        theta = mean + nodes[:, None, None] * way
        slopes = objective.gradient(state, theta.reshape(-1, space.dim))[1].reshape(theta.shape)
        gaps = ends[:NUM_LINES] - ends[NUM_LINES:] - np.einsum("k,kld,ld->l", weights, slopes, way)
        found = float(np.linalg.norm(gaps[np.isfinite(gaps)])) / math.sqrt(NUM_LINES)
        if not found > least:
            return 0.0
    return found


def integrated(problem: Problem, state: State, rng: np.random.Generator) -> tuple[float, float]:
    """Return the bound of an exact objective, and what that may be off by, in nats."""
    objective = problem.objective
    bound = objective.bound(state, objective.sample(rng, 1)).value
    units = LEVELS.rounding_units * problem.rounding(bound)
    return bound, max(LEVELS.negligible * LEVELS.same, units)


def rare_loss(
    problem: Problem,
    state: State,
    rng: np.random.Generator,
    known: Validation,
    options: ValidationOptions,
) -> float:
    """Return by how many nats the bound is below a validation's, if that is not noise.

    A support that ends four standard deviations from the mean, with a penalty of ``1e4`` nats
    beyond it, costs a nat, and a validation of 1000 draws is not likely to meet one of those that
    pay. Of most of the draws here one whitened latent is stretched. They count by their weights
    under the Gaussian, which are four at most; draws without a density count for nothing.

    Where a recursion explodes, one draw is enormously lower than all others. Then the standard
    error is as large as the loss, whatever the loss is, and the loss counts by its own size.

    :param known: of the state.
    :return: zero, if not a few draws make it up, or of more latents than can be stretched in turn.
    """
    dim = problem.space.dim
    plain = 0.25  # of the draws, so that no weight is above four
    if dim > MAX_DENSE:
        return 0.0
    count = LEVELS.more_draws * num_draws(problem, options)
    noise = rng.standard_normal((count, problem.space.noise_dim))
    chooses, latents = np.split(noise, [problem.space.noise_dim - dim], 1)
    rows = np.arange(int(plain * count), count)
    latents[rows, rng.integers(dim, size=len(rows))] *= STRETCH
    ratios = np.exp(np.minimum(0.5 * (1.0 - STRETCH**-2) * latents**2, 700.0)) / STRETCH
    weights = 1.0 / (plain + (1.0 - plain) * np.mean(ratios, 1))
    with np.errstate(invalid="ignore"):
        draws = np.concatenate([chooses, latents], 1)
        losses = weights * (known.bound - problem.log_weights(state, draws))
    losses = np.where(np.isfinite(losses), losses, 0.0)
    loss = float(losses.mean())
    with np.errstate(over="ignore"):
        error = math.hypot(float(losses.std()) / math.sqrt(count - 1), known.error)
    is_met = weights > LEVELS.tiny**2 * count  # others stand for what nobody meets
    met = float(np.mean(np.where(is_met, losses, 0.0)))
    # An average of what is never negative is twenty times its mean with a probability of one in
    # twenty at most (Markov's inequality).
    unlikely = LEVELS.likely * LEVELS.same / (1.0 - LEVELS.confidence)
    is_sure = loss > LEVELS.likely * error or met > unlikely
    return loss if is_sure and _is_by_few(losses - loss) else 0.0


def excess(problem: Problem, state: State, theta: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return by how many nats values are too high; zero if they can be believed.

    :param theta: vectors of all latents, shape ``(N, d)``.
    :param values: the log density there, finite.
    :return: shape ``(N,)``.
    """
    if not len(theta) or problem.space.eps < SINGLE:
        return np.zeros(len(theta))
    found = problem.objective.in_double(state, theta)
    if found is None or not np.isfinite(found).all():
        return np.zeros(len(theta))
    gaps, allowed = values - found, LEVELS.negligible * LEVELS.tiny * np.abs(values)
    return np.where(np.abs(gaps) > np.maximum(LEVELS.notable, allowed), gaps, 0.0)
