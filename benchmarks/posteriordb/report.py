"""The tables, and what they say of all runs together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from .fit_runs import METHOD as FIT
from .runs import Cache, Run

# Nats below the best bound known: as good as there, acceptable, and not worth the name converged.
CLOSE = 0.1
FAR = 1.0
NOT_CONVERGED = 0.5


@dataclass(frozen=True)
class Comparison:
    """The runs of one PPL, and the best bounds that any run or the careful run has found.

    All bounds come from the same draws. `unsure` are the posteriors without a careful run.
    """

    ppl: str
    runs: list[Run]
    best: dict[str, float]
    unsure: frozenset[str]

    @classmethod
    def load(cls, cache: Cache, ppl: str, posteriors: Iterable[str]) -> Comparison:
        """What the cache has of these posteriors."""
        names = set(posteriors)
        best = {name: careful.bound.value for name in names if (careful := cache.best(name))}
        runs = [run for run in cache.runs() if run.posterior in names]
        unsure = frozenset(run.posterior for run in runs) - best.keys()
        for run in runs:
            best[run.posterior] = max(best.get(run.posterior, -np.inf), run.score.bound)
        return cls(ppl, [run for run in runs if run.ppl == ppl], best, unsure)

    def gap(self, run: Run) -> float:
        """Nats from the best bound known; infinite where the run ended without a bound."""
        return self.best[run.posterior] - run.score.bound

    def reached(self, run: Run) -> tuple[float, float]:
        """Evaluations and seconds until the run was close for good, or infinity."""
        return run.reached(self.best[run.posterior] - CLOSE)

    def evaluations(self) -> dict[str, dict[tuple[str, int], float]]:
        """By method, posterior and seed: evaluations until close, or infinity."""
        table: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
        for run in self.runs:
            table[run.method][run.posterior, run.seed] = self.reached(run)[0]
        return dict(table)

    def best_tuned(self) -> dict[tuple[str, int], float]:
        """By posterior and seed, the evaluations of the rate that turned out the fastest."""
        fastest: dict[tuple[str, int], float] = {}
        for method, table in self.evaluations().items():
            if method != FIT:
                for key, value in table.items():
                    fastest[key] = min(value, fastest.get(key, np.inf))
        return fastest


def number(value: float, digits: int = 2) -> str:
    """A figure for a cell, a dash where there is none."""
    if not np.isfinite(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.2g}"


def count(value: float) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else "-"


def fit_table(comparison: Comparison) -> Table:
    """One row a posterior: medians over seeds, and the worst gap."""
    table = Table(title=f"fit, {comparison.ppl}: medians over seeds")
    for column in ("posterior", "d", "best bound", "gap", "worst", "evaluations", "stock",
                   "seconds", "k-hat", "mean error", "sd ratio", "converged"):  # fmt: skip
        table.add_column(column, justify="left" if column == "posterior" else "right", no_wrap=True)
    stock = comparison.best_tuned()
    for name in sorted(comparison.best):
        runs = [run for run in comparison.runs if (run.posterior, run.method) == (name, FIT)]
        if not runs:
            continue
        gaps = [comparison.gap(run) for run in runs]
        tuned = [stock[name, run.seed] for run in runs if (name, run.seed) in stock]
        ratios = [run.score.sd_ratio for run in runs]
        table.add_row(
            name,
            str(len(runs[0].mean)),
            number(comparison.best[name]),
            number(np.median(gaps), 3),
            number(max(gaps), 3),
            count(np.median([run.evaluations for run in runs])),
            count(np.median(tuned)) if tuned else "-",
            number(np.median([run.seconds for run in runs]), 1),
            number(np.median([run.score.pareto_k for run in runs])),
            number(np.median([run.score.mean_error for run in runs])),
            number(np.median(ratios)),
            f"{sum(bool(run.converged) for run in runs)}/{len(runs)}",
        )
    return table


def stock_table(comparison: Comparison) -> Table:
    """One row a posterior: every rate's steps until close and gap at the end; the best rate."""
    methods = sorted({run.method for run in comparison.runs} - {FIT}, reverse=True)
    table = Table(
        title=f"stock AutoMultivariateNormal, {comparison.ppl}: medians over seeds of steps to "
        f"{CLOSE} nats and of the gap at the end; the rate with the least gap"
    )
    table.add_column("posterior", no_wrap=True)
    for method in methods:
        for column in (f"{method}: steps", "gap"):
            table.add_column(column, justify="right")
    table.add_column("best")
    for column in ("seconds", "k-hat", "mean error", "sd ratio"):
        table.add_column(column, justify="right")
    for name in sorted(comparison.best):
        gaps: dict[str, float] = {}
        by_method = {}
        cells = []
        for method in methods:
            runs = [run for run in comparison.runs if (run.posterior, run.method) == (name, method)]
            if not runs:
                cells += ["-", "-"]
                continue
            by_method[method] = runs
            gaps[method] = float(np.median([comparison.gap(run) for run in runs]))
            steps = np.median([comparison.reached(run)[0] for run in runs])
            cells += [count(steps), number(gaps[method], 3)]
        if not gaps:
            continue
        best = min(gaps, key=gaps.get)
        runs = by_method[best]
        table.add_row(
            name,
            *cells,
            best,
            number(np.median([comparison.reached(run)[1] for run in runs])),
            number(np.median([run.score.pareto_k for run in runs])),
            number(np.median([run.score.mean_error for run in runs])),
            number(np.median([run.score.sd_ratio for run in runs])),
        )
    return table


def summary(comparison: Comparison) -> list[str]:
    """The claims about all runs of `fit`, with the figures that decide them."""
    runs = [run for run in comparison.runs if run.method == FIT]
    if not runs:
        return [f"{comparison.ppl}: no runs of fit"]
    gaps = np.array([comparison.gap(run) for run in runs])
    converged = np.array([bool(run.converged) for run in runs])
    lines = [
        f"{comparison.ppl}: {len(runs)} runs of fit",
        f"within {CLOSE} nats of the best bound known: {np.mean(gaps <= CLOSE):.1%}",
        f"within {FAR} nats: {np.mean(gaps <= FAR):.1%}; the worst is {gaps.max():.3f} short",
        f"converged: {converged.mean():.1%}; of these more than {NOT_CONVERGED} nats short: "
        f"{np.sum(converged & (gaps > NOT_CONVERGED))}",
    ]
    lines += [
        f"  {run.posterior}, seed {run.seed}: {gap:.3f} nats short, "
        f"{'converged' if run.converged else 'not converged'}: {run.reason}"
        for run, gap in sorted(zip(runs, gaps, strict=True), key=lambda pair: -pair[1])
        if gap > CLOSE
    ]
    tuned = comparison.best_tuned()
    pairs = [
        (run.evaluations, tuned[run.posterior, run.seed])
        for run in runs
        if (run.posterior, run.seed) in tuned
    ]
    if pairs:
        ours, stock = np.array(pairs, float).T
        arrived = np.isfinite(stock)
        length = max(run.evaluations for run in comparison.runs if run.method != FIT)
        ratios = ours / np.where(arrived, stock, length)
        lines += [
            f"evaluations of fit: median {np.median(ours):,.0f}; of the best-tuned stock run to "
            f"{CLOSE} nats: median {count(np.median(stock))}; {arrived.mean():.0%} arrive",
            f"ratio, run by run, where one that does not arrive counts {length:,}: "
            f"median {np.median(ratios):.4f}, worst {ratios.max():.3f}; fit needs more in "
            f"{np.sum(ours > stock)} of {len(ratios)}",
        ]
    return lines


def print_report(comparison: Comparison, console: Console) -> None:
    """Everything there is."""
    methods = {run.method for run in comparison.runs}
    if FIT in methods:
        console.print(fit_table(comparison))
    if methods - {FIT}:
        console.print(stock_table(comparison))
    if comparison.unsure:
        names = ", ".join(sorted(comparison.unsure))
        console.print(f"No careful run, gaps too small: {names}", highlight=False)
    for line in summary(comparison):
        console.print(line, highlight=False)
