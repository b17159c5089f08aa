"""The picture of a fit: how it went, and whether to believe it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ngvi.inference.diagnostics import USABLE, Diagnostics, Marginal
from ngvi.inference.trace import Trace

#: Colours: the fit, its noise, the importance weights' view.
FIT, NOISE, WEIGHTS = "#08519c", "#bdd7e7", "#d95f0e"

#: Marginals shown.
NUM_MARGINALS = 10

#: Weights below this fraction of the mean one are not told apart.
SMALLEST_WEIGHT = 1e-4


def plot_result(result: Any) -> Any:
    """Draw a ``FitResult``.

    :return: a matplotlib figure.
    :raises ModuleNotFoundError: without matplotlib.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "result.plot needs matplotlib: pip install matplotlib", name=error.name
        ) from error
    figure = pyplot.figure(figsize=(10.5, 7.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2.6), width_ratios=(3, 2))
    left = grid[:, 0].subgridspec(2, 1, height_ratios=(2.4, 1), hspace=0.02)
    bound = figure.add_subplot(left[0])
    steps = figure.add_subplot(left[1], sharex=bound)
    _plot_bound(bound, result.trace, result.bound, result.bound_error)
    _plot_steps(steps, result.trace)
    bound.tick_params(labelbottom=False)
    diagnostics = result.diagnostics
    _plot_weights(figure.add_subplot(grid[0, 1]), diagnostics)
    _plot_marginals(figure.add_subplot(grid[1, 1]), diagnostics.worst(NUM_MARGINALS))
    state = "converged" if result.converged else "not converged"
    dim = f"{result.dim:,}"
    figure.suptitle(f"{result.family_name}, d = {dim}: {state} after {result.num_steps} steps")
    return figure


def _plot_bound(ax: Any, trace: Trace, bound: float, error: float) -> None:
    steps = np.arange(len(trace))
    losses, errors = np.asarray(trace.losses, float), np.asarray(trace.loss_errors, float)
    # On a logarithmic axis: what is above the final bound is so by noise.
    away = np.abs(losses + bound)
    away = np.where(away > 0, away, np.nan)
    ax.plot(steps, away, ".-", color=FIT, markersize=3, linewidth=1, label="bound at each step")
    distances = np.asarray(trace.distances, float)
    distances = np.where(distances > 0, distances, np.nan)
    ax.plot(steps, distances, color=WEIGHTS, linewidth=1.2, label="estimated distance to optimum")
    if error > 0:
        ax.axhline(error, color="0.6", linestyle=":", linewidth=1, label="error of the final bound")
    if np.any(np.isfinite(away)) or np.any(np.isfinite(distances)):
        ax.set_yscale("log")
        limits = ax.get_ylim()
        lower = np.maximum(away - errors, limits[0])
        ax.fill_between(steps, lower, away + errors, color=NOISE, linewidth=0, zorder=0)
        ax.set_ylim(limits)
    ax.set_ylabel("nats from the final bound")
    ax.set_title(f"bound {bound:,.3f} ± {error:.2g} nats", fontsize=11)
    ax.legend(frameon=False, fontsize=9)


def _plot_steps(ax: Any, trace: Trace) -> None:
    ax.plot(trace.step_sizes, color=FIT, linewidth=1, drawstyle="steps-post")
    ax.set_ylabel("step size")
    ax.set_xlabel("step")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylim(bottom=0)
    draws = np.asarray(trace.num_draws, float)
    if not len(draws):
        return
    other = ax.twinx()
    other.plot(draws, color="0.55", linewidth=1, linestyle="--", drawstyle="steps-post")
    other.set_ylabel("draws (dashed)", color="0.4")
    other.set_ylim(bottom=0)


def _plot_weights(ax: Any, diagnostics: Diagnostics) -> None:
    k = diagnostics.pareto_k
    verdict, _, detail = diagnostics.verdict.partition(": ")
    ax.set_title(f"k-hat {'' if k is None else f'{k:.2f}, '}{verdict}", fontsize=11)
    log_weights = diagnostics.log_weights[np.isfinite(diagnostics.log_weights)]
    if k is None or not len(log_weights):
        _say(ax, detail)
        return
    # Relative to the mean weight: for an exact posterior all of them are 1.
    largest = log_weights.max()
    log_mean = largest + np.log(np.mean(np.exp(log_weights - largest)))
    weights = np.sort(np.exp(log_weights - log_mean))[::-1]
    share = np.arange(1, len(weights) + 1) / len(log_weights)
    ax.loglog(weights.clip(SMALLEST_WEIGHT), share, color=FIT, linewidth=1.5)
    ax.axvline(1.0, color="0.7", linewidth=0.8)
    start, end = weights[min(len(weights) - 1, len(weights) // 20)], weights[0]
    if end > start > 0:
        # A tail of shape k is a line of slope -1 / k; at 0.7 weights can just be trusted.
        line = np.array([start, max(end, 3 * start)])
        at = share[min(len(weights) - 1, len(weights) // 20)]
        ax.loglog(
            line,
            at * (line / start) ** (-1 / USABLE),
            color=WEIGHTS,
            linestyle="--",
            linewidth=1,
            label=f"slope of k = {USABLE}",
        )
        ax.legend(frameon=False, fontsize=9)
    # Weights that are equal must not look as if they were not.
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.1), max(right, 10.0))
    ax.set_ylim(0.5 / len(log_weights), 1.5)
    ax.set_xlabel("importance weight / mean weight", fontsize=9)
    ax.set_ylabel("share of draws above", fontsize=9)


def _plot_marginals(ax: Any, worst: list[Marginal]) -> None:
    ax.set_title("worst marginals", fontsize=11)
    if not worst:
        _say(ax, "not defined")
        return
    ax.axvspan(-1, 1, color=NOISE, linewidth=0, label="q, ± 1 sd")
    rows = np.arange(len(worst))[::-1]
    ax.errorbar(
        [marginal.shift for marginal in worst],
        rows,
        xerr=[marginal.scale_ratio for marginal in worst],
        fmt="o",
        color=WEIGHTS,
        markersize=4,
        linewidth=1.5,
        label="importance weighted, ± 1 sd",
    )
    ax.axvline(0.0, color=FIT, linewidth=0.8)
    ax.set_yticks(rows, [marginal.name for marginal in worst], fontsize=9)
    ax.set_ylim(-0.7, len(worst) - 0.3)
    ax.set_xlabel("standard deviations of q, unconstrained", fontsize=9)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False, fontsize=9)


def _say(ax: Any, words: str) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, words, ha="center", va="center", wrap=True, transform=ax.transAxes)
