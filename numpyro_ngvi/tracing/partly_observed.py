"""Sites of which a part is observed (``obs_mask=``): the other part alone is latent.

NumPyro splits such a site into ``"x_observed"`` and ``"x_unobserved"``, each masked where the other
counts, and takes the elements of either. So the elements of ``"x_unobserved"`` where ``x`` is
observed have no density and no use: a flat direction, in which a Gaussian would widen for ever.
Here they are independent of all else and standard normal on the unconstrained scale. That changes
neither the posterior of the other latents nor the evidence, and a Gaussian can be right there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

#: How NumPyro names the two parts of a site.
OBSERVED, LATENT = "_observed", "_unobserved"


class ProperWhereObserved(Messenger):
    """A model with a density for the latent elements that ``obs_mask=`` leaves without one."""

    def __enter__(self) -> Any:
        self._observed: set[str] = set()
        return super().__enter__()

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] != "sample":
            return
        name = site["name"]
        if site["is_observed"]:
            self._observed.add(name)
        elif is_rest(name, self._observed) and (mask := _mask(site["fn"])) is not None:
            site["fn"] = _StandardWhere(site["fn"], ~mask, site["scale"])


def is_rest(name: str, sites: Any) -> bool:
    """Whether a latent is what another of these sites leaves unobserved."""
    return name.endswith(LATENT) and name.removesuffix(LATENT) + OBSERVED in sites


def _mask(fn: dist.Distribution) -> jax.Array | None:
    """Where a distribution counts, or None for everywhere."""
    mask = None
    while isinstance(fn, (dist.ExpandedDistribution, dist.MaskedDistribution)):
        if isinstance(fn, dist.MaskedDistribution):
            mask = fn._mask if mask is None else mask & fn._mask
        fn = fn.base_dist
    return mask


class _StandardWhere(dist.Distribution):
    """A distribution, and where ``there`` another one: standard normal on the unconstrained scale.

    :param there: elements that the given distribution leaves out, of its batch shape.
    :param scale: how many times the site counts; these elements count once.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, fn: dist.Distribution, there: Any, scale: Any) -> None:
        self.fn, self.there, self._scale = fn, there, 1.0 if scale is None else scale
        super().__init__(fn.batch_shape, fn.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.fn.support

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.fn.sample(key, sample_shape)

    def log_prob(self, value: jax.Array) -> jax.Array:
        transform = biject_to(self.support)
        z = transform.inv(value)
        extra = self.event_dim - transform.codomain.event_dim
        other = -_sum_events(transform.log_abs_det_jacobian(z, value), extra)
        normal = dist.Normal(jnp.zeros_like(z), 1.0).log_prob(z)
        other = other + _sum_events(normal, transform.domain.event_dim + extra)
        # The given distribution leaves these elements out: it is zero there.
        return self.fn.log_prob(value) + jnp.where(self.there, other / self._scale, 0.0)


def _sum_events(value: jax.Array, count: int) -> jax.Array:
    return value.sum(tuple(range(-count, 0)))
