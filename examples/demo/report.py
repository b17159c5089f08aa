"""The table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from examples.demo.race import Result
from examples.demo.settings import BOUND_DRAWS, TRIED
from examples.machine import describe


def show(console: Console, results: list[Result], optimum: float) -> None:
    """Print the table and what it was measured on."""
    table = Table(title="Logistic regression, bound after the last step", title_justify="left")
    for name in ("PPL", "Guide and optimiser"):
        table.add_column(name)
    for name in ("Steps", "First step\n[s]", "All steps\n[s]", "A later\nstep [ms]"):
        table.add_column(name, justify="right")
    table.add_column(f"Bound, stock ELBO\n{BOUND_DRAWS} draws [nats]", justify="right")
    table.add_column("Below the\noptimum [nats]", justify="right")
    for result in results:
        table.add_row(
            result.ppl,
            result.method.name.replace(" + ", "\n  + "),
            str(result.num_steps),
            f"{result.first_step:.2f}",
            f"{result.seconds[-1]:.2f}",
            f"{result.step_milliseconds:.2f}",
            f"{result.estimate:.3f} ± {result.standard_error:.3f}",
            f"{optimum - result.bounds[-1]:.4f}",
            end_section=result is results[-1] or result.ppl != _next(results, result).ppl,
        )
    console.print(table)
    console.print(
        f"The best bound of any Gaussian is {optimum:.4f} nats (found by quadrature, which also "
        "gave the last column, without Monte Carlo noise). The first step includes building the "
        "guide and, in NumPyro, compiling. BLR has no settings; Snngm and Adam follow a cosine "
        f"schedule from a learning rate chosen among {_list('Snngm')} for Snngm and "
        f"{_list('Adam')} for Adam.\n{describe()}.",
        highlight=False,
    )


def publish(results: list[Result], optimum: float, about: str) -> None:
    """Write ``docs/benchmarks/demo.csv``, and its table on the demo's page; in a checkout only."""
    from benchmarks import pages

    pages.OUT = pages.FOLDER
    pages.write("demo.csv", [_row(result, optimum) for result in results], about)


def _row(result: Result, optimum: float) -> dict[str, str]:
    """Seconds with two digits that count; nats to a ten-thousandth, or two digits."""
    guide, *others = result.method.name.split(" + ")
    gap = optimum - result.bounds[-1]
    return {
        "PPL": result.ppl,
        "guide and optimiser": " + ".join([f"`{guide}`", *(f"`{other}`" for other in others)]),
        "steps": str(result.num_steps),
        "first step [s]": f"{result.first_step:.2g}",
        "all steps [s]": f"{result.seconds[-1]:.2g}",
        "below the optimum [nats]": f"{gap:.2f}" if gap > 0.1 else f"{gap:.4f}",
    }


def _next(results: list[Result], result: Result) -> Result:
    return results[results.index(result) + 1]


def _list(optimiser: str) -> str:
    return ", ".join(f"{rate:g}" for rate in TRIED[optimiser])
