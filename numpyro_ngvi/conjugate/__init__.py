"""Conditionally conjugate sites beside a Gaussian: exponential families and their guide."""
