"""Structured families as NumPyro distributions, without a dense matrix."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from ngvi._docs import shared_doc
from ngvi.families.draws import noise_dim
from ngvi.guide import distributions as shared
from numpyro_ngvi.families.base import Family


@shared_doc(shared.StructuredNormal)
class StructuredNormal(shared.StructuredNormal, dist.Distribution):
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

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        shape = (*self.shape(sample_shape)[:-1], noise_dim(self.family))
        return self.family.sample(jax.random.normal(key, shape, self.family.loc.dtype))


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
