"""Exponential families of sites, of JAX; see :mod:`ngvi.conjugate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import random
from jax.scipy import special

from ngvi.conjugate import families, site
from numpyro_ngvi.pytree import register


class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are an array: a pytree."""

    xp: ClassVar[Any] = jnp
    digamma: ClassVar[Any] = staticmethod(special.digamma)
    lgamma: ClassVar[Any] = staticmethod(special.gammaln)

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
        return random.gamma(self._next(), concentration, self._shape(concentration))

    def normal(self, like: jax.Array) -> jax.Array:
        return random.normal(self._next(), self._shape(like), like.dtype)

    def uniform(self, like: jax.Array) -> jax.Array:
        return random.uniform(self._next(), self._shape(like), like.dtype)

    def _shape(self, like: jax.Array) -> tuple[int, ...]:
        return (*self._sample_shape, *like.shape)

    def _next(self) -> jax.Array:
        self._key, key = random.split(self._key)
        return key


@register
class Beta(families.Beta, ConjugateSite): ...


@register
class Dirichlet(families.Dirichlet, ConjugateSite): ...


@register
class Gamma(families.Gamma, ConjugateSite): ...


@register
class GammaMode(families.GammaMode, ConjugateSite): ...


@register
class InverseGamma(families.InverseGamma, ConjugateSite): ...


@register
class InverseGaussian(families.InverseGaussian, ConjugateSite): ...


@register
class Normal(families.Normal, ConjugateSite): ...


#: By the name that a user declares a site by.
FAMILIES: dict[str, type[ConjugateSite]] = {one.name: one for one in ConjugateSite.__subclasses__()}
