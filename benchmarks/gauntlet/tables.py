"""Files of fits, summed up by class, and the picture of their verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.models import ENTRIES
from examples.machine import describe

from .runs import KEYS, read, read_best

TABLE, FITS, PICTURE = "verdicts.csv", "verdicts_fits.csv", "verdicts.png"
#: Nats below the best bound known, beyond which a certified result is false.
FALSE = 0.1
LABELS = {"numpyro": "NumPyro", "pyro": "Pyro"}
#: Of the CSV of fits, which has of each model what counts.
KEPT = (*KEYS, "dim", "verdict", "claimed_bound", "claimed_error", "true_bound", "true_error",
        "gap", "gradients", "values", "seconds", "exception", "reason", "commit")  # fmt: skip
#: Verdicts in the order in which they are drawn, and their colours.
COLOURS = {"certified": "#0072b2", "local": "#56b4e9", "not converged": "0.75", "false": "#d55e00"}


def write(files: list[Path], part: str) -> None:
    """Fits of a set, their sums by class and in each package, and the picture."""
    rows = [row for row in with_gaps(read(files)) if ENTRIES[row["model"]].part == part]
    about = (
        f"`python -m benchmarks gauntlet --part {part}`, seed 0, {rows[0]['dtype']}; {describe()}"
    )
    kept = [{"set": part} | {name: _short(row[name]) for name in KEPT} for row in rows]
    pages.replace(FITS, kept, about, ("set", *KEYS))
    groups = sorted({row["class"] for row in rows}, key=lambda group: (group == "plain", group))
    parts = {group: [row for row in rows if row["class"] == group] for group in groups}
    for ppl, label in LABELS.items():
        parts[f"all, {label}"] = [row for row in rows if row["ppl"] == ppl]
    commits = {row["commit"] for row in rows}
    of_part = [
        {"set": part, "class": name, **summary(some), "commit": " ".join(sorted(commits))}
        for name, some in {**parts, "all": rows}.items()
        if some
    ]
    pages.replace(TABLE, of_part, about, ("set", "class"))
    print("\n".join([*pages.table(of_part), "", *map(failure, filter(is_wrong, rows))]))
    if part == "gauntlet":
        draw(of_part)


def with_gaps(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their gaps to the best bound, from the list or from the rows themselves."""
    rows = [dict(row) for row in rows]
    best = {name: bound.value for name, bound in read_best().items()}
    for row in rows:
        if row["true_bound"]:
            best[row["model"]] = max(best.get(row["model"], -np.inf), float(row["true_bound"]))
    for row in rows:
        row["gap"] = best[row["model"]] - float(row["true_bound"]) if row["true_bound"] else np.nan
    return rows


def is_false(row: dict[str, Any]) -> bool:
    """Whether a better Gaussian is known than the one that is certified."""
    return row["verdict"] == "certified" and row["gap"] > FALSE


def is_wrong(row: dict[str, Any]) -> bool:
    return bool(row["exception"]) or is_false(row)


def summary(rows: list[dict[str, Any]]) -> dict[str, str]:
    """A line of the table."""
    ended = [row for row in rows if not row["exception"]]
    local = [row for row in ended if row["verdict"] == "local"]
    return {
        "fits": f"{len(rows)}",
        "certified": f"{sum(row['verdict'] == 'certified' for row in ended)}",
        "false": f"{sum(map(is_false, ended))}",
        "local": f"{len(local)}",
        "local, below the best": f"{sum(row['gap'] > FALSE for row in local)}",
        "not converged": f"{sum(row['verdict'] == 'not converged' for row in ended)}",
        "exceptions": f"{len(rows) - len(ended)}",
        "bound within its error": f"{sum(map(is_covered, ended))}",
        "gradients, median": f"{np.median([float(row['gradients']) for row in ended]):,.0f}",
    }


def is_covered(row: dict[str, Any]) -> bool:
    """Whether the true bound is within two standard errors of the one that the fit says."""
    if not row["true_bound"]:
        return False
    claimed, error = float(row["claimed_bound"]), float(row["claimed_error"])
    allowed = 1.96 * np.hypot(error, float(row["true_error"]))
    return bool(abs(claimed - float(row["true_bound"])) <= allowed + 1e-6 * abs(claimed))


def failure(row: dict[str, Any]) -> str:
    """A line for a fit that went wrong."""
    head = " ".join(row[key] for key in KEYS)
    if row["exception"]:
        return f"{head}: {row['exception']}"
    return f"{head}: {row['gap']:.2f} nats below, {row['gradients']} gradients; {row['reason']}"


def _short(value: Any) -> str:
    """A cell of the CSV of fits."""
    try:
        return f"{float(value):.10g}" if value != "" else ""
    except ValueError:
        return str(value)[:200]


def draw(rows: list[dict[str, str]]) -> None:
    """Verdicts by class, in both packages."""
    rows = [row for row in rows if not row["class"].startswith("all")]
    figure, ((axis,),) = pages.figure(1, 1, (6.5, 3.6))
    left = np.zeros(len(rows))
    for verdict, colour in COLOURS.items():
        counts = np.array([float(row[verdict]) for row in rows])
        if verdict == "certified":
            counts -= [float(row["false"]) for row in rows]
        label = {"certified": "certified, true", "false": "certified, false"}.get(verdict, verdict)
        axis.barh(range(len(rows)), counts, left=left, color=colour, label=label)
        left += counts
    axis.set_yticks(range(len(rows)), [row["class"].replace("_", " ") for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("fits, of both packages")
    axis.legend(loc="lower right", frameon=False)
    pages.save(figure, PICTURE)
