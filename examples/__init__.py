"""Examples and benchmarks, run from the top of the repository with ``python -m``."""
