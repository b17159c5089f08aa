"""The fastest way for several draws to share a run that gives what a loop does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from pyro_ngvi.tracing.log_density import Latents, LogDensity

#: Two ways to evaluate the same density differ by less, relatively: what rounding explains.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


def choose_particles(density: LogDensity, latents: Latents) -> None:
    r"""Decide how draws share a run, and keep it in \`facts\` of the density.

    :param latents: a few draws, each of shape ``(K, d)``.
    """
    facts = density.facts
    ends = {site: value[[0, -1]].requires_grad_() for site, value in latents.items()}
    # Distributions draw in place, which torch.vmap does not allow.
    for particles in () if facts.is_stochastic else ("vmap", "writing vmap"):
        try:
            facts.particles = particles
            actual = _value_and_gradient(density, ends)
            facts.particles = "loop"
            expected = _value_and_gradient(density, ends)
        except Exception:  # noqa: BLE001
            continue  # whatever the model cannot do in this way, the loop can
        if _agree(actual, expected):
            facts.particles = particles
            return
    facts.particles = "loop"
    try:
        _value_and_gradient(density, {site: value[:1] for site, value in ends.items()})
    except CheckpointError:
        # What a model checkpoints is run again in the backward pass, where it is not rewritten.
        facts.rewrites = False
        choose_particles(density, latents)
    except Exception:  # noqa: BLE001
        pass  # others report it


def _value_and_gradient(density: LogDensity, latents: Latents) -> Tensor:
    with torch.enable_grad():
        values = density(latents)
        parts = [values.unsqueeze(-1)]
        if values.requires_grad:
            leaves = list(latents.values())
            parts += torch.autograd.grad(values.sum(), leaves, materialize_grads=True)
    return torch.cat(parts, -1).detach()


def _agree(actual: Tensor, expected: Tensor) -> bool:
    tolerance = _ROUNDING.get(expected.dtype, 1e-2)
    return actual.shape == expected.shape and torch.allclose(
        actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )
