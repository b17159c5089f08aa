"""`fit` on models unlike those it was tuned on: what it claims, and what is so.

    python -m benchmarks gauntlet run --ppl numpyro --which every --out fits.csv
    python -m benchmarks gauntlet table fits.csv stock.csv --which all --failures
    python -m benchmarks gauntlet compare old.csv new.csv
    python -m benchmarks gauntlet classes old.csv new.csv
    python -m benchmarks gauntlet agree fits.csv
    python -m benchmarks gauntlet best
    python -m benchmarks gauntlet stock fits.csv --out stock.csv
    python -m benchmarks gauntlet halved --which everyday --out halved.csv
    python -m benchmarks gauntlet posterior --which everyday
    python -m benchmarks gauntlet check

`run` fits models of `models/` and writes a line of CSV for each fit, beside what the fit says the
bound of the Gaussian that it returned, from fresh draws and the PPL's own density. Fits that are in
the file are not done again. `table` sums up such files, by class, `compare` has two of them fit by
fit, and `classes` by class. `agree` says how far fits with other seeds agree. `best` looks for the
best bounds by long runs from many starts, which share no code with `fit` (`search.py`), and keeps
them in `best.json`. `stock` runs AutoMultivariateNormal with Adam, at the best of three rates, for
as many gradients as `fit` took. `halved` fits with every number of `FitOptions` halved and doubled,
and lists what claims change by. `posterior` sets draws of default fits beside long runs of
NumPyro's NUTS. `check` compares the densities of both PPLs.

`--family diagonal` is for mean fields, with best bounds of their own (`mean_field.py`).

A third of the models are held out: a search that was tuned on the others is then tested on these.
`--which every` takes them, and the rounds that were written later; `--which unseen` those of
`benchmarks/unseen_models`, whose best bounds have a command of their own, and `everyday` those that
are there for `--by-default`: `fit(model, *data)` as users call it, with locals by their modes.

Time: 15 minutes for the visible models in one PPL and precision. Data: none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .agree import agree
from .bounds import best
from .check import check
from .classes import classes
from .compare import compare
from .halved import halved
from .models import WHICH
from .models.ppl import PPLS
from .posterior import posterior
from .rows import DEFAULT
from .runs import run
from .stock import stock
from .table import table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = found.add_subparsers(dest="command", required=True)
    names = argparse.ArgumentParser(add_help=False)
    names.add_argument("--models", default="*", help="patterns of class/model, by commas")
    models = argparse.ArgumentParser(add_help=False, parents=[names])
    models.add_argument("--which", choices=WHICH, default="visible")
    of_family = argparse.ArgumentParser(add_help=False)
    of_family.add_argument("--family", default=DEFAULT, help="of the Gaussians, by name")

    one = commands.add_parser("run", parents=[models, of_family], help="fit models")
    one.add_argument("--ppl", choices=PPLS, default="numpyro")
    one.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    one.add_argument("--seeds", type=int, nargs="+", default=[0])
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--keep", type=Path, help="a folder for the Gaussians")
    one.add_argument("--time-limit", type=float, default=240, help="seconds of a fit")
    one.add_argument("--by-default", action="store_true", help="fits as users call them")
    one.set_defaults(function=run)

    one = commands.add_parser("table", parents=[models], help="sum up files of `run`")
    one.add_argument("files", type=Path, nargs="+")
    one.add_argument("--failures", action="store_true", help="also list what went wrong")
    one.set_defaults(function=table)

    two = argparse.ArgumentParser(add_help=False, parents=[names])
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    one = commands.add_parser("compare", parents=[two], help="compare two files of `run`")
    one.set_defaults(function=compare)
    one = commands.add_parser("classes", parents=[two], help="the same, class by class")
    one.add_argument("--publish", help="a CSV of `docs/benchmarks`")
    one.add_argument("--about", default="", help="its first line: how it was made and on what")
    one.set_defaults(function=classes)

    one = commands.add_parser("agree", parents=[names], help="compare fits with other seeds")
    one.add_argument("files", type=Path, nargs="+")
    one.set_defaults(function=agree)

    one = commands.add_parser("best", parents=[models, of_family], help="search for best bounds")
    one.add_argument("--keep", type=Path, help="a folder with Gaussians of `run`")
    one.add_argument("--again", action="store_true", help="also where a bound is known")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(function=best)

    one = commands.add_parser("stock", parents=[models], help="run the stock guide with Adam")
    one.add_argument("file", type=Path, help="of `run`: gives the numbers of gradients")
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(function=stock)

    one = commands.add_parser("halved", parents=[models], help="fits with other options")
    one.add_argument("--ppl", choices=PPLS, default="numpyro")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--time-limit", type=float, default=120, help="seconds of a fit")
    one.add_argument("--sums", action="store_true", help="fit nothing, sum up what is there")
    one.set_defaults(function=halved)

    one = commands.add_parser("posterior", parents=[models], help="draws beside NUTS, NumPyro")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--nuts", action="store_true", help="chains of result.nuts(), too")
    one.set_defaults(function=posterior)

    one = commands.add_parser("check", parents=[models], help="compare Pyro's models and NumPyro's")
    one.set_defaults(function=check)
    return found


if __name__ == "__main__":
    arguments = parser().parse_args()
    arguments.function(arguments)
