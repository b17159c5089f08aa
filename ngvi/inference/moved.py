"""Whether weighted draws are as wide as the posterior: its own dynamics move them, and tell.

Importance weights see what is where the proposal's draws are. Draws of the posterior keep their
distribution under a chain that leaves it invariant; draws that are too narrow spread. So a few
weighted draws take some transitions of Hamiltonian Monte Carlo in the Gaussian's coordinates, which
follow ridges and tails to where no proposal has been. No warm-up is needed, for nothing has to
converge: it is a test, of a few thousand gradients at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.problem import Problem
from ngvi.inference.proposals import Weighed


class MoveOptions(NamedTuple):
    """Of :func:`spread_of_moved`."""

    num_chains: int = 64  #: a variance that is half too small is then found
    num_leapfrogs: int = 5
    num_transitions: int = 6  #: of which the second half counts
    max_dim: int = 300  #: of more latents the square of a Gaussian's scale is too much
    step: float = 1.0  #: the first, times d^(-1/4), as optimal scaling has it (Beskos et al., 2013)
    acceptance: tuple[float, float] = (0.6, 0.9)  #: between which a step stays
    growth: float = 1.5  #: of a step
    jitter: float = 0.2  #: of a transition's step, so that no orbit comes back to where it began
    errors: float = 3.0  #: standard errors that are no chance
    least: float = 1.3  #: of a variance that is too small for a remark


OPTIONS = MoveOptions()


def spread_of_moved(
    problem: Problem,
    state: State,
    found: Weighed,
    rng: np.random.Generator,
    options: MoveOptions = OPTIONS,
) -> np.ndarray:
    """By which factor standard deviations are too small, as far as that is certain.

    :param found: draws with their weights.
    :return: shape ``(d,)``, 1 where there is nothing to say.
    """
    dim, weights = problem.space.dim, np.exp(found.log_weights)
    if dim > options.max_dim or problem.space.noise_dim > dim:
        return np.ones(dim)
    mean = weights @ found.latents
    squares = np.square(found.latents - mean)
    variances = weights @ squares
    kurtosis = (weights @ np.square(squares)) / np.square(variances)
    noise = np.sqrt(np.maximum(kurtosis - 1.0, 1.0) / options.num_chains)
    origin, _ = problem.space.draw(state, np.zeros((1, dim)))
    root = problem.space.draw(state, np.eye(dim))[0] - origin  # C', a column of C in each row
    theta, ratios = found.resampled(options.num_chains, rng), np.zeros(dim)
    value, gradient = problem.objective.gradient(state, theta)
    step, half = options.step * dim**-0.25, options.num_transitions // 2
    for index in range(options.num_transitions):
        theta, value, gradient, rate = _transition(
            problem, state, (theta, value, gradient), root, step, rng, options
        )
        if index < half:
            low, high = options.acceptance
            step *= options.growth if rate > high else 1.0 / options.growth if rate < low else 1.0
        else:
            ratios += np.square(theta - mean).mean(0) / variances / (options.num_transitions - half)
    errors = max(options.errors, 1.0 + np.sqrt(2.0 * np.log(dim)))  # the largest of many
    certain = ratios > np.maximum(options.least, 1.0 + errors * noise)
    return np.where(certain, np.sqrt(ratios), 1.0)


def _transition(
    problem: Problem,
    state: State,
    at: tuple[np.ndarray, np.ndarray, np.ndarray],
    root: np.ndarray,
    step: float,
    rng: np.random.Generator,
    options: MoveOptions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """One of each chain: vectors, values, gradients, and the rate of acceptance."""
    theta, value, gradient = at
    momentum = rng.standard_normal(theta.shape)
    energy = value - 0.5 * np.square(momentum).sum(1)
    step = step * rng.uniform(1.0 - options.jitter, 1.0 + options.jitter)
    with np.errstate(over="ignore", invalid="ignore"):  # of a chain that runs away
        for _ in range(options.num_leapfrogs):
            momentum = momentum + 0.5 * step * gradient @ root.T
            theta = theta + step * momentum @ root
            value, gradient = problem.objective.gradient(state, theta)
            momentum = momentum + 0.5 * step * gradient @ root.T
        gain = value - 0.5 * np.square(momentum).sum(1) - energy
    accepted = np.log(rng.uniform(size=len(gain))) < gain  # not if NaN
    row = accepted[:, None]
    theta, gradient = np.where(row, theta, at[0]), np.where(row, gradient, at[2])
    return theta, np.where(accepted, value, at[1]), gradient, float(accepted.mean())
