"""A result in words and numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ngvi.inference.diagnostics import USABLE, Diagnostics
from ngvi.inference.mode_centred import BY_MODES
from ngvi.inference.trace import Trace

#: The fraction of the steps whose losses make the final bound.
LAST_STEPS = 0.1

#: Marginals in the report.
NUM_MARGINALS = 3

#: A standard deviation of ``log w``, in nats, of which half the square is worth a second fit: that
#: of eight schools and of radon with varying intercepts is 0.7, that of epilepsy 1.4, of which one
#: nat can be gained.
WIDE_SPREAD = 1.0

_WIDTH = 22


def final_bound(trace: Trace) -> tuple[float, float]:
    """The bound in nats and its standard error, from the last tenth of the steps.

    Means are weighted by ``1 / (error^2 + distance^2)``, with the distance to the optimum where the
    trace has it: losses on the way there are not the bound's. Those that are not finite are left
    out.
    """
    count = max(1, round(LAST_STEPS * len(trace)))
    if trace.step_sizes and trace.step_sizes[-1] == 0.0:  # a confirmation, with fresh draws
        count = 1
    losses = np.asarray(trace.losses[-count:], float)
    errors = np.asarray(trace.loss_errors[-count:], float)
    if len(trace.distances) == len(trace):
        distances = np.asarray(trace.distances[-count:], float)
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
    """A readable account of a ``FitResult``.

    :param complete: with the diagnostics, which are computed if they are not known.
    """
    state = result.verdict if result.converged else "NOT converged"
    steps = "step" if result.num_steps == 1 else "steps"
    lines = [f"FitResult: {state} after {result.num_steps} {steps}, {result.seconds:.1f} s"]

    def add(name: str, *values: str) -> None:
        lines.extend(
            f"  {label:<{_WIDTH}}{value}"
            for label, value in zip([name] + [""] * (len(values) - 1), values, strict=True)
        )

    add("reason", result.reason)
    add("posterior", f"{result.family_name}, d = {result.dim:,}")
    if tried := by_modes(result):
        add("locals", tried)
    add(
        "evaluations",
        f"{result.cost.gradients:,} gradients, {result.cost.products:,} Hessian-vector products, "
        f"{result.cost.values:,} values",
    )
    add("bound", _nats(result.bound, result.bound_error))
    if hint := reparametrize(result):
        add("hint", *hint)
    if not complete:
        add("diagnostics", "not computed yet: print(result) or result.diagnostics")
        return "\n".join(lines)
    try:
        diagnostics = result.diagnostics
    except Exception as error:  # noqa: BLE001  a report of a long fit must not be lost
        add("diagnostics", f"failed: {error}")
        return "\n".join(lines)
    _add_diagnostics(add, diagnostics)
    is_good = result.converged and (diagnostics.pareto_k or 0.0) < USABLE
    if not is_good and (found := without_mode(result.guide, result.params)):
        add("without a mode", f"{found}: these stay as they are")
    return "\n".join(lines)


def by_modes(result: Any) -> str:
    """What came of a second fit, in words, or nothing."""
    for start in result.restarts:
        if start.name == BY_MODES:
            if start.status != "kept":
                return f"as they are; by their modes given the rest the bound is {start.status}"
            other = result.restarts[-1].status
            return f"by their modes given the rest; as they are the bound is {other}"
    return ""


def without_mode(guide: Any, params: dict[str, Any]) -> str:
    """Which locals of a ``ReparametrizedGaussianGuide`` have none, in words, or nothing."""
    counts = guide._without_mode(params) if hasattr(guide, "_without_mode") else {}
    if not counts:
        return ""
    sizes = {site.name: math.prod(plate.size for plate in site.plates) for site in guide.sites}
    words = [f"{count:.2g} of {sizes[name]:,} of {name!r}" for name, count in counts.items()]
    return f"{', '.join(words)} on average"


def reparametrize(result: Any) -> tuple[str, ...]:
    """Whether locals by their conditional modes are likely to do better, in two lines, or nothing.

    They follow what no Gaussian over all latents does: how the spread of locals depends on the
    globals. Where the Gaussian is as good as exact there is nothing to follow.
    """
    guide = result.guide
    if type(guide).__name__ != "NaturalGaussianGuide" or guide.create_plates is not None:
        return ()
    validation = result.validation
    if by_modes(result) or validation is None or not validation.spread > WIDE_SPREAD:
        return ()
    if (
        validation.is_heavy_tailed
    ):  # a few draws in a tail, as of a half-Cauchy scale, are no spread
        return ()
    names = [s.name for s in guide.sites if any(plate.size > 1 for plate in s.plates)]
    if not names:
        return ()
    first = ", ".join(map(repr, names[:NUM_MARGINALS])) + ", ..." * (len(names) > NUM_MARGINALS)
    return (
        f"log w varies by {result.validation.spread:.1f} nats. If {first} are independent in",
        "plates given the rest, guide=ReparametrizedGaussianGuide(model) may raise the bound",
    )


def _add_diagnostics(add: Any, diagnostics: Diagnostics) -> None:
    k = diagnostics.pareto_k
    add("Pareto k-hat", diagnostics.verdict if k is None else f"{k:.2f}, {diagnostics.verdict}")
    if diagnostics.importance_weighted_bound is None:
        return
    add(
        "importance weighted",
        _nats(diagnostics.importance_weighted_bound, diagnostics.importance_weighted_bound_error),
    )
    add(
        "effective draws",
        f"{diagnostics.effective_sample_size:,.0f} of {diagnostics.num_draws:,}",
    )
    worst = diagnostics.worst(NUM_MARGINALS)
    if worst:
        add(
            "worst marginals",
            *(f"{m.name}: mean {m.shift:+.2f} sd, sd x {m.scale_ratio:.2f}" for m in worst),
        )


def _nats(value: float, error: float | None) -> str:
    if error is None or math.isnan(error):
        return f"{value:,.3f} nats"
    return f"{value:,.3f} ± {error:.2g} nats"
