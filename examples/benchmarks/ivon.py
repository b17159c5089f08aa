"""Cost of ``PlainIVON`` in a plain torch loop, beside ``ivon-opt``, AdamW and optax.

One step of each in turn, on LeNet-5; the ratio of processor times is taken round by round, so that
a drifting machine does not matter. Then the memory that a step takes beyond what the same loop
takes with SGD (weights, gradients, activations), in copies of the weights. ``ivon-opt`` (GPL-3) is
compared with if it is installed.

    python -m examples.benchmarks.plain_ivon --rounds 100
"""

from __future__ import annotations

import argparse
import copy
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from pyro_ngvi import PlainIVON

from .machine import describe

try:
    import ivon
except ModuleNotFoundError:
    ivon = None

NUM_DATA = 60_000


MAKE: dict[str, Callable[[Iterable[torch.Tensor]], Any]] = {
    "SGD": lambda params: torch.optim.SGD(params, 1e-3),  # keeps nothing
    "AdamW": lambda params: torch.optim.AdamW(params, 1e-3),
    **({"ivon-opt": lambda params: ivon.IVON(params, 0.1, NUM_DATA)} if ivon else {}),
    "PlainIVON": lambda params: PlainIVON(params, 0.1, ess=NUM_DATA),
}


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


def time_steps(batch: int, rounds: int, seed: int) -> None:
    torch.manual_seed(seed)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    network, steps = lenet(), {}
    for name, make in MAKE.items():
        own = copy.deepcopy(network)
        steps[name] = stepper(own, make(own.parameters()), images, labels)
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


def memory(line: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at its peak (Linux)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{line}:")[1].split()[0])


def measure_memory(name: str, width: int, batch: int) -> None:
    """Print how far steps raise this process's peak, in bytes, and the bytes of the weights.

    Steps of a small network go first, so that the library's own pages are not counted.
    """
    torch.manual_seed(0)
    for wide in (50, width):
        network = nn.Sequential(nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, wide))
        images, labels = torch.randn(batch, wide), torch.randint(wide, (batch,))
        step = stepper(network, MAKE[name](network.parameters()), images, labels)
        before = memory("VmRSS")
        for _ in range(3):
            step()
    weights = sum(param.numel() * param.element_size() for param in network.parameters())
    print(memory("VmHWM") - before, weights)


def compare_memory(width: int, batch: int) -> None:
    """Print by how much a process's peak is above that of gradients alone, in copies of weights."""
    print(f"peak beyond that with SGD, in copies of 2 * {width}^2 weights")
    # What is freed goes back at once, so that the peak is that of tensors in use.
    returned = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    grown = {}
    for name in MAKE:
        rest = ["--memory-of", name, "--width", str(width), "--memory-batch", str(batch)]
        asked = [sys.executable, "-m", __spec__.name, *rest]
        told = subprocess.run(asked, check=True, env=returned, capture_output=True, text=True)
        grown[name], weights = map(int, told.stdout.split())
        print(f"{name:10s} {(grown[name] - grown['SGD']) / weights:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--width", type=int, default=2000, help="of the network for memory")
    parser.add_argument("--memory-batch", type=int, default=128, help="of that network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-of", help="of one optimiser, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        measure_memory(options.memory_of, options.width, options.memory_batch)
        return
    print(describe())
    print(f"batch   optimiser   ms/step    to {'ivon-opt' if ivon else 'AdamW'} (quartiles)")
    for batch in options.batch:
        time_steps(batch, options.rounds, options.seed)
    compare_memory(options.width, options.memory_batch)


if __name__ == "__main__":
    main()
