"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from ngvi.errors import step_size_at
from ngvi.families import direction, steps
from ngvi.families.gaussian import centred
from ngvi.families.path import JointPath
from ngvi.optim.averaging import AveragedMean
from ngvi.optim.quasi_newton import Correction, QuasiNewton, QuasiNewtonMemory
from ngvi.optim.rule import Algebra, Array, Families, Number, Rates
from ngvi.optim.step_decay import DecayState, StepDecay
from ngvi.optim.subsampled_latents import MoveCounts, SubsampledLatents, none_yet
from ngvi.optim.trust_region import (
    TrustRegion,
    TrustRegionState,
    first_state,
    longest_within,
    slopes,
)


class BlrState(NamedTuple):
    """State of the Bayesian learning rule."""

    progress: TrustRegionState | DecayState  #: State of the trust region, or of a decay.
    change: Families  #: The last step, in coordinates.
    gradient: Array | None  #: Momentum of ``g``, all families together.
    memory: QuasiNewtonMemory | None
    move_counts: MoveCounts | None  #: Counts of latents that not every step moves.
    z_minus_x: Array | None = None  #: Fast point less average, where the step size decays.


class _Known(NamedTuple):
    """Facts at the beginning of a step."""

    progress: TrustRegionState
    kept: Any  #: The new ``progress`` of a step size that decays.
    rate: Any  #: The step size, or ``"auto"``.
    duals: Families  #: Euclidean gradients of the bound; empty if nothing asks for them.
    memory: QuasiNewtonMemory | None


class BlrRule(NamedTuple):
    """Natural-gradient ascent in the natural parameters of the Gaussian.

    With ``g = E[grad log p]`` and ``A = -E[hess log p]`` (Khan, eq. 29 in full covariance)::

        S <- (1 - rho) S + rho A,        mu <- mu + rho S_new^-1 g,        S = Sigma^-1

    kept positive definite for any ``A`` (:mod:`~ngvi.linalg.definite`). One step of
    ``rho = 1`` is exact for a conjugate model; with ``NaturalELBO(curvature="mean")`` it is
    Newton's method, whose fixed point is the Laplace approximation. The natural gradient may come
    from ``NaturalELBO`` or from any stock ELBO.

    By default nothing needs tuning. Steps are full, within an adaptive trust region in
    Kullback-Leibler divergence; they shrink once noise dominates, and gain momentum over long
    distances (:mod:`~ngvi.optim.trust_region`). A quasi-Newton memory corrects the mean of a mean
    field (:mod:`~ngvi.optim.quasi_newton`). Latents that only some minibatches move have their own
    step sizes (:mod:`~ngvi.optim.subsampled_latents`). A given step size is used for every step.
    """

    algebra: Algebra
    step_size: Rates | StepDecay | str
    precision_step_size: Rates | None
    momentum: float
    max_kl: float | str | None
    is_noisy: bool = False  #: True if single draws' curvature is to be corrected for its noise.
    largest_change: float | None = None  #: Largest part of a mean field's precision in a step.
    trust_region: TrustRegion = TrustRegion()
    quasi_newton: QuasiNewton = QuasiNewton()

    @property
    def _limit(self) -> float | str | None:
        """The largest KL divergence of a step: by itself none where a step size is given."""
        return None if self.max_kl == "auto" and self.step_size != "auto" else self.max_kl

    def init(self, families: Families) -> BlrState:
        on = self.algebra
        still, loc = direction.zeros(families), on.means(families)
        decays = isinstance(self.step_size, StepDecay)
        return BlrState(
            on.kept(DecayState(0.0, 0.0) if decays else first_state(), families),
            still,
            on.means(still) if self.momentum and not decays else None,
            self.quasi_newton.empty(on, families, loc) if self._accelerates(families) else None,
            none_yet(on, families) if self._adapts else None,
            self._averaging.begin(families) if decays else None,
        )

    def step(
        self, gradients: Families, state: BlrState, families: Families, count: Number
    ) -> tuple[Families, BlrState]:
        """Directions are those of the bound: the loss falls along them."""
        on, directions = self.algebra, direction.each(operator.neg, gradients)
        latents = SubsampledLatents(on, state.move_counts, families, directions)
        known = self._known(state, families, directions, count)
        steered, gradient = directions, state.gradient
        if gradient is not None:
            gradient = self._smoothed(gradient, known.duals, families, directions)
            unbiased = gradient / (1 - self.momentum ** (count + 1.0))
            pairs = zip(families, on.by_family(unbiased, families), strict=True)
            means = [steps.covariance_times(family, one) for family, one in pairs]
            steered = direction.with_means(directions, means)
        of_mean, rho = self._step_sizes(known, count)
        fall: Number = 0.0
        if self.step_size == "auto":
            # What a latent that moves more seldom has not seen of sign changes does not count.
            fall, fall_of_scale = 1.0 / of_mean - 1.0, 1.0 / rho - 1.0
            if self.precision_step_size is not None:
                fall_of_scale = 0.0
            steered = latents.with_step_sizes(families, steered, fall, fall_of_scale)
        ratio, rho = on.cast(of_mean / rho, families), on.cast(rho, families)
        if known.memory is not None:
            ratio = ratio * latents.step_sizes(fall)
        path = self._path(known.memory, families, steered, ratio, rho)
        attempt, length, taken = self._attempt(known.progress, families, path, rho)
        moved, _ = on.measured(lambda: path.end(attempt), lambda _: [])
        z_minus_x = state.z_minus_x
        if z_minus_x is not None:
            moved, z_minus_x = self._averaging.step(families, moved, z_minus_x, count)
        if self.step_size == self._limit == "auto" and known.memory is None and gradient is None:
            # Beside the path, where a precision that falls would enlarge it from step to step.
            part = on.cast(known.progress.momentum * taken / rho, families)
            last = latents.of_moved(families, state.change)
            pairs = zip(moved, last, strict=True)
            moved = direction.with_means(moved, [one.loc + part * last.loc for one, last in pairs])
        if self._limit == "auto":
            # What is not finite is not taken, and all parameters return (:meth:`recover`).
            lost = on.cast(on.where(known.progress.is_rejected, math.nan, 0.0), families)
            moved = direction.with_means(moved, [one.loc + lost for one in moved])
        change, kept = direction.subtract(moved, families), known.kept
        if self._adapts:
            slope, of_mean = slopes(known.duals, latents.of_next(families, change))
            now = {"slope": slope, "mean_slope": of_mean, "length": length, "rho": taken}
            kept = on.kept(known.progress._replace(**now, is_rejected=0), families)
        return moved, BlrState(kept, change, gradient, known.memory, latents.counts, z_minus_x)

    def recover(self, state: BlrState, families: Families) -> tuple[Families, BlrState]:
        """Back to where the last step began, with a tenth of its radius."""
        on = self.algebra
        earlier, still = direction.subtract(families, state.change), direction.zeros(state.change)
        if isinstance(self.step_size, StepDecay):
            return earlier, state._replace(change=still, z_minus_x=self._averaging.begin(families))
        progress = TrustRegionState(*state.progress)
        length = on.where(progress.length > 0, progress.length, progress.radius)
        radius = on.maximum(0.1 * length, self.trust_region.smallest_radius(on, families))
        progress = progress._replace(radius=radius, slope=0.0, mean_slope=0.0, length=0.0)
        return earlier, state._replace(progress=on.kept(progress, families), change=still)

    # -- parts of a step --------------------------------------------------------------

    def _known(
        self, state: BlrState, families: Families, directions: Families, count: Number
    ) -> _Known:
        """Return what the end of the last step says."""
        on = self.algebra
        if isinstance(self.step_size, StepDecay):
            triples = zip(families, directions, state.change, strict=True)
            found = [steps.mean_products(family, one, last.loc) for family, one, last in triples]
            slope, square = on.numbers(*(sum(same) for same in zip(*found, strict=True)))
            decay = self.step_size.judge(DecayState(*state.progress), slope, count)
            rate = self.step_size.rate(decay, square, sum(family.dim for family in families))
            return _Known(first_state(), on.kept(decay, families), rate, [], None)
        progress, memory = TrustRegionState(*state.progress), state.memory
        if not self._adapts:
            return _Known(progress, state.progress, self.step_size, [], None)
        duals = direction.dual(families, directions)
        if memory is not None:  # what it wants to know is read with the slopes
            variances = on.joined([family.variance for family in families])
            step, gradient = on.means(state.change), on.means(duals)
            pair = self.quasi_newton.look(on, memory, step, gradient, variances)
        progress = self.trust_region.judge(on, progress, duals, state.change)
        if memory is not None:
            changes = progress.mean_sign_changes
            memory = self.quasi_newton.remember(on, memory, pair, families, changes)
        return _Known(progress, None, self.step_size, duals, memory)

    def _smoothed(
        self, gradient: Array, duals: Families, families: Families, directions: Families
    ) -> Array:
        """Return the momentum of ``g`` after one more direction."""
        pairs = zip(families, directions, strict=True)
        fresh = [dual.loc for dual in duals] or [steps.gradient_of_mean(*pair) for pair in pairs]
        return self.momentum * gradient + (1 - self.momentum) * self.algebra.joined(fresh)

    def _step_sizes(self, known: _Known, count: Number) -> tuple[Number, Number]:
        """``rho`` of the mean and of the precision."""
        progress, has_memory = known.progress, known.memory is not None
        if isinstance(known.rate, str):
            of_mean = self.trust_region.step_size(progress.mean_sign_changes, has_memory)
            of_precision = self.trust_region.step_size(progress.scale_sign_changes, has_memory)
        else:
            of_mean = of_precision = step_size_at(known.rate, count)
        if self.precision_step_size is not None:
            of_precision = step_size_at(self.precision_step_size, count)
        return of_mean, of_precision

    def _path(
        self,
        memory: QuasiNewtonMemory | None,
        families: Families,
        steered: Families,
        ratio: Number | Array,
        rho: Number,
    ) -> Any:
        """Return the steps along the directions, of all sizes."""
        if self.largest_change is not None:
            pairs = zip(families, steered, strict=True)
            steered = [steps.bounded(*pair, rho, self.largest_change) for pair in pairs]
        if self.is_noisy:
            pairs = zip(families, steered, strict=True)
            steered = [steps.corrected(*pair, rho) for pair in pairs]
        path = JointPath(families, steered, ratio if memory is None else 0.0)
        if self.is_noisy:
            path = path.damped(rho)
        if memory is None:
            return path
        return AcceleratedPath(self.algebra, families, path, memory, ratio)

    def _attempt(
        self, progress: TrustRegionState, families: Families, path: Any, rho: Number
    ) -> tuple[Any, Number, Number]:
        """Return the step along a path, its length in nats and its size."""
        on = self.algebra
        radius = progress.radius if self._limit == "auto" else self._limit
        if radius is None:
            return on.measured(lambda: path.at(rho), lambda _: [])[0], progress.length, rho
        first: Any = math.inf
        if any(map(steps.attempts_are_costly, families)):
            # Elsewhere what it saves is less than what shorter steps cost.
            first = on.cast(self.trust_region.promising(on, progress, radius), families)
        return longest_within(on, radius, path, rho, first)

    @property
    def _averaging(self) -> AveragedMean:
        return AveragedMean(self.algebra, self.momentum)

    @property
    def _adapts(self) -> bool:
        return self.step_size == "auto" or self._limit == "auto"

    def _accelerates(self, families: Families) -> bool:
        return (
            self.step_size == "auto"
            and not self.momentum
            and any(map(steps.leaves_out_correlations, families))
        )


class AcceleratedPath:
    """The steps of a path whose mean a quasi-Newton memory corrects, with the new precision.

    :param path: the precisions', whose means stay.
    :param ratio: by what a step of the mean is longer than that of the precision, a number or one
        for each latent.
    """

    def __init__(
        self,
        on: Algebra,
        families: Families,
        path: JointPath,
        memory: QuasiNewtonMemory,
        ratio: Number | Array,
    ) -> None:
        self._on, self._families, self._path, self._ratio = on, families, path, ratio
        self._correction = Correction(on, memory, memory.gradient)
        self._metric = path.metric(on.by_family(self._correction.rest, families))

    def at(self, rho: Number) -> tuple[list, list[Array], Number]:
        """Return the precisions' attempt, the means, and the divergence of both.

        See :class:`~ngvi.families.path.Path`.
        """
        on, families, attempt = self._on, self._families, self._path.at(rho)
        change = self._correction.step(on.joined(self._metric(attempt)))
        changes = on.by_family(rho * self._ratio * change, families)
        pairs = list(zip(families, changes, strict=True))
        means = [old.loc + one for old, one in pairs]
        # KL(new || old) is a sum of the precisions' part, which the path has, and the mean's.
        shift = sum((centred(family).whiten(one) ** 2).sum() for family, one in pairs)
        return attempt, means, self._path.kl(attempt) + 0.5 * shift

    def kl(self, attempt: tuple[list, list[Array], Number]) -> Number:
        """See :class:`~ngvi.families.path.Path`."""
        return attempt[2]

    def end(self, attempt: tuple[list, list[Array], Number]) -> Families:
        """See :class:`~ngvi.families.path.Path`."""
        return direction.with_means(self._path.end(attempt[0]), attempt[1])
