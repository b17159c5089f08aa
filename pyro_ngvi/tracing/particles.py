"""The fastest way for several draws to share a run that gives what a loop does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from pyro_ngvi.tracing.given_latents import PartnerDraws
from pyro_ngvi.tracing.inspection import ModelFacts
from pyro_ngvi.tracing.log_density import Latents, LogDensity

#: Two ways to evaluate the same density differ by less, relatively: what rounding explains.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


def choose_particles(density: LogDensity, latents: Latents) -> None:
    r"""Decide how draws share a run, and keep it in \`facts\` of the density.

    :param latents: a few draws, each of shape ``(K, d)``.
    """
    facts = density.facts
    ends = {site: value[[0, -1]].requires_grad_() for site, value in latents.items()}
    for particles in _ways(facts):
        partners = PartnerDraws(facts.partners, density.plate_dim)
        try:
            facts.particles = particles
            with partners:
                actual = _value_and_gradient(density, ends)
                facts.particles = "loop"
                expected = _one_by_one(density, partners, ends)
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


def _ways(facts: ModelFacts) -> list[str]:
    # Distributions draw in place, which torch.vmap does not allow.
    ways = [] if facts.is_stochastic else ["vmap"]
    if facts.is_reparameterized and not facts.guide_is_enumerated:
        ways.append("plate")
    return ways if facts.is_stochastic else [*ways, "writing vmap"]


def _one_by_one(density: LogDensity, partners: PartnerDraws, latents: Latents) -> Tensor:
    rows = []
    for k in range(len(next(iter(latents.values())))):
        partners.index = k
        draw = {site: value[k : k + 1].detach() for site, value in latents.items()}
        rows.append(_value_and_gradient(density, {s: v.requires_grad_() for s, v in draw.items()}))
    return torch.cat(rows)


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
