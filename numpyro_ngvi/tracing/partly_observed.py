"""Latents without a density of their own or a use; see :mod:`ngvi.latents.partly_observed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from ngvi.latents.partly_observed import is_rest, standard_log_prob
from numpyro_ngvi.tracing.arguments import is_traced


class ProperWhereObserved(Messenger):
    """A model with a density for the latent elements that nobody uses.

    :param idle: as :func:`idle_latents` has them.
    """

    def __init__(self, model: Callable, idle: frozenset[str]) -> None:
        super().__init__(model)
        self._idle = idle

    def __enter__(self) -> Any:
        self._observed: set[str] = set()
        return super().__enter__()

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] != "sample":
            return
        name = site["name"]
        if site["is_observed"]:
            self._observed.add(name)
        elif (is_rest(name, self._observed) or name in self._idle) and is_masked(site["fn"]):
            there = jnp.logical_not(mask_of(site["fn"]))
            site["fn"] = _StandardWhere(site["fn"], there, site["scale"])


def idle_latents(
    model: Callable, trace: dict[str, Any], args: tuple, kwargs: dict
) -> frozenset[str]:
    """Return the latents with masked elements on which the density does not depend at all.

    Costs nothing without masked latents, and else a run of the model and one for each of them.
    """
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    # All of them: a flat prior cannot be drawn from.
    values = {name: site["value"] for name, site in sites.items() if not site["is_observed"]}
    masked = [
        sites[name] for name in values if not is_rest(name, sites) and is_masked(sites[name]["fn"])
    ]
    if not masked or is_traced((args, kwargs, values)):
        return frozenset()
    seeded = handlers.seed(model, rng_seed=0)

    def log_probs(values: dict[str, Any]) -> list[jax.Array]:
        with handlers.block():
            found, _ = compute_log_probs(seeded, args, kwargs, values, sum_log_prob=False)
        return list(found.values())

    def is_idle(site: dict[str, Any]) -> bool:
        there = jnp.logical_not(jnp.broadcast_to(mask_of(site["fn"]), site["fn"].batch_shape))
        transform = biject_to(site["fn"].support)
        z = transform.inv(site["value"])
        elsewhere = transform(z + jax.random.normal(jax.random.key(0), z.shape, z.dtype))
        of_events = there.reshape(there.shape + (1,) * site["fn"].event_dim)
        moved = {**values, site["name"]: jnp.where(of_events, elsewhere, site["value"])}
        pairs = zip(before, log_probs(moved), strict=True)
        return bool(there.any()) and all(jnp.array_equal(*p, equal_nan=True) for p in pairs)

    before = log_probs(values)
    return frozenset(site["name"] for site in masked if is_idle(site))


def idle_in(guide: Any) -> frozenset[str]:
    """Return what the guides in a guide know of idle latents."""
    parts = getattr(guide, "_guides", [guide.fn] if isinstance(guide, Messenger) else [])
    return getattr(guide, "idle_latents", frozenset()).union(*map(idle_in, parts))


def is_masked(fn: dist.Distribution) -> bool:
    """Tell whether a mask may leave elements out."""
    return mask_of(fn) is not True


def mask_of(fn: dist.Distribution) -> Any:
    """Return where a distribution counts, or True for everywhere."""
    mask: Any = True
    while isinstance(fn, (dist.ExpandedDistribution, dist.MaskedDistribution)):
        if isinstance(fn, dist.MaskedDistribution):
            mask = fn._mask if mask is True else jnp.logical_and(mask, fn._mask)
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
        other = standard_log_prob(biject_to(self.support), value, self.event_dim)
        # The given distribution leaves these elements out: it is zero there.
        return self.fn.log_prob(value) + jnp.where(self.there, other / self._scale, 0.0)
