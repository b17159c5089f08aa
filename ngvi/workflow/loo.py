"""Leave-one-out predictive densities by subtracting sites.

The *cavity*, the posterior without a row, has the natural parameters of the posterior minus those
of the row's site. A large change also changes the sites of the other rows, so natural-gradient
steps without the row follow. The density of the row under the cavity is an integral over its one or
two predictors, by quadrature. For rows without such predictors, and for units of several elements,
importance weights of the posterior's draws are usually enough (PSIS-LOO; Vehtari, Gelman and Gabry,
2017). If k-hat is too large, draws of the cavity are used, and then steps from the cavity.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.inference.draws.pareto import USABLE
from ngvi.inference.options import LEVELS
from ngvi.workflow.cavities import MOST_LEVERAGE, Cavities, cavity_of, log_ratio_without
from ngvi.workflow.expected import PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.loo_draws import PosteriorDraws, noise, num_draws, psis_of
from ngvi.workflow.loo_steps import Clock, gradients_of_steps, steps_without
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units

SUBTRACTION, WEIGHTS, STEPS = "subtraction", "weights", "steps"
IMPROPER, MASKED = "improper", "masked"


@dataclasses.dataclass(eq=False)
class Pointwise:
    """Predictive densities by unit, each of shape ``(R,)``."""

    elpd: np.ndarray  #: Log predictive density of the unit given all others, in nats.
    lpd: np.ndarray  #: Log predictive density given all units.
    #: Reliability on the scale of Pareto's k, up to 0.7: leverage of a row that was subtracted,
    #: what steps have left in nats, or k-hat of importance weights; beyond 0.7 also where a row
    #: moves its predictors by more than two standard deviations of what the others leave.
    reliability: np.ndarray
    leverage: np.ndarray  #: The part of the posterior's precision that is the unit's, at most 1.
    #: ``"subtraction"``, ``"weights"``, ``"steps"`` or ``"improper"``; ``"masked"`` of what is no
    #: observation, and has the density 0.
    how: np.ndarray
    psis: np.ndarray  #: Log predictive densities by PSIS-LOO; NaN where there are too few draws.
    psis_k: np.ndarray  #: K-hat of these.


def leave_out(
    target: Target, q: DenseGaussian, units: Units, clock: Clock | None = None
) -> Pointwise:
    """Return leave-one-out densities for every unit.

    :param clock: when it is over, no unit gets steps any more.
    """
    clock = clock or Clock()
    if units.are_single and target.predictors is not None:
        found = _single(target, q, PredictorSites.under(target.predictors, q), units, clock)
    else:
        found = _joint(target, q, units, clock)
    found.how[~units.observed(target.rows.is_masked)] = MASKED
    return found


# -- one element each, by quadrature -------------------------------------------------------


def _single(
    target: Target, q: DenseGaussian, sites: PredictorSites, units: Units, clock: Clock
) -> Pointwise:
    order, predictors = np.argsort(units.of_element), sites.predictors
    cavity = Cavities.of(sites, q, target.weights)
    is_proper, leverage = cavity.is_proper, cavity.leverage
    reliability = np.where(is_proper, leverage, np.inf)
    how = np.where(is_proper, SUBTRACTION, IMPROPER).astype(object)
    means, covariances = cavity.means.copy(), cavity.covariances.copy()
    large = _to_refit(is_proper, leverage, cavity.shift)
    if target.prior.is_by_points:  # whose gradients are the model's
        large = large[: clock.num_units(gradients_of_steps(q))]
    without = [np.array([element]) for element in large]
    for element, steps in zip(large, steps_without(target, q, without, clock), strict=True):
        if steps is not None:
            own = predictors.of(element)
            means[:, element], spreads = (part[:, 0] for part in own.under(steps.q))
            covariances[..., element] = spreads @ spreads.T
            reliability[element], how[element] = steps.left, STEPS
    is_known = how != IMPROPER
    sizes, axes = np.linalg.eigh(np.moveaxis(np.where(is_known, covariances, 0.0), -1, 0))
    sds = np.sqrt(np.maximum(sizes, 0.0))
    spreads = np.moveaxis(axes * sds[:, None], 1, 0)
    # The tail of a Gaussian, over which the integral then is, need not be that of the posterior.
    moved = np.einsum("mpk,pm->mk", axes, sites.means - means)
    distance = np.linalg.norm(np.divide(moved, sds, np.zeros_like(sds), where=sds > 0), axis=1)
    reliability = np.maximum(reliability, USABLE / LEVELS.likely * distance)
    elpd = np.where(is_known, predictors.log_mean(means, spreads), np.nan)
    lpd = predictors.log_mean(sites.means, sites.spreads)
    psis, psis_k = np.full((2, units.count), np.nan)
    if (count := num_draws(target)) == DEFAULTS.num_joint:  # or they would take too much memory
        values = target.log_likelihood(q.sample(noise(q.dim, count, 0)))
        psis, psis_k = psis_of(units.sums(values), -units.sums(target.counted(values)))
    by_unit = [one[order] for one in (elpd, lpd, reliability, leverage, how)]
    return Pointwise(*by_unit, psis, psis_k)  # type: ignore[call-arg]


def _to_refit(is_proper: np.ndarray, leverage: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the units for which subtraction is not enough, the most influential first."""
    large = (leverage > DEFAULTS.max_leverage) | (shift > DEFAULTS.max_shift) | ~is_proper
    ranked = np.argsort(-np.where(is_proper, leverage, np.inf), kind="stable")
    return ranked[large[ranked]][: DEFAULTS.max_refits]


# -- several elements together, by importance sampling --------------------------------------


def _joint(target: Target, q: DenseGaussian, units: Units, clock: Clock) -> Pointwise:
    draws = PosteriorDraws.of(target, q, units, clock.num_draws)
    sites = draws.sites
    psis, psis_k = psis_of(draws.of_units, draws.log_weights[:, None] - draws.counted)
    reliability, how = psis_k.copy(), np.full(units.count, WEIGHTS, object)
    elpd, leverage = np.empty((2, units.count))
    left_out = [units.elements(unit) for unit in range(units.count)]
    for unit, elements in enumerate(left_out):
        leverage[unit], log_ratio = log_ratio_without(target, q, sites, elements, draws.theta)
        elpd[unit] = psis[unit] if log_ratio is None else draws.without(unit, log_ratio)
    for word, price in ((SUBTRACTION, draws.gradients), (STEPS, gradients_of_steps(q))):
        hard = np.argsort(-reliability, kind="stable")
        hard = hard[~(reliability[hard] <= USABLE)][: clock.num_units(price)]
        some = [left_out[unit] for unit in hard]
        cavities = [cavity_of(target, q, sites, elements) for elements in some]
        if word == STEPS:
            starts = [cavity or q for cavity in cavities]
            steps = steps_without(target, q, some, clock, starts)
            cavities = [None if one is None else one.q for one in steps]
        for unit, cavity in zip(hard, cavities, strict=True):
            if cavity is not None and not clock.is_over:
                found, shape = draws.under(target, q, cavity, unit, left_out[unit])
                if not reliability[unit] <= shape:
                    elpd[unit], reliability[unit], how[unit] = found, shape, word
        clock = clock._replace(gradients=clock.gradients - len(hard) * price)
    is_lost = ~(reliability <= USABLE) & ~(leverage < MOST_LEVERAGE) & (how == WEIGHTS)
    elpd[is_lost], reliability[is_lost], how[is_lost] = np.nan, np.inf, IMPROPER
    return Pointwise(elpd, draws.lpd(), reliability, leverage, how, psis, psis_k)
