"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform

from ngvi.fit.outcome import Outcome, Reason, in_words
from ngvi.fit.progress import Progress
from ngvi.fit.search import MIN_POINTS, Search, Settings
from ngvi.fit.start import find_other_start, find_start
from ngvi.fit.stochastic import StochasticSearch
from ngvi.fit.trace import Trace
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.fit.engine import Engine
from numpyro_ngvi.fit.importance import check_has_gaussian, gaussians, subsampled_plate
from numpyro_ngvi.fit.result import FitResult
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.checks import InvalidStartError

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
    rng_key: jax.Array | None = None,
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

    :param model: a NumPyro model.
    :param args: its arguments.
    :param family: of the Gaussian, as for :class:`~numpyro_ngvi.NaturalGaussianGuide`.
    :param guide: a guide with a ``NaturalGaussianGuide`` in it, in place of ``family``; its own
        start is used.
    :param init: go on from an earlier result of a model with the same latents.
    :param init_loc_fn: a NumPyro initialisation strategy for the mean; by default zero on the
        unconstrained scale.
    :param create_plates: as for the guide.
    :param curvature: ``"spherical"`` (gradients at orthogonal points,
        :mod:`~numpyro_ngvi.curvature.spherical`), ``"hessian"``, ``"stein"``, or ``"auto"``: the
        second where the family's Hessians take few products, else the first up to 2000 latents.
    :param tolerance: the distance to the optimal bound that counts as converged, in nats.
    :param max_steps: the most steps.
    :param deterministic: use the same draws, spread evenly, in every fit, and maximise the bound
        over them as an ordinary optimiser would.
    :param progress_bar: show bound, step size and distance to convergence.
    :param rng_key: a JAX random key; by default ``jax.random.key(0)``.
    :param kwargs: keyword arguments of the model.
    :return: the result, with ``converged`` and ``reason``; a fit that has not converged also warns.
    :raises ValueError: for a tolerance or a number of steps that is not positive, an unknown
        curvature or family, a guide without a ``NaturalGaussianGuide``, or an ``init`` with other
        latents than the model's.
    """
    start_time = time.perf_counter()
    settings = _settings(tolerance, max_steps, deterministic)
    rng_key = random.key(0) if rng_key is None else rng_key
    init_key, draw_key, result_key = random.split(rng_key, 3)
    rng = np.random.default_rng(
        0 if deterministic else np.asarray(random.bits(draw_key, (4,), jnp.uint32))
    )
    given = guide is not None

    def set_up(model: Callable, init_loc_fn: Callable) -> Engine:
        own = (
            guide
            if given
            else NaturalGaussianGuide(
                model,
                family if init is None else init._gaussian().family,
                init_loc_fn=init_loc_fn,
                init_scale=INIT_SCALE,
                create_plates=create_plates,
            )
        )
        return Engine(model, own, args, kwargs, init_key, curvature)

    engine, error = _first_that_starts(set_up, model, init_loc_fn, (args, kwargs))
    guide = engine.guide
    check_has_gaussian(guide, engine.initial)
    place = _continued(engine, init) if init is not None else None
    if given and place is None:
        place = engine.initial
    noisy = engine.has_ordinary or (
        subsampled_plate(model, engine.constrain(engine.initial), args, kwargs) is not None
    )
    kind = StochasticSearch if noisy else Search
    with Progress(max_steps, progress_bar) as progress:
        search = kind(engine, rng, settings, progress)
        if error is None:
            outcome = _run(engine, search, rng, place)
        else:
            outcome = Outcome(engine.initial, Reason.NOT_FINITE, math.inf, Trace())
    unusable = "" if error is None else f" ({error})"
    reason = in_words(outcome, _named(guide, engine, outcome.place), tolerance, max_steps, unusable)
    if not outcome.converged:
        warnings.warn(f"fit has not converged: {reason}.", stacklevel=2)
    return FitResult(
        model=model,
        args=args,
        kwargs=kwargs,
        guide=guide,
        params=engine.constrain(outcome.place),
        trace=outcome.trace,
        converged=outcome.converged,
        reason=reason,
        num_steps=len(outcome.trace),
        num_gradients=engine.num_gradients,
        num_hessian_products=engine.num_hessian_products,
        seconds=time.perf_counter() - start_time,
        rng_key=result_key,
    )


def _first_that_starts(
    set_up: Callable[[Callable, Callable], Engine],
    model: Callable,
    init_loc_fn: Callable | None,
    arguments: tuple,
) -> tuple[Engine, InvalidStartError | None]:
    """An engine with a guide that is set up, if need be for a model without its densities.

    :return: the engine, and why the model itself has no start.
    """
    own = [init_loc_fn] if init_loc_fn else [partial(init_to_uniform, radius=0.0), init_to_uniform]
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
    return set_up(handlers.mask(model, mask=False), own[0]), error


def _nan_arguments(args: tuple, kwargs: dict[str, Any]) -> str:
    """Which arguments hold NaN, in words."""
    named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    holding = [
        name
        for name, value in named.items()
        if any(
            np.issubdtype(np.asarray(leaf).dtype, np.floating) and np.isnan(leaf).any()
            for leaf in jax.tree.leaves(value)
            if isinstance(leaf, (jax.Array, np.ndarray, float))
        )
    ]
    return ", ".join(holding)


def _settings(tolerance: float, max_steps: int, deterministic: bool) -> Settings:
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, in nats, got {tolerance!r}.")
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps must be an integer, at least 1, got {max_steps!r}.")
    return Settings(tolerance, max_steps, deterministic)


def _run(engine: Engine, search: Any, rng: np.random.Generator, place: Any) -> Outcome:
    num_groups = math.ceil(MIN_POINTS / (2 * engine.dim + 1))
    try:
        start = find_start(engine, rng, num_groups, place)
        if start is None:
            return Outcome(engine.initial, Reason.NOT_FINITE, math.inf, Trace())
        outcome = search.run(*start)
        if outcome.reason is Reason.STUCK and place is None:
            # A hopeless start: begin where the log density is high, if somewhat narrow.
            start = find_other_start(engine, rng, num_groups)
            if start is not None:
                steps, loss = len(search.trace), search.trace.losses[-1]
                search.begin_again()
                again = search.run(*start)
                if again.converged or search.trace.losses[-1] < loss:
                    return again
                search.trace.cut(steps)  # the way to the place that is returned
        return outcome
    except KeyboardInterrupt:
        # Hours of work, maybe: keep what there is.
        place = getattr(search, "place", engine.initial)
        remaining = (search.trace.distances or [math.inf])[-1]
        return Outcome(place, Reason.INTERRUPTED, remaining, search.trace)


def _continued(engine: Engine, init: FitResult) -> Any:
    """The engine's parameters with those of an earlier result."""
    place = dict(engine.initial)
    earlier = {name: value for name, value in init.params.items() if isinstance(value, Family)}
    for name, value in place.items():
        if isinstance(value, Family):
            old = earlier.get(name)
            if old is None or type(old) is not type(value) or old.dim != value.dim:
                raise ValueError(
                    f"init= holds {old.dim if old is not None else 'no'} latents for "
                    f"'{name}', and the model has {value.dim}: it must be the result of a model "
                    "with the same latents."
                )
            place[name] = old
    return place


def _named(guide: Any, engine: Engine, place: Any) -> dict[str, np.ndarray]:
    """Standard deviations of the unconstrained latents by the names of the model's sites."""
    stddevs = engine.stddevs(place)
    named = {}
    for part, values in zip(gaussians(guide), stddevs.values(), strict=False):
        for site in part.sites:
            size = int(np.prod(site.shape)) if site.shape else 1
            named[site.name] = values[site.start : site.start + size]
    return named or stddevs
