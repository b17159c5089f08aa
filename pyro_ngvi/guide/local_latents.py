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

For :class:`~pyro_ngvi.families.sparse_precision.SparsePrecision` the factor of an element is
its conditional given the globals: that is what stays for an unvisited one, and its mean follows
the globals' as the conditional has it. In whitened coordinates ``d = T^T dmu`` the two separate,
and it is there that the factor is divided out.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from contextlib import ExitStack
from functools import singledispatch
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from pyro.ops.provenance import extract_provenance
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from ngvi.structure import subsampling
from ngvi.structure.forest import Forest
from ngvi.structure.layout import Site
from ngvi.structure.subsampling import SubsampledLatent
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.block_diagonal import BlockDiagonal
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.sparse_precision import SparsePrecision
from pyro_ngvi.guide.posterior import NaturalNormal
from pyro_ngvi.linalg.arrow import Arrow


class Visits(subsampling.Visits):
    """Which elements of the plates around latents a minibatch has; indices are tensors."""

    def gather(self, site: Site, value: Tensor) -> Tensor:
        """The visited elements of a site's unconstrained value."""
        for plate in site.plates:
            if plate.name in self.indices:
                axis = plate.axis - len(site.shape)
                value = value.index_select(axis, self.indices[plate.name].to(value.device))
        return value

    def weights(self, like: Tensor) -> Tensor:
        """``w`` of (1), shape ``(d,)``, with the dtype and device of ``like``."""
        parts = []
        for site in self.sites:
            weight = like.new_ones(())
            for plate in site.plates:
                if plate.name not in self.indices:
                    continue
                visited = self.indices[plate.name].to(like.device)
                each = like.new_full((len(visited),), plate.size / len(visited))
                counts = like.new_zeros(plate.size).index_add(0, visited, each)
                weight = weight * counts.reshape((-1,) + (1,) * (len(site.shape) - plate.axis - 1))
            parts.append(weight.expand(site.shape).reshape(-1))
        return torch.cat(parts)


class VisitedNormal(NaturalNormal):
    """``N(mu, Sigma)`` with the estimate (1) as its ``log_prob``.

    :param family: the Gaussian, as :func:`of_visits` returns it.
    :param weights: ``w`` of (1), shape ``(d,)``.
    """

    def __init__(
        self,
        family: Family,
        weights: Tensor,
        sticking_the_landing: bool = False,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        self.weights = weights
        super().__init__(family, sticking_the_landing, batch_shape)

    def expand(self, batch_shape: tuple[int, ...], _instance: Any = None) -> VisitedNormal:
        return VisitedNormal(self.family, self.weights, self.sticking_the_landing, batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        value, _ = extract_provenance(value)  # TraceGraph_ELBO wraps values
        if self._last_draw is None or value is not self._last_draw[0]:
            family = self.family.precondition()
            return self._estimate(family.whiten(value), family)
        _, noise, displaced = self._last_draw
        if self.sticking_the_landing:
            return self._estimate(displaced, self.family.detach())
        return self._estimate(noise, self.family.precondition())

    def _estimate(self, noise: Tensor, family: Family) -> Tensor:
        terms = -0.5 * noise**2 - 0.5 * math.log(2.0 * math.pi) - log_scales(family)
        return (self.weights * terms).sum(-1)


@singledispatch
def log_scales(family: Family) -> Tensor:
    """``log |C_kk|``, whose sum is ``log |Sigma| / 2``; shape ``(d,)``."""
    raise NotImplementedError(f"{type(family).__name__} has no factors for single latents.")


@singledispatch
def of_visits(family: Family, weights: Tensor) -> Family:
    """The same family, whose natural gradient is divided by ``w``, and zero where ``w`` is.

    :param weights: ``w`` of (1), shape ``(d,)``, equal within each block.
    """
    raise NotImplementedError(f"{type(family).__name__} has no parameters of single latents.")


@log_scales.register
def _(family: Diagonal) -> Tensor:
    return family.scale.abs().log()


@log_scales.register
def _(family: BlockDiagonal) -> Tensor:
    return _log_diagonal(family.structure, family.scale_tril)


@log_scales.register
def _(family: SparsePrecision) -> Tensor:
    return -_log_diagonal(family.structure, family.precision_tril)


@of_visits.register
def _(family: Diagonal, weights: Tensor) -> Diagonal:
    share = _inverse(weights)
    return Diagonal(_times(family.loc, share), _times(family.scale, share))


@of_visits.register
def _(family: BlockDiagonal, weights: Tensor) -> BlockDiagonal:
    share = _inverse(weights)
    packed = _times(family.scale_tril, _of_columns(family.structure, share))
    return dataclasses.replace(family, loc=_times(family.loc, share), scale_tril=packed)


@of_visits.register
def _(family: SparsePrecision, weights: Tensor) -> SparsePrecision:
    structure, share = family.structure, _inverse(weights)
    packed = _times(family.precision_tril, _of_columns(structure, share))
    loc = family.loc.detach()
    factor = Arrow.unpack(structure, family.precision_tril.detach())
    # The transpose of T^-T diag(share) T^T, which is what the natural gradient meets.
    change = factor.solve(Arrow.split(structure, family.loc - loc))
    change = [s * c for s, c in zip(Arrow.split(structure, share), change, strict=True)]
    loc = loc + Arrow.join(structure, factor.times(change))
    return dataclasses.replace(family, loc=loc, precision_tril=packed)


def _log_diagonal(structure: Forest, packed: Tensor) -> Tensor:
    diagonals = Arrow.unpack(structure, packed).diagonals()
    return Arrow.join(structure, [diagonal.abs().log() for diagonal in diagonals])


def _of_columns(structure: Forest, values: Tensor) -> Tensor:
    """A value for each block, at every entry of the block's columns, packed."""
    pieces = [
        value[0].expand(shape).reshape(-1)
        for value, shapes in zip(Arrow.split(structure, values), structure.shapes(), strict=True)
        for shape in shapes
    ]
    return torch.cat(pieces)


def _inverse(weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights.clamp(min=1e-30).reciprocal(), 0.0)


def _times(value: Tensor, share: Tensor) -> Tensor:
    """``value``, with its derivative multiplied by ``share``."""
    here = value.detach()
    return here + share * (value - here)


# -- between the latent vector and the sites ------------------------------------------


def full_shapes(
    shapes: dict[str, torch.Size], trace: poutine.Trace, local: list[SubsampledLatent]
) -> dict[str, torch.Size]:
    """Shapes of all elements.

    :param shapes: of unconstrained values, by site.
    :param trace: of the model.
    :param local: the sites in subsampled plates.
    """
    full = {name: list(shape) for name, shape in shapes.items()}
    for site, _, axis, _, full_size in local:
        # Constraints change the event dimensions only, which are on the right.
        axis = axis + trace.nodes[site]["value"].dim() - len(shapes[site])
        full[site][axis] = full_size
    return {name: torch.Size(shape) for name, shape in full.items()}


def periodic_repeat(value: Tensor, shape: torch.Size) -> Tensor:
    """Elements of all plates: those of the first minibatch, again and again."""
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = value.index_select(axis, torch.arange(size) % value.shape[axis])
    return value


def sample_visited(
    visits: Visits,
    values: dict[str, Tensor],
    trace: poutine.Trace,
    supports: dict[str, Constraint],
    plates: dict[str, pyro.plate],
) -> dict[str, Tensor]:
    """The guide's sites for the visited elements, inside their plates.

    :param values: unconstrained, of all elements, by site.
    :param trace: of the model.
    :param supports: by site, where not that of the trace.
    :return: constrained values by site.
    """
    result = {}
    for site in visits.sites:
        fn, frames = trace.nodes[site.name]["fn"], trace.nodes[site.name]["cond_indep_stack"]
        support = supports.get(site.name)
        if support is None:
            partial = visits.subsampled(site)
            axes = [frame.dim - fn.event_dim for frame in frames if frame.name in partial]
            support = one_support(fn.support, axes, site.name)
        transform = biject_to(support)
        unconstrained = visits.gather(site, values[site.name])
        value = transform(unconstrained)
        log_density: Any = 0.0
        if poutine.get_mask() is not False:
            log_density = transform.inv.log_abs_det_jacobian(value, unconstrained)
            surplus = log_density.dim() - value.dim() + fn.event_dim
            log_density = sum_rightmost(log_density, surplus)
        delta = dist.Delta(value, log_density=log_density, event_dim=fn.event_dim)
        with ExitStack() as stack:
            for frame in frames:
                stack.enter_context(plates[frame.name])
            result[site.name] = pyro.sample(site.name, delta)
    return result


def one_support(support: Constraint, axes: Iterable[int], site: str) -> Constraint:
    """A support for any elements of the plates, from that of some.

    :param support: of the site, whose bounds may have been expanded to the minibatch.
    :param axes: of the subsampled plates, counted from the right.
    :param site: its name, for the message.
    :raises ValueError: if the bounds differ from element to element.
    """

    def narrow(bound: Tensor) -> Tensor:
        for axis in axes:
            if bound.dim() < -axis or bound.shape[axis] == 1:
                continue
            first = bound.detach().narrow(axis, 0, 1)
            if (bound != first).any():
                raise ValueError(
                    f"Latent site '{site}' is inside a subsampled plate, and the bounds of its "
                    "support differ between the plate's elements, of which this guide knows only "
                    "the first minibatch's. Draw it between constant bounds and scale it."
                )
            bound = first
        return bound

    axes = list(axes)
    if not axes:
        return support
    narrowed = copy.copy(support)
    for name, value in list(vars(support).items()):
        if isinstance(value, Constraint):
            setattr(narrowed, name, one_support(value, axes, site))
        elif isinstance(value, Tensor):
            setattr(narrowed, name, narrow(value))
    return narrowed
