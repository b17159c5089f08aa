"""Arguments of a model as arguments of a compiled function."""

from numpyro_ngvi.tracing.arguments import Arguments

__all__ = ["Arguments"]
