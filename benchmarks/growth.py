"""What ``fit`` costs as a logistic regression grows: evaluations, and seconds of the processor.

    python -m benchmarks growth [--dims 10 30 ...] [--ppls numpyro pyro]

Standard normal covariates, of which ``X w`` has a standard deviation of about one and a half; five
rows for each coefficient and no fewer than 500, at most 2,000. A fit is a process of its own with
one thread, double precision and the defaults; *cold* is the first one, compilation included and
imports not, *warm* the second, of other responses. ``growth.csv`` is in ``docs/benchmarks``; rows
that are asked for are replaced.

Time: 5 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks import pages
from examples.machine import describe

TABLE, DIMS, PPLS = "growth.csv", [10, 30, 100, 300, 1000], ["numpyro", "pyro"]
MIN_ROWS, MAX_ROWS, ROWS_EACH, SCALE = 500, 2000, 5, 1.5


def data(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates, the same for all seeds, and responses."""
    count = int(np.clip(ROWS_EACH * dim, MIN_ROWS, MAX_ROWS))
    X = np.random.default_rng(dim).normal(size=(count, dim))
    rng = np.random.default_rng(seed)
    logits = X @ (SCALE * rng.normal(size=dim) / np.sqrt(dim))
    return X, (rng.uniform(size=count) < 1 / (1 + np.exp(-logits))).astype(float)


def measure(ppl_name: str, dim: int) -> dict[str, Any]:
    """In this process: two data sets."""
    if ppl_name == "numpyro":
        import numpyro

        numpyro.enable_x64()
        from numpyro_ngvi import fit
    else:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        from pyro_ngvi import fit
    from benchmarks.gauntlet.models.ppl import Ppl

    ppl, found = Ppl(ppl_name), {}

    def model(X: Any, y: Any) -> None:
        w = ppl.normals("w", X.shape[1])
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=X @ w), obs=y)

    for seed, kind in enumerate(("cold", "warm")):
        args = tuple(map(ppl.array, data(dim, seed)))
        begin = time.process_time()
        result = fit(model, *args, progress_bar=False)
        found[kind] = time.process_time() - begin
        found.setdefault("cost", [result.cost.gradients + result.cost.products, result.cost.values])
        found.setdefault("verdict", result.verdict)
        found.setdefault("steps", len(result.trace))
    return found


def row_of(ppl_name: str, dim: int, limit: float) -> dict[str, str] | None:
    """Of the table, by a process of its own; None if it fails or takes too long."""
    command = [sys.executable, "-m", "benchmarks.growth", "--one", ppl_name, str(dim)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{ppl_name}, {dim}: {(error.stderr or str(error)).strip()[-300:]}", flush=True)
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    gradients, values = found["cost"]
    row = {
        "package": {"numpyro": "NumPyro", "pyro": "Pyro"}[ppl_name],
        "latents": f"{dim:,}",
        "cold": f"{found['cold']:.2f}",
        "warm": f"{found['warm']:.2f}",
        "steps": str(found["steps"]),
        "gradients": f"{gradients:,}",
        "values": f"{values:,}",
        "verdict": found["verdict"],
    }
    print(" ".join(row.values()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", nargs="*", type=int, default=DIMS)
    parser.add_argument("--ppls", nargs="*", choices=PPLS, default=PPLS)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds by the wall of a run")
    parser.add_argument("--one", nargs=2, metavar=("PPL", "DIM"), help="as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    about = f"`python -m benchmarks growth`, seeds 0 and 1; {describe()}"
    for ppl_name in options.ppls:
        for dim in options.dims:
            row = row_of(ppl_name, dim, options.limit)
            if row is not None:
                pages.replace(TABLE, [row], about, ("package", "latents"))


if __name__ == "__main__":
    main()
