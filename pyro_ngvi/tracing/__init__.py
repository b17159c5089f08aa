"""The model seen as functions of its latent vectors."""

from pyro_ngvi.tracing.differentiability import hessian_misses_curvature, sites_without_hessian
from pyro_ngvi.tracing.inspection import ModelFacts, inspect
from pyro_ngvi.tracing.log_density import LogDensity
from pyro_ngvi.tracing.messengers import NoiseState
from pyro_ngvi.tracing.particles import choose_particles
