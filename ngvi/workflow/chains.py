"""Chains of NUTS that go on from a result, draws for ArviZ, and whether the model has changed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ngvi._door import Function
from ngvi._lock import serialised
from ngvi._warn import warn
from ngvi.inference.arguments import AUTO, CORRECTED, GAUSSIAN
from ngvi.inference.draws import nuts
from ngvi.inference.draws.conditions import check_density
from ngvi.inference.draws.going_on import MOST_GRADIENTS, USUAL_GRADIENTS, price_of_chains
from ngvi.inference.draws.nuts import NutsResult, WhitenedDensity
from ngvi.inference.draws.sampler import NutsRequest
from ngvi.inference.estimate import State
from ngvi.inference.monitor import LOGGER
from ngvi.inference.options import LEVELS
from ngvi.inference.posterior import to_numpy
from ngvi.inference.problem import Problem
from ngvi.inference.tells import unhandled
from ngvi.inference.verdict.validation import height
from ngvi.workflow import arviz
from ngvi.workflow.arviz import Labels


def by_nuts(result: Any, request: NutsRequest, key: Any) -> NutsResult:
    """Return draws of NUTS that begins at a result; see ``nuts``."""
    check_whitened(result)
    LOGGER.info("nuts: about %s", price_of_chains(result, (USUAL_GRADIENTS, MOST_GRADIENTS)))
    found = nuts.run_until(result, result._ppl.seed_of(key), request=request)
    if not found.accuracy.is_accurate:
        warn(f"The draws of these chains are doubtful: {found.accuracy.words}.")
    return found


def whitened(result: Any) -> WhitenedDensity:
    """Return the density of a result, whose functions run the model: they wait as its methods."""
    check_whitened(result)
    dim, *functions = result._ppl.whitened_density(result)
    return WhitenedDensity(dim, *map(serialised, functions))


def was_corrected(sample: Function) -> Function:
    """Take ``corrected=``, an argument of earlier versions, with the sentence of its end."""

    @functools.wraps(sample)
    def called(result: Any, *args: Any, **kwargs: Any) -> Any:
        if "corrected" in kwargs:
            asked = {True: CORRECTED, False: GAUSSIAN}.get(kwargs.pop("corrected"), AUTO)
            warn(f"sample(corrected=) ends with 0.5: write result.with_draws({asked!r}).sample().")
            result = result if asked == result._draws else result.with_draws(asked)
        return sample(result, *args, **kwargs)

    return called  # type: ignore[return-value]


def check_whitened(result: Any) -> None:
    """Refuse a posterior that the model with its arguments does not have.

    :raises ValueError: saying what to do.
    """
    if result.change is not None:
        raise ValueError(
            "NUTS and whitened_density() run the fitted model, and this posterior has rows added "
            "or left out: fit all rows, or take with_draws('nuts')."
        )
    with result._at_end() as (problem, _):
        check_density(result, problem, "whitened_density()", nuts.WAY_OUT)
    result.family.log_det_scale()  # which a mixture does not have


@unhandled
def chains_for_arviz(
    result: Any,
    found: NutsResult,
    *,
    log_likelihood: bool = True,
    predictive: bool = True,
    prior: bool = True,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Return chains that go on from a result; see ``NutsResult.to_arviz``."""
    wanted = {"log_likelihood": log_likelihood, "predictive": predictive, "prior": prior}
    stats = {name: _joined(value) for name, value in found.sample_stats.items()}
    draws = {name: result._files.own(_joined(value)) for name, value in found.draws.items()}
    of_nuts, labels = f"{found.verdict}: {found.accuracy.words}", Labels(coords or {}, dims or {})
    own = {"num_chains": len(found.sample_stats["diverging"]), "sample_stats": stats}
    return for_arviz(result, draws, wanted, labels, of_nuts, **own)


def for_arviz(
    result: Any, draws: dict, wanted: dict, labels: Labels, of_nuts: str = "", **own: Any
) -> Any:
    """Return draws, and what the model says at them, for ArviZ.

    :param of_nuts: words for the chains of NUTS that have made them, if any.
    :param own: further groups.
    """
    warn_if_other(result)
    groups, left_out = result._ppl.groups(result, draws, wanted)
    known = arviz.constant_data(result.model, result.args, result.kwargs, groups.observed)
    posterior = {name: to_numpy(value) for name, value in draws.items()}
    constant = {k: v for k, v in known.items() if k not in posterior}
    attrs = {"bound": result.bound, "reason": result.reason}
    attrs["inference_library"] = result._ppl.library
    if of_nuts:
        attrs["nuts"] = of_nuts
    if left_out:
        attrs["left_out"] = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    sites = [site for part in result._gaussians() for site in part.sites]
    groups = groups._replace(posterior=posterior, constant_data=constant, **own)
    data = arviz.inference_data(groups, sites, labels)
    data["posterior"].attrs.update(attrs)
    return data


def _joined(chains: np.ndarray) -> np.ndarray:
    """Return chains one after another."""
    return chains.reshape(-1, *chains.shape[2:])


def warn_if_other(result: Any) -> None:
    """Warn if the model is another one than at the fit, where that is known."""
    if result.validation is not None and np.isfinite(result.validation.height):
        with result._at_model():
            pass


def warn_if_stale(result: Any, problem: Problem, state: State) -> None:
    """Warn if the log density at the posterior's mean is another one than at the fit."""
    known = result.validation
    if known is None or math.isnan(known.height):
        return
    now = height(problem, state)
    off = LEVELS.same + LEVELS.rounding_units * problem.rounding(known.height)
    if not abs(now - known.height) <= off:
        warn(
            f"The log density at the posterior's mean is {now:,.2f} nats, and at the fit it was "
            f"{known.height:,.2f}: the data, or what the model reads besides them, have changed "
            "since. Fit again, or give the result what it was fitted to."
        )
