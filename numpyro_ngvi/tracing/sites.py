"""What kind of sample site a site is."""

from __future__ import annotations

from typing import Any


def is_enumerated(site: dict[str, Any]) -> bool:
    """Whether a site is a discrete latent that the ELBO will sum out."""
    return (
        site["type"] == "sample"
        and not site["is_observed"]
        and site["infer"].get("enumerate") is not None
        and site["fn"].support.is_discrete
    )


def scale_of(site: dict[str, Any]) -> float | None:
    """How many times a site counts, by its plates or ``handlers.scale``; None if not a number."""
    scale = 1.0 if site["scale"] is None else site["scale"]
    return float(scale) if isinstance(scale, (int, float)) else None
