"""Draws of a Gaussian whose derivatives are natural gradients.

The gradient of ``f(q.precondition())`` is ``F^-1`` times the gradient of ``f(q)``, because ``F`` is
symmetric: this is why any stock ELBO yields natural gradients. A draw needs less: its noise alone
gets the derivative, in whitened coordinates (:meth:`NaturalDraws.reparametrised`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from ngvi.families.gaussian import Array, Gaussian


class NaturalDraws(Gaussian):
    """What a package hooks, and what follows from it."""

    @property
    def noise_dim(self) -> int:
        """Numbers of noise that a draw takes: ``d``, and one more of a mixture."""
        return self.dim

    def density_of_draw(self, noise: Array) -> Array:
        """``log q`` at :meth:`sample` of some noise; ``(..., d)`` to ``(...)``."""
        return self.noise_log_prob(noise) - self.log_det_scale()

    def density_of_point(self, noise: Array) -> Array:
        """``log q`` as a point of an estimator has it; ``(..., d)`` to ``(...)``."""
        return self.density_of_draw(noise)

    def marginal_quantiles(self, normal: Callable[..., Any], levels: Array) -> Array:
        """Quantiles of each latent, the shape of the levels followed by ``d``.

        :param normal: makes the PPL's normal distribution of means and standard deviations.
        """
        return normal(self.mean, self.stddev).icdf(levels[..., None])

    def precondition(self) -> Self:
        """This family, with ``F^-1`` as the derivative of the identity."""
        raise NotImplementedError

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        """How far a draw moves, in whitened coordinates, along ``F^-1 change``.

        The derivative of ``theta = mu + C z`` in the direction ``F^-1 change``, times
        ``C^-1``. Linear in ``change``; its transpose takes the gradient of a draw to a
        natural gradient.

        :param noise: ``z``, shape ``(..., d)``.
        :return: shape ``(..., d)``.
        """
        moved = self._derivative(lambda family: family.sample(noise), change)
        return self.centred().whiten(moved)

    def log_det_jvp(self, change: Self) -> Array:
        """The derivative of :meth:`log_det_scale` in the direction ``F^-1 change``."""
        return self._derivative(type(self).log_det_scale, change)

    def _derivative(self, function: Callable[[Self], Array], change: Self) -> Array:
        """Of a function of the family, in the direction ``F^-1 change``."""
        raise NotImplementedError

    def reparametrised(self, noise: Array) -> Array:
        """``noise``, whose derivative is :meth:`draw_jvp`."""
        raise NotImplementedError

    def draw(self, noise: Array) -> Array:
        """:meth:`sample`, differentiated through :meth:`precondition`."""
        return self.draw_at(self.reparametrised(noise))

    def draw_at(self, reparametrised: Array) -> Array:
        """:meth:`draw` from :meth:`reparametrised` noise."""
        return self.detach().sample(reparametrised)

    def draw_log_prob(self, noise: Array) -> Array:
        """``log q(draw(noise))``, differentiated through :meth:`precondition`.

        Along a draw ``log q = log N(z; 0, I) - log |Sigma| / 2``, so that only the entropy
        has a gradient, which is known exactly: no triangular solve is needed.
        """
        raise NotImplementedError

    def sticking_log_prob(self, reparametrised: Array) -> Array:
        """:meth:`draw_log_prob` differentiated through the draw alone.

        The coordinates of ``q`` itself are held fixed. In whitened coordinates that is the
        density of the reparametrised noise, again without a triangular solve.
        """
        return self.noise_log_prob(reparametrised) - self.detach().log_det_scale()


class ExplicitDraws(NaturalDraws):
    """Draws whose natural gradients are written out, in a half of what automatic ones take.

    A family writes :meth:`transposed` and :meth:`draw_vjp`.
    """

    def transposed(self, vector: Array) -> Array:
        """``C^T x``, shape ``(..., d)``."""
        raise NotImplementedError

    def draw_vjp(self, noise: Array, slope: Array) -> Self:
        """The transpose of :meth:`draw_jvp`, a linear function of the slope.

        :param noise: ``z``, shape ``(..., d)``.
        :param slope: of a function of the reparametrised noise, shape ``(..., d)``.
        :return: the natural gradient of that function.
        """
        raise NotImplementedError

    def natural_gradient_from_draws(
        self, gradients: Array, noise: Array, weights: Array | float
    ) -> Self:
        """The natural gradient of the bound from gradients of the log density, by Stein's lemma.

        It is the derivative of :meth:`reparametrised` and :meth:`sticking_log_prob`.

        :param gradients: at the draws, shape ``(K, d)``.
        :param noise: ``z`` of the draws, shape ``(K, d)``.
        :param weights: of the draws, which sum up to one: shape ``(K, 1)``, or ``1 / K``.
        """
        return self.draw_vjp(noise, weights * (self.transposed(gradients) + noise))
