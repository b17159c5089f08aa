"""Supports that depend on other latents; see :mod:`ngvi.latents.dynamic_supports`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.ops.provenance import get_provenance, track_provenance
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from pyro_ngvi.tracing.messengers import Values


class _Origins(Messenger):
    """Finds the latents whose supports come from the values of others."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names, self.found = names, []

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] not in self.names:
            return
        if get_provenance(_tensors(msg["fn"].support)):
            self.found.append(msg["name"])
        msg["value"] = track_provenance(msg["value"], frozenset({msg["name"]}))

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        msg["value"] = track_provenance(msg["value"], frozenset({msg["name"]}))


def dynamic_sites(model: Callable, trace: poutine.Trace, args: tuple, kwargs: dict) -> list[str]:
    """Find the latents whose supports depend on other latents or on parameters; mostly none."""
    latents = dict(trace.iter_stochastic_nodes())
    if not any(_tensors(site["fn"].support) for site in latents.values()):
        return []
    origins = _Origins(set(latents))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), pyro.validation_enabled(False):
        try:
            poutine.block(origins(model))(*args, **kwargs)
        except Exception:  # noqa: BLE001  not every operation can be traced for its origins
            return _moving(model, latents, args, kwargs)
    return origins.found


def _moving(model: Callable, latents: dict[str, Any], args: tuple, kwargs: dict) -> list[str]:
    """Find the latents whose supports change when the others are drawn anew."""
    with poutine.block(), Values(lambda site: site["fn"]() if site["name"] in latents else None):
        again = poutine.trace(model).get_trace(*args, **kwargs)
    return [
        name
        for name, site in latents.items()
        if name in again.nodes
        and not all(
            torch.equal(old, new)
            for old, new in zip(
                _tensors(site["fn"].support), _tensors(again.nodes[name]["fn"].support), strict=True
            )
        )
    ]


def running_supports(
    model: Callable, names: list[str], values: dict[str, Tensor], args: tuple, kwargs: dict
) -> dict[str, Constraint]:
    """Return the supports of these sites in a run of the model.

    :param values: unconstrained, by site.
    """
    found: dict[str, Constraint] = {}

    def constrained(site: dict[str, Any]) -> Tensor | None:
        if site["name"] not in values:
            return None
        support = site["fn"].support
        if site["name"] in names:
            found[site["name"]] = support
        return biject_to(support)(values[site["name"]])

    with poutine.block(), Values(constrained):
        model(*args, **kwargs)
    return found


def _tensors(support: Constraint) -> list[Tensor]:
    """Return the bounds of a support."""
    found: list[Tensor] = []
    for value in vars(support).values():
        if isinstance(value, Constraint):
            found += _tensors(value)
        elif isinstance(value, Tensor):
            found.append(value)
    return found
