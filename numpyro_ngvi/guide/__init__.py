"""The guide that gives a model's latents to a Gaussian family."""

from numpyro_ngvi.guide.distributions import StructuredNormal
from numpyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from numpyro_ngvi.guide.reparametrized import ReparametrizedGaussianGuide

__all__ = ["NaturalGaussianGuide", "ReparametrizedGaussianGuide", "StructuredNormal"]
