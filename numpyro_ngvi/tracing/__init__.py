"""The model seen as functions of its latent vectors."""

from numpyro_ngvi.tracing.differentiability import (
    hessian_obstacle,
    sites_with_missed_curvature,
    sites_without_hessian,
)
from numpyro_ngvi.tracing.log_density import (
    LogDensity,
    conjugate_sites_in,
    latent_site,
    posteriors_in,
)
