"""Noise and draws as functions of a family; a family registers those that it has another way."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from ngvi.families.gaussian import Array, noise_log_prob


@singledispatch
def noise_dim(family: Any) -> int:
    """Count the numbers of noise that a draw takes: ``d``, and one more of a mixture."""
    return family.dim


@singledispatch
def has_free_scales(family: Any) -> bool:
    """Tell whether each whitened latent can be widened alone: a sphere widens all of them."""
    return False


@singledispatch
def density_of_draw(family: Any, noise: Array) -> Array:
    """Return ``log q`` at ``family.sample(noise)``; ``(..., d)`` to ``(...)``."""
    return noise_log_prob(family, noise) - family.log_det_scale()


@singledispatch
def density_of_point(family: Any, noise: Array) -> Array:
    """Return ``log q`` as a point of an estimator has it; ``(..., d)`` to ``(...)``."""
    return density_of_draw(family, noise)


@singledispatch
def marginal_quantiles(family: Any, normal: Callable[..., Any], levels: Array) -> Array:
    """Return quantiles of each latent, the shape of the levels followed by ``d``.

    :param normal: makes the PPL's normal distribution of means and standard deviations.
    """
    return normal(family.mean, family.stddev).icdf(levels[..., None])


def draw_at(family: Any, reparametrised: Array) -> Array:
    """Draw as ``family.draw`` does, from noise that ``family.reparametrised`` gave."""
    return family.detach().sample(reparametrised)


@singledispatch
def sticking_log_prob(family: Any, reparametrised: Array) -> Array:
    """Return ``log q`` at a draw, differentiated through the draw alone.

    The coordinates of ``q`` itself are held fixed. In whitened coordinates that is the density of
    the reparametrised noise, without a triangular solve.
    """
    return noise_log_prob(family, reparametrised) - family.detach().log_det_scale()
