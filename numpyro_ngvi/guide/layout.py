"""The layout of a guide's latent vector, for families that have a structure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.guide.layout import latent_sites
from ngvi.latents.layout import Dependencies, Layout, curvature_of
from numpyro_ngvi.guide.prototype import cached_of_fit
from numpyro_ngvi.tracing.additive_terms import is_sum_of_terms
from numpyro_ngvi.tracing.dependencies import energy_of, hessian_product, posterior_dependencies


def layout_of(guide: Any, model: Callable, args: tuple, kwargs: dict) -> Layout:
    """Make the layout of a guide that is being set up; a family that asks has the model traced.

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
        pairs = posterior_dependencies(model, args, kwargs, shapes)
        start = np.asarray(guide._init_latent)
        at = hessian_product(guide.model, args, kwargs, unpack)
        return curvature_of(pairs, lambda point: at(jnp.asarray(point, start.dtype)), start, sites)

    def is_sum() -> bool:
        if any(site["type"] in ("param", "mutable") for site in guide.prototype_trace.values()):
            return False
        energy = energy_of(guide.model, args, kwargs)
        return is_sum_of_terms(lambda latent: energy(unpack(latent)), guide._init_latent)

    cached = partial(cached_of_fit, guide, "dependencies", find_dependencies)
    return Layout(sites, cached, is_sum)
