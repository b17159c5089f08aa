"""LowRankPrecision as a Pyro distribution, at the cost of its rank."""

from __future__ import annotations

from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.guide.distributions import StructuredNormal, StructuredTransform
from pyro_ngvi.guide.posterior import to_distribution, to_transform

to_distribution.register(LowRankPrecision)(StructuredNormal)
to_transform.register(LowRankPrecision)(StructuredTransform)
