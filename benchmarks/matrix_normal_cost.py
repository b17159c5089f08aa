"""Cost of a step with MatrixNormal on LeNet-5, as a ratio to the same step with Diagonal.

LeNet-5 (ReLU, max-pooling, d = 61,706) on random images of 28 x 28, minibatches of 128 of 10,000.
Both families are stepped in turn, round by round, in one process; the ratio is taken round by
round, of CPU time.

    python -m benchmarks matrix_normal_cost --ppl numpyro --rounds 30

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from examples.machine import describe

from . import lenet

CASES = ("Snngm", "IVON", "BLR", "VOGN")
FAMILIES = ("diagonal", "matrix_normal")


def rule(case: str, ngvi: Any, trace_elbo: Callable) -> tuple[Any, Any]:
    """An optimiser and the loss that goes with it, of either package."""
    if case == "Snngm":
        return ngvi.Snngm(), trace_elbo()
    if case == "VOGN":
        return ngvi.optim.VOGN(), ngvi.NaturalELBO(1, "gauss_newton", num_gradients=1)
    return getattr(ngvi, case)(), ngvi.NaturalELBO(1, "stein")


def numpyro_steps(case: str, batch: int, seed: int) -> list[Callable]:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import Trace_ELBO

    import numpyro_ngvi

    model = lenet.numpyro_model()
    images, labels = map(jnp.asarray, lenet.data(batch, seed))

    def stepper(family: str) -> Callable:
        guide = numpyro_ngvi.NaturalGaussianGuide(model, family, init_scale=0.01)
        optim, loss = rule(case, numpyro_ngvi, Trace_ELBO)
        svi = numpyro_ngvi.SVI(model, guide, optim, loss, rng_key=jax.random.key(seed))
        return lambda: float(svi.step(images, labels))

    return [stepper(family) for family in FAMILIES]


def pyro_steps(case: str, batch: int, seed: int) -> list[Callable]:
    import pyro
    import torch
    from pyro.infer import SVI, Trace_ELBO

    import pyro_ngvi

    torch.set_num_threads(1)
    pyro.set_rng_seed(seed)
    model = lenet.pyro_model()
    images, labels = map(torch.as_tensor, lenet.data(batch, seed))

    def stepper(family: str) -> Callable:
        guide = pyro_ngvi.NaturalGaussianGuide(model, family, init_scale=0.01)
        guide._pyro_name = family  # parameters are stored by name
        optim, loss = rule(case, pyro_ngvi, Trace_ELBO)
        svi = SVI(model, guide, optim, loss)
        return lambda: svi.step(images, labels)

    return [stepper(family) for family in FAMILIES]


def measure(ppl: str, case: str, batch: int, rounds: int, seed: int) -> None:
    steps = {"numpyro": numpyro_steps, "pyro": pyro_steps}[ppl](case, batch, seed)
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 3):
        for which in (0, 1) if turn % 2 else (1, 0):
            begin = time.process_time()
            steps[which]()
            if turn >= 3:
                times[which].append(1e3 * (time.process_time() - begin))
    first, middle, last = statistics.quantiles([b / a for a, b in zip(*times, strict=True)], n=4)
    print(
        f"{ppl:8s} {case:6s} {statistics.median(times[0]):11.1f} "
        f"{statistics.median(times[1]):16.1f}  {middle:.2f} ({first:.2f}-{last:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ppl", choices=("numpyro", "pyro"), nargs="+", default=["numpyro", "pyro"]
    )
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    options = parser.parse_args()
    if options.here:
        measure(options.ppl[0], options.case[0], options.batch, options.rounds, options.seed)
        return
    print(describe())
    print("PPL      rule   diagonal ms matrix_normal ms  ratio (quartiles)")
    for ppl in options.ppl:
        for case in options.case:
            rest = ["--batch", str(options.batch), "--rounds", str(options.rounds)]
            seed = ["--seed", str(options.seed)]
            one = ["--here", "--ppl", ppl, "--case", case]
            subprocess.run([sys.executable, "-m", __spec__.name, *one, *rest, *seed], check=False)


if __name__ == "__main__":
    main()
