"""The distribution that a guide samples from, whose draws carry natural gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from ngvi.families.draws import draw_at, sticking_log_prob
from numpyro_ngvi.families import Family
from numpyro_ngvi.guide.distributions import StructuredNormal
from numpyro_ngvi.tracing.compilation import MANY, compiled


class NaturalNormal(StructuredNormal):
    """``N(mu, Sigma)`` whose derivatives are natural gradients of a family.

    Drawing keeps the noise as NumPyro's ``intermediates``, so that ``log_prob`` of its own
    draw costs no triangular solve. Any other value goes through the preconditioned family.

    :param family: the Gaussian, with coordinates.
    :param sticking_the_landing: whether ``log_prob`` of its own draw ignores the derivative of the
        family's coordinates.
    :param batch_shape: shape of independent draws.
    """

    pytree_aux_fields = ("sticking_the_landing",)

    def __init__(
        self, family: Family, sticking_the_landing: bool = False, batch_shape: tuple[int, ...] = ()
    ) -> None:
        self.sticking_the_landing = sticking_the_landing
        super().__init__(family, batch_shape, validate_args=False)

    def expand(self, batch_shape: tuple[int, ...]) -> NaturalNormal:
        return NaturalNormal(self.family, self.sticking_the_landing, tuple(batch_shape))

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.sample_with_intermediates(key, sample_shape)[0]

    def sample_with_intermediates(
        self, key: jax.Array, sample_shape: tuple[int, ...] = ()
    ) -> tuple[jax.Array, list[jax.Array]]:
        return _drawing(self.shape(sample_shape))(key, self.family)

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:
        if not intermediates:
            return self.family.precondition().log_prob(value)
        noise, reparametrised = intermediates
        if self.sticking_the_landing:
            return sticking_log_prob(self.family, reparametrised)
        return self.family.draw_log_prob(noise)


@functools.lru_cache(maxsize=64)
def _drawing(shape: tuple[int, ...]) -> Callable:
    """Make the program of a draw and its noise, which is that of a guide's set-up."""

    def drawn(key: jax.Array, family: Family) -> tuple[jax.Array, list[jax.Array]]:
        noise = jax.random.normal(key, shape, family.loc.dtype)
        reparametrised = family.reparametrised(noise)
        return draw_at(family, reparametrised), [noise, reparametrised]

    return compiled(drawn, runs_once=math.prod(shape) < MANY)


@functools.lru_cache(maxsize=64)
def drawing(shape: tuple[int, ...]) -> Callable:
    """Plain draws of a family of this shape, by one program."""

    def drawn(key: jax.Array, family: Family) -> jax.Array:
        return family.sample(jax.random.normal(key, shape, family.loc.dtype))

    return compiled(drawn, runs_once=math.prod(shape) < MANY)
