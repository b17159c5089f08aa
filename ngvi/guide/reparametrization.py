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

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from ngvi.families.base import Array
from ngvi.latents.local_blocks import LocalBlocks
from ngvi.linalg.arrow import Arrow, Vector

#: A function of the whole unconstrained vector.
Density = Callable[[Array], Array]


class NewtonOptions(NamedTuple):
    """Options of Newton's method.

    A step at whose end the slope along it has turned too far was too long, and becomes shorter by
    the secant rule. The next one is no longer where the slope has turned: the curvature of a tail
    is next to nothing, and says to leave for another one.
    """

    max_iterations: int = 50  #: Most iterations, which a local density without a mode takes.
    turn: float = 0.5  #: Largest part of the slope that may have turned.
    shortest: float = 0.1  #: Smallest factor of a shorter step.
    longest: float = 0.5  #: Largest factor of a shorter step.
    growth: float = 4.0  #: Largest factor of a longer step.


class NewtonState(NamedTuple):
    """Newton's method on its way; vectors of length ``d``, zero outside of the locals."""

    point: Array  #: Best point so far.
    step: Array  #: Step to be tried from ``point``.
    gain: Array  #: Slope times ``step``, summed over each block.
    factors: Vector  #: Factors of the curvatures at ``point``.
    unsettled: Array  #: 1 where a block has not arrived at its mode.
    iteration: Array | int


class Reparametrization:
    """The map (1) of one model.

    :param blocks: the locals.
    :param start: where Newton's method begins, and where ``order=1`` expands, shape ``(d,)``.
    :param order: 2 for the conditional mode, 1 for one step from ``start``.
    """

    # What a package writes.
    arrow: ClassVar[type[Arrow]]  #: Matrices of a forest.
    _constants: Callable[[np.ndarray], Array]  #: Return booleans as a tensor.
    _fixed: Callable[[Array], Array]  #: Return the value without its derivative.
    _gradient: Callable[[Density, Array], Array]
    #: Return the gradient ``(d,)``, and the Hessian times each of the probes ``(r, d)``.
    _gradient_and_products: Callable[[Density, Array], tuple[Array, Array]]
    #: Take :meth:`_next` from :meth:`_first` on, while :meth:`_goes_on`; without derivatives.
    _searched: Callable[[Density, Array], NewtonState]
    options: ClassVar[NewtonOptions] = NewtonOptions()

    def __init__(self, blocks: LocalBlocks, start: Array, order: int) -> None:
        self.blocks, self.order = blocks, order
        self.start = start
        self._mask = self._constants(blocks.mask)
        self._probes = self._ops.matrices.tensor(blocks.probes, start)
        self._eps = float(np.finfo(str(start.dtype).removeprefix("torch.")).eps)

    def begin_at(self, start: Array) -> None:
        """Begin Newton's method at this vector from now on, shape ``(d,)``."""
        self.start = start

    # Modules, which do not pickle.
    _ops = property(lambda self: self.arrow.ops)
    _xp = property(lambda self: self.arrow.ops.xp)

    def _given(self, density: Density, latent: Array) -> Density:
        """``l`` as a function of the locals, of which it reads the coordinates."""
        return lambda point: density(self._xp.where(self._mask, point, latent))

    def _with_derivatives(self, given: Density, found: NewtonState) -> Array:
        """Attach the derivatives of the implicit function theorem to the modes of a search.

        Where there are none, the point that it has come to.
        """

        def refined(point: Array) -> Array:
            step = self._newton(found.factors, self._gradient(given, point))
            return point + self._xp.where(found.unsettled > 0, 0.0, step)

        return refined(refined(found.point))

    def _at_modes(self, given: Density, found: NewtonState) -> tuple[Array, Vector, Array]:
        """Return the modes, the factors of the curvatures there, and which were repaired."""
        modes = self._with_derivatives(given, found)
        point = self._xp.where(found.unsettled > 0, self.start, modes)
        return point, *self._factors(self._gradient_and_products(given, point)[1])

    # -- the map ----------------------------------------------------------------------

    def __call__(self, density: Density, latent: Array) -> tuple[Array, Array, Array]:
        """Map ``(z, g)`` to ``(b, g)``.

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
            unsettled = xp.zeros_like(self.start)
            slope, products = self._gradient_and_products(given, self.start)
            factors, repaired = self._factors(products)
            point = self.start + self._newton(factors, slope)
        else:
            found = self._searched(density, self._fixed(latent))
            unsettled = found.unsettled
            point, factors, repaired = self._at_modes(given, found)
        eyes = self._first().factors
        factors = [  # without a mode a local stays as it is: start + z
            xp.where(is_lost[:1, None] > 0, eye, factor)
            for is_lost, eye, factor in zip(self._local(unsettled), eyes, factors, strict=True)
        ]
        spread = [
            self._ops.solve(factor, z, trans=True)
            for factor, z in zip(factors, self._local(latent), strict=True)
        ]
        theta = xp.where(self._mask, point + self._join(spread), latent)
        log_det = -sum(xp.log(self._ops.diagonal(factor)).sum() for factor in factors)
        return theta, log_det, (unsettled > 0) | (repaired > 0)

    # -- Newton's method for all blocks at once ---------------------------------------

    def _first(self) -> NewtonState:
        zero = self._xp.zeros_like(self.start)
        factors = [
            self._ops.identity(len(group), group.shape[1], zero) for group in self.blocks.groups
        ]
        return NewtonState(self.start, zero, zero, factors, self._flags(self._mask), 0)

    def _next(self, given: Density, state: NewtonState) -> NewtonState:
        xp, options = self._xp, self.options
        trial = state.point + state.step
        slope, products = self._gradient_and_products(given, trial)
        broken = self._over_blocks(self._flags(~xp.isfinite(slope + products.sum(0)))) > 0
        slope = xp.where(broken, 0.0, slope)
        along = self._over_blocks(state.step * slope)
        short = broken | ~(along >= -options.turn * state.gain)
        turned = xp.where(short & ~broken, state.gain - along, 1.0)
        ratio = xp.where(
            broken,
            options.shortest,
            xp.clip(state.gain / turned, options.shortest, options.longest),
        )
        factors, repaired = self._factors(products)
        newton = self._newton(factors, slope)
        decrement = self._over_blocks(newton * slope)  # squared, in standard deviations
        tolerance = self._eps ** (2 / 3)
        before, now = (self._over_blocks(step**2) for step in (state.step, newton))
        limit = xp.where(along < 0, 1.0, options.growth**2) * before
        is_long = (now > limit) & (limit > 0)
        fraction = xp.where(is_long, limit / xp.where(is_long, now, 1.0), 1.0) ** 0.5
        # Towards a mode steps shrink; where the density only levels off they stay as they are.
        arrived = (decrement < tolerance) & ((4 * now <= before) | (before == 0))
        old = self._local(self._flags(short))
        return NewtonState(
            xp.where(short, state.point, trial),
            xp.where(short, ratio * state.step, fraction * newton),
            xp.where(short, ratio * state.gain, fraction * decrement),
            [
                xp.where(is_old[:1, None] > 0, before, now)
                for is_old, before, now in zip(old, state.factors, factors, strict=True)
            ],
            # For good: rounding turns the last small steps of some block at every iteration.
            self._flags((short | (repaired > 0) | ~arrived) & (state.unsettled > 0)),
            state.iteration + 1,
        )

    def _goes_on(self, state: NewtonState) -> Array:
        return (state.unsettled.sum() > 0) & (state.iteration < self.options.max_iterations)

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
        """Return the blocks ``(..., k, n)`` of each group of locals."""
        return self.arrow.split(self.blocks.forest, vector)[: len(self.blocks.sites)]

    def _join(self, pieces: Vector) -> Array:
        """Return the vector of these blocks, which is zero elsewhere."""
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
        """Return the sum over the block of each coordinate, at each coordinate."""
        pieces = self._local(vector)  # of which some may be infinite: zero times them is NaN
        sums = [piece.sum(0, keepdims=True) + self._xp.zeros_like(piece) for piece in pieces]
        return self._join(sums)
