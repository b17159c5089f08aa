"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi._docs import shared_doc
from ngvi._lock import serialised
from ngvi.errors import check_model
from ngvi.inference import api
from ngvi.inference import set_up as shared
from ngvi.inference.batches import Batches
from ngvi.inference.checkpoint import Checkpoint
from ngvi.inference.data_passes import over_batches
from ngvi.inference.diagnostics import undefined
from ngvi.inference.mode_centred import check_reparametrize, is_worthwhile, tried
from ngvi.inference.options import FitOptions
from ngvi.inference.outcome import Outcome
from ngvi.inference.page import FIT
from ngvi.inference.problem import Problem
from ngvi.inference.request import Request, check_same_latents, check_start, warn_of_names
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.guide.checks import check_key
from numpyro_ngvi.inference.importance import gaussians
from numpyro_ngvi.inference.result import FitResult
from numpyro_ngvi.inference.set_up import STARTS, set_up
from numpyro_ngvi.parallel.watch import count_step, watch_those_of, without_leaving
from numpyro_ngvi.tracing.arguments import typed_key
from numpyro_ngvi.tracing.compilation import compiled


@serialised
@shared_doc(FIT)
def fit(
    model: Callable,
    *args: Any,
    family: str | type[Family] | Family = "auto",
    guide: Any = None,
    init: FitResult | None = None,
    init_loc_fn: Callable | None = None,
    create_plates: Callable | None = None,
    reparametrize: bool | str = "auto",
    curvature: str = "auto",
    tolerance: float = 0.05,
    max_steps: int = 1000,
    exploration: float = 1.0,
    deterministic: bool = False,
    time_limit: float = math.inf,
    callback: Callable | None = None,
    checkpoint: str | PathLike | None = None,
    progress_bar: bool = True,
    batches: Any = None,
    options: FitOptions | None = None,
    rng_key: jax.Array | None = None,
    **kwargs: Any,
) -> FitResult:
    """Others of the examples go on from this one, whose posterior is ``N(1.99, 0.58^2)``.

    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> y = jnp.array([1.0, 2.0, 3.0])
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> result = fit(model, y, progress_bar=False)
    >>> q = result.posterior
    >>> result.converged, f"{q.mean[0]:.2f} ± {q.variance[0]**0.5:.2f}"
    (True, '1.99 ± 0.58')
    >>> result.sample(500)["mean"].shape
    (500,)

    :param rng_key: a JAX random key; by default ``jax.random.key(0)``.
    :raises TypeError: inside ``jax.jit``, ``jax.vmap`` and ``jax.grad``.
    """
    start_time = time.perf_counter()
    given = dict(locals())
    if batches is not None:
        batches = Batches(batches, args, kwargs, _with_numpy)
        args, kwargs = batches.first()
    request = Request(
        tolerance,
        max_steps,
        exploration,
        deterministic,
        progress_bar,
        time_limit,
        callback,
        options or FitOptions(),
    )
    check_model(model)
    warn_of_names(fit, model, args, given)
    check_start(FitResult, family, guide, init, init_loc_fn, create_plates)
    reparametrize = check_reparametrize(given)
    rng_key = random.key(0) if rng_key is None else typed_key(check_key(rng_key))
    init_key, seeds, result_key = _keys(rng_key)
    _check_numbers(args, {"rng_key": seeds, **kwargs})
    _check_processes((args, kwargs), time_limit, checkpoint)
    kept = None
    if checkpoint is not None:
        own = np.asarray(seeds).tolist()
        kept = Checkpoint(checkpoint, FitResult.library, own, keeps_seeds=True)

    make_guide = shared.guide_maker(NaturalGaussianGuide, family, init, create_plates)
    starts = STARTS if init_loc_fn is None else (init_loc_fn,)
    ready = set_up(model, args, kwargs, guide, make_guide, starts, init_key, curvature)
    shared.check_size(gaussians(ready.guide), family, guide, init)
    problem = ready.problem if batches is None else over_batches(ready.problem, batches)
    if not ready.has_start:
        outcome = api.no_start(problem)
    else:
        state = None
        if init is not None:
            check_same_latents(init, gaussians(ready.guide))
            state = problem.space.restored(init.params)
        elif guide is not None:
            state = problem.space.initial
        rng = np.random.default_rng(0 if deterministic else np.asarray(seeds))

        def search(problem: Problem, state: Any, num_steps: int = 0) -> Outcome:
            return api.optimise(problem, rng, request, state, kept, num_steps)

        def by_modes(mean: np.ndarray) -> shared.Ready:
            def make(model: Callable, init_loc_fn: Callable) -> NaturalGaussianGuide:
                options: Any = {"init_loc_fn": init_loc_fn, "init_scale": shared.INIT_SCALE}
                return ReparametrizedGaussianGuide(model, **options).begun_at(mean)

            return set_up(ready.model, args, kwargs, None, make, starts, init_key)

        with kept or without_leaving():
            outcome = search(problem, state)
            if is_worthwhile(reparametrize, ready, outcome, tolerance, request.options):
                insists = reparametrize is True
                ready, outcome = tried(ready, outcome, by_modes, search, rng, insists)
        problem = ready.problem if batches is None else problem
    result = FitResult(
        model=ready.model,
        args=args,
        kwargs=kwargs,
        guide=ready.guide,
        params=problem.space.params(outcome.optimum.state),
        optima=api.found_optima(outcome, problem.space),
        rng_key=result_key,
        **api.account(outcome, problem, request, start_time, ready.error, gaussians(ready.guide)),
    )
    if batches is not None:
        vars(result)["diagnostics"] = undefined("undefined: the rows came in batches")
    return result


def _with_numpy(batch: Any) -> Any:
    """A batch with numpy's arrays in place of torch's, for instance."""

    def converted(leaf: Any) -> Any:
        is_foreign = hasattr(leaf, "__array__") and not isinstance(leaf, jax.Array)
        return np.asarray(leaf) if is_foreign else leaf

    return jax.tree.map(converted, batch)


def _check_numbers(args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that JAX traces.

    :raises TypeError: naming them.
    """
    traced = shared.in_arguments(args, kwargs, _is_traced)
    if traced:
        raise TypeError(
            f"fit decides on numbers as it goes, and jax.jit, jax.vmap or jax.grad traces its "
            f"{traced}. Call it outside, once for each element; a fit compiles what it can."
        )


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


@partial(compiled, runs_once=True)
def _keys(rng_key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For the guide, for numpy's draws, and for the result."""
    init_key, draw_key, result_key = random.split(rng_key, 3)
    return init_key, random.bits(draw_key, (4,), jnp.uint32), result_key


def _check_processes(arguments: Any, time_limit: float, checkpoint: Any) -> None:
    """Refuse what would let the processes of ``jax.distributed`` decide differently.

    :raises ValueError: naming the argument.
    """
    if not watch_those_of(arguments):
        return
    count_step()
    given = {"time_limit": not math.isinf(time_limit), "checkpoint": checkpoint is not None}
    for name in given:
        if given[name]:
            raise ValueError(
                f"{name}= is not for data on several processes, which must all take the same "
                "decisions: their clocks differ, and so may the ends of their files. Leave it out; "
                "max_steps= ends a fit, and init= goes on from a result."
            )
