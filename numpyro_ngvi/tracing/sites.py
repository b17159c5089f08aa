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
