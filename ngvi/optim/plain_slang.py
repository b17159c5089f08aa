"""SLANG for a training loop without a PPL: the equations, for arrays of any library.

:mod:`ngvi.torch` and :mod:`ngvi.optax` have its optimisers. In ``SVI`` it is
:mod:`~ngvi.optim.von`'s VOGN with the family ``"low_rank"``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ngvi.errors import check_rank
from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.optim.ivon import defaults_of
from ngvi.optim.plain_vogn import VognEquations
from ngvi.optim.rule import Array


@dataclass(frozen=True)
class SlangEquations(VognEquations):
    """SLANG in a plain training loop: VOGN with correlations of all weights.

    Mishkin et al. (2018), *SLANG: Fast structured covariance approximations for Bayesian deep
    learning with natural gradient*. Learns a Gaussian ``q = N(m, (lambda (U U^T + diag(h +
    delta)))^-1)`` with ``U`` of shape ``(d, rank)``. The gradients ``g_i`` of a minibatch's
    examples are taken at a sample ``theta`` of ``q``. With ``lambda = ess``,
    ``delta = weight_decay``, means over the examples, and the ``rank`` leading eigenvectors and
    values of ``mean_i g_i g_i^T`` in ``V``, turned to ``U``::

        g <- beta1 g + (1 - beta1) (mean_i g_i + delta m)
        U <- U + (1 - beta2) (V - U)
        h <- h + (1 - beta2) (mean_i g_i^2 - rows(U^2) - 2 rows(U (V - U)) - h)
        m <- m - alpha (U U^T + diag(h + delta))^-1 g / (1 - beta1^t)

    so that the diagonal of the precision is VOGN's. ``U`` begins at zero, and SLANG as VOGN does.
    The paper mixes precisions in place of their ``U``, which is the same to first order in
    ``1 - beta2`` (:mod:`~ngvi.families.low_rank_precision`).

    Besides VOGN's gradient of each example, a step takes ``O(d B (B + rank) + d rank^2)``, and
    memory for ``rank`` more copies of the weights: it is for small networks. ``ess`` is the number
    of training examples; the posterior of a temperature ``T`` has ``ess / T``. A step whose
    gradients are not finite is not taken, and counted.

    :param beta2: how much of the curvature a step keeps, in [0, 1).
    :param rank: of ``U``, from 1 to the number of weights.
    """

    rank: int = 10

    rule = "SLANG"
    #: A gradient's square is a sum over all weights.
    room = 0.75

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def check_size(self, size: int) -> None:
        """Refuse a rank above the number of weights."""
        if self.rank > size:
            raise ValueError(f"SLANG(rank={self.rank}) has a rank above the {size} weights.")

    def new_precision(
        self, precision: LowRankPrecision, rows: Array, prior: Array
    ) -> LowRankPrecision:
        """By ``lambda``, after a step.

        :param rows: ``g_i / N^(1/2)`` of the ``N`` examples of all samples, shape ``(N, d)``.
        :param prior: ``delta``, shape ``(d,)``.
        """
        change = precision.change_from_rows(rows, prior)
        return precision.with_precision(*change, 1 - self.beta2)


SLANG_DEFAULTS = defaults_of(SlangEquations)
