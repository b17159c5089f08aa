"""Fits with every number of `FitOptions` halved and doubled, one at a time: what they change."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import num_gradients, verdict
from ngvi.inference.options import FitOptions

from .models import chosen
from .rows import in_words
from .runs import DEFAULTS, RESULTS, alarm, precision

FIELDS = ("model", "option", "factor", "verdict", "bound", "gradients", "exception")

#: Of fits that do not ask for a mixture, none reads these.
UNREAD = ("mixture",)


def halved(args: argparse.Namespace) -> None:
    """The command: fits that the file does not have yet, then their sums."""
    rows = read(args.out)
    done = {(row["model"], row["option"], row["factor"]) for row in rows}
    is_new = not args.out.exists()
    with args.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for entry in chosen(args.models, args.which):
            for option, factor, options in [("", 1.0, FitOptions()), *variants(FitOptions())]:
                if (entry.name, option, str(factor)) in done or args.sums:
                    continue
                row = {"model": entry.name, "option": option, "factor": factor}
                writer.writerow(row | fitted(entry, args.ppl, args.time_limit, options))
                file.flush()
    print("\n".join(sums(read(args.out))))


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file, if it is there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def variants(options: Any, path: str = "") -> Iterator[tuple[str, float, Any]]:
    """Each number of a dataclass halved and doubled: its name, the factor, and all options."""
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{path}{field.name}"
        if name in UNREAD:
            continue
        if dataclasses.is_dataclass(value):
            for found, factor, inner in variants(value, f"{name}."):
                yield found, factor, dataclasses.replace(options, **{field.name: inner})
            continue
        for factor in (0.5, 2.0):
            yield name, factor, dataclasses.replace(options, **{field.name: times(value, factor)})


def times(value: Any, factor: float) -> Any:
    """A number, or each of several; of a part of one above one half what is left is halved."""
    if isinstance(value, tuple):
        return tuple(times(one, factor) for one in value)
    if isinstance(value, int):
        return max(1, int(value * factor))
    if 0.5 <= value < 1 and factor > 1:
        return 1 - (1 - value) / factor
    return value * factor


def fitted(entry: Any, ppl: str, time_limit: float, options: FitOptions) -> dict[str, Any]:
    """What one fit says."""
    try:
        with warnings.catch_warnings(), precision(ppl, "float64"), alarm(time_limit):
            warnings.simplefilter("ignore")
            result = RESULTS[ppl](entry, 0, options=options, **DEFAULTS)
    except Exception as error:  # noqa: BLE001  it goes into the table
        return {"exception": in_words(error)}
    bound = f"{result.bound:.4f}"
    return {"verdict": verdict(result), "bound": bound, "gradients": num_gradients(result)}


def sums(rows: list[dict[str, str]]) -> list[str]:
    """The options by which most verdicts change, and what all of them do."""
    of = {row["model"]: row for row in rows if not row["option"]}
    changed, gradients, exceptions = defaultdict(list), defaultdict(list), []
    pairs = [(row, of[row["model"]]) for row in rows if row["option"] and row["model"] in of]
    for row, usual in pairs:
        key = f"{row['option']} x {row['factor']}"
        if row["exception"]:
            exceptions.append(f"{key} {row['model']}: {row['exception'][:120]}")
            continue
        gradients[key].append(int(row["gradients"]) - int(usual["gradients"]))
        same = "certified" in (row["verdict"], usual["verdict"])
        if same and row["verdict"] != usual["verdict"]:
            changed[key].append(f"{row['model']} {usual['verdict']} -> {row['verdict']}")
    num = sum(map(len, changed.values()))
    lines = [f"{len(of)} models, {len(gradients)} options; {num} of {len(pairs)} claims change"]
    for key, found in sorted(changed.items(), key=lambda one: -len(one[1])):
        lines.append(f"{key}: {len(found)} of {len(gradients[key])}: " + "; ".join(found))
    return lines + [f"exception: {one}" for one in exceptions]
