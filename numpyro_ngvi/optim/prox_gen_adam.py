"""ProxGenAdam: Adam with proximal steps of the Cholesky factor, a baseline (Tan, S5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ngvi.checks import check_momentum, check_positive, check_step_size
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.families.precision_cholesky import PrecisionCholesky
from numpyro_ngvi.linalg.triangular import keep_off_zero
from numpyro_ngvi.optim.joint import joint
from numpyro_ngvi.optim.nadam import Moments
from numpyro_ngvi.optim.rule import Schedule, step_size_at


def ProxGenAdam(
    step_size: float | Schedule = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    other: Any = None,
) -> optax.GradientTransformation:
    """Adam on the Euclidean gradient of ``E_q[log p]``; the entropy by a proximal step.

    With ``g_t`` that gradient and ``C`` the standard deviations or the Cholesky factor of the
    covariance (Tan, S5.2; Domke, 2020; Kim et al., 2023), element by element and without a
    correction of bias::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + gamma_t m_t,               gamma_t = step_size / sqrt(v_t + eps)
        C_ii <- (C_ii + sgn(C_ii) sqrt(C_ii^2 + 4 gamma_t)) / 2

    which keeps ``C_ii`` away from zero. Of the precision's factor ``T`` the last line is
    ``T_ii <- (T_ii + sgn(T_ii) sqrt(T_ii^2 - 4 gamma_t)) / 2`` where ``T_ii^2 > 4 gamma_t``. The
    guide delivers natural gradients: multiplying by the Fisher information gives the Euclidean
    ones back, at the cost of two triangular solves for a dense family.

    :param step_size: ``alpha``, in the units of the unconstrained latents; a number or an
        optax schedule.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: momentum of its square, in [0, 1).
    :param eps: keeps the division away from zero, positive.
    :param other: optimiser of parameters that are not natural (an optax transformation or a
        NumPyro optimiser); by default ``optax.adam(1e-3)``.
    :return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
    :raises ValueError: for a number outside its range; on ``init``, if there are no natural
        parameters, or for a family other than ``Diagonal``, ``CovarianceCholesky`` and
        ``PrecisionCholesky``.
    """
    rule = ProxGenAdamRule(
        check_step_size(step_size),
        check_momentum(beta1, "beta1"),
        check_momentum(beta2, "beta2"),
        check_positive(eps, "eps"),
    )
    return joint(rule, other, "ProxGenAdam")


class ProxGenAdamRule(NamedTuple):
    """Its state are the moments of the gradient of ``E_q[log p]``."""

    step_size: float | Schedule
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        for family in families:
            check_family(family)
        return Moments.zeros(families)

    def step(
        self, gradients: Families, state: Moments, families: Families, count: jax.Array
    ) -> tuple[Families, Moments]:
        euclidean = direction.dual(families, gradients)
        expected = [_without_entropy(*parts) for parts in zip(families, euclidean, strict=True)]
        moments = state.update(expected, self.beta1, self.beta2)
        alpha = step_size_at(self.step_size, count)
        gammas = jax.tree.map(
            lambda v: (alpha / jnp.sqrt(v + self.eps)).astype(v.dtype), moments.second
        )
        ends = jax.tree.map(lambda x, m, gamma: x + gamma * m, families, moments.first, gammas)
        moved = [_proximal(*step) for step in zip(families, ends, gammas, strict=True)]
        return moved, moments


def check_family(family: Family) -> None:
    """Refuse a family whose proximal step is not known.

    :raises ValueError: naming it.
    """
    if type(family) not in (Diagonal, CovarianceCholesky, PrecisionCholesky):
        raise ValueError(
            "ProxGenAdam moves Diagonal, CovarianceCholesky and PrecisionCholesky, whose "
            f"proximal steps are known, but not {type(family).__name__}. Make the guide with "
            "family='covariance_cholesky', or use BLR or Snngm, which move any family."
        )


def _without_entropy(family: Family, gradient: Family) -> Family:
    """The gradient of ``E_q[log p]``, from that of the negative bound."""
    diagonal = jax.grad(lambda q: q.entropy())(family)
    return jax.tree.map(lambda g, h: -g - h, gradient, diagonal)


def _proximal(old: Family, new: Family, gamma: Family) -> Family:
    """The proximal step of the entropy, which depends on the factor's diagonal only."""
    if isinstance(new, Diagonal):
        return dataclasses.replace(new, scale=_away_from_zero(new.scale, gamma.scale))
    if isinstance(new, CovarianceCholesky):
        tril = _on_diagonal(_away_from_zero, new.scale_tril, gamma.scale_tril)
        return dataclasses.replace(new, scale_tril=tril)
    tril = _on_diagonal(_towards_zero, new.precision_tril, gamma.precision_tril)
    tril = _on_diagonal(lambda end, start: keep_off_zero(start, end), tril, old.precision_tril)
    return dataclasses.replace(new, precision_tril=tril)


def _away_from_zero(value: jax.Array, gamma: jax.Array) -> jax.Array:
    return 0.5 * (value + jnp.copysign(jnp.sqrt(value**2 + 4 * gamma), value))


def _towards_zero(value: jax.Array, gamma: jax.Array) -> jax.Array:
    square = value**2 - 4 * gamma
    root = jnp.sqrt(jnp.maximum(square, 0))
    return jnp.where(square > 0, 0.5 * (value + jnp.copysign(root, value)), value)


def _on_diagonal(function: Callable, matrix: jax.Array, other: jax.Array) -> jax.Array:
    diagonal = function(jnp.diagonal(matrix), jnp.diagonal(other))
    return jnp.where(jnp.eye(len(matrix), dtype=bool), diagonal[:, None], matrix)
