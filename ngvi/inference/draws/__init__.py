"""Draws of the posterior, and whether to believe them: importance weights, NUTS from the fit."""
