"""The natural gradients of a mixture in joint coordinates, and its steps.

With ``q(theta) = sum_k pi_k q_k(theta)``, a draw and the component that it is of have the density
``q(k, theta) = pi_k q_k(theta)``. Its Fisher information is made of blocks: that of the weights,
and ``pi_k F_k`` for each component (Lin, Khan and Schmidt, 2019, *Fast and simple natural-gradient
variational inference with mixture of exponential-family approximations*, ICML). The bound is that
of ``q(theta)`` itself. With ``h = l - log q`` its derivative for the coordinates of component
``k`` is ``pi_k`` times that of ``E_k[h]`` with ``h`` held fixed, and for ``log pi_k``, up to a
constant, ``pi_k E_k[h]``. So the weights cancel, and the natural gradient is, for each component,

    F_k^-1 grad E_k[h],        and for the log weights        E_k[h] - const.

A component climbs ``l + log (q_k / q)`` as if it were alone; a step of size 1 of the weights sets
them to ``pi_k exp(E_k[h])``. At the optimum ``h`` has the same expectation under every component.

The Fisher information of ``q(theta)`` itself has no closed form; where the components do not
overlap it is the joint one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from ngvi.families.base import Array
from ngvi.families.curvature import direction_of_expectation, slopes


class JointSteps:
    """What :class:`~ngvi.families.mixture.Mixture` adds to a density."""

    xp: Any
    of: Callable[[Sequence[Any], Array], Any]
    components: Any
    weights: Any
    log_weights: Any
    log_prob: Any
    logits: Any
    log_sum_exp: ClassVar[Callable[[Array], Array]]

    def bound_direction(
        self, values: Array, gradients: Array, noise: Array, weights: Array
    ) -> Self:
        """The natural gradient of the bound from values and gradients of the log density.

        Where the mixture is the posterior, ``h`` is constant and the direction zero, without noise.

        :param values: at ``one.sample(noise)`` of each component, shape ``(K, N)``.
        :param gradients: there, shape ``(K, N, d)``.
        :param noise: points, shape ``(N, d)``, at which ``N(0, I)`` is integrated.
        :param weights: of the points, shape ``(N,)``, which sum to one.
        """
        directions, heights = [], []
        for one, value, gradient in zip(self.components, values, gradients, strict=True):
            theta = one.sample(noise)
            slope = gradient - slopes(self, theta)
            directions.append(direction_of_expectation(one, weights[:, None] * slope, noise))
            heights.append(weights @ (value - self.log_prob(theta)))
        found = self.xp.stack(heights)
        return self.of(directions, found - found.mean())

    def natural_gradient(self, gradient: Self) -> Self:
        """``F^-1 g`` in the joint coordinates; log weights have a mean of zero, as they may."""
        weights = self.weights
        parts = zip(weights, self.components, gradient.components, strict=True)
        found = [one.natural_gradient(g.map(lambda x, w=w: x / w)) for w, one, g in parts]
        of_weights = (gradient.logits - weights * gradient.logits.sum()) / weights
        return self.of(found, of_weights - of_weights.mean())

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        weights, changes = self.weights, natural_gradient.logits
        parts = zip(weights, self.components, natural_gradient.components, strict=True)
        found = [one.euclidean_gradient(n).map(lambda x, w=w: x * w) for w, one, n in parts]
        return self.of(found, weights * (changes - weights @ changes))

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        """Each component's own step, and ``pi_k exp(rho n_k)``, normalised."""
        pairs = zip(self.components, direction.components, strict=True)
        logits = self.log_weights + step_size * direction.logits
        found = [one.natural_step(change, step_size) for one, change in pairs]
        return self.of(found, logits - type(self).log_sum_exp(logits))

    def retract(self, step: Self) -> Self:
        pairs = zip(self.components, step.components, strict=True)
        logits = self.log_weights + step.logits
        found = [one.retract(change) for one, change in pairs]
        return self.of(found, logits - type(self).log_sum_exp(logits))

    def kl_divergence(self, other: Self) -> Array:
        """Of the joint densities of draw and component, which is no less than that of draws."""
        pairs = zip(self.components, other.components, strict=True)
        found = self.xp.stack([one.kl_divergence(another) for one, another in pairs])
        return self.weights @ (found + self.log_weights - other.log_weights)


@slopes.register(JointSteps)
def _(family: JointSteps, value: Array) -> Array:
    """``grad log q`` at some vectors, shape ``(N, d)``."""
    logs = [one.log_prob(value) for one in family.components]
    pairs = zip(family.log_weights, logs, strict=True)
    shares = family.xp.stack([weight + part for weight, part in pairs])
    shares = family.xp.exp(shares - type(family).log_sum_exp(shares))
    found = zip(shares, family.components, strict=True)
    return sum(share[..., None] * slopes(one, value) for share, one in found)
