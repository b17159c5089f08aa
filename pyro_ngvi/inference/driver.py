"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from torch._C._functorch import maybe_current_level

from ngvi._docs import shared_doc
from ngvi._lock import serialised
from ngvi.errors import check_model
from ngvi.inference import api
from ngvi.inference import set_up as shared_set_up
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
from pyro_ngvi.families.base import Family
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.guide.checks import check_graph
from pyro_ngvi.inference.importance import gaussians
from pyro_ngvi.inference.result import FitResult
from pyro_ngvi.inference.set_up import STARTS, forget_others, set_up, store_as_it_was
from pyro_ngvi.inference.workers import shared
from pyro_ngvi.parallel.workers import Workers
from pyro_ngvi.tracing.messengers import check_gradients, repeatable_noise


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
    process_group: Any = None,
    **kwargs: Any,
) -> FitResult:
    """Others of the examples go on from this one, whose posterior is ``N(1.99, 0.58^2)``.

    >>> import pyro, pyro.distributions as dist, torch
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> result = fit(model, y, progress_bar=False)
    >>> q = result.posterior
    >>> result.converged, f"{q.mean[0]:.2f} ± {q.variance[0]**0.5:.2f}"
    (True, '1.99 ± 0.58')
    >>> result.sample(500)["mean"].shape
    torch.Size([500])

    The parameter store holds the fitted parameters afterwards, as after ``SVI``; the model's own
    start from the values that they have in it. The guide that ``fit`` makes starts anew: values of
    the same names in the store, which another guide of its class left there, are replaced, and
    survive in the result of the fit that they come from. The random numbers follow
    ``pyro.set_rng_seed``; a fit takes four of torch's, and none if it is ``deterministic``.

    :param process_group: of ``torch.distributed``, whose workers all make this call, each with its
        own rows in a plate that says how many there are in all, ``pyro.plate("data",
        num_rows_of_all, subsample=own_rows)``. The first one searches, with the random numbers,
        progress bar, checkpoint and callback that it was given; all get the result. See
        :class:`~pyro_ngvi.parallel.DataParallel`.
    :raises RuntimeError: inside ``torch.inference_mode``, ``torch.vmap`` and ``torch.func``.
    """
    start_time = time.perf_counter()
    given = dict(locals())
    if batches is not None:
        batches = Batches(batches, args, kwargs)
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
    _check_gradients()
    seeds = [0] if deterministic else torch.randint(2**32, (4,), device="cpu").tolist()
    if batches is not None and process_group is not None:
        raise ValueError("batches= and process_group= do not go together: take one of them.")
    workers = None if process_group is None else Workers(process_group)
    kept = None
    if checkpoint is not None and (workers is None or workers.rank == 0):
        kept = Checkpoint(checkpoint, FitResult.library, seeds)
        seeds = kept.seeds
    if workers is not None:
        seeds = workers.object_of_first(seeds)

    make_guide = shared_set_up.guide_maker(NaturalGaussianGuide, family, init, create_plates)
    starts = STARTS if init_loc_fn is None else (init_loc_fn,)
    with repeatable_noise(), poutine.block(), store_as_it_was() as keep:

        def make_ready() -> shared_set_up.Ready:
            ready = set_up(model, args, kwargs, guide, make_guide, starts, seeds[0], curvature)
            shared_set_up.check_size(gaussians(ready.guide), family, guide, init)
            if init is not None:
                check_same_latents(init, gaussians(ready.guide))
            facts = ready.problem.objective._plan.facts
            plain = not (facts.is_subsampled or facts.is_stochastic or facts.is_enumerated)
            if ready.has_start and plain:
                check_graph(ready.model, ready.guide, args, kwargs)
            return ready

        ready = make_ready() if workers is None else shared(make_ready, workers)
        problem = ready.problem if batches is None else over_batches(ready.problem, batches)
        if not ready.has_start:
            outcome = api.no_start(problem)
        else:
            state = None
            if init is not None:
                state = problem.space.restored(init.params)
            elif guide is not None:
                state = problem.space.initial
            rng = np.random.default_rng(0 if deterministic else seeds)
            keep()

            def search(problem: Problem, state: Any, num_steps: int = 0) -> Outcome:
                return api.optimise(problem, rng, request, state, kept, num_steps)

            def by_modes(mean: np.ndarray) -> shared_set_up.Ready:
                def make(model: Callable, init_loc_fn: Callable) -> NaturalGaussianGuide:
                    options: Any = {
                        "init_loc_fn": init_loc_fn,
                        "init_scale": shared_set_up.INIT_SCALE,
                    }
                    return ReparametrizedGaussianGuide(model, **options).begun_at(mean)

                return set_up(ready.model, args, kwargs, None, make, starts, seeds[0])

            with kept or nullcontext():
                if workers is None:
                    outcome = search(problem, state)
                else:
                    outcome = problem.objective.finished(partial(search, problem, state))
                if is_worthwhile(reparametrize, ready, outcome, tolerance, request.options):
                    insists, first = reparametrize is True, ready
                    store = pyro.get_param_store()
                    before = store.get_state()
                    ready, outcome = tried(first, outcome, by_modes, search, rng, insists)
                    if ready is first:
                        store.clear()
                        store.set_state(before)
                    else:
                        problem = ready.problem
                        forget_others(first.guide)
        found = api.found_optima(outcome, problem.space)
        params = problem.space.params(outcome.optimum.state)
    result = FitResult(
        model=ready.model,
        args=args,
        kwargs=kwargs,
        guide=ready.guide,
        params=params,
        optima=found,
        **api.account(outcome, problem, request, start_time, ready.error, gaussians(ready.guide)),
    )
    if workers is not None and workers.size > 1:
        vars(result)["diagnostics"] = undefined("undefined: each worker has a part of the rows")
    if batches is not None:
        vars(result)["diagnostics"] = undefined("undefined: the rows came in batches")
    return result


def _check_gradients() -> None:
    """Refuse to be called where torch keeps no graph, or traces.

    :raises RuntimeError: saying where that is.
    """
    check_gradients("fit", "The result's draws and predictions")
    if maybe_current_level() is not None:
        raise RuntimeError(
            "fit decides on numbers as it goes, which torch.vmap, torch.func.grad and their like "
            "do not give it: call it outside, once for each element."
        )
