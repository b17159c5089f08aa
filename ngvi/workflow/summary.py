"""The table of a posterior that is reported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ngvi.errors import is_number
from ngvi.inference.draws.pareto import smoothed_weights
from ngvi.inference.draws.psis import EQUAL, from_log_weights
from ngvi.inference.draws.weights import why_undefined
from ngvi.inference.posterior import to_numpy


def summary_table(
    result: Any, var_names: str | Sequence[str] | None, prob: float, num_draws: int
) -> Any:
    """Return the table of ``summary``."""
    import pandas

    if not is_number(prob, lambda value: 0 < value < 1):
        raise ValueError(f"prob must be between 0 and 1, got {prob!r}.")
    with result._at_end() as (problem, state):
        noise = np.random.default_rng(0).standard_normal((num_draws, problem.space.noise_dim))
        theta, log_q = problem.space.draw(state, noise)
        why = why_undefined(result, problem)
        log_weights = None if why else problem.objective.log_density(state, theta) - log_q
        rounding = problem.rounding(float(np.abs(log_q).max()))
    sites = {site.name for site in result._gaussian().sites}
    found = result._ppl.at(result, theta).items()
    values = {name: to_numpy(value) for name, value in found if name in sites}
    names = _names(var_names, values)
    labels = [label for name in names for label in labels_of(name, values[name].shape[1:])]
    columns = np.concatenate([values[name].reshape(len(values[name]), -1) for name in names], 1)
    columns = columns.astype(float)
    low, high = 50 * (1 - prob), 50 * (1 + prob)
    ends = np.percentile(columns, [low, high], axis=0)
    table = {
        "mean": columns.mean(0),
        "sd": columns.std(0, ddof=1),
        f"{low:.3g}%": ends[0],
        f"{high:.3g}%": ends[1],
    }
    weighed = np.full((3, len(labels)), np.nan)
    if log_weights is not None:
        weighed, why = _weighed(columns, log_weights, rounding)
    found = pandas.DataFrame({**table, **dict(zip(COLUMNS, weighed, strict=True))}, index=labels)
    if why:
        found.attrs["note"] = why
    return found


#: Columns of what importance weights say.
COLUMNS = ("mean_shift", "sd_ratio", "k_hat")


def _names(asked: Any, known: Collection[str]) -> list[str]:
    """Return the names of the sites that are asked for, all by default."""
    if asked is None:
        return list(known)
    names = [asked] if isinstance(asked, str) else list(asked)
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(map(repr, known))
        raise ValueError(f"var_names= has {unknown[0]!r}; the latent sites are {listed}.")
    return names


def labels_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """``"beta[2]"`` for each number of a site."""
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _weighed(
    columns: np.ndarray, log_weights: np.ndarray, rounding: float
) -> tuple[np.ndarray, str]:
    """Return shifts of means, ratios of standard deviations, k-hat, and a verdict."""
    centred = columns - columns.mean(0)

    def moments(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return weights @ centred, weights @ centred**2

    found = from_log_weights(log_weights, moments, (), rounding, columns)
    if found.pareto_k is None or not len(found.marginals):
        return np.full((3, columns.shape[1]), np.nan), found.verdict
    finite = np.isfinite(log_weights)
    is_equal = log_weights[finite].std() < EQUAL
    shape = 0.0 if is_equal else found.pareto_k
    with np.errstate(divide="ignore"):
        of_values = np.log(np.abs(centred[finite]))
    k_hats = [max(shape, _shape(log_weights[finite] + one)) for one in of_values.T]
    shift, ratio = found.marginals.shift, found.marginals.scale_ratio
    return np.array([shift, ratio, k_hats]), found.verdict


def _shape(logs: np.ndarray) -> float:
    """Return the tail's shape for values times weights; -inf where all are equal."""
    logs = logs[np.isfinite(logs)]
    if not len(logs) or np.ptp(logs) == 0:
        return -np.inf
    return smoothed_weights(logs)[1]
