"""The two plots."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from examples.demo.race import Result
from examples.demo.settings import FIRST_ORDER, SECOND_ORDER, STOCK

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
LABELS = {
    SECOND_ORDER: "NaturalGaussianGuide + BLR + NaturalELBO",
    FIRST_ORDER: "NaturalGaussianGuide + Snngm",
    STOCK: "AutoMultivariateNormal + Adam",
}


def plot_bound(results: list[Result], optimum: float, path: Path) -> None:
    """The bound against the seconds of steps, a panel for each PPL.

    The first step, which compiles, is not in these seconds: each panel says how long it took.
    """
    ppls = list(dict.fromkeys(result.ppl for result in results))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(ppls), figsize=(1.0 + 4.2 * len(ppls), 4.6), sharey=True, squeeze=False
        )
        for axis, ppl in zip(axes[0], ppls, strict=True):
            first: list[str] = []
            for result in results:
                if result.ppl == ppl:
                    gap = np.maximum(optimum - np.array(result.bounds), 1e-6)
                    colour, label = result.method.colour, LABELS[result.method]
                    seconds = np.array(result.seconds) - result.first_step
                    axis.plot(seconds[2:], gap[2:], color=colour, lw=1.8, label=label)
                    axis.plot(seconds[-1], gap[-1], "o", color=colour, ms=5)
                    first.append(f"{result.method.optimiser} {result.first_step:.2g} s")
            axis.set_yscale("log")
            axis.set_xscale("log")
            low, high = axis.get_xlim()  # a run may be less than a decade long
            marks = (1, 2, 5) if high < 50 * low else (1,)
            few = MaxNLocator(6) if high < 10 * low else LogLocator(subs=marks)
            axis.xaxis.set_major_locator(few)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_title(ppl, loc="left", fontweight="bold")
            note = "compilation and first step:\n" + ", ".join(first)
            axis.set_xlabel(f"seconds of the steps after the first\n{note}", fontsize=9)
        axes[0, 0].set_ylabel("bound: nats below the best Gaussian")
        axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.08), fontsize=9, borderaxespad=0)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)


def plot_posterior(
    results: list[Result],
    names: list[str],
    exact: tuple[np.ndarray, np.ndarray],
    path: Path,
) -> None:
    """Posterior means with 95 % intervals, for both guides.

    :param exact: mean and standard deviation of the best Gaussian.
    """
    ppls = list(dict.fromkeys(result.ppl for result in results))
    order = np.argsort(exact[0])
    rows = np.arange(len(names))
    with plt.rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = plt.subplots(
            1, len(ppls), figsize=(2.0 + 4.0 * len(ppls), 7.0), sharey=True, squeeze=False
        )
        for axis, ppl in zip(axes[0], ppls, strict=True):
            axis.axvline(0, color="#999999", lw=0.8)
            for method, offset in ((SECOND_ORDER, 0.18), (STOCK, -0.18)):
                result = next(r for r in results if r.ppl == ppl and r.method == method)
                axis.errorbar(
                    result.mean[order],
                    rows + offset,
                    xerr=1.96 * result.sd[order],
                    fmt="o",
                    ms=3.5,
                    lw=1.4,
                    color=method.colour,
                    label=LABELS[method],
                )
            axis.plot(exact[0][order], rows, "|k", ms=9, label="mean of the best Gaussian")
            axis.set_title(ppl, loc="left", fontweight="bold")
            axis.set_xlabel("weight, mean and 95 % interval [log odds of a bad loan]")
        axes[0, 0].set_yticks(rows, [names[i] for i in order])
        axes[0, 0].set_ylim(-0.7, len(names) - 0.3)
        axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.05), fontsize=9, borderaxespad=0)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)
