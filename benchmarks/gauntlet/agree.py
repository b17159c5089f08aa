"""Whether fits of one model with other seeds agree: in their verdicts, bounds and costs."""

from __future__ import annotations

import argparse
from typing import Any

from .models.registry import matches
from .rows import family_of, read

#: Nats between bounds, beyond their errors, and the factor between costs, that are still the same.
SAME, FACTOR = 0.05, 3.0


def agree(args: argparse.Namespace) -> None:
    """The command."""
    rows = (row for row in read(args.files) if matches(row["model"], args.models))
    print("\n".join(agreement(list(rows))))


def agreement(rows: list[dict[str, Any]]) -> list[str]:
    """A table, and a line for each group of fits that do not agree.

    A group are the fits of one model with one PPL, precision and family, that have ended.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if not row["exception"]:
            key = (row["model"], row["ppl"], row["dtype"], family_of(row))
            groups.setdefault(key, []).append(row)
    several = {key: group for key, group in groups.items() if len(group) > 1}
    found = {key: disagreements(group) for key, group in several.items()}
    lines = [f"| {len(several)} models with several seeds | agree |", "|---|---:|"]
    for name in ("verdicts", "bounds", "gradients"):
        lines.append(f"| {name} | {sum(name not in names for names in found.values())} |")
    named = [f"{' '.join(key)}: {', '.join(names)}" for key, names in found.items() if names]
    return [*lines, "", *named]


def disagreements(group: list[dict[str, Any]]) -> list[str]:
    """What of a group of fits is not the same."""
    found = []
    if len({row["verdict"] or row["converged"] for row in group}) > 1:
        found.append("verdicts")
    known = "true" if all(row["true_bound"] for row in group) else "claimed"
    ends = sorted((float(row[f"{known}_bound"]), float(row[f"{known}_error"])) for row in group)
    (low, one), (high, other) = ends[0], ends[-1]
    if not high - low <= SAME + 2 * (one + other):
        found.append("bounds")
    gradients = sorted(float(row["gradients"]) for row in group)
    if gradients[-1] > FACTOR * gradients[0]:
        found.append("gradients")
    return found
