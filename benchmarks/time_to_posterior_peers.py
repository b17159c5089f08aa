"""The methods of :mod:`benchmarks.time_to_posterior` that other libraries have.

Each takes the model and its data as NumPyro runs them, and a function for its draws by site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

DRAWS, CHAINS = 1000, 4  #: of a chain after as many of warm-up


def _density(model: Callable, args: tuple) -> tuple:
    """The log density of a flat vector, a start, and the way to draws by site."""
    import jax
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.util import initialize_model

    found = initialize_model(jax.random.key(0), model, model_args=args)
    start, unravel = ravel_pytree(found.param_info.z)
    draws = jax.jit(jax.vmap(lambda flat: found.postprocess_fn(unravel(flat))))
    return lambda flat: -found.potential_fn(unravel(flat)), start, draws


def nutpie(model: Callable, args: tuple, lap: Callable) -> None:
    import jax
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    density, start, draws = _density(model, args)
    program, count = jax.jit(jax.value_and_grad(density)), [0]

    def make_logp() -> Callable:
        def logp(x: np.ndarray) -> tuple[float, np.ndarray]:
            count[0] += 1
            value, gradient = program(x)
            return float(value), np.asarray(gradient)

        return logp

    def make_expand(*_: Any) -> Callable:
        return lambda x: {"flat": np.array(x)}

    size = start.size
    compiled = from_pyfunc(size, make_logp, make_expand, [np.dtype(float)], [(size,)], ["flat"])
    options = {"draws": DRAWS, "tune": DRAWS, "chains": CHAINS, "cores": 1, "progress_bar": False}
    found = nutpie.sample(compiled, seed=0, **options)
    flat = np.asarray(found.posterior["flat"]).reshape(-1, size)
    lap("nutpie", draws(flat), count[0])


def blackjax(model: Callable, args: tuple, lap: Callable) -> None:
    """NUTS after its window adaptation."""
    import blackjax
    import jax

    run = _density(model, args)
    chain = _chain_of_nuts(run[0], run[1], blackjax.window_adaptation(blackjax.nuts, run[0]), DRAWS)
    found = jax.jit(lambda keys: jax.lax.map(chain, keys))(_keys_of_chains())
    _lap_of_nuts("BlackJAX", run, found, lap)


def blackjax_auto(model: Callable, args: tuple, lap: Callable) -> None:
    """NUTS after the adaptation that chooses its metric, which is experimental (1.7)."""
    import blackjax
    import jax

    run = _density(model, args)
    options = {"metric": "auto", "max_grad_budget": 32 * DRAWS}  # some thousand steps
    adapt = blackjax.staged_adaptation(blackjax.nuts, run[0], **options)
    chain = _chain_of_nuts(run[0], run[1], adapt, None)
    chains = [chain(keys) for keys in _keys_of_chains()]  # it decides on the host
    found = jax.tree.map(lambda *parts: np.stack(parts), *chains)
    _lap_of_nuts('BlackJAX, "auto"', run, found, lap)


def _keys_of_chains() -> Any:
    import jax

    return jax.random.split(jax.random.key(0), 2 * CHAINS).reshape(2, CHAINS).T


def _chain_of_nuts(density: Callable, start: Any, adapt: Any, num_warmup: int | None) -> Callable:
    import blackjax
    import jax

    @jax.jit
    def sample(state: Any, parameters: dict, key: Any) -> tuple:
        step = blackjax.nuts(density, **parameters).step

        def one(state: Any, key: Any) -> tuple:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(one, state, jax.random.split(key, DRAWS))[1]

    def chain(keys: Any) -> tuple:
        (state, parameters), _ = adapt.run(keys[0], start, num_warmup)
        return sample(state, parameters, keys[1])

    return chain


def _lap_of_nuts(name: str, run: tuple, found: tuple, lap: Callable) -> None:
    _, start, draws = run
    positions, steps = found
    lap(name, draws(positions.reshape(-1, start.size)), int(steps.sum()))


def pathfinder(model: Callable, args: tuple, lap: Callable) -> None:
    """Multi-path Pathfinder of BlackJAX: draws of all paths by smoothed importance weights."""
    import jax
    from blackjax.vi.multipathfinder import multi_approximate, psis_weights

    density, start, draws = _density(model, args)
    keys = jax.random.split(jax.random.key(0), 3)
    around = jax.random.uniform(keys[0], (CHAINS, start.size), minval=-2.0, maxval=2.0)

    def run(keys: Any) -> Any:
        state, _ = multi_approximate(keys[1], density, start + around, DRAWS)
        log_weights, _ = psis_weights(state)
        which = jax.random.categorical(keys[2], log_weights, shape=(2 * DRAWS,))
        return state.samples.reshape(-1, start.size)[which]

    lap("Pathfinder", draws(jax.jit(run)(keys)))
