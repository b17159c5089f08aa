"""NUTS on from a fit: where its chains begin, in which coordinates, and whether to believe them.

The coordinates are those in which the fitted Gaussian is standard normal, with locals by their
modes where the fit has them so: there a step has one length for all latents. Chains begin at draws
that importance weights have corrected, at each optimum as many as its evidence earns, so that a
warm-up has nothing to find; between several they jump afterwards
(:mod:`~ngvi.inference.draws.jumps`). Where the same weights say that the Gaussian is good, the
warm-up adapts the step size only; otherwise the metric as well.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ngvi._warn import warn
from ngvi.errors import check_count, check_flag, is_number
from ngvi.inference.draws.accuracy import LARGEST_R_HAT, Accuracy, flat, labels_of
from ngvi.inference.draws.chains import (
    effective_draws,
    energy_information,
    error_of_stddevs,
    r_hat,
)
from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.pareto import USABLE
from ngvi.inference.draws.proposals import ENOUGH_DRAWS, weighed
from ngvi.inference.estimate import State
from ngvi.inference.problem import Problem
from ngvi.inference.tells import door_with_options_of

#: Draws of each optimum that chains begin at, by their weights.
NUM_DRAWS = 1000
#: The Gaussian is good if weighted standard deviations of whitened latents are in this range: a
#: metric that chains adapt would not be better. Then the best optimum has all but this part of the
#: evidence.
GOOD_STDDEVS, OTHER_OPTIMA = (0.7, 1.4), 0.01
#: Most latents of which chains jump: a factor of each covariance is dense.
MAX_JUMP_DIM = 500
#: Nats below the best bound from which an optimum gets no chain.
FAR_BELOW = 10.0
#: Transitions of a warm-up and acceptance: for the step size alone, and with a metric as in Stan,
#: where curvature changes more.
NUM_WARMUP, ACCEPT_PROB = (150, 500), (0.8, 0.9)
#: Largest part of the transitions that may diverge.
DIVERGENT_PART = 2e-3
#: Smallest E-BFMI of a chain (Betancourt, 2016).
ENERGY_INFORMATION = 0.3
#: Largest relative standard error of a standard deviation: twice as much is a tenth of it.
ERROR_OF_STDDEV = 0.05
#: For a model without a density of all data.
WAY_OUT = (
    "Let the model see all rows, as one without subsample_size= or batches=, and go on with "
    "fit(model, ..., init=result).nuts()."
)


class WhitenedDensity(NamedTuple):
    """A posterior's density where the fitted Gaussian is ``N(0, I)``, for any sampler."""

    dim: int  #: ``d``, the number of coordinates.
    #: Map ``z`` of shape ``(d,)`` or ``(N, d)`` to ``log p(y, theta(z)) + log |d theta / dz|`` in
    #: nats, a scalar or shape ``(N,)``; it can be differentiated.
    log_density: Callable[[Any], Any]
    #: Map ``z`` to the model's sites, constrained, with an axis of draws for shape ``(N, d)``.
    constrain: Callable[[Any], dict[str, Any]]


class NutsRequest(NamedTuple):
    """Arguments of ``nuts``."""

    num_samples: int
    num_warmup: int | None
    num_chains: int
    target_accept_prob: float | None
    progress_bar: bool

    @classmethod
    def checked(cls, *given: Any) -> NutsRequest:
        """Check the arguments, in this order.

        :raises ValueError: for one that cannot be.
        """
        asked = cls(*given)
        check_count(asked.num_samples, "num_samples", 4)
        check_count(asked.num_chains, "num_chains")
        check_flag(asked.progress_bar, "progress_bar")
        if asked.num_warmup is not None:
            check_count(asked.num_warmup, "num_warmup", 0)
        accepted = asked.target_accept_prob
        if accepted is not None and not is_number(accepted, lambda value: 0 < value < 1):
            raise ValueError(
                f"target_accept_prob must be a number between 0 and 1, got {accepted!r}."
            )
        return asked


class NutsPlan(NamedTuple):
    """Starts of chains, and what these adapt."""

    starts: np.ndarray  #: Latent vectors in the guide's coordinates, ``(chains, d)``.
    optimum: np.ndarray  #: Index of each chain's optimum.
    weights: np.ndarray  #: Weights of the optima, by their evidence.
    adapts_metric: bool
    #: Between optima; None of one, or of so many latents that they would cost too much.
    jumps: Jumps | None = None

    def accept_prob(self, asked: float | None) -> float:
        """Return the acceptance that the step size aims at."""
        return ACCEPT_PROB[self.adapts_metric] if asked is None else asked

    def num_warmup(self, asked: int | None) -> int:
        """Return the number of transitions of each chain's warm-up."""
        return NUM_WARMUP[self.adapts_metric] if asked is None else asked


class Chains(NamedTuple):
    """Draws of a PPL's sampler."""

    mcmc: Any  #: The PPL's sampler.
    draws: dict[str, np.ndarray]  #: Latent sites, shape ``(chains, draws, ...)``.
    diverging: np.ndarray  #: Shape ``(chains, draws)``.
    energy: np.ndarray  #: Hamiltonian of each transition, ``(chains, draws)``.
    num_gradients: int  #: Gradients, those of the warm-up included.
    z: np.ndarray | None = None  #: Whitened latent vectors, shape ``(chains, draws, d)``.


def plan(
    problem: Problem,
    states: list[State],
    whiten: Callable[[np.ndarray], np.ndarray],
    num_chains: int,
    rng: np.random.Generator,
) -> NutsPlan:
    """Choose where chains begin.

    :param states: of the optima, the best first.
    :param whiten: from latent vectors to the coordinates of the best.
    :raises ValueError: if the log density is finite at no draw.
    """
    found = [weighed(problem, state, NUM_DRAWS, rng) for state in states]
    evidence = np.array([one.evidence for one in found])
    weights = np.exp(evidence - np.logaddexp.reduce(evidence))
    middles = (np.arange(num_chains) + 0.5) / num_chains
    optimum = np.minimum(np.searchsorted(np.cumsum(weights), middles), len(states) - 1)
    counts = np.bincount(optimum, minlength=len(states))
    pairs = zip(found, counts, strict=True)
    starts = np.concatenate([one.resampled(int(n), rng) for one, n in pairs])
    best = found[0]
    z, w = whiten(best.latents), np.exp(best.log_weights)
    mean = w @ z
    stddevs = np.sqrt(np.maximum(w @ np.square(z - mean), 0.0))
    low, high = GOOD_STDDEVS
    is_good = (
        best.pareto_k < USABLE
        and weights[0] > 1.0 - OTHER_OPTIMA
        and bool(np.all((low < stddevs) & (stddevs < high)))
    )
    heavy = [i for i, weight in enumerate(weights) if weight >= OTHER_OPTIMA]
    jumps = None
    if len(heavy) > 1 and problem.space.dim <= MAX_JUMP_DIM:
        noise = np.vstack([np.zeros(problem.space.dim), np.eye(problem.space.dim)])
        draws = [whiten(problem.space.draw(states[i], noise)[0]) for i in heavy]
        jumps = Jumps.of(weights[heavy] / weights[heavy].sum(), np.stack(draws))
    return NutsPlan(starts, optimum, weights, not is_good, jumps)


@dataclasses.dataclass(frozen=True, eq=False)
class NutsResult:
    """Draws of a posterior by NUTS, with a verdict.

    ``print`` shows both beside the Gaussian of the fit.
    """

    #: The PPL's own ``MCMC``, whose samples are the model's sites, constrained.
    mcmc: Any
    #: Errors of means and standard deviations; ``accuracy.verdict`` is the verdict in a word.
    accuracy: Accuracy
    #: Why, and what to do.
    reason: str
    #: Draws of the latent sites, as numpy arrays of shape ``(chains, draws, ...)``.
    draws: dict[str, np.ndarray]
    #: Gradients of the log density, those of the warm-up among them.
    num_gradients: int
    #: Transitions, after the warm-up, that have diverged.
    num_divergent: int
    #: The largest of all latents, which is near 1 where the chains agree.
    r_hat: float
    #: The smallest of all latents, of how many independent draws they are worth.
    effective_draws: float
    #: Betancourt's fraction of missing information (E-BFMI), of the worst chain.
    energy_information: float
    #: True if the warm-up has adapted the metric, and not the step size only.
    adapts_metric: bool
    #: Optima that the chains have begun at, and their weights by evidence.
    optima: dict[int, float]
    #: The PPL's own statistics of each transition, for ArviZ.
    sample_stats: dict[str, np.ndarray]
    _to_arviz: Callable[..., Any]
    _of_gaussian: Callable[[], dict[str, np.ndarray]]
    #: Latent vectors in the guide's coordinates, shape ``(chains, draws, d)``.
    latents: np.ndarray | None = None

    @functools.cached_property
    def gaussian(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and standard deviation of each latent, by the fit's own draws, by site."""
        draws = self._of_gaussian()
        return {name: (draws[name].mean(0), draws[name].std(0)) for name in self.draws}

    @door_with_options_of("_to_arviz")
    def to_arviz(self, **options: Any) -> Any:
        """Return the draws with their chains, and statistics of transitions, for ArviZ.

        All that the fit's own ``to_arviz`` has is there as well.

        :param options: of that, such as ``log_likelihood=False`` and ``coords=``.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        """
        return self._to_arviz(self, **options)

    def __repr__(self) -> str:
        chains, count = self.sample_stats["diverging"].shape
        return (
            f"NutsResult({self.accuracy.verdict}: {chains} chains of {count} draws, "
            f"R-hat {self.r_hat:.3f}, {self.effective_draws:,.0f} effective draws)"
        )

    def __str__(self) -> str:
        return _report(self)


def judged(
    chains: Chains,
    plan: NutsPlan,
    of_gaussian: Callable[[], dict[str, np.ndarray]],
    to_arviz: Callable[..., Any],
) -> NutsResult:
    """Judge chains; warn where they are not to be trusted.

    :param of_gaussian: gives draws of the fitted Gaussian by site.
    """
    stats = flat(chains.draws, 2)
    hats, worth = r_hat(stats), effective_draws(stats)
    worst, least = float(hats.max()), float(worth.min())
    energy = energy_information(chains.energy)
    divergent = int(chains.diverging.sum())
    faults = _faults(chains, plan, worst, least, energy)
    accuracy = Accuracy.of_chains(chains.draws, "; ".join(faults))
    reason = "; ".join(faults) or (
        f"chains agree (R-hat {worst:.3f}), {least:,.0f} effective draws at least, {divergent} "
        f"divergences, E-BFMI {energy:.2f}"
    )
    if faults:
        warn(f"The draws of these chains are doubtful: {reason}.")
    used = {int(i): float(plan.weights[i]) for i in np.unique(plan.optimum)}
    return NutsResult(
        mcmc=chains.mcmc,
        accuracy=accuracy,
        reason=reason,
        draws=chains.draws,
        num_gradients=chains.num_gradients,
        num_divergent=divergent,
        r_hat=worst,
        effective_draws=least,
        energy_information=energy,
        adapts_metric=plan.adapts_metric,
        optima=used,
        sample_stats={"diverging": chains.diverging, "energy": chains.energy},
        _to_arviz=to_arviz,
        _of_gaussian=of_gaussian,
    )


def _faults(chains: Chains, plan: NutsPlan, worst: float, least: float, energy: float) -> list[str]:
    faults, count = [], chains.diverging.size
    divergent = int(chains.diverging.sum())
    if divergent > DIVERGENT_PART * count:
        faults.append(
            f"{divergent} of {count} transitions have diverged, so that a narrow part of the "
            "posterior is left out: take target_accept_prob=0.95, and have locals standardised "
            "(noncentred), or by their modes, as fit does unasked"
        )
    if not worst <= LARGEST_R_HAT:
        several = len(np.unique(plan.optimum)) > 1
        why = (
            "they have begun at several optima and hardly jump between them: the weights of these "
            "are those of their evidence, to one chain; take more num_chains="
            if several
            else "take a longer num_warmup= and num_samples=, or fit(effort='thorough'), which "
            "looks for other optima"
        )
        faults.append(f"the chains do not agree (R-hat {worst:.2f}): {why}")
    elif not least >= ENOUGH_DRAWS:
        more = _more(chains.diverging.shape[1] * ENOUGH_DRAWS / max(least, 1.0))
        faults.append(
            f"there are {least:,.0f} effective draws of the slowest latent, too few for an "
            f"interval: take num_samples={more:,}"
        )
    else:
        errors = error_of_stddevs(flat(chains.draws, 2))
        if (error := float(errors.max())) > ERROR_OF_STDDEV:
            more = _more(chains.diverging.shape[1] * (error / ERROR_OF_STDDEV) ** 2)
            labels = labels_of(chains.draws, 2)
            faults.append(
                f"the standard deviation of {labels[int(errors.argmax())]} has an error "
                f"of {100 * error:.0f} %, as a heavy tail's: take num_samples={more:,}"
            )
    if not energy >= ENERGY_INFORMATION:
        faults.append(
            f"the energy changes too slowly (E-BFMI {energy:.2f}), as in a funnel or a heavy tail: "
            "have locals standardised (noncentred), or by their modes, as fit does unasked"
        )
    return faults


def _more(just_enough: float) -> int:
    """Return the number of draws of a chain that would be enough, to two digits."""
    wanted = 1.2 * just_enough
    digits = max(int(math.log10(wanted)) - 1, 0)
    return math.ceil(wanted / 10**digits) * 10**digits


def _report(found: NutsResult, num_shown: int = 12) -> str:
    chains, count = found.sample_stats["diverging"].shape
    adapted = "step size and metric" if found.adapts_metric else "step size"
    begun = ""
    if len(found.optima) > 1:
        parts = (f"{i} (weight {weight:.2f})" for i, weight in found.optima.items())
        begun = f", begun at optima {', '.join(parts)}"
    lines = [
        f"NutsResult: {found.accuracy.verdict}, {chains} chains of {count:,} draws{begun}",
        f"  {found.reason}",
        f"  {found.num_gradients:,} gradients; the warm-up has adapted {adapted}",
        f"  {'':<22}{'mean':>12}{'sd':>12}{'Gaussian mean':>15}{'sd':>12}",
    ]
    rows, labels = [], iter(labels_of(found.draws, 2))
    for name, values in found.draws.items():
        flat = values.reshape(-1, *values.shape[2:])
        mean, sd = flat.mean(0), flat.std(0)
        known = found.gaussian[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.abs(known[0] - mean) / sd + np.abs(np.log(known[1] / sd))
        gap = np.where(np.isfinite(gap), gap, -1.0)
        for at in np.ndindex(mean.shape):
            rows.append((gap[at], next(labels), mean[at], sd[at], known[0][at], known[1][at]))
    rows.sort(key=lambda row: -row[0])
    for _, label, *numbers in rows[:num_shown]:
        a, b, c, d = (f"{number:.4g}" for number in numbers)
        lines.append(f"  {label:<22}{a:>12}{b:>12}{c:>15}{d:>12}")
    if len(rows) > num_shown:
        lines.append(f"  ... of {len(rows):,} those that the Gaussian has least right")
    return "\n".join(lines)
