"""Mechanisms of a fit, each with its switch, and the settings by which they decide.

Users and tests may change them: ``fit(..., options=FitOptions(...))``. Levels that several
decisions share have one name each, in :class:`Levels`.
"""

from __future__ import annotations

import dataclasses
from statistics import NormalDist
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Levels:
    """Levels that several decisions share."""

    #: Confidence of an upper limit, one-sided.
    confidence: float = 0.95
    #: Z-score above which a difference is significant, even as one of many.
    certain: float = 5.0
    #: Z-score above which a difference is probably not due to noise.
    likely: float = 2.0
    #: Difference in nats below which bounds, or heights of modes, belong to one optimum.
    same: float = 0.1
    #: Difference of a bound, in nats, that is worth reporting.
    notable: float = 1.0
    #: Difference, in nats, that a further search may well make up for.
    worth: float = 2.0
    #: Fraction of an amount that is negligible.
    negligible: float = 0.1
    #: Fraction of an amount that is negligible even many times over.
    tiny: float = 1e-3
    #: Units of rounding within which two values are the same.
    rounding_units: float = 16.0
    #: Factor for the number of draws if there were too few.
    more_draws: int = 4

    @property
    def caution(self) -> float:
        """Return the z-score of an upper limit."""
        return NormalDist().inv_cdf(self.confidence)

    @property
    def growth(self) -> float:
        """Return the factor of a limit after a success with more to gain."""
        return 1.0 / self.negligible

    @property
    def shrinkage(self) -> float:
        """Return the factor of a limit after a failure."""
        return 1.0 / self.more_draws


LEVELS = Levels()


@dataclasses.dataclass(frozen=True)
class MetricOptions:
    """Settings of the quasi-Newton memory."""

    #: Largest number of pairs.
    max_pairs: int
    #: Smallest curvature of a pair, as a fraction of the metric's: flatter ones are mostly noise.
    min_curvature: float


#: Near an optimum the metric is nearly the curvature, and a few pairs correct it.
METRIC = MetricOptions(6, LEVELS.tiny)
#: The memory for families without correlations, and for parameters of the model: only the pairs
#: know these, and they may be as flat as the prior compared with the data.
FLAT_METRIC = MetricOptions(50, 1e-8)


@dataclasses.dataclass(frozen=True)
class LocalSearchOptions:
    """Maximising a bound over fixed draws, from one start."""

    #: Fewest points of the first stage: a few latents overfit fewer than these.
    min_points: int = 10
    #: Most groups of the last stage, and twice those of a step over minibatches.
    max_groups: int = 64
    #: Gap in nats that ends the first stage: its draws are few, and distant starts need no more.
    coarse_gap: float = 0.25
    #: Gap that ends a later stage, as a fraction of the tolerance.
    stage_part: float = 0.125
    #: Fraction of its slope that a step may lose, as slopes over draws are exact for the mean only.
    slack: float = 0.05
    #: Steps between checks of the held-out draws and of the width; twice as many without a gain, or
    #: rejected in a row, end a stage.
    check_every: int = 10
    #: Longest step, in nats and in both directions, that updates the quasi-Newton memory.
    pair_length: float = 0.3
    #: Latents, for each of which that length counts once if the step is about as long both ways.
    pair_latents: int = 30
    #: Ratio of both lengths up to which they are about the same.
    pair_ratio: float = 1.5


@dataclasses.dataclass(frozen=True)
class StochasticOptions:
    """Maximising a noisy bound, with fresh draws at every step."""

    #: Initial number of groups in a step.
    min_groups: int = 4
    #: Signal-to-noise ratio below which steps are averaged.
    noisy: float = 0.5
    #: Adam's rate for the model's parameters, which shrinks on a plateau.
    parameter_step_size: float = 0.05


@dataclasses.dataclass(frozen=True)
class CertificateOptions:
    """Settings of the certificate."""

    #: Curvature of the bound along the steps taken, as a fraction of the metric's, below which
    #: further steps, not a quadratic model, estimate the gap.
    flat: float = 0.3
    #: Latents up to which steps estimate it as well: the curvature of a few draws is unreliable.
    few_latents: int = 3
    #: Number of steps over fresh draws.
    num_steps: int = 4
    #: Fewest points of these draws.
    min_points: int = 32
    #: Small enough noise of the draws, as a fraction of the tolerance: the gap has it twice.
    noise_part: float = 0.4
    #: Most rounds of further steps, and most steps of a round if a direction may be far flatter
    #: than the metric says: the first ones find the direction.
    max_rounds: int = 12


@dataclasses.dataclass(frozen=True)
class MultiStartOptions:
    """Several starts, and the search for other optima."""

    #: Starts in a round.
    num_starts: int = 8
    #: Cost of a run in the first round, in steps.
    first_steps: int = 40
    #: Gradients that any search for other optima may take, if each start may cost as many as the
    #: best optimum: the shortest run of NUTS. What the best optimum leaves of them may be spent on
    #: continuing runs that end far below it.
    exploration_floor: int = 20_000
    #: Gradients after which no new run starts without an optimum: about four chains of NUTS.
    gradient_budget: int = 100_000
    #: Largest probability that as many starts again find a better optimum: eight starts with one
    #: optimum are enough, sixteen with two, and 32 with three.
    unseen: float = 0.125
    #: Nats per latent, in addition to :attr:`Levels.worth`, by which a mode may be above the log
    #: density at the mean of the Gaussian around it. Several times higher, it has hardly any mass,
    #: as in a funnel.
    inside: float = 0.25


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """Settings of the starts."""

    #: Standard deviations to try, first the guide's; raw covariates overflow soon.
    scales: tuple[float, ...] = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    #: Draws of the prior, and points of a box about zero.
    num_points: int = 100
    #: Half the width of the box.
    box: float = 2.0
    #: Most steps of an ascent: a process with 80 latents takes 300.
    max_steps: int = 400


@dataclasses.dataclass(frozen=True)
class ValidationOptions:
    """Settings of the validation by independent draws."""

    #: Fewest draws; otherwise half as many as the search took gradients.
    min_draws: int = 200
    #: Most draws at first.
    max_draws: int = 1000
    #: Whether to check a few draws in double precision.
    in_double: bool = True
    #: Whether to double the draws, up to fourfold, while a contradiction is in doubt.
    may_double: bool = True

    def coarse(self) -> ValidationOptions:
        """Return the same with the fewest draws."""
        return dataclasses.replace(self, max_draws=self.min_draws, may_double=False)


#: Words of ``effort``.
Effort = Literal["quick", "standard", "thorough"]
QUICK, THOROUGH = "quick", "thorough"
#: Gradients for other optima per gradient of the best one: none; one, so that twice the time buys
#: the claim; and as many as hard posteriors took until the probability ended the search.
EFFORTS = {QUICK: 0.0, "standard": 1.0, THOROUGH: 8.0}


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Switches of the mechanisms of ``fit``, and the settings by which they decide.

    None needs changing. ``docs/mechanisms.md`` says what each mechanism is for; the settings are in
    :mod:`ngvi.inference.options`, a dataclass for each part, with reasons.

    >>> fit(model, y, options=FitOptions(prior_start=False), progress_bar=False).verdict
    'certified'
    """

    #: Also start at the prior, if it is elsewhere.
    prior_start: bool = True
    #: Try a few more starts, if the first ones reach no optimum.
    more_starts: bool = True
    #: Read all minibatches at each step, if they are few enough.
    data_passes: bool = True
    #: Correct the Fisher metric by pairs of steps and changes of the natural gradient.
    quasi_newton: bool = True
    #: End a stage that overfits its draws, by held-out draws.
    held_out_draws: bool = True
    #: Certify by steps over fresh draws, if the bound may be flatter than the metric.
    certificate_steps: bool = True
    #: Look for other optima after the first.
    other_optima: bool = True
    #: Check an optimum: precision, jumps, rare losses, quadrature, runaway latents and parameters.
    checks: bool = True

    local: LocalSearchOptions = LocalSearchOptions()
    stochastic: StochasticOptions = StochasticOptions()
    certificate: CertificateOptions = CertificateOptions()
    multi_start: MultiStartOptions = MultiStartOptions()
    starts: StartOptions = StartOptions()
    validation: ValidationOptions = ValidationOptions()
