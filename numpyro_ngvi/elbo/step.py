"""A model and its guide in a step of ``NaturalELBO``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from ngvi.estimators.additive_terms import NotAdditiveError
from numpyro_ngvi.conjugate.guide import ConjugateSites
from numpyro_ngvi.estimators import Families, why_not_additive
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.tracing import (
    LogDensity,
    hessian_obstacle,
    latent_site,
    posteriors_in,
    sites_with_missed_curvature,
)
from numpyro_ngvi.tracing.compilation import compiled


class ElboStep(NamedTuple):
    """A log density with its minibatch, and where the guide is; without derivatives for that."""

    density: LogDensity
    set_up: GuideSetUp
    here: Families
    params: dict[str, Any]  #: Parameters of model and guide.
    guide_key: jax.Array
    visited: dict[str, jax.Array]  #: Weights of coordinates, if a part is visited.
    has_partners: bool  #: True if the guide draws more than latent vectors.

    @classmethod
    def of(
        cls, density: LogDensity, set_up: GuideSetUp, params: dict[str, Any], guide_key: jax.Array
    ) -> ElboStep:
        """Make a step of values that are differentiated."""
        params = jax.lax.stop_gradient(params)
        here = posteriors_in(params)
        parts = getattr(density.guide, "_guides", [density.guide])
        has_plates = any(getattr(part, "_has_plates", False) for part in parts)
        visited = density.visited(here, params, guide_key) if has_plates else {}
        ours = NaturalGaussianGuide, ConjugateSites
        partners = not all(isinstance(part, ours) for part in parts)
        return cls(density, set_up, here, params, guide_key, visited, partners)

    def log_density(self, latents: dict[str, jax.Array], _: Any, key: jax.Array) -> jax.Array:
        return self.density(latents, self.params, key)

    def hessian_obstacle(self) -> Exception | None:
        means = {site: family.mean for site, family in self.here.items()}
        run = self.density, means, self.params, self.guide_key
        return hessian_obstacle(*run, self.set_up.missed_curvature)


class GuideSetUp:
    """Facts about the model where a guide starts, as in a trace nothing has a value.

    By the arguments that the guide was set up with; where these were traced as well, nothing is
    known, and nothing found.
    """

    def __init__(self, model: Callable, guide: Callable) -> None:
        parts = getattr(guide, "_guides", [guide])
        self._parts = [part for part in parts if isinstance(part, NaturalGaussianGuide)]
        self._run = model, guide
        self._arguments = self._parts[0].take_arguments() if self._parts else None
        self._params = {}
        if self._arguments is not None:
            self._params = {part._parameter_name: part._initial_posterior for part in self._parts}
        self._here = {latent_site(name): family for name, family in self._params.items()}

    def missed_curvature(self) -> list[str] | None:
        """Return sites whose curvature is not their Hessian's, as :func:`hessian_obstacle` asks."""
        if not self._parts:
            return None
        first = self._parts[0]
        if self._arguments is not None:
            run = *self._run, *self._arguments
            first.missed_curvature = sites_with_missed_curvature(run, self._here, self._params)
        return first.missed_curvature

    def at_start(self) -> tuple[LogDensity, Families, dict[str, Any], jax.Array] | None:
        """Return the log density at the guide's own arguments, families, parameters, and a key."""
        if self._arguments is None:
            return None
        with jax.ensure_compile_time_eval():
            key = random.key(0)
        # With numbers at hand it would draw some, and these may be no valid parameters.
        return LogDensity(*self._run, *self._arguments, key), self._here, self._params, key

    def not_additive(self, is_asked_for: bool) -> Exception | None:
        """Return why the log density is no sum of smooth terms, or is not known to be one.

        :param is_asked_for: whether to trust it to be one where nothing is known.
        """
        if not self._parts:
            return None
        first = self._parts[0]
        start = self.at_start()
        if start is not None:
            density, _, _, key = start
            with jax.ensure_compile_time_eval():
                first.not_additive = why_not_additive(
                    lambda latents: density(latents, self._params, key), self._here
                )
        elif first.not_additive is None and not first.is_looked_at:
            return None if is_asked_for else NotAdditiveError("nothing is known of its numbers")
        first.is_looked_at = True
        return first.not_additive


def check_same_model(density: LogDensity, guide: Any) -> None:
    """Refuse the guide of another model, of which NumPyro would only warn.

    :raises ValueError: naming the guide's sites that the model lacks.
    """
    for part in getattr(guide, "_guides", [guide]):
        if isinstance(part, NaturalGaussianGuide):
            part._latent_shapes.require_sites(density.sites)


def in_one_program(
    evaluate: Callable[[jax.Array, dict[str, Any]], dict[str, Any]],
    rng_key: jax.Array,
    params: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take a step outside of ``jax.jit``, compiled where no program does the same.

    :param evaluate: the step's ``"loss"``, and what else it finds, from a key and parameters.
    :return: what it finds, and the loss's gradient in all parameters of real numbers.
    """

    def is_real(value: Any) -> bool:
        return all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(value))

    def step(params: dict[str, Any], rest: dict[str, Any], key: jax.Array) -> tuple:
        found = evaluate(key, {**rest, **params})
        return found["loss"], found

    size = sum(map(jnp.size, jax.tree.leaves(params)))
    program = compiled(jax.value_and_grad(step, has_aux=True), num_numbers=size)
    real = {name: value for name, value in params.items() if is_real(value)}
    rest = {name: value for name, value in params.items() if name not in real}
    (_, found), gradient = program(real, rest, rng_key)
    return found, gradient
