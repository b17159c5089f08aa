"""Convergence of chains of draws, by ArviZ: R-hat, effective draws, energy.

ArviZ is imported on first use, for it takes seconds.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def import_arviz() -> Any:
    """Return the library."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ 0.23 announces ArviZ 1
            import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This needs {error.name}: pip install {error.name}", name=error.name
        ) from error
    return arviz


def r_hat(draws: np.ndarray) -> np.ndarray:
    """Return R-hat of ranks, the larger one of bulk and tails; 1 for a constant.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``.
    """
    halves = np.stack(np.array_split(draws[0], 2)) if len(draws) == 1 else draws
    return np.where(np.ptp(draws, (0, 1)) == 0, 1.0, _by_variable("rhat", halves))


def effective_draws(draws: np.ndarray) -> np.ndarray:
    """Return how many independent draws have as little noise in the bulk.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``; all of them for a constant.
    """
    return _by_variable("ess", draws)


def error_of_stddevs(draws: np.ndarray) -> np.ndarray:
    """Return the standard error of each standard deviation, relative to it; zero for a constant.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = _by_variable("mcse", draws, method="sd") / draws.std((0, 1))
    return np.where(np.isnan(errors), 0.0, errors)


def energy_information(energy: np.ndarray) -> float:
    """Return E-BFMI of the worst chain: how much of the energy's variance a transition changes.

    :param energy: of each transition, shape ``(chains, draws)``.
    """
    return float(np.min(import_arviz().bfmi(energy)))


def _by_variable(name: str, draws: np.ndarray, **options: str) -> np.ndarray:
    from xarray import Dataset

    data = Dataset({"z": (("chain", "draw", "d"), draws)})
    with np.errstate(divide="ignore", invalid="ignore"):
        return getattr(import_arviz(), name)(data, **options)["z"].to_numpy()
