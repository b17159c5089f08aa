"""What an estimator is given: points by site, and what a family asks of a Hessian."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.families.base import Array, Family
from ngvi.families.mixture import Mixture

#: Families, noise or latent vectors, by the site of the guide that draws them.
Families = dict[str, Any]
Arrays = dict[str, Array]

#: The diagonal of a Hessian of more coordinates is read off two products, if there is nothing else
#: in the Hessian: those of independent priors of a network's weights, say.
MAX_PROBED_DIAGONAL = 256


class PointsBySite(NamedTuple):
    """Draws of all sites' latent vectors."""

    noise: Arrays  #: by site, shapes ``(N, d)``
    weights: Array  #: shape ``(N,)``, which sum to one
    keys: Array | None = None  #: of JAX, for what else is drawn, shape ``(N,)``

    def of(self, here: Families) -> Arrays:
        """``theta`` by site, shapes ``(N, d)``."""
        return {site: family.sample(self.noise[site]) for site, family in here.items()}

    def some(self, kept: Any) -> PointsBySite:
        """The draws at some indices."""
        noise = {site: z[kept] for site, z in self.noise.items()}
        keys = None if self.keys is None else self.keys[kept]
        return PointsBySite(noise, self.weights[kept], keys)


def log_q(here: Families, noise: Arrays) -> Array:
    """``log q`` of the draws, summed over sites; shape ``(N,)``."""
    return sum(family.density_of_point(noise[site]) for site, family in here.items())


def mixture_in(here: Families) -> str | None:
    """The site of a mixture, if there is one.

    :raises NotImplementedError: for one beside other families.
    """
    found = [site for site, family in here.items() if isinstance(family, Mixture)]
    if found and len(here) > 1:
        raise NotImplementedError(
            f"'{found[0]}' is a mixture beside other guides, whose draws would have to be those of "
            "one component each: make one guide of all latents, NaturalGaussianGuide(model, "
            "family=Mixture(...))."
        )
    return found[0] if found else None


@functools.cache
def scales(dim: int) -> np.ndarray:
    """A random ``s``: if ``H s`` is ``s`` times ``H 1``, elementwise, ``H`` is diagonal.

    :return: between 0.5 and 1.5 in size, of either sign, shape ``(dim,)``.
    """
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, dim) * rng.choice([-1.0, 1.0], dim)


def num_products(family: Family) -> int:
    """How many Hessian-vector products the family's part of a Hessian takes."""
    return int(family.hessian_probes().max()) + 1


class Examples(NamedTuple):
    """A log density as a sum over examples and a rest: ``sum(scale * log_lik) + rest``."""

    log_likelihood: Array  #: in nats, without the plates' scale, shape ``(..., N)``
    scale: Array  #: how many examples each stands for, shape ``(..., N)``
    rest: Array  #: prior, Jacobians, partners; shape ``(...)``


def check_not_enumerated(is_enumerated: bool) -> None:
    """Refuse examples of a model with latents that are summed out.

    :raises ValueError: saying what to use.
    """
    if is_enumerated:
        raise ValueError(
            "curvature='gauss_newton' needs the likelihood of each example, which a model with "
            "enumerated latents does not have site by site: use curvature='hessian'."
        )


def without_plate(site: str, ppl: str) -> str:
    """In words, of an observed site that has no examples."""
    return (
        f"curvature='gauss_newton' sums over examples, but the observed site '{site}' is in no "
        f"plate: put it into {ppl}.plate('data', len(y)), or use curvature='hessian'."
    )


def aligned(groups: Iterable[Sequence[tuple[Array, Array]]]) -> tuple[list[Array], list[Array]]:
    """The log likelihoods by example of groups of sites, and how their sums are scaled.

    :param groups: of the sites that share their examples log likelihoods and scales, a vector each.
    :raises ValueError: if there are none.
    """
    log_likelihoods, scales = [], []
    for members in groups:
        scale = members[0][1]
        # Sites of one group may be scaled differently (by the handler ``scale``).
        log_likelihoods.append(sum(value * (s / scale) for value, s in members))
        scales.append(scale)
    if not scales:
        raise ValueError(
            "curvature='gauss_newton' needs observed sites, and the model has none: use "
            "curvature='hessian'."
        )
    return log_likelihoods, scales
