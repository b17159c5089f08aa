"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide.initialization import init_to_feasible, init_to_uniform
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch._C._functorch import maybe_current_level

from ngvi.checks import DiscreteLatentError, InvalidStartError, check_model
from ngvi.fit import run
from ngvi.fit.engine import Engine
from ngvi.fit.journal import Journal
from ngvi.fit.settings import Settings, check_same_latents, check_start, warn_of_names
from ngvi.fit.start import SCALES
from ngvi.fit.threads import alone
from pyro_ngvi.families.base import Family
from pyro_ngvi.fit.engine import make_engine
from pyro_ngvi.fit.importance import gaussians
from pyro_ngvi.fit.result import FitResult
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.guide.checks import check_graph, check_precision
from pyro_ngvi.tracing.messengers import check_gradients, repeatable_noise


@alone
def fit(
    model: Callable,
    *args: Any,
    family: str | type[Family] | Family = "auto",
    guide: Any = None,
    init: FitResult | None = None,
    init_loc_fn: Callable | None = None,
    create_plates: Callable | None = None,
    curvature: str = "auto",
    tolerance: float = 0.05,
    max_steps: int = 1000,
    deterministic: bool = False,
    time_limit: float = math.inf,
    callback: Callable | None = None,
    checkpoint: str | PathLike | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> FitResult:
    """Fit a Gaussian to the posterior of a model, to the optimum of the bound.

    Nothing needs tuning: the start is broad, steps are natural gradients in a trust region with a
    quasi-Newton correction, draws are as many as their noise requires, and the fit stops when the
    bound is within ``tolerance`` of its optimum::

        result = fit(model, X, y)
        print(result)                     # converged? how good? where is it worst?
        result.sample(1000)["beta"]

    Models that see minibatches, or have parameters of their own, get fresh draws at every step and
    step sizes from the noise that the fit sees; there ``tolerance`` is met on average.

    The parameter store holds the fitted parameters afterwards, as after ``SVI``; the model's own
    start from the values that they have in it. The guide that ``fit`` makes starts anew: values of
    the same names in the store, which another guide of its class left there, are replaced, and
    survive in the result of the fit that they come from. The random numbers follow
    ``pyro.set_rng_seed``; a fit takes four of torch's, and none if it is ``deterministic``.

    :param model: a Pyro model, whose discrete latents are summed out, marked for enumeration
        or not.
    :param args: its arguments.
    :param family: of the Gaussian, as for :class:`~pyro_ngvi.NaturalGaussianGuide`.
    :param guide: a guide with a ``NaturalGaussianGuide`` in it, in place of ``family``; its own
        start is used.
    :param init: go on from an earlier result of a model with the same latents.
    :param init_loc_fn: a Pyro initialisation strategy for the mean; by default zero on the
        unconstrained scale.
    :param create_plates: as for the guide.
    :param curvature: ``"spherical"`` (gradients at orthogonal points,
        :mod:`~pyro_ngvi.curvature.spherical`), ``"hessian"``, ``"stein"``, or ``"auto"``: the
        second where the family's Hessians take few products, else the first up to 2000 latents.
    :param tolerance: the distance to the optimal bound that counts as converged, in nats.
    :param max_steps: the most steps.
    :param deterministic: use the same draws, spread evenly, in every fit, and maximise the bound
        over them as an ordinary optimiser would.
    :param time_limit: in seconds of wall-clock time; a fit ends with the step in which it is
        reached, and keeps what there is.
    :param callback: called after each step with the number of steps, the bound over the step's
        draws and its estimated distance to the optimum, both in nats.
    :param checkpoint: a file in which the fit notes what it does. The same call goes on from it
        where a run was killed, and takes the way that this run would have taken; of a fit that
        has ended it gives the result again. See :mod:`ngvi.fit.journal`.
    :param progress_bar: show bound, step size and distance to convergence.
    :param kwargs: keyword arguments of the model.
    :return: the result, with ``converged`` and ``reason``; a fit that has not converged also warns.
    :raises ValueError: for a tolerance or a number of steps that is not positive, an unknown
        curvature or family, a guide without a ``NaturalGaussianGuide``, an ``init`` with other
        latents than the model's, an argument that another one makes meaningless, or a
        ``checkpoint`` of another fit.
    :raises RuntimeError: inside ``torch.inference_mode``, ``torch.vmap`` and ``torch.func``.
    """
    start_time = time.perf_counter()
    given = dict(locals())
    settings = Settings(tolerance, max_steps, deterministic, progress_bar, time_limit, callback)
    check_model(model)
    warn_of_names(fit, model, args, given)
    check_start(FitResult, family, guide, init, init_loc_fn, create_plates)
    _check_gradients()
    seeds = [0] if deterministic else torch.randint(2**32, (4,), device="cpu").tolist()
    journal = None
    if checkpoint is not None:
        journal = Journal(checkpoint, FitResult.library, seeds)
        seeds = journal.seeds

    def set_up(model: Callable, init_loc_fn: Callable) -> tuple[Engine, Any]:
        own = guide
        if guide is None:
            own = NaturalGaussianGuide(
                model,
                family if init is None else init._gaussian().family,
                init_loc_fn=init_loc_fn,
                init_scale=SCALES[0],
                create_plates=create_plates,
            )
            _forget_others(own)
        engine = make_engine(model, own, args, kwargs, seeds[0], curvature)
        for part in gaussians(own):
            check_precision(part.prototype_trace, part.posterior.loc)
        return engine, own

    starts = [init_loc_fn] if init_loc_fn is not None else [init_to_feasible, init_to_uniform]

    def first(model: Callable) -> tuple[Any, Exception | None]:
        return run.first_that_starts(
            partial(set_up, model),
            starts,
            InvalidStartError,
            lambda: run.in_arguments(args, kwargs, _holds_nan),
        )

    with repeatable_noise(), poutine.block(), _store_as_it_was() as keep:
        try:
            made, error = first(model)
        except DiscreteLatentError:
            if guide is not None:
                raise
            model = config_enumerate(model)  # as NUTS does unasked
            made, error = first(model)
        if made is None:
            engine, guide = set_up(_WithoutDensities()(model), starts[0])
            outcome = run.no_start(engine)
            # Pyro adds a list of no sites.
            error = InvalidStartError(str(error).partition("\nTrace Shapes")[0])
        else:
            place = None
            if init is not None:
                check_same_latents(init, gaussians(made[1]))
                place = made[0].parameters.restored(init.params)
            elif guide is not None:
                place = made[0].parameters.initial
            engine, guide = made
            rng = np.random.default_rng(0 if deterministic else seeds)
            facts = engine.evaluator._plan.facts
            if not (facts.is_subsampled or facts.is_stochastic or facts.is_enumerated):
                check_graph(model, guide, args, kwargs)
            keep()
            outcome = run.search(engine, rng, settings, settings.progress_bar, place, journal)
        params = engine.parameters.snapshot()  # type: ignore[attr-defined]
    return FitResult(
        model=model,
        args=args,
        kwargs=kwargs,
        guide=guide,
        params=params,
        **run.account(outcome, engine, settings, start_time, error),
    )


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


def _forget_others(guide: NaturalGaussianGuide) -> None:
    """Drop the parameters that another guide of the class has left in the store."""
    store = pyro.get_param_store()
    for name in list(store.keys()):
        if name.startswith(f"{guide._pyro_name}."):
            del store[name]


@contextmanager
def _store_as_it_was() -> Iterator[Callable[[], None]]:
    """Bring back what was in the store if there is an error, unless told to keep what is there."""
    store, kept = pyro.get_param_store(), []
    before = store.get_state()
    try:
        yield lambda: kept.append(True)
    except BaseException:
        if not kept:
            store.clear()
            store.set_state(before)
        raise


class _WithoutDensities(Messenger):
    """Leaves the densities of a model out, so that a guide can be set up anywhere."""

    def _pyro_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg):
            msg["fn"] = msg["fn"].mask(False)


def _holds_nan(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_holds_nan, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(_holds_nan, tree))
    return isinstance(tree, (Tensor, float)) and bool(torch.isnan(torch.as_tensor(tree)).any())
