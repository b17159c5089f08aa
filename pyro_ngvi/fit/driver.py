"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_feasible, init_to_uniform
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ngvi.fit.outcome import Outcome, Reason, in_words
from ngvi.fit.progress import Progress
from ngvi.fit.search import MIN_POINTS, Search, Settings
from ngvi.fit.start import find_other_start, find_start
from ngvi.fit.stochastic import StochasticSearch
from ngvi.fit.trace import Trace
from pyro_ngvi.families.base import Family
from pyro_ngvi.fit.engine import Engine, Place
from pyro_ngvi.fit.importance import check_has_gaussian, gaussians
from pyro_ngvi.fit.result import FitResult
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.guide.checks import InvalidStartError
from pyro_ngvi.tracing.messengers import repeatable_noise

#: The standard deviation of the first Gaussian on the unconstrained scale.
INIT_SCALE = 1.0


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

    :param model: a Pyro model.
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
    :param progress_bar: show bound, step size and distance to convergence.
    :param kwargs: keyword arguments of the model.
    :return: the result, with ``converged`` and ``reason``; a fit that has not converged also warns.
    :raises ValueError: for a tolerance or a number of steps that is not positive, an unknown
        curvature or family, a guide without a ``NaturalGaussianGuide``, or an ``init`` with other
        latents than the model's.
    """
    start_time = time.perf_counter()
    settings = _settings(tolerance, max_steps, deterministic)
    seeds = [0] if deterministic else torch.randint(2**32, (4,), device="cpu").tolist()
    rng = np.random.default_rng(0 if deterministic else seeds)
    given = guide is not None

    def set_up(model: Callable, init_loc_fn: Callable) -> Engine:
        own = guide
        if not given:
            own = NaturalGaussianGuide(
                model,
                family if init is None else init.family.specification(),
                init_loc_fn=init_loc_fn,
                init_scale=INIT_SCALE,
                create_plates=create_plates,
            )
            _forget_others(own)
        return Engine(model, own, args, kwargs, seeds[0], curvature)

    with repeatable_noise(), poutine.block(), _store_as_it_was() as keep:
        if given:
            check_has_gaussian(guide)
        engine, error = _first_that_starts(set_up, model, init_loc_fn, (args, kwargs))
        guide = engine.guide
        place = engine.restored(init.params) if init is not None else None
        if given and place is None:
            place = engine.initial
        noisy = engine.has_ordinary or engine.is_subsampled
        kind = StochasticSearch if noisy else Search
        keep()
        with Progress(max_steps, progress_bar) as progress:
            search = kind(engine, rng, settings, progress)
            if error is None:
                outcome = _run(engine, search, rng, place)
            else:
                outcome = Outcome(engine.initial, Reason.NOT_FINITE, math.inf, Trace())
        params = engine.snapshot()
    unusable = "" if error is None else f" ({error})"
    reason = in_words(outcome, _named(guide, engine, outcome.place), tolerance, max_steps, unusable)
    if not outcome.converged:
        warnings.warn(f"fit has not converged: {reason}.", stacklevel=2)
    return FitResult(
        model=model,
        args=args,
        kwargs=kwargs,
        guide=guide,
        params=params,
        trace=outcome.trace,
        converged=outcome.converged,
        reason=reason,
        num_steps=len(outcome.trace),
        num_gradients=engine.num_gradients,
        num_hessian_products=engine.num_hessian_products,
        seconds=time.perf_counter() - start_time,
    )


# -- the parameter store --------------------------------------------------------------


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


# -- the start ------------------------------------------------------------------------


class _WithoutDensities(Messenger):
    """Leaves the densities of a model out, so that a guide can be set up anywhere."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not site_is_subsample(msg):
            msg["fn"] = msg["fn"].mask(False)


def _first_that_starts(
    set_up: Callable[[Callable, Callable], Engine],
    model: Callable,
    init_loc_fn: Callable | None,
    arguments: tuple,
) -> tuple[Engine, InvalidStartError | None]:
    """An engine with a guide that is set up, if need be for a model without its densities.

    :return: the engine, and why the model itself has no start.
    """
    own = [init_loc_fn] if init_loc_fn else [init_to_feasible, init_to_uniform]
    error = None
    for candidate in own:
        try:
            return set_up(model, candidate), None
        except InvalidStartError as raised:
            error = error or raised
        except ValueError as raised:
            where = _nan_arguments(*arguments)
            if not where:
                raise
            reason = f"The model cannot run, and its {where} holds NaN: {raised}"
            raise ValueError(reason) from raised
    return set_up(_WithoutDensities()(model), own[0]), error


def _nan_arguments(args: tuple, kwargs: dict[str, Any]) -> str:
    """Which arguments hold NaN, in words."""
    named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    return ", ".join(name for name, value in named.items() if _holds_nan(value))


def _holds_nan(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_holds_nan, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(_holds_nan, tree))
    return isinstance(tree, (Tensor, float)) and bool(torch.isnan(torch.as_tensor(tree)).any())


def _settings(tolerance: float, max_steps: int, deterministic: bool) -> Settings:
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, in nats, got {tolerance!r}.")
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps must be an integer, at least 1, got {max_steps!r}.")
    return Settings(tolerance, max_steps, deterministic)


# -- the search -----------------------------------------------------------------------


def _run(engine: Engine, search: Any, rng: np.random.Generator, place: Place | None) -> Outcome:
    """Search, and leave the guide where the search ended, whatever ends it."""
    try:
        outcome = _searched(engine, search, rng, place)
    except KeyboardInterrupt:
        # Hours of work, maybe: keep what there is.
        place = getattr(search, "place", engine.initial)
        remaining = (search.trace.distances or [math.inf])[-1]
        outcome = Outcome(place, Reason.INTERRUPTED, remaining, search.trace)
    except BaseException:
        engine.write(getattr(search, "place", engine.initial))
        raise
    engine.write(outcome.place)
    return outcome


def _searched(
    engine: Engine, search: Any, rng: np.random.Generator, place: Place | None
) -> Outcome:
    num_groups = math.ceil(MIN_POINTS / (2 * engine.dim + 1))
    start = find_start(engine, rng, num_groups, place)
    if start is None:
        return Outcome(engine.initial, Reason.NOT_FINITE, math.inf, Trace())
    outcome = search.run(*start)
    if outcome.reason is Reason.STUCK and place is None:
        # A hopeless start: begin where the log density is high, if somewhat narrow.
        start = find_other_start(engine, rng, num_groups)
        if start is not None:
            search.begin_again()
            outcome = search.run(*start)
    return outcome


def _named(guide: Any, engine: Engine, place: Place) -> dict[str, np.ndarray]:
    """Standard deviations of the unconstrained latents by the names of the model's sites."""
    stddevs = engine.stddevs(place)
    named = {}
    for part in gaussians(guide):
        values = stddevs.get(f"_{part._pyro_name}_latent", ())
        for site in part.sites:
            named[site.name] = values[site.start : site.start + site.size]
    return named or stddevs
