"""The table of a posterior that is reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ngvi.errors import is_number
from ngvi.inference.pareto import smoothed_weights
from ngvi.inference.psis import LIMITS, from_log_weights


def pandas(what: str) -> Any:
    """The library, imported when it is wanted.

    :param what: needs it.
    :raises ModuleNotFoundError: without it.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what} needs pandas: pip install pandas", name="pandas") from (
            error
        )
    return pandas


def summary_table(
    values: dict[str, np.ndarray],
    log_weights: np.ndarray | None,
    var_names: str | Sequence[str] | None,
    prob: float,
    rounding: float,
    note: str = "",
) -> Any:
    """See ``summary`` of a result.

    :param values: by site, a leading axis of draws.
    :param log_weights: of the draws, in nats; None if they have none.
    :param rounding: of a log weight, in nats.
    :param note: why they have none.
    """
    frame = pandas("result.summary").DataFrame
    if not is_number(prob, lambda value: 0 < value < 1):
        raise ValueError(f"prob must be between 0 and 1, got {prob!r}.")
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
        weighed, note = _weighed(columns, log_weights, rounding)
    found = frame({**table, **dict(zip(COLUMNS, weighed, strict=True))}, index=labels)
    if note:
        found.attrs["note"] = note
    return found


#: Of what importance weights say.
COLUMNS = ("mean_shift", "sd_ratio", "k_hat")


def _names(asked: Any, known: Collection[str]) -> list[str]:
    """Of the sites that are asked for, all by default."""
    if asked is None:
        return list(known)
    is_one = isinstance(asked, str) or not isinstance(asked, Iterable)
    names = [asked] if is_one else list(asked)
    for name in names or [asked]:
        if not isinstance(name, str) or name not in known:
            listed = ", ".join(map(repr, known))
            raise ValueError(f"var_names= has {name!r}; the latent sites are {listed}.")
    return names


def labels_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """``"beta[2]"`` for each number of a site."""
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _weighed(
    columns: np.ndarray, log_weights: np.ndarray, rounding: float
) -> tuple[np.ndarray, str]:
    """By column shift of the mean, ratio of standard deviations and k-hat; and a verdict."""
    centred = columns - columns.mean(0)

    def moments(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return weights @ centred, weights @ centred**2

    found = from_log_weights(log_weights, moments, (), rounding, columns)
    if found.pareto_k is None or not len(found.marginals):
        return np.full((3, columns.shape[1]), np.nan), found.verdict
    finite = np.isfinite(log_weights)
    is_equal = log_weights[finite].std() < LIMITS.equal
    shape = 0.0 if is_equal else found.pareto_k
    with np.errstate(divide="ignore"):
        of_values = np.log(np.abs(centred[finite]))
    k_hats = [max(shape, _shape(log_weights[finite] + one)) for one in of_values.T]
    shift, ratio = found.marginals.shift, found.marginals.scale_ratio
    return np.array([shift, ratio, k_hats]), found.verdict


def _shape(logs: np.ndarray) -> float:
    """The tail's, of values times weights; minus infinity where all are equal."""
    logs = logs[np.isfinite(logs)]
    if not len(logs) or np.ptp(logs) == 0:
        return -np.inf
    return smoothed_weights(logs)[1]
