"""Networks by ``IVON()`` beside stock AutoNormal with Adam, after equal epochs and equal CPU time.

``digits`` is the network of ``examples/bnn.py``: 64-32-10 with tanh, 1,297 images. ``MNIST`` is
784-100-10 with tanh, 2,000 images at random for training and 2,000 for testing. Minibatches of 64;
the priors of weights are scaled by the width. IVON has its defaults, from the prior's median with a
width of 0.05; AutoNormal begins where it does by default (uniform in (-2, 2), a width of 0.1), and
like IVON ("narrow"), with the best of three rates of Adam by the bound at that moment, seed by
seed: an advantage that IVON does not have. It also learns a cold posterior (``tempered``), whose
bound here is that of the model itself. "after 20 epochs" all have seen as many images; "after
equal time" a run of Adam has had as many seconds of CPU as IVON needed for its epochs, with the
same seed, without the compilation of the first steps. Predictions and bounds average 100 draws.

    python -m benchmarks networks --data-dir DIR [--data digits] [--ppl pyro]
    python -m benchmarks networks --data-dir DIR --paths --seeds 3 [--data digits]

writes ``networks.csv``: rows that are asked for, and keeps the others; with
``--paths`` ``networks_paths.csv``, NumPyro far beyond 20 epochs, and then the picture.
``DIR`` holds ``images/mnist.npz`` (``x_train``, ``y_train``, ``x_test``, ``y_test``).

Time: half an hour. Data: images/mnist.npz.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

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
#: Of ``--paths``: methods and rates, and the steps after which one looks.
PATHS = (("IVON", "auto"), ("Adam, narrow", 3e-3), ("Adam, narrow", 1e-2))
LOOKS = (100, 200, 400, 800, 1600, 4000, 10000)
COLUMNS = {"bound": 0, "nll": 3, "ece": 3, "accuracy": 3}


class Run(NamedTuple):
    """What a run has come to."""

    epochs: Scores
    time: Scores
    milliseconds: float  #: a step
    seconds: float  #: of the epochs


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
    """Scores after so many epochs, and after so many seconds, or those that the epochs take."""
    step, logits, bound = made
    last = epochs * (len(data.labels) // 64)
    used, at_epochs, at_time, spent = 0.0, None, None, 0.0
    for count, rows in enumerate(minibatches(len(data.labels), 1000 * epochs, seed), start=1):
        begin = time.process_time()
        float(step(data.images[rows], data.labels[rows]))
        used += (time.process_time() - begin) * (count > WARM_UP)
        if count == last:
            at_epochs, spent = scored(data, logits, bound, used), used
        if at_time is None and seconds is not None and used >= seconds:
            at_time = scored(data, logits, bound, used)
        if at_epochs is not None and (seconds is None or at_time is not None):
            break
    assert at_epochs is not None
    return Run(at_epochs, at_time or at_epochs, 1e3 * used / (count - WARM_UP), spent)


def compared(
    make: Callable, data: Data, epochs: int, seed: int, methods: Iterable[str]
) -> dict[str, tuple[Scores, Scores, float]]:
    """Of each method: scores after epochs and after IVON's time, and a step's milliseconds."""
    found: dict[str, tuple[Scores, Scores, float]] = {}
    seconds = None
    for name in methods:
        method, rates = METHODS[name]
        runs = [run(make(method, rate, data, seed), data, epochs, seconds, seed) for rate in rates]
        seconds = seconds or runs[0].seconds
        ends = [max((getattr(r, a) for r in runs), key=of_bound) for a in ("epochs", "time")]
        found[name] = (*ends, statistics.median(r.milliseconds for r in runs))
    return found


def of_bound(scores: Scores) -> float:
    return scores.bound if np.isfinite(scores.bound) else -np.inf


def rows(data: str, ppl: str, epochs: int, found: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Of the table: means over seeds, and standard deviations."""
    made = []
    for index, after in enumerate((f"{epochs} epochs", "equal time")):
        for method in found[0]:
            ends = [one[method][index] for one in found]
            cells = {"data": data, "ppl": ppl, "after": after, "method": method}
            cells["seeds"] = f"{len(found)}"
            for name, places in COLUMNS.items():
                values = [float(getattr(end, name)) for end in ends]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells[name] = f"{statistics.mean(values):.{places}f} ± {spread:.{places}f}"
            cells["ms a step"] = f"{statistics.median(one[method][2] for one in found):.1f}"
            made.append(cells)
    return made


def path(made: tuple, data: Data, looks: tuple[int, ...], seed: int) -> list[Scores]:
    """Scores after so many steps each."""
    step, logits, bound = made
    epochs = looks[-1] // (len(data.labels) // 64) + 1
    found = []
    for count, rows in enumerate(minibatches(len(data.labels), epochs, seed), start=1):
        step(data.images[rows], data.labels[rows])
        if count in looks:
            found.append(scored(data, logits, bound, 0.0))
    return found


def name_of(method: str, rate: Any) -> str:
    return "IVON()" if method == "IVON" else f"AutoNormal, narrow, Adam({rate})"


def rows_of_path(data: str, name: str, found: list[list[Scores]]) -> list[dict[str, str]]:
    """Of the table: means over seeds."""
    return [
        {"data": data, "method": name, "seeds": f"{len(found)}", "steps": f"{steps}"}
        | {
            column: f"{statistics.mean(getattr(one, column) for one in ends):.{places}f}"
            for column, places in COLUMNS.items()
        }
        for steps, ends in zip(LOOKS, zip(*found, strict=True), strict=True)
    ]


def draw() -> None:
    """NLL along the bound, and NLL and ECE of all after equal time."""
    figure, ((paths, beside), panels) = pages.figure(2, 2, (4.0, 2.8))
    along = [row for row in pages.read("networks_paths.csv") if row["data"] == "digits"]
    for name in dict.fromkeys(row["method"] for row in along):
        points = [(float(r["bound"]), float(r["nll"])) for r in along if r["method"] == name]
        paths.plot(*zip(*points, strict=True), "o-", markersize=3, label=name)
    paths.set(xlabel="bound [nats]", ylabel="test NLL", xlim=(-2100, -1450), ylim=(0.42, 0.55))
    paths.set_title("digits, NumPyro, 100 to 10,000 steps")
    beside.legend(*paths.get_legend_handles_labels(), loc="upper left", title="left")
    beside.axis("off")
    ends = [row for row in pages.read("networks.csv") if row["after"] == "equal time"]
    places = list(dict.fromkeys((row["data"], row["ppl"]) for row in ends))
    for panel, column in zip(panels, ("nll", "ece"), strict=True):
        for index, method in enumerate(METHODS):
            own = [row for row in ends if row["method"] == method]
            at = [places.index((row["data"], row["ppl"])) + 0.2 * (index - 1.5) for row in own]
            values = [[float(v) for v in row[column].split(" ± ")] for row in own]
            panel.errorbar(at, *zip(*values, strict=True), fmt="o", markersize=4, label=method)
        panel.set_xticks(range(len(places)), [" ".join(place) for place in places], rotation=20)
        panel.set(title=f"{column.upper()} after equal time", ylim=(0, None))
    beside.add_artist(beside.get_legend())
    handles = panels[0].get_legend_handles_labels()
    beside.legend(*handles, loc="lower left", title="below")
    figure.tight_layout()
    pages.save(figure, "networks.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--paths", action="store_true")
    options = parser.parse_args()
    made_data = {"digits": digits, "MNIST": functools.partial(mnist, options.data_dir)}
    if options.paths:
        about = f"`python -m benchmarks networks --paths`, float32; means; {describe()}"
        keys = ("data", "method", "steps")
        for name, (method, rate) in itertools.product(options.data, PATHS):
            found_paths = []
            for seed in range(options.seeds):
                data = made_data[name](seed)
                found_paths.append(
                    path(PPLS["numpyro"](method, rate, data, seed), data, LOOKS, seed)
                )
            table = rows_of_path(name, name_of(method, rate), found_paths)
            pages.replace("networks_paths.csv", table, about, keys)
        draw()
        return
    about = "`python -m benchmarks networks`, seeds from 0, float32; means and standard"
    about = f"{about} deviations over seeds; {describe()}"
    for name in options.data:
        for ppl in options.ppl:
            found = []
            for seed in range(options.seeds):
                data = made_data[name](seed)
                found.append(compared(PPLS[ppl], data, options.epochs, seed, options.methods))
                table = rows(name, ppl, options.epochs, found)
                pages.replace("networks.csv", table, about, ("data", "ppl", "after", "method"))
    draw()


if __name__ == "__main__":
    main()
