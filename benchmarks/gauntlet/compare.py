"""Two files of `run`, fit by fit: what a change of ``fit`` has done to the gauntlet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from .models.registry import matches
from .rows import key_of, read
from .table import with_gaps

#: Nats: a claim is false if its bound is lower than the best one by more, and a fit is listed if
#: its two bounds differ by more.
FALSE, DIFFERENT = 0.1, 0.05


def compare(args: argparse.Namespace) -> None:
    """The command."""
    print("\n".join(comparison(*_read(args.old, args.new, args.models))))


def pairs(old: Path, new: Path, models: str) -> list[list[dict[str, Any]]]:
    """The fits that are in both files, with their gaps: those of either, in the same order."""
    return _shared(_by_key(*_read(old, new, models)))


def _read(old: Path, new: Path, models: str) -> list[list[dict[str, str]]]:
    return [[row for row in read([f]) if matches(row["model"], models)] for f in (old, new)]


def _by_key(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[Any, dict]]:
    together = with_gaps([*old, *new])  # the best bound of a model is that of either file
    num_old = sum(row["ppl"] != "stock" for row in old)
    sides = together[:num_old], together[num_old:]
    return [{key_of(row): row for row in rows} for rows in sides]


def _shared(parts: list[dict[Any, dict]]) -> list[list[dict[str, Any]]]:
    shared = [key for key in parts[0] if key in parts[1]]
    return [[part[key] for key in shared] for part in parts]


def comparison(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[str]:
    """A table of sums over the fits that are in both, and a line for each that differs.

    A fit is one of a model with one PPL, precision, seed and family.
    """
    parts = _by_key(old, new)
    sides = _shared(parts)
    shared = sides[0]
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
