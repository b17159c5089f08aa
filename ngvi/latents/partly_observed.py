"""Latents without a density of their own or a use: of partly observed sites, and behind masks.

Of a site of which a part is observed (``obs_mask=``) the other part alone is latent.

Both PPLs split such a site into ``"x_observed"`` and ``"x_unobserved"``, each masked where the
other counts. The elements of ``"x_unobserved"`` where ``x`` is observed have no density and no use:
a flat direction, in which a Gaussian would widen for ever. Here they are standard normal on the
unconstrained scale, which changes neither the posterior of the other latents nor the evidence.

The same is done with what a mask leaves out, such as the ends of sequences of different lengths, if
nothing depends on it (``idle_latents`` of a package). A flat prior by a mask stays one.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

#: How the PPLs name the two parts of a site.
OBSERVED, LATENT = "_observed", "_unobserved"


def is_rest(name: str, sites: Container[str]) -> bool:
    """Return whether a latent is what another of these sites leaves unobserved."""
    return name.endswith(LATENT) and name.removesuffix(LATENT) + OBSERVED in sites


def standard_log_prob(transform: Any, value: Any, event_dim: int) -> Any:
    """Return the log density of values that are standard normal on the unconstrained scale.

    :param transform: of the PPL, from that scale to ``value``, an array.
    :param event_dim: how many axes on the right belong to an event; they are summed.
    """
    z = transform.inv(value)
    extra = event_dim - transform.codomain.event_dim
    log_jacobian = _sum_events(transform.log_abs_det_jacobian(z, value), extra)
    normal = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
    return _sum_events(normal, transform.domain.event_dim + extra) - log_jacobian


def _sum_events(value: Any, count: int) -> Any:
    return value.sum(tuple(range(-count, 0))) if count else value
