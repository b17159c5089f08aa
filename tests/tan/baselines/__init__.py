"""Tan's baselines, which only benchmarks and tests want: Adam on natural gradients, and PGA.

``in_pyro`` and ``in_numpyro`` have ``NAdam`` and ``ProxGenAdam``, as the packages have optimisers.
"""
