"""Matrices: triangles, batches of small ones, arrows, low rank, and positive definite steps.

Nothing here knows of a Gaussian; :mod:`~numpyro_ngvi.families` is built on it.
"""
