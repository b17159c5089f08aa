"""Conditionally conjugate sites beside a Gaussian: exponential families and their guide."""

from numpyro_ngvi.conjugate.guide import ConjugateGuide

__all__ = ["ConjugateGuide"]
