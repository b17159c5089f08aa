"""Sites that keep a model's Hessian from being its curvature.

See :mod:`ngvi.estimators.missed_curvature`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ngvi.estimators.missed_curvature import Along, missed
from pyro_ngvi.tracing.log_density import Latents, LogDensity


def hessian_misses_curvature(density: LogDensity, centre: Latents, step: Latents) -> bool:
    """Tell whether the log density's gradient changes by much else than its Hessian says.

    :param centre: ``theta`` by site, each of shape ``(d,)``.
    :param step: ``v`` by site, each of shape ``(d,)``; a fraction of a standard deviation.
    :raises RuntimeError: if an operation cannot be differentiated twice.
    """
    return bool(_missed(lambda at: {"": density(at, same_noise=True)}, centre, step))


def sites_without_hessian(density: LogDensity, centre: Latents, step: Latents) -> list[str]:
    """Return the sites whose log density cannot be differentiated twice, or only wrongly so.

    The arguments are those of :func:`hessian_misses_curvature`. Where latents are summed out
    there is no log density of a site, and the list is empty.
    """
    facts = density.facts
    if facts.is_enumerated or facts.guide_is_enumerated:
        return []

    def by_site(at: Latents) -> dict[str, Tensor]:
        return density.over_draws(lambda draw: _by_site(density, draw), at, same_noise=True)

    return _missed(by_site, centre, step, raising=False)


def _by_site(density: LogDensity, latents: Latents) -> dict[str, Tensor]:
    model_trace, guide_trace = density.traces(latents)
    log_probs = {}
    for trace, sign in ((model_trace, 1), (guide_trace, -1)):
        for name, site in trace.nodes.items():
            if site["type"] == "sample" and name not in latents:
                log_probs[name] = log_probs.get(name, 0.0) + sign * site["log_prob_sum"]
    return log_probs


def _missed(
    evaluate: Callable[[Latents], dict[str, Tensor]],
    centre: Latents,
    step: Latents,
    *,
    raising: bool = True,
) -> list[str]:
    """Return which functions of ``evaluate`` change other than their Hessians say."""
    whole = torch.cat(list(step.values()))

    def at_nodes(nodes: np.ndarray, names: set[str] | None) -> dict[str, Along]:
        latents = {
            site: (theta + torch.as_tensor(nodes).to(theta)[:, None] * step[site]).requires_grad_()
            for site, theta in centre.items()
        }
        found: dict[str, Along] = {}
        for name, values in evaluate(latents).items():
            if names is not None and name not in names:
                continue
            if not (values.requires_grad and values.isfinite().all()):
                continue
            try:
                found[name] = _along(values, latents, step)
            except RuntimeError:
                if raising:
                    raise
                found[name] = None
        return found

    return missed(at_nodes, whole.double().numpy(force=True), torch.finfo(whole.dtype).eps)


def _along(values: Tensor, latents: Latents, step: Latents) -> tuple[np.ndarray, np.ndarray]:
    leaves = list(latents.values())
    gradients = torch.autograd.grad(
        values.sum(), leaves, create_graph=True, retain_graph=True, materialize_grads=True
    )
    along = sum((g * v).sum() for g, v in zip(gradients, step.values(), strict=True))
    products = [torch.zeros_like(leaf) for leaf in leaves]
    if along.requires_grad:
        products = torch.autograd.grad(along, leaves, retain_graph=True, materialize_grads=True)
    gradient, product = (torch.cat(list(parts), -1) for parts in (gradients, products))
    return gradient.double().numpy(force=True), product.double().numpy(force=True)
