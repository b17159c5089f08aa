"""Cost of VOGN and SLANG on a network, and of IVON with other families.

Batches are 128 of 10,000 rows; the network is 784-100-10 (d = 79,510), LeNet-5, or "wide",
784-1000-1000-10 (d = 1,796,010).

One step of each in random order, in one process, beside the gradient of the minibatch's log
density and a step of ``AutoNormal`` with Adam; the ratio is taken round by round. Then the peak of
a process of each. ``num_gradients=1`` is the papers' single draw; NaturalELBO's default is more for
the mean.

    python -m benchmarks vogn --ppl numpyro --rounds 30
    python -m benchmarks vogn --network lenet

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from examples.machine import describe

from . import lenet

NUM_DATA, BATCH, IN, OUT = 10_000, 128, 784, 10
HIDDEN = {"dense": (100,), "wide": (1000, 1000)}
#: By name: whether by IVON, and the family. Others are what their names say.
RULES = {
    "IVON": (True, "diagonal"),
    "IVON, matrices": (True, "matrix_normal"),
    "IVON, low rank": (True, "low_rank"),
    "VOGN": (False, "diagonal"),
    "SLANG": (False, "low_rank"),
}
CASES = ("gradient", "AutoNormal", *RULES)
NETWORKS = ("dense", "wide", "lenet")


def data(network: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if network == "lenet":
        return lenet.data(NUM_DATA, seed)
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(NUM_DATA, IN)).astype(np.float32)
    return images, (images @ rng.normal(size=(IN, OUT))).argmax(1)


def layers(network: str) -> list[tuple[int, int]]:
    sizes = (IN, *HIDDEN[network], OUT)
    return list(itertools.pairwise(sizes))


def numpyro_model(network: str) -> Callable:
    import jax
    import numpyro
    import numpyro.distributions as dist

    def model(images: jax.Array, labels: jax.Array) -> None:
        logits = images
        for index, (rows, columns) in enumerate(layers(network)):
            prior = dist.Normal(0, rows**-0.5).expand([rows, columns]).to_event()
            weights = numpyro.sample(f"W{index}", prior)
            bias = numpyro.sample(f"b{index}", dist.Normal(0, 1).expand([columns]).to_event())
            logits = (jax.nn.relu(logits) if index else logits) @ weights + bias
        with numpyro.plate("data", NUM_DATA, subsample_size=len(labels)):
            numpyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model


def numpyro_step(network: str, case: str, seed: int) -> Callable:
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import handlers
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.infer.util import log_density

    from numpyro_ngvi import IVON, SVI, NaturalELBO, NaturalGaussianGuide
    from numpyro_ngvi.optim import VOGN

    model = lenet.numpyro_model() if network == "lenet" else numpyro_model(network)
    key = jax.random.key(seed)
    if case == "gradient":
        seeded = handlers.seed(model, key)
        images, labels = data(network, seed)
        trace = handlers.trace(seeded).get_trace(images[:BATCH], labels[:BATCH])
        weights = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        gradient = jax.jit(jax.grad(lambda w, x, y: log_density(seeded, (x, y), {}, w)[0]))
        return lambda x, y: gradient(weights, jnp.asarray(x), jnp.asarray(y))
    if case == "AutoNormal":
        guide, optim, loss = AutoNormal(model), numpyro.optim.Adam(1e-3), Trace_ELBO()
    else:
        is_ivon, family = RULES[case]
        guide = NaturalGaussianGuide(model, family, init_scale=0.01)
        optim, loss = VOGN(), NaturalELBO(1, "gauss_newton", num_gradients=1)
        if is_ivon:
            optim, loss = IVON(), NaturalELBO(1, "stein")
    svi = SVI(model, guide, optim, loss, rng_key=key)
    return lambda x, y: svi.step(x, y)


def pyro_model(network: str) -> Callable:
    import pyro
    import pyro.distributions as dist
    import torch

    def model(images: torch.Tensor, labels: torch.Tensor) -> None:
        logits = images
        for index, (rows, columns) in enumerate(layers(network)):
            prior = dist.Normal(torch.zeros(rows, columns), rows**-0.5).to_event()
            weights = pyro.sample(f"W{index}", prior)
            bias = pyro.sample(f"b{index}", dist.Normal(torch.zeros(columns), 1.0).to_event())
            logits = (torch.relu(logits) if index else logits) @ weights + bias.unsqueeze(-2)
        with pyro.plate("data", NUM_DATA, subsample_size=len(labels)):
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model


def pyro_step(network: str, case: str, seed: int) -> Callable:
    import pyro
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    from pyro_ngvi import IVON, NaturalELBO, NaturalGaussianGuide
    from pyro_ngvi.optim import VOGN

    torch.set_num_threads(1)
    pyro.set_rng_seed(seed)
    pyro.settings.set(module_local_params=True)  # several guides of one class, stepped in turn
    model = lenet.pyro_model() if network == "lenet" else pyro_model(network)
    if case == "gradient":
        images, labels = (torch.as_tensor(part[:BATCH]) for part in data(network, seed))
        trace = pyro.poutine.trace(model).get_trace(images, labels)
        weights = {
            name: trace.nodes[name]["value"].requires_grad_()
            for name in trace.stochastic_nodes
            if name != "data"
        }

        def gradient(x: np.ndarray, y: np.ndarray) -> None:
            traced = pyro.poutine.trace(pyro.condition(model, weights))
            trace = traced.get_trace(torch.as_tensor(x), torch.as_tensor(y))
            torch.autograd.grad(trace.log_prob_sum(), list(weights.values()))

        return gradient
    if case == "AutoNormal":
        guide, optim, loss = AutoNormal(model), pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()
    else:
        is_ivon, family = RULES[case]
        guide = NaturalGaussianGuide(model, family, init_scale=0.01)
        optim, loss = VOGN(), NaturalELBO(1, "gauss_newton", num_gradients=1)
        if is_ivon:
            optim, loss = IVON(), NaturalELBO(1, "stein")
    svi = SVI(model, guide, optim, loss)
    return lambda x, y: svi.step(torch.as_tensor(x), torch.as_tensor(y))


def measure(ppl: str, network: str, cases: list[str], rounds: int, seed: int) -> None:
    import jax

    images, labels = data(network, seed)
    make = {"numpyro": numpyro_step, "pyro": pyro_step}[ppl]
    steps = {case: make(network, case, seed) for case in cases}
    times: dict[str, list[float]] = {case: [] for case in cases}
    rng = np.random.default_rng(seed)
    for turn in range(rounds + 3):
        rows = rng.integers(NUM_DATA, size=BATCH)
        for case in rng.permutation(cases):  # a step after SLANG's finds no memory warm
            begin = time.process_time()
            found = steps[case](images[rows], labels[rows])
            if ppl == "numpyro":
                jax.block_until_ready(found)
            if turn >= 3:
                times[case].append(1e3 * (time.process_time() - begin))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for case in cases:
        ratios = [a / b for a, b in zip(times[case], times[cases[0]], strict=True)]
        middle = statistics.median(times[case])
        print(f"{ppl:8s} {case:14s} {middle:9.1f} {statistics.median(ratios):9.1f}", end="")
        print(f" {peak:9.0f}" if len(cases) == 1 else "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ppl", choices=("numpyro", "pyro"), nargs="+", default=["numpyro", "pyro"]
    )
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        measure(options.ppl[0], options.network, options.case, options.rounds, options.seed)
        return
    print(describe())
    print("PPL      case              ms/step  to first   peak MB", flush=True)
    for ppl in options.ppl:
        for cases in (options.case, *([case] for case in options.case)):
            rounds = options.rounds if len(cases) > 1 else 3
            case = ["--here", "--ppl", ppl, "--rounds", str(rounds), "--case", *cases]
            seed = ["--seed", str(options.seed), "--network", options.network]
            subprocess.run([sys.executable, "-m", __spec__.name, *case, *seed], check=True)


if __name__ == "__main__":
    main()
