"""Structured families as Pyro distributions, without a dense matrix."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import Transform

from ngvi._docs import shared_doc
from ngvi.families.draws import noise_dim
from ngvi.guide import distributions as shared
from pyro_ngvi.families.base import Family


@shared_doc(shared.StructuredNormal)
class StructuredNormal(shared.StructuredNormal, TorchDistribution):
    """A distribution of Pyro."""

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        family: Family,
        batch_shape: tuple[int, ...] = (),
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.family = family
        event_shape = torch.Size((family.dim,))
        super().__init__(torch.Size(batch_shape), event_shape, validate_args=validate_args)

    def expand(self, batch_shape: tuple[int, ...], _instance: Any = None) -> StructuredNormal:
        return StructuredNormal(self.family, batch_shape, validate_args=False)

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        loc = self.family.loc
        shape = *self._extended_shape(torch.Size(sample_shape))[:-1], noise_dim(self.family)
        return self.family.sample(torch.randn(shape, dtype=loc.dtype, device=loc.device))


class StructuredTransform(Transform):
    """The affine map from ``N(0, I)`` to a structured family.

    :param family: the Gaussian, with coordinates.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, family: Family, cache_size: int = 0) -> None:
        self.family = family
        super().__init__(cache_size=cache_size)

    def with_cache(self, cache_size: int = 1) -> StructuredTransform:
        return StructuredTransform(self.family, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.family.sample(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.family.whiten(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.family.log_det_scale().expand(x.shape[:-1])
