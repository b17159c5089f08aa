"""The log density at many draws, as estimators ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from ngvi.estimators.from_gradients import Averages, Gradients
from ngvi.estimators.points import Families, PointsBySite
from ngvi.estimators.quadrature import Expectations, expectations, find_terms
from numpyro_ngvi.estimators.mixture import of_mixture
from numpyro_ngvi.estimators.moments import Density, gradients
from numpyro_ngvi.estimators.quadrature import JaxCalculus
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.additive_terms import terms_of


@dataclasses.dataclass(frozen=True)
class Differentiator:
    """Runs a log density, and differentiates it; see :class:`ngvi.estimators.from_gradients`.

    :param at_once: how many draws share a pass.
    :param params: a pytree that the log density is differentiated for as well.
    """

    density: Density
    at_once: int
    params: Any = ()

    package = "numpyro_ngvi"
    label = staticmethod(jax.named_scope)

    def __call__(self, here: Families, points: PointsBySite) -> Gradients:
        latents = points.of(here)
        found = gradients(self.density, latents, self.params, points.keys, self.at_once)
        return found(here, points)

    def gradient_of(self, function: Callable[[Family], jax.Array], family: Family) -> Family:
        return jax.grad(function)(family)

    def of_mixture(self, here: Families, site: str, points: PointsBySite) -> Averages:
        return of_mixture(self.density, here, site, points, self.params, self.at_once)

    def expectations(self, here: Families) -> Expectations:
        key = random.key(0)
        terms = find_terms(terms_of, lambda at: self.density(at, self.params, key), here)
        nothing = jax.tree.map(jnp.zeros_like, self.params)
        return expectations(terms, list(here.values()), JaxCalculus(), nothing)
