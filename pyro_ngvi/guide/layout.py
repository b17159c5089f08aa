"""The layout of a guide's latent vector, for families that have a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi.guide.layout import latent_sites
from ngvi.latents.layout import Dependencies, Layout, curvature_of
from pyro_ngvi.tracing.additive_terms import is_sum_of_terms
from pyro_ngvi.tracing.dependencies import hessian_product, log_density, posterior_dependencies


def layout_of(guide: Any, model: Callable, args: tuple, kwargs: dict) -> Layout:
    """Make the layout of a guide that is being set up; a family that asks has the model traced.

    :param model: with its enumerated latents.
    """
    shapes = dict(guide._unconstrained_shapes)
    sites = latent_sites(guide.prototype_trace.nodes, shapes)

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

    def density(latent: Tensor) -> Tensor:
        return log_density(model, args, kwargs, unpack(latent))

    def find_dependencies() -> Dependencies:
        pairs = posterior_dependencies(model, args, kwargs, shapes)
        start = guide._init_loc().detach()

        def product_at(point: np.ndarray) -> Callable | None:
            return hessian_product(density, torch.as_tensor(point).to(start))

        return curvature_of(pairs, product_at, start.numpy(force=True), sites)

    def is_sum() -> bool:
        start = guide._init_loc().detach()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            has_others = density(start).requires_grad  # parameters of the model's own
            return not has_others and is_sum_of_terms(density, start)

    return Layout(sites, find_dependencies, is_sum)
