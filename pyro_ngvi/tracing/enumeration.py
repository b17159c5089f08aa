"""Log densities with discrete latents summed out, by the machinery of ``TraceEnum_ELBO``.

Its own sums, ``pyro.ops.einsum.torch_log``, have operations without a batching rule. Here this
module is the backend of ``opt_einsum``, for which it has three functions.
"""

from __future__ import annotations

import functools
import math
import operator

import torch
from opt_einsum import shared_intermediates
from pyro.infer.traceenum_elbo import _compute_model_factors
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.einsum.util import Tensordot
from pyro.ops.rings import LogRing
from pyro.poutine import Trace
from torch import Tensor

from ngvi.errors import unequal_scales


def enumerated_log_density(model_trace: Trace, guide_trace: Trace) -> Tensor:
    """``log p - log q`` of two packed traces, with the model's enumerated latents summed out.

    It is what ``TraceEnum_ELBO`` computes where the guide has no enumerated and no
    unreparameterised sites. Latents that are independent of each other may count differently
    often.

    :return: a scalar.
    :raises ValueError: for a site that counts differently often from an enumerated latent that it
        depends on.
    """
    terms = [
        term for part in _of_one_scale(model_trace) for term in _model_terms(part, guide_trace)
    ]
    terms += [
        packed.neg(site["packed"]["log_prob"])
        for site in guide_trace.nodes.values()
        if site["type"] == "sample"
    ]
    return sum(term.sum() for term in terms)


def _of_one_scale(trace: Trace) -> list[Trace]:
    """Return the trace in parts, in each of which what is summed out counts equally often."""
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    owners: dict[str, list[str]] = {}
    for name, site in sites.items():
        if site["infer"].get("_enumerate_dim") is not None:
            owners.setdefault(site["infer"]["_enumerate_symbol"], []).append(name)
    scales: dict[str, float] = {}
    for name, site in sites.items():
        dims = [dim for dim in site["packed"]["log_prob"]._pyro_dims if dim in owners]
        if not dims:
            continue
        scales[name] = _number(site["scale"])
        for dim in dims:
            if scales[name] not in [_number(sites[latent]["scale"]) for latent in owners[dim]]:
                raise ValueError(unequal_scales(owners[dim][0], name))
    if len(set(scales.values())) < 2:
        return [trace]
    parts = []
    for scale in set(scales.values()):
        part = trace.copy()
        part.plate_to_symbol = trace.plate_to_symbol
        others = [name for name, other in scales.items() if other != scale]
        # What depends on no enumerated latent is counted once, in the first part.
        others += [name for name in sites if name not in scales] if parts else []
        for name in others:
            part.remove_node(name)
        parts.append(part)
    return parts


def _number(scale: float | Tensor) -> float:
    """Return a scale, or NaN, which is equal to none, for one that is no number."""
    is_number = not isinstance(scale, Tensor) or scale.dim() == 0
    return float(scale) if is_number else math.nan


def _model_terms(model_trace: Trace, guide_trace: Trace) -> list[Tensor]:
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
            ring = _Ring(cache=cache, dim_to_size=dim_to_size)
            contracted = contract_tensor_tree(log_factors, sum_dims, ring=ring)
        terms += [
            packed.scale_and_mask(term, scale=scale)
            for group in contracted.values()
            for term in group
        ]
    return terms


class _Ring(LogRing):
    _backend = __name__


def transpose(a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return what ``opt_einsum`` calls a permutation."""
    return a.permute(axes)


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Return the logarithm of the sum of products of exponentials, which may be zero."""
    inputs, output = equation.split("->")
    if inputs == output:
        return operands[0].clone()
    inputs = inputs.split(",")
    summed = "".join(sorted(set(equation) - set(output) - set(",->")))
    aligned = [
        x.permute([dims.index(d) for d in output + summed if d in dims])[
            tuple(slice(None) if d in dims else None for d in output + summed)
        ]
        for dims, x in zip(inputs, operands, strict=True)
    ]
    terms = functools.reduce(operator.add, aligned)
    if not summed:
        return terms
    terms = terms.flatten(len(output))
    # The gradient of zero terms is zero, where that of torch.logsumexp is not a number.
    shift = terms.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(terms.dtype).min)
    total = (terms - shift).exp().sum(-1)
    is_zero = total == 0
    return shift.squeeze(-1) + total.masked_fill(is_zero, 1.0).log().masked_fill(is_zero, -math.inf)


tensordot = Tensordot(einsum)
