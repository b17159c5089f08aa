"""Bayesian logistic regression on real credit data, in Pyro and in NumPyro.

``python -m examples.demo`` fits the same model with ``NaturalGaussianGuide`` and ``Snngm``, and
with the PPL's own ``AutoMultivariateNormal`` and Adam, prints a table and saves two plots.
"""
