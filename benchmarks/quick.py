"""Whether a change made ``fit`` worse: a dozen models in minutes, compared with the last table.

    python -m benchmarks --quick [--publish] [--only-claims]

fits the models of ``MODELS`` as users call ``fit``, in both packages with two seeds, and prints
what is worse than in ``docs/benchmarks/quick.csv``; the exit status is 1 then. A claim is false as
``ablate`` has it the best bounds that are known and with the exact evidence of the
conjugate regression. CPU seconds are of the fit, divided by those of the stock guide
(``AutoNormal``, 200 steps) that is built and trained beside them in the same process: the
machine cancels. ``--publish`` writes the table, ``--only-claims`` fails on false claims alone.

Time: 5 minutes on one core. Data: none.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import time
from itertools import product
from statistics import median
from typing import Any

import jax
import numpy as np
from scipy.stats import multivariate_normal

from benchmarks import pages
from benchmarks.ablate import SEEDS, is_false, measured
from benchmarks.gauntlet import runs
from benchmarks.gauntlet.target import Target
from benchmarks.models import ENTRIES, PPLS, Ppl
from benchmarks.models.entries import design, entry
from examples.machine import describe

NAME, KEYS = "quick.csv", ("model", "ppl", "seed")
COLUMNS = (*KEYS, "verdict", "false", "draws", "claimed", "error", "bound", "gradients", "CPU s")
STOCK = "stock runs"  #: the column of seconds, in those of the stock guide
#: A regression whose answer is exact, a GLM, a mixture, groups, raw scales, minibatches, float32
#: (``single``), heavy tails, and a posterior that is improper (``flat``).
MODELS = (
    "conjugate/regression", "plain/logistic", "plain/eight_schools", "raw_scale/dyestuff",
    "raw_scale/miles", "mixtures/bugs", "minibatches/wives", "single/offset", "kinks/durables",
    "own_parameters/rails", "heavy_tails/cauchy_location", "flat/separated",
)  # fmt: skip
#: Ratios to the last table that are too much: in the median, and of all gradients of a model.
MEDIAN, ONE = 1.5, 3.0
PRIOR, NOISE = 2.0, 0.5


def _line() -> tuple:
    X, rng = design(60, 5, 950), np.random.default_rng(951)
    return X, X @ rng.normal(size=5) + NOISE * rng.normal(size=60)


@entry("conjugate", _line, part="quick")
def regression(ppl, X, y):
    """Weights whose posterior is a Gaussian, so that the best bound is the evidence."""
    ppl.rows(ppl.Normal(X @ ppl.normals("beta", 5, PRIOR), NOISE), y)


def known() -> list[dict[str, Any]]:
    """Rows with the best bounds that are known."""
    X, y = _line()
    evidence = multivariate_normal(cov=PRIOR**2 * X @ X.T + NOISE**2 * np.eye(len(y))).logpdf(y)
    best = {name: bound.value for name, bound in runs.read_best().items()}
    best["conjugate/regression"] = evidence
    rows = [{"model": name, "bound": bound, "claimed": ""} for name, bound in best.items()]
    return [*rows, *pages.read("ablations.csv")]


def stock(ppl: str) -> float:
    """CPU seconds of the stock guide of the GLM: built, and trained for 200 steps."""
    one, lib = ENTRIES["plain/logistic"], importlib.import_module(ppl)
    infer, auto = (importlib.import_module(f"{ppl}.infer{part}") for part in ("", ".autoguide"))
    with runs.precision(ppl, "float64"):
        model, args, begin = one.model(Ppl(ppl)), one.args(Ppl(ppl)), time.process_time()
        guide, loss = auto.AutoNormal(model), infer.Trace_ELBO()
        if ppl == "numpyro":
            svi = infer.SVI(model, guide, lib.optim.Adam(0.01), loss)
            svi.run(jax.random.key(0), 200, *args, progress_bar=False)
        else:
            lib.clear_param_store()
            svi = infer.SVI(model, guide, lib.optim.Adam({"lr": 0.01}), loss)
            for _ in range(200):
                svi.step(*args)
        return time.process_time() - begin


def table(models: tuple[str, ...]) -> list[dict[str, str]]:
    """The fits, printed as they end."""
    rows: list[dict[str, str]] = []
    best, stocks = known(), {ppl: [stock(ppl)][1:] for ppl in PPLS}  # the first one imports
    for name in models:
        for ppl in PPLS:
            stocks[ppl].append(stock(ppl))
        with runs.enable_x64(True):
            target = Target(ENTRIES[name])
        for ppl, seed in product(PPLS, SEEDS):
            row = measured(ENTRIES[name], target, "", ppl, seed, runs.of_draws)
            row["false"] = "yes" if is_false(row, [*best, row]) else ""
            rows.append({column: str(row.get(column, "")) for column in COLUMNS})
            print(*rows[-1].values(), row["said"][:60], flush=True)
        jax.clear_caches()
    for row in rows:
        row[STOCK] = row["CPU s"] and f"{float(row['CPU s']) / median(stocks[row['ppl']]):.2f}"
    return rows


def worse(old: list[dict[str, str]], new: list[dict[str, str]]) -> dict[str, list[str]]:
    """What is worse than in the last table, in words, by kind."""
    last, empty = {_key(row): row for row in old}, dict.fromkeys([*COLUMNS, STOCK], "")
    pairs = {_key(row): (last.get(_key(row), empty), row) for row in new}
    found: dict[str, list[str]] = {"false": [], "lost": []}
    for key, (was, row) in pairs.items():
        found["false"] += [key] * (row["false"] > was["false"])
        found["lost"] += [key] * (was["verdict"] == "certified" != row["verdict"])
    for kind in ("gradients", STOCK):
        both = {key: pair for key, pair in pairs.items() if pair[0][kind] and pair[1][kind]}
        ratios = {key: float(b[kind]) / max(float(a[kind]), 1e-9) for key, (a, b) in both.items()}
        middle = median(ratios.values()) if ratios else 1.0
        print(f"ngvi: {kind} * {middle:.2f} in the median of {len(ratios)} fits")
        found[kind] = ["in the median"] if middle > MEDIAN else []
    totals: dict[str, Any] = {}  # of all seeds, which differ by more than changes make
    for was, row in pairs.values():
        two = np.array([float(was["gradients"] or 0), float(row["gradients"] or 0)])
        totals[row["model"]] = totals.get(row["model"], 0.0) + two
    found["gradients"] += [f"{k} * {b / a:.2f}" for k, (a, b) in totals.items() if b > ONE * a > 0]
    return found


def _key(row: dict[str, str]) -> str:
    return " ".join(row[key] for key in KEYS)


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--publish", action="store_true", help="write the table")
    parser.add_argument("--only-claims", action="store_true", help="fail on false claims alone")
    options = parser.parse_args(arguments)
    path = pages.FOLDER / NAME
    old = list(csv.DictReader(path.read_text("utf-8").splitlines()[1:])) if path.exists() else []
    found = worse(old, new := table(options.models))
    for kind, line in ((kind, line) for kind, lines in found.items() for line in lines):
        print(f"ngvi: worse, {kind}: {line}")
    certified = sum(row["verdict"] == "certified" for row in new)
    print(f"ngvi: {certified} of {len(new)} certified, {time.process_time():.0f} CPU s")
    if options.publish:
        pages.OUT = pages.FOLDER
    pages.replace(NAME, new, f"`python -m benchmarks --quick`; {describe()}", KEYS)
    return int(bool(found["false"] if options.only_claims else any(found.values())))


if __name__ == "__main__":
    sys.exit(main())
