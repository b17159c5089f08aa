r"""Locals as an affine map of globals and data, for any model.

Tan (2021), *Use of model reparametrization to improve variational Bayes*, writes the locals
``b_i`` of a generalised linear mixed model as

    b_i = m_i(g) + L_i(g) z_i,        L_i L_i^T = H_i(g)^-1,                          (1)

where ``m_i`` and ``H_i`` are mode and curvature of ``l(b, g) = log p(y, b, g)`` in ``b_i`` given
the globals ``g``. A Gaussian over ``(z, g)`` fits what no Gaussian over ``(b, g)`` can: the funnel
between a scale and its effects. Here (1) is computed from ``l`` itself. Locals meet only
globals, so that the gradient in all locals at once, and one product with the Hessian for each
coordinate of a block, hold what Newton's method needs for every block. It runs for all blocks
together and without derivatives; at its end ``c + P dl/db(c, g)`` with the constant
``P = H(c, g)^-1`` has the derivative in ``g`` of the implicit function theorem, and the same
step again the second one. For any smooth ``m`` and ``L`` (1) is a bijection, with
``log |det| = sum_i log |L_i|``: what is approximate is the fit, never the density.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ngvi.families.base import Array
from ngvi.latents.choice import Choice, Registry
from ngvi.latents.forest import Forest
from ngvi.latents.layout import Site
from ngvi.latents.local_blocks import LocalBlocks
from ngvi.linalg.arrow import Arrow, Vector

#: Up to so many latents ``family="auto"`` is dense. Beyond, a family whose locals meet only the
#: globals has the same optimum, and ``fit`` needs few points for it (:mod:`ngvi.inference.paths`).
MAX_DENSE_DIM = 40

#: Iterations of Newton's method; a local density without a mode takes all of them.
MAX_ITERATIONS = 50

#: A step at whose end the slope along it has turned by more than this fraction was too long, and
#: becomes shorter by one of these factors, by the secant rule. The next step is at most ``GROWTH``
#: times as long as one that was taken, and no longer where the slope has turned: the curvature of
#: a tail is next to nothing, and says to leave for another one.
TURN, SHORTEST, LONGEST, GROWTH = 0.5, 0.1, 0.5, 4.0

#: Draws that quantiles of locals are taken from.
NUM_DRAWS = 2000

#: A function of the whole unconstrained vector.
Density = Callable[[Array], Array]


def check_order(order: Any) -> int:
    """Raise a ``ValueError`` for an order that is neither 1 nor 2."""
    if order not in (1, 2) or isinstance(order, bool):
        raise ValueError(
            f"order must be 2 (expand about the conditional mode of the locals) or 1 (one Newton "
            f"step from a fixed point), got {order!r}."
        )
    return order


def log_volume(blocks: LocalBlocks) -> float:
    """``-log N(z)`` of standardised locals at 0: with ``l`` at the modes and ``log |det|`` it is
    Laplace's formula.
    """
    return 0.5 * float(blocks.mask.sum()) * math.log(2 * math.pi)


class _State(NamedTuple):
    """Newton's method on its way; vectors of length ``d``, zero outside of the locals."""

    point: Array  #: the best so far
    step: Array  #: to be tried from there
    gain: Array  #: slope at ``point`` times ``step``, summed over each block
    factors: Vector  #: of the curvatures at ``point``, by group
    unsettled: Array  #: whether the block is farther than the tolerance from its mode
    iteration: Array | int


class Reparametrization:
    """The map (1) of one model.

    A package writes what raises ``NotImplementedError`` here.

    :param blocks: the locals.
    :param start: where Newton's method begins, and where ``order=1`` expands, shape ``(d,)``.
    :param order: 2 for the conditional mode, 1 for one step from ``start``.
    """

    #: A package's matrices of a forest.
    arrow: ClassVar[type[Arrow]]

    def __init__(self, blocks: LocalBlocks, start: Array, order: int) -> None:
        self.blocks, self.order = blocks, order
        self.start = start
        self._ops, self._xp = self.arrow.ops, self.arrow.ops.xp
        self._mask = self._constants(blocks.mask)
        self._probes = self._ops.matrices.tensor(blocks.probes, start)
        self._eps = float(np.finfo(str(start.dtype).removeprefix("torch.")).eps)

    # -- what a package writes --------------------------------------------------------

    def _constants(self, values: np.ndarray) -> Array:
        """Booleans as a tensor."""
        raise NotImplementedError

    def _fixed(self, value: Array) -> Array:
        """The value, without its derivative."""
        raise NotImplementedError

    def _gradient(self, function: Density, at: Array) -> Array:
        raise NotImplementedError

    def _gradient_and_products(self, function: Density, at: Array) -> tuple[Array, Array]:
        """The gradient ``(d,)``, and the Hessian times each of the probes ``(r, d)``."""
        raise NotImplementedError

    def _searched(self, density: Density, latent: Array) -> _State:
        """:meth:`_next` from :meth:`_first` on, while :meth:`_goes_on`; without derivatives."""
        raise NotImplementedError

    def _given(self, density: Density, latent: Array) -> Density:
        """``l`` as a function of the locals alone, of which it reads the coordinates."""
        return lambda point: density(self._xp.where(self._mask, point, latent))

    def _with_derivatives(self, given: Density, found: _State) -> Array:
        """The modes that a search has found, with the derivatives of the implicit function theorem.

        Where there are none, the point that it has come to.
        """

        def refined(point: Array) -> Array:
            step = self._newton(found.factors, self._gradient(given, point))
            return point + self._xp.where(found.unsettled > 0, 0.0, step)

        return refined(refined(found.point))

    # -- the map ----------------------------------------------------------------------

    def __call__(self, density: Density, latent: Array) -> tuple[Array, Array, Array]:
        """From ``(z, g)`` to ``(b, g)``.

        Costs an iteration of Newton's method, a gradient and ``r`` products, four to ten times,
        and as much once more with derivatives.

        :param density: ``l``, of vectors ``(d,)``.
        :param latent: ``(z, g)``, shape ``(d,)``.
        :return: ``(b, g)``, shape ``(d,)``; ``log |det|``; and which locals have no mode, shape
            ``(d,)``.
        """
        xp = self._xp
        given = self._given(density, latent)
        if self.order == 1:
            point, unsettled = self.start, xp.zeros_like(self.start)
        else:
            found = self._searched(density, self._fixed(latent))
            unsettled = found.unsettled
            modes = self._with_derivatives(given, found)
            point = xp.where(unsettled > 0, self.start, modes)
        slope, products = self._gradient_and_products(given, point)
        factors, repaired = self._factors(products)
        eyes = self._first().factors
        factors = [  # without a mode a local stays as it is: start + z
            xp.where(is_lost[:1, None] > 0, eye, factor)
            for is_lost, eye, factor in zip(self._local(unsettled), eyes, factors, strict=True)
        ]
        if self.order == 1:
            point = point + self._newton(factors, slope)
        spread = [
            self._ops.solve(factor, z, trans=True)
            for factor, z in zip(factors, self._local(latent), strict=True)
        ]
        theta = xp.where(self._mask, point + self._join(spread), latent)
        log_det = -sum(xp.log(self._ops.diagonal(factor)).sum() for factor in factors)
        return theta, log_det, (unsettled > 0) | (repaired > 0)

    # -- Newton's method for all blocks at once ---------------------------------------

    def _first(self) -> _State:
        zero = self._xp.zeros_like(self.start)
        factors = [
            self._ops.identity(len(group), group.shape[1], zero) for group in self.blocks.groups
        ]
        return _State(self.start, zero, zero, factors, self._flags(self._mask), 0)

    def _next(self, given: Density, state: _State) -> _State:
        xp = self._xp
        trial = state.point + state.step
        slope, products = self._gradient_and_products(given, trial)
        broken = self._over_blocks(self._flags(~xp.isfinite(slope + products.sum(0)))) > 0
        slope = xp.where(broken, 0.0, slope)
        along = self._over_blocks(state.step * slope)
        short = broken | ~(along >= -TURN * state.gain)
        turned = xp.where(short & ~broken, state.gain - along, 1.0)
        ratio = xp.where(broken, SHORTEST, xp.clip(state.gain / turned, SHORTEST, LONGEST))
        factors, repaired = self._factors(products)
        newton = self._newton(factors, slope)
        decrement = self._over_blocks(newton * slope)  # squared, in standard deviations
        tolerance = self._eps ** (2 / 3)
        before, now = (self._over_blocks(step**2) for step in (state.step, newton))
        limit = xp.where(along < 0, 1.0, GROWTH**2) * before
        is_long = (now > limit) & (limit > 0)
        share = xp.where(is_long, limit / xp.where(is_long, now, 1.0), 1.0) ** 0.5
        # Towards a mode steps shrink; where the density only levels off they stay as they are.
        arrived = (decrement < tolerance) & ((4 * now <= before) | (before == 0))
        old = self._local(self._flags(short))
        return _State(
            xp.where(short, state.point, trial),
            xp.where(short, ratio * state.step, share * newton),
            xp.where(short, ratio * state.gain, share * decrement),
            [
                xp.where(is_old[:1, None] > 0, before, now)
                for is_old, before, now in zip(old, state.factors, factors, strict=True)
            ],
            # For good: rounding turns the last small steps of some block at every iteration.
            self._flags((short | (repaired > 0) | ~arrived) & (state.unsettled > 0)),
            state.iteration + 1,
        )

    def _goes_on(self, state: _State) -> Array:
        return (state.unsettled.sum() > 0) & (state.iteration < MAX_ITERATIONS)

    def _newton(self, factors: Vector, slope: Array) -> Array:
        """``H^-1 dl/db``, shape ``(d,)``."""
        ops = self._ops
        pairs = zip(factors, self._local(slope), strict=True)
        return self._join([ops.solve(f, ops.solve(f, s), trans=True) for f, s in pairs])

    def _factors(self, products: Array) -> tuple[Vector, Array]:
        """Lower factors of the blocks of ``-`` Hessian, and which of them had to be repaired.

        One that is not positive definite gets a multiple of its diagonal, a constant, that makes
        it so, whatever its eigenvalues: 1.5 times a bound of them, where the diagonal is one. So
        locals may have units of their own, an intercept and a slope by the day, say.
        """
        ops, xp = self._ops, self._xp
        factors, repaired = [], []
        for rows in self._local(-products):  # (r, k, n), of which the first k are this group's
            curvature = rows[: rows.shape[1]]
            curvature = 0.5 * (curvature + ops.transpose(curvature))
            fixed = self._fixed(curvature)
            largest, own = xp.amax(abs(fixed).sum(1), 0), abs(ops.diagonal(fixed))
            own = xp.where(own > 0, own, xp.where(largest > 0, largest, 1.0))
            scaled = fixed / (own[:, None] * own) ** 0.5
            bound = xp.amax(abs(scaled).sum(1), 0)
            pivots = xp.amin(ops.diagonal(ops.cholesky(scaled)) ** 2, 0)
            good = pivots > 8 * self._eps * bound  # not where they are NaN
            ridge = xp.where(good, 0.0, xp.where(bound > 0, 1.5 * bound, 1.0) * own)
            eye = ops.identity(len(curvature), curvature.shape[-1], fixed)
            factors.append(ops.cholesky(curvature + ridge * eye))
            repaired.append(xp.where(good, 0.0, 1.0) + xp.zeros_like(fixed[0]))
        return factors, self._join(repaired)

    # -- vectors ----------------------------------------------------------------------

    def _local(self, vector: Array) -> Vector:
        """The blocks ``(..., k, n)`` of each group of locals."""
        return self.arrow.split(self.blocks.forest, vector)[: len(self.blocks.sites)]

    def _join(self, pieces: Vector) -> Array:
        """The inverse, zero elsewhere."""
        forest = self.blocks.forest
        rest = [
            self._ops.zeros((group.size, group.num), pieces[0])
            for group in forest.groups[len(pieces) :]
        ]
        return self.arrow.join(forest, [*pieces, *rest])

    def _flags(self, conditions: Array) -> Array:
        """1 where they hold, else 0, of the vectors' dtype."""
        return self._xp.where(conditions, 1.0, 0.0) + self._xp.zeros_like(self.start)

    def _over_blocks(self, vector: Array) -> Array:
        """The sum over the block of each coordinate, at each coordinate."""
        pieces = self._local(vector)  # of which some may be infinite: zero times them is NaN
        sums = [piece.sum(0, keepdims=True) + self._xp.zeros_like(piece) for piece in pieces]
        return self._join(sums)


class ReparametrizedGaussianGuide:
    """A Gaussian over the globals and standardised locals, whose gradients are natural gradients.

    A ``NaturalGaussianGuide`` in which each local latent is ``mode + scale * z``, where mode and
    scale are those of its conditional density given globals and data, found by Newton's method as
    the guide runs (RVB of Tan, 2021; section 8.5 of Tan's paper on natural gradients); where there
    is no mode, it is ``start + z``. The Gaussian is over ``z`` and the globals. It follows the
    funnel between a scale and its effects, without a word in the model about being centred. Locals
    are latents in plates whose elements are independent of each other given the other latents; of
    nested plates the innermost. They are found from the model, and ``print(guide)`` tells which.

    Draws, medians, quantiles and predictions are in the model's own coordinates; ``get_posterior``
    and ``get_transform`` in those of ``z`` and the globals. The map is that of the arguments of the
    guide's first call: later calls, with other arguments, draw from the same posterior. Of groups
    that the fit has not seen, ``FitResult.sample_groups`` draws the locals.

    :param model: a model of the PPL, without minibatches, whose log density has two derivatives
        (and a third where it is fitted).
    :param order: 2 expands at the conditional mode of the locals (RVB2). 1 (RVB1) takes one Newton
        step from a fixed point, the conditional mode for the globals of the guide's start, and the
        curvature there: cheaper, and good where the likelihood alone says where locals are.
    :param family: of the Gaussian. ``"auto"`` is dense up to 40 latents; beyond, sparse:
        locals meet only the globals.
    :param init_scale: initial standard deviation of the globals; that of standardised locals is 1.
        None finds how narrow it must be, as :class:`NaturalGaussianGuide` does.
    :raises ValueError: on the first call, for a model without locals, with locals that depend
        on each other or have no modes, with minibatches or with enumerated latents, naming the
        sites.
    """

    #: Why latents in a subsampled plate are refused.
    _no_local_latents: ClassVar[str] = (
        "ReparametrizedGaussianGuide needs all data to find the modes of locals. Leave "
        "subsample_size out, or use NaturalGaussianGuide with create_plates=..., whose minibatches "
        "move the locals that they visit."
    )

    order: int
    family: Any
    _requested_family: Choice | None
    _blocks: LocalBlocks
    _reparametrization: Reparametrization
    #: Where another guide has begun with Newton's method, for one with the same map.
    _start_of_another: Any = None
    #: The sites that are local, of a guide for other groups.
    _names_of_locals: tuple[str, ...] | None = None

    @property
    def paths(self) -> Forest | None:
        """The forest of the latents: the log density is a sum over its locals."""
        couples = self.family.couples()
        return self._blocks.paths if isinstance(couples, Forest) or couples == "none" else None

    @property
    def own_sites(self) -> tuple[Site, ...]:
        """The sites by what the Gaussian is over: locals are standardised."""
        return tuple(
            dataclasses.replace(site, name=f"standardised {site.name}")
            if site.size and self._blocks.mask[site.start]
            else site
            for site in self.sites  # type: ignore[attr-defined]
        )

    def for_groups(self, model: Any) -> Any:
        """A guide for other groups of the model, for which it has no parameters: it is set up by
        its first call, with their data, and is there for its map.
        """
        new: Any = type(self)(model, family="diagonal")  # type: ignore[call-arg]
        new._names_of_locals = tuple(name for names in self._blocks.sites for name in names)
        return new

    def _own_vector(self, values: np.ndarray) -> Array:
        """A tensor like the latent vector."""
        raise NotImplementedError

    def _globals(self) -> dict[str, Site]:
        return {
            site.name: site
            for site in self.sites  # type: ignore[attr-defined]
            if not (site.size and self._blocks.mask[site.start])
        }

    def _pairs_of_globals(self, other: ReparametrizedGaussianGuide) -> tuple[np.ndarray, ...]:
        """The coordinates of the globals in both guides.

        :raises ValueError: for a site that is not of the same shape in both.
        """
        mine, others = self._globals(), other._globals()
        for name in mine.keys() | others.keys():
            shapes = [found[name].shape if name in found else None for found in (mine, others)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"Other groups need the globals of the fit, and '{name}' has shape "
                    f"{shapes[1]} with their data, {shapes[0]} in the fit. Latents that are not of "
                    "a group must not depend on how many there are."
                )

        def coordinates(found: dict[str, Site]) -> np.ndarray:
            none = np.zeros(0, int)
            return np.concatenate([none, *(found[n].indices(()).reshape(-1) for n in mine)])

        return coordinates(mine), coordinates(others)

    def _suitable(self, registry: Registry, dim: int) -> Choice:
        """What the user has requested, or what ``"auto"`` means for so many latents."""
        if self._requested_family is not None:
            return self._requested_family
        if dim <= MAX_DENSE_DIM:
            return Choice(
                registry.families["covariance_cholesky"](), f"auto: dense up to {MAX_DENSE_DIM}"
            )
        return Choice(
            registry.families["sparse_precision"](structure=self._blocks.paths),
            f"auto: dense only up to {MAX_DENSE_DIM}",
        )

    def _begin_at(self, found: Array, unsettled: Array) -> None:
        """Begin Newton's method at the modes for the globals of the guide's start from now on.

        :param found: where it has ended from the present start, numpy, shape ``(d,)``.
        :param unsettled: 1 where it has not arrived there.
        :raises ValueError: if most locals have no mode.
        """
        start = np.asarray(self._reparametrization.start)
        for group, names in zip(self._blocks.groups, self._blocks.sites, strict=True):
            # A block that has not moved has started between two modes.
            lost = (unsettled[group] > 0).any(0) & (found[group] != start[group]).any(0)
            if 2 * lost.sum() > len(lost):
                sites = " and ".join(map(repr, names))
                raise ValueError(
                    f"ReparametrizedGaussianGuide finds no mode of {sites} given the other latents,"
                    f" in {lost.sum()} of {len(lost)} elements at the guide's start. Use "
                    "NaturalGaussianGuide, which needs none."
                )
        self._reparametrization.start = self._own_vector(np.where(unsettled > 0, start, found))

    def again(self, model: Any, create_plates: None = None, **options: Any) -> Any:
        """A guide of another model with the same latents, of the same order and family."""
        new: Any = type(self)(  # type: ignore[call-arg]
            model,
            self.order,
            self.family,
            **options,
        )
        return new.begun_at(self._reparametrization.start)

    def begun_at(self, latent: Any) -> Any:
        """The guide itself, whose Newton's method begins at this vector ``(d,)``."""
        self._start_of_another = latent
        return self

    def __repr__(self) -> str:
        text = super().__repr__().replace("NaturalGaussianGuide", type(self).__name__, 1)
        if getattr(self, "_blocks", None) is None:
            return text
        return f"{text[:-1]}, {self._blocks.describe()}, order={self.order})"

    def _count_without_mode(self, troubled: np.ndarray) -> dict[str, float]:
        """The mean number of blocks by site, from flags ``(N, d)`` of their coordinates."""
        counts = {
            name: float(troubled[:, group].any(1).sum(-1).mean())
            for group, names in zip(self._blocks.groups, self._blocks.sites, strict=True)
            for name in names
        }
        return {name: count for name, count in counts.items() if count}


def check_whole(subsampled: list[str], enumerated: list[str]) -> None:
    """Refuse models whose locals have no mode given globals and data.

    :param subsampled: names of plates of which the model sees a part.
    :param enumerated: names of latents that are summed out.
    :raises ValueError: naming them and the way out.
    """
    if subsampled:
        raise ValueError(
            f"ReparametrizedGaussianGuide needs all data to find the modes of locals, and plate "
            f"'{subsampled[0]}' is subsampled. Leave subsample_size out, or use "
            "NaturalGaussianGuide."
        )
    if enumerated:
        raise ValueError(
            "ReparametrizedGaussianGuide cannot sum out discrete latents inside of its map, and "
            f"'{enumerated[0]}' is enumerated. Use NaturalGaussianGuide."
        )
