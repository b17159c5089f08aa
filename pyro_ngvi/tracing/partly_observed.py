"""Sites of which a part is observed (``obs_mask=``): the other part alone is latent.

Pyro splits such a site into ``"x_observed"`` and ``"x_unobserved"``, each masked where the other
counts, and takes the elements of either. So the elements of ``"x_unobserved"`` where ``x`` is
observed have no density and no use: a flat direction, in which a Gaussian would widen for ever.
Here they are independent of all else and standard normal on the unconstrained scale. That changes
neither the posterior of the other latents nor the evidence, and a Gaussian can be right there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

#: How Pyro names the two parts of a site.
OBSERVED, LATENT = "_observed", "_unobserved"


class ProperWhereObserved(Messenger):
    """A model with a density for the latent elements that ``obs_mask=`` leaves without one."""

    def __enter__(self) -> Any:
        self._observed: set[str] = set()
        return super().__enter__()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, mask = msg["name"], msg["mask"]
        if msg["is_observed"]:
            self._observed.add(name)
        elif is_rest(name, self._observed) and isinstance(mask, Tensor):
            msg["fn"] = _StandardWhere(msg["fn"], mask, msg["scale"])
            msg["mask"] = None


def is_rest(name: str, sites: Any) -> bool:
    """Whether a latent is what another of these sites leaves unobserved."""
    return name.endswith(LATENT) and name.removesuffix(LATENT) + OBSERVED in sites


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
        transform = biject_to(self.support)
        z = transform.inv(value)
        extra = self.event_dim - transform.codomain.event_dim
        other = -_sum_events(transform.log_abs_det_jacobian(z, value), extra)
        normal = dist.Normal(torch.zeros_like(z), 1.0).log_prob(z)
        other = other + _sum_events(normal, transform.domain.event_dim + extra)
        return torch.where(self.counts, self.fn.log_prob(value), other / self._scale)


def _sum_events(value: Tensor, count: int) -> Tensor:
    return value.sum(list(range(-count, 0))) if count else value
