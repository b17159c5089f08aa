"""Latents without a density of their own or a use; see :mod:`ngvi.latents.partly_observed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from ngvi.latents.partly_observed import is_rest, standard_log_prob


class ProperWhereObserved(Messenger):
    """A model with a density for the latent elements that nobody uses.

    :param idle: as :func:`idle_latents` has them.
    """

    def __init__(self, idle: frozenset[str]) -> None:
        super().__init__()
        self._idle = idle

    def __enter__(self) -> Any:
        self._observed: set[str] = set()
        return super().__enter__()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if msg["is_observed"]:
            self._observed.add(name)
        elif is_rest(name, self._observed) or name in self._idle:
            mask = mask_of(msg)
            if mask is not None:
                msg["fn"] = _StandardWhere(msg["fn"], mask, msg["scale"])
                msg["mask"] = None


def idle_latents(
    model: Callable, trace: poutine.Trace, names: Sequence[str], args: tuple, kwargs: dict
) -> frozenset[str]:
    """Return the latents with masked elements on which the density does not depend at all.

    Costs nothing without masked latents, and else a run of the model and one for each of them.
    """
    nodes = trace.nodes
    masked = {
        name: mask
        for name in names
        if not is_rest(name, nodes) and (mask := mask_of(nodes[name])) is not None
    }
    values = {n: nodes[n]["value"].detach() for n in names}  # a flat prior cannot be drawn from

    def log_probs(values: dict[str, Tensor]) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), poutine.block():
            torch.manual_seed(0)
            of_model = poutine.trace(poutine.condition(model, data=values))
            found = of_model.get_trace(*args, **kwargs)
            found.compute_log_prob()
        return [s["log_prob"] for s in found.nodes.values() if s["type"] == "sample"]

    def is_idle(name: str) -> bool:
        fn, value, mask = nodes[name]["fn"], values[name], masked[name]
        transform = biject_to(fn.support)
        z = transform.inv(value)
        noise = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(0))
        counts = mask.expand(fn.batch_shape)
        of_events = counts.reshape(counts.shape + (1,) * fn.event_dim)
        moved = {**values, name: torch.where(of_events, value, transform(z + noise.to(z)))}
        after = log_probs(moved)
        pairs = zip(*([x.nan_to_num() for x in found] for found in (before, after)), strict=True)
        return not counts.all() and all(torch.equal(*pair) for pair in pairs)

    before = log_probs(values) if masked else []
    return frozenset(filter(is_idle, masked))


def mask_of(site: dict[str, Any]) -> Tensor | None:
    """Return where a site counts, or None for everywhere."""
    mask, fn = site["mask"], site["fn"]
    while isinstance(fn, (dist.MaskedDistribution, dist.ExpandedDistribution)):
        if isinstance(fn, dist.MaskedDistribution):
            mask = fn._mask if mask is None else mask & fn._mask
        fn = fn.base_dist
    return None if mask is None else torch.as_tensor(mask)


class _StandardWhere(dist.TorchDistribution):
    """A distribution, and where ``counts`` is not: standard normal on the unconstrained scale.

    :param counts: where the given distribution counts, of its batch shape.
    :param scale: how many times the site counts; the other elements count once.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, fn: Any, counts: Tensor, scale: Any) -> None:
        self.fn, self.counts, self._scale = fn, counts, scale
        super().__init__(fn.batch_shape, fn.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.fn.support

    @property
    def has_rsample(self) -> bool:
        return self.fn.has_rsample

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.fn.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.fn.rsample(sample_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return _StandardWhere(self.fn.expand(batch_shape), self.counts, self._scale)

    def log_prob(self, value: Tensor) -> Tensor:
        other = standard_log_prob(biject_to(self.support), value, self.event_dim)
        return torch.where(self.counts, self.fn.log_prob(value), other / self._scale)
