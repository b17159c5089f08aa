"""Gaussian families and their mixtures, of JAX; see :mod:`ngvi.families`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
from jax.scipy import special

from ngvi.families import (
    block_diagonal,
    covariance_cholesky,
    diagonal,
    low_rank_precision,
    mixture,
    precision_cholesky,
    sparse_precision,
)
from ngvi.families.curvature import slopes
from ngvi.families.draws import density_of_draw
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.linalg.arrow import Arrow
from numpyro_ngvi.pytree import register


@register
class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family): ...


@register
class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...


@register
class Diagonal(diagonal.Diagonal, Family): ...


#: What many small operations make: one program each.
_compiled = compiled(
    "stddev whiten sample draw_jvp natural_gradient euclidean_gradient assemble_hessian "
    "outer_products bonnet_price _trace_ratio retract"
)


@_compiled
@register
class BlockDiagonal(block_diagonal.BlockDiagonal, Family):
    _arrow = Arrow


@_compiled
@register
class SparsePrecision(sparse_precision.SparsePrecision, Family):
    _arrow, _dense = Arrow, CovarianceCholesky


@compiled(
    "variance whiten sample draw_jvp draw_vjp log_det_jvp natural_gradient euclidean_gradient "
    "bonnet_price natural_step _trace_ratio retract"
)
@register
class LowRankPrecision(low_rank_precision.LowRankPrecision, Family): ...


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
