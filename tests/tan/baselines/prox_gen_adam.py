"""ProxGenAdam: Adam with proximal steps of the Cholesky factor, a baseline (Tan, S5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ngvi.families import direction
from ngvi.families.forest_family import ForestFamily
from ngvi.optim.rule import Algebra, Array, Families, Number, Rates

from .nadam import Moments

#: The factors whose proximal steps are known, by the names of their families.
FACTORS = {
    "diagonal": "scale",
    "covariance_cholesky": "scale_tril",
    "precision_cholesky": "precision_tril",
    "block_diagonal": "scale_tril",
    "sparse_precision": "precision_tril",
}


class ProxGenAdamRule(NamedTuple):
    """Adam on the Euclidean gradient of ``E_q[log p]``; the entropy by a proximal step.

    With ``g_t`` that gradient and ``C`` the standard deviations or the Cholesky factor of the
    covariance (Tan, S5.2; Domke, 2020; Kim et al., 2023), element by element and without a
    correction of bias::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t,        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        lambda <- lambda + gamma_t m_t,               gamma_t = alpha / sqrt(v_t + eps)
        C_ii <- (C_ii + sgn(C_ii) sqrt(C_ii^2 + 4 gamma_t)) / 2

    which keeps ``C_ii`` away from zero. Of the precision's factor ``T`` the last line is
    ``T_ii <- (T_ii + sgn(T_ii) sqrt(T_ii^2 - 4 gamma_t)) / 2`` where ``T_ii^2 > 4 gamma_t``. The
    guide delivers natural gradients: multiplying by the Fisher information gives the Euclidean
    ones back, at the cost of two triangular solves for a dense family. Its condition is the square
    of the factor's, which Adam's first steps, of one size for all elements, can make 1e4 and
    more: then nothing is left of a gradient in single precision, and the moments remember what
    stands in its place for thousands of steps. Use double precision with a dense family, or one
    of dense blocks.
    """

    algebra: Algebra
    rates: Rates
    beta1: float
    beta2: float
    eps: float

    def init(self, families: Families) -> Moments:
        """The moments of the gradient of ``E_q[log p]``."""
        for family in families:
            check_family(family)
        return Moments(direction.zeros(families), direction.zeros(families))

    def step(
        self, gradients: Families, state: Moments, families: Families, count: Number
    ) -> tuple[Families, Moments]:
        on = self.algebra
        euclidean = direction.dual(families, gradients)
        pairs = zip(direction.negate(euclidean), families, strict=True)
        expected = [_on_diagonal(_without_entropy, *pair) for pair in pairs]
        moments = state.update(on, expected, self.beta1, self.beta2)
        roots = direction.each(lambda v: (v + self.eps) ** -0.5, moments.second)
        gammas = on.at_rates(self.rates, roots, 1.0, count)
        ends = direction.each(lambda x, m, gamma: x + gamma * m, families, moments.first, gammas)
        steps = zip(ends, families, gammas, strict=True)
        return [_on_diagonal(_proximal, *step) for step in steps], moments


def _on_diagonal(function: Callable[..., Array], *families: Any) -> Any:
    """The first family, with this function of the factors' diagonals as its own."""
    name, ops = FACTORS[families[0].name], families[0].ops
    factors = [getattr(family, name) for family in families]
    if name == "scale":
        return dataclasses.replace(families[0], scale=function(ops, 1.0, *factors))
    # The precision's log determinant has the other sign.
    sign = 1.0 if name == "scale_tril" else -1.0
    if isinstance(families[0], ForestFamily):  # whose factor is packed
        indices = families[0].structure.packed_diagonal()
        old, *others = (factor[indices] for factor in factors)
        new = function(ops, sign, old, *others)
        factor = factors[0] + ops.scatter(len(factors[0]), indices, new - old)
    else:
        diagonal = function(ops, sign, *(factor.diagonal() for factor in factors))
        factor = ops.with_diagonal(factors[0], diagonal)
    return dataclasses.replace(families[0], **{name: factor})


def _proximal(ops: Any, sign: float, end: Array, start: Array, gamma: Array) -> Array:
    """The proximal step of the entropy, which depends on the factor's diagonal only."""
    square = end**2 + 4 * sign * gamma
    moved = 0.5 * (end + ops.xp.copysign(square.clip(0) ** 0.5, end))
    if sign > 0:
        return moved
    return ops.keep_off_zero(start, ops.xp.where(square > 0, moved, end))


def _without_entropy(ops: Any, sign: float, gradient: Array, diagonal: Array) -> Array:
    """The gradient of ``E_q[log p]``, from that of the bound."""
    return gradient - sign / diagonal


def check_family(family: Any) -> None:
    """Refuse a family whose proximal step is not known.

    :raises ValueError: naming it.
    """
    if getattr(family, "name", None) not in FACTORS:
        raise ValueError(
            "ProxGenAdam moves Diagonal, CovarianceCholesky, PrecisionCholesky, BlockDiagonal and "
            "SparsePrecision, whose proximal steps are known, but not "
            f"{type(family).__name__}. Make the guide with "
            "family='covariance_cholesky', or use BLR or Snngm, which move any family."
        )
