"""Conjugate sites with the arrays of JAX; see :mod:`ngvi.conjugate.site`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.scipy import special

from ngvi.conjugate import site
from numpyro_ngvi.pytree import register


@register
class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are an array: a pytree."""

    xp = jnp
    digamma = staticmethod(special.digamma)
    lgamma = staticmethod(special.gammaln)

    def at(self, signs: Any) -> jax.Array:
        return _at(self, jnp.asarray(signs, self.loc.dtype))

    def _jvp(self, function: Callable, at: jax.Array, tangent: jax.Array) -> jax.Array:
        return jax.jvp(function, (at,), (tangent,))[1]


@jax.custom_jvp
def _at(here: ConjugateSite, signs: jax.Array) -> jax.Array:
    return here.points(signs)


@_at.defjvp
def _at_jvp(primals: Any, tangents: Any) -> Any:
    (here, signs), (change, _) = primals, tangents
    return here.points(signs), here.draw_jvp(change.natural, signs)


class Random:
    """Independent draws.

    :param sample_shape: leading axes.
    """

    def __init__(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> None:
        self._key, self._sample_shape = key, sample_shape

    def gamma(self, concentration: jax.Array) -> jax.Array:
        return self._drawn(random.gamma, concentration, concentration)

    def normal(self, like: jax.Array) -> jax.Array:
        return self._drawn(random.normal, like)

    def uniform(self, like: jax.Array) -> jax.Array:
        return self._drawn(random.uniform, like)

    def _drawn(self, draw: Callable, like: jax.Array, *parameters: jax.Array) -> jax.Array:
        self._key, key = random.split(self._key)
        return draw(key, *parameters, (*self._sample_shape, *like.shape), like.dtype)
