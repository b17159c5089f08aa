"""Rows of the gauntlet: one for each fit, in CSV files that grow."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: ``converged`` is whether the fit claims an optimum, ``gradients`` counts Hessian products too.
FIELDS = ("class", "model", "ppl", "dtype", "seed", "family", "dim", "converged", "reason",
          "claimed_bound", "claimed_error", "claimed_gap", "gradients", "steps", "seconds",
          "true_bound", "true_error", "gap", "starts", "exception", "verdict",
          "values")  # fmt: skip

#: The family that a fit takes unasked: dense, for so few latents.
DEFAULT = "auto"


def read(files: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Rows of files, of which some may not be there; old files have fewer columns."""
    for file in files:
        if file.exists():
            with file.open(newline="") as opened:
                for row in csv.DictReader(opened):
                    yield dict.fromkeys(FIELDS, "") | row


@contextmanager
def appended(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that appends a row to a file, and flushes it.

    :raises SystemExit: if the file has other columns.
    """
    is_new = not path.exists()
    if not is_new and path.read_text().split("\n", 1)[0].strip() != ",".join(FIELDS):
        raise SystemExit(f"{path} has other columns; take a new file for --out")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()

        def append(row: dict[str, Any]) -> None:
            writer.writerow(row)
            file.flush()

        yield append


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is a fit of."""
    return (*(str(row[name]) for name in ("model", "ppl", "dtype", "seed")), family_of(row))


def family_of(row: dict[str, Any]) -> str:
    return row["family"] or DEFAULT


def in_words(error: Exception) -> str:
    """An exception as a cell."""
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:400]
