"""The baseline: AutoMultivariateNormal, Adam with a constant rate and one draw a step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .runs import Run
from .scores import Scorer
from .target import Target

RATES = (1e-1, 1e-2, 1e-3)
NUM_STEPS = 50_000
# For the seconds of a step.
TIMED_STEPS = 2000


@dataclass(frozen=True)
class Snapshot:
    """The Gaussian after some steps, in the coordinates of `Target`.

    Without compilation, the run takes `seconds` to get there.
    """

    step: int
    seconds: float
    mean: np.ndarray
    cov: np.ndarray


# A run's rate and seed, and what it went through.
History = tuple[float, int, list[Snapshot]]


def method(rate: float) -> str:
    return f"Adam {rate:g}"


def grid(num_steps: int) -> list[int]:
    """The steps to look at: each 8% more than the one before, from 10 on."""
    count = max(1, int(np.ceil(np.log(num_steps / 10) / np.log(1.08))))
    steps = np.geomspace(min(10, num_steps), num_steps, count + 1).round().astype(int)
    return sorted(set(steps.tolist()))


def numpyro_histories(
    target: Target, settings: Sequence[tuple[float, int]], num_steps: int
) -> Iterator[History]:
    """All runs side by side; a step's seconds are those of a run of its own."""
    import jax
    import jax.numpy as jnp
    import optax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal
    from numpyro.optim import optax_to_numpyro

    guide = AutoMultivariateNormal(target.model)
    states = []
    for rate, seed in settings:
        # The state has the rate: one compiled step for all.
        adam = optax_to_numpyro(optax.inject_hyperparams(optax.adam)(learning_rate=rate))
        svi = SVI(target.model, guide, adam, Trace_ELBO())
        states.append(svi.init(jax.random.key(seed), *target.args))

    def update(state: Any) -> Any:
        return svi.update(state, *target.args)[0]

    @jax.jit
    def alone(state: Any, num: int) -> Any:
        return jax.lax.fori_loop(0, num, lambda _, s: update(s), state)

    @jax.jit
    def together(states: Any, num: int) -> Any:
        return jax.lax.fori_loop(0, num, lambda _, s: jax.vmap(update)(s), states)

    jax.block_until_ready(alone(states[0], 0))
    begin = time.perf_counter()
    jax.block_until_ready(alone(states[0], TIMED_STEPS))
    seconds = (time.perf_counter() - begin) / TIMED_STEPS

    histories: list[list[Snapshot]] = [[] for _ in settings]
    stacked, done = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), 0
    for step in grid(num_steps):
        stacked, done = together(stacked, step - done), step
        params = jax.vmap(svi.get_params)(stacked)
        locs, tril = np.asarray(params["auto_loc"]), np.asarray(params["auto_scale_tril"])
        for index, history in enumerate(histories):
            cov = tril[index] @ tril[index].T
            history.append(Snapshot(done, done * seconds, locs[index], cov))
    for (rate, seed), history in zip(settings, histories, strict=True):
        yield rate, seed, history


def pyro_histories(
    target: Target, settings: Sequence[tuple[float, int]], num_steps: int
) -> Iterator[History]:
    """One run after the other: minutes each."""
    import pyro
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoMultivariateNormal
    from pyro.optim import Adam

    from . import pyro_models

    model, args = pyro_models.POSTERIORS[target.name].build(target.data)
    wanted = set(grid(num_steps))
    for rate, seed in settings:
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        guide = AutoMultivariateNormal(model)
        svi = SVI(model, guide, Adam({"lr": rate}), Trace_ELBO())
        history, seconds = [], 0.0
        for step in range(1, num_steps + 1):
            begin = time.perf_counter()
            svi.step(*args)
            seconds += time.perf_counter() - begin
            if step in wanted:
                sites = guide.prototype_trace.iter_stochastic_nodes()
                order = target.order(name for name, _ in sites)
                posterior = guide.get_posterior()
                mean = posterior.loc.numpy(force=True)[order]
                cov = posterior.covariance_matrix.numpy(force=True)[np.ix_(order, order)]
                history.append(Snapshot(step, seconds, mean, cov))
        yield rate, seed, history


HISTORIES = {"numpyro": numpyro_histories, "pyro": pyro_histories}


def stock_runs(
    scorer: Scorer, ppl: str, settings: Sequence[tuple[float, int]], num_steps: int = NUM_STEPS
) -> Iterator[Run]:
    """Runs and what became of them.

    :param settings: rate and seed of each.
    """
    for rate, seed, history in HISTORIES[ppl](scorer.target, settings, num_steps):
        last = history[-1]
        yield Run(
            ppl=ppl,
            posterior=scorer.target.name,
            method=method(rate),
            seed=seed,
            evaluations=last.step,
            seconds=last.seconds,
            mean=last.mean.tolist(),
            cov=last.cov.tolist(),
            score=scorer(last.mean, last.cov),
            steps=[snapshot.step for snapshot in history],
            bounds=[scorer.history_bound(s.mean, s.cov) for s in history],
            step_seconds=[snapshot.seconds for snapshot in history],
        )
