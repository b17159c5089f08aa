"""Cost of a step with LowRankPrecision, as a ratio to the same step with Diagonal.

One step is a stock ``SVI`` update with one draw, ``Trace_ELBO`` and ``Snngm``. Both families are
stepped in turn, round by round, in one process. Two models with d latents:

- ``means``: every latent has a normal prior and one observation, the least that a model can do;
- ``regression``: a logistic regression on d features, a minibatch of 64 dense rows a step.

    python -m benchmarks low_rank_cost --dim 1000000 --rank 10

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

from examples.machine import describe

NUM_ROWS = 64

MODULE = "benchmarks.low_rank_cost"
PPLS = ("numpyro", "pyro")
MODELS = ("means", "regression")
FAMILIES = ("diagonal", "low_rank")


def make_data(model: str, dim: int, seed: int) -> tuple[np.ndarray, ...]:
    """Observations, or design and outcome."""
    rng = np.random.default_rng(seed)
    if model == "means":
        return (rng.normal(size=dim).astype(np.float32),)
    design = rng.standard_normal((NUM_ROWS, dim), np.float32) / np.float32(np.sqrt(dim))
    return design, (rng.random(NUM_ROWS) < 0.5).astype(np.float32)


def numpyro_case(
    name: str, dim: int, rank: int, seed: int, families: Iterable[str] = FAMILIES
) -> list[Callable]:
    """A step with each family: ``Diagonal`` and ``LowRankPrecision``."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO

    from numpyro_ngvi import NaturalGaussianGuide, Snngm
    from numpyro_ngvi.families import Diagonal, LowRankPrecision

    data = tuple(map(jnp.asarray, make_data(name, dim, seed)))

    def means(observed: jax.Array) -> None:
        with numpyro.plate("latents", dim):
            theta = numpyro.sample("theta", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(theta, 1), obs=observed)

    def regression(design: jax.Array, outcome: jax.Array) -> None:
        weights = numpyro.sample("theta", dist.Normal(0, 1).expand([dim]).to_event(1))
        with numpyro.plate("rows", len(outcome)):
            numpyro.sample("y", dist.Bernoulli(logits=design @ weights), obs=outcome)

    model = {"means": means, "regression": regression}[name]

    def stepper(family: object) -> Callable:
        svi = SVI(model, NaturalGaussianGuide(model, family), Snngm(1e-3), Trace_ELBO())
        # The old state's memory is the new one's, as within svi.run.
        update = jax.jit(svi.update, donate_argnums=0)
        state = jax.tree.map(jnp.copy, svi.init(jax.random.key(seed), *data))

        def step() -> None:
            nonlocal state
            state, loss = update(state, *data)
            loss.block_until_ready()

        return step

    named = {"diagonal": Diagonal(), "low_rank": LowRankPrecision(rank=rank)}
    return [stepper(named[family]) for family in families]


def pyro_case(name: str, dim: int, rank: int, seed: int) -> list[Callable]:
    """A step with ``Diagonal`` and one with ``LowRankPrecision``."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO

    from pyro_ngvi import NaturalGaussianGuide, Snngm
    from pyro_ngvi.families import Diagonal, LowRankPrecision

    pyro.set_rng_seed(seed)
    data = tuple(map(torch.from_numpy, make_data(name, dim, seed)))

    def means(observed: torch.Tensor) -> None:
        with pyro.plate("latents", dim):
            theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=observed)

    def regression(design: torch.Tensor, outcome: torch.Tensor) -> None:
        weights = pyro.sample("theta", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
        with pyro.plate("rows", len(outcome)):
            pyro.sample("y", dist.Bernoulli(logits=design @ weights), obs=outcome)

    model = {"means": means, "regression": regression}[name]

    def stepper(family: object, label: str) -> Callable:
        guide = NaturalGaussianGuide(model, family)
        guide._pyro_name = label  # parameters are stored by name
        svi = SVI(model, guide, Snngm({"lr": 1e-3}), Trace_ELBO())
        return lambda: svi.step(*data)

    return [
        stepper(Diagonal(), "diagonal"),
        stepper(LowRankPrecision(rank=rank), "low_rank"),
    ]


def run_case(ppl: str, model: str, dim: int, rank: int, rounds: int, seed: int) -> None:
    """Measure one case and print its line."""
    make = {"numpyro": numpyro_case, "pyro": pyro_case}[ppl]
    steps = make(model, dim, rank, seed)
    times: list[list[float]] = [[], []]
    for step in steps:
        step()
        step()
    for index in range(rounds):
        for which in (0, 1) if index % 2 else (1, 0):
            begin = time.perf_counter()
            steps[which]()
            times[which].append(1e3 * (time.perf_counter() - begin))
    ratios = [low / diagonal for diagonal, low in zip(*times, strict=True)]
    first, middle, last = statistics.quantiles(ratios, n=4)
    print(
        f"{ppl:8s} {model:10s} {dim:8d} {rank:4d} {statistics.median(times[0]):11.1f} "
        f"{statistics.median(times[1]):11.1f}  {middle:.2f} ({first:.2f}-{last:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    options = parser.parse_args()
    if options.here:
        run_case(
            options.ppl[0],
            options.model[0],
            options.dim,
            options.rank,
            options.rounds,
            options.seed,
        )
        return
    print(describe())
    print("PPL      model           d rank diagonal ms low rank ms  ratio (quartiles)")
    for ppl in options.ppl:
        for model in options.model:
            case = ["--here", "--ppl", ppl, "--model", model, "--dim", str(options.dim)]
            rest = ["--rank", str(options.rank), "--rounds", str(options.rounds)]
            seed = ["--seed", str(options.seed)]
            subprocess.run([sys.executable, "-m", MODULE, *case, *rest, *seed], check=True)


if __name__ == "__main__":
    main()
