"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

from ngvi.families import direction
from ngvi.families.path import JointPath
from ngvi.optim import quasi_newton, trust_region
from ngvi.optim.averaging import AveragedMean
from ngvi.optim.quasi_newton import Memory
from ngvi.optim.rule import Algebra, Array, Families, Number, Rates
from ngvi.optim.slowing import Slowing, Turned
from ngvi.optim.trust_region import Progress
from ngvi.optim.visits import Shares, Visits, joined, none_yet

#: A quasi-Newton memory overshoots now and then before noise does: its turns count for less.
DECREASE_WITH_MEMORY = 0.2


class BlrState(NamedTuple):
    """State of the Bayesian learning rule."""

    progress: Progress | Turned  #: of the trust region, or of a step size that slows
    change: Families  #: the last step, in coordinates
    gradient: Array | None  #: momentum of ``g``, all families together
    memory: Memory | None  #: of a quasi-Newton method
    visits: Visits | None  #: of latents that not every step moves
    lead: Array | None = None  #: of a mean that is an average, where the step size slows


class BlrRule(NamedTuple):
    """Natural-gradient ascent in the natural parameters of the Gaussian.

    With ``g = E[grad log p]`` and ``A = -E[hess log p]`` (Khan, eq. 29 in full covariance)::

        S <- (1 - rho) S + rho A,        mu <- mu + rho S_new^-1 g,        S = Sigma^-1

    kept positive definite for any ``A`` (:mod:`~ngvi.linalg.definite`). One step of
    ``rho = 1`` is exact for a conjugate model; with ``NaturalELBO(curvature="mean")`` it is
    Newton's method, whose fixed point is the Laplace approximation. The natural gradient may come
    from ``NaturalELBO`` or from any stock ELBO.

    By default nothing needs tuning: steps are whole, never longer than a radius in
    Kullback-Leibler divergence that adapts, decrease once noise takes over, and on a long way carry
    on (:mod:`~ngvi.optim.trust_region`); a mean field's mean is helped by a quasi-Newton
    memory (:mod:`~ngvi.optim.quasi_newton`); latents that only some of the minibatches visit take
    steps by their own visits (:mod:`~ngvi.optim.visits`). A step size that is given is that of
    every visit.
    """

    algebra: Algebra
    step_size: Rates | Slowing | str
    precision_step_size: Rates | None
    momentum: float
    max_kl: float | str | None
    is_noisy: bool = False  #: whether single draws' curvature is to be corrected for its noise

    @classmethod
    def of(
        cls,
        algebra: Algebra,
        step_size: Rates | str,
        precision_step_size: Rates | None,
        momentum: float,
        max_kl: float | str | None,
    ) -> Self:
        """The rule with these options: a step size that is given is not limited by itself."""
        if max_kl == "auto" and step_size != "auto":
            max_kl = None
        return cls(algebra, step_size, precision_step_size, momentum, max_kl)

    def init(self, families: Families) -> BlrState:
        on = self.algebra
        still = direction.zeros(families)
        accelerates, slows = self._accelerates(families), isinstance(self.step_size, Slowing)
        return BlrState(
            on.kept(Turned() if slows else Progress(), families),
            still,
            _join(on, still) if self.momentum and not slows else None,
            quasi_newton.empty(on, families, _join(on, families)) if accelerates else None,
            none_yet(on, families) if self._adapts else None,
            self._averaging.begin(families) if slows else None,
        )

    def step(
        self, gradients: Families, state: BlrState, families: Families, count: Number
    ) -> tuple[Families, BlrState]:
        """Directions are those of the bound: the loss falls along them."""
        on = self.algebra
        directions = direction.negate(gradients)
        slows = isinstance(self.step_size, Slowing)
        progress, kept = Progress() if slows else Progress(*state.progress), state.progress
        shares = Shares(on, state.visits, families, directions)
        memory, gradient, steered = state.memory, state.gradient, directions
        lead = state.lead
        rate: Any = self.step_size
        if self._adapts:
            duals = direction.dual(families, directions)
        if memory is not None:  # what it wants to know is read with the slopes
            variances = joined(on, [family.variance for family in families])
            step, slope = _join(on, state.change), _join(on, duals)
            pair = quasi_newton.look(on, memory, step, slope, variances)
        if self._adapts:
            progress = trust_region.judge(on, progress, duals, state.change)
        if memory is not None:
            memory = quasi_newton.remember(on, memory, pair, families, progress.mean_turns)
        if gradient is not None:
            if self._adapts:
                of_means = [dual.loc for dual in duals]
            else:  # nobody asks for the rest
                pairs = zip(families, directions, strict=True)
                of_means = [family.gradient_of_mean(one) for family, one in pairs]
            fresh = joined(on, of_means)
            gradient = self.momentum * gradient + (1 - self.momentum) * fresh
            unbiased = gradient / (1 - self.momentum ** (count + 1.0))
            means = _natural_means(on, families, unbiased)
            steered = direction.with_means(directions, _split(on, means, families))
        if isinstance(self.step_size, Slowing):
            triples = zip(families, directions, state.change, strict=True)
            found = [family.mean_products(one, last.loc) for family, one, last in triples]
            slope, square = on.numbers(*(sum(same) for same in zip(*found, strict=True)))
            turned = self.step_size.judge(Turned(*state.progress), slope, count)
            rate = self.step_size.rate(turned, square, sum(family.dim for family in families))
            kept = on.kept(turned, families)
        of_mean, rho = self._step_sizes(rate, progress, memory, count)
        if self.step_size == "auto":
            # What a latent that moves more seldom has not seen of the turns does not count for it.
            falls = 1.0 / of_mean - 1.0, 1.0 / rho - 1.0
            if self.precision_step_size is not None:
                falls = falls[0], 0.0
            steered = shares.with_sizes(families, steered, *falls)
        ratio, rho = on.cast(of_mean / rho, families), on.cast(rho, families)
        if self.is_noisy:
            pairs = zip(families, steered, strict=True)
            steered = [family.corrected(one, rho) for family, one in pairs]
        radius = progress.radius if self.max_kl == "auto" else self.max_kl
        path: Any = JointPath(families, steered, ratio if memory is None else 0.0)
        if self.is_noisy:
            path = path.damped(rho)
        if memory is not None:
            path = AcceleratedPath(on, families, path, memory, ratio * shares.sizes(falls[0]))
        if radius is None:
            attempt, _ = on.measured(lambda: path.at(rho), lambda _: [])
            length, taken = progress.length, rho
        else:
            first: Any = math.inf
            if any(family.attempts_are_costly() for family in families):
                # Elsewhere what it saves is less than what shorter steps cost.
                first = on.cast(trust_region.promising(on, progress, radius), families)
            attempt, length, taken = trust_region.longest_within(on, radius, path, rho, first)
        moved, _ = on.measured(lambda: path.end(attempt), lambda _: [])
        if lead is not None:
            moved, lead = self._averaging.step(families, moved, lead, count)
        if self.step_size == self.max_kl == "auto" and memory is None and gradient is None:
            # Beside the path, where a precision that falls would enlarge it from step to step.
            part = on.cast(progress.carried * taken / rho, families)
            last = shares.of_moved(families, state.change)
            pairs = zip(moved, last, strict=True)
            moved = direction.with_means(moved, [one.loc + part * last.loc for one, last in pairs])
        if self.max_kl == "auto":
            # What is not finite is not taken, and all parameters return (:meth:`recover`).
            lost = on.cast(on.where(progress.thrown, math.nan, 0.0), families)
            moved = direction.with_means(moved, [one.loc + lost for one in moved])
        change = direction.subtract(moved, families)
        if self._adapts:
            seen = shares.of_next(families, change)
            slope, of_mean = trust_region.slopes(duals, seen)
            now = {"slope": slope, "mean_slope": of_mean, "length": length, "rho": taken}
            kept = on.kept(progress._replace(**now, thrown=0), families)
        return moved, BlrState(kept, change, gradient, memory, shares.visits, lead)

    def recover(self, state: BlrState, families: Families) -> tuple[Families, BlrState]:
        """Back to where the last step began, with a tenth of its radius."""
        on = self.algebra
        earlier, still = direction.subtract(families, state.change), direction.zeros(state.change)
        if isinstance(self.step_size, Slowing):
            return earlier, state._replace(change=still, lead=self._averaging.begin(families))
        progress = Progress(*state.progress)
        length = on.where(progress.length > 0, progress.length, progress.radius)
        radius = on.maximum(0.1 * length, trust_region.smallest_radius(on, families))
        progress = progress._replace(radius=radius, slope=0.0, mean_slope=0.0, length=0.0)
        return earlier, state._replace(progress=on.kept(progress, families), change=still)

    @property
    def _averaging(self) -> AveragedMean:
        return AveragedMean(self.algebra, self.momentum)

    @property
    def _adapts(self) -> bool:
        return self.step_size == "auto" or self.max_kl == "auto"

    def _accelerates(self, families: Families) -> bool:
        return (
            self.step_size == "auto"
            and not self.momentum
            and any(family.leaves_out_correlations for family in families)
        )

    def _step_sizes(
        self, rate: Any, progress: Progress, memory: Memory | None, count: Number
    ) -> tuple[Number, Number]:
        """``rho`` of the mean and of the precision.

        :param rate: the rule's step size, or what it is now.
        """
        on = self.algebra
        if isinstance(rate, str):
            decrease = trust_region.DECREASE if memory is None else DECREASE_WITH_MEMORY
            of_mean = trust_region.step_size(progress.mean_turns, decrease)
            of_precision = trust_region.step_size(progress.scale_turns, decrease)
        else:
            of_mean = of_precision = on.rate(rate, count)
        if self.precision_step_size is not None:
            of_precision = on.rate(self.precision_step_size, count)
        return of_mean, of_precision


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
        memory: Memory,
        ratio: Number | Array,
    ) -> None:
        self._on, self._families, self._path, self._ratio = on, families, path, ratio
        self._correction = quasi_newton.Correction(on, memory, memory.gradient)
        self._metric = path.metric(_split(on, self._correction.rest, families))

    def at(self, rho: Number) -> tuple[list, list[Array], Number]:
        """The precisions' attempt, the means, and how far all is; see
        :class:`~ngvi.families.path.Path`.
        """
        on, families, attempt = self._on, self._families, self._path.at(rho)
        change = self._correction.step(joined(on, self._metric(attempt)))
        changes = _split(on, rho * self._ratio * change, families)
        pairs = list(zip(families, changes, strict=True))
        means = [old.loc + one for old, one in pairs]
        # KL(new || old) is a sum of the precisions' part, which the path has, and the mean's.
        shift = sum((family.centred().whiten(one) ** 2).sum() for family, one in pairs)
        return attempt, means, self._path.kl(attempt) + 0.5 * shift

    def kl(self, attempt: tuple[list, list[Array], Number]) -> Number:
        """See :class:`~ngvi.families.path.Path`."""
        return attempt[2]

    def end(self, attempt: tuple[list, list[Array], Number]) -> Families:
        """See :class:`~ngvi.families.path.Path`."""
        return direction.with_means(self._path.end(attempt[0]), attempt[1])


def _natural_means(on: Algebra, families: Families, gradient: Array) -> Array:
    """``Sigma g``, of the means of all families."""
    parts = zip(families, _split(on, gradient, families), strict=True)
    return joined(on, [family.covariance_times(one) for family, one in parts])


def _join(on: Algebra, families: Families) -> Array:
    """The means of all families, one after another."""
    return joined(on, [family.loc for family in families])


def _split(on: Algebra, joined: Array, families: Families) -> list[Array]:
    return on.split(joined, [family.dim for family in families])
