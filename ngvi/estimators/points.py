"""Points by site, which estimators are given, and what a family asks of a Hessian."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ngvi.families.base import Array, Family
from ngvi.families.draws import density_of_point
from ngvi.families.mixture import Mixture

#: Families, noise or latent vectors, by the site of the guide that draws them.
Families = dict[str, Any]
Arrays = dict[str, Array]

#: The diagonal of a Hessian of more coordinates is read off two products, if there is nothing else
#: in the Hessian: those of independent priors of a network's weights, say.
MAX_PROBED_DIAGONAL = 256


class PointsBySite(NamedTuple):
    """Draws of all sites' latent vectors."""

    noise: Arrays  #: Noise by site, shapes ``(N, d)``.
    weights: Array  #: Weights of shape ``(N,)``, which sum to one.
    keys: Array | None = None  #: JAX keys for what else is drawn, shape ``(N,)``.

    def of(self, here: Families) -> Arrays:
        """``theta`` by site, shapes ``(N, d)``."""
        return {site: family.sample(self.noise[site]) for site, family in here.items()}

    def some(self, kept: Any) -> PointsBySite:
        """Return the draws at some indices."""
        noise = {site: z[kept] for site, z in self.noise.items()}
        keys = None if self.keys is None else self.keys[kept]
        return PointsBySite(noise, self.weights[kept], keys)


def log_q(here: Families, noise: Arrays) -> Array:
    """``log q`` of the draws, summed over sites; shape ``(N,)``."""
    return sum(density_of_point(family, noise[site]) for site, family in here.items())


def mixture_in(here: Families) -> str | None:
    """Return the site of a mixture, if there is one.

    :raises NotImplementedError: for one beside other families.
    """
    found = [site for site, family in here.items() if isinstance(family, Mixture)]
    if found and len(here) > 1:
        raise NotImplementedError(
            f"'{found[0]}' is a mixture beside other guides: make one guide of all latents, "
            "NaturalGaussianGuide(model, family=Mixture(...))."
        )
    return found[0] if found else None


@functools.cache
def scales(dim: int) -> np.ndarray:
    """Return a random ``s``: if ``H s`` is ``s`` times ``H 1``, elementwise, ``H`` is diagonal.

    :return: between 0.5 and 1.5 in size, of either sign, shape ``(dim,)``.
    """
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, dim) * rng.choice([-1.0, 1.0], dim)


def num_products(family: Family) -> int:
    """Return how many Hessian-vector products the family's part of a Hessian takes."""
    return int(family.hessian_probes().max()) + 1


def map_tree(function: Callable, one: Any, *others: Any) -> Any:
    """Apply a function to the arrays of nested tuples and lists, or of several that are alike."""
    if not isinstance(one, (tuple, list)):
        return function(one, *others)
    parts = [map_tree(function, *part) for part in zip(one, *others, strict=True)]
    return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)
