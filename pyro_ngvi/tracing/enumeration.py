"""Log densities with discrete latents summed out, by the machinery of ``TraceEnum_ELBO``."""

from __future__ import annotations

import torch
from opt_einsum import shared_intermediates
from pyro.infer.traceenum_elbo import _compute_model_factors
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.rings import SampleRing
from pyro.poutine import Trace
from torch import Tensor


def enumerated_log_density(
    model_trace: Trace, guide_trace: Trace, particles: str | None = None
) -> Tensor:
    """``log p - log q`` of two packed traces, with the model's enumerated latents summed out.

    It is what ``TraceEnum_ELBO`` computes where the guide has no enumerated and no
    unreparameterised sites.

    :param particles: the name of a plate that stays.
    :return: a scalar, or a vector along that plate.
    """
    costs, log_factors, _, sum_dims, scale = _compute_model_factors(model_trace, guide_trace)
    terms = [term for group in costs.values() for term in group]
    if log_factors:
        dim_to_size = {
            dim: size
            for group in log_factors.values()
            for term in group
            for dim, size in zip(term._pyro_dims, term.shape, strict=True)
        }
        with shared_intermediates() as cache:
            ring = SampleRing(cache=cache, dim_to_size=dim_to_size)
            contracted = contract_tensor_tree(log_factors, sum_dims, ring=ring)
        terms += [
            packed.scale_and_mask(term, scale=scale)
            for group in contracted.values()
            for term in group
        ]
    terms += [
        packed.neg(site["packed"]["log_prob"])
        for site in guide_trace.nodes.values()
        if site["type"] == "sample"
    ]
    kept = "" if particles is None else guide_trace.plate_to_symbol[particles]
    return sum(_sum_to(term, kept) for term in terms)


def _sum_to(term: Tensor, kept: str) -> Tensor:
    dims = [axis for axis, dim in enumerate(term._pyro_dims) if dim != kept]
    return torch.sum(term, dims) if dims else term
