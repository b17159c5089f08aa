"""Hierarchical models and their data, for the tables of mixed models."""
