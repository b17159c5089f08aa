"""Fits of a sealed part of models that the search has not seen, which this opens.

    python -m benchmarks unseen 1 --out part_1.csv

A part is opened once, for one release: ``docs/unseen.md``. Each of its models is fitted as users
call ``fit``, in both packages with two seeds, a row of the CSV for each fit. ``bound`` is that of
another density (``gauntlet/target.py``), and ``ablate`` says what is false. Fits that the file has
are not done again. The last line counts verdicts.

Time: 60 minutes for a part. Data: none.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path

import jax

from benchmarks import pages
from benchmarks.ablate import SEEDS, is_false, measured
from benchmarks.gauntlet.runs import enable_x64, of_draws
from benchmarks.gauntlet.target import Target
from benchmarks.models import PPLS
from benchmarks.unseen import FOLDER, opened

LIMIT = 240.0
FIELDS = ("model", "ppl", "seed", "precision", "verdict", "claimed", "error", "bound", "gradients",
          "CPU s", "draws", "one_optimum", "said", "commit")  # fmt: skip


def summary(rows: list[dict[str, str]]) -> str:
    """The counts of a part."""
    certified = [row for row in rows if row["verdict"] == "certified"]
    one = [row["verdict"] == "certified" for row in rows if row["one_optimum"] == "True"]
    pairs: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        pairs.setdefault((row["model"], row["ppl"]), []).append(row["verdict"])
    both = [verdicts for verdicts in pairs.values() if len(verdicts) == len(SEEDS)]
    return (
        f"{len(certified)} of {len(rows)} fits certified, "
        f"false {sum(is_false(row, rows) for row in rows)}, "
        f"of models with one optimum {sum(one)} of {len(one)}, "
        f"exceptions {sum(row['verdict'] == 'exception' for row in rows)}, "
        f"seeds agree in {sum(len(set(verdicts)) == 1 for verdicts in both)} of {len(both)} pairs"
    )


def read(path: Path) -> list[dict[str, str]]:
    """The rows that are there."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.exists() else []


def main(folder: Path = FOLDER) -> None:
    """Open a part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", type=int, help="its number")
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    options = parser.parse_args()
    done = {(row["model"], row["ppl"], row["seed"]) for row in read(options.out)}
    with options.out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        if not done:
            writer.writeheader()
        for entry in opened(options.part, folder):
            with enable_x64(True):
                target = Target(entry)
            own = {"one_optimum": entry.one_optimum, "precision": entry.precision}
            for ppl, seed in itertools.product(PPLS, SEEDS):
                if (entry.name, ppl, str(seed)) not in done:
                    row = measured(entry, target, "", ppl, seed, of_draws, LIMIT)
                    row |= own | {"commit": pages.commit()}
                    writer.writerow(row)
                    file.flush()
                    print(*(row.get(name, "") for name in FIELDS[:-1]), flush=True)
            jax.clear_caches()
    print(summary(read(options.out)))


if __name__ == "__main__":
    main()
