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


class _Origins(Messenger):
    """Finds the latents whose supports come from the values of others.

    :param names: of the latents.
    """

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


class _Constrain(Messenger):
    """Gives latents their unconstrained values, through the supports that they have in the run."""

    def __init__(self, values: dict[str, Tensor], names: list[str]) -> None:
        super().__init__()
        self.values, self.names = values, names
        self.found: dict[str, Constraint] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.values:
            support = msg["fn"].support
            if msg["name"] in self.names:
                self.found[msg["name"]] = support
            msg["value"] = biject_to(support)(self.values[msg["name"]])
            msg["done"] = True


class _Anew(Messenger):
    """Draws latents from their priors, whatever start the model has been given."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.names:
            msg["value"], msg["done"] = msg["fn"](), True


def dynamic_sites(model: Callable, trace: poutine.Trace, args: tuple, kwargs: dict) -> list[str]:
    """The latents whose supports depend on other latents or on parameters; mostly none.

    :param trace: of the model.
    """
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
    """The latents whose supports are not the same where the others have been drawn anew."""
    with poutine.block(), _Anew(set(latents)):
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
    """The supports of these sites in a run of the model.

    :param values: unconstrained, by site.
    """
    constrain = _Constrain(values, names)
    with poutine.block(), constrain:
        model(*args, **kwargs)
    return constrain.found


def _tensors(support: Constraint) -> list[Tensor]:
    """The bounds of a support."""
    found: list[Tensor] = []
    for value in vars(support).values():
        if isinstance(value, Constraint):
            found += _tensors(value)
        elif isinstance(value, Tensor):
            found.append(value)
    return found
