"""What steps and fits take where the arrays are: on a GPU if there is one, else on the CPU.

Steps are those of ``benchmarks vogn`` on a network of 784-1000-1000-10 units (d = 1,796,010) with
batches of 512, of ``torch.optim.AdamW`` and ``ngvi.torch.IVON`` in a plain loop on the same, and of
``BLR()`` on a logistic regression with d = 500. Blocks of steps are timed in turn, and then one
waits for the device; the median over rounds. Fits are a logistic regression of 10^6 rows (d = 50)
and counts in 5,000 groups of ten, each the first one of its process and a second one, with other
responses. A case is a process of its own.

    python -m benchmarks devices
    python -m benchmarks devices --case pyro numpyro --rounds 3 --block 2

Time: 10 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.machine import describe

from . import step_cost, vogn
from .gauntlet.models.ppl import Ppl

PPLS, BATCH, DIM, SECONDS = ("pyro", "numpyro"), 512, 500, 150
CASES = (
    "torch",
    *(f"{what} {ppl}" for what in ("network", "blr", "rows", "groups") for ppl in PPLS),
)
RULES = tuple(name for name in vogn.CASES if name != "SLANG")


def in_turn(steps: dict[str, Callable], ready: Callable, options: Any) -> dict[str, float]:
    """Milliseconds a step, the median over rounds of a block of steps each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name, step in steps.items():
        begin = time.perf_counter()
        ready(step())
        print(f"  {name}: first {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
        ready([step() for _ in range(3)][-1])
    for _ in range(options.rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(options.block):
                last = step()
            ready(last)
            times[name].append(1e3 * (time.perf_counter() - begin) / options.block)
    return {name: statistics.median(found) for name, found in times.items()}


def waits(ppl_name: str) -> Callable:
    """What waits for the device; torch's device is the default from here on."""
    if ppl_name == "numpyro":
        import jax

        return jax.block_until_ready
    import torch

    if not torch.cuda.is_available():
        return lambda _: None
    torch.set_default_device("cuda")
    return lambda _: torch.cuda.synchronize()


def torch_steps(options: Any) -> dict[str, float]:
    ready = waits("pyro")
    import torch
    from torch import nn

    from ngvi.torch import IVON

    def stepper(make: Callable) -> Callable:
        torch.manual_seed(0)
        sizes = vogn.layers("wide")
        layers = [each for rows, columns in sizes for each in (nn.Linear(rows, columns), nn.ReLU())]
        network = nn.Sequential(*layers[:-1])
        optimizer = make(network.parameters())

        def step() -> None:
            if isinstance(optimizer, IVON):
                with optimizer.sampled_params(train=True):
                    nn.functional.cross_entropy(network(x), y).backward()
            else:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()

        return step

    x, y = (torch.as_tensor(part[:BATCH]) for part in vogn.data("wide", 0))
    makers = {
        "AdamW": torch.optim.AdamW,
        "AdamW, fused": lambda params: torch.optim.AdamW(params, fused=True),
        "IVON": lambda params: IVON(params, ess=vogn.NUM_DATA),
    }
    return in_turn({name: stepper(make) for name, make in makers.items()}, ready, options)


def network_steps(ppl_name: str, options: Any) -> dict[str, float]:
    ready, ppl = waits(ppl_name), Ppl(ppl_name)
    x, y = (ppl.array(part[:BATCH]) for part in vogn.data("wide", 0))
    make = {"numpyro": vogn.numpyro_step, "pyro": vogn.pyro_step}[ppl_name]
    steps = {name: make("wide", name, 0) for name in options.rules}
    return in_turn(
        {name: (lambda step=step: step(x, y)) for name, step in steps.items()}, ready, options
    )


def blr_steps(ppl_name: str, options: Any) -> dict[str, float]:
    ready, ppl = waits(ppl_name), Ppl(ppl_name)
    X, y = map(ppl.array, step_cost.make_data(DIM, 0))
    ngvi = __import__(f"{ppl_name}_ngvi")

    def model(X: Any, y: Any) -> None:
        w = ppl.normals("w", DIM, step_cost.PRIOR_SCALE)
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=X @ w), obs=y)

    guide = ngvi.NaturalGaussianGuide(model, "covariance_cholesky")
    more = {}
    if ppl_name == "numpyro":
        import jax

        more["rng_key"] = jax.random.key(0)
    svi = ngvi.SVI(model, guide, ngvi.BLR(), ngvi.NaturalELBO(), **more)
    return in_turn({"BLR": lambda: svi.step(X, y)}, ready, options)


def two_fits(ppl_name: str, model: Callable, data: list[tuple]) -> dict[str, Any]:
    """Seconds until the verdict, of a first and a second one, and what they say."""
    fit, ppl, found = __import__(f"{ppl_name}_ngvi").fit, Ppl(ppl_name), {}
    for kind, arrays in zip(("first", "second"), data, strict=True):
        args = tuple(map(ppl.array, arrays))
        begin = time.perf_counter()
        result = fit(model, *args, progress_bar=False)
        found[kind], found[f"{kind}, verdict"] = time.perf_counter() - begin, result.verdict
        print(f"  {ppl_name}: {found}", file=sys.stderr, flush=True)
    return found


def rows(ppl_name: str, options: Any) -> dict[str, Any]:
    waits(ppl_name)
    ppl = Ppl(ppl_name)

    def model(X: Any, y: Any) -> None:
        w = ppl.normals("w", X.shape[1])
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=X @ w), obs=y)

    def data(seed: int) -> tuple:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((options.rows, 50), np.float32)
        logits = X @ (0.3 * rng.standard_normal(50, np.float32))
        return X, (rng.random(options.rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)

    return two_fits(ppl_name, model, [data(0), data(1)])


def groups(ppl_name: str, options: Any) -> dict[str, Any]:
    waits(ppl_name)
    ppl = Ppl(ppl_name)
    x = np.random.default_rng(0).normal(size=10 * options.groups)
    group = np.repeat(np.arange(options.groups), 10)

    def model(x: Any, group: Any, y: Any) -> None:
        mean = ppl.sample("mean", ppl.dist.Normal(0.0, 1.0))
        slope = ppl.sample("slope", ppl.dist.Normal(0.0, 1.0))
        scale = ppl.sample("scale", ppl.dist.HalfNormal(1.0))
        with ppl.plate("groups", options.groups):
            effect = ppl.sample("effect", ppl.dist.Normal(0.0, scale))
        with ppl.plate("rows", len(y)):
            rate = ppl.np.exp(mean + slope * x + effect[group])
            ppl.sample("y", ppl.dist.Poisson(rate), obs=y)

    def data(seed: int) -> tuple:
        rng = np.random.default_rng(seed)
        rate = np.exp(0.5 + 0.3 * x + 0.6 * rng.normal(size=options.groups)[group])
        return x, group, rng.poisson(rate).astype(float)

    return two_fits(ppl_name, model, [data(1), data(2)])


def run(case: str, options: Any) -> dict[str, Any]:
    """A case in this process."""
    if case == "torch":
        return torch_steps(options)
    what, ppl_name = case.split()
    make = {"network": network_steps, "blr": blr_steps, "rows": rows, "groups": groups}[what]
    return make(ppl_name, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--rules", choices=vogn.CASES, nargs="+", default=list(RULES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=10, help="steps timed together")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the regression")
    parser.add_argument("--groups", type=int, default=5_000, help="of counts")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most for a case")
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(run(options.case[0], options)), flush=True)
        return
    print(describe(), flush=True)
    start = sys.argv[1:]
    for case in options.case:
        command = [sys.executable, "-m", __spec__.name, *start, "--here", "--case", case]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=options.seconds
            )
            found = done.stdout.strip() or f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            found = f"nothing within {options.seconds:g} s"
        print(f"{case}: {found}", flush=True)


if __name__ == "__main__":
    main()
