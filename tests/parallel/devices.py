"""Runs on one and on several devices of JAX, which a process must be given before it imports JAX.

``python -m tests.parallel.devices`` prints what four devices of one process have found, as JSON;
with the arguments ``RANK SIZE PORT`` it is one of several processes.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from typing import Any

if __name__ == "__main__":
    count = max(1, 4 // len(sys.argv))
    flags = os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={count}"
    os.environ["XLA_FLAGS"] = " ".join(flags)

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from numpyro_ngvi import BLR, IVON, SVI, NaturalELBO, NaturalGaussianGuide, fit

NUM_ROWS, DIM, STEPS = 96, 3, 6

RUNS: dict[str, tuple] = {
    "dense": ("full", BLR, NaturalELBO),
    "networks": ("diagonal", IVON, lambda: NaturalELBO(4, "stein")),
    "locals": ("sparse_precision", BLR, lambda: NaturalELBO(4, "stein")),
}


def model(X, y):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(DIM), scale).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)


def groups(X, y):
    """A mean for every row."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("groups", len(y)):
        means = numpyro.sample("means", dist.Normal(mu, scale))
        numpyro.sample("y", dist.Normal(means[:, None], 1.0).to_event(1), obs=X)


def data(num_rows: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, DIM))
    return X, (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-X.sum(1)))).astype(float)


def sharded(arrays: tuple, devices: Any) -> list:
    """Rows over devices."""
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    return [jax.device_put(array, sharding) for array in arrays]


def numbers(tree: Any) -> list:
    return [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(tree)]


def steps(name: str, arrays: list) -> dict[str, Any]:
    family, optimiser, elbo = RUNS[name]
    own = groups if name == "locals" else model
    guide = NaturalGaussianGuide(own, family)
    svi = SVI(own, guide, optimiser(), elbo(), rng_key=jax.random.key(0))
    losses = [float(svi.step(*arrays)) for _ in range(STEPS)]
    return {"losses": losses, "params": numbers(svi.params)}


def fitted(arrays: list) -> dict[str, Any]:
    result = fit(model, *arrays, progress_bar=False, rng_key=jax.random.key(0))
    found = [result.bound, result.cost.gradients, result.diagnostics.log_weights.mean()]
    return {"losses": found, "params": numbers(result.params), "words": result.reason}


def work(arrays: list) -> dict[str, Any]:
    """What one device does in a step."""
    guide = NaturalGaussianGuide(model, "full")
    svi = SVI(model, guide, BLR(), NaturalELBO(), rng_key=jax.random.key(0))
    svi.step(*arrays)
    program = jax.jit(svi.update).lower(svi.state, *arrays).compile()
    cost, text = program.cost_analysis(), program.as_text()
    moved = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")
    return {
        "operations": (cost[0] if isinstance(cost, list) else cost)["flops"],
        "reductions": len(re.findall(r" all-reduce(?:-start)?\(", text)),
        "moves": len(re.findall(rf" (?:{'|'.join(moved)})(?:-start)?\(", text)),
    }


def on_devices() -> dict[str, Any]:
    def over(counts: tuple, run: Any, num_rows: int = NUM_ROWS) -> list:
        return [run(sharded(data(num_rows), jax.devices()[:count])) for count in counts]

    found: dict[str, Any] = {
        "dense": over((1, 2, 4), functools.partial(steps, "dense")),
        "locals": over((1, 4), functools.partial(steps, "locals")),
        "networks": over((1, 4), functools.partial(steps, "networks")),
        "fit": over((1, 4), fitted),
        "work": over((1, 4), work, 100 * NUM_ROWS),
    }
    return found


def on_processes(rank: int, size: int, port: int) -> dict[str, Any]:
    """The same rows on the devices of several processes, each of which has only its own."""
    jax.distributed.initialize(f"localhost:{port}", size, rank)
    arrays, refused = _own_rows(rank, size), None
    try:
        fit(model, *arrays)
    except ValueError as error:
        refused = str(error)
    return {"dense": steps("dense", arrays), "refused": refused}


def _own_rows(rank: int, size: int) -> list:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    own = slice(rank * NUM_ROWS // size, (rank + 1) * NUM_ROWS // size)
    return [jax.make_array_from_process_local_data(sharding, part[own]) for part in data()]


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    place = [int(argument) for argument in sys.argv[1:]]
    print(json.dumps(on_processes(*place) if place else on_devices()))
