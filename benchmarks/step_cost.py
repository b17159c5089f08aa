"""Cost of one first-order natural-gradient step, as a ratio to the stock guide's.

NaturalGaussianGuide + Snngm, with a step size ("ngvi") and without ("auto", as a ratio to that
with one), against AutoMultivariateNormal + Adam on the same logistic
regression, in the same run, in turn: each round times a block of steps of either, and the
ratio is taken round by round, so that a drifting machine does not matter.

    python -m benchmarks step_cost --dims 50 500 --rounds 20

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np

from examples.machine import describe

NUM_ROWS = 1000
PRIOR_SCALE = 10.0
STEPPERS = ("stock", "ngvi", "auto")


def make_data(dim: int, seed: int, num_rows: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((num_rows, dim), np.float32) / np.float32(np.sqrt(dim))
    logits = design @ rng.standard_normal(dim, np.float32)
    return design, (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def numpyro_steppers(
    dim: int,
    num_particles: int,
    seed: int,
    num_rows: int = NUM_ROWS,
    batch: int | None = None,
    names: Iterable[str] = STEPPERS,
) -> dict[str, Callable]:
    """By name, a function of a number of steps, which returns when they are done.

    :param batch: rows that a step sees; by default all.
    :param names: those of ``STEPPERS``, or "blr": ``BLR()`` with ``NaturalELBO()``.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, Snngm

    design, outcome = map(jnp.asarray, make_data(dim, seed, num_rows))

    def model(design: jax.Array, outcome: jax.Array) -> None:
        weights = numpyro.sample("w", dist.Normal(0, PRIOR_SCALE).expand([dim]).to_event(1))
        with numpyro.plate("rows", num_rows, subsample_size=batch) as rows:
            if batch is not None:
                design, outcome = design[rows], outcome[rows]
            numpyro.sample("y", dist.Bernoulli(logits=design @ weights), obs=outcome)

    def stepper(guide: Callable, optim: object, elbo: object = None) -> Callable:
        svi = SVI(model, guide, optim, elbo or Trace_ELBO(num_particles=num_particles))
        state = svi.init(jax.random.key(seed), design, outcome)
        update = jax.jit(svi.update)

        def run(num_steps: int) -> None:
            nonlocal state
            for _ in range(num_steps):
                state, loss = update(state, design, outcome)
            loss.block_until_ready()

        return run

    def natural() -> NaturalGaussianGuide:
        return NaturalGaussianGuide(model, "covariance_cholesky")

    makers = {
        "stock": lambda: stepper(AutoMultivariateNormal(model), numpyro.optim.Adam(1e-3)),
        "ngvi": lambda: stepper(natural(), Snngm(1e-3)),
        "auto": lambda: stepper(natural(), Snngm()),
        "blr": lambda: stepper(natural(), BLR(), NaturalELBO()),
    }
    return {name: makers[name]() for name in names}


def pyro_steppers(dim: int, num_particles: int, seed: int) -> dict[str, Callable]:
    """A function of a number of steps for either guide."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoMultivariateNormal

    from pyro_ngvi import NaturalGaussianGuide, Snngm

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    design, outcome = map(torch.from_numpy, make_data(dim, seed))

    def model(design: torch.Tensor, outcome: torch.Tensor) -> None:
        weights = pyro.sample("w", dist.Normal(0, PRIOR_SCALE).expand([dim]).to_event(1))
        with pyro.plate("rows", NUM_ROWS):
            logits = (design @ weights.unsqueeze(-1)).squeeze(-1)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=outcome)

    def stepper(guide: Callable, optim: pyro.optim.PyroOptim) -> Callable:
        elbo = Trace_ELBO(
            num_particles=num_particles,
            vectorize_particles=num_particles > 1,
            max_plate_nesting=1,
        )
        svi = SVI(model, guide, optim, elbo)

        scope = None  # two guides of one class are stepped in turn, each with its own parameters

        def run(num_steps: int) -> None:
            nonlocal scope
            with pyro.get_param_store().scope(scope) as scope:
                for _ in range(num_steps):
                    svi.step(design, outcome)

        return run

    return {
        "stock": stepper(AutoMultivariateNormal(model), pyro.optim.Adam({"lr": 1e-3})),
        "ngvi": stepper(NaturalGaussianGuide(model, "covariance_cholesky"), Snngm({"lr": 1e-3})),
        "auto": stepper(NaturalGaussianGuide(model, "covariance_cholesky"), Snngm()),
    }


def measure(steppers: dict[str, Callable], rounds: int, block: int) -> dict[str, list[float]]:
    """Milliseconds per step of either, by round."""
    for run in steppers.values():
        run(block)  # compilation and first calls
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for index in range(rounds):
        # Either goes first in turn: whoever follows finds the other's data in the caches.
        order = list(steppers) if index % 2 else list(steppers)[::-1]
        for name in order:
            start = time.perf_counter()
            steppers[name](block)
            times[name].append(1e3 * (time.perf_counter() - start) / block)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--particles", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--ppl", choices=["numpyro", "pyro"], nargs="+", default=["numpyro", "pyro"]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=50, help="steps timed together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe())
    print(f"{NUM_ROWS} rows, {options.rounds} rounds of {options.block} steps, seed {options.seed}")
    print(
        f"{'PPL':8s} {'d':>5s} {'draws':>5s} {'stock ms':>9s} {'ngvi ms':>9s}  "
        f"{'ratio (quartiles)':17s} {'auto ms':>9s}  ratio (quartiles)"
    )
    make = {"numpyro": numpyro_steppers, "pyro": pyro_steppers}
    for ppl in options.ppl:
        for dim in options.dims:
            for num_particles in options.particles:
                steppers = make[ppl](dim, num_particles, options.seed)
                times = measure(steppers, options.rounds, options.block)
                middle = {name: statistics.median(values) for name, values in times.items()}
                print(
                    f"{ppl:8s} {dim:5d} {num_particles:5d} {middle['stock']:9.3f} "
                    f"{middle['ngvi']:9.3f}  {ratio(times['ngvi'], times['stock']):17s} "
                    f"{middle['auto']:9.3f}  {ratio(times['auto'], times['ngvi'])}",
                    flush=True,
                )


def ratio(times: list[float], others: list[float]) -> str:
    """Of two steppers' times, round by round: median and quartiles."""
    ratios = [time / other for time, other in zip(times, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
