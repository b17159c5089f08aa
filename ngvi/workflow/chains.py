"""Chains of NUTS that go on from a result, and draws of either kind for ArviZ."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ngvi.inference.draws import nuts
from ngvi.inference.draws.drawn import check_density
from ngvi.inference.draws.nuts import NutsRequest, NutsResult
from ngvi.inference.hooks import SAMPLE
from ngvi.inference.posterior import to_numpy
from ngvi.inference.problem import Problem
from ngvi.workflow import arviz


def by_nuts(result: Any, request: NutsRequest, options: dict[str, Any]) -> NutsResult:
    """Return draws of NUTS that begins at a result; see ``nuts``."""
    seed, run = result._ppl.sampler(result, request, **options)
    density = result.whitened_density()
    with result._at_end() as (problem, state):
        rng, whiten = np.random.default_rng(seed), functools.partial(_whitened, result.family)
        states = states_of(result, problem, state)
        plan = nuts.plan(problem, states, whiten, request.num_chains, rng)
        spent = problem.objective.cost
    chains = run(density, whiten(plan.starts), plan, plan.num_warmup(request.num_warmup))
    own = result.family.ops.tensor(chains.z, result.family.loc)
    shape = chains.z.shape
    latents = to_numpy(result.family.sample(own.reshape(-1, shape[-1]))).reshape(shape)
    total = chains.num_gradients + math.ceil(spent.total)

    def gaussian() -> dict[str, np.ndarray]:
        key = result._ppl.key(result, SAMPLE)
        draws = result._ppl.draws(result, 2000, key)
        return {name: to_numpy(value) for name, value in draws.items()}

    to_arviz = functools.partial(_of_chains, result)
    found = nuts.judged(chains._replace(num_gradients=total), plan, gaussian, to_arviz)
    return dataclasses.replace(found, latents=latents)


def check_whitened(result: Any) -> None:
    """Refuse a posterior that the model with its arguments does not have.

    :raises ValueError: saying what to do.
    """
    if result.change is not None:
        raise ValueError(
            "NUTS and whitened_density() run the model as it is, and to this posterior rows were "
            "added, or left out: fit all rows."
        )
    with result._at_end() as (problem, _):
        check_density(result, problem, "whitened_density()", nuts.WAY_OUT)


def states_of(result: Any, problem: Problem, state: Any) -> list[Any]:
    """Return the fit's own state, and those of optima that may hold a part of the posterior."""
    optima = result.optima
    if problem.space.has_model_parameters:
        return [state]  # others are optima with other parameters of the model
    others = [optimum for optimum in optima[1:] if optimum.bound > optima[0].bound - nuts.FAR_BELOW]
    return [state, *(result._ppl.state_of(problem, optimum.params) for optimum in others)]


def _whitened(family: Any, latents: np.ndarray) -> np.ndarray:
    return to_numpy(family.whiten(family.ops.tensor(latents, family.loc)))


def _of_chains(
    result: Any,
    found: NutsResult,
    *,
    log_likelihood: bool = True,
    predictive: bool = True,
    prior: bool = True,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    wanted = {"log_likelihood": log_likelihood, "predictive": predictive, "prior": prior}
    stats = {name: _joined(value) for name, value in found.sample_stats.items()}
    draws = {name: result._files.own(_joined(value)) for name, value in found.draws.items()}
    of_nuts = {"nuts": f"{found.accuracy.verdict}: {found.reason}"}
    own = {"num_chains": len(found.sample_stats["diverging"]), "sample_stats": stats}
    return for_arviz(result, draws, wanted, coords, dims, of_nuts, **own)


def for_arviz(
    result: Any,
    draws: dict[str, Any],
    wanted: dict[str, bool],
    coords: Mapping[str, Sequence] | None,
    dims: Mapping[str, Sequence[str]] | None,
    attrs: Mapping[str, Any] = MappingProxyType({}),
    **own: Any,
) -> Any:
    """Return draws, and what the model says at them, for ArviZ.

    :param attrs: of the group ``posterior``, besides.
    :param own: further groups.
    """
    groups, left_out = result._ppl.groups(result, draws, wanted)
    known = arviz.constant_data(result.model, result.args, result.kwargs, groups.observed)
    posterior = {name: to_numpy(value) for name, value in draws.items()}
    constant = {k: v for k, v in known.items() if k not in posterior}
    attrs = {
        "inference_library": result._ppl.library,
        "bound": result.bound,
        "reason": result.reason,
        **attrs,
    }
    if left_out:
        attrs["left_out"] = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    sites = [site for part in result._gaussians() for site in part.sites]
    groups = groups._replace(posterior=posterior, constant_data=constant, **own)
    return arviz.inference_data(groups, sites, attrs, coords, dims)


def _joined(chains: np.ndarray) -> np.ndarray:
    """Return chains one after another."""
    return chains.reshape(-1, *chains.shape[2:])
