"""The equations of IVON, VOGN and SLANG for training loops without a PPL, for any arrays.

:mod:`ngvi.torch` and :mod:`ngvi.optax` have their optimisers. :mod:`ngvi.optim.von` has those that
move the guide of a PPL's model, where SLANG is VOGN with the family ``"low_rank"``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from ngvi import errors
from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.optim.rule import Array, Number, Rates


@dataclass(frozen=True)
class IvonEquations:
    """Improved variational online Newton (Shen et al., 2024, Algorithm 1) in a plain training loop.

    Learns a Gaussian with independent weights, ``q = N(m, diag(sigma^2))``, at the cost of Adam.
    The gradient ``g_hat`` of a minibatch's *mean* loss is taken at a sample ``theta`` of ``q``.
    With ``lambda = ess`` and ``delta = weight_decay``::

        h_hat = g_hat (theta - m) / sigma^2                                              (3)
        g <- beta1 g + (1 - beta1) g_hat                                                 (4)
        h <- beta2 h + (1 - beta2) h_hat + (1 - beta2)^2 (h - h_hat)^2 / (2 (h + delta)) (5)
        m <- m - alpha (g / (1 - beta1^t) + delta m) / (h + delta)                    (6, 7)
        sigma = (lambda (h + delta))^(-1/2)                                              (8)

    ``ess`` is the number of training examples, for a loss that is a mean over examples; use
    ``ess / T`` for the posterior at temperature ``T``. The prior of the weights is
    ``N(0, 1 / (ess weight_decay))``. With several samples per step, ``g_hat`` and ``h_hat`` are
    averages. A step whose gradient is not finite is skipped and counted.

    :param ess: ``lambda``, the number of training examples.
    :param weight_decay: ``delta``, the prior's precision divided by ``ess``.
    :param beta1: momentum of the gradient, in [0, 1).
    :param beta2: the fraction of the curvature that a step keeps, in [0, 1).
    :param hess_init: ``h`` before the first step: a number, or one for each weight, as measured by
        ``initial_hess``.
    :param clip_radius: the largest entry of the direction, (7) before ``alpha``.
    :param debias: whether to divide the momentum by ``1 - beta1^t``.
    :param rescale_lr: whether to multiply ``alpha`` by ``hess_init + weight_decay``, with the
        mean of ``hess_init`` over all weights.
    """

    ess: float
    weight_decay: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99999
    hess_init: float = 1.0  #: Mean over all weights.
    clip_radius: float = math.inf
    debias: bool = True
    rescale_lr: bool = True

    rule: ClassVar[str] = "IVON"
    #: Power of the largest number up to which ``ess`` times a product may come in a step.
    room: ClassVar[float] = 0.4
    of_examples: ClassVar[bool] = False  #: True if ``product`` is of each example's gradient.

    def scale(self, hess: Array) -> Array:
        """``sigma``, (8)."""
        return (self.ess * (hess + self.weight_decay)) ** -0.5

    def new_momentum(self, momentum: Array, gradient: Array) -> Array:
        """``g``, (4)."""
        new = self.beta1 * momentum
        new += (1 - self.beta1) * gradient
        return new

    def slope(self, gradient: Array, mean: Array) -> Array:
        """Return what the momentum is of."""
        return gradient

    def new_hess(self, hess: Array, product: Array) -> Array:
        """``h``, (3) and (5).

        :param product: ``g_hat (theta - m)``, averaged over samples.
        """
        precision = hess + self.weight_decay
        change = self.ess * product
        change *= precision
        change -= hess
        change *= 1 - self.beta2
        correction = change / precision
        correction *= 0.5
        correction += 1
        change *= correction
        change += hess
        return change

    def change(
        self, mean: Array, momentum: Array, hess: Array, step_size: Number, count: Number
    ) -> Array:
        """Return the change of ``m``, (6) and (7).

        :param momentum: after this step's gradient, as is ``hess``.
        :param count: the number of steps, this one included.
        """
        unbiased = self.unbiased(momentum, mean, count)
        return self.length(unbiased / (hess + self.weight_decay), step_size)

    def unbiased(self, momentum: Array, mean: Array, count: Number) -> Array:
        """Return the slope of the loss, of which (7) divides by the curvature."""
        # 1 - beta1^t belongs to the momentum alone.
        unbiased = momentum * (1 / (1 - self.beta1**count)) if self.debias else momentum
        return self._with_prior(unbiased, mean)

    def length(self, direction: Array, step_size: Number) -> Array:
        """Return the step of ``m`` along a direction, which may be overwritten."""
        if not (isinstance(self.clip_radius, float) and self.clip_radius == math.inf):
            direction = direction.clip(-self.clip_radius, self.clip_radius)
        if self.rescale_lr:
            step_size = step_size * (self.hess_init + self.weight_decay)
        direction *= -step_size
        return direction

    def _with_prior(self, momentum: Array, mean: Array) -> Array:
        new = self.weight_decay * mean
        new += momentum
        return new


@dataclass(frozen=True)
class VognEquations(IvonEquations):
    """Variational online Gauss-Newton in a plain training loop.

    Khan et al. (2018; Swaroop, eqs. for VOGN), with the momentum of Tan (S5.1). Learns a Gaussian
    with independent weights, ``q = N(m, diag(sigma^2))``. The gradients ``g_i`` of a minibatch's
    examples are taken at a sample ``theta`` of ``q``. With ``lambda = ess``,
    ``delta = weight_decay`` and means over the examples::

        g <- beta1 g + (1 - beta1) (mean_i g_i + delta m)
        h <- beta2 h + (1 - beta2) mean_i g_i^2
        m <- m - alpha g / (1 - beta1^t) / (h + delta)
        sigma = (lambda (h + delta))^(-1/2)

    The curvature is never negative and much less noisy than IVON's, but takes the gradient of each
    example: a few times the time of a minibatch's gradient, and memory for one copy of the weights
    per example. ``ess`` is the number of training examples; use ``ess / T`` for the posterior at
    temperature ``T``. The prior of the weights is ``N(0, 1 / (ess weight_decay))``. A step
    whose gradients are not finite is skipped and counted.

    :param beta2: the fraction of the curvature that a step keeps, in [0, 1); by default as in Adam
        (Tan, S5.1). The average over all steps, the default in ``SVI``, is for ``SVI`` only.
    :param clip_radius: the largest entry of the direction, before ``alpha``.
    """

    beta2: float = 0.999

    rule = "VOGN"
    room = 1.0
    of_examples = True

    def slope(self, gradient: Array, mean: Array) -> Array:
        """See above."""
        return gradient + self.weight_decay * mean

    def new_hess(self, hess: Array, product: Array) -> Array:
        """``h``.

        :param product: ``g_i^2``, averaged over examples and samples.
        """
        new = self.beta2 * hess
        new += (1 - self.beta2) * product
        return new

    def _with_prior(self, momentum: Array, mean: Array) -> Array:
        return momentum


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

    so that the diagonal of the precision is VOGN's. ``U`` starts at zero, so SLANG starts as VOGN.
    The paper mixes precisions instead of their ``U``, which is the same to first order in
    ``1 - beta2`` (:mod:`~ngvi.families.low_rank_precision`).

    Besides VOGN's gradient of each example, a step takes ``O(d B (B + rank) + d rank^2)``, and
    memory for ``rank`` more copies of the weights: it is for small networks. ``ess`` is the number
    of training examples; use ``ess / T`` for the posterior at temperature ``T``. A step whose
    gradients are not finite is skipped and counted.

    :param beta2: the fraction of the curvature that a step keeps, in [0, 1).
    :param rank: the rank of ``U``, from 1 to the number of weights.
    """

    rank: int = 10

    rule = "SLANG"
    #: A gradient's square is a sum over all weights.
    room = 0.75

    def __post_init__(self) -> None:
        errors.check_rank(self.rank)

    def check_size(self, size: int) -> None:
        """Refuse a rank above the number of weights."""
        if self.rank > size:
            raise ValueError(f"SLANG(rank={self.rank}) has a rank above the {size} weights.")

    def new_precision(
        self, precision: LowRankPrecision, rows: Array, prior: Array
    ) -> LowRankPrecision:
        """Return the precision after a step, divided by ``lambda``.

        :param rows: ``g_i / N^(1/2)`` of the ``N`` examples of all samples, shape ``(N, d)``.
        :param prior: ``delta``, shape ``(d,)``.
        """
        change = precision.change_from_rows(rows, prior)
        return precision.with_precision(*change, 1 - self.beta2)


def defaults_of(equations: type[IvonEquations]) -> dict[str, Any]:
    """Return the options of a rule but ``ess``, which has no default, and their defaults."""
    return {field.name: field.default for field in fields(equations) if field.name != "ess"}


def check_ivon(
    step_size: Rates, name: str, of: type[IvonEquations] = IvonEquations, **options: Any
) -> IvonEquations:
    """Return the equations with these options.

    :param step_size: checked, but no part of them: it may change from step to step.
    :param name: what the package calls it.
    :raises ValueError: naming the option.
    """
    errors.check_step_size(step_size, name)
    if options.get("ess") is None:
        raise ValueError(
            f"{of.rule} needs ess, the effective sample size: the number of training examples, for "
            "a loss that is a mean over examples."
        )
    new = of(**options)
    if not errors.is_number(new.ess, lambda x: 0 < x < math.inf):  # a traced one is taken
        errors.check_finite(new.ess, "ess")
    if not errors.is_number(new.hess_init, lambda x: 0 < x < math.inf):
        raise ValueError(
            "hess_init must be positive and finite, a number or what initial_hess measures by "
            f"weight, got {errors.shown(new.hess_init)}."
        )
    if not errors.is_number(new.weight_decay, lambda x: 0 <= x < math.inf):
        raise ValueError(
            f"weight_decay must be finite and at least 0, got {new.weight_decay!r}. A prior "
            "N(0, s^2) of the weights is weight_decay = 1 / (ess s^2)."
        )
    errors.check_momentum(new.beta1, "beta1")
    errors.check_momentum(new.beta2, "beta2")
    errors.check_positive(new.clip_radius, "clip_radius")
    errors.check_flag(new.debias, "debias")
    errors.check_flag(new.rescale_lr, "rescale_lr")
    return new


class InitialHess(NamedTuple):
    """IVON's ``hess_init`` for each weight, measured by the size of its gradients.

    It is the root mean square of the gradients of a few minibatches, at the current weights. A
    fraction of the mean square over the tensor or over all weights, whichever is larger, keeps it
    from being too small. It is scaled so that the mean of ``1 / h`` is one::

        h_i ~ (mean_b g_bi^2 + floor^2 max(mean_bj of the tensor, mean_bj of all g_bj^2))^(1/2)

    A step is proportional to ``g_i / h_i``, like Adam's with fixed second moments, and the
    posterior is narrow where gradients are large. Its initial variance, averaged over all weights,
    is that of ``hess_init=1``, ``1 / ess``. The size of gradients does not determine that width:
    they vanish before a batch norm and at the optimum. With the published ``beta2=0.99999`` the
    curvature needs about ten thousand steps to leave its initial value, which thus matters in
    shorter runs. A tensor without gradients gets the root mean square over all weights.

    :param floor: that fraction, positive.
    """

    floor: float = 0.1

    def of_squares(self, squares: Sequence[Array]) -> list[Array]:
        """``h`` of tensors of mean squares.

        :raises ValueError: if these are all zero, or not finite.
        """
        errors.check_finite(self.floor, "floor")
        sizes = [math.prod(square.shape) for square in squares]
        sums = [float(square.sum()) for square in squares]
        mean = sum(sums) / max(1, sum(sizes))
        if not 0 < mean < math.inf:
            raise ValueError(
                f"initial_hess needs finite gradients that are not all zero, got a mean square of "
                f"{mean:g}."
            )
        pairs = zip(sums, sizes, strict=True)
        parts = [self.floor**2 * max(s / n, mean) if s else mean for s, n in pairs]
        roots = [(square + part) ** 0.5 for square, part in zip(squares, parts, strict=True)]
        level = sum(float((1 / root).sum()) for root in roots) / sum(sizes)
        return [root * level for root in roots]


def check_hess_init(values: Sequence[Array]) -> float:
    """Return the mean over all weights of their own ``hess_init``.

    :raises ValueError: unless they are positive and finite.
    """
    values = [value for value in values if math.prod(value.shape)]
    for value in values:
        if not 0 < float(value.min()) <= float(value.max()) < math.inf:
            raise ValueError(
                "hess_init must be positive and finite, of each weight: one has "
                f"{float(value.min()):g} to {float(value.max()):g}."
            )
    if not values:
        raise ValueError("hess_init has no values: give a number, or one of each weight.")
    return sum(float(v.sum()) for v in values) / sum(math.prod(v.shape) for v in values)
