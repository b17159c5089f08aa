"""``fit`` on rows that come in batches: peak memory, and what it costs beside the rows themselves.

    python -m benchmarks larger_than_memory --rows 1000000 --ppl numpyro

The rows of a logistic regression are drawn anew in every pass, so that nothing holds them.

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import importlib
import math
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.results import cost

PPLS = ("pyro", "numpyro")


def rows(start: int, end: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a batch, the same in every pass."""
    rng = np.random.default_rng(start)
    X = rng.standard_normal((end - start, len(weights)), np.float32)
    return X, (rng.random(end - start, np.float32) < 1 / (1 + np.exp(-X @ weights))).astype("f4")


def model_of(ppl: str, num_rows: int, dim: int) -> Any:
    dist = importlib.import_module(f"{ppl}.distributions")
    if ppl == "pyro":
        pyro, torch = importlib.import_module("pyro"), importlib.import_module("torch")

        def of_pyro(X, y):
            weights = pyro.sample("weights", dist.Normal(torch.zeros(dim), 1.0).to_event(1))
            with pyro.plate("data", num_rows, subsample=y):
                pyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

        return of_pyro
    numpyro, jnp = importlib.import_module("numpyro"), importlib.import_module("jax.numpy")

    def of_numpyro(X, y):
        weights = numpyro.sample("weights", dist.Normal(jnp.zeros(dim), 1.0).to_event(1))
        with numpyro.plate("data", num_rows, subsample_size=len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

    return of_numpyro


def peak() -> float:
    """Of the process's memory, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ppl", choices=PPLS, default="numpyro")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=50)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--time-limit", type=float, default=math.inf, help="in seconds")
    options = parser.parse_args()
    weights = np.random.default_rng(0).normal(size=options.dim).astype("f4") / options.dim**0.5
    fit = importlib.import_module(f"{options.ppl}_ngvi").fit
    passes, reading = 0, 0.0

    def batches() -> Iterator[tuple]:
        nonlocal passes, reading
        passes += 1
        for start in range(0, options.rows, options.batch):
            began = time.process_time()
            batch = rows(start, min(start + options.batch, options.rows), weights)
            if options.ppl == "pyro":
                batch = tuple(map(importlib.import_module("torch").from_numpy, batch))
            reading += time.process_time() - began
            yield batch

    model = model_of(options.ppl, options.rows, options.dim)
    began, before = time.process_time(), peak()
    result = fit(model, batches=batches, time_limit=options.time_limit, progress_bar=False)
    taken = time.process_time() - began
    error = np.abs(np.asarray(result.posterior.mean) - weights).max()
    size = options.rows * (options.dim + 1) * 4 / 2**30
    print(
        f"{options.ppl}, {options.rows:,} rows of {options.dim} numbers ({size:.2f} GB), batches "
        f"of {options.batch:,}: {result.reason}. {cost(result).gradients} gradients, {passes} "
        f"passes; {taken:.0f} s of CPU, {reading:.0f} of them for the rows; peak {peak():.2f} GB, "
        f"before {before:.2f}. Largest difference from the weights that made the data {error:.4f}."
    )


if __name__ == "__main__":
    main()
