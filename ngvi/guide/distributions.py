"""Families as distributions of a PPL, without a dense matrix."""

from __future__ import annotations

import operator
from typing import Any

from ngvi.estimators.natural_elbo import NaturalELBO
from ngvi.families.base import Array
from ngvi.families.dense import DenseFamily
from ngvi.families.diagonal import Diagonal
from ngvi.families.mixture import Mixture


class StructuredNormal:
    """``N(mu, Sigma)`` of a structured family, at the cost of its structure.

    :param family: the Gaussian, with coordinates.
    """

    family: Any
    batch_shape: Any
    shape: Any

    def log_prob(self, value: Array) -> Array:
        return self.family.log_prob(value)

    @property
    def mean(self) -> Array:
        return self.family.xp.broadcast_to(self.family.mean, self.shape())

    @property
    def variance(self) -> Array:
        return self.family.xp.broadcast_to(self.family.variance, self.shape())

    @property
    def covariance_matrix(self) -> Array:
        """Dense, for small ``d``; raises ``ValueError`` beyond."""
        return self.family.covariance_matrix

    @property
    def precision_matrix(self) -> Array:
        """Dense, for small ``d``; raises ``ValueError`` beyond."""
        return self.family.precision_matrix

    def entropy(self) -> Array:
        return self.family.xp.broadcast_to(self.family.entropy(), self.batch_shape)


def to_distribution(family: Any, dist: Any, structured: Any) -> Any:
    """Return the PPL's distribution over vectors of length ``d``, its own one where it has one.

    :param dist: the PPL's distributions.
    :param structured: the package's :class:`StructuredNormal`.
    """
    is_mixture = isinstance(family, Mixture)
    parts = family.components if is_mixture else [family]
    together: Any = family.xp.stack if is_mixture else operator.itemgetter(0)
    if isinstance(parts[0], DenseFamily):
        factors = together([one.lower_factor for one in parts])
        normal = dist.MultivariateNormal(family.loc, scale_tril=factors)
    elif isinstance(parts[0], Diagonal):
        normal = dist.Normal(family.loc, together([one.stddev for one in parts])).to_event(1)
    else:
        return structured(family)
    if not is_mixture:
        return normal
    return dist.MixtureSameFamily(dist.Categorical(logits=family.log_weights), normal)


def check_not_mixture(family: Any) -> None:
    """Raise a ``ValueError`` for what is no affine map of ``N(0, I)``."""
    if isinstance(family, Mixture):
        raise ValueError(
            "A mixture is not a transform of N(0, I): take get_posterior, which has log_prob and "
            "sample, or the parts of it, result.family.components."
        )


def check_has_gradient(elbo: Any) -> None:
    """Refuse to draw from a mixture for an ELBO that would differentiate the draw.

    :param elbo: that is running, or None.
    :raises ValueError: naming the ELBO.
    """
    if elbo is not None and not isinstance(elbo, NaturalELBO):
        raise ValueError(
            f"{type(elbo).__name__} differentiates draws, which a mixture's weights do not allow: "
            "use NaturalELBO() with BLR(), or fit(model, ..., num_components=...)."
        )
