"""Log likelihoods of single observations, by the plates around the observed sites.

An *example* is an element of the plates around an observed site. Observed sites with the same
plates share their examples: their log likelihoods are added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils import _pytree as pytree

from ngvi.networks.examples import Examples, aligned, check_not_enumerated, without_plate
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.log_density import Latents
from pyro_ngvi.tracing.messengers import Values
from pyro_ngvi.tracing.sites import is_subsampled


def examples(density: LogDensity, latents: Latents) -> Examples:
    """Split a log density by examples.

    :param latents: unconstrained latent vectors by site, each of shape ``(K, d)``.
    :raises ValueError: if an observed site is in no plate, or if there are no observed sites, or
        if the model has enumerated latents.
    """
    check_not_enumerated(density.facts.is_enumerated or density.facts.guide_is_enumerated)
    return density.over_draws(lambda draw: _split(density, draw), latents)


def alone(density: LogDensity, count: int) -> tuple[Callable, list[Tensor]]:
    """Run the model on single examples: on their rows of its arguments, each in a batch of one.

    :param count: the number of examples; a tensor with as many rows has one for each.
    :return: the log likelihood of an example from latents, of shape ``(d,)``, and its rows; and the
        rows of all.
    """
    leaves, structure = pytree.tree_flatten((density.args, density.kwargs))
    at = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.shape[:1] == (count,)]

    def log_likelihood(latents: Latents, rows: Sequence[Tensor]) -> Tensor:
        given = list(leaves)
        for index, row in zip(at, rows, strict=True):
            given[index] = row[None]
        one = copy.copy(density)
        one.args, one.kwargs = pytree.tree_unflatten(given, structure)
        with Values(_first_elements):
            # In a plate of a fixed size the one example stands at all places.
            return _split(one, latents).log_likelihood.mean()

    return log_likelihood, [leaves[index] for index in at]


def _first_elements(site: dict[str, Any]) -> Tensor | None:
    """Return what a plate of a minibatch sees instead of random elements."""
    is_drawn = site_is_subsample(site) and site["value"] is None and is_subsampled(site)
    return torch.arange(site["fn"].subsample_size) if is_drawn else None


def _split(density: LogDensity, latents: Latents) -> Examples:
    model_trace, guide_trace = density.traces(latents)
    rest = -guide_trace.log_prob_sum()
    groups: dict[tuple, list[tuple[Tensor, Tensor]]] = {}
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample":
            continue
        if not site["is_observed"] or site["infer"].get("_deterministic"):
            rest = rest + site["log_prob_sum"]
            continue
        if not site["cond_indep_stack"]:
            raise ValueError(without_plate(name, "pyro"))
        frames = sorted(
            (frame for frame in site["cond_indep_stack"] if frame.vectorized),
            key=lambda frame: frame.dim,
        )
        # Elements of a sequential plate are sites of their own.
        key = tuple((f.name, f.size, f.counter) for f in site["cond_indep_stack"])
        groups.setdefault(key, []).append(_by_example(site, [frame.dim for frame in frames]))
    log_likelihoods, scales = map(torch.cat, aligned(groups.values()))
    return Examples(log_likelihoods, scales, rest)


def _by_example(site: dict[str, Any], dims: list[int]) -> tuple[Tensor, Tensor]:
    log_prob = scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])
    scale = torch.as_tensor(site["scale"], dtype=log_prob.dtype, device=log_prob.device)
    log_prob, scale = torch.broadcast_tensors(log_prob, scale)
    others = [dim for dim in range(-log_prob.dim(), 0) if dim not in dims]
    if others:
        log_prob = log_prob.sum(others)
        scale = scale.amax(others)
    return log_prob.reshape(-1), scale.detach().reshape(-1)
