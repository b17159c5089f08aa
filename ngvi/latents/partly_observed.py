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

from collections.abc import Container

#: How the PPLs name the two parts of a site.
OBSERVED, LATENT = "_observed", "_unobserved"


def is_rest(name: str, sites: Container[str]) -> bool:
    """Whether a latent is what another of these sites leaves unobserved."""
    return name.endswith(LATENT) and name.removesuffix(LATENT) + OBSERVED in sites
