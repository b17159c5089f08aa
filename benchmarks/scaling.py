"""What a step costs as models grow: latents, rows, minibatches, locals; time and peak memory.

NumPyro, float32. A step is one update of the stock ``SVI``: ``Snngm`` with one draw and
``Trace_ELBO`` unless the series says ``BLR()``, which is with ``NaturalELBO()`` and its defaults.

- latents, dense: logistic regression with 1000 rows (``step_cost.py``);
- latents, mean field and low rank (rank 10): a normal mean for each, with one observation
  (``low_rank_cost.py``);
- rows: logistic regression with 10 latents, all rows in each step;
- batch: the same with 10^6 rows, of which a step draws a minibatch;
- locals: logistic regression with an intercept for each group of seven rows, and the family
  ``sparse_precision`` (``sparse_cost.py``).

Every series is a process of its own, whose sizes grow. Processor time, summed over its threads, is
the median of blocks of steps after two for compilation, so that it hardly depends on what else the
machine does; memory is the peak of the process so far, with its data, Python, JAX and the compiler.

    python -m benchmarks scaling [--series locals rows]

writes ``scaling.csv`` and ``scaling.png`` in ``docs/benchmarks``; with ``--series``, these rows.

Time: 10 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from examples.machine import describe

from . import low_rank_cost, pages, sparse_cost, step_cost

BLOCKS = 5
BLOCK_SECONDS = 0.1  #: of processor time, so that the clock's grain does not matter
DIM = 10  #: of the regressions with many rows
ROWS_OF_BATCHES = 1_000_000


def _regression(name: str, dim: int, rows: int, batch: int | None = None) -> Callable:
    return step_cost.numpyro_steppers(dim, 1, 0, rows, batch, [name])[name]


def _means(family: str, dim: int) -> Callable:
    (step,) = low_rank_cost.numpyro_case("means", dim, 10, 0, [family])
    return lambda num: [step() for _ in range(num)]


def _sparse(num_locals: int) -> Callable:
    set_up, _, step, _ = sparse_cost.numpyro_case(num_locals, 0)
    set_up()
    return step


#: By name: what grows, its values, and the step at one of them.
SERIES: dict[str, tuple[str, list[int], Callable[[int], Callable]]] = {
    "dense": (
        "latents",
        [20, 100, 500, 1000, 2000],
        lambda dim: _regression("ngvi", dim, step_cost.NUM_ROWS),
    ),
    "dense, BLR()": (
        "latents",
        [20, 100, 500],
        lambda dim: _regression("blr", dim, step_cost.NUM_ROWS),
    ),
    "mean field": (
        "latents",
        [10**3, 10**4, 10**5, 10**6],
        lambda dim: _means("diagonal", dim),
    ),
    "low rank": ("latents", [10**3, 10**4, 10**5, 10**6], lambda dim: _means("low_rank", dim)),
    "all rows": (
        "rows",
        [10**3, 10**5, 10**6, 10**7],
        lambda rows: _regression("ngvi", DIM, rows),
    ),
    "all rows, BLR()": (
        "rows",
        [10**3, 10**5, 10**6],
        lambda rows: _regression("blr", DIM, rows),
    ),
    "minibatches of 10^6 rows": (
        "rows of a batch",
        [10**2, 10**3, 10**4, 10**5],
        lambda batch: _regression("ngvi", DIM, ROWS_OF_BATCHES, batch),
    ),
    "locals": ("locals", [10**2, 10**3, 10**4, 10**5], _sparse),
}


def measure(series: str) -> None:
    """One series, a line for each size: seconds of a step, and peak MB."""
    _, sizes, make = SERIES[series]
    for size in sizes:
        step = make(size)
        step(2)

        def cpu(num: int, step: Callable = step) -> float:
            begin = time.process_time()
            step(num)
            return (time.process_time() - begin) / num

        num = max(1, round(BLOCK_SECONDS / cpu(1)))
        times = [cpu(num) for _ in range(BLOCKS)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([statistics.median(times), peak]), flush=True)
        del step, cpu


def picture(rows: list[dict[str, str]]) -> None:
    """Times above, memory below; a panel for each thing that grows."""
    panels = list(dict.fromkeys(row["what grows"] for row in rows))
    figure, axes = pages.figure(2, len(panels), (3.0, 2.6))
    for column, grows in enumerate(panels):
        for name in dict.fromkeys(row["series"] for row in rows if row["what grows"] == grows):
            own = [row for row in rows if row["series"] == name]
            sizes = [int(row["size"].replace(",", "")) for row in own]
            for axis, key in zip(axes[:, column], ("CPU ms a step", "peak MB"), strict=True):
                values = [float(row[key].replace(",", "")) for row in own]
                axis.plot(sizes, values, "o-", ms=3, lw=1.2, label=name)
        for axis in axes[:, column]:
            axis.set(xscale="log", yscale="log", xlabel=grows)
        axes[0, column].legend(fontsize=8)
    for line, label in zip(axes, ("CPU ms a step", "peak MB of the process"), strict=True):
        line[0].set_ylabel(label)
        low = min(axis.get_ylim()[0] for axis in line)
        high = max(axis.get_ylim()[1] for axis in line)
        for axis in line:
            axis.set_ylim(low, 1.5 * high if line[0] is axes[1, 0] else 20 * high)  # and the legend
    figure.tight_layout()
    pages.save(figure, "scaling.png")


def _measured(series: str) -> list[dict[str, str]]:
    grows, sizes, _ = SERIES[series]
    command = [sys.executable, "-m", "benchmarks.scaling", "--here", series]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    logs = np.log(np.column_stack([sizes, [seconds for seconds, _ in found]]))
    slopes = ["", *(f"{rise / run:.2f}" for run, rise in np.diff(logs, axis=0))]
    rows = []
    for size, (seconds, peak), slope in zip(sizes, found, slopes, strict=True):
        row = {"what grows": grows, "series": series, "size": f"{size:,}"}
        row |= {"CPU ms a step": f"{float(f'{1e3 * seconds:.3g}'):,g}", "slope": slope}
        rows.append(row | {"peak MB": f"{peak:.0f}"})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--series", nargs="*", choices=SERIES, default=list(SERIES))
    parser.add_argument("--here", choices=SERIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.here)
        return
    about = f"`python -m benchmarks scaling`, float32, seed 0; {describe()}"
    for series in options.series:
        pages.replace("scaling.csv", _measured(series), about, ("what grows", "series", "size"))
    picture(pages.read("scaling.csv"))


if __name__ == "__main__":
    main()
