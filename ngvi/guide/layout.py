"""The layout of a guide's latent vector, from a trace of either PPL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ngvi.latents.layout import Plate, Site
from ngvi.latents.subsampling import SubsampledLatent


def latent_sites(trace: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[Site]:
    """Return the latent sites in the order of the latent vector.

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


def subsampled_latents(
    sites: Iterable[tuple[str, Any]], full_size: Callable[[Any], int]
) -> list[SubsampledLatent]:
    """Find the latents that have fewer elements than their plates, once for each plate.

    :param sites: the latent sites of a trace.
    :param full_size: of the plate of a frame.
    """
    found = []
    for name, site in sites:
        for frame in site["cond_indep_stack"]:
            size, full = frame.size, full_size(frame)
            if getattr(frame, "vectorized", True) and size != full:
                axis = frame.dim - site["fn"].event_dim
                found.append(SubsampledLatent(name, frame.name, axis, int(size), int(full)))
    return found


def unconstrained_shapes(
    sites: Iterable[tuple[str, Any]], subsampled: Iterable[SubsampledLatent], biject_to: Callable
) -> dict[str, tuple[int, ...]]:
    """Shapes of the unconstrained values by latent site; discrete ones are left out.

    :param subsampled: the latents that have all elements of their plates here.
    """
    full_sizes: dict[str, dict[int, int]] = {}
    for latent in subsampled:
        full_sizes.setdefault(latent.site, {})[latent.axis] = latent.full_size
    shapes = {}
    for name, site in sites:
        if not site["fn"].support.is_discrete:
            shape = list(np.shape(site["value"]))
            for axis, full_size in full_sizes.get(name, {}).items():
                shape[axis] = full_size
            shapes[name] = tuple(biject_to(site["fn"].support).inverse_shape(tuple(shape)))
    return shapes


def summary(family: Any) -> str:
    """Describe a family's structure, number of parameters and memory."""
    num_bytes = sum(array.nbytes for array in family.coordinates().values())
    memory = f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e5 else f"{num_bytes / 1e6:.1f} MB"
    return f"{family.describe()}, {family.num_parameters} parameters, {memory}"
