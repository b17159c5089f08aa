"""Exponential families of single sites, conditionally conjugate; see :mod:`.site`."""
