"""Examples, run from the top of the repository with ``python -m examples.NAME``."""
