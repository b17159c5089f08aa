"""What is asked of ArviZ: its container of draws.

ArviZ 1 has another one than ArviZ 0. It is imported on first use, for it takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ngvi.latents.layout import Site


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
    if arviz.__version__.startswith("0."):  # ArviZ 1 still has names that it warns of
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
