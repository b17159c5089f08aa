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

For :class:`~numpyro_ngvi.families.sparse_precision.SparsePrecision` the factor of an element is
its conditional given the globals: that is what stays for an unvisited one, and its mean follows
the globals' as the conditional has it. In whitened coordinates ``d = T^T dmu`` the two separate,
and it is there that the factor is divided out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from contextlib import ExitStack
from functools import singledispatch
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import UnpackTransform, biject_to
from numpyro.distributions.util import periodic_repeat, sum_rightmost

from ngvi.structure import subsampling
from ngvi.structure.forest import Forest
from ngvi.structure.layout import Site
from ngvi.structure.subsampling import SubsampledLatent
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.block_diagonal import BlockDiagonal
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.sparse_precision import SparsePrecision
from numpyro_ngvi.guide.posterior import NaturalNormal
from numpyro_ngvi.linalg.arrow import Arrow


class Visits(subsampling.Visits):
    """Which elements of the plates around latents a minibatch has; indices are arrays."""

    def gather(self, site: Site, value: jax.Array) -> jax.Array:
        """The visited elements of a site's unconstrained value."""
        for plate in site.plates:
            if plate.name in self.indices:
                axis = plate.axis - len(site.shape)
                value = jnp.take(value, self.indices[plate.name], axis=axis)
        return value

    def weights(self, dtype: Any) -> jax.Array:
        """``w`` of (1), shape ``(d,)``."""
        parts = []
        for site in self.sites:
            weight = jnp.ones((), dtype)
            for plate in site.plates:
                if plate.name not in self.indices:
                    continue
                visited = self.indices[plate.name]
                counts = jnp.zeros(plate.size, dtype).at[visited].add(plate.size / len(visited))
                weight = weight * counts.reshape((-1,) + (1,) * (len(site.shape) - plate.axis - 1))
            parts.append(jnp.broadcast_to(weight, site.shape).reshape(-1))
        return jnp.concatenate(parts)


class VisitedNormal(NaturalNormal):
    """``N(mu, Sigma)`` with the estimate (1) as its ``log_prob``.

    :param family: the Gaussian, as :func:`of_visits` returns it.
    :param weights: ``w`` of (1), shape ``(d,)``.
    """

    pytree_data_fields: ClassVar[tuple] = ("family", "weights")

    def __init__(
        self,
        family: Family,
        weights: jax.Array,
        sticking_the_landing: bool = False,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        self.weights = weights
        super().__init__(family, sticking_the_landing, batch_shape)

    def expand(self, batch_shape: tuple[int, ...]) -> VisitedNormal:
        return VisitedNormal(
            self.family, self.weights, self.sticking_the_landing, tuple(batch_shape)
        )

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:
        if not intermediates:
            family = self.family.precondition()
            return self._estimate(family.whiten(value), family)
        noise, displaced = intermediates
        if self.sticking_the_landing:
            return self._estimate(displaced, jax.lax.stop_gradient(self.family))
        return self._estimate(noise, self.family.precondition())

    def _estimate(self, noise: jax.Array, family: Family) -> jax.Array:
        terms = -0.5 * noise**2 - 0.5 * math.log(2.0 * math.pi) - log_scales(family)
        return jnp.sum(self.weights * terms, -1)


@singledispatch
def log_scales(family: Family) -> jax.Array:
    """``log |C_kk|``, whose sum is ``log |Sigma| / 2``; shape ``(d,)``."""
    raise NotImplementedError(f"{type(family).__name__} has no factors for single latents.")


@singledispatch
def of_visits(family: Family, weights: jax.Array) -> Family:
    """The same family, whose natural gradient is divided by ``w``, and zero where ``w`` is.

    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    """
    raise NotImplementedError(f"{type(family).__name__} has no parameters of single latents.")


@log_scales.register
def _(family: Diagonal) -> jax.Array:
    return jnp.log(jnp.abs(family.scale))


@log_scales.register
def _(family: BlockDiagonal) -> jax.Array:
    return _log_diagonal(family.structure, family.scale_tril)


@log_scales.register
def _(family: SparsePrecision) -> jax.Array:
    return -_log_diagonal(family.structure, family.precision_tril)


@of_visits.register
def _(family: Diagonal, weights: jax.Array) -> Diagonal:
    share = _inverse(weights)
    return Diagonal(_times(family.loc, share), _times(family.scale, share))


@of_visits.register
def _(family: BlockDiagonal, weights: jax.Array) -> BlockDiagonal:
    share = _inverse(weights)
    packed = _times(family.scale_tril, _of_columns(family.structure, share))
    return dataclasses.replace(family, loc=_times(family.loc, share), scale_tril=packed)


@of_visits.register
def _(family: SparsePrecision, weights: jax.Array) -> SparsePrecision:
    structure, share = family.structure, _inverse(weights)
    packed = _times(family.precision_tril, _of_columns(structure, share))
    loc = jax.lax.stop_gradient(family.loc)
    factor = Arrow.unpack(structure, jax.lax.stop_gradient(family.precision_tril))
    # The transpose of T^-T diag(share) T^T, which is what the natural gradient meets.
    change = factor.solve_linear(Arrow.split(structure, family.loc - loc))
    change = [s * c for s, c in zip(Arrow.split(structure, share), change, strict=True)]
    loc = loc + Arrow.join(structure, factor.times(change))
    return dataclasses.replace(family, loc=loc, precision_tril=packed)


def _log_diagonal(structure: Forest, packed: jax.Array) -> jax.Array:
    diagonals = Arrow.unpack(structure, packed).diagonals()
    return Arrow.join(structure, [jnp.log(jnp.abs(diagonal)) for diagonal in diagonals])


def _of_columns(structure: Forest, values: jax.Array) -> jax.Array:
    """A value for each block, at every entry of the block's columns, packed."""
    pieces = [
        jnp.broadcast_to(value[0], shape).reshape(-1)
        for value, shapes in zip(Arrow.split(structure, values), structure.shapes(), strict=True)
        for shape in shapes
    ]
    return jnp.concatenate(pieces)


def _inverse(weights: jax.Array) -> jax.Array:
    return jnp.where(weights > 0, 1.0 / jnp.where(weights > 0, weights, 1.0), 0.0)


def _times(value: jax.Array, share: jax.Array) -> jax.Array:
    """``value``, with its derivative multiplied by ``share``."""
    here = jax.lax.stop_gradient(value)
    return here + share * (value - here)


# -- between the latent vector and the sites ------------------------------------------


def full_locs(
    locs: dict[str, jax.Array], trace: dict[str, Any], local: list[SubsampledLatent]
) -> dict[str, jax.Array]:
    """Starting points of all elements: those of the first minibatch, again and again.

    :param locs: unconstrained, by site.
    :param trace: of the model.
    :param local: the sites in subsampled plates.
    """
    locs = dict(locs)
    for site, _, axis, _, full_size in local:
        value = locs[site]
        # Constraints change the event dimensions only, which are on the right.
        axis = axis + jnp.ndim(trace[site]["value"]) - jnp.ndim(value)
        locs[site] = periodic_repeat(value, full_size, axis)
    return locs


def unpacking(locs: dict[str, jax.Array]) -> tuple[jax.Array, UnpackTransform]:
    """The latent vector of these values, and the way back, as ``AutoContinuous`` has them."""
    shapes = {name: jnp.shape(value) for name, value in locs.items()}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]

    def unpack(latent: jax.Array) -> dict[str, jax.Array]:
        pieces = jnp.split(latent, ends, -1)
        batch = jnp.shape(latent)[:-1]
        return {
            name: piece.reshape(batch + shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    def pack(values: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([values[name].reshape(-1) for name in shapes])

    return pack(locs), UnpackTransform(unpack, pack)


def sample_visited(
    visits: Visits,
    values: dict[str, jax.Array],
    trace: dict[str, Any],
    supports: dict[str, Constraint],
    plates: dict[str, numpyro.plate],
) -> dict[str, jax.Array]:
    """The guide's sites for the visited elements, inside their plates.

    :param values: unconstrained, of all elements, by site.
    :param trace: of the model.
    :param supports: by site, where not that of the trace.
    :return: constrained values by site.
    """
    result = {}
    for site in visits.sites:
        fn = trace[site.name]["fn"]
        support = supports.get(site.name, fn.support)
        if site.name not in supports:
            frames = trace[site.name]["cond_indep_stack"]
            partial = visits.subsampled(site)
            axes = [frame.dim - fn.event_dim for frame in frames if frame.name in partial]
            support = one_support(support, axes, site.name)
        transform = biject_to(support)
        unconstrained = visits.gather(site, values[site.name])
        value = transform(unconstrained)
        log_density = 0.0
        if numpyro.get_mask() is not False:
            log_density = -transform.log_abs_det_jacobian(unconstrained, value)
            surplus = jnp.ndim(log_density) - jnp.ndim(value) + fn.event_dim
            log_density = sum_rightmost(log_density, surplus)
        delta = dist.Delta(value, log_density=log_density, event_dim=fn.event_dim)
        with ExitStack() as stack:
            if visits.subsampled(site):
                for frame in trace[site.name]["cond_indep_stack"]:
                    stack.enter_context(plates[frame.name])
            result[site.name] = numpyro.sample(site.name, delta)
    return result


def one_support(support: Constraint, axes: Iterable[int], site: str) -> Constraint:
    """A support for any elements of the plates, from that of some.

    :param support: of the site, whose bounds may have been expanded to the minibatch.
    :param axes: of the subsampled plates, counted from the right.
    :param site: its name, for the message.
    :raises ValueError: if the bounds differ from element to element.
    """

    def narrow(bound: Any) -> Any:
        for axis in axes:
            if jnp.ndim(bound) < -axis or jnp.shape(bound)[axis] == 1:
                continue
            bound = np.asarray(bound)
            first = bound.take([0], axis)
            if (bound != first).any():
                raise ValueError(
                    f"Latent site '{site}' is inside a subsampled plate, and the bounds of its "
                    "support differ between the plate's elements, of which this guide knows only "
                    "the first minibatch's. Draw it between constant bounds and scale it."
                )
            bound = first
        return bound

    return jax.tree.map(narrow, support)
