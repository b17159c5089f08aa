"""The list of everyday models: real data, and models as people write them without care.

Written without a look at the search, for ``fit`` with its defaults: raw scales, effects centred and
not, and no thought of what a Gaussian likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from .interface import Entry

EVERYDAY: dict[str, Entry] = {}


def everyday(data: Callable[[], tuple]) -> Callable:
    """Put a function of a PPL and the data into the list.

    :param data: gives numpy arrays, the model's arguments.
    """

    def add(function: Callable) -> Callable:
        name = f"{function.__module__.rpartition('_')[2]}/{function.__name__}"
        EVERYDAY[name] = Entry(name, function, data)
        return function

    return add


def codes(values: Any) -> np.ndarray:
    """Values as 0, 1, 2, ... in the order in which they come."""
    return pd.factorize(values)[0].astype(np.int64)


def floats(values: Any) -> np.ndarray:
    """Values as floats."""
    return np.asarray(values, dtype=float)
