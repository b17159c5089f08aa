"""A fit in a process that another one kills; ``python -m tests.inference.killed PPL CHECKPOINT``.

It prints each step, waits a little in each, and prints at last all numbers of its result in bits.
"""

from __future__ import annotations

import hashlib
import sys
import time

import numpy as np

from tests.models import Y
from tests.ppl import load


def main(name: str, checkpoint: str) -> None:
    ppl = load(name)

    def model(y):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 10.0))
        scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.StudentT(ppl.array(3.0), mean, scale), obs=y)

    def slowly(step, *_):
        print(step, flush=True)
        time.sleep(0.05)

    with ppl.precision("float32"):
        options = {"callback": slowly, "checkpoint": checkpoint, "tolerance": 0.001}
        result = ppl.fit(model, ppl.array(Y), seed=5, **options)
        parts = [result.bound, result.cost.gradients, result.posterior.mean, result.trace.losses]
        parts.append(result.posterior.covariance_matrix)
        bits = hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest()
    print("result", len(result.trace.losses), bits, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
