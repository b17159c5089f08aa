"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from numpyro_ngvi.optim import quasi_newton, trust_region
from numpyro_ngvi.optim.joint import (
    Families,
    Schedule,
    check_momentum,
    check_rho,
    check_step_size,
    joint,
    step_size_at,
)
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
    if isinstance(step_size, str) and step_size != "auto":
        raise ValueError(f"step_size must be 'auto', a number or a schedule, got {step_size!r}.")
    if precision_step_size is not None:
        check_rho(precision_step_size, "precision_step_size")
    if step_size != "auto":
        # A mean with a step size of its own may move as it likes.
        check = check_rho if precision_step_size is None else check_step_size
        check(step_size, "step_size")
    if isinstance(max_kl, str):
        if max_kl != "auto":
            raise ValueError(f"max_kl must be 'auto', a number or None, got {max_kl!r}.")
        max_kl = "auto" if step_size == "auto" else None
    elif max_kl is not None and not max_kl > 0:
        raise ValueError(f"max_kl must be positive, got {max_kl}.")
    rule = _BlrRule(step_size, precision_step_size, check_momentum(momentum, "momentum"), max_kl)
    return joint(rule, optax.adam(1e-3) if other is None else other, "BLR")


class BlrState(NamedTuple):
    """State of the Bayesian learning rule."""

    progress: Progress  #: of the trust region
    gradient: jax.Array | None  #: momentum of ``g``, all families together
    memory: Memory | None  #: of a quasi-Newton method


class _BlrRule(NamedTuple):
    step_size: float | Schedule | str
    precision_step_size: float | Schedule | None
    momentum: float
    max_kl: float | str | None

    def init(self, families: Families) -> BlrState:
        loc = _join([family.loc for family in families])
        return BlrState(
            trust_region.start(families),
            jnp.zeros_like(loc) if self.momentum else None,
            quasi_newton.empty(loc) if self._accelerates(families) else None,
        )

    def step(
        self, gradients: Families, state: BlrState, families: Families, count: jax.Array
    ) -> tuple[Families, BlrState]:
        dtype = families[0].loc.dtype
        directions = jax.tree.map(jnp.negative, gradients)
        progress = trust_region.judge(state.progress, families, directions)
        gradient, memory = state.gradient, state.memory
        steered = directions
        if memory is not None:
            euclidean = _euclidean_mean(families, directions)
            change = _join([step.loc for step in progress.change])
            memory = quasi_newton.remember(memory, change, euclidean)
        if gradient is not None:
            euclidean = _euclidean_mean(families, directions)
            gradient = (self.momentum * gradient + (1 - self.momentum) * euclidean).astype(dtype)
            corrected = (gradient / (1 - self.momentum ** (count + 1.0))).astype(dtype)
            means = _natural_mean(families, corrected)
            steered = [dataclasses.replace(d, loc=m) for d, m in zip(steered, means, strict=True)]
        of_mean, rho = self._step_sizes(progress, memory, count)
        ratio = jnp.asarray(of_mean / rho, dtype)

        def advance(rho: jax.Array) -> Families:
            moved = [
                family.natural_step(dataclasses.replace(step, loc=ratio * step.loc), rho)
                for family, step in zip(families, steered, strict=True)
            ]
            if memory is None:
                return moved
            change = quasi_newton.direction(
                memory, memory.gradient, lambda g: _join(_natural_mean(moved, g))
            )
            return [
                dataclasses.replace(new, loc=old.loc + rho * ratio * part)
                for new, old, part in zip(moved, families, _split(change, families), strict=True)
            ]

        rho = jnp.asarray(rho, dtype)
        radius = progress.radius if self.max_kl == "auto" else self.max_kl
        if radius is None:
            moved, length = advance(rho), progress.length
        else:
            moved, length = trust_region.advance_within(radius, families, advance, rho)
        change = jax.tree.map(jnp.subtract, moved, families)
        slope = trust_region.slope_along(families, directions, change)
        progress = progress._replace(slope=slope, length=length, change=change)
        return moved, BlrState(progress, gradient, memory)

    def recover(self, state: BlrState, families: Families) -> tuple[Families, BlrState]:
        """Back to where the last step began, with a tenth of its radius."""
        progress = state.progress
        earlier = jax.tree.map(jnp.subtract, families, progress.change)
        length = jnp.where(progress.length > 0, progress.length, progress.radius)
        stay = jax.tree.map(jnp.zeros_like, progress.change)
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
            of_mean = trust_region.step_size(progress, decrease)
        else:
            of_mean = step_size_at(self.step_size, count)
        if self.precision_step_size is None:
            return of_mean, of_mean
        return of_mean, step_size_at(self.precision_step_size, count)


def _euclidean_mean(families: Families, directions: Families) -> jax.Array:
    """``E[grad log p]`` of all families, from their natural gradients."""
    return _join(
        [
            family.euclidean_gradient(direction).loc
            for family, direction in zip(families, directions, strict=True)
        ]
    )


def _natural_mean(families: Families, gradient: jax.Array) -> list[jax.Array]:
    """``Sigma g`` of each family, by its own means."""
    results = []
    for family, part in zip(families, _split(gradient, families), strict=True):
        zeros = jax.tree.map(jnp.zeros_like, family)
        results.append(family.natural_gradient(dataclasses.replace(zeros, loc=part)).loc)
    return results


def _join(parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def _split(joined: jax.Array, families: Families) -> list[jax.Array]:
    ends = np.cumsum([family.dim for family in families])[:-1]
    return jnp.split(joined, ends)
