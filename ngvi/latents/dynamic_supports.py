"""Supports that depend on other latents, as that of ``b`` in ``b ~ Uniform(0, 1 - a)``.

The guide finds them in a run of the model with its own draw, where stock autoguides take those of
the trace that they were set up with, on which the prior of ``b`` would be zero or incomplete.
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
