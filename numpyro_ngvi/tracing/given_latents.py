"""The guide's draws: values in their place, and one minibatch for all runs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax import random
from numpyro.distributions import Delta
from numpyro.primitives import Messenger

from ngvi.errors import scaled_guide
from numpyro_ngvi.tracing.sites import scale_of


class GivenLatents(Messenger):
    """A guide some of whose sites are given, which count once.

    Its subsampled plates (``create_plates=``) are those of ``key`` in every run, though its own
    draws may differ from run to run; its deterministic sites are :class:`Drawn`.

    :param latents: the names of its latent vectors.
    :param others: those of other sites that are given.
    """

    def __init__(
        self, guide: Callable, key: jax.Array, latents: Iterable[str], others: Iterable[str]
    ) -> None:
        super().__init__(guide)
        self.key, self.latents, self.others = key, frozenset(latents), frozenset(others)

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "plate" and site["kwargs"]["rng_key"] is None:
            number = zlib.crc32(site["name"].encode())
            site["kwargs"]["rng_key"] = random.fold_in(self.key, number)
        is_point = site["type"] == "sample" and type(site["fn"]) is Delta and site["value"] is None
        if is_point and site["name"] not in self.latents | self.others:
            site["fn"] = Drawn(site["fn"].v, site["fn"].log_density, site["fn"].event_dim)

    def postprocess_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "sample" and site["name"] in self.latents and scale_of(site) != 1.0:
            raise ValueError(scaled_guide(site["scale"], "handlers.scale"))


class Drawn(Delta):
    """A point mass at a value that is its own: the two are not compared, entry by entry."""

    def log_prob(self, value: jax.Array) -> jax.Array:
        return self.log_density
