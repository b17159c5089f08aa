"""Checks of an optimum, each with a sentence that says what is wrong and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ngvi.inference.options import LEVELS
from ngvi.inference.search import Context, Status
from ngvi.inference.verdict.certificate import UNKNOWN
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.runaway import runaway
from ngvi.inference.verdict.validation import integrated, rare_loss, unseen_jump


class Finding(NamedTuple):
    """Finding of a check."""

    name: str
    sentence: str  #: What is wrong, and what to try.
    error: float = math.nan  #: Error of the bound, in nats, if it is known to that only.


#: The finding on an optimum for whose checks there was no time.
UNCHECKED = Finding(
    "unchecked",
    "time_limit= is reached at an optimum that has not been checked. Go on with fit(..., "
    "init=result)",
)


Check = Callable[[Context, Optimum], Finding | None]


def support(context: Context, optimum: Optimum) -> Finding | None:
    """Find draws without a density."""
    is_lost = optimum.status is Status.NOISE and optimum.certificate is UNKNOWN
    is_finite = math.isfinite(optimum.validation.bound) and not is_lost
    if context.problem.objective.is_subsampled or is_finite:
        return None
    return Finding(
        "support",
        "at some independent draws of the posterior the log density is not finite, or its "
        "gradient: the likelihood overflows, or a support ends within the range of the latents. "
        "Bound or rescale these, or use double precision",
    )


def precision(context: Context, optimum: Optimum) -> Finding | None:
    """Find single precision that is far off."""
    off = optimum.validation.rounded_up
    if not off:
        return None
    return Finding(
        "precision",
        "single precision is not enough: at draws of this posterior the log density is "
        f"{abs(off):.3g} nats off, for instance because large numbers cancel. Use double "
        "precision (jax.config.update('jax_enable_x64', True), or tensors of torch.float64), or "
        "start elsewhere with init_loc_fn=",
    )


def gradients(context: Context, optimum: Optimum) -> Finding | None:
    """Find values that contradict the gradients."""
    off, at = optimum.validation.mismatch, (context.problem, optimum.state, context.rng)
    if off > context.tolerance:
        how = f"its values at independent draws gain {off:.2g} nats"
    elif off := unseen_jump(*at):
        how = f"between opposite draws it changes by {off:.2g} nats"
    else:
        return None
    return Finding(
        "gradients",
        f"the log density jumps: {how} that its gradients do not show. The model may have a "
        "threshold or a rounding of latents, or cut gradients off. Make it smooth (a sigmoid for a "
        "threshold, a sum over a discrete latent), or go on with result.nuts(), which samples the "
        "posterior itself",
    )


def rare_losses(context: Context, optimum: Optimum) -> Finding | None:
    """Find a bound that a few draws make up, which no validation is sure to meet."""
    known, objective = optimum.validation, context.problem.objective
    options = context.options.validation
    if objective.is_subsampled or objective.rows is not None or not math.isfinite(known.bound):
        return None
    loss = rare_loss(context.problem, optimum.state, context.rng, known, options)
    is_hardly_known = known.is_heavy_tailed and known.error > LEVELS.notable
    if loss < LEVELS.likely * LEVELS.same and not is_hardly_known:
        return None
    error = max(known.error, loss)
    return Finding(
        "rare losses",
        "at a few draws of the posterior the log density is much lower than at all others, and "
        f"the bound is only known to {error:.2g} nats. A support ends within the range of the "
        "latents, or a penalty starts there. Gradients at other draws do not show it, and a "
        "narrower posterior may be better. Make the likelihood fall smoothly there, or bound the "
        "latents",
        error,
    )


def integral(context: Context, optimum: Optimum) -> Finding | None:
    """Find an integrated bound that draws do not confirm; else it is the bound from then on."""
    objective, known = context.problem.objective, optimum.validation
    if not objective.is_exact or not math.isfinite(known.bound):
        return None
    bound, error = integrated(context.problem, optimum.state, context.rng)
    off = abs(bound - known.bound)
    if off <= LEVELS.certain * known.error + error:
        return None
    return Finding(
        "integral",
        f"the integrated bound is {off:.2g} nats off that of independent draws: the log "
        "density is not a sum of smooth terms. Use curvature='spherical'",
    )


def endless(context: Context, optimum: Optimum) -> Finding | None:
    """Find a latent or a parameter on its way to infinity."""
    words = runaway(context.problem, optimum.state, context.tolerance, is_optimum=True)
    return Finding("endless", words) if words else None


#: In this order: the first that finds something is reported.
CHECKS: tuple[Check, ...] = (support, endless, precision, gradients, rare_losses, integral)


def first_finding(context: Context, optimum: Optimum) -> Finding | None:
    """Return what the first check finds that finds something."""
    checks = CHECKS if context.options.checks else (support,)
    return next((found for check in checks if (found := check(context, optimum))), None)
