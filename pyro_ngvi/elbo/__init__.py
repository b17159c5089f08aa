"""Losses that give a guide second-order natural gradients."""

from pyro_ngvi.elbo.natural_elbo import NaturalELBO

__all__ = ["NaturalELBO"]
