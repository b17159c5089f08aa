"""The model seen as functions of its latent vectors."""

from numpyro_ngvi.tracing.differentiability import sites_without_hessian, why_no_hessian
from numpyro_ngvi.tracing.log_density import LogDensity, latent_site, posteriors_in
from numpyro_ngvi.tracing.per_example import Examples, examples

__all__ = [
    "Examples",
    "LogDensity",
    "examples",
    "latent_site",
    "posteriors_in",
    "sites_without_hessian",
    "why_no_hessian",
]
