"""Runs on one and on several processes of ``torch.distributed``; a program of its own, because a
process with JAX in it cannot be forked, and to fork costs less than to import torch again.

``python -m tests.parallel.workers NAME`` prints what the workers have found, as JSON; with the
arguments ``torchrun FOLDER`` it is a worker that ``torchrun`` has started, and writes it there.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.distributed
from pyro.infer import SVI, Trace_ELBO
from torch.utils.flop_counter import FlopCounterMode

from pyro_ngvi import BLR, IVON, NaturalELBO, NaturalGaussianGuide, Snngm
from pyro_ngvi.families import LowRankPrecision
from pyro_ngvi.parallel import DataParallel

NUM_ROWS, DIM, STEPS = 103, 3, 6
#: How long the workers wait for each other, in seconds.
TIMEOUT = 4.0

#: Models that do not fit together.
REFUSED = ("whole", "other parameters", "locals", "low rank")

#: Family, optimiser and loss.
RUNS: dict[str, tuple] = {
    "dense": ("full", BLR, NaturalELBO),
    "networks": ("diagonal", IVON, lambda: NaturalELBO(4, "stein")),
    "sparse": ("sparse_precision", BLR, lambda: NaturalELBO(4, "hessian")),
    "first order": ("full", Snngm, Trace_ELBO),
}


def model(X, y, size=NUM_ROWS):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    weights = pyro.sample("weights", dist.Normal(torch.zeros(DIM), scale).to_event(1))
    intercept = pyro.param("intercept", torch.tensor(0.0))
    with pyro.plate("data", size, subsample=y):
        pyro.sample("y", dist.Bernoulli(logits=X @ weights + intercept), obs=y)


def data(rank: int = 0, size: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's rows: each has more than the one before."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(NUM_ROWS, DIM, generator=generator)
    y = (torch.rand(NUM_ROWS, generator=generator) < torch.sigmoid(X.sum(1))).to(X)
    ends = [round(NUM_ROWS * (end / size) ** 1.3) for end in range(size + 1)]
    own = slice(ends[rank], ends[rank + 1])
    return X[own], y[own]


def _params() -> dict[str, list]:
    store = pyro.get_param_store()
    return {name: store[name].detach().flatten().tolist() for name in sorted(store.keys())}


def steps(name: str, rank: int, size: int) -> dict[str, Any]:
    """A run of SVI; alone if ``size`` is zero."""
    family, optimiser, elbo = RUNS[name]
    rows, guide, loss = data(rank, size or 1), NaturalGaussianGuide(model, family), elbo()
    for _ in range(2):  # other random numbers for all workers but the first
        pyro.set_rng_seed(7 + rank)
        guide(*rows)
    svi = SVI(model, guide, optimiser(), DataParallel(loss) if size else loss)
    losses = [svi.step(*rows) for _ in range(STEPS)]
    return {"losses": [*losses, svi.evaluate_loss(*rows)], "params": _params()}


def groups(y, own, size=NUM_ROWS):
    """Group means, each seen three times."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("groups", size, subsample=own):
        means = pyro.sample("means", dist.Normal(mu, scale))
        pyro.sample("y", dist.Normal(means[:, None], 1.0).expand([len(own), 3]).to_event(1), obs=y)


def own_groups(y, own, size=NUM_ROWS):
    return pyro.plate("groups", size, subsample=own)


def work(name: str, rank: int, size: int) -> dict[str, Any]:
    """A worker's products of matrices in a step, counted, by the number of its rows."""
    # With a given number of draws no products show how far groups of them are apart.
    loss = NaturalELBO(num_gradients=100)
    rows, guide = data(rank, size or 1), NaturalGaussianGuide(model)
    svi = SVI(model, guide, BLR(), DataParallel(loss) if size else loss)
    svi.step(*rows)
    with FlopCounterMode(display=False) as counter:
        svi.step(*rows)
    return {"rows": len(rows[1]), "operations": counter.get_total_flops()}


def failing(name: str, rank: int, size: int) -> dict[str, Any]:
    """What a worker hears where the last one fails, or all are wrong; and when, in seconds."""
    X, y = data(rank, size)
    is_last = rank == size - 1
    num_rows = len(y) if name == "whole" else NUM_ROWS
    svi = SVI(model, NaturalGaussianGuide(model, "diagonal"), BLR(), DataParallel(NaturalELBO()))
    began = time.monotonic()
    try:
        if name == "locals":
            own, y = torch.arange(len(X)), X[:, :3]
            guide = NaturalGaussianGuide(groups, create_plates=own_groups)
            SVI(groups, guide, BLR(), DataParallel(NaturalELBO())).step(y, own, NUM_ROWS)
        if name == "low rank":
            guide = NaturalGaussianGuide(model, LowRankPrecision(rank=2))
            SVI(model, guide, BLR(), DataParallel(NaturalELBO())).step(X, y)
        if name == "other parameters" and is_last:
            pyro.param("intercept", torch.zeros(3, 1))
        svi.step(X, y, num_rows)
        if is_last and name == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_last and name == "raises":
            y = y[1:]
        began = time.monotonic()
        svi.step(X, y, num_rows)
    except Exception as error:  # noqa: BLE001
        return {
            "error": type(error).__name__,
            "words": str(error),
            "seconds": time.monotonic() - began,
        }
    return {"error": None}


def on_workers(function: Any, name: str, size: int) -> list[dict | None]:
    """What each worker returns; None of those that have died."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            if not (child := os.fork()):
                torch.distributed.init_process_group(
                    "gloo",
                    init_method=f"file://{folder}/store",
                    rank=rank,
                    world_size=size,
                    timeout=datetime.timedelta(seconds=TIMEOUT if function is failing else 60),
                )
                found = function(name, rank, size)
                with open(f"{folder}/{rank}.json", "w") as file:
                    json.dump(found, file)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        paths = [f"{folder}/{rank}.json" for rank in range(size)]
        return [json.load(open(path)) if os.path.exists(path) else None for path in paths]


def started_by_torchrun(folder: str) -> None:
    """As in the guide: rank and size are those of its environment."""
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = steps("dense", rank, size)
    torch.distributed.destroy_process_group()
    found["threads"] = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)


def main(name: str, folder: str = "") -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if name == "torchrun":
        started_by_torchrun(folder)
        return
    found = {}
    if name == "failing":
        steps("dense", 0, 0)  # imports what the workers would
        pyro.clear_param_store()
        for case in ("raises", "dies", *REFUSED):
            found[case] = on_workers(failing, case, 2)
    functions = {**dict.fromkeys(RUNS, steps), "work": work}
    for case, function in functions.items() if name == "same" else ():
        found[case] = [[function(case, 0, 0)]]
        pyro.clear_param_store()
        found[case] += [on_workers(function, case, size) for size in (2, 4)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
