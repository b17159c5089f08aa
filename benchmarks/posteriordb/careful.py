"""The best full-covariance Gaussian, as well as a slow and careful run finds it.

From each of several starts the Bayesian learning rule ascends the bound on fixed quasi-random
draws, with exact Hessians and steps that move the Gaussian by one nat at most and never lower
the bound; then once more on more draws. From the best of these, steps on fresh draws,
averaged in natural parameters, remove what is left of the draws' randomness. The run shares no
code with the packages that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from .bounds import CHUNK, LOG_2_PI, Bound, BoundEvaluator, normal_draws
from .target import Target

# Draws of the first and of the second ascent; those of the second in every averaged step, too.
ASCENTS = (2**9, 2**12)
MAX_ASCENT_STEPS = 200
NUM_AVERAGED = 48
AVERAGED_RHO = 0.5
# Nats: the Kullback-Leibler divergence of one step, and what an ascent's last step gains.
MAX_STEP = 1.0
MIN_GAIN = 1e-7
MIN_RHO = 1e-6
# Nats: the divergence of two ascents that ended at one optimum, and how much worse than the
# best an optimum is that more draws will not make the best.
SAME = 1e-3
HOPELESS = 0.5


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian over the unconstrained vector."""

    mean: np.ndarray
    precision: np.ndarray

    @property
    def cov(self) -> np.ndarray:
        inverse = cho_solve(cho_factor(self.precision), np.eye(len(self.mean)))
        return 0.5 * (inverse + inverse.T)

    def divergence(self, other: Gaussian) -> float:
        """KL(self || other), nats; infinite if self is no Gaussian."""
        try:
            root = np.linalg.cholesky(other.precision)
            inner = np.linalg.inv(np.linalg.cholesky(self.precision)) @ root
        except np.linalg.LinAlgError:
            return np.inf
        shift = root.T @ (self.mean - other.mean)
        log_det = np.linalg.slogdet(inner)[1]
        return float(0.5 * (np.sum(inner**2) + shift @ shift - len(shift)) - log_det)


@dataclass(frozen=True)
class Expectations:
    """The bound of a Gaussian, and E[grad log p] and E[hess log p] under it."""

    bound: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(x).all() for x in (self.bound, self.gradient, self.hessian))


class Evaluator:
    """Compiled expectations under Gaussians of a target's vector."""

    def __init__(self, target: Target) -> None:
        def log_ratio(x: jax.Array, noise: jax.Array) -> jax.Array:
            return target.log_prob(x) + 0.5 * noise @ noise

        def expand(x: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
            value, gradient = jax.value_and_grad(log_ratio)(x, noise)
            return value, gradient, jax.hessian(target.log_prob)(x)

        def mean_of(function: Callable) -> Callable:
            def mean(loc: jax.Array, factor: jax.Array, noise: jax.Array) -> Any:
                values = jax.vmap(function)(loc + noise @ factor, noise)
                return jax.tree.map(lambda x: x.mean(axis=0), values)

            return jax.jit(mean)

        self._value, self._expansion = mean_of(log_ratio), mean_of(expand)

    def bound(self, gaussian: Gaussian, noise: np.ndarray) -> float:
        """The bound from standard normal draws."""
        factor, entropy = _factor(gaussian)
        return entropy + float(np.mean(_in_chunks(self._value, gaussian.mean, factor, noise)))

    def __call__(self, gaussian: Gaussian, noise: np.ndarray) -> Expectations:
        factor, entropy = _factor(gaussian)
        chunks = _in_chunks(self._expansion, gaussian.mean, factor, noise)
        value, gradient, hessian = (np.mean(x, axis=0) for x in zip(*chunks, strict=True))
        return Expectations(float(value + entropy), gradient, 0.5 * (hessian + hessian.T))


def _factor(gaussian: Gaussian) -> tuple[np.ndarray, float]:
    """A factor that draws are rows of noise times, and the entropy."""
    factor = np.linalg.inv(np.linalg.cholesky(gaussian.precision))
    return factor, 0.5 * len(factor) * LOG_2_PI + float(np.log(np.diag(factor)).sum())


def _in_chunks(function: Callable, loc: np.ndarray, factor: np.ndarray, noise: np.ndarray) -> list:
    chunks = np.split(noise, len(noise) // CHUNK)
    return [jax.tree.map(np.asarray, function(loc, factor, chunk)) for chunk in chunks]


def step(gaussian: Gaussian, at: Expectations, rho: float) -> Gaussian:
    """The Bayesian learning rule, as Lin, Schmidt and Khan (2020) keep it positive definite."""
    change = -at.hessian - gaussian.precision
    second = change @ np.linalg.solve(gaussian.precision, change)
    precision = gaussian.precision + rho * change + 0.5 * rho**2 * second
    precision = 0.5 * (precision + precision.T)
    return Gaussian(gaussian.mean + rho * np.linalg.solve(precision, at.gradient), precision)


def ascend(evaluate: Evaluator, start: Gaussian, noise: np.ndarray) -> Gaussian:
    """To a maximum of the bound on these draws."""
    here, rho = start, 1.0
    for _ in range(MAX_ASCENT_STEPS):
        at = evaluate(here, noise)
        if not at.is_finite:
            break
        rho = min(1.0, 4 * rho)
        while rho > MIN_RHO:
            there = step(here, at, rho)
            if there.divergence(here) <= MAX_STEP:
                bound = evaluate.bound(there, noise)
                if bound > at.bound - MIN_GAIN:
                    break
            rho /= 2
        else:
            break
        here = there
        if rho == 1.0 and bound - at.bound < MIN_GAIN:
            break
    return here


def average(evaluate: Evaluator, start: Gaussian, seed: int) -> Gaussian:
    """The mean of the natural parameters over steps on fresh draws."""
    here, natural = start, []
    for index in range(NUM_AVERAGED):
        noise = normal_draws(ASCENTS[-1], len(start.mean), seed + index)
        rho = AVERAGED_RHO
        while (there := step(here, evaluate(here, noise), rho)).divergence(here) > MAX_STEP:
            rho /= 2
        here = there
        natural.append((here.precision, here.precision @ here.mean))
    precision, product = (np.mean(values, axis=0) for values in zip(*natural, strict=True))
    return Gaussian(np.linalg.solve(precision, product), precision)


def starts(target: Target) -> dict[str, Gaussian]:
    """The moments of the reference draws, narrower and wider ones, and N(0, I)."""
    mean = target.reference_draws.mean(axis=0)
    precision = np.linalg.inv(np.cov(target.reference_draws, rowvar=False))
    return {
        "reference": Gaussian(mean, precision),
        "narrow": Gaussian(mean, 4 * precision),
        "wide": Gaussian(mean, precision / 4),
        "unit": Gaussian(np.zeros(target.dim), np.eye(target.dim)),
    }


def distinct(
    candidates: dict[str, Gaussian], bound: Callable[[Gaussian], float]
) -> dict[str, Gaussian]:
    """The best, and others near it that are not the same optimum."""
    scores = {name: bound(gaussian) for name, gaussian in candidates.items()}
    finite = [name for name in scores if np.isfinite(scores[name])]
    kept: dict[str, Gaussian] = {}
    for name in sorted(finite, key=scores.get, reverse=True):
        near = not kept or scores[name] > scores[next(iter(kept))] - HOPELESS
        if near and all(candidates[name].divergence(g) > SAME for g in kept.values()):
            kept[name] = candidates[name]
    return kept


@dataclass(frozen=True)
class Best:
    """The best Gaussian known, its bound, and the bounds that the starts led to."""

    bound: Bound
    mean: np.ndarray
    cov: np.ndarray
    by_start: dict[str, float]


def careful_run(
    target: Target,
    evaluator: BoundEvaluator,
    others: Iterable[tuple[str, np.ndarray, np.ndarray]] = (),
    seed: int = 1000,
) -> Best:
    """Ascend from all starts, and average from where the best of them ended.

    :param others: more starts: name, mean and covariance.
    :param seed: of the draws, none of which `evaluator` may have.
    """
    evaluate = Evaluator(target)
    candidates = starts(target)
    for name, mean, cov in others:
        candidates[name] = Gaussian(mean, np.linalg.inv(cov))
    for index, num_draws in enumerate(ASCENTS):
        noise = normal_draws(num_draws, target.dim, seed + index)
        if index:
            candidates = distinct(candidates, lambda g: evaluate.bound(g, noise))  # noqa: B023
        candidates = {name: ascend(evaluate, g, noise) for name, g in candidates.items()}
    bounds = {name: evaluator(g.mean, g.cov).value for name, g in candidates.items()}
    start = max(bounds, key=bounds.get)
    candidates["average"] = average(evaluate, candidates[start], seed + len(ASCENTS))
    final = {name: evaluator(g.mean, g.cov) for name, g in candidates.items()}
    winner = max(final, key=lambda name: final[name].value)
    gaussian = candidates[winner]
    by_start = {name: bound.value for name, bound in final.items()}
    return Best(final[winner], gaussian.mean, gaussian.cov, by_start)
