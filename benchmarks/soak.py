"""Many steps, fits or guides in one process: memory, drift, and whether all stays finite.

    python -m benchmarks soak --ppl numpyro --steps 1000000
    python -m benchmarks soak --ppl pyro --minutes 60
    python -m benchmarks soak --ppl pyro --fits 2000 --guides 200

A logistic regression of five weights, in float32. Memory is that of the process, its slope that of
a straight line through the last three quarters of the run.

- *Steps* of one ``SVI``, on the same rows.
- *Fits*, one after another: of a new function, for other data. Each fortieth is the first of
  another number of rows, and each tenth searches for other optima. The line leaves out the first
  hundred.
- *Guides*, one after another: each of a new function takes fifty steps of ``SVI``, and draws.

Time: an hour. Data: none.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import pages
from examples.machine import describe

PPLS, OPTIMISERS = ("pyro", "numpyro"), ("BLR", "Snngm")
ROWS, DIM, LOOKS = 100, 5, 40
#: Fits between two numbers of rows, between two searches for others, and before the line.
NEW_ROWS, SEARCHES, FIRST = 40, 10, 100


def resident() -> float:
    """Memory of this process in megabytes; Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def data(seed: int = 0, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, DIM)).astype("f4")
    return X, (rng.random(rows) < 1 / (1 + np.exp(-X.sum(1)))).astype("f4")


def made(ppl: str) -> Callable:
    """A new function, the model."""
    lib = importlib.import_module(ppl)
    zeros: Any = importlib.import_module("torch" if ppl == "pyro" else "numpy").zeros

    def model(X, y):
        weights = lib.sample("weights", lib.distributions.Normal(zeros(DIM), 1.0).to_event(1))
        with lib.plate("data", len(X)):
            lib.sample("y", lib.distributions.Bernoulli(logits=X @ weights), obs=y)

    return model


def own(ppl: str, arrays: tuple[np.ndarray, ...]) -> list:
    """Arrays of the PPL's own."""
    if ppl == "numpyro":
        return list(arrays)
    import torch

    return [torch.as_tensor(array) for array in arrays]


def pyro_blocks(optimiser: str, minutes: float, steps: int) -> Iterator[tuple]:
    import pyro
    from pyro.infer import SVI, Trace_ELBO

    import pyro_ngvi

    model = made("pyro")
    pyro.set_rng_seed(0)
    arguments = own("pyro", data())
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
    from numpyro.infer import SVI, Trace_ELBO

    import numpyro_ngvi

    model = made("numpyro")
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


def fit_one(ppl: str, index: int) -> None:
    package = importlib.import_module(f"{ppl}_ngvi")
    if ppl == "pyro":
        importlib.import_module("pyro").clear_param_store()
    arguments = own(ppl, data(index, 20 + index // NEW_ROWS))
    searches = index % SEARCHES == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"family": "diagonal", "effort": "standard" if searches else "quick"}
        result = package.fit(made(ppl), *arguments, progress_bar=False, **options)
    assert np.isfinite(result.bound)


def guide_one(ppl: str, index: int) -> None:
    package, model = importlib.import_module(f"{ppl}_ngvi"), made(ppl)
    arguments = own(ppl, data(index))
    guide = package.NaturalGaussianGuide(model)
    loss, rule, others = package.NaturalELBO(), package.BLR(), {}
    if ppl == "pyro":
        importlib.import_module("pyro").clear_param_store()
    else:
        jax = importlib.import_module("jax")
        others = {"rng_key": jax.random.key(index)}
    svi = package.SVI(model, guide, rule, loss, **others)
    losses = [float(svi.step(*arguments)) for _ in range(50)]
    assert np.isfinite(losses).all()


def memory_of(count: int, act: Callable[[int], None]) -> np.ndarray:
    """Of the process, in megabytes, after each."""
    found = []
    for index in range(count):
        act(index)
        found.append(resident())
        if (index + 1) % max(1, count // LOOKS) == 0:
            print(f"{index + 1}: {found[-1]:.1f} MB", flush=True)
    return np.array(found)


def line(memory: np.ndarray, first: int) -> float:
    """How much each takes for good, in megabytes."""
    return float(np.polyfit(np.arange(first, len(memory)), memory[first:], 1)[0])


def kept(
    ppl: str, what: str, counts: Any, memory: np.ndarray, slope: float, first: int = 0
) -> None:
    """A row of the CSV, and of the page that shows it.

    :param first: the place from which the line goes on.
    """
    row = {
        "ppl": ppl,
        "what": what,
        "count": f"{int(counts):,}",
        "MB at first": f"{memory[first]:.0f}",
        "MB at the end": f"{memory[-1]:.0f}",
        "MB each": f"{slope:.2g}",
    }
    print(row)
    about = (
        f"`python -m benchmarks soak`; memory at first is that after {FIRST} fits or guides, or a "
        "quarter of them if that is fewer, or after a block of steps. "
    )
    pages.replace("soak.csv", [row], about + describe(), ("ppl", "what"))


def one_after_another(ppl: str, what: str, count: int) -> None:
    act = functools.partial({"fits": fit_one, "guides": guide_one}[what], ppl)
    memory, first = memory_of(count, act), min(FIRST, count // 4)
    kept(ppl, what, count, memory, line(memory, first), first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ppl", choices=PPLS, default="numpyro")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="BLR")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--fits", type=int, default=0)
    parser.add_argument("--guides", type=int, default=0)
    options = parser.parse_args()
    importlib.import_module(f"{options.ppl}_ngvi")
    for what in ("fits", "guides"):
        if count := getattr(options, what):
            one_after_another(options.ppl, what, count)
    if options.fits or options.guides:
        return
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
    what = f"steps of SVI, {options.optimiser}"
    kept(options.ppl, what, counts[-1], memory, slope)


if __name__ == "__main__":
    main()
