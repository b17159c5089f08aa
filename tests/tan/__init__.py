"""A family of Tan (2025) that the packages do not have."""
