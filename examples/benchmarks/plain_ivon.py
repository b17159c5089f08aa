"""Cost of ``PlainIVON`` in a plain torch loop, beside ``ivon-opt``, AdamW and optax.

One step of each in turn, on LeNet-5; the ratio of processor times is taken round by round, so that
a drifting machine does not matter. Then the memory that a step takes beyond the network and its
gradients, in copies of the weights. ``ivon-opt`` (GPL-3) is compared with if it is installed.

    python examples/benchmarks/plain_ivon.py --rounds 100
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import describe
from torch import nn

from pyro_ngvi import PlainIVON

try:
    import ivon
except ModuleNotFoundError:
    ivon = None

NUM_DATA = 60_000


def lenet() -> nn.Module:
    """LeNet-5 of 61,706 weights, for images of 28 by 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def stepper(network: nn.Module, optimizer: Any, images: Any, labels: Any) -> Callable[[], None]:
    """A function that takes one step, with a sample if the optimiser has samples."""
    loss = nn.CrossEntropyLoss()

    def backward() -> None:
        optimizer.zero_grad()
        loss(network(images), labels).backward()

    def step() -> None:
        if hasattr(optimizer, "sampled_params"):
            with optimizer.sampled_params(train=True):
                backward()
        else:
            backward()
        optimizer.step()

    return step


def optimizers(network: nn.Module) -> dict[str, tuple[nn.Module, Any]]:
    """Each with a copy of the network."""
    made = {"AdamW": lambda params: torch.optim.AdamW(params, 1e-3)}
    if ivon is not None:
        made["ivon-opt"] = lambda params: ivon.IVON(params, 0.1, NUM_DATA)
    made["PlainIVON"] = lambda params: PlainIVON(params, 0.1, ess=NUM_DATA)
    nets = {name: copy.deepcopy(network) for name in made}
    return {name: (net, made[name](net.parameters())) for name, net in nets.items()}


def time_steps(batch: int, rounds: int, seed: int) -> None:
    torch.manual_seed(seed)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    steps = {
        name: stepper(net, optimizer, images, labels)
        for name, (net, optimizer) in optimizers(lenet()).items()
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 3):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            begin = time.process_time()
            steps[name]()
            if turn >= 3:
                times[name].append(1e3 * (time.process_time() - begin))
    reference = times["ivon-opt" if ivon else "AdamW"]
    for name, mine in times.items():
        ratios = [a / b for a, b in zip(mine, reference, strict=True)]
        first, middle, last = statistics.quantiles(ratios, n=4)
        print(
            f"{batch:6d}  {name:10s} {statistics.median(mine):8.2f}    "
            f"{middle:.2f} ({first:.2f}-{last:.2f})",
            flush=True,
        )


def measure_memory(name: str, width: int) -> None:
    """Print the growth of this process's peak over three steps, by the size of the weights."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    images, labels = torch.randn(4, width), torch.randint(width, (4,))
    loss = nn.CrossEntropyLoss()
    for _ in range(2):  # gradients, and what the library keeps, are the network's own
        loss(network(images), labels).backward()
    params = list(network.parameters())
    made = optimizers(nn.Linear(1, 1))[name][1].__class__
    optimizer = made(params, 1e-3) if name == "AdamW" else made(params, 0.1, ess=NUM_DATA)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = stepper(network, optimizer, images, labels)
    for _ in range(3):
        step()
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    copies = grown / sum(param.numel() * param.element_size() for param in params)
    print(f"{name:10s} {copies:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--width", type=int, default=2000, help="of the network for memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-of", help="of one optimiser, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        measure_memory(options.memory_of, options.width)
        return
    print(describe())
    print(f"batch   optimiser   ms/step    to {'ivon-opt' if ivon else 'AdamW'} (quartiles)")
    for batch in options.batch:
        time_steps(batch, options.rounds, options.seed)
    print(f"peak beyond weights and gradients, in copies of 2 * {options.width}^2 weights")
    for name in ("AdamW", *(["ivon-opt"] if ivon else []), "PlainIVON"):
        case = ["--memory-of", name, "--width", str(options.width)]
        # What is freed goes back at once, so that the peak is that of tensors in use.
        returned = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        subprocess.run([sys.executable, __file__, *case], check=True, env=returned)


if __name__ == "__main__":
    main()
