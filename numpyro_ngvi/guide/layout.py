"""The layout of a guide's latent vector, for families that have a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.structure.layout import Dependencies, Layout, Plate, Site
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.dependencies import hessian_product, posterior_dependencies


def latent_sites(trace: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[Site]:
    """The latent sites in the order of the latent vector.

    :param trace: of the model.
    :param shapes: of the unconstrained values by site, in the order of the latent vector.
    """
    sites, start = [], 0
    for name, shape in shapes.items():
        site = trace[name]
        batch_ndim = len(site["fn"].batch_shape)
        plates = sorted(
            (
                # Of the value, which has all elements of a plate that the trace subsamples.
                Plate(f.name, shape[batch_ndim + f.dim], batch_ndim + f.dim)
                for f in site["cond_indep_stack"]
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
    shapes = {name: jnp.shape(value) for name, value in guide._init_locs.items()}
    sites = latent_sites(guide.prototype_trace, shapes)

    def unpack(latent: jax.Array) -> dict[str, jax.Array]:
        values = guide._unpack_latent(latent)
        # Of subsampled plates the model has some elements: any will do, for all are alike.
        for site in sites:
            sizes = {f.name: f.size for f in guide.prototype_trace[site.name]["cond_indep_stack"]}
            for plate in site.plates:
                values[site.name] = jax.lax.slice_in_dim(
                    values[site.name], 0, sizes[plate.name], axis=plate.axis
                )
        return values

    def find_dependencies() -> Dependencies:
        pairs, certain = posterior_dependencies(model, args, kwargs, shapes)
        at = guide._init_latent
        # Away from the start, where a Hessian may vanish by symmetry.
        at = at + jnp.asarray(np.random.default_rng(0).uniform(-0.5, 0.5, at.shape), at.dtype)
        product = hessian_product(guide.model, args, kwargs, unpack, at)
        tolerance = 1e-9 if at.dtype == jnp.float64 else 2e-4
        return Dependencies(pairs, certain, product, tolerance)

    return Layout(sites, find_dependencies)


def summary(family: Family) -> str:
    """A family's structure, number of parameters and memory in words."""
    num_bytes = sum(array.nbytes for array in family.coordinates().values())
    words = [f"{family.num_parameters} parameters", _memory(num_bytes)]
    describe = getattr(family, "describe", None)
    return ", ".join(words if describe is None else [describe(), *words])


def _memory(num_bytes: int) -> str:
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e5 else f"{num_bytes / 1e6:.1f} MB"
