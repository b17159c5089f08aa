"""The layout of a guide's latent vector, from a trace of either PPL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngvi.latents.layout import Plate, Site


def latent_sites(trace: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[Site]:
    """The latent sites in the order of the latent vector.

    :param trace: of the model, sites by name.
    :param shapes: of the unconstrained values by site, in the order of the latent vector.
    """
    sites, start = [], 0
    for name, shape in shapes.items():
        site = trace[name]
        batch_ndim = len(site["fn"].batch_shape)
        plates = sorted(
            (
                # Of the value, which has all elements of a plate that the trace subsamples.
                Plate(f.name, int(shape[batch_ndim + f.dim]), batch_ndim + f.dim)
                for f in site["cond_indep_stack"]
                if getattr(f, "vectorized", True)
            ),
            key=lambda plate: plate.axis,
        )
        sites.append(Site(name, start, tuple(shape), tuple(plates)))
        start += sites[-1].size
    return sites


def summary(family: Any) -> str:
    """A family's structure, number of parameters and memory in words."""
    num_bytes = sum(array.nbytes for array in family.coordinates().values())
    memory = f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e5 else f"{num_bytes / 1e6:.1f} MB"
    return f"{family.describe()}, {family.num_parameters} parameters, {memory}"
