"""Pyro's part in files of results; see :mod:`ngvi.inference.saved.file_hooks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from ngvi._lock import serialised
from ngvi.inference.posterior import to_numpy
from ngvi.inference.saved import file_hooks as shared
from ngvi.inference.saved.serialize import Saved
from ngvi.inference.set_up import Given
from pyro_ngvi.families.registry import REGISTRY
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.inference.set_up import STARTS, set_up, store_as_it_was
from pyro_ngvi.inference.space import gaussians
from pyro_ngvi.tracing.messengers import repeatable_noise


class FileHooks(shared.FileHooks):
    """Turn tensors, parameters and guides into numbers and back."""

    families, guides = REGISTRY.families, (NaturalGaussianGuide, ReparametrizedGaussianGuide)
    device_option = "map_location"

    def flat(self, params: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: to_numpy(value) for name, value in params.items()}

    def abstract(self, family: Any, dim: int) -> Any:
        return family.initial(torch.empty(dim, device="meta"), 1.0)

    def as_array(self, value: Any) -> np.ndarray | None:
        return to_numpy(value) if isinstance(value, Tensor) else None

    def place(self, value: Any) -> str:
        return str(value.device)

    def device(self, given: Any) -> torch.device:
        try:
            return torch.device(given)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"map_location must be a device such as 'cpu' or 'cuda:0', got {given!r}."
            ) from error

    def own(self, array: np.ndarray, place: Any = "") -> Tensor:
        own = torch.from_numpy(array)
        try:
            return own.to(place) if place else own
        except (RuntimeError, AssertionError):  # torch without it, or fewer of them
            if isinstance(place, torch.device):
                raise
            return own

    def at_a_third(self, support: Any, shape: tuple[int, ...], like: Any) -> float:
        return float(biject_to(support)(like.new_full(shape, 1 / 3)).sum())

    @serialised
    def rebuilt(self, saved: Saved, given: Given) -> dict[str, Any]:
        with repeatable_noise(), poutine.block(), store_as_it_was() as keep:
            ready = set_up(given, STARTS, 0)
            parameters: Any = ready.problem.space
            own = parameters.snapshot()
            saved.check_same(gaussians(ready.guide), self.at_a_third, self.flat(own))

            def made(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
                params = {name: torch.from_numpy(arrays[name]).to(own[name]) for name in own}
                with saved.whole():
                    saved.check_state(parameters, parameters.restored(params, with_own=True))
                return params

            params = made(saved.under("params/"))
            parameters.write(parameters.restored(params, with_own=True))
            keep()
        found = {"model": ready.model, "guide": ready.guide, "optima": saved.optima(made)}
        return {**found, "params": params}
