"""The table of files of `run`: a line for each class."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from .bounds import read_best
from .models import chosen
from .rows import DEFAULT, family_of, read

#: False claims of more than a nat are those of which the fit's restarts say nothing; intervals are
#: those of the bound that hold, at 95%.
COLUMNS = ("class", "models", "runs", "claims", "false > 0.1", "false > 1", "miss > 1",
           "below stock", "exceptions", "intervals", "gradients", "seconds")  # fmt: skip


def table(args: argparse.Namespace) -> None:
    """The command."""
    entries = {entry.name: entry for entry in chosen(args.models, args.which)}
    rows = with_gaps(row for row in read(args.files) if row["model"] in entries)
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1))
    groups = list(dict.fromkeys(entry.group for entry in entries.values()))
    for group in sorted(groups, key=lambda g: g == "plain"):
        if some := [row for row in rows if row["class"] == group]:
            print("| " + " | ".join([group, *summary(some)]) + " |")
    print("| " + " | ".join(["all", *summary(rows)]) + " |")
    for held_out in (False, True):
        if some := [row for row in rows if entries[row["model"]].held_out == held_out]:
            name = "held out" if held_out else "visible"
            print("| " + " | ".join([name, *summary(some)]) + " |")
    if args.failures:
        for row in rows:
            if row["exception"] or row["gap"] > 1 or (row["claims"] and row["gap"] > 0.1):
                print(failure(row))


def with_gaps(rows: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows of `fit` with their gaps: to the best that is known, from the list or from the rows
    themselves, and to the stock run of the same number of gradients.
    """
    rows = list(rows)
    families = {family_of(row) for row in rows}
    best = {(f, name): bound.value for f in families for name, bound in read_best(f).items()}
    for row in rows:
        if row["true_bound"]:
            key = family_of(row), row["model"]
            best[key] = max(best.get(key, -np.inf), float(row["true_bound"]))
    stock_bounds = {
        (row["model"], row["seed"]): float(row["true_bound"])
        for row in rows
        if row["ppl"] == "stock" and row["true_bound"]
    }
    found = []
    for row in rows:
        if row["ppl"] == "stock":
            continue
        bound = float(row["true_bound"] or -np.inf)
        key = family_of(row), row["model"]
        of_stock = stock_bounds.get((row["model"], row["seed"]), -np.inf)
        if key[0] != DEFAULT:
            of_stock = -np.inf  # it is dense
        listed = [float(x) for x in re.findall(r"bound=(-?[0-9][0-9.e+-]*),", row["starts"])]
        gap = best.get(key, -np.inf) - bound
        unsaid = gap - max([0, *(x - float(row["claimed_bound"]) for x in listed)])
        gaps = {"gap": gap, "unsaid": unsaid, "below_stock": of_stock - bound}
        found.append({**row, **gaps, "claims": row["converged"] == "True"})
    return found


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """One line of the table."""
    ended = [row for row in rows if not row["exception"]]
    claims = [row for row in ended if row["claims"]]

    def median(field: str) -> str:
        return f"{np.median([float(row[field]) for row in ended]):,.0f}" if ended else "-"

    return [
        str(len({row["model"] for row in rows})),
        str(len(rows)),
        str(len(claims)),
        str(sum(row["gap"] > 0.1 for row in claims)),
        str(sum(row["gap"] > 1 and row["unsaid"] > 1 for row in claims)),
        str(sum(row["gap"] > 1 for row in ended)),
        str(sum(row["below_stock"] > 0.1 for row in ended)),
        str(len(rows) - len(ended)),
        f"{sum(map(is_covered, ended))}/{len(ended)}",
        median("gradients"),
        median("seconds"),
    ]


def is_covered(row: dict[str, Any]) -> bool:
    """Whether the true bound is within two standard errors of the one that the fit says."""
    claimed, error = float(row["claimed_bound"]), float(row["claimed_error"])
    allowed = 1.96 * np.hypot(error, float(row["true_error"]))
    return bool(abs(claimed - float(row["true_bound"])) <= allowed + 1e-6 * abs(claimed))


def failure(row: dict[str, Any]) -> str:
    """A line for a run that went wrong."""
    head = f"{row['model']} {row['ppl']} {row['dtype']} {row['seed']}:"
    if row["exception"]:
        return f"{head} {row['exception']}"
    said = "CLAIMS" if row["claims"] else "says"
    return (
        f"{head} {row['gap']:.2f} nats below, {row['gradients']} gradients; {said}: {row['reason']}"
    )
