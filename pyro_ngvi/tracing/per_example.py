"""Log likelihoods of single observations, by the plates around the observed sites.

An *example* is an element of the plates around an observed site. Observed sites with the same
plates share their examples: their log likelihoods are added.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from ngvi.estimators.points import Examples, aligned, check_not_enumerated, without_plate
from pyro_ngvi.tracing.log_density import Latents, LogDensity


def examples(
    density: LogDensity,
    latents: Latents,
    around: Callable[[], AbstractContextManager] | None = None,
) -> Examples:
    """Split a log density by examples.

    :param latents: unconstrained latent vectors by site, each of shape ``(K, d)``.
    :param around: makes what each draw's run is inside of; each has one of its own then.
    :raises ValueError: if an observed site is in no plate, or if there are no observed sites, or
        if the model has enumerated latents.
    """
    check_not_enumerated(density.facts.is_enumerated or density.facts.guide_is_enumerated)

    def split(draw: Latents) -> Examples:
        with nullcontext() if around is None else around():
            return _split(density, draw)

    return density.over_draws(split, latents, one_by_one=around is not None)


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
