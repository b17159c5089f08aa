"""Mixtures of Gaussians, of JAX; see :mod:`ngvi.families.mixture`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
from jax.scipy import special

from ngvi.families import mixture
from ngvi.families.curvature import slopes
from ngvi.families.draws import density_of_draw
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.pytree import register

_BASES = CovarianceCholesky, PrecisionCholesky, Diagonal, BlockDiagonal, SparsePrecision


@compiled(
    "mean variance covariance_matrix sample log_prob bound_direction "
    "natural_gradient euclidean_gradient retract kl_divergence"
)
@register
class Mixture(mixture.Mixture, Family):
    bases: ClassVar = {one.name: one for one in (*_BASES, LowRankPrecision)}

    _ndtr = staticmethod(special.ndtr)
    _log_sum_exp = staticmethod(partial(special.logsumexp, axis=0))


for _function in (density_of_draw, slopes):
    _function.register(Mixture, jax.jit(_function.dispatch(mixture.Mixture)))
