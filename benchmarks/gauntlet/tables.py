"""Files of fits, summed up by class, and the picture of their verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
KEPT = ("set", *KEYS, "dim", "verdict", "claimed_bound", "claimed_error", "true_bound",
        "true_error", "gradients", "values", "seconds", "exception", "reason",
        "commit")  # fmt: skip
#: Verdicts in the order in which they are drawn, and their colours.
COLOURS = {"certified": "#0072b2", "false": "#d55e00", "local": "#56b4e9", "not converged": "0.75"}


def write(files: list[Path]) -> None:
    """Put fits into the CSV of all, and write the sums of their sets by class, and the picture."""
    fits = [{"set": ENTRIES[row["model"]].part} | row for row in read(files)]
    about = f"`python -m benchmarks gauntlet`, seed 0, {fits[0]['dtype']}; {describe()}"
    kept = [{name: row[name][:200] for name in KEPT} for row in fits]
    for row in kept:
        for name in ("claimed_bound", "claimed_error", "true_bound", "true_error"):
            row[name] = row[name] and f"{float(row[name]):.10g}"
    pages.replace(FITS, kept, about, KEYS)
    rows = with_gaps(pages.read(FITS))
    sums = [
        line for part in dict.fromkeys(row["set"] for row in fits) for line in _lines(part, rows)
    ]
    pages.replace(TABLE, sums, about, ("set", "class"))
    print("\n".join([*pages.table(sums), "", *map(failure, filter(is_wrong, rows))]))
    draw([row for row in pages.read(TABLE) if row["set"] == "gauntlet"])


def _lines(part: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Of a set: each class, each package, and all."""
    rows = [row for row in rows if row["set"] == part]
    classes = [row["model"].partition("/")[0] for row in rows]
    for group in sorted(set(classes), key=lambda group: (group == "plain", group)):
        some = [row for row, of in zip(rows, classes, strict=True) if of == group]
        yield {"set": part, "class": group.replace("_", " ")} | summary(some)
    for ppl, label in LABELS.items():
        if some := [row for row in rows if row["ppl"] == ppl]:
            yield {"set": part, "class": f"all, {label}"} | summary(some)
    yield {"set": part, "class": "all"} | summary(rows)


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
    commits = dict.fromkeys(row["commit"] for row in rows)
    return {
        "commit": " ".join(commits),
        "models": f"{len({row['model'] for row in rows})}",
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
    axis.set_yticks(range(len(rows)), [row["class"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("fits, of both packages")
    axis.legend(loc="lower right", frameon=False)
    pages.save(figure, PICTURE)
