"""LowRankPrecision as a NumPyro distribution, at the cost of its rank."""

from __future__ import annotations

from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.guide.distributions import StructuredNormal, StructuredTransform
from numpyro_ngvi.guide.posterior import to_distribution, to_transform

to_distribution.register(LowRankPrecision)(StructuredNormal)
to_transform.register(LowRankPrecision)(StructuredTransform)
