"""Files of fits, summed up by class, or two of them fit by fit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import ENTRIES
from benchmarks.models.entries import matches

from .runs import family_of, key_of, read, read_best

#: A claim is false if its bound is lower than the best one by more than 0.1 nats; those by more
#: than a nat are listed apart. Intervals are those of the bound that hold, at 95 %.
COLUMNS = ("class", "models", "runs", "claims", "false > 0.1", "false > 1", "miss > 1",
           "exceptions", "intervals", "gradients", "seconds")  # fmt: skip
#: Nats: beyond the first a claim is false, beyond the second a fit is listed as different.
FALSE, DIFFERENT = 0.1, 0.05


def table(files: list[Path], only: str = "*") -> list[str]:
    """A line for each class, all, those held out, and each run that went wrong."""
    rows = with_gaps(row for row in read(files) if matches(row["model"], only))
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    groups = sorted({row["class"] for row in rows}, key=lambda group: (group == "plain", group))
    parts = {group: [row for row in rows if row["class"] == group] for group in groups}
    held_out = {name for name, entry in ENTRIES.items() if entry.held_out}
    parts |= {"all": rows, "held out": [row for row in rows if row["model"] in held_out]}
    lines += [f"| {' | '.join([name, *summary(some)])} |" for name, some in parts.items() if some]
    wrong = [r for r in rows if r["exception"] or r["gap"] > (FALSE if r["claims"] else 1)]
    return [*lines, "", *map(failure, wrong)]


def with_gaps(rows: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows with their gaps to the best bound, from the list or from the rows themselves."""
    rows = list(rows)
    families = {family_of(row) for row in rows}
    best = {(f, name): bound.value for f in families for name, bound in read_best(f).items()}
    for row in rows:
        if row["true_bound"]:
            key = family_of(row), row["model"]
            best[key] = max(best.get(key, -np.inf), float(row["true_bound"]))
    found = []
    for row in rows:
        bound = float(row["true_bound"] or -np.inf)
        key = family_of(row), row["model"]
        listed = [float(x) for x in re.findall(r"bound=(-?[0-9][0-9.e+-]*),", row["starts"])]
        gap = best.get(key, -np.inf) - bound
        unsaid = gap - max([0, *(x - float(row["claimed_bound"]) for x in listed)])
        gaps = {"gap": gap, "unsaid": unsaid}
        found.append({**row, **gaps, "claims": row["converged"] == "True"})
    return found


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line of the table."""
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


def comparison(old: Path, new: Path, only: str = "*") -> list[str]:
    """A table of sums over the fits that are in both, and a line for each that differs.

    A fit is one of a model with one PPL, precision, seed and family.
    """
    read_in = [[row for row in read([f]) if matches(row["model"], only)] for f in (old, new)]
    together = with_gaps([*read_in[0], *read_in[1]])  # the best bound is that of either file
    halves = together[: len(read_in[0])], together[len(read_in[0]) :]
    parts = [{key_of(row): row for row in rows} for rows in halves]
    shared = [key for key in parts[0] if key in parts[1]]
    sides = [[part[key] for key in shared] for part in parts]
    lines = [f"| {len(shared)} fits in both | old | new |", "|---|---:|---:|"]
    both = list(zip(*sides, strict=True))
    ended = [not (a["exception"] or b["exception"]) for a, b in both]
    columns = zip(*(sums(rows, ended).items() for rows in sides), strict=True)
    lines += [f"| {name} | {a} | {b} |" for (name, a), (_, b) in columns]
    only = [len(part) - len(shared) for part in parts]
    lines += ["", f"Only in the old file: {only[0]}; only in the new one: {only[1]}.", ""]
    return lines + [difference(a, b) for a, b in both if is_different(a, b)]


def sums(rows: list[dict[str, Any]], ended: list[bool]) -> dict[str, str]:
    """One side of the table.

    :param ended: of each row, whether it ended on both sides; costs are of these.
    """
    claims = [row for row in rows if row["claims"] and not row["exception"]]
    found = {
        "claims": str(len(claims)),
        f"false claims (> {FALSE} nats)": str(sum(row["gap"] > FALSE for row in claims)),
        "exceptions": str(sum(bool(row["exception"]) for row in rows)),
    }
    compared = [row for row, both in zip(rows, ended, strict=True) if both]
    for name in ("gradients", "values"):
        numbers = [float(row[name]) for row in compared if row[name] != ""]
        found[f"{name}, median"] = f"{np.median(numbers):,.0f}" if numbers else "-"
        found[f"{name}, sum"] = f"{sum(numbers):,.0f}" if numbers else "-"
    seconds = [float(row["seconds"]) for row in compared if row["seconds"] != ""]
    found["seconds, median"] = f"{np.median(seconds):.1f}" if seconds else "-"
    return found


def is_different(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the claim differs, or the bound by more than :data:`DIFFERENT`."""
    if bool(old["exception"]) != bool(new["exception"]) or old["claims"] != new["claims"]:
        return True
    if old["exception"]:
        return False
    return not abs(float(old["true_bound"]) - float(new["true_bound"])) <= DIFFERENT


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """A line for a fit that differs."""
    model, *others = key_of(new)
    return f"{model:34s} {' '.join(others)}: {_said(old)} -> {_said(new)}"


def _said(row: dict[str, Any]) -> str:
    if row["exception"]:
        return row["exception"][:60]
    claim = row["verdict"] or ("claims" if row["claims"] else "no claim")
    is_false = ", FALSE" if row["claims"] and row["gap"] > FALSE else ""
    return f"{float(row['true_bound']):.3f} ({row['gap']:.3f} low, {claim}{is_false})"
