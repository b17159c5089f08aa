"""Families and optimisers of Tan (2025) that the packages do not have: the tests of others."""
