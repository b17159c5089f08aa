"""Cost of a step with SparsePrecision, as a ratio to one gradient of the log density.

A random-intercept logistic regression with n locals and 10 globals (nine coefficients and the
intercepts' scale), seven observations a local. One step is a stock ``SVI`` update with one draw,
``Trace_ELBO`` and ``Snngm``; it contains one gradient of the log density. Both are timed in turn,
round by round. Every case runs in a process of its own, whose peak memory is reported beside that
of the same process before the guide exists; so is the time in which the guide finds its structure.

    python -m benchmarks sparse_cost --locals 1000 10000 100000

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from examples.machine import describe

NUM_COEFFICIENTS = 9
NUM_OBSERVATIONS = 7

MODULE = "benchmarks.sparse_cost"
PPLS = ("numpyro", "pyro")


def make_data(num_locals: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Design, group of each row, outcome."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(num_locals), NUM_OBSERVATIONS)
    design = rng.normal(size=(len(group), NUM_COEFFICIENTS)) / 3
    logits = design @ rng.normal(size=NUM_COEFFICIENTS) + 2 * rng.normal(size=num_locals)[group]
    outcome = rng.random(len(group)) < 1 / (1 + np.exp(-logits))
    return design.astype(np.float32), group, outcome.astype(np.float32)


def numpyro_case(num_locals: int, seed: int) -> tuple[Callable, Callable, Callable, Callable]:
    """Set-up, one gradient, one step, reading the posterior."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Predictive, Trace_ELBO
    from numpyro.infer.util import potential_energy

    from ngvi.latents.hierarchy import find_hierarchy
    from numpyro_ngvi import NaturalGaussianGuide, Snngm
    from numpyro_ngvi.guide.layout import layout_of

    data = tuple(map(jnp.asarray, make_data(num_locals, seed)))

    def model(design: jax.Array, group: jax.Array, outcome: jax.Array) -> None:
        weights = numpyro.sample("w", dist.Normal(0, 3).expand([NUM_COEFFICIENTS]).to_event(1))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        with numpyro.plate("groups", num_locals):
            intercept = numpyro.sample("intercept", dist.Normal(0, scale))
        with numpyro.plate("rows", len(outcome)):
            logits = design @ weights + intercept[group]
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=outcome)

    start = {
        "w": jnp.zeros(NUM_COEFFICIENTS),
        "scale": jnp.zeros(()),
        "intercept": 0.1 * jnp.ones(num_locals),
    }
    seeded = numpyro.handlers.seed(model, 0)
    gradient = jax.jit(jax.grad(lambda values, *a: potential_energy(seeded, a, {}, values)))
    guide = NaturalGaussianGuide(model, "sparse_precision")
    svi = SVI(model, guide, Snngm(1e-3), Trace_ELBO())
    update = jax.jit(svi.update)
    state = None

    def set_up() -> float:
        nonlocal state
        plain = NaturalGaussianGuide(model, "diagonal")
        numpyro.handlers.seed(plain, 0)(*data)
        begin = time.perf_counter()
        find_hierarchy(layout_of(plain, model, data, {}))
        seconds = time.perf_counter() - begin
        state = svi.init(jax.random.key(seed), *data)
        return seconds

    def one_gradient(num: int) -> None:
        for _ in range(num):
            jax.block_until_ready(gradient(start, *data))

    def step(num: int) -> None:
        nonlocal state
        for _ in range(num):
            state, loss = update(state, *data)
            loss.block_until_ready()

    def read() -> None:
        params = svi.get_params(state)
        key = jax.random.key(0)
        posterior = guide.get_posterior(params)
        posterior.log_prob(posterior.sample(key, (3,))).block_until_ready()
        guide.quantiles(params, [0.05, 0.5, 0.95])
        Predictive(model, guide=guide, params=params, num_samples=3)(key, *data)

    return set_up, one_gradient, step, read


def pyro_case(num_locals: int, seed: int) -> tuple[Callable, Callable, Callable, Callable]:
    """Set-up, one gradient, one step, reading the posterior."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Predictive, Trace_ELBO

    from ngvi.latents.hierarchy import find_hierarchy
    from pyro_ngvi import NaturalGaussianGuide, Snngm
    from pyro_ngvi.guide.layout import layout_of

    pyro.set_rng_seed(seed)
    data = tuple(map(torch.from_numpy, make_data(num_locals, seed)))

    def model(design: torch.Tensor, group: torch.Tensor, outcome: torch.Tensor) -> None:
        weights = pyro.sample("w", dist.Normal(0, 3).expand([NUM_COEFFICIENTS]).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(0, 1))
        with pyro.plate("groups", num_locals):
            intercept = pyro.sample("intercept", dist.Normal(0, scale))
        with pyro.plate("rows", len(outcome)):
            logits = (design @ weights.unsqueeze(-1)).squeeze(-1) + intercept[..., group]
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=outcome)

    start = {
        "w": torch.zeros(NUM_COEFFICIENTS),
        "scale": torch.tensor(1.0),
        "intercept": torch.full((num_locals,), 0.1),
    }

    def one_gradient(num: int) -> None:
        for _ in range(num):
            values = {name: value.clone().requires_grad_() for name, value in start.items()}
            trace = pyro.poutine.trace(pyro.condition(model, values)).get_trace(*data)
            trace.log_prob_sum().backward()

    guide = NaturalGaussianGuide(model, "sparse_precision")
    svi = SVI(model, guide, Snngm({"lr": 1e-3}), Trace_ELBO())

    def set_up() -> float:
        plain = NaturalGaussianGuide(model, "diagonal")
        plain(*data)
        begin = time.perf_counter()
        find_hierarchy(layout_of(plain, model, data, {}))
        seconds = time.perf_counter() - begin
        guide(*data)
        return seconds

    def step(num: int) -> None:
        for _ in range(num):
            svi.step(*data)

    def read() -> None:
        posterior = guide.get_posterior()
        posterior.log_prob(posterior.sample((3,)))
        guide.quantiles([0.05, 0.5, 0.95])
        Predictive(model, guide=guide, num_samples=3)(*data)

    return set_up, one_gradient, step, read


def peak_memory() -> float:
    """The process's peak so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_case(ppl: str, num_locals: int, rounds: int, seed: int) -> None:
    """Measure one case and print its line."""
    make = {"numpyro": numpyro_case, "pyro": pyro_case}[ppl]
    set_up, one_gradient, step, read = make(num_locals, seed)
    one_gradient(1)
    before = peak_memory()
    discovery = set_up()
    step(2)
    gc.collect()
    block = max(1, 20_000 // num_locals)
    gradients, steps = [], []
    for index in range(rounds):
        pair = [(one_gradient, gradients), (step, steps)]
        for function, times in pair if index % 2 else pair[::-1]:
            begin = time.perf_counter()
            function(block)
            times.append(1e3 * (time.perf_counter() - begin) / block)
    trained = peak_memory()
    read()
    ratios = [s / g for s, g in zip(steps, gradients, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{ppl:8s} {num_locals:7d} {statistics.median(gradients):11.3f} "
        f"{statistics.median(steps):8.3f}  {middle:.2f} ({low:.2f}-{high:.2f})  "
        f"{discovery:9.2f}  {before:6.0f} {trained:6.0f} {peak_memory():6.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--locals", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    options = parser.parse_args()
    if options.here:
        run_case(options.ppl[0], options.locals[0], options.rounds, options.seed)
        return
    print(describe())
    print("peak MiB: before the guide, after training, after reading the posterior")
    print("PPL       locals gradient ms  step ms  ratio (quartiles)  discovery s   peak MiB")
    for ppl in options.ppl:
        for num_locals in options.locals:
            case = ["--here", "--ppl", ppl, "--locals", str(num_locals)]
            rest = ["--rounds", str(options.rounds), "--seed", str(options.seed)]
            subprocess.run([sys.executable, "-m", MODULE, *case, *rest], check=True)


if __name__ == "__main__":
    main()
