"""Latents of a model that interact in the posterior.

:func:`posterior_dependencies` runs the model once with tensors that remember where they come
from. :func:`hessian_product` evaluates the model's curvature at one point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.inspect import get_dependencies
from torch import Tensor
from torch.distributions import biject_to

from ngvi.latents.layout import Pairs, interacting_pairs
from pyro_ngvi.tracing.messengers import Values


def posterior_dependencies(
    model: Callable, args: tuple, kwargs: dict, latents: Iterable[str]
) -> tuple[Pairs, Pairs]:
    """:func:`ngvi.latents.layout.interacting_pairs` by Pyro's ``get_dependencies``.

    :param latents: names of the sites in question. Other latents are taken to be integrated
        out, as enumerated ones are.
    """
    with poutine.block():
        found = get_dependencies(model, args, kwargs)["posterior_dependencies"]
        with torch.random.fork_rng(devices=[]), torch.no_grad(), pyro.validation_enabled(False):
            trace = poutine.trace(model).get_trace(*args, **kwargs)
    return interacting_pairs(found, trace.nodes, latents)


def hessian_product(
    density: Callable[[Tensor], Tensor], at: Tensor
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Products with the Hessian of the model's log density.

    :param density: of a latent vector.
    :param at: the latent vector where it is taken.
    :return: from ``v`` to ``H v``, both of shape ``(m, d)``; or None if the model cannot be
        differentiated twice or is not finite there.
    """
    leaf = at.detach().clone().requires_grad_()
    try:
        # One minibatch and one draw of the other latents, whenever it is called.
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            (slope,) = torch.autograd.grad(density(leaf), leaf, create_graph=True)
    except Exception:  # noqa: BLE001
        return None  # an operation without a second derivative, of any kind

    def product(vectors: np.ndarray) -> np.ndarray:
        if not slope.requires_grad:
            return np.zeros_like(vectors)
        products = [
            torch.autograd.grad(
                slope, leaf, torch.as_tensor(v).to(leaf), retain_graph=True, materialize_grads=True
            )[0]
            for v in vectors
        ]
        return torch.stack(products).numpy(force=True)

    try:
        return product if np.isfinite(product(np.ones((1, len(leaf))))).all() else None
    except Exception:  # noqa: BLE001
        return None


def log_density(
    model: Callable, args: tuple, kwargs: dict, unconstrained: dict[str, Tensor]
) -> Tensor:
    """Return the log density of a model in nats, a scalar, with the Jacobians of its constraints.

    :param unconstrained: values by site. Other latents are drawn.
    """
    jacobian = torch.zeros(())

    def constrained(site: dict) -> Tensor | None:
        nonlocal jacobian
        if site["name"] not in unconstrained:
            return None
        value = unconstrained[site["name"]]
        transform = biject_to(site["fn"].support)
        found = transform(value)
        jacobian = jacobian + transform.log_abs_det_jacobian(value, found).sum()
        return found

    with pyro.validation_enabled(False), poutine.block():
        trace = poutine.trace(Values(constrained)(model)).get_trace(*args, **kwargs)
        return trace.log_prob_sum() + jacobian
