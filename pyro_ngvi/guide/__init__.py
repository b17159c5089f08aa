"""The guide that gives a model's latents to a Gaussian family."""

from pyro_ngvi.guide.distributions import StructuredNormal
from pyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from pyro_ngvi.guide.reparametrized import ReparametrizedGaussianGuide

__all__ = ["NaturalGaussianGuide", "ReparametrizedGaussianGuide", "StructuredNormal"]
