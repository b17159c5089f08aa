"""What ordinary draws say of a place, which neither the rule of points nor a stage has seen.

Only values of the log density enter, so that the check shares no assumption with the search: not
that gradients are the values' (a jump has none), not that few points stand for all (heavy tails),
not that fixed draws are not overfitted. Single precision is not believed either
(:mod:`~ngvi.inference.precision`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ngvi.inference.engine import Engine, Place
from ngvi.inference.precision import NUM_CHECKED, excess, rounding

#: Draws of an audit, at least and at most: half as many as the search took gradients.
MIN_DRAWS, MAX_DRAWS = 200, 1000
#: Standard errors beyond which a contradiction is none by chance.
CERTAIN = 5.0
#: Draws that look for what is rare are so many times as many; all but a part of these have one
#: whitened latent that is stretched by a factor.
RARE_DRAWS, PLAIN_PART, STRETCHED = 4, 0.25, 2.5
#: Of more latents each would be stretched by fewer than six draws, of which one in twenty meets an
#: edge four standard deviations out: the look would find what it meets by chance.
RARE_DIM = 500
#: What is rare is sure from so many standard errors on, or where it is so many times as much as
#: what is worth a word, in nats: an average of what is never negative is twenty times its mean with
#: a probability of one in twenty at most (Markov's inequality).
SURE, UNLIKELY, NOTABLE_LOSS = 2.0, 20.0, 0.2
#: A draw that stands for less than this part of a Gaussian is one that nobody meets.
NEVER_MET = 1e-6
#: A standard error of a bound, in nats, from which on the bound may be anything.
HARDLY_KNOWN = 1.0
#: So few draws of all make up most of the variance only if what happens there is rare.
FEW, FEW_PART = 3, 0.01
#: What an integral may be off by, in nats, or in units of rounding.
OF_INTEGRAL, UNITS = 1e-2, 10.0
#: A component of a unit vector that is not rounding alone.
PART_OF_AXIS = 1e-3

#: Jumps are looked for along so many axes at most, so many standard deviations (by so many draws)
#: to both sides, so many values at once, down to this part of that.
MAX_AXES, BESIDE, NUM_SPREAD, AT_ONCE, FINEST = 64, 2.0, 64, 512, 1e8
#: A change in nats that is a jump, beyond so many units of rounding, if it is this part of all; and
#: what is so far down counts as no lower.
A_JUMP, ROUNDED, MOST, FLOOR = 0.1, 32.0, 0.6, 30.0

#: A posterior is improper if so many draws widened by these factors say so.
WIDENED_DRAWS, WIDER = 64, (1e2, 1e4)


class Audit(NamedTuple):
    """The bound of one place, from draws of its own."""

    bound: float  #: the mean of ``log w``, in nats; minus infinity if a draw has no density
    error: float  #: its standard error
    #: The gain in nats that a natural gradient by the score function promises, as far as it is
    #: certain: values contradict the gradients by so much.
    contradiction: float
    #: The standard deviation of ``log w``, in nats: half its square is about ``KL(q || p)``, where
    #: that is small.
    spread: float = 0.0
    #: By how much the weights' average is above the bound, in nats: an estimate from below of
    #: ``KL(q || p)``.
    gap: float = 0.0
    #: By how much the log density is rounded up at the draws, in nats, which the bound is less:
    #: beyond what rounding of its own size can explain, else zero.
    rounded_up: float = 0.0
    #: Whether a few of the draws make up most of the variance: others may be as far off, and have
    #: not been met.
    is_rare: bool = False

    @property
    def is_hardly_known(self) -> bool:
        """Whether a few draws leave the bound known to nats only."""
        return self.is_rare and self.error > HARDLY_KNOWN


def num_draws(engine: Engine) -> int:
    """How many draws an audit takes: few for a model that was expensive to fit by few gradients."""
    return int(np.clip(engine.evaluator.num_gradients // 2, MIN_DRAWS, MAX_DRAWS))


def audit(engine: Engine, place: Place, rng: np.random.Generator) -> Audit:
    """The bound by independent draws, and whether their values agree with the place's gradient.

    With the whitened draws ``z``, the natural gradient of the bound for the mean and for the
    standard deviations is ``E[log w z]`` and ``E[log w (z^2 - 1)] / sqrt(2)`` (the score function),
    both zero at the optimum. Half its squared norm, less what noise adds, is the gain it promises.
    """
    noise = rng.standard_normal((num_draws(engine), engine.parameters.dim))
    theta, log_q = engine.parameters.draws(place, noise)
    values = engine.evaluator.values(place, theta)
    weights, count = values - log_q, len(values)
    if not np.isfinite(weights).all():
        return Audit(-math.inf, math.nan, 0.0)
    some = slice(NUM_CHECKED)
    rounded_up = float(np.mean(excess(engine, place, theta[some], values[some])))
    centred = (weights - weights.mean())[:, None]
    scores = centred * np.concatenate([noise, (noise**2 - 1.0) / math.sqrt(2.0)], 1)
    with np.errstate(over="ignore", invalid="ignore"):  # of draws 1e77 nats down nothing is sure
        means, variances = scores.mean(0), scores.var(0) / (count - 1)
        signal = float(np.sum(means**2 - variances))
        sure = signal - CERTAIN * math.sqrt(2.0 * float(np.sum(variances**2)))
        spread = float(weights.std())
    error = spread / math.sqrt(count - 1)
    gap = float(np.log(np.mean(np.exp(weights - weights.max()))) + weights.max() - weights.mean())
    bound = float(weights.mean()) - rounded_up
    is_rare = _is_by_few(centred[:, 0])
    return Audit(bound, error, 0.5 * max(0.0, sure), spread, gap, rounded_up, is_rare)


def _is_by_few(gaps: np.ndarray) -> bool:
    """Whether a few of these make up most of the sum of their squares."""
    squares = (gaps / max(np.abs(gaps).max(), np.finfo(float).tiny)) ** 2
    few = max(FEW, int(FEW_PART * len(squares)))
    return bool(2.0 * np.sort(squares)[-few:].sum() > squares.sum())


def integrated(engine: Engine, place: Place, rng: np.random.Generator) -> tuple[float, float]:
    """The bound as an exact evaluator integrates it, and what that may be off by, in nats."""
    bound = engine.evaluator.measure(place, engine.evaluator.draws(rng, 1)).value
    return bound, max(OF_INTEGRAL, UNITS * rounding(engine, bound))


def rare_loss(engine: Engine, place: Place, rng: np.random.Generator, known: Audit) -> float:
    """By how much the bound is below what an audit has found, in nats, as far as it is not noise.

    A support that ends four standard deviations from the mean, with a penalty of ``1e4`` nats
    beyond it, costs a nat, and an audit of 1000 draws is not likely to meet one of those that pay.
    Of most of the draws here one whitened latent is stretched. They count by their weights under
    the Gaussian, which are four at most; draws without a density count for nothing.

    Where a recursion explodes, one draw is enormously lower than all others. Then the standard
    error is as large as the loss, whatever the loss is, and the loss tells by its own size.

    :param known: what an audit says of the place.
    :return: zero, if not a few draws make it up, or of more than :data:`RARE_DIM` latents.
    """
    dim = engine.parameters.dim
    if dim > RARE_DIM:
        return 0.0
    noise = rng.standard_normal((RARE_DRAWS * num_draws(engine), dim))
    rows = np.arange(int(PLAIN_PART * len(noise)), len(noise))
    noise[rows, rng.integers(dim, size=len(rows))] *= STRETCHED
    ratios = np.exp(np.minimum(0.5 * (1.0 - STRETCHED**-2) * noise**2, 700.0)) / STRETCHED
    weights = 1.0 / (PLAIN_PART + (1.0 - PLAIN_PART) * np.mean(ratios, 1))
    with np.errstate(invalid="ignore"):
        losses = weights * (known.bound - log_weights(engine, place, noise))
    losses = np.where(np.isfinite(losses), losses, 0.0)
    loss = float(losses.mean())
    with np.errstate(over="ignore"):
        error = math.hypot(float(losses.std()) / math.sqrt(len(losses) - 1), known.error)
    met = float(np.mean(np.where(weights > NEVER_MET * len(losses), losses, 0.0)))
    is_sure = loss > SURE * error or met > UNLIKELY * NOTABLE_LOSS
    return loss if is_sure and _is_by_few(losses - loss) else 0.0


def difference(
    engine: Engine,
    old: Place,
    new: Place,
    rng: np.random.Generator,
    count: int | None = None,
) -> tuple[float, float]:
    """By how much the bound of one place is above another's, and the standard error, in nats.

    Both see the same noise, so that places close to each other are told apart.

    :param count: of draws; by default as many as an audit takes.
    """
    noise = rng.standard_normal((count or num_draws(engine), engine.parameters.dim))
    with np.errstate(invalid="ignore"):
        gains = log_weights(engine, new, noise) - log_weights(engine, old, noise)
    if not np.isfinite(gains).all():
        return math.nan, math.nan
    return float(gains.mean()), float(gains.std()) / math.sqrt(len(gains) - 1)


def sharpened(
    engine: Engine,
    known: Sequence[tuple[Place, Audit]],
    rng: np.random.Generator,
    error: float,
    most: int,
) -> list[Audit]:
    """Audits whose bounds are by more draws, which all of the places share.

    :param known: places and their audits.
    :param error: to come below, in nats, by
    :param most: draws at most.
    """
    spread = max(found.spread for _, found in known)
    passes = max(math.ceil(min((spread / error) ** 2, most) / MAX_DRAWS), 1)
    noise = rng.standard_normal((passes, MAX_DRAWS, engine.parameters.dim))
    more = []
    for place, found in known:
        with np.errstate(invalid="ignore"):
            weights = np.concatenate([log_weights(engine, place, some) for some in noise])
        bound = float(weights.mean()) - found.rounded_up
        error = float(weights.std()) / math.sqrt(len(weights) - 1)
        is_sharper = math.isfinite(bound) and error < found.error
        more.append(found._replace(bound=bound, error=error) if is_sharper else found)
    return more


def missed(
    engine: Engine,
    place: Place,
    rng: np.random.Generator,
    excess: float,
    count: int | None = None,
    wide: float = 1.0,
) -> np.ndarray | None:
    """The point at which a Gaussian's draws have the highest weight, if it misses mass there.

    :param excess: nats above the mean of ``log w``, from which on it does.
    :param count: of draws; by default as many as an audit takes.
    :param wide: so many times as wide as the Gaussian's, of which the highest point is taken: far
        out any density has a high weight.
    :return: shape ``(d,)``; a narrow Gaussian there may lead to a better optimum, along a ridge
        of which this one holds a part.
    """
    noise = rng.standard_normal((count or num_draws(engine), engine.parameters.dim))
    weights = log_weights(engine, place, noise)
    least = np.mean(weights[np.isfinite(weights)]) + excess
    if wide > 1.0:
        noise = wide * noise
        weights = log_weights(engine, place, noise)
    is_missed = np.isfinite(weights) & (weights > least)
    if not is_missed.any():
        return None
    heights = weights if wide == 1.0 else weights - 0.5 * np.square(noise).sum(1)
    best = int(np.argmax(np.where(is_missed, heights, -np.inf)))
    return engine.parameters.draws(place, noise[best : best + 1])[0][0]


def jumps(engine: Engine, place: Place, rng: np.random.Generator, point: np.ndarray) -> bool:
    """Whether the log density jumps beside a point, along the axis of a latent.

    Of each axis the part goes on in which values change most, down to the hundred-millionth part of
    a standard deviation, or to what is left of the latent's digits. There a smooth density changes
    alike in all parts, and one that jumps in one of them. What is far down is taken for a floor, so
    that a steep cliff is no jump.
    """
    dim = engine.parameters.dim
    axes = np.arange(dim) if dim <= MAX_AXES else rng.choice(dim, MAX_AXES, replace=False)
    draws, _ = engine.parameters.draws(place, rng.standard_normal((NUM_SPREAD, dim)))
    half = BESIDE * np.sqrt(np.mean((draws - engine.parameters.mean(place)) ** 2, 0))[axes]
    rows, parts = np.arange(len(axes)), max(AT_ONCE // len(axes), 2)
    low, width, digits = -half, 2.0 * half, ROUNDED * engine.parameters.eps * np.abs(point[axes])
    height = engine.evaluator.values(place, point[None])[0]
    for _ in range(math.ceil(math.log(FINEST) / math.log(parts))):
        at = low[:, None] + width[:, None] * np.linspace(0.0, 1.0, parts + 1)
        theta = np.repeat(point[None], at.size, 0)
        theta[np.arange(at.size), np.repeat(axes, parts + 1)] += at.ravel()
        values = engine.evaluator.values(place, theta).reshape(at.shape)
        values = np.where(np.isfinite(values), np.maximum(values, height - FLOOR), height - FLOOR)
        change = np.abs(np.diff(values, axis=1))
        most = change.argmax(1)
        goes_on = width > parts**2 * digits
        low = np.where(goes_on, at[rows, most], low)
        width = np.where(goes_on, width / parts, width)
    noise = ROUNDED * rounding(engine, height)
    largest = change[rows, most]
    return bool(((largest > A_JUMP + noise) & (largest > MOST * change.sum(1))).any())


def is_improper(engine: Engine, place: Place, rng: np.random.Generator) -> bool:
    """Whether a Gaussian gains without limit as it widens along its longest axis.

    Where the posterior is flat, a standard deviation ``f`` times as large adds ``log f`` to the
    bound, however large ``f`` is. Tails that are heavy, but integrable, lose more than that.
    """
    noise = rng.standard_normal((WIDENED_DRAWS, engine.parameters.dim))
    theta, _ = engine.parameters.draws(place, noise)
    gaps = theta - engine.parameters.mean(place)
    if not np.isfinite(gaps).all():
        return True
    axis = np.linalg.svd(gaps / np.abs(gaps).max(), full_matrices=False)[2][0]
    before = engine.evaluator.values(place, theta)

    def is_flat(axis: np.ndarray) -> bool:
        along = (gaps @ axis)[:, None] * axis
        for factor in WIDER:
            gains = engine.evaluator.values(place, theta + (factor - 1.0) * along) - before
            if not float(np.mean(gains)) + math.log(factor) > 0.5 * math.log(factor):
                return False
        return True

    # Of an axis this long rounding alone moves the latents that the data determine.
    return is_flat(axis) or is_flat(np.where(np.abs(axis) > PART_OF_AXIS, axis, 0.0))


def log_weights(engine: Engine, place: Place, noise: np.ndarray) -> np.ndarray:
    """``log p(y, theta) - log q(theta)`` in nats, at whitened draws of shape ``(N, d)``."""
    theta, log_q = engine.parameters.draws(place, noise)
    return engine.evaluator.values(place, theta) - log_q
