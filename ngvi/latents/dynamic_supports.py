"""Supports that depend on other latents, as that of ``b`` in ``b ~ Uniform(0, 1 - a)``.

The guide runs the model at each draw to find them. Stock autoguides keep the supports of their
first trace, where the prior of ``b`` can be zero or cut off.
"""

from __future__ import annotations

from collections.abc import Iterable


def check_no_dynamic_supports(sites: Iterable[str]) -> None:
    """Refuse supports that depend on other latents beside latents in a subsampled plate.

    :raises ValueError: naming the first site and the way out.
    """
    for site in sites:
        raise ValueError(
            f"The support of latent site '{site}' depends on other latents, and there are latents "
            "inside a subsampled plate. Draw it from a fixed support, and scale and shift it."
        )
