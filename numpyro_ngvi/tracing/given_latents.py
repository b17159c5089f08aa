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


class SharePlates(Messenger):
    """A guide whose subsampled plates (``create_plates=``) are those of ``key`` in every run.

    Its own draws may differ from run to run.
    """

    def __init__(self, guide: Callable, key: jax.Array) -> None:
        super().__init__(guide)
        self.key = key

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "plate" and site["kwargs"]["rng_key"] is None:
            number = zlib.crc32(site["name"].encode())
            site["kwargs"]["rng_key"] = random.fold_in(self.key, number)


class Unscaled(Messenger):
    """A guide whose draws count once.

    :param sites: the names of its draws.
    """

    def __init__(self, guide: Callable, sites: Iterable[str]) -> None:
        super().__init__(guide)
        self.sites = frozenset(sites)

    def postprocess_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "sample" and site["name"] in self.sites and scale_of(site) != 1.0:
            raise ValueError(scaled_guide(site["scale"], "handlers.scale"))


class AsDrawn(Messenger):
    """A guide whose deterministic sites are :class:`Drawn`."""

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "sample" and type(site["fn"]) is Delta and site["value"] is None:
            site["fn"] = Drawn(site["fn"].v, site["fn"].log_density, site["fn"].event_dim)


class Drawn(Delta):
    """A point mass at a value that is its own: the two are not compared, entry by entry."""

    def log_prob(self, value: jax.Array) -> jax.Array:
        return self.log_density
