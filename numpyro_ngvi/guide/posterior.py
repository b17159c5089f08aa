"""Families as NumPyro distributions.

:class:`NaturalNormal` is what the guide samples from: its draws carry natural gradients.
:func:`to_distribution` and :func:`to_transform` hand a family to the user as NumPyro's own
objects. Families for which NumPyro has none of its own are a ``StructuredNormal``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions.transforms import (
    AffineTransform,
    IndependentTransform,
    LowerCholeskyAffine,
    Transform,
)

from ngvi.families.draws import draw_at, sticking_log_prob
from ngvi.guide.distributions import check_not_mixture
from numpyro_ngvi.families import Diagonal, Family, Mixture
from numpyro_ngvi.families.dense import DenseFamily
from numpyro_ngvi.guide.distributions import (
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    StructuredNormal,
    StructuredTransform,
)
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
    """A draw and its noise, by one program, which is that of a guide's set-up."""

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


def to_distribution(family: Family) -> dist.Distribution:
    """The family as a NumPyro distribution over vectors of length ``d``."""
    if isinstance(family, DenseFamily):
        return MultivariateNormal(family.loc, scale_tril=family.lower_factor)
    if isinstance(family, Diagonal):
        return Independent(dist.Normal(family.loc, family.stddev), 1)
    if isinstance(family, Mixture):
        return _mixture(family)
    return StructuredNormal(family)


def _mixture(family: Mixture) -> dist.Distribution:
    """NumPyro's own where the components are one batch of it."""
    parts, each = family.components, None
    if isinstance(parts[0], DenseFamily):
        factors = jnp.stack([one.lower_factor for one in parts])
        each = dist.MultivariateNormal(family.loc, scale_tril=factors)
    elif isinstance(parts[0], Diagonal):
        each = dist.Normal(family.loc, jnp.stack([one.stddev for one in parts])).to_event(1)
    if each is None:
        return StructuredNormal(family)
    return MixtureSameFamily(dist.Categorical(logits=family.log_weights), each)


def to_transform(family: Family) -> Transform:
    """The transform that takes ``N(0, I)`` to the family.

    :raises ValueError: for a mixture, which has none.
    """
    check_not_mixture(family)
    if isinstance(family, DenseFamily):
        return LowerCholeskyAffine(family.loc, family.lower_factor)
    if isinstance(family, Diagonal):
        return IndependentTransform(AffineTransform(family.loc, family.stddev), 1)
    return StructuredTransform(family)
