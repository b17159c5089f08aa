"""Whether a model's Hessian is its curvature, and which sites keep it from being so.

Automatic differentiation misses curvature in two ways. An operation may have no second derivative,
which raises. Or it may have a wrong one, silently: a backward pass written with numpy, or a kink
(``abs``, ``relu``) in which all of the curvature sits. The second is found by the fundamental
theorem of calculus along a segment through a draw,

    grad l(theta + v) - grad l(theta - v) = int_{-1}^{1} hess l(theta + t v) v dt,

whose right-hand side a few quadrature nodes give accurately where ``l`` is smooth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pyro_ngvi.tracing.log_density import Latents, LogDensity

#: Gauss-Legendre nodes on the segment, or on each panel of it.
NUM_NODES = 5

#: A suspicion is checked again with so many panels: of a smooth function it goes away.
MANY_PANELS = 16

#: A Hessian that misses more than this part of the gradient's change is no curvature.
MAX_DEFECT = 0.3


def hessian_misses_curvature(density: LogDensity, centre: Latents, step: Latents) -> bool:
    """Whether the log density's gradient changes by much else than its Hessian says.

    :param centre: ``theta`` by site, each of shape ``(d,)``.
    :param step: ``v`` by site, each of shape ``(d,)``; a fraction of a standard deviation.
    :raises RuntimeError: if an operation cannot be differentiated twice.
    """
    return bool(_missed(lambda at: {"": density(at, same_noise=True)}, centre, step))


def sites_without_hessian(density: LogDensity, centre: Latents, step: Latents) -> list[str]:
    """The sites whose log density cannot be differentiated twice, or only wrongly so.

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
    """Which of the functions that ``evaluate`` returns change other than their Hessians say."""
    suspects: set[str] | None = None
    for panels in (1, MANY_PANELS):
        nodes, weights = _quadrature(panels)
        latents = _segment(centre, step, nodes)
        found = set()
        for name, values in evaluate(latents).items():
            if suspects is not None and name not in suspects:
                continue
            try:
                if _defect(values, latents, step, weights) > MAX_DEFECT:
                    found.add(name)
            except RuntimeError:
                if raising:
                    raise
                found.add(name)
        suspects = found
        if not suspects:
            break
    return sorted(suspects)


def _quadrature(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on [-1, 1], the two ends first, and the weights of the others."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    centres = (2.0 * np.arange(panels) + 1.0) / panels - 1.0
    nodes = (centres[:, None] + nodes / panels).reshape(-1)
    return np.concatenate([[-1.0, 1.0], nodes]), np.tile(weights / panels, panels)


def _segment(centre: Latents, step: Latents, nodes: np.ndarray) -> Latents:
    return {
        site: (theta + torch.as_tensor(nodes).to(theta)[:, None] * step[site]).requires_grad_()
        for site, theta in centre.items()
    }


def _defect(values: Tensor, latents: Latents, step: Latents, weights: np.ndarray) -> float:
    """The part of the gradient's change that the Hessian misses; 0 if it cannot be known."""
    if not (values.requires_grad and values.isfinite().all()):
        return 0.0
    leaves = list(latents.values())
    gradients = torch.autograd.grad(
        values.sum(), leaves, create_graph=True, retain_graph=True, materialize_grads=True
    )
    # Coordinates differ in scale; the step tells how.
    scale = torch.cat([v.abs() for v in step.values()])
    along = sum((g * v).sum() for g, v in zip(gradients, step.values(), strict=True))
    products = [torch.zeros_like(leaf) for leaf in leaves]
    if along.requires_grad:
        products = torch.autograd.grad(along, leaves, retain_graph=True, materialize_grads=True)
    gradient = scale * torch.cat([g.detach() for g in gradients], -1)
    change = gradient[1] - gradient[0]
    integral = scale * (torch.as_tensor(weights).to(scale) @ torch.cat(products, -1)[2:])
    size = torch.maximum(change.norm(), integral.norm())
    rounding = 1e3 * torch.finfo(scale.dtype).eps * gradient.abs().amax(0).norm()
    defect = ((change - integral).norm() - rounding) / size
    return float(defect) if defect.isfinite() else 0.0
