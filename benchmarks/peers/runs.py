"""One method on one model: Gaussians as it goes, and what they have cost so far.

    python -m benchmarks.peers.runs MODEL METHOD RATE SECONDS DIR

prints a line of JSON for each, with the bound that the target gives it afterwards. All methods
have double precision, one thread, and the starts and other options that are their defaults.
Seconds are of the processor, from data to Gaussian: compilation is in, imports are not, nor what
looking at a Gaussian takes. A density evaluated with its gradient counts as one evaluation, a
product with its Hessian as two.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.gauntlet.models.ppl import Ppl
from benchmarks.gauntlet.models.registry import Entry
from benchmarks.gauntlet.runs import FITS, moments
from benchmarks.gauntlet.target import Gaussian, Target
from benchmarks.results import cost

from .models import entry, in_pymc

#: Steps of a method that are one program, or that pass before its Gaussian is looked at.
CHUNK = 100
#: Steps after which a Newton-like method is looked at, and most that it takes.
FEW, MOST = 2, 1000


class Seen(NamedTuple):
    """A Gaussian on the way."""

    mean: np.ndarray
    factor: np.ndarray
    sites: list[str]  #: in its order


class Clock:
    """Seconds of the processor so far, but for pauses."""

    def __init__(self) -> None:
        self._begin, self._paused = time.process_time(), 0.0

    @property
    def seconds(self) -> float:
        return time.process_time() - self._begin - self._paused

    def pause(self, function: Callable, *args: Any) -> Any:
        begin = time.process_time()
        found = function(*args)
        self._paused += time.process_time() - begin
        return found


#: Given the model, a rate, and the clock; ends by itself or is left. Now and then it says how to
#: look at its Gaussian, and how many evaluations there were since the last time.
Looks = Iterator[tuple[Callable[[], Seen], int]]
Method = Callable[[Entry, float, Clock], Looks]


# -- ours -----------------------------------------------------------------------------


def our_fit(ppl_name: str, one: Entry, _: float, clock: Clock) -> Looks:
    """Seen at its end only, after all that it does to verify the optimum."""
    result, gaussian = FITS[ppl_name](one, 0, "auto")
    sites = [site.name for site in result.guide.sites]
    yield (
        lambda: Seen(gaussian.mean, gaussian.factor, sites),
        cost(result).gradients + 2 * cost(result).products,
    )


def our_blr_numpyro(one: Entry, _: float, clock: Clock) -> Looks:
    from numpyro.infer import SVI

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide

    ppl = Ppl("numpyro")
    model, args = one.model(ppl), one.args(ppl)
    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, BLR(), NaturalELBO())
    state = svi.init(jax.random.key(0), *args)
    update = jax.jit(svi.update)

    def look() -> Seen:
        posterior = guide.get_posterior(svi.get_params(state))
        return Seen(*moments(posterior, np.asarray), [site.name for site in guide.sites])

    costs = clock.pause(_costs_of_blr, one)
    for step in range(1, MOST + 1):
        state, _ = update(state, *args)
        if step % FEW == 0:
            jax.block_until_ready(state)
            yield look, clock.pause(_sum_of, costs)


def _sum_of(costs: Iterator[int]) -> int:
    return sum(itertools.islice(costs, FEW))


def _costs_of_blr(one: Entry) -> Iterator[int]:
    """Evaluations of each step, counted in a run of its own, whose numbers are the same."""
    from numpyro import handlers
    from numpyro.infer import SVI

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide

    ppl, count = Ppl("numpyro"), [0]
    plain, args = one.model(ppl), one.args(ppl)

    def tick(_: Any) -> None:
        count[0] += 1

    def model(*args: Any) -> None:
        with handlers.trace() as trace:
            plain(*args)
        latent = next(s for s in trace.values() if s["type"] == "sample" and not s["is_observed"])
        jax.debug.callback(tick, latent["value"])  # once for each draw, which the value tells

    svi = SVI(model, NaturalGaussianGuide(model), BLR(), NaturalELBO())
    state, update = svi.init(jax.random.key(0), *args), jax.jit(svi.update)
    of_quadrature = 1 + 2 * svi.guide.latent_dim  # as `fit` counts it, and no draws

    def costs() -> Iterator[int]:
        nonlocal state
        while True:
            count[0] = 0
            state, _ = jax.block_until_ready(update(state, *args))
            jax.effects_barrier()
            yield count[0] if count[0] > 1 else of_quadrature  # traced once

    return costs()


def our_blr_pyro(one: Entry, _: float, clock: Clock) -> Looks:
    import pyro
    from pyro.infer import SVI

    from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide

    ppl = Ppl("pyro")
    model, args = one.model(ppl), one.args(ppl)
    pyro.set_rng_seed(0)
    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, BLR(), NaturalELBO())

    def look() -> Seen:
        found = moments(guide.get_posterior(), _numpy)
        return Seen(*found, [site.name for site in guide.sites])

    costs = clock.pause(_costs_of_blr, one)  # the same estimators and numbers of draws
    for step in range(1, MOST + 1):
        svi.step(*args)
        if step % FEW == 0:
            yield look, clock.pause(_sum_of, costs)


# -- NumPyro's and Pyro's own -----------------------------------------------------------


def numpyro_auto(name: str, one: Entry, rate: float, _: Clock) -> Looks:
    """Adam and one draw a step, ``CHUNK`` steps a program; Laplace's Hessian is not counted."""
    import numpyro.infer.autoguide as autoguide
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.optim import Adam

    ppl = Ppl("numpyro")
    model, args = one.model(ppl), one.args(ppl)
    guide = getattr(autoguide, name)(model)
    svi = SVI(model, guide, Adam(rate), Trace_ELBO())
    state = svi.init(jax.random.key(0), *args)

    @jax.jit
    def some(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: (svi.update(s, *args)[0], None), state, length=CHUNK)[0]

    while True:
        state = jax.block_until_ready(some(state))
        params = svi.get_params(state)
        yield partial(_of_numpyro, guide, params), CHUNK


def _of_numpyro(guide: Any, params: dict) -> Seen:
    return Seen(*moments(guide.get_posterior(params), np.asarray), _latents(guide))


def _latents(guide: Any) -> list[str]:
    """The latent sites of a stock guide, in the order of its vector."""
    trace = guide.prototype_trace
    nodes = getattr(trace, "nodes", trace)
    latents = [n for n, s in nodes.items() if s["type"] == "sample" and not s["is_observed"]]
    return latents if guide.__module__.startswith("pyro") else sorted(latents)


def pyro_auto(name: str, one: Entry, rate: float, _: Clock) -> Looks:
    """Adam and one draw a step."""
    import pyro
    import pyro.infer.autoguide as autoguide
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    ppl = Ppl("pyro")
    model, args = one.model(ppl), one.args(ppl)
    pyro.set_rng_seed(0)
    guide = getattr(autoguide, name)(model)
    svi = SVI(model, guide, Adam({"lr": rate}), Trace_ELBO())
    look = {
        "AutoGaussian": _of_auto_gaussian,
        "AutoLaplaceApproximation": partial(_of_laplace, args),
    }.get(name, _of_auto)
    for step in itertools.count(1):
        svi.step(*args)
        if step % CHUNK == 0:
            yield partial(look, guide), CHUNK


def _of_auto(guide: Any) -> Seen:
    return Seen(*moments(guide.get_posterior(), _numpy), _latents(guide))


def _of_laplace(args: tuple, guide: Any) -> Seen:
    """With the Hessian where the mode is sought, which need not be definite there: no Gaussian."""
    import torch

    try:
        found = moments(guide.laplace_approximation(*args).get_posterior(), _numpy)
    except (torch.linalg.LinAlgError, ValueError):
        dim = guide.latent_dim
        found = np.full(dim, np.nan), np.full((dim, dim), np.nan)
    return Seen(*found, _latents(guide))


def _numpy(tensor: Any) -> np.ndarray:
    return tensor.numpy(force=True)


def _of_auto_gaussian(guide: Any) -> Seen:
    """From what it keeps for itself: a Gaussian, scaled and shifted site by site."""
    mean, factor = moments(guide._dense_get_mvn(), _numpy)
    sites = list(guide._dense_shapes)
    loc, scale = (
        np.concatenate([_numpy(attrgetter(site)(part)).reshape(-1) for site in sites])
        for part in (guide.locs, guide.scales)
    )
    return Seen(loc + scale * mean, scale[:, None] * factor, sites)


# -- others -----------------------------------------------------------------------------


def pymc_advi(method: str, one: Entry, _: float, __: Clock) -> Looks:
    """With its own defaults; one draw a step."""
    import pymc as pm

    model = in_pymc(one.name.partition("/")[2], one.data)
    with model:
        inference = {"advi": pm.ADVI, "fullrank_advi": pm.FullRankADVI}[method](random_seed=0)
        go_on = inference.fit
        while True:
            go_on(CHUNK, progressbar=False)
            yield partial(_of_pymc, inference.approx), CHUNK
            go_on = inference.refine


def _of_pymc(approx: Any) -> Seen:
    order = sorted(approx.ordering.values(), key=lambda place: place[1].start)
    sites = [place[0].removesuffix("_log__") for place in order]
    return Seen(approx.mean.eval(), np.linalg.cholesky(approx.cov.eval()), sites)


def _flat(one: Entry) -> tuple[Target, Callable, np.ndarray]:
    """A target, its log density at vectors, and the medians of the prior, where guides start."""
    target = Target(one)
    return target, lambda flat: target.log_prob(flat, {}), np.zeros(target.dim)


def blackjax_pathfinder(one: Entry, _: float, clock: Clock) -> Looks:
    """With its own defaults, but for an L-BFGS that may go on to its end."""
    import blackjax

    target, log_prob, start = clock.pause(_flat, one)
    state, info = jax.jit(
        partial(blackjax.pathfinder.approximate, logdensity_fn=log_prob, maxiter=200)
    )(jax.random.key(0), initial_position=start)
    state = jax.block_until_ready(state)
    steps = int(np.isfinite(np.asarray(info.path.elbo)).sum())

    def look() -> Seen:
        alpha, beta, gamma = (np.asarray(part) for part in (state.alpha, state.beta, state.gamma))
        covariance = np.diag(alpha) + beta @ gamma @ beta.T
        mean = np.asarray(state.position) + covariance @ np.asarray(state.grad_position)
        return _of_moments(mean, covariance, list(target.shapes))

    yield look, steps * 201


def blackjax_full(one: Entry, rate: float, clock: Clock) -> Looks:
    """Adam, and a hundred draws a step, its default."""
    import blackjax
    import optax

    target, log_prob, start = clock.pause(_flat, one)
    algorithm = blackjax.fullrank_vi(log_prob, optax.adam(rate))
    state, dim, size = algorithm.init(start), target.dim, 10

    @jax.jit
    def some(state: Any, key: jax.Array) -> Any:
        keys = jax.random.split(key, size)
        return jax.lax.scan(lambda s, k: (algorithm.step(k, s)[0], None), state, keys)[0]

    def look() -> Seen:
        params = np.asarray(state.chol_params)
        factor = np.diag(np.exp(params[:dim]))
        factor[np.tril_indices(dim, -1)] = params[dim:]
        return Seen(np.asarray(state.mu), factor, list(target.shapes))

    for count in itertools.count():
        state = jax.block_until_ready(some(state, jax.random.key(count)))
        yield look, 100 * size


def gsm(one: Entry, _: float, clock: Clock) -> Looks:
    """Gaussian score matching with its own defaults: two draws a step."""
    import queue
    import threading

    from gsmvi.gsm import GSM

    target, log_prob, start = clock.pause(_flat, one)
    score = jax.jit(jax.vmap(jax.grad(log_prob)))
    found: queue.Queue = queue.Queue(1)
    taken = threading.Semaphore(0)

    class Monitor:
        checkpoint = CHUNK

        def __call__(self, i: int, params: Any, *_: Any, nevals: int = 0) -> None:
            found.put((params, nevals))
            taken.acquire()

    method = GSM(target.dim, log_prob, score)
    options = {"niter": 10**9, "verbose": False, "monitor": Monitor(), "mean": start}
    threading.Thread(
        target=method.fit, args=(jax.random.PRNGKey(0),), kwargs=options, daemon=True
    ).start()
    while True:
        (mean, covariance), count = found.get(timeout=120)
        mean, covariance = np.asarray(mean), np.asarray(covariance)
        yield partial(_of_moments, mean, covariance, list(target.shapes)), count
        taken.release()


def _of_moments(mean: np.ndarray, covariance: np.ndarray, sites: list[str]) -> Seen:
    return Seen(mean, np.linalg.cholesky(covariance), sites)


METHODS: dict[str, Method] = {
    "ngvi fit, NumPyro": partial(our_fit, "numpyro"),
    "ngvi fit, Pyro": partial(our_fit, "pyro"),
    "ngvi BLR, NumPyro": our_blr_numpyro,
    "ngvi BLR, Pyro": our_blr_pyro,
    "NumPyro AutoMultivariateNormal": partial(numpyro_auto, "AutoMultivariateNormal"),
    "NumPyro AutoLowRank": partial(numpyro_auto, "AutoLowRankMultivariateNormal"),
    "NumPyro AutoLaplace": partial(numpyro_auto, "AutoLaplaceApproximation"),
    "Pyro AutoMultivariateNormal": partial(pyro_auto, "AutoMultivariateNormal"),
    "Pyro AutoLowRank": partial(pyro_auto, "AutoLowRankMultivariateNormal"),
    "Pyro AutoLaplace": partial(pyro_auto, "AutoLaplaceApproximation"),
    "Pyro AutoGaussian": partial(pyro_auto, "AutoGaussian"),
    "PyMC full-rank ADVI": partial(pymc_advi, "fullrank_advi"),
    "PyMC ADVI": partial(pymc_advi, "advi"),
    "BlackJAX Pathfinder": blackjax_pathfinder,
    "BlackJAX full-rank VI": blackjax_full,
    "gsmvi": gsm,
}


def run(one: Entry, name: str, rate: float, limit: float) -> list[tuple[float, int, Seen]]:
    """Some two dozen Gaussians of a run: seconds, evaluations, and what was seen.

    :param limit: seconds of the processor.
    """
    clock, total, kept, wanted = Clock(), 0, [], 0.0
    for look, count in METHODS[name](one, rate, clock):
        total += count
        seconds = clock.seconds
        is_over = seconds > limit
        if is_kept := total >= wanted or is_over:
            kept.append((seconds, total, clock.pause(look)))
            wanted = 1.25 * total
        if is_over:
            break
    if not is_kept:  # it has ended by itself
        kept.append((seconds, total, clock.pause(look)))
    return kept


def main() -> None:
    model, name, rate, limit, folder = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    if "yro" in name and "Num" not in name:
        import torch

        torch.set_default_dtype(torch.float64)
    one = entry(model, Path(folder))
    warnings.simplefilter("ignore")
    kept = run(one, name, float(rate), float(limit))
    target = Target(one)
    for seconds, count, seen in kept:
        gaussian = target.in_order(Gaussian(seen.mean, seen.factor, {}), seen.sites)
        bound = target.bound(gaussian).value
        bound = bound if math.isfinite(bound) else -math.inf
        row = {"seconds": seconds, "evaluations": count, "bound": bound}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
