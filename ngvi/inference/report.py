"""A result in words and numbers, and in a picture."""

from __future__ import annotations

import io
import math
import textwrap
from typing import Any

import numpy as np

from ngvi.inference.draws.accuracy import Accuracy
from ngvi.inference.draws.diagnostics import Diagnostics
from ngvi.inference.draws.going_on import way_on
from ngvi.inference.options import LEVELS
from ngvi.inference.posterior import family_names
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import BY_MODES

#: Colours: the fit, its noise, the importance weights' view.
FIT, NOISE, WEIGHTS = "#08519c", "#bdd7e7", "#d95f0e"


#: Characters of a label, and of a line beside it.
WIDTH, OF_WORDS = 22, 75
#: Numbers in the picture.
NUM_SHOWN = 10
#: Smallest weight of the picture, as a part of the mean one.
SMALLEST_WEIGHT = 1e-4


def final_bound(trace: Trace) -> tuple[float, float]:
    """Return the bound in nats and its standard error, from the last tenth of the steps.

    Means are weighted by ``1 / (error^2 + distance^2)``, with the distance to the optimum: losses
    on the way there are not the bound's. Those that are not finite are left out.
    """
    count = max(1, round(0.1 * len(trace)))
    columns = trace.losses, trace.loss_errors, trace.distances
    losses, errors, distances = (np.asarray(column[-count:], float) for column in columns)
    errors = np.hypot(errors, np.nan_to_num(distances, nan=0.0, posinf=np.inf))
    kept = np.isfinite(losses) & np.isfinite(errors) & (errors >= 0)
    if not kept.any():
        finite = losses[np.isfinite(losses)]
        return (-float(finite.mean()) if len(finite) else math.nan), math.nan
    losses, errors = losses[kept], errors[kept]
    if (errors == 0).any():  # no noise: the last is the best
        return -float(losses[errors == 0][-1]), 0.0
    weights = 1.0 / errors**2
    return -float(weights @ losses / weights.sum()), float(weights.sum() ** -0.5)


def report(result: Any, complete: bool) -> str:
    """Return a readable account of a ``FitResult``.

    :param complete: with the draws, which are made if they are not known.
    """
    state = result.verdict.replace("not", "NOT")
    count = len(result.trace)
    steps = "step" if count == 1 else "steps"
    known, words, way = None, "not made yet: print(result) or result.sample(1000)", ""
    if complete:
        try:
            known = result.diagnostics
            state += f"; draws {known.accuracy.verdict}"
            words, way = f"{known.how}: {known.accuracy.words}", way_on(result, known)
        except Exception as error:  # noqa: BLE001  a report of a long fit must not be lost
            words = f"failed: {error}"
    lines = [f"FitResult: {state}, after {count} {steps}, {result.seconds:.1f} s"]

    def add(name: str, *values: str) -> None:
        parts = [p for v in values for p in textwrap.wrap(v, OF_WORDS, break_on_hyphens=False)]
        lines.extend(
            f"  {'' if index else name:<{WIDTH}}{part}" for index, part in enumerate(parts)
        )

    add("draws", words, way)
    add("reason", result.reason)
    add("posterior", f"{family_names(result)}, d = {result.dim:,}")
    if tried := second_fit(result):
        add("locals", tried)
    add(
        "evaluations",
        f"{result.cost.gradients:,} gradients, {result.cost.products:,} Hessian-vector products, "
        f"{result.cost.values:,} values",
    )
    noise = "" if math.isnan(result.bound_error) else f" ± {result.bound_error:.2g}"
    add("bound", f"{result.bound:,.3f}{noise} nats")
    is_good = result.converged and (known is None or known.accuracy.is_accurate)
    if not is_good and hasattr(result.guide, "num_without_mode"):
        for name, count in result.guide.num_without_mode(result.params).items():
            add("without a mode", f"{count:.2g} of {name!r} on average: these are not centred")
    return "\n".join(lines)


def second_fit(result: Any) -> str:
    """Say how locals are fitted, and what came of the other of two fits, if anything."""
    for start in result.restarts:
        if start.name == BY_MODES:
            if start.status != "kept":
                return f"not centred; with conditional modes the bound is {start.status}"
            other = result.restarts[-1].status
            return f"centred at conditional modes; without them the bound is {other}"
    return "centred at conditional modes" if hasattr(result.guide, "num_without_mode") else ""


# -- the picture --------------------------------------------------------------------------


def plot(result: Any) -> Any:
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
    figure = shown_once(pyplot.figure(figsize=(10.5, 7.2), layout="constrained"))
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2.6), width_ratios=(3, 2))
    left = grid[:, 0].subgridspec(2, 1, height_ratios=(2.4, 1), hspace=0.02)
    bound = figure.add_subplot(left[0])
    steps = figure.add_subplot(left[1], sharex=bound)
    _plot_bound(bound, result.trace, result.bound, result.bound_error)
    _plot_steps(steps, result.trace)
    bound.tick_params(labelbottom=False)
    _plot_weights(figure.add_subplot(grid[0, 1]), result.diagnostics)
    _plot_errors(figure.add_subplot(grid[1, 1]), result.diagnostics.accuracy)
    dim, state = f"{result.dim:,}", result.verdict
    figure.suptitle(f"{family_names(result)}, d = {dim}: {state} after {len(result.trace)} steps")
    return figure


def shown_once(figure: Any) -> Any:
    """Return an open figure that a notebook shows once, as a cell's value or at the cell's end."""

    def show() -> None:
        from IPython.display import Image, display
        from matplotlib import pyplot

        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        pyplot.close(figure)  # or the end of the cell shows the figure again
        display(Image(picture.getvalue()))

    vars(figure)["_ipython_display_"] = show
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


def _plot_weights(ax: Any, draws: Diagnostics) -> None:
    k = draws.pareto_k
    if k is None:
        _say(ax, draws.accuracy.fault)
        return
    ax.set_title(f"weights of the Gaussian, k-hat {k:.2f}", fontsize=11)
    log_weights = draws.log_weights[np.isfinite(draws.log_weights)]
    # Relative to the mean weight: for an exact posterior all of them are 1.
    largest = log_weights.max()
    log_mean = largest + np.log(np.mean(np.exp(log_weights - largest)))
    weights = np.sort(np.exp(log_weights - log_mean))[::-1]
    share = np.arange(1, len(weights) + 1) / len(log_weights)
    ax.loglog(weights.clip(SMALLEST_WEIGHT), share, color=FIT, linewidth=1.5)
    ax.axvline(1.0, color="0.7", linewidth=0.8)
    # Weights that are equal must not look as if they were not.
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.1), max(right, 10.0))
    ax.set_ylim(0.5 / len(log_weights), 1.5)
    ax.set_xlabel("importance weight / mean weight", fontsize=9)
    ax.set_ylabel("share of draws above", fontsize=9)


def _plot_errors(ax: Any, accuracy: Accuracy) -> None:
    ax.set_title(f"draws {accuracy.verdict}: upper limits of errors", fontsize=11)
    worst = accuracy.worst(NUM_SHOWN)
    if not worst:
        _say(ax, "not defined")
        return
    rows = np.arange(len(worst))[::-1]
    limits = accuracy.limits[:, [accuracy.names.index(name) for name in worst]]
    ax.plot(limits[0], rows, "o", color=FIT, label="mean, in sd")
    ax.plot(limits[1], rows, "s", color=WEIGHTS, markersize=4, label="sd, relative")
    ax.axvline(LEVELS.negligible, color="0.6", linestyle=":", label="accurate up to here")
    ax.set_yticks(rows, worst, fontsize=9)
    ax.set_ylim(-0.7, len(worst) - 0.3)
    ax.set_xlim(left=0)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False, fontsize=9)


def _say(ax: Any, words: str) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, words, ha="center", va="center", wrap=True, transform=ax.transAxes)
