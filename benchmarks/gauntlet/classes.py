"""Two files of `run` side by side, class by class: claims, false ones, costs."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks import pages
from ngvi.inference.problem import VALUES_OF_A_GRADIENT

from .compare import FALSE, pairs

VERDICTS = ("certified", "local", "not converged")


def classes(args: argparse.Namespace) -> None:
    """The command."""
    rows = by_class(*pairs(args.old, args.new, args.models))
    if args.publish:
        pages.write(args.publish, rows, args.about)
        return
    print("| " + " | ".join(rows[0]) + " |\n|---|" + "---:|" * (len(rows[0]) - 1))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


def by_class(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each class, for all, and for all but networks.

    :param new: the same fits as ``old``, with verdicts and values.
    """
    both = list(zip(old, new, strict=True))
    names = sorted({row["class"] for row in new})
    parts = {name: [pair for pair in both if pair[1]["class"] == name] for name in names}
    parts["all"] = both
    if "networks" in parts:
        parts["all but networks"] = [pair for pair in both if pair[1]["class"] != "networks"]
    return [{"class": name} | _line(part) for name, part in parts.items()]


def _line(both: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    old, new = ([pair[side] for pair in both] for side in (0, 1))
    low = [row["gap"] > FALSE for row in new]
    certified, local, neither = ([row["verdict"] == word for row in new] for word in VERDICTS)
    ended = [pair for pair in both if not (pair[0]["exception"] or pair[1]["exception"])]
    before = np.array([float(pair[0]["gradients"]) for pair in ended])
    after = np.array([float(pair[1]["gradients"]) for pair in ended])
    work = after + np.array([float(pair[1]["values"]) for pair in ended]) / VALUES_OF_A_GRADIENT
    return {
        "fits": len(both),
        "claims before": sum(row["claims"] for row in old),
        "false before": sum(row["claims"] and row["gap"] > FALSE for row in old),
        "certified": sum(certified),
        "false": int(np.sum(np.logical_and(certified, low))),
        "local": sum(local),
        "of these below the best": int(np.sum(np.logical_and(local, low))),
        "not converged": sum(neither),
        "exceptions": sum(bool(row["exception"]) for row in new),
        **_costs("gradients before", "median before", before),
        **_costs("gradients", "median", after),
        **_costs("with values", "median with values", work),
    }


def _costs(total: str, median: str, costs: np.ndarray) -> dict[str, str]:
    return {total: f"{costs.sum():,.0f}", median: f"{np.median(costs):,.0f}" if len(costs) else ""}
