"""The command line of the demo."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from examples.demo import credit
from examples.demo.bound import ExactBound
from examples.demo.race import Result, race, warm_up
from examples.demo.report import publish, show
from examples.demo.settings import METHODS, PRIOR_SCALE
from examples.machine import describe

PPLS = {"pyro": "Pyro", "numpyro": "NumPyro"}


def main() -> None:
    """Fit, report and plot."""
    arguments = _arguments()
    console = Console(width=None if Console().is_terminal else 120)
    data = credit.load()
    rows, columns = data.X.shape
    console.print(
        f"credit_data: {rows} loans, {data.y.mean():.1%} bad, {columns} columns in the design "
        f"matrix; prior N(0, {PRIOR_SCALE:g}²) for every weight.",
        highlight=False,
    )
    exact = ExactBound(data.X, data.y, PRIOR_SCALE)
    optimum, mean, covariance = exact.optimum()
    results = _fit(console, arguments, data, exact)
    show(console, results, optimum)

    # Slow to import, and not needed before.
    from examples.demo.plots import plot_bound, plot_posterior

    folder = arguments.out_dir
    folder.mkdir(parents=True, exist_ok=True)
    plot_bound(results, optimum, folder / "bound.png")
    best = mean, np.sqrt(np.diag(covariance))
    plot_posterior(results, data.names, best, folder / "posterior.png")
    if arguments.publish:
        about = f"`python -m examples.demo --publish`, seed {arguments.seed}; {describe()}"
        publish(results, optimum, about)
        plot_bound(results, optimum, Path("docs", "demo_bound.png"))
    console.print(f"Plots: {folder / 'bound.png'} and {folder / 'posterior.png'}", highlight=False)


def _fit(
    console: Console, arguments: argparse.Namespace, data: credit.Credit, exact: ExactBound
) -> list[Result]:
    results = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for name in arguments.ppl:
            ppl = importlib.import_module(f"examples.demo.with_{name}")
            for method in METHODS:
                warm_up(ppl, method, data)
            tasks = {
                method: progress.add_task(
                    f"{ppl.NAME:8}{method.name}", total=method.num_steps(arguments.steps)
                )
                for method in METHODS
            }
            results += race(
                ppl,
                METHODS,
                data,
                exact,
                arguments.steps,
                arguments.seed,
                lambda method, steps, tasks=tasks: progress.advance(tasks[method], steps),
            )
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--steps", type=_steps, default=2000, help="of each first-order fit (2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ppl", nargs="+", choices=list(PPLS), default=list(PPLS), help="which PPLs (both)"
    )
    parser.add_argument(
        "--out-dir", type=Path, default=Path("demo_output"), help="for the plots (demo_output/)"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="also write the CSV, table and picture of docs/, from the top of a checkout",
    )
    return parser.parse_args()


def _steps(text: str) -> int:
    steps = int(text)
    if steps < 2:
        raise argparse.ArgumentTypeError("at least 2 steps are needed")
    return steps


main()
