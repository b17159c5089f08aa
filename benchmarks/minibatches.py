"""Logistic regressions by minibatches: ``fit`` to its verdict beside ``BLR()`` to half a nat.

``BLR()`` with ``NaturalELBO()`` takes steps of one minibatch until its Gaussian is within half a
nat of the best one for all rows; only its steps are timed, compilation of either apart. The bound
and its optimum are exact, by quadrature of each row's logit (:mod:`benchmarks.separable`).

    python -m benchmarks minibatches [--ppl numpyro|pyro] [--seeds 0 1]

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from examples.machine import describe

from .separable import PRIOR_SD, Exact

#: Rows, latents, and rows of a minibatch.
SIZES = ((20_000, 55, 500), (5_000, 20, 200))
#: Steps between looks at the bound, and at most.
EVERY, MAX_STEPS = 10, 4000
CLOSE = 0.5


def simulated(num_rows: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A design of independent columns, and responses."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(num_rows), rng.standard_normal((num_rows, dim - 1))])
    logits = X @ rng.standard_normal(dim)
    return X, (rng.random(num_rows) < 1 / (1 + np.exp(-2 * logits / logits.std()))).astype(float)


def with_numpyro(batch: int) -> tuple[Callable, Callable]:
    """``fit`` and the steps of ``BLR()``: both of data and a seed, in float32."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, fit

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), PRIOR_SD).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=batch) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])

    def fitted(X: np.ndarray, y: np.ndarray, seed: int) -> tuple:
        data = jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32)
        result = fit(model, *data, rng_key=jax.random.key(seed), progress_bar=False)
        return result, np.asarray(result.family.loc, float), _root_of(result.family, np.asarray)

    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, BLR(), NaturalELBO())
    update = jax.jit(svi.update)

    def steps(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[tuple]:
        data = jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32)
        state = svi.init(jax.random.key(seed), *data)
        while True:
            for _ in range(EVERY):
                state, _ = update(state, *data)
            q = jax.block_until_ready(svi.get_params(state)["auto_posterior"])
            yield np.asarray(q.loc, float), _root_of(q, np.asarray)

    return fitted, steps


def with_pyro(batch: int) -> tuple[Callable, Callable]:
    """As :func:`with_numpyro`."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI

    from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, fit

    def model(X: torch.Tensor, y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(X.new_zeros(X.shape[1]), PRIOR_SD).to_event(1))
        with pyro.plate("rows", len(y), subsample_size=batch) as rows:
            pyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])

    def numpy(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().double().numpy()

    def fitted(X: np.ndarray, y: np.ndarray, seed: int) -> tuple:
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        result = fit(model, torch.tensor(X).float(), torch.tensor(y).float(), progress_bar=False)
        return result, numpy(result.family.loc), _root_of(result.family, numpy)

    def steps(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[tuple]:
        data = torch.tensor(X).float(), torch.tensor(y).float()
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        guide = NaturalGaussianGuide(model)
        svi = SVI(model, guide, BLR(), NaturalELBO())
        while True:
            for _ in range(EVERY):
                svi.step(*data)
            q = guide.posterior.family()
            yield numpy(q.loc), _root_of(q, numpy)

    return fitted, steps


def _root_of(family: object, numpy: Callable) -> np.ndarray:
    return np.linalg.cholesky(numpy(family.covariance_matrix).astype(float))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ppl", choices=("numpyro", "pyro"), default="numpyro")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    print(describe())
    make = with_numpyro if options.ppl == "numpyro" else with_pyro
    for num_rows, dim, batch in SIZES:
        fitted, steps = make(batch)
        for seed in options.seeds:
            X, y = simulated(num_rows, dim, seed)
            exact = Exact(X, y)
            best = exact.optimum()
            fitted(X, y, seed)  # compiles
            began = time.perf_counter()
            result, mean, root = fitted(X, y, seed)
            seconds = time.perf_counter() - began
            gap = best - exact.value(mean, root)
            path, spent, count, left = steps(X, y, seed), 0.0, 0, np.inf
            next(steps(X, y, seed))  # compiles
            while left > CLOSE and count < MAX_STEPS:
                began = time.perf_counter()
                mean, root = next(path)
                spent += time.perf_counter() - began
                count, left = count + EVERY, best - exact.value(mean, root)
            print(
                f"{options.ppl}, {num_rows} rows, d = {dim}, batches of {batch}, seed {seed}: fit "
                f"{seconds:.2f} s, converged={result.converged}, {gap:.3f} nats below; BLR "
                f"{spent:.2f} s for {count} steps, {left:.3f} below; ratio {seconds / spent:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
