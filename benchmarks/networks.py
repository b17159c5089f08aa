"""Networks by ``IVON()`` beside stock AutoNormal with Adam, after equal CPU time.

``digits`` is the network of ``examples/bnn.py``: 64-32-10 with tanh, 1,297 images. ``MNIST`` is
784-100-10 with tanh, 2,000 images at random for training and 2,000 for testing. Minibatches of 64;
the priors of weights are scaled by the width. IVON has its defaults, from the prior's median with a
width of 0.05; AutoNormal begins where it does by default (uniform in (-2, 2), a width of 0.1), and
like IVON ("narrow"), with the best of three rates of Adam by the bound at that moment, seed by
seed: an advantage that IVON does not have. It also learns a cold posterior (``tempered``), whose
bound here is that of the model itself. A run of Adam ends after as many seconds of CPU as IVON
needed for its epochs, with the same seed, without the compilation of the first steps. Predictions
and bounds average 100 draws.

    python -m benchmarks networks --data-dir DIR [--data digits] [--ppl pyro]

writes ``networks.csv``: rows that are asked for, and keeps the others.
``DIR`` holds ``images/mnist.npz`` (``x_train``, ``y_train``, ``x_test``, ``y_test``).

Time: half an hour. Data: images/mnist.npz.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.bnn import PPLS, TEMPERATURE, Data, Scores, digits, minibatches, scored
from examples.machine import describe

from . import pages

#: Steps that are not timed: programs are compiled in them.
WARM_UP = 3
NUM_HIDDEN, NUM_ROWS = 100, 2000
DATA = ("digits", "MNIST")
ADAM = (3e-3, 1e-2, 3e-2)
#: Method and rates of each row of the table.
METHODS = {
    "IVON()": ("IVON", ("auto",)),
    f"IVON(), T = {TEMPERATURE}": ("IVON, tempered", ("auto",)),
    "AutoNormal, its own start": ("Adam", ADAM),
    "AutoNormal, narrow": ("Adam, narrow", ADAM),
}
LABELS = {"numpyro": "NumPyro", "pyro": "Pyro"}
COLUMNS = {"bound": 0, "nll": 3, "ece": 3, "accuracy": 3}


class Run(NamedTuple):
    """What a run has come to."""

    scores: Scores
    milliseconds: float  #: a step
    seconds: float


def mnist(directory: Path, seed: int) -> Data:
    """Random images of the two parts, in standard units."""
    rng, found = np.random.default_rng(seed), []
    with np.load(directory / "images" / "mnist.npz") as arrays:
        for part in ("train", "test"):
            images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
            some = rng.permutation(len(labels))[:NUM_ROWS]
            pixels = (images[some].reshape(NUM_ROWS, -1) / 255.0 - 0.1307) / 0.3081
            found += [pixels.astype(np.float32), labels[some].astype(np.int64)]
    return Data(*found)


def run(made: tuple, data: Data, epochs: int, seconds: float | None, seed: int) -> Run:
    """Scores after so many epochs, or after so many seconds."""
    step, logits, bound = made
    last, used = epochs * (len(data.labels) // 64), 0.0
    for count, rows in enumerate(minibatches(len(data.labels), 1000 * epochs, seed), start=1):
        begin = time.process_time()
        float(step(data.images[rows], data.labels[rows]))
        used += (time.process_time() - begin) * (count > WARM_UP)
        if (count == last) if seconds is None else (used >= seconds):
            break
    return Run(scored(data, logits, bound, used), 1e3 * used / (count - WARM_UP), used)


def compared(
    make: Callable, data: Data, epochs: int, seed: int, methods: Iterable[str]
) -> dict[str, Run]:
    """Of each method: its best run, in the time that IVON, the first, takes for its epochs."""
    found: dict[str, Run] = {}
    for name in methods:
        method, rates = METHODS[name]
        seconds = next(iter(found.values())).seconds if found else None
        runs = [run(make(method, rate, data, seed), data, epochs, seconds, seed) for rate in rates]
        found[name] = max(runs, key=of_bound)
    return found


def of_bound(run: Run) -> float:
    return run.scores.bound if np.isfinite(run.scores.bound) else -np.inf


def rows(data: str, ppl: str, found: list[dict[str, Run]]) -> list[dict[str, str]]:
    """Of the table: means over seeds, and standard deviations."""
    made = []
    for method in found[0]:
        runs = [one[method] for one in found]
        cells = {"data": data, "ppl": LABELS[ppl], "method": method, "seeds": f"{len(found)}"}
        for name, places in COLUMNS.items():
            values = [float(getattr(one.scores, name)) for one in runs]
            spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
            cells[name] = f"{statistics.mean(values):.{places}f}{spread}"
        cells["ms a step"] = f"{statistics.median(one.milliseconds for one in runs):.1f}"
        made.append(cells)
    return made


def draw() -> None:
    """The bound below IVON's, NLL and ECE of all."""
    figure, (panels,) = pages.figure(1, 3, (3.0, 2.8))
    ends = pages.read("networks.csv")
    places = list(dict.fromkeys((row["data"], row["ppl"]) for row in ends))
    titles = {"bound": "bound [nats]", "nll": "test NLL [nats]", "ece": "ECE"}
    for panel, (column, title) in zip(panels, titles.items(), strict=True):
        for index, method in enumerate(METHODS):
            own = [row for row in ends if row["method"] == method]
            at = [places.index((row["data"], row["ppl"])) + 0.2 * (index - 1.5) for row in own]
            values = [[*map(float, row[column].split(" ± ")), 0.0][:2] for row in own]
            panel.errorbar(at, *zip(*values, strict=True), fmt="o", markersize=4, label=method)
        panel.set_xticks(range(len(places)), [",\n".join(place) for place in places])
        panel.set(title=title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    pages.save(figure, "networks.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    made_data = {"digits": digits, "MNIST": functools.partial(mnist, options.data_dir)}
    about = "`python -m benchmarks networks`, seeds from 0, float32; means and standard"
    about = f"{about} deviations over seeds; {describe()}"
    for name in options.data:
        for ppl in options.ppl:
            found = []
            for seed in range(options.seeds):
                data = made_data[name](seed)
                found.append(compared(PPLS[ppl], data, options.epochs, seed, options.methods))
                table = rows(name, ppl, found)
                pages.replace("networks.csv", table, about, ("data", "ppl", "method"))
    draw()


if __name__ == "__main__":
    main()
