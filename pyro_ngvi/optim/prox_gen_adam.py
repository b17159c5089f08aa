"""ProxGenAdam: Adam with proximal steps of the Cholesky factor, a baseline (Tan, S5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_ngvi.families import direction
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.direction import Families
from pyro_ngvi.families.precision_cholesky import PrecisionCholesky
from pyro_ngvi.linalg.triangular import keep_off_zero
from pyro_ngvi.optim.nadam import Moments, NAdamOptimizer
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.rule import Rates, Rule, at_rates


class ProxGenAdamOptimizer(NAdamOptimizer):
    """The torch optimiser of :class:`ProxGenAdam`, with its options."""

    @classmethod
    def make_rule(cls, **options: Any) -> Rule:
        return ProxGenAdamRule(**options)


class ProxGenAdam(JointOptim):
    """Adam on the Euclidean gradient of ``E_q[log p]``; the entropy by a proximal step.

    With ``g_t`` that gradient and ``C`` the standard deviations or the Cholesky factor of the
    covariance (Tan, S5.2; Domke, 2020; Kim et al., 2023), element by element and without a
    correction of bias::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + gamma_t m_t,               gamma_t = lr / sqrt(v_t + eps)
        C_ii <- (C_ii + sgn(C_ii) sqrt(C_ii^2 + 4 gamma_t)) / 2

    which keeps ``C_ii`` away from zero. Of the precision's factor ``T`` the last line is
    ``T_ii <- (T_ii + sgn(T_ii) sqrt(T_ii^2 - 4 gamma_t)) / 2`` where ``T_ii^2 > 4 gamma_t``. The
    guide delivers natural gradients: multiplying by the Fisher information gives the Euclidean
    ones back, at the cost of two triangular solves for a dense family.

    :param optim_args: ``lr`` (``alpha``, in the units of the unconstrained latents; a number,
        default 1e-3, or a schedule from the number of steps taken), ``beta1`` (momentum of the
        gradient, in [0, 1), default 0.9), ``beta2`` (momentum of its square, in [0, 1), default
        0.999) and ``eps`` (keeps the division away from zero, positive, default 1e-8); or a
        callable from a parameter's name to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser;
        ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters, for a family other than ``Diagonal``,
        ``CovarianceCholesky`` and ``PrecisionCholesky``, or if the first gradient is not finite.
    """

    torch_optimizer = ProxGenAdamOptimizer


class ProxGenAdamRule(NamedTuple):
    """Its state are the moments of the gradient of ``E_q[log p]``."""

    lr: Rates
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        for family in families:
            check_family(family)
        return Moments.zeros(families)

    def step(
        self, gradients: Families, state: Moments, families: Families, count: int
    ) -> tuple[Families, Moments]:
        euclidean = direction.dual(families, gradients)
        expected = [_without_entropy(*parts) for parts in zip(families, euclidean, strict=True)]
        moments = state.update(expected, self.beta1, self.beta2)
        roots = direction.each(lambda v: (v + self.eps).rsqrt(), moments.second)
        gammas = at_rates(self.lr, roots)
        ends = direction.each(lambda x, m, gamma: x + gamma * m, families, moments.first, gammas)
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
    ascent = gradient.map(Tensor.neg)
    if isinstance(family, Diagonal):
        return dataclasses.replace(ascent, scale=ascent.scale - family.scale.reciprocal())
    if isinstance(family, CovarianceCholesky):
        tril = _on_diagonal(lambda g, x: g - 1 / x, ascent.scale_tril, family.scale_tril)
        return dataclasses.replace(ascent, scale_tril=tril)
    tril = _on_diagonal(lambda g, x: g + 1 / x, ascent.precision_tril, family.precision_tril)
    return dataclasses.replace(ascent, precision_tril=tril)


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


def _away_from_zero(value: Tensor, gamma: Tensor) -> Tensor:
    return 0.5 * (value + torch.copysign((value**2 + 4 * gamma).sqrt(), value))


def _towards_zero(value: Tensor, gamma: Tensor) -> Tensor:
    square = value**2 - 4 * gamma
    root = square.clamp(min=0).sqrt()
    return torch.where(square > 0, 0.5 * (value + torch.copysign(root, value)), value)


def _on_diagonal(function: Callable, matrix: Tensor, other: Tensor) -> Tensor:
    diagonal = function(matrix.diagonal(), other.diagonal())
    return matrix - torch.diag(matrix.diagonal()) + torch.diag(diagonal)
