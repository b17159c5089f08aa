"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ngvi.checks import check_learning_rule
from ngvi.path import JointPath
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.optim import quasi_newton, trust_region
from numpyro_ngvi.optim.algebra import Schedule, step_size_at
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.quasi_newton import Memory
from numpyro_ngvi.optim.trust_region import Progress

#: A quasi-Newton memory overshoots now and then before noise does: its turns count for less.
DECREASE_WITH_MEMORY = 0.2


def BLR(
    step_size: float | Schedule | str = "auto",
    *,
    precision_step_size: float | Schedule | None = None,
    momentum: float = 0.0,
    max_kl: float | str | None = "auto",
    other: Any = None,
) -> optax.GradientTransformation:
    """Natural-gradient ascent in the natural parameters of the Gaussian.

    With ``g = E[grad log p]`` and ``A = -E[hess log p]`` (Khan, eq. 29 in full covariance)::

        S <- (1 - rho) S + rho A,        mu <- mu + rho S_new^-1 g,        S = Sigma^-1

    kept positive definite for any ``A`` (:mod:`~numpyro_ngvi.linalg.definite`). One step of
    ``rho = 1`` is exact for a conjugate model; with ``NaturalELBO(curvature="mean")`` it is
    Newton's method, whose fixed point is the Laplace approximation. The natural gradient may come
    from ``NaturalELBO`` or from any stock ELBO.

    By default nothing needs tuning: steps are whole, never longer than a radius in
    Kullback-Leibler divergence that adapts, and decrease once noise takes over
    (:mod:`~numpyro_ngvi.optim.trust_region`); a mean field's mean is helped by a quasi-Newton
    memory (:mod:`~numpyro_ngvi.optim.quasi_newton`).

    :param step_size: ``rho``, in (0, 1]: ``"auto"``, a number, or an optax schedule.
    :param precision_step_size: ``rho`` for the precision, if it differs from that of the mean.
    :param momentum: of ``g``, in [0, 1), with bias correction (Tan, S5.1).
    :param max_kl: no step moves ``q`` by more than this ``KL(q_new || q_old)``, in nats.
        ``"auto"`` adapts, from 1, if ``step_size`` is ``"auto"``, and else does not limit;
        None does not limit.
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for a number outside its range; on ``init``, if there are no natural
        parameters.
    """
    check_learning_rule(step_size, precision_step_size, momentum, max_kl)
    if max_kl == "auto" and step_size != "auto":
        max_kl = None
    return joint(BlrRule(step_size, precision_step_size, momentum, max_kl), other, "BLR")


class BlrState(NamedTuple):
    """State of the Bayesian learning rule."""

    progress: Progress  #: of the trust region
    gradient: jax.Array | None  #: momentum of ``g``, all families together
    memory: Memory | None  #: of a quasi-Newton method


class BlrRule(NamedTuple):
    """Directions are those of the bound: the loss falls along them."""

    step_size: float | Schedule | str
    precision_step_size: float | Schedule | None
    momentum: float
    max_kl: float | str | None

    def init(self, families: Families) -> BlrState:
        loc = _join(families)
        return BlrState(
            trust_region.start(families),
            jnp.zeros_like(loc) if self.momentum else None,
            quasi_newton.empty(loc) if self._accelerates(families) else None,
        )

    def step(
        self, gradients: Families, state: BlrState, families: Families, count: jax.Array
    ) -> tuple[Families, BlrState]:
        dtype = families[0].loc.dtype
        directions = direction.negate(gradients)
        duals = direction.dual(families, directions)
        progress = trust_region.judge(state.progress, families, duals)
        euclidean = _join(duals)
        memory, gradient, means = state.memory, state.gradient, directions
        if memory is not None:
            memory = quasi_newton.remember(memory, _join(progress.change), euclidean)
        if gradient is not None:
            gradient = (self.momentum * gradient + (1 - self.momentum) * euclidean).astype(dtype)
            corrected = (gradient / (1 - self.momentum ** (count + 1.0))).astype(dtype)
            means = _natural(families, corrected)
        of_mean, rho = self._step_sizes(progress, memory, count)
        ratio, rho = jnp.asarray(of_mean / rho, dtype), jnp.asarray(rho, dtype)
        steered = direction.with_means(directions, [ratio * one.loc for one in means])
        path = JointPath(families, steered)
        if memory is not None:
            path = AcceleratedPath(families, path, memory, ratio)
        radius = progress.radius if self.max_kl == "auto" else self.max_kl
        if radius is None:
            attempt, length = path.at(rho), progress.length
        else:
            attempt, length, _ = trust_region.longest_within(radius, path, rho)
        moved = path.end(attempt)
        change = direction.subtract(moved, families)
        slope = direction.dot(duals, change)
        progress = progress._replace(slope=slope, length=length, change=change)
        return moved, BlrState(progress, gradient, memory)

    def recover(self, state: BlrState, families: Families) -> tuple[Families, BlrState]:
        """Back to where the last step began, with a tenth of its radius."""
        progress = state.progress
        earlier = direction.subtract(families, progress.change)
        length = jnp.where(progress.length > 0, progress.length, progress.radius)
        stay = direction.zeros(progress.change)
        radius = jnp.maximum(0.1 * length, trust_region.smallest_radius(families))
        zero = jnp.zeros_like(length)
        progress = progress._replace(radius=radius, slope=zero, length=zero, change=stay)
        return earlier, state._replace(progress=progress)

    def _accelerates(self, families: Families) -> bool:
        return (
            self.step_size == "auto"
            and not self.momentum
            and any(family.leaves_out_correlations for family in families)
        )

    def _step_sizes(
        self, progress: Progress, memory: Memory | None, count: jax.Array
    ) -> tuple[Any, Any]:
        """``rho`` of the mean and of the precision."""
        if self.step_size == "auto":
            decrease = trust_region.DECREASE if memory is None else DECREASE_WITH_MEMORY
            of_mean = trust_region.step_size(progress.mean_turns, decrease)
            of_precision = trust_region.step_size(progress.scale_turns, decrease)
        else:
            of_mean = of_precision = step_size_at(self.step_size, count)
        if self.precision_step_size is not None:
            of_precision = step_size_at(self.precision_step_size, count)
        return of_mean, of_precision


class AcceleratedPath(NamedTuple):
    """The steps of a path whose mean a quasi-Newton memory corrects, with the new precision."""

    families: Families
    path: JointPath
    memory: Memory
    ratio: jax.Array  #: by what a step of the mean is longer than that of the precision

    def at(self, rho: jax.Array) -> Families:
        """See :class:`~ngvi.path.Path`."""
        moved = self.path.end(self.path.at(rho))
        change = quasi_newton.corrected(
            self.memory, self.memory.gradient, lambda gradient: _join(_natural(moved, gradient))
        )
        parts = zip(self.families, _split(change, self.families), strict=True)
        means = [old.loc + rho * self.ratio * part for old, part in parts]
        return direction.with_means(moved, means)

    def kl(self, moved: Families) -> jax.Array:
        """See :class:`~ngvi.path.Path`."""
        return sum(new.kl_divergence(old) for new, old in zip(moved, self.families, strict=True))

    def end(self, moved: Families) -> Families:
        """See :class:`~ngvi.path.Path`."""
        return moved


def _natural(families: Families, gradient: jax.Array) -> Families:
    """``Sigma g``, in families whose other coordinates are zero."""
    still = direction.zeros(families)
    return direction.natural(families, direction.with_means(still, _split(gradient, families)))


def _join(families: Families) -> jax.Array:
    """The means of all families, one after another."""
    parts = [family.loc for family in families]
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def _split(joined: jax.Array, families: Families) -> list[jax.Array]:
    ends = np.cumsum([family.dim for family in families])[:-1]
    return jnp.split(joined, ends)
