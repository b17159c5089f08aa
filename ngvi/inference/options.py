"""Every number that decides in a fit, each with one line of why.

Tests pass others, and so may users: ``fit(..., options=FitOptions(multi_start=...))``. Numbers of
draws and of the metric belong to what is fitted, and are not among those; nor are
:class:`DrawOptions` and :class:`~ngvi.inference.nuts_options.NutsOptions`, by which a result
decides when it is asked.
"""

from __future__ import annotations

import dataclasses

from ngvi._door import door_of_fields
from ngvi.inference.mixture_options import MixtureOptions
from ngvi.inference.runaway_options import RunawayOptions


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """Groups of draws."""

    #: Dimensions of the cubature on chains, a part of the latents: noise times cost is flat here.
    share_of_latents: float = 1 / 8
    #: ... and at most.
    max_chain_dim: int = 64
    #: Points of degree 5 may be so many times those of degree 3: they have a tenth of the noise.
    quintic_points: float = 2.5
    #: ... in these many dimensions at least.
    quintic_dim: int = 7
    #: Gradients of a group from which on a mean-field run comes first.
    dear_group: int = 200
    #: Minibatches of a pass over all rows, at most: of more, noise costs less.
    max_minibatches: int = 256


@dataclasses.dataclass(frozen=True)
class MetricOptions:
    """The quasi-Newton memory."""

    #: Pairs: near an optimum the metric is nearly the curvature, and a few correct it.
    max_pairs: int = 6
    #: Of a family that leaves out correlations all that is known of these is in the pairs.
    max_pairs_of_mean_field: int = 50
    #: Numbers in all pairs, for the memory's sake.
    max_numbers: int = 20_000_000
    #: A pair counts with this part of the metric's curvature: of flatter ones noise decides.
    min_curvature: float = 1e-3
    #: Directions that a mean field leaves out may be as flat as the prior beside the data.
    min_curvature_of_mean_field: float = 1e-8


@dataclasses.dataclass(frozen=True)
class ParameterOptions:
    """Parameters of the model's own, which have no Fisher metric."""

    #: Pairs: a network's weights have many curvatures.
    metric: MetricOptions = MetricOptions(
        max_pairs=100, max_pairs_of_mean_field=100, min_curvature=1e-8
    )
    #: The root of the mean square of a parameter's first step, in its own units.
    first_step: float = 0.1
    #: A limit grows and shrinks by these factors after steps that were good and that were not, ...
    growth: float = 2.0
    shrinkage: float = 0.25
    #: ... good if this part of the slope is left at its end.
    left: float = 0.25
    #: What one step may change a parameter's metric by.
    most_change: float = 10.0


@dataclasses.dataclass(frozen=True)
class LocalSearchOptions:
    """Maximising a bound from one start."""

    #: Points of the first stage, at least: fewer than these are overfitted by few latents.
    min_points: int = 10
    #: Groups of the last stage, at most.
    max_groups: int = 64
    #: What a first stage leaves, in nats: its draws are few, and far starts need no more.
    coarse_gap: float = 0.25
    #: What a later stage leaves, as a part of the tolerance.
    stage_part: float = 0.125
    #: The first radius of the trust region, ``KL(new || old)`` in nats.
    radius: float = 1.0
    #: The radius after a step at whose end the bound still rises, in lengths of that step, ...
    growth: float = 10.0
    #: ... at most, where slopes are integrated and their secant says how far, ...
    most_growth: float = 1000.0
    #: ... and after one that was refused.
    shrinkage: float = 0.25
    #: A step was too long if the bound falls at its end by this part of what it rose at first.
    turn: float = 0.9
    #: A step may lose this part of its slope, since draws' slopes are exact for the mean only, ...
    slack: float = 0.05
    #: ... and so many nats.
    max_slack: float = 0.25
    #: ... and so many units of rounding.
    rounding_units: float = 32.0
    #: Refused steps in a row that end a stage.
    max_refused: int = 16
    #: Steps that end a stage if they gain less than half of what it is to reach, ...
    stall_steps: int = 20
    #: ... or this part of what is predicted.
    stall_part: float = 1e-3
    #: Steps between looks at the draws that are not learnt from, and at the width.
    check_every: int = 10
    #: The first stage is overfitted if these draws see less than this part of what it gains, ...
    learnt_part: float = 0.1
    #: ... which is so many nats at least; then it begins anew with so many times as many draws.
    min_gain: float = 1.0
    more_draws: int = 4
    #: A pair joins the memory if its step is shorter than this, in nats, both ways, ...
    pair_length: float = 0.3
    #: ... or than that for each so many latents, if it is about as long both ways.
    pair_latents: int = 30
    pair_ratio: float = 1.5
    #: A standard deviation of an unconstrained latent that asks for a check of the prior.
    too_wide: float = 1e7


@dataclasses.dataclass(frozen=True)
class StochasticOptions:
    """Maximising a noisy bound, with fresh draws at every step."""

    #: Groups of a step, at first and at most.
    min_groups: int = 4
    max_groups: int = 32
    #: Signal over noise, below which steps are averaged.
    noisy: float = 0.5
    #: A step size below which more groups are taken.
    short: float = 0.25
    min_step_size: float = 1e-3
    #: Steps that keep what their signals predict if the bound rises by this part of it.
    window: int = 10
    kept_part: float = 0.1
    #: Noisy steps whose signals are averaged, at most.
    max_window: int = 200
    #: Adam's rate for the model's own parameters, and its decrease on a plateau, which is so many
    #: steps.
    parameter_step_size: float = 0.05
    parameter_decay: float = 0.2
    plateau: int = 20
    num_plateaus: int = 3
    #: A step is taken back if it loses so many standard errors, and so many nats on top.
    fall: float = 4.0
    max_fall: float = 1.0
    max_refused: int = 20


@dataclasses.dataclass(frozen=True)
class CertificateOptions:
    """What is left to an optimum."""

    #: Of the upper limit, one-sided, ...
    confidence: float = 0.95
    #: ... and in standard errors.
    caution: float = 1.645
    #: Curvature of the bound along the steps taken, as a part of the metric's, below which further
    #: steps and not a quadratic model say what is left.
    flat: float = 0.3
    #: Latents up to which they do as well: a few draws' curvature is little evidence.
    few_latents: int = 3
    #: Steps over fresh draws, more where Gaussians leave out correlations or the model has
    #: parameters: the first of them find the direction.
    num_steps: int = 4
    num_steps_if_flat: int = 12
    #: Points of these draws at least.
    min_points: int = 32
    #: They end when this part of the tolerance is left, ...
    step_part: float = 1e-3
    #: ... and this part where a direction may be far flatter than the metric says.
    step_part_if_flat: float = 1e-7
    #: Draws whose noise is this part of the tolerance are enough: the gap has it twice.
    noise_part: float = 0.4
    #: How often steps that keep gaining begin anew.
    max_rounds: int = 12


@dataclasses.dataclass(frozen=True)
class MultiStartOptions:
    """Several starts, and the search for other optima."""

    #: Starts of a round, and of the search for others at most: mostly its share ends it before.
    num_starts: int = 8
    max_starts: int = 256
    #: The part of the runs that goes on from each round, with twice the cost.
    keep: float = 0.5
    #: Cost of a run in the first round, in steps.
    first_steps: int = 40
    #: A coarse end so near to the best one, in nats, may lead higher.
    coarse_gap: float = 2.0
    #: Gradients for others beside the share: the shortest run of NUTS. As many for far lower runs.
    exploration_floor: int = 20_000
    #: Without an optimum nothing new begins after this many gradients: four chains of NUTS.
    patience: int = 100_000
    #: Searches with fresh draws at every step, where nothing else helps, may take as many gradients
    #: as everything before them, or this many if that was less.
    persistence_floor: int = 50_000
    #: The probability that as many starts again find a better optimum, at most: eight starts that
    #: have met one optimum are enough, sixteen that have met two, and 32 that have met three.
    unseen: float = 0.125
    #: Bounds within this, in nats, and the noise of both are of one optimum.
    same: float = 0.1
    #: Nats, and nats for each latent, by which a mode may be above the log density at the mean of
    #: a Gaussian that it is inside of, ...
    inside: tuple[float, float] = (2.0, 0.25)
    #: ... and from which on it has hardly any mass, as a funnel's.
    degenerate: tuple[float, float] = (10.0, 0.5)
    #: Lower optima are one if their gaps to the best differ by this part: only heights count.
    alike: float = 0.1
    #: Standard deviations of a draw's squared distance, beyond which a point is outside a Gaussian.
    outside: float = 6.0


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """Where runs begin."""

    #: Standard deviations to try, the first of which is the guide's; raw covariates overflow soon.
    scales: tuple[float, ...] = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    #: Draws of the prior, and points of a box of this half width.
    num_prior: int = 100
    num_box: int = 100
    box: float = 2.0
    #: A prior is another start if a mean is so far from the guide's, or a standard deviation
    #: outside this range.
    far: float = 5.0
    usual_scales: tuple[float, float] = (0.02, 50.0)
    #: Steps of an ascent, and the latents up to which it is in whitened coordinates.
    ascent_steps: int = 100
    max_whitened: int = 500
    #: In whitened coordinates an ascent ends where no slope is above this, in nats.
    ascent_gradient: float = 1e-2
    #: Elsewhere it ends with a step that gains no more than this, in nats.
    ascent_gain: float = 1e-7
    #: Pairs of its memory.
    ascent_pairs: int = 10
    #: Heights of one mode, in nats, differ by so much, or by so many units of rounding.
    same_height: float = 0.1
    rounding_units: float = 4.0
    #: Mean-field steps that come first where a group is dear, and what they leave, in nats.
    mean_field_steps: int = 100
    mean_field_gap: float = 1.0


@dataclasses.dataclass(frozen=True)
class ValidationOptions:
    """What independent draws say of an optimum."""

    #: Draws, at least and at most: half as many as the search took gradients.
    min_draws: int = 200
    max_draws: int = 1000
    #: Standard errors beyond which a contradiction is none by chance, ...
    certain: float = 5.0
    #: ... and within which there may be one: then draws double, to so many.
    likely: float = 2.0
    most_draws: int = 4000
    #: Draws that look for rare losses are so many times as many, one latent stretched in most.
    rare_draws: int = 4
    plain_part: float = 0.25
    stretch: float = 2.5
    max_rare_dim: int = 500
    #: A rare loss worth a word, in nats.
    notable_loss: float = 0.2
    #: It is sure from so many standard errors on, ...
    sure: float = 2.0
    #: ... or as an average of what is never negative: that is twenty times its mean with a
    #: probability of one in twenty at most (Markov's inequality).
    unlikely: float = 20.0
    #: A draw that stands for less than this part of a Gaussian is one that nobody meets.
    never_met: float = 1e-6
    #: A standard error of a bound, in nats, from which on the bound may be anything.
    hardly_known: float = 1.0
    #: This part of the draws makes up most of the variance only if what happens there is rare.
    few_part: float = 0.01
    #: What an integral may be off by, in nats, or in units of rounding.
    of_integral: float = 1e-2
    rounding_units: float = 10.0
    #: Double precision contradicts values that are off by so many nats, and by this part.
    wrong: float = 1.0
    wrong_part: float = 1e-4
    num_in_double: int = 16

    def coarse(self) -> ValidationOptions:
        """The same with the least draws, whatever is in doubt."""
        return dataclasses.replace(self, max_draws=self.min_draws, most_draws=self.min_draws)


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """Draws of a result, as they come; ``sample(corrected=...)`` is the user's choice."""

    #: Latents up to which they are corrected, for the memory's sake.
    max_dim: int = 2000
    #: A part of the posterior at other optima that is worth a word.
    notable_share: float = 0.05


QUICK, THOROUGH = "quick", "thorough"
#: Gradients for other optima per gradient that led to the best one: none; as many, so that twice
#: the time buys the claim; and as many as hard posteriors took before a probability ended them.
EFFORTS = {QUICK: 0.0, "standard": 1.0, THOROUGH: 8.0}


@door_of_fields
@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The numbers by which :func:`fit` decides, for ``options=``: a dataclass for each part of it.

    They are in :mod:`ngvi.inference.options`, each with its reason, and need no change::

        fit(model, X, y, options=FitOptions(multi_start=MultiStartOptions(unseen=0.05)))
    """

    local: LocalSearchOptions = LocalSearchOptions()
    parameters: ParameterOptions = ParameterOptions()
    stochastic: StochasticOptions = StochasticOptions()
    certificate: CertificateOptions = CertificateOptions()
    multi_start: MultiStartOptions = MultiStartOptions()
    starts: StartOptions = StartOptions()
    validation: ValidationOptions = ValidationOptions()
    mixture: MixtureOptions = MixtureOptions()  # noqa: RUF009  it is frozen
    runaway: RunawayOptions = RunawayOptions()  # noqa: RUF009  it is frozen
    #: Locals by their modes come first, and alone where that fit is certified and may miss this
    #: many nats of the evidence.
    mode_centred_miss: float = 2.0
    #: A second fit with locals by their modes is tried where the first may miss so many tolerances
    #: of the evidence: no more can be gained.
    mode_centred_gap: float = 1.0
    #: It is the one that came first, where no mean of a global is so many standard deviations from
    #: the Gaussian's: a Newton step from there comes back.
    mode_centred_near: float = 1.0
