"""The mathematics of the Gaussian families, once for all tensor libraries.

The packages' ``families`` give each its tensors: what a library compiles, stores or differentiates
in its own way.
"""
