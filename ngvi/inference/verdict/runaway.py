"""Return whether a fit is on its way to infinity.

For an improper posterior, the bound rises until numbers overflow, possibly after a few steps in
single precision. A mean runs away (such as the last cut point, if nobody chose the last category),
or a standard deviation, or both. In each case the draws move away from the start. Along that axis,
draws ``f`` times as far away add ``log f`` to the bound by their entropy. If the log density falls
by less than half of that, the search would not end. A parameter of the model is at its limit if the
bound rises up to its value, and continues to rise up to many times that value (for instance the
concentration of a negative binomial, if the counts are Poisson).

Values are computed in double precision if the model allows it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ngvi.inference.draws.coordinates import MAX_DENSE
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.latents.layout import name_of

#: Unconstrained distance from its start above which a latent is checked: for a logarithm, a factor
#: of 1e13.
DISTANT = 30.0
#: Multiple of that distance, with its square, at which the density is checked: integrable tails
#: fall there.
FARTHER = 4.0
#: Unconstrained distance from its start above which a parameter is checked, at half of it on both
#: sides, and up to twice as far out.
PARAMETER_DISTANT = 2.0
#: Number of draws for these checks.
NUM_DRAWS = 64


def runaway(
    problem: Problem, state: State, tolerance: float = 0.0, is_optimum: bool = False
) -> str:
    """Return what runs to infinity, in a sentence that says what to try; or nothing.

    :param is_optimum: whether the state is one: then gradients have seen no way on.
    :param tolerance: what a parameter's limit has to be worth, in nats, beyond where it is.
    """
    if problem.objective.is_subsampled:
        return ""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((NUM_DRAWS, problem.space.noise_dim))
    theta, _ = problem.space.draw(state, noise)
    if not np.isfinite(theta).all():
        return ""
    found = _of_latents(problem, state, theta, is_optimum)
    return found or _of_parameters(problem, state, theta, tolerance)


def widens_without_limit(problem: Problem, state: State) -> bool:
    """Return whether a Gaussian gains without limit as it widens about its own mean."""
    noise = np.random.default_rng(0).standard_normal((NUM_DRAWS, problem.space.noise_dim))
    theta, _ = problem.space.draw(state, noise)
    gaps = theta - problem.space.mean(state)
    if not np.isfinite(gaps).all():
        return True
    return _is_endless(problem, state, theta, gaps, is_optimum=False)


def _is_endless(
    problem: Problem, state: State, theta: np.ndarray, gaps: np.ndarray, is_optimum: bool
) -> bool:
    """Return whether the density has no end along the axis where draws are.

    Nor, where the state is no optimum, along the axis that moves the density least.
    """
    before = _values(problem, state, theta)
    longest = np.linalg.svd(gaps / (np.abs(gaps).max() or 1.0), full_matrices=False)[2][0]
    shares = np.abs(longest) / np.abs(longest).max()
    # Smaller parts are what data determine, and move little.
    parts = (0.0, LEVELS.tiny, LEVELS.negligible)
    axes = [np.where(shares > part, longest, 0.0) for part in parts]
    for axis in axes if is_optimum else [*axes, *_flattest_axis(problem, state)]:
        along = (gaps @ axis)[:, None] * axis / float(axis @ axis)
        rises = []
        for factor in (FARTHER, FARTHER**2):
            with np.errstate(all="ignore"):
                farther = _values(problem, state, theta + (factor - 1.0) * along)
                rises.append(float(np.mean(farther - before)) + 0.5 * math.log(factor))
        known = [rise for rise in rises if math.isfinite(rise)]  # numbers end before a density does
        if known and min(known) > 0:
            return True
    return False


def _flattest_axis(problem: Problem, state: State) -> list[np.ndarray]:
    """Return the axis of the Gaussian's own that moves the density least, if there is one.

    The longest is tilted by what is left of the way of the latents that data determine.
    """
    space, dim = problem.space, problem.space.dim
    if space.noise_dim != dim or dim > MAX_DENSE:
        return []
    noise = np.random.default_rng(0).standard_normal((max(NUM_DRAWS, 2 * dim), dim))
    theta, _ = space.draw(state, noise)
    ends, _ = space.draw(state, np.concatenate([np.eye(dim), np.zeros((1, dim))]))
    factor = (ends[:-1] - ends[-1]).T
    slopes = problem.objective.gradient(state, theta)[1] @ factor
    if not np.isfinite(slopes).all():
        return []
    axis = factor @ np.linalg.svd(slopes)[2][-1]
    size = np.abs(axis).max()
    return [axis / size] if size > 0.0 else []


def _values(problem: Problem, state: State, theta: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        found = problem.objective.in_double(state, theta)
        return problem.objective.log_density(state, theta) if found is None else found


def _of_latents(problem: Problem, state: State, theta: np.ndarray, is_optimum: bool) -> str:
    gaps = theta - problem.space.mean(problem.space.initial)
    sizes = np.sqrt(np.mean((gaps / (largest := np.abs(gaps).max() or 1.0)) ** 2, 0)) * largest
    index = int(np.argmax(sizes))
    if not sizes[index] > DISTANT:
        return ""
    if not _is_endless(problem, state, theta, gaps, is_optimum):
        return ""
    name = name_of(index, problem.space.sites)
    mean, sd = float(theta[:, index].mean()), float(theta[:, index].std())
    return (
        f"unconstrained '{name}' runs away without limit (mean {mean:.2g}, sd {sd:.1g}): the "
        "posterior is improper, for instance because the prior is flat and the data do not "
        "determine the latent (a category that nobody chose, a separable logistic regression), or "
        "its scale is far from one. Give it a proper prior, or data in other units"
    )


def _of_parameters(problem: Problem, state: State, theta: np.ndarray, tolerance: float) -> str:
    space = problem.space
    now, start = space.model_parameters(state), space.model_parameters(space.initial)
    for name, value in now.items():
        moved = np.atleast_1d(np.asarray(value, float) - start[name])
        place = np.unravel_index(np.argmax(np.abs(moved)), moved.shape)
        if not PARAMETER_DISTANT < abs(moved[place]) < math.inf:
            continue
        levels = []
        for move in np.array([-0.5, 0.0, 0.5, 1.0, 2.0]) * PARAMETER_DISTANT:
            steps = {one: np.zeros(np.shape(other)) for one, other in now.items()}
            np.atleast_1d(steps[name])[place] += move * np.sign(moved[place])
            at = space.moved(state, list(steps.values()))
            levels.append(float(np.mean(_values(problem, at, theta))))
        # Not a number is no rise.
        is_rising = all(new >= old for old, new in itertools.pairwise(levels))
        if is_rising and levels[-1] - levels[1] > tolerance and levels[0] < levels[1]:
            index = f"[{', '.join(map(str, place))}]" if moved.size > 1 else ""
            return _at_its_limit(name + index, float(np.atleast_1d(value)[place]), moved[place])
    return ""


def _at_its_limit(name: str, value: float, moved: float) -> str:
    return (
        f"the bound keeps rising with parameter '{name}' of the model (unconstrained "
        f"{value - moved:.2g} at first, {value:.2g} now). Its optimum is at infinity or at the "
        "edge of its support, where the model becomes a simpler one (a negative binomial becomes a "
        "Poisson, say). Use the simpler model, constrain the parameter, or give it a prior"
    )
