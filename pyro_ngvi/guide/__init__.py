"""The guide that gives a model's latents to a Gaussian family."""

from pyro_ngvi.guide.distributions import StructuredNormal
from pyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide

__all__ = ["NaturalGaussianGuide", "StructuredNormal"]
