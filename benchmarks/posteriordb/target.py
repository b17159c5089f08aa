"""A posterior as what the benchmark needs: a log density of one vector, and the way back.

The vector has the unconstrained sites in the order of the NumPyro model, like the latent vector
of its autoguides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import potential_energy

from . import numpyro_models
from .data import Data, Draws, Posterior, Reference, flatten, load_data, load_reference


@dataclass(frozen=True)
class Target:
    """The NumPyro model of a posterior on its data, and the reference draws."""

    posterior: Posterior
    data: Data
    reference: Reference
    model: Callable
    args: tuple

    @classmethod
    def load(cls, data_dir: Path, name: str) -> Target:
        """Read the data and the reference draws, and build the model."""
        posterior = numpyro_models.POSTERIORS[name]
        data = load_data(data_dir, posterior.data_name)
        return cls(posterior, data, load_reference(data_dir, name), *posterior.build(data))

    @property
    def name(self) -> str:
        return self.posterior.name

    @cached_property
    def _reference_sites(self) -> Draws:
        return self.posterior.conversion.to_sites(self.reference.by_name(), self.data)

    @property
    def _first_draw(self) -> Draws:
        return {name: draws[0] for name, draws in self._reference_sites.items()}

    @cached_property
    def _transforms(self) -> dict[str, Any]:
        # A flat prior has no draws: the sites get their values from the reference.
        model = handlers.substitute(handlers.seed(self.model, rng_seed=0), self._first_draw)
        trace = handlers.trace(model).get_trace(*self.args)
        return {
            name: biject_to(site["fn"].support)
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    def _unconstrain(self, draw: dict[str, Any]) -> list[jax.Array]:
        # A list keeps the sites in the order of the model, as the guides do.
        return [to_site.inv(draw[name]) for name, to_site in self._transforms.items()]

    @cached_property
    def reference_draws(self) -> np.ndarray:
        """The reference draws on the unconstrained scale, draws x dimension."""
        ravel = jax.vmap(lambda draw: ravel_pytree(self._unconstrain(draw))[0])
        return np.asarray(ravel(self._reference_sites))

    @cached_property
    def _unravel(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        unravel = ravel_pytree(self._unconstrain(self._first_draw))[1]
        return lambda flat: dict(zip(self._transforms, unravel(flat), strict=True))

    def order(self, names: Iterable[str]) -> np.ndarray:
        """The indices that bring a vector to this order.

        :param names: the sites in the order of that vector.
        """
        values = self._unconstrain(self._first_draw)
        sizes = {name: x.size for name, x in zip(self._transforms, values, strict=True)}
        if set(names := list(names)) != set(sizes):
            raise ValueError(f"{self.name} has the sites {sorted(sizes)}, not {sorted(names)}")
        ends = np.cumsum([sizes[name] for name in names])
        blocks = {n: range(end - sizes[n], end) for n, end in zip(names, ends, strict=True)}
        return np.concatenate([blocks[name] for name in sizes])

    @property
    def dim(self) -> int:
        return self.reference_draws.shape[1]

    def log_prob(self, flat: jax.Array) -> jax.Array:
        """The log density of one unconstrained vector, with the Jacobians of the constraints."""
        return -potential_energy(self.model, self.args, {}, self._unravel(flat))

    def parameters(self, draws: np.ndarray) -> np.ndarray:
        """Unconstrained draws as draws of the reference's parameters, one a column."""

        def constrain(flat: jax.Array) -> dict[str, jax.Array]:
            values = self._unravel(flat)
            return {name: to_site(values[name]) for name, to_site in self._transforms.items()}

        sites = {name: np.asarray(v) for name, v in jax.jit(jax.vmap(constrain))(draws).items()}
        there = self.posterior.conversion.to_reference(sites, self.data)
        return flatten(self.reference.parameters, there)
