"""Mechanisms of a fit, each with its switch, and the numbers by which they decide.

Users may pass others, ``fit(..., options=FitOptions(...))``, and so do tests. Levels that several
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
    #: Bounds, or heights of modes, that differ by less, in nats, are of one optimum.
    same: float = 0.1
    #: Difference of a bound, in nats, that a reader should hear of.
    notable: float = 1.0
    #: Difference, in nats, that a further search may well make up for.
    worth: float = 2.0
    #: Part of an amount that counts as none of it.
    negligible: float = 0.1
    #: Part of an amount that counts as none of it, even many times over.
    tiny: float = 1e-3
    #: Units of rounding within which two values are the same.
    rounding_units: float = 16.0
    #: Factor for the number of draws where these were too few.
    more_draws: int = 4
    #: Most latents for which a dense factor of the covariance is computed beside the search.
    max_dense: int = 500

    @property
    def caution(self) -> float:
        """Return the z-score of an upper limit."""
        return NormalDist().inv_cdf(self.confidence)

    @property
    def growth(self) -> float:
        """Return the factor of a limit after a success at whose end there is more to gain."""
        return 1.0 / self.negligible

    @property
    def shrinkage(self) -> float:
        """Return the factor of a limit after a failure."""
        return 1.0 / self.more_draws


LEVELS = Levels()


@dataclasses.dataclass(frozen=True)
class MetricOptions:
    """Numbers of the quasi-Newton memory."""

    #: Most pairs.
    max_pairs: int
    #: A pair counts with this part of the metric's curvature: noise decides on flatter ones.
    min_curvature: float


#: Near an optimum the metric is nearly the curvature, and a few pairs correct it.
METRIC = MetricOptions(6, LEVELS.tiny)
#: The memory of families that leave out correlations, and of parameters of the model's own: all
#: that is known of these is in the pairs, and they may be as flat as the prior beside the data.
FLAT_METRIC = MetricOptions(50, 1e-8)


@dataclasses.dataclass(frozen=True)
class LocalSearchOptions:
    """Maximising a bound over fixed draws, from one start."""

    #: Fewest points of the first stage: a few latents overfit fewer than these.
    min_points: int = 10
    #: Most groups of the last stage, and twice those of a step with fresh draws.
    max_groups: int = 64
    #: What the first stage leaves, in nats: its draws are few, and distant starts need no more.
    coarse_gap: float = 0.25
    #: What a later stage leaves, as a part of the tolerance.
    stage_part: float = 0.125
    #: Part of its slope that a step may lose, since slopes over draws are exact for the mean only.
    slack: float = 0.05
    #: Steps between looks at the draws that are not learnt from, and at the width; twice as many
    #: without a gain, or refused in a row, end a stage.
    check_every: int = 10
    #: Longest step, in nats and in both directions, that updates the quasi-Newton memory.
    pair_length: float = 0.3
    #: Latents for each of which that length counts once, if the step is about as long both ways.
    pair_latents: int = 30
    #: Ratio of both lengths up to which they are about the same.
    pair_ratio: float = 1.5


@dataclasses.dataclass(frozen=True)
class StochasticOptions:
    """Maximising a noisy bound, with fresh draws at every step."""

    #: Groups of a step, at first.
    min_groups: int = 4
    #: Signal over noise below which steps are averaged.
    noisy: float = 0.5
    #: Adam's rate for the model's own parameters, which shrinks on a plateau.
    parameter_step_size: float = 0.05
    #: Plateaus after which these parameters are at their optimum.
    num_plateaus: int = 3


@dataclasses.dataclass(frozen=True)
class CertificateOptions:
    """Numbers of the certificate."""

    #: Curvature of the bound along the steps taken, as a part of the metric's, below which further
    #: steps, and not a quadratic model, say what is left.
    flat: float = 0.3
    #: Latents up to which steps say it as well: the curvature of a few draws is little evidence.
    few_latents: int = 3
    #: Steps over fresh draws.
    num_steps: int = 4
    #: Fewest points of these draws.
    min_points: int = 32
    #: Noise of the draws, as a part of the tolerance, that is small enough: the gap has it twice.
    noise_part: float = 0.4
    #: Most rounds of further steps, and most steps of a round where a direction may be far flatter
    #: than the metric says: the first of them find the direction.
    max_rounds: int = 12


@dataclasses.dataclass(frozen=True)
class MultiStartOptions:
    """Several starts, and the search for other optima."""

    #: Starts of a round.
    num_starts: int = 8
    #: Cost of a run in the first round, in steps.
    first_steps: int = 40
    #: Gradients that any search for other optima may take, if its starts may cost what the way to
    #: the best did: the shortest run of NUTS. What that way leaves of them may follow runs that end
    #: far below the best.
    exploration_floor: int = 20_000
    #: Without an optimum nothing new begins after this many gradients: four chains of NUTS. Half of
    #: them, or as many as all before, may go into fresh draws at every step.
    gradient_budget: int = 100_000
    #: Largest probability that as many starts again find a better optimum: eight starts that have
    #: met one optimum are enough, sixteen that have met two, and 32 that have met three.
    unseen: float = 0.125
    #: Nats for each latent, beside :attr:`Levels.worth`, by which a mode may be above the log
    #: density at the mean of a Gaussian that it is inside of. Above some times as many it has
    #: hardly any mass, as a funnel's.
    inside: float = 0.25


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """Numbers of the starts."""

    #: Standard deviations to try, the first of which is the guide's; raw covariates overflow soon.
    scales: tuple[float, ...] = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    #: Draws of the prior, and points of a box about zero.
    num_points: int = 100
    #: Half the width of the box.
    box: float = 2.0
    #: Standard deviation, or one over it, above which a prior is another start than the guide's.
    usual_scale: float = 50.0
    #: Most steps of an ascent: a process of 80 latents takes 300.
    max_steps: int = 400
    #: Largest slope, in nats per standard deviation, at the end of an ascent.
    ascent_gradient: float = 1e-2


@dataclasses.dataclass(frozen=True)
class ValidationOptions:
    """Numbers of the validation by independent draws."""

    #: Fewest draws; else half as many as the search took gradients.
    min_draws: int = 200
    #: Most draws at first.
    max_draws: int = 1000
    #: Factor by which one latent is stretched in most draws that look for rare losses.
    stretch: float = 2.5
    #: Draws that are computed in double precision as well.
    num_in_double: int = 16

    #: True if draws double, up to four times as many, while a contradiction is in doubt.
    may_double: bool = True

    def coarse(self) -> ValidationOptions:
        """Return the same with the least draws, whatever is in doubt."""
        return dataclasses.replace(self, max_draws=self.min_draws, may_double=False)


@dataclasses.dataclass(frozen=True)
class RunawayOptions:
    """Latents and parameters that run away to infinity."""

    #: Unconstrained distance from its start above which a latent is looked at: of a logarithm a
    #: factor of 1e13.
    distant: float = 30.0
    #: Multiple of that distance, with its square, at which the density is looked at: tails that can
    #: be integrated fall there.
    farther: float = 4.0
    #: Unconstrained distance from its start above which a parameter is looked at: half of it on
    #: both sides, and up to twice of it farther out.
    parameter_distant: float = 2.0
    #: Draws that see all of it.
    num_draws: int = 64


#: Words of ``effort``.
Effort = Literal["quick", "standard", "thorough"]
QUICK, THOROUGH = "quick", "thorough"
#: Gradients for other optima per gradient that led to the best one: none; as many, so that twice
#: the time buys the claim; and as many as hard posteriors took before a probability ended them.
EFFORTS = {QUICK: 0.0, "standard": 1.0, THOROUGH: 8.0}


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Switches of the mechanisms of ``fit``, and the numbers by which they decide.

    None needs a change. ``docs/mechanisms.md`` says what each mechanism is for; the numbers are in
    :mod:`ngvi.inference.options`, a dataclass for each part, each with its reason::

        fit(model, X, y, options=FitOptions(multi_start=MultiStartOptions(unseen=0.05)))
        fit(model, X, y, options=FitOptions(prior_start=False))
    """

    #: Begin at the prior as well, where it is elsewhere.
    prior_start: bool = True
    #: Begin at a point of high density, where the guide's start has none.
    high_start: bool = True
    #: Follow a few more starts, where the first ones end without an optimum.
    more_starts: bool = True
    #: Take fresh draws at every step, where nothing else comes to an optimum.
    fresh_draws: bool = True
    #: Read all minibatches at each step, where they are few enough.
    data_passes: bool = True
    #: Correct the Fisher metric by pairs of steps and changes of the natural gradient.
    quasi_newton: bool = True
    #: Choose step lengths by the secant of slopes, where the bound is integrated.
    secant_steps: bool = True
    #: End a stage that overfits its draws, by draws that it does not learn from.
    held_out_draws: bool = True
    #: Certify by steps over fresh draws, where the bound may be flatter than the metric.
    certificate_steps: bool = True
    #: Look for other optima from an optimum.
    other_optima: bool = True
    #: Ascend in the coordinates of the best Gaussian.
    whitened_ascents: bool = True
    #: Follow runs that end far below the best: they may be on a saddle.
    follow_low_ends: bool = True
    #: Report single precision that is far off.
    check_precision: bool = True
    #: Report values of the log density that contradict its gradients.
    check_gradients: bool = True
    #: Report losses that are rare and large.
    check_rare_losses: bool = True
    #: Report an integral that draws do not confirm.
    check_integral: bool = True
    #: Report latents and parameters that run to infinity.
    check_endless: bool = True

    local: LocalSearchOptions = LocalSearchOptions()
    stochastic: StochasticOptions = StochasticOptions()
    certificate: CertificateOptions = CertificateOptions()
    multi_start: MultiStartOptions = MultiStartOptions()
    starts: StartOptions = StartOptions()
    validation: ValidationOptions = ValidationOptions()
    runaway: RunawayOptions = RunawayOptions()
