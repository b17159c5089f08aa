"""Kinds of sample sites."""

from __future__ import annotations

from typing import Any

from ngvi.conjugate.site import ConjugateSite
from pyro_ngvi.families.base import Family


def is_enumerated(site: dict[str, Any]) -> bool:
    """Tell whether a site is a discrete latent that the ELBO will sum out."""
    return (
        site["type"] == "sample"
        and not site["is_observed"]
        and site["infer"].get("enumerate") is not None
        and getattr(site["fn"], "support", None) is not None
        and site["fn"].support.is_discrete
    )


def family_of(site: dict[str, Any]) -> Family | None:
    """Return the family that a ``NaturalGaussianGuide`` draws from at a site."""
    family = getattr(site["fn"], "family", None)
    family = getattr(family, "whole", family)  # see ngvi.guide.subsampled_latents
    return family if isinstance(family, Family) else None


def conjugate_site_of(site: dict[str, Any]) -> ConjugateSite | None:
    """Return the density that a ``ConjugateGuide`` draws a site from."""
    found = getattr(site["fn"], "conjugate_site", None)
    return found if isinstance(found, ConjugateSite) else None


def is_subsampled(site: dict[str, Any]) -> bool:
    """Tell whether a plate's subsample site draws a part of the plate."""
    size = site["fn"].subsample_size
    return size is not None and size < site["fn"].size
