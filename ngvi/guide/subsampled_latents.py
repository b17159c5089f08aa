"""Latents inside a subsampled plate: a step moves only those of its minibatch.

The latent vector holds all ``N`` elements of the plate; a step sees ``B`` of them. Let ``w_k`` be
``N / B`` for a coordinate ``k`` of an element of the minibatch, 0 for the others of the plate and 1
for a global. The families for which this is possible are products of conditionals, ``q(globals)``
times one factor for each element, and whitening separates the factors, so that

    sum_k w_k (log N(z_k; 0, 1) - log |C_kk|)                                      (1)

is an unbiased estimate of ``log q`` that needs the elements of the minibatch only. The PPL scales
``log p`` of the plate by the same ``N / B``: the bound is unbiased, and so are the gradients of the
globals. The natural gradient of an element comes with the factor ``N / B``, which belongs to an
estimate of a *sum* over elements: on its own parameters the bound depends by its own term alone.
Dividing it out (Hoffman et al., 2013, *Stochastic variational inference*, with exact local steps)
leaves the natural gradient of the bound of all data. Elements outside of the minibatch get zero.

``NaturalELBO`` takes the second order of the same estimate. Its Hessian has the factor ``w_k`` in
the columns of an element, and the entropy of (1) as well, so that the same division leaves Bonnet's
and Price's natural gradient of the bound of all data (:func:`natural_gradient_of_minibatch`). The
precision of an element outside of the minibatch does not decay.

For ``SparsePrecision`` the factor of an element is its conditional given the globals. Outside the
minibatch this conditional does not change, so the element's mean follows the globals. In whitened
coordinates ``d = T^T dmu`` elements and globals separate, and the factor is divided out there.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ngvi.estimators import points as estimators
from ngvi.estimators.from_gradients import Averages, masked, stein_direction
from ngvi.estimators.points import Arrays, Families
from ngvi.families.base import Array, Family
from ngvi.families.draws import sticking_log_prob
from ngvi.families.steps import weighted
from ngvi.latents import subsampling
from ngvi.latents.layout import Site

#: The factors that have parts of single latents, by the names of their families.
FACTORS = {
    "diagonal": "scale",
    "block_diagonal": "scale_tril",
    "sparse_precision": "precision_tril",
}


class Minibatch(subsampling.MinibatchElements):
    """The elements that a minibatch has of the plates around latents; indices are tensors.

    A package's subclass names its library and its PPL.
    """

    ppl: ClassVar[Any]  #: The PPL has ``sample``.
    dist: ClassVar[Any]  #: The PPL's distributions.
    biject_to: ClassVar[Any]
    get_mask: ClassVar[Any]
    #: True if the PPL's guides enter the plates of a site that has all elements.
    enters_whole_plates: ClassVar[bool]
    #: Return a support for any elements of the plates, from that of some (:func:`first_bound`).
    one_support: ClassVar[Any]
    #: Return the elements that a plate has, or at first a frame of the prototype.
    _indices_of: ClassVar[Any]
    _take: ClassVar[Any]  #: Take some of the elements along an axis.
    #: Count indices: each adds a number to zeros of shape ``(size,)``.
    _counts: ClassVar[Any]

    @classmethod
    def of_plates(cls, sites: tuple[Site, ...], plates: Mapping[str, Any]) -> Any:
        """Make the minibatch of plates by name, or of frames of the prototype."""
        around = {plate.name for site in sites for plate in site.plates}
        named = {name: plate for name, plate in plates.items() if name in around}
        return cls(sites, {name: cls._indices_of(plate) for name, plate in named.items()})

    def gather(self, site: Site, value: Array) -> Array:
        """Return the minibatch's elements of a site's unconstrained value."""
        for plate in site.plates:
            if plate.name in self.indices:
                axis = plate.axis - len(site.shape)
                value = self._take(value, self.indices[plate.name], axis)
        return value

    def weights(self, family: Family) -> Array:
        """``w`` of (1), shape ``(d,)``, of the dtype and device of the family."""
        parts, like, xp = [], family.loc, family.xp
        for site in self.sites:
            weight = xp.ones_like(like[0])
            for plate in site.plates:
                if plate.name not in self.indices:
                    continue
                indices = self.indices[plate.name]
                counts = self._counts(plate.size, indices, plate.size / len(indices), like)
                weight = weight * counts.reshape((-1,) + (1,) * (len(site.shape) - plate.axis - 1))
            parts.append(xp.broadcast_to(weight, site.shape).reshape(-1))
        return xp.concatenate(parts)

    def sample(
        self,
        values: dict[str, Array],
        trace: Mapping[str, Any],
        supports: dict[str, Any],
        plates: dict[str, Any],
    ) -> dict[str, Array]:
        """Sample the guide's sites for the elements of the minibatch, inside their plates.

        :param values: unconstrained, of all elements, by site.
        :param trace: of the model, sites by name.
        :param supports: by site, where not that of the trace.
        :return: constrained values by site.
        """
        result = {}
        for site in self.sites:
            fn, frames = trace[site.name]["fn"], trace[site.name]["cond_indep_stack"]
            partial = self.subsampled(site)
            support = supports.get(site.name)
            if support is None:
                axes = [frame.dim - fn.event_dim for frame in frames if frame.name in partial]
                support = self.one_support(fn.support, axes, site.name)
            transform = self.biject_to(support)
            unconstrained = self.gather(site, values[site.name])
            value = transform(unconstrained)
            log_density: Any = 0.0
            if self.get_mask() is not False:
                log_density = -transform.log_abs_det_jacobian(unconstrained, value)
                surplus = log_density.ndim - value.ndim + fn.event_dim
                log_density = self.dist.util.sum_rightmost(log_density, surplus)
            delta = self.dist.Delta(value, log_density=log_density, event_dim=fn.event_dim)
            with ExitStack() as stack:
                for frame in frames if partial or self.enters_whole_plates else ():
                    stack.enter_context(plates[frame.name])
                result[site.name] = self.ppl.sample(site.name, delta)
        return result

    def of(self, family: Any) -> Any:
        """Return the :class:`SubsampledFamily` of this minibatch."""
        weights = self.weights(family)
        return SubsampledFamily(with_scaled_gradient(family, weights), weights, family)


class SubsampledFamily(NamedTuple):
    """A Gaussian of which a minibatch has a part, with the estimate (1) as its log density."""

    family: Any  #: Family of :func:`with_scaled_gradient`.
    weights: Array  #: Weights ``w`` of (1), shape ``(d,)``.
    whole: Any  #: Gaussian in its own coordinates.

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)  # all else is that of the whole Gaussian

    def precondition(self) -> SubsampledFamily:
        """Return the same object: :meth:`log_prob` preconditions."""
        return self

    def log_prob(self, value: Array) -> Array:
        """Return the estimate (1), differentiated through ``precondition``."""
        family = self.family.precondition()
        return weighted_log_q(family, family.whiten(value), self.weights)

    def draw_log_prob(self, noise: Array) -> Array:
        """See :class:`~ngvi.families.base.Family`."""
        return weighted_log_q(self.family.precondition(), noise, self.weights)


@sticking_log_prob.register(SubsampledFamily)
def _(family: SubsampledFamily, reparametrised: Array) -> Array:
    return weighted_log_q(family.family.detach(), reparametrised, family.weights)


def first_bound(bound: Any, axes: list[int], site: str) -> Any:
    """Return a bound of a support for all elements of plates, from that of a minibatch.

    :param bound: it may have been expanded to the minibatch.
    :param axes: of the subsampled plates, counted from the right.
    :param site: its name, for the message.
    :raises ValueError: if it differs from element to element.
    """
    for axis in axes:
        shape = np.shape(bound)
        if len(shape) < -axis or shape[axis] == 1:
            continue
        bound = getattr(bound, "detach", lambda value=bound: value)()
        first = bound[(..., slice(0, 1), *[slice(None)] * (-axis - 1))]
        if (bound != first).any():
            raise ValueError(
                f"Latent site '{site}' is inside a subsampled plate, and the bounds of its support "
                "differ between elements. Draw it between constant bounds and scale it."
            )
        bound = first
    return bound


def weighted_log_q(family: Family, noise: Array, weights: Array) -> Array:
    """Return the estimate (1) of ``log q`` of draws; ``(..., d)`` to ``(...)``."""
    name = FACTORS[family.name]
    factor = getattr(family, name)
    if name != "scale":
        factor = family._join(family._factor().diagonals())  # type: ignore[attr-defined]
    log_scales = family.xp.log(abs(factor))  # log |C_kk|, whose sum is log |Sigma| / 2
    if name == "precision_tril":
        log_scales = -log_scales
    return (weights * (-0.5 * noise**2 - 0.5 * math.log(2.0 * math.pi) - log_scales)).sum(-1)


def log_q_of_minibatch(here: Families, noise: Arrays, weights_of: Arrays) -> Array:
    """:func:`ngvi.estimators.points.log_q`, by the estimate (1) where a minibatch has a part.

    :param weights_of: ``w`` of (1), by those sites.
    """
    whole = {site: family for site, family in here.items() if site not in weights_of}
    parts = [
        weighted_log_q(here[site], noise[site], weights) for site, weights in weights_of.items()
    ]
    return sum(parts, start=estimators.log_q(whole, noise))


def with_scaled_gradient(family: Any, weights: Array) -> Any:
    """Divide the natural gradient of a family by ``w``; it is zero where ``w`` is.

    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    """
    here, name, xp = family.detach(), FACTORS[family.name], family.xp
    _, inverse = _inverse(xp, weights)
    of_entries = inverse if name == "scale" else family._of_columns(inverse)

    def times(field: str, inverse: Array) -> Array:
        """Return the coordinate, with its derivative multiplied by ``inverse``."""
        constant = getattr(here, field)
        return constant + inverse * (getattr(family, field) - constant)

    if name != "precision_tril":
        loc = times("loc", inverse)
    else:
        # The transpose of T^-T diag(inverse) T^T, which is what the natural gradient meets.
        factor = here._factor()
        change = factor.solve_linear(family._split(family.loc - here.loc))
        change = [s * c for s, c in zip(family._split(inverse), change, strict=True)]
        loc = here.loc + family._join(factor.times(change))
    return dataclasses.replace(family, **{"loc": loc, name: times(name, of_entries)})


def natural_gradient_of_minibatch(
    family: Any, direction: Any, weights: Array, of_entropy: Any = None
) -> Any:
    """Return the natural gradient of the bound of all data that a minibatch estimates.

    :param direction: the natural gradient of ``E[log p]`` of the minibatch, scaled as the PPL
        does, and the whole entropy.
    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    :param of_entropy: the entropy's part of it, if that has noise; it is not to be divided.
    :return: the natural gradient of each element of the minibatch, as if it had all; zero at the
        others.
    """
    name, xp = FACTORS[family.name], family.xp
    if of_entropy is None:
        half = (-0.5 if name == "precision_tril" else 0.5) * getattr(family, name)
        of_entropy = dataclasses.replace(family, **{"loc": xp.zeros_like(family.loc), name: half})
    is_in, inverse = _inverse(xp, weights)
    rest = weighted(family, direction.map(operator.sub, of_entropy), inverse, inverse)
    return rest.map(operator.add, weighted(family, of_entropy, is_in, is_in))


def directions_of_minibatch(
    here: Families,
    estimate: Averages,
    visited: Arrays,
    points: estimators.PointsBySite | None,
    gradient_of: Callable,
) -> Families:
    """Return the directions of an estimate as those of the bound of all data.

    :param visited: how often a minibatch counts each coordinate, by site, where it visits a part.
    :param points: of random draws, whose entropy has noise; None for others.
    :param gradient_of: as an evaluator has it.
    """
    directions = dict(estimate.directions)
    for site, weights in visited.items():
        family, of_entropy = here[site], None
        if points is not None:
            noise, of_draws = points.noise[site], masked(points.weights, estimate.kept, family.xp)
            of_draws = of_draws / of_draws.sum()
            of_entropy = stein_direction(family, 0.0 * noise, noise, of_draws, gradient_of)
        directions[site] = natural_gradient_of_minibatch(
            family, directions[site], weights, of_entropy
        )
    return directions


def _inverse(xp: Any, weights: Array) -> tuple[Array, Array]:
    """1 where a weight is positive, and the inverse of the weight there; elsewhere 0."""
    one = xp.ones_like(weights)
    is_in = xp.where(weights > 0, one, xp.zeros_like(weights))
    return is_in, is_in / xp.where(weights > 0, weights, one)
