"""Many steps on a small model: memory, drift, and whether all stays finite.

    python -m benchmarks soak --ppl numpyro --steps 1000000
    python -m benchmarks soak --ppl pyro --minutes 60

A logistic regression of five weights, in float32. Memory is that of the process, its slope that of
a straight line through the last three quarters of the run.

Time: an hour. Data: none.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from examples.machine import describe

PPLS, OPTIMISERS = ("pyro", "numpyro"), ("BLR", "Snngm")
ROWS, DIM, LOOKS = 100, 5, 40


def resident() -> float:
    """Memory of this process in megabytes; Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, DIM)).astype("f4")
    return X, (rng.random(ROWS) < 1 / (1 + np.exp(-X.sum(1)))).astype("f4")


def pyro_blocks(optimiser: str, minutes: float, steps: int) -> Iterator[tuple]:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO

    import pyro_ngvi

    def model(X, y):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(DIM), 1.0).to_event(1))
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

    pyro.set_rng_seed(0)
    arguments = [torch.as_tensor(array) for array in data()]
    guide = pyro_ngvi.NaturalGaussianGuide(model)
    loss = pyro_ngvi.NaturalELBO() if optimiser == "BLR" else Trace_ELBO()
    rule = getattr(pyro_ngvi, optimiser)()
    svi = SVI(model, guide, rule, loss)
    began, block = time.monotonic(), max(1, steps // LOOKS)
    count = 0
    while count < steps and time.monotonic() - began < 60 * minutes:
        losses = [svi.step(*arguments) for _ in range(block)]
        count += block
        family = guide.posterior.family().detach()
        yield count, losses, family.mean.numpy(), family.stddev.numpy(), rule.num_skipped


def numpyro_blocks(optimiser: str, minutes: float, steps: int) -> Iterator[tuple]:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO

    import numpyro_ngvi

    def model(X, y):
        weights = numpyro.sample("weights", dist.Normal(np.zeros(DIM), 1.0).to_event(1))
        with numpyro.plate("data", ROWS):
            numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

    guide = numpyro_ngvi.NaturalGaussianGuide(model)
    loss = numpyro_ngvi.NaturalELBO() if optimiser == "BLR" else Trace_ELBO()
    svi = SVI(model, guide, getattr(numpyro_ngvi, optimiser)(), loss)
    X, y = data()
    state, block = svi.init(jax.random.key(0), X, y), max(1, steps // LOOKS)
    run: Callable = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: svi.update(s, X, y), state, length=block)
    )
    began, count = time.monotonic(), 0
    while count < steps and time.monotonic() - began < 60 * minutes:
        state, losses = run(state)
        count += block
        family: Any = svi.get_params(state)["auto_posterior"]
        yield count, losses, np.asarray(family.mean), np.asarray(family.stddev), "uncounted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ppl", choices=PPLS, default="numpyro")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="BLR")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    options = parser.parse_args()
    importlib.import_module(f"{options.ppl}_ngvi")
    blocks = pyro_blocks if options.ppl == "pyro" else numpyro_blocks
    rows = []
    skipped: Any = None
    run = blocks(options.optimiser, options.minutes, options.steps)
    for count, losses, mean, sd, skipped in run:  # noqa: B007
        losses = np.asarray(losses)
        assert np.isfinite(losses).all(), count
        assert np.isfinite([mean, 1 / sd]).all(), count
        rows.append((count, resident(), losses.mean(), losses.std(), *mean, *sd))
    counts, memory, bound, spread, *places = np.array(rows).T
    later = counts > counts[-1] / 4
    slope = np.polyfit(counts[later], memory[later], 1)[0] if later.sum() > 1 else math.nan
    half = len(rows) // 2
    # What moved between the halves of the run, in standard deviations of the posterior.
    means, sds = np.array(places[:DIM]), np.array(places[DIM:])
    moved = np.abs(means[:, half:].mean(1) - means[:, 1:half].mean(1)) / sds[:, -1]
    widths = sds[:, half:].mean(1) / sds[:, 1:half].mean(1) - 1
    print(
        f"{options.ppl}, {options.optimiser}: {int(counts[-1]):,} steps, {skipped} skipped, all "
        f"finite. Memory {memory[0]:.0f} MB after the first block, {memory[-1]:.0f} at the end, "
        f"slope {1e6 * slope:.3f} MB per million steps. Between the halves the loss moved by "
        f"{bound[half:].mean() - bound[1:half].mean():.4f} (sd of a step {spread[-1]:.3f}), means "
        f"by at most {moved.max():.3f} sd, widths by {100 * np.abs(widths).max():.2f}%. "
        f"{describe()}"
    )


if __name__ == "__main__":
    main()
