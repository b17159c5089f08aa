"""Performance profile: which part of all runs is close after so many evaluations."""

from __future__ import annotations

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from .fit_runs import METHOD as FIT
from .report import CLOSE, Comparison

BEST_TUNED = "Adam, best rate of each run"


def profile(comparison: Comparison) -> Figure:
    """One curve a method, and one for the stock run with the rate that turned out best."""
    curves = comparison.evaluations()
    methods = [FIT] if FIT in curves else []
    stock = sorted(set(curves) - {FIT}, reverse=True)
    if stock:
        curves[BEST_TUNED] = comparison.best_tuned()
        methods += [BEST_TUNED, *stock]
    finite = [v for table in curves.values() for v in table.values() if np.isfinite(v)]
    low, high = min(finite, default=10), max(finite, default=1000)
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for index, method in enumerate(methods):
        values = np.array(list(curves[method].values()))
        arrived = np.sort(values[np.isfinite(values)])
        x = np.concatenate([[1.0], arrived, [high * 1.5]])
        y = np.concatenate([np.arange(len(arrived) + 1), [len(arrived)]]) / len(values)
        width = 2.2 if method in (FIT, BEST_TUNED) else 1.2
        style = "-" if method in (FIT, BEST_TUNED) else "--"
        label = f"{method} ({len(arrived)} of {len(values)})"
        axes.step(x, y, style, where="post", lw=width, color=f"C{index}", label=label)
    axes.set_xscale("log")
    axes.set_xlim(10 ** np.floor(np.log10(low)), high * 1.5)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("gradients of one draw (a Hessian counts as its dimension)")
    axes.set_ylabel(f"runs within {CLOSE} nats of the best bound")
    num = len({run.posterior for run in comparison.runs})
    axes.set_title(f"{num} posteriors of posteriordb, {comparison.ppl}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(fontsize=8, loc="outside lower center", ncols=3, frameon=False)
    return figure
