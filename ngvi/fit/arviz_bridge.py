"""What is asked of ArviZ: Pareto smoothed importance sampling, and its container of draws.

ArviZ 1 took the names of ArviZ 0 apart into three packages. ArviZ is imported on first use, for it
takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ngvi.structure.layout import Site


def smoothed_weights(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto smoothed importance weights (Vehtari et al., 2024).

    :param log_weights: finite, shape ``(n,)``.
    :return: normalised logarithms of the smoothed weights, and the shape ``k`` of the tail;
        infinite if the tail is too short for an estimate.
    :raises ModuleNotFoundError: without ArviZ.
    """
    arviz = _arviz()
    log_weights = np.array(log_weights, np.float64)
    log_weights -= log_weights.max()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if hasattr(arviz, "psislw"):
                smoothed, shape = arviz.psislw(log_weights.copy())
            else:
                smoothed, shape = _of_arviz_stats(log_weights)
        except ValueError:  # the tail is of equal values, or of fewer than five
            return log_weights - _log_sum_exp(log_weights), np.inf
    return np.asarray(smoothed), float(shape)


def inference_data(
    posterior: dict[str, np.ndarray],
    observed_data: dict[str, np.ndarray],
    dims: dict[str, list[str]],
    attrs: dict[str, Any],
) -> Any:
    """Draws as ``arviz.InferenceData``, or as the ``xarray.DataTree`` that ArviZ 1 has instead.

    :param posterior: by site, a leading axis of draws; they become one chain.
    :param observed_data: by site.
    :param dims: the names of a site's axes, without those of chain and draw.
    :param attrs: of the group ``posterior``.
    :raises ModuleNotFoundError: without ArviZ.
    """
    arviz = _arviz()
    groups = {"posterior": {name: value[None] for name, value in posterior.items()}}
    if observed_data:
        groups["observed_data"] = observed_data
    if hasattr(arviz, "psislw"):
        data = arviz.from_dict(**groups, dims=dims)
    else:
        data = arviz.from_dict(groups, dims=dims)
    data["posterior"].attrs.update(attrs)
    return data


def plate_dims(sites: Iterable[Site], posterior: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """The names of the axes of sites in plates: a plate's axis is called like the plate.

    :param sites: whose plates are known.
    :param posterior: by site, a leading axis of draws.
    """
    dims = {}
    for site in sites:
        # A variable may not be called like an axis that it does not have.
        plates = {p.axis: p.name for p in site.plates if p.name not in posterior}
        if plates and site.name in posterior:
            axes = range(posterior[site.name].ndim - 1)
            dims[site.name] = [plates.get(axis, f"{site.name}_dim_{axis}") for axis in axes]
    return dims


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ 0.23 announces ArviZ 1
            import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This needs {error.name}: pip install {error.name}", name=error.name
        ) from error
    return arviz


def _of_arviz_stats(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    from arviz_stats.base import array_stats

    # It is made for log likelihoods, which it negates: the result tells what it did.
    for sign in (-1.0, 1.0):
        smoothed, shape = array_stats.psislw(sign * log_weights)
        if smoothed[np.argmax(log_weights)] >= np.max(smoothed):
            break
    return smoothed, shape


def _log_sum_exp(values: np.ndarray) -> float:
    largest = values.max()
    return float(largest + np.log(np.sum(np.exp(values - largest))))
