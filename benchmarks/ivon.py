"""Cost of IVON beside stock ``AutoNormal`` with Adam in a PPL, and ``ivon-opt`` without one.

Steps of all methods are taken in turn, on LeNet-5; the ratio of processor times is taken round by
round, so that a drifting machine does not matter. Without a PPL also the memory of a tanh network
of two square matrices, in copies of its weights: how much more the largest moment of a step takes
than one of SGD. ``ivon-opt`` (GPL-3) is compared with if it is installed.

    python -m benchmarks ivon

writes ``ivon.csv``.

Time: minutes. Data: none.
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

from examples.machine import describe
from ngvi.torch import IVON

from . import lenet, pages

try:
    import ivon
except ModuleNotFoundError:
    ivon = None

NUM_DATA = 60_000
#: Rounds that are not timed: programs are compiled in them.
WARM_UP = 3

#: Without a PPL.
MAKE: dict[str, Callable[[Iterable[torch.Tensor]], Any]] = {
    "SGD": lambda params: torch.optim.SGD(params, 1e-3),  # keeps nothing
    "AdamW": lambda params: torch.optim.AdamW(params, 1e-3),
    **({"ivon-opt": lambda params: ivon.IVON(params, 0.1, NUM_DATA)} if ivon else {}),
    "ngvi.torch.IVON": lambda params: IVON(params, 0.1, ess=NUM_DATA),
}
LABELS = {"pyro": "Pyro", "numpyro": "NumPyro", "torch": "torch"}
#: Methods by where they are, the first being what the others are compared with.
TIMED = {
    "pyro": ("AutoNormal + Adam", "IVON"),
    "numpyro": ("AutoNormal + Adam", "IVON"),
    "torch": ("ivon-opt" if ivon else "AdamW", *(name for name in MAKE if name != "ivon-opt")),
}


# -- steps in a PPL ---------------------------------------------------------------------------


def pyro_step(model: Callable, method: str, data: tuple, seed: int) -> Callable[[], Any]:
    """A function that takes one step on these data."""
    import pyro
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    import pyro_ngvi

    pyro.set_rng_seed(seed)
    pyro.settings.set(module_local_params=True)  # several guides, stepped in turn
    arguments = tuple(map(torch.as_tensor, data))
    if method == "IVON":
        guide: Any = pyro_ngvi.NaturalGaussianGuide(model, "diagonal", init_scale=0.01)
        optim, loss = pyro_ngvi.IVON(), pyro_ngvi.NaturalELBO(1, "stein")
    else:
        guide = AutoNormal(model, init_scale=0.01)
        optim, loss = pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()
    svi = SVI(model, guide, optim, loss)
    return lambda: svi.step(*arguments)


def numpyro_step(model: Callable, method: str, data: tuple, seed: int) -> Callable[[], Any]:
    """A function that takes one step on these data."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    import numpyro_ngvi

    if method == "IVON":
        guide: Any = numpyro_ngvi.NaturalGaussianGuide(model, "diagonal", init_scale=0.01)
        optim, loss = numpyro_ngvi.IVON(), numpyro_ngvi.NaturalELBO(1, "stein")
    else:
        guide, optim, loss = AutoNormal(model, init_scale=0.01), numpyro.optim.Adam(1e-3), None
    options = {"rng_key": jax.random.key(seed)}
    svi = numpyro_ngvi.SVI(model, guide, optim, loss or Trace_ELBO(), **options)
    arguments = tuple(map(jnp.asarray, data))
    return lambda: float(svi.step(*arguments))


# -- steps without one ------------------------------------------------------------------------


def torch_step(network: nn.Module, optimizer: Any, images: Any, labels: Any) -> Callable[[], None]:
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


# -- time -------------------------------------------------------------------------------------


def steps_of(where: str, batch: int, seed: int) -> dict[str, Callable[[], Any]]:
    """A function that takes a step of LeNet-5, by method."""
    data = lenet.data(batch, seed)
    if where == "torch":
        images, labels = map(torch.as_tensor, data)
        network, steps = lenet.module(), {}
        for name in TIMED[where]:
            own = copy.deepcopy(network)
            steps[name] = torch_step(own, MAKE[name](own.parameters()), images[:, None], labels)
        return steps
    model = {"pyro": lenet.pyro_model, "numpyro": lenet.numpyro_model}[where]()
    make = {"pyro": pyro_step, "numpyro": numpyro_step}[where]
    return {name: make(model, name, data, seed) for name in TIMED[where]}


def times_in_turn(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Processor times in milliseconds, round by round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + WARM_UP):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            begin = time.process_time()
            steps[name]()
            if turn >= WARM_UP:
                times[name].append(1e3 * (time.process_time() - begin))
    return times


def rows_of_time(where: str, batch: int, rounds: int, seed: int) -> list[dict[str, str]]:
    """Of the table: medians, and the ratio to the first method with its quartiles."""
    torch.manual_seed(seed)
    times = times_in_turn(steps_of(where, batch, seed), rounds)
    reference = next(iter(times))
    rows = []
    for name, mine in times.items():
        ratios = [a / b for a, b in zip(mine, times[reference], strict=True)]
        first, middle, last = statistics.quantiles(ratios, n=4)
        row = {"where": LABELS[where], "batch": str(batch), "method": name}
        row |= {"ms a step": f"{statistics.median(mine):.2f}"}
        rows.append(row | {"to the first": f"{middle:.2f} ({first:.2f}-{last:.2f})", "copies": ""})
    return rows


# -- memory -----------------------------------------------------------------------------------


def bytes_of_process(line: str) -> int:
    """``VmRSS`` now, ``VmHWM`` at its peak (Linux)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{line}:")[1].split()[0])


def peak(name: str, width: int, batch: int) -> int:
    """How far steps raise this process's peak, in bytes.

    Steps of a small network go first, so that the library's own pages are not counted.
    """
    torch.manual_seed(0)
    for wide in (50, width):
        images, labels = torch.randn(batch, wide), torch.randint(wide, (batch,))
        layers = nn.Linear(wide, wide, False), nn.Tanh(), nn.Linear(wide, wide, False)
        network = nn.Sequential(*layers)
        step = torch_step(network, MAKE[name](network.parameters()), images, labels)
        before = bytes_of_process("VmRSS")
        for _ in range(3):
            step()
    return bytes_of_process("VmHWM") - before


def copies(name: str, width: int) -> float:
    """What steps of a new process take, in copies of the weights."""
    # What is freed goes back at once, so that the peak is that of tensors in use.
    returned = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    asked = [sys.executable, "-m", __spec__.name, "--memory-of", name, "--width", str(width)]
    done = subprocess.run(asked, check=True, env=returned, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1]) / (2 * 4 * width**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--where", choices=TIMED, nargs="+", default=list(TIMED))
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--width", type=int, default=2000, help="of the network for memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-of", choices=MAKE, help="of one method, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        print(peak(options.memory_of, options.width, 128))
        return
    about = (
        f"`python -m benchmarks ivon`, {options.rounds} rounds, memory for matrices of "
        f"{options.width} x {options.width}, float32, seed {options.seed}; {describe()}"
    )
    of_sgd = copies("SGD", options.width) if "torch" in options.where else 0.0
    for where in options.where:
        for batch in options.batch:
            rows = rows_of_time(where, batch, options.rounds, options.seed)
            for row in rows if where == "torch" and batch == options.batch[-1] else ():
                row["copies"] = f"{copies(row['method'], options.width) - of_sgd:.1f}"
            pages.replace("ivon.csv", rows, about, ("where", "batch", "method"))


if __name__ == "__main__":
    main()
