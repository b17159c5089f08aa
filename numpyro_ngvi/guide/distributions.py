"""Structured families as NumPyro distributions, without a dense matrix."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from ngvi._docs import shared_doc
from ngvi.errors import shown
from ngvi.families.draws import noise_dim
from ngvi.guide import distributions as shared
from numpyro_ngvi.families.base import Family


class DrawsByKey:
    """A distribution that says which key it draws with, where NumPyro's own only asserts it."""

    def __call__(self, *args: Any, rng_key: Any = None, **kwargs: Any) -> Any:
        return super().__call__(*args, rng_key=self._checked(rng_key), **kwargs)  # type: ignore[misc]

    def sample(self, key: Any = None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return super().sample(self._checked(key), sample_shape)  # type: ignore[misc]

    @staticmethod
    def _checked(key: Any) -> Any:
        """The key or keys.

        :raises TypeError: for anything else.
        """
        try:
            jax.random.key_data(key)
        except (TypeError, ValueError):
            raise TypeError(
                "A distribution of NumPyro draws with a key: write posterior.sample("
                f"jax.random.key(0), (1000,)), got {shown(key)} in its place. Draws of each latent "
                "site by its name are result.sample(1000)."
            ) from None
        return key


@shared_doc(shared.StructuredNormal)
class StructuredNormal(shared.StructuredNormal, DrawsByKey, dist.Distribution):
    """A distribution of NumPyro."""

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector
    reparametrized_params: ClassVar[list] = []
    pytree_data_fields = ("family",)

    def __init__(
        self,
        family: Family,
        batch_shape: tuple[int, ...] = (),
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.family = family
        super().__init__(batch_shape, (family.dim,), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        return noise_dim(self.family) == self.family.dim

    def sample(self, key: Any = None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        key = self._checked(key)
        shape = (*self.shape(sample_shape)[:-1], noise_dim(self.family))
        return self.family.sample(jax.random.normal(key, shape, self.family.loc.dtype))


class MultivariateNormal(DrawsByKey, dist.MultivariateNormal):
    """NumPyro's, with that."""


class Independent(DrawsByKey, dist.Independent):
    """NumPyro's, with that."""


class MixtureSameFamily(DrawsByKey, dist.MixtureSameFamily):
    """NumPyro's, with that."""


class StructuredTransform(Transform):
    """The affine map from ``N(0, I)`` to a structured family.

    :param family: the Gaussian, with coordinates.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, family: Family) -> None:
        self.family = family

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.family.sample(x)

    def _inverse(self, y: jax.Array) -> jax.Array:
        return self.family.whiten(y)

    def log_abs_det_jacobian(
        self, x: jax.Array, y: jax.Array, intermediates: Any = None
    ) -> jax.Array:
        return jnp.broadcast_to(self.family.log_det_scale(), jnp.shape(x)[:-1])

    def tree_flatten(self) -> tuple:
        return (self.family,), (("family",), {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredTransform) and other.family is self.family
