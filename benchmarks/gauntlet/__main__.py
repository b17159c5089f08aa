"""`fit` on models unlike those it was tuned on: what it claims, and what is so.

    python -m benchmarks gauntlet --only 'ridges/*' --ppl pyro --precision float32 --seed 0 1 --out fits.csv
    python -m benchmarks everyday --by-default --out fits.csv
    python -m benchmarks gauntlet --table fits.csv
    python -m benchmarks gauntlet --best

A line of CSV for each fit, with what it claims beside the bound of its Gaussian from fresh draws and
the PPL's own density. Fits that are in the file are not done again. `--table` sums up such files by
class in `verdicts.csv`, and writes the fits themselves to `verdicts_fits.csv`. `--best` looks for the
best bounds by long runs from many starts, which share no code with `fit` (`search.py`), and keeps
them in `best.json`. `--by-default` fits as users call it, with locals by their conditional modes.

Time: 15 minutes for a hundred models in one PPL and precision. Data: none.
"""  # noqa: E501

from __future__ import annotations

import argparse
from pathlib import Path

PARTS = ("gauntlet", "newest", "everyday")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--part", choices=PARTS, default="gauntlet", help="the set of models")
    found.add_argument("--only", default="*", help="patterns of class/model, with commas between")
    found.add_argument("--ppl", choices=("numpyro", "pyro"), default="numpyro")
    found.add_argument("--precision", choices=("float32", "float64"), default="float64")
    found.add_argument("--seed", type=int, nargs="+", default=[0])
    found.add_argument("--every", type=int, default=1, help="one model of so many")
    found.add_argument("--by-default", action="store_true", help="fit as users call it")
    found.add_argument("--time-limit", type=float, default=240, help="seconds of a fit")
    found.add_argument("--out", type=Path, help="the CSV")
    found.add_argument("--table", type=Path, nargs="+", metavar="CSV", help="sum up files")
    found.add_argument("--best", action="store_true", help="search for best bounds")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Fit models, or read files of fits."""
    options = parser().parse_args(arguments)
    from . import runs, tables

    if options.table:
        tables.write(options.table)
    elif options.best:
        runs.best(options)
    elif options.out is None:
        raise SystemExit("Say by --out where the rows go.")
    else:
        runs.run(options)


if __name__ == "__main__":
    main()
