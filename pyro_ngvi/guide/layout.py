"""The layout of a guide's latent vector, for families that have a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.poutine import Trace
from torch import Tensor

from ngvi.structure.layout import Dependencies, Layout, Plate, Site
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing.dependencies import hessian_product, posterior_dependencies


def latent_sites(trace: Trace, shapes: dict[str, tuple[int, ...]]) -> list[Site]:
    """The latent sites in the order of the latent vector.

    :param trace: of the model.
    :param shapes: of the unconstrained values by site, in the order of the latent vector.
    """
    sites, start = [], 0
    for name, shape in shapes.items():
        site = trace.nodes[name]
        batch_ndim = len(site["fn"].batch_shape)
        plates = sorted(
            (
                # Of the value, which has all elements of a plate that the trace subsamples.
                Plate(f.name, int(shape[batch_ndim + f.dim]), batch_ndim + f.dim)
                for f in site["cond_indep_stack"]
                if f.vectorized
            ),
            key=lambda plate: plate.axis,
        )
        sites.append(Site(name, start, tuple(shape), tuple(plates)))
        start += sites[-1].size
    return sites


def layout_of(guide: Any, model: Callable, args: tuple, kwargs: dict) -> Layout:
    """The layout of a guide that is being set up; nothing is traced unless a family asks.

    :param guide: an ``AutoContinuous`` guide.
    :param model: with its enumerated latents.
    """
    shapes = dict(guide._unconstrained_shapes)
    sites = latent_sites(guide.prototype_trace, shapes)

    def unpack(latent: Tensor) -> dict[str, Tensor]:
        pieces = latent.split([site.size for site in sites])
        values = {s.name: x.reshape(s.shape) for s, x in zip(sites, pieces, strict=True)}
        # Of subsampled plates the model has some elements: any will do, for all are alike.
        for site in sites:
            frames = guide.prototype_trace.nodes[site.name]["cond_indep_stack"]
            sizes = {frame.name: int(frame.size) for frame in frames}
            for plate in site.plates:
                values[site.name] = values[site.name].narrow(plate.axis, 0, sizes[plate.name])
        return values

    def find_dependencies() -> Dependencies:
        pairs, certain = posterior_dependencies(model, args, kwargs, shapes)
        at = guide._init_loc().detach()
        # Away from the start, where a Hessian may vanish by symmetry.
        at = at + torch.as_tensor(np.random.default_rng(0).uniform(-0.5, 0.5, at.shape)).to(at)
        product = hessian_product(model, args, kwargs, unpack, at)
        tolerance = 1e-9 if at.dtype == torch.float64 else 2e-4
        return Dependencies(pairs, certain, product, tolerance)

    return Layout(sites, find_dependencies)


def summary(family: Family) -> str:
    """A family's structure, number of parameters and memory in words."""
    num_bytes = sum(array.numel() * array.element_size() for array in family.coordinates().values())
    words = [f"{family.num_parameters} parameters", _memory(num_bytes)]
    describe = getattr(family, "describe", None)
    return ", ".join(words if describe is None else [describe(), *words])


def _memory(num_bytes: int) -> str:
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e5 else f"{num_bytes / 1e6:.1f} MB"
