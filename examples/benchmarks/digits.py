"""Digits by a Bayesian network: after equal epochs, and after equal time, beside stock AutoNormal.

The network, the data and the methods of ``examples/bnn.py``: 64-32-10 with tanh, minibatches of 64
of 1,297 images. Bound on the training images, test NLL and ECE: each method at the best of its
three rates, by the bound, where all have seen as many epochs, and where all have had as many
seconds of CPU time, without compilation.

    python -m examples.benchmarks.digits --ppl pyro --seeds 3 --seconds 5
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from examples.bnn import BATCH, PPLS, RATES, Scores, digits, minibatches, scored, spread

from .machine import describe

#: Steps that are not timed: programs are compiled in them.
WARM_UP = 3
COLUMNS = {"bound": 0, "nll": 3, "ece": 3, "accuracy": 3}


def run(
    ppl: str, method: str, rate: float, seed: int, epochs: int, seconds: float
) -> tuple[Scores, Scores, float]:
    """Scores after so many epochs, and after so many seconds; and a step's time in ms."""
    data = digits(seed)
    step, logits, bound = PPLS[ppl](method, rate, data, seed)
    last = epochs * (len(data.labels) // BATCH)
    found: dict[str, Scores] = {}
    used = 0.0
    for count, rows in enumerate(minibatches(len(data.labels), 10_000, seed), start=1):
        begin = time.process_time()
        step(data.images[rows], data.labels[rows])
        used += (time.process_time() - begin) * (count > WARM_UP)
        if count == last:
            found["epochs"] = scored(data, logits, bound, used)
        if used >= seconds and "time" not in found:
            found["time"] = scored(data, logits, bound, used)
        if len(found) == 2:
            break
    return found["epochs"], found["time"], 1e3 * used / (count - WARM_UP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--method", choices=RATES, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print(describe())
    print(f"PPL      method after       {'  '.join(f'{name:22s}' for name in COLUMNS)} ms/step")
    for ppl in options.ppl:
        for method in options.method:
            ends: dict[str, list[Scores]] = {"epochs": [], "time": []}
            costs = []
            for seed in range(options.seeds):
                runs = [
                    run(ppl, method, rate, seed, options.epochs, options.seconds)
                    for rate in RATES[method]
                ]
                for index, after in enumerate(ends):
                    scores = [one[index] for one in runs]
                    finite = [one for one in scores if np.isfinite(one.bound)] or scores
                    ends[after].append(max(finite, key=lambda one: one.bound))
                costs += [one[2] for one in runs]
            for after, amount in (("epochs", options.epochs), ("time", options.seconds)):
                words = [
                    spread([float(getattr(one, name)) for one in ends[after]], places)
                    for name, places in COLUMNS.items()
                ]
                unit = "s" if after == "time" else "epochs"
                print(f"{ppl:8s} {method:6s} {amount:g} {unit:7s} " + "  ".join(words), end="")
                print(f" {statistics.median(costs):6.1f}", flush=True)


if __name__ == "__main__":
    main()
