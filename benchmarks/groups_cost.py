"""What a step of ``fit`` costs in a hierarchical model, by the number of its groups.

Logistic regression with a random intercept: two coefficients and the log sd of the intercepts,
five observations a group, in float64. A step over one group of draws evaluates gradients at 129
points, or at fewer where there are few groups. A case is a process of its own: processor seconds of
a step (the median of those that had as few draws as the first), of everything before the first
step (structure, compilation, search for a start), and the peak of its memory. On two cores that
much else was running on: 0.01, 0.25 and 2.54 s a step with 10^3, 10^4 and 10^5 groups, 0.4, 0.9 and
3.8 GB (GVA).

    python -m benchmarks groups_cost --groups 1000 10000 100000 --methods GVA RVB2

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np

from examples.machine import describe

OBSERVATIONS = 5
STEPS = 8


def data(num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcome, covariate, group of each row."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(num), OBSERVATIONS)
    x = rng.normal(size=len(group))
    logits = -0.5 + 0.8 * x + 1.5 * rng.normal(size=num)[group]
    return (rng.random(len(group)) < 1 / (1 + np.exp(-logits))).astype(float), x, group


def case(num: int, method: str) -> None:
    """One fit, stopped after a few steps; prints a row."""
    import jax
    import numpyro
    import numpyro.distributions as dist

    from numpyro_ngvi import ReparametrizedGaussianGuide, fit

    jax.config.update("jax_enable_x64", True)

    def model(y: Any, x: Any, group: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("groups", num):
            effect = numpyro.sample("effect", dist.Normal(0.0, scale))
        with numpyro.plate("rows", len(y)):
            logits = beta[0] + beta[1] * x + effect[group]
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    times: list[float] = []

    def stop(*_: Any) -> None:
        times.append(time.process_time())
        if len(times) > STEPS:
            raise KeyboardInterrupt

    guide = None if method == "GVA" else ReparametrizedGaussianGuide(model, order=int(method[-1]))
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"guide": guide, "reparametrize": False, "callback": stop, "progress_bar": False}
        result = fit(model, *data(num), **options)
    steps, draws = np.diff(times), np.array(result.trace.num_draws[1 : len(times)])
    steps = [step for step, count in zip(steps, draws, strict=False) if count == draws[0]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {num:,} | {method} ({result.family_name}) | {result.dim:,} | {draws[0]} | "
        f"{statistics.median(steps):.3g} | {times[0] - begin:.1f} | {peak:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--methods", nargs="*", default=["GVA", "RVB2"])
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case(int(options.case[0]), options.case[1])
        return
    print(describe())
    header = ("groups", "method", "latents", "points", "CPU s a step", "CPU s before", "peak GB")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    for method in options.methods:
        for num in options.groups:
            command = [sys.executable, "-m", __spec__.name, "--case", str(num), method]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
