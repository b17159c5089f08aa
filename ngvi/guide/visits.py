"""Latents inside a subsampled plate: only those of the minibatch are visited.

The latent vector holds all ``N`` elements of the plate; a step sees ``B`` of them. Let ``w_k`` be
``N / B`` for a coordinate ``k`` of a visited element, 0 for the others of the plate and 1 for a
global. The families for which this is possible are products of conditionals, ``q(globals)`` times
one factor for each element, and whitening separates the factors, so that

    sum_k w_k (log N(z_k; 0, 1) - log |C_kk|)                                      (1)

is an unbiased estimate of ``log q`` that needs the visited elements only. The PPL scales
``log p`` of the plate by the same ``N / B``: the bound is unbiased, and so are the gradients of the
globals. The natural gradient of a visited element comes with the factor ``N / B``, which belongs
to an estimate of a *sum* over elements: on its own parameters the bound depends by its own term
alone. Dividing it out (Hoffman et al., 2013, *Stochastic variational inference*, with exact
local steps) leaves the natural gradient of the bound of all data. Unvisited elements get zero.

``NaturalELBO`` takes the second order of the same estimate: its Hessian has the factor ``w_k`` in
the columns of a visited element, and the entropy of (1) as well, so that the same division leaves
Bonnet's and Price's natural gradient of the bound of all data (:func:`natural_gradient_of_visits`).
The precision of an unvisited element does not decay.

For ``SparsePrecision`` the factor of an element is
its conditional given the globals: that is what stays for an unvisited one, and its mean follows
the globals' as the conditional has it. In whitened coordinates ``d = T^T dmu`` the two separate,
and it is there that the factor is divided out.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

from ngvi.estimators import points
from ngvi.estimators.points import Arrays, Families
from ngvi.families.base import Array, Family
from ngvi.latents import subsampling
from ngvi.latents.layout import Site

#: The factors that have parts of single latents, by the names of their families.
FACTORS = {
    "diagonal": "scale",
    "block_diagonal": "scale_tril",
    "sparse_precision": "precision_tril",
}


class Visits(subsampling.MinibatchElements):
    """Which elements of the plates around latents a minibatch has; indices are tensors.

    A package's subclass names its library and its PPL.
    """

    ppl: ClassVar[Any]  #: has ``sample``
    #: Of the PPL: ``Delta``, ``biject_to`` and ``sum_rightmost``, and whether its guides enter
    #: the plates of a site that is visited whole.
    delta: ClassVar[Any]
    biject_to: ClassVar[Any]
    sum_rightmost: ClassVar[Any]
    enters_whole_plates: ClassVar[bool]

    def _take(self, value: Array, indices: Array, axis: int) -> Array:
        raise NotImplementedError

    def _counts(self, size: int, visited: Array, each: float, like: Array) -> Array:
        """Zeros, shape ``(size,)``, to which every visit adds ``each``."""
        raise NotImplementedError

    def _is_masked(self) -> bool:
        """Whether log densities are not wanted."""
        raise NotImplementedError

    def one_support(self, support: Any, axes: list[int], site: str) -> Any:
        """A support for any elements of the plates, from that of some.

        :param support: of the site, whose bounds may have been expanded to the minibatch.
        :param axes: of the subsampled plates, counted from the right.
        :param site: its name, for the message.
        :raises ValueError: if the bounds differ from element to element.
        """
        raise NotImplementedError

    def gather(self, site: Site, value: Array) -> Array:
        """The visited elements of a site's unconstrained value."""
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
                visited = self.indices[plate.name]
                counts = self._counts(plate.size, visited, plate.size / len(visited), like)
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
        """The guide's sites for the visited elements, inside their plates.

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
            if not self._is_masked():
                log_density = -transform.log_abs_det_jacobian(unconstrained, value)
                surplus = log_density.ndim - value.ndim + fn.event_dim
                log_density = self.sum_rightmost(log_density, surplus)
            delta = self.delta(value, log_density=log_density, event_dim=fn.event_dim)
            with ExitStack() as stack:
                for frame in frames if partial or self.enters_whole_plates else ():
                    stack.enter_context(plates[frame.name])
                result[site.name] = self.ppl.sample(site.name, delta)
        return result

    def of(self, family: Any) -> Any:
        """The :class:`VisitedFamily` of these visits."""
        weights = self.weights(family)
        return VisitedFamily(of_visits(family, weights), weights, family)


class VisitedFamily(NamedTuple):
    """A Gaussian of which a minibatch visits a part, with the estimate (1) as its log density."""

    family: Any  #: as :func:`of_visits` returns it
    weights: Array  #: ``w`` of (1), shape ``(d,)``
    whole: Any  #: the Gaussian with its own coordinates

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)  # what visits do not change

    def precondition(self) -> VisitedFamily:
        """The same: :meth:`log_prob` sees to it."""
        return self

    def log_prob(self, value: Array) -> Array:
        """(1), differentiated through ``precondition``."""
        family = self.family.precondition()
        return log_q(family, family.whiten(value), self.weights)

    def draw_log_prob(self, noise: Array) -> Array:
        """See :class:`~ngvi.families.base.Family`."""
        return log_q(self.family.precondition(), noise, self.weights)

    def sticking_log_prob(self, reparametrised: Array) -> Array:
        """See :class:`~ngvi.families.base.Family`."""
        return log_q(self.family.detach(), reparametrised, self.weights)


def refuse_bounds(site: str) -> None:
    """Say that the bounds of a support differ from element to element.

    :raises ValueError: always.
    """
    raise ValueError(
        f"Latent site '{site}' is inside a subsampled plate, and the bounds of its "
        "support differ between the plate's elements, of which this guide knows only "
        "the first minibatch's. Draw it between constant bounds and scale it."
    )


def log_q(family: Family, noise: Array, weights: Array) -> Array:
    """The estimate (1) of ``log q`` of draws; ``(..., d)`` to ``(...)``."""
    name = FACTORS[family.name]
    factor = getattr(family, name)
    if name != "scale":
        factor = family._join(family._factor().diagonals())  # type: ignore[attr-defined]
    log_scales = family.xp.log(abs(factor))  # log |C_kk|, whose sum is log |Sigma| / 2
    if name == "precision_tril":
        log_scales = -log_scales
    return (weights * (-0.5 * noise**2 - 0.5 * math.log(2.0 * math.pi) - log_scales)).sum(-1)


def log_q_of_visits(here: Families, noise: Arrays, visited: Arrays) -> Array:
    """:func:`ngvi.estimators.points.log_q`, by the estimate (1) where a minibatch visits a part.

    :param visited: ``w`` of (1), by those sites.
    """
    whole = {site: family for site, family in here.items() if site not in visited}
    parts = [log_q(here[site], noise[site], weights) for site, weights in visited.items()]
    return sum(parts, start=points.log_q(whole, noise))


def of_visits(family: Any, weights: Array) -> Any:
    """The same family, whose natural gradient is divided by ``w``, and zero where ``w`` is.

    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    """
    here, name, xp = family.detach(), FACTORS[family.name], family.xp
    share = xp.where(weights > 0, 1.0 / xp.where(weights > 0, weights, 1.0), 0.0)
    of_entries = share if name == "scale" else family._of_columns(share)

    def times(field: str, share: Array) -> Array:
        """The coordinate, with its derivative multiplied by ``share``."""
        constant = getattr(here, field)
        return constant + share * (getattr(family, field) - constant)

    if name != "precision_tril":
        loc = times("loc", share)
    else:
        # The transpose of T^-T diag(share) T^T, which is what the natural gradient meets.
        factor = here._factor()
        change = factor.solve_linear(family._split(family.loc - here.loc))
        change = [s * c for s, c in zip(family._split(share), change, strict=True)]
        loc = here.loc + family._join(factor.times(change))
    return dataclasses.replace(family, **{"loc": loc, name: times(name, of_entries)})


def natural_gradient_of_visits(
    family: Any, direction: Any, weights: Array, of_entropy: Any = None
) -> Any:
    """What a minibatch says of the bound of all data.

    :param direction: the natural gradient of ``E[log p]`` of the minibatch, scaled as the PPL
        does, and the whole entropy.
    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    :param of_entropy: the entropy's part of it, if that has noise; it is not to be divided.
    :return: each visited element's natural gradient, as if all were visited; zero at the others.
    """
    name, xp = FACTORS[family.name], family.xp
    if of_entropy is None:
        half = (-0.5 if name == "precision_tril" else 0.5) * getattr(family, name)
        of_entropy = dataclasses.replace(family, **{"loc": xp.zeros_like(family.loc), name: half})
    visited = xp.where(weights > 0, xp.ones_like(weights), xp.zeros_like(weights))
    share = visited / xp.where(weights > 0, weights, xp.ones_like(weights))
    rest = family.weighted(direction.map(operator.sub, of_entropy), share, share)
    return rest.map(operator.add, family.weighted(of_entropy, visited, visited))
