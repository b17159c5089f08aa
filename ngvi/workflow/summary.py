"""The table of a posterior that is reported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ngvi.errors import is_number
from ngvi.inference.draws.accuracy import flat, in_models, labels_of, numbers
from ngvi.workflow.arviz import ArvizGroups, Labels, axis_names
from ngvi.workflow.options import DEFAULTS


def summary_table(
    result: Any, var_names: str | Sequence[str] | None, prob: float, labels: Labels
) -> Any:
    """Return the table of ``summary``."""
    import pandas

    if not is_number(prob, lambda value: 0 < value < 1):
        raise ValueError(f"prob must be between 0 and 1, got {prob!r}.")
    accuracy, latents = result.diagnostics.accuracy, result.diagnostics.latents
    with result._at_model() as (problem, state):
        if latents is None:
            shape = DEFAULTS.num_draws, problem.space.noise_dim
            latents, _ = problem.space.draw(state, np.random.default_rng(0).standard_normal(shape))
            latents = in_models(result, latents)
        values = numbers(result, latents)
    axes = axis_names(result._gaussian().sites, ArvizGroups(values, {}), labels)
    values = {name: values[name] for name in _names(var_names, values)}
    columns = flat(values)
    low, high = 50 * (1 - prob), 50 * (1 + prob)
    ends = np.percentile(columns, [low, high], axis=0)
    table = {
        "mean": columns.mean(0),
        "sd": columns.std(0, ddof=1),
        f"{low:.3g}%": ends[0],
        f"{high:.3g}%": ends[1],
    }
    found = pandas.DataFrame(table, index=labels_of(values))
    limits = dict(zip(accuracy.names, accuracy.limits.T, strict=True))
    none = np.full(2, np.nan)
    found[["mean_error", "sd_error"]] = [limits.get(name, none) for name in found.index]
    if accuracy.fault:
        found.attrs["note"] = accuracy.fault
    of_axes = {name: [labels.coords.get(axis) for axis in own] for name, own in axes.items()}
    found.index = labels_of(values, 1, of_axes)
    return found


def _names(asked: Any, known: Collection[str]) -> list[str]:
    """Return the names of the sites that are asked for, all by default."""
    if asked is None:
        return list(known)
    names = [asked] if isinstance(asked, str) or not np.iterable(asked) else list(asked)
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(map(repr, known))
        raise ValueError(f"var_names= has {unknown[0]!r}; the latent sites are {listed}.")
    return names
