"""`fit` against stock AutoMultivariateNormal and Adam, on the posteriors of posteriordb.

    python -m benchmarks posteriordb --data-dir DIR --out OUT

Four stages, each of which keeps its results in OUT and leaves alone what is there:

stock     stock runs at three rates, up to 50,000 steps; minutes a run in Pyro
best      the best full-covariance bound that a careful run finds, the end of the best stock run
          (of NumPyro, if there is one) among its starts
fit       runs of `fit`, nothing tuned
report    tables, OUT/report-PPL.txt and the performance profile OUT/profile-PPL.png

Without --stage all are run, in Pyro without `stock`. All is in double precision, and every
figure but the seconds follows from the seeds.

Time: hours. Data: an extract of posteriordb.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from examples.machine import describe

from .careful import careful_run
from .data import load_index
from .fit_runs import METHOD as FIT
from .fit_runs import fit_run
from .numpyro_models import POSTERIORS
from .picture import profile
from .report import Comparison, print_report
from .runs import Cache, Run
from .scores import Scorer
from .stock import NUM_STEPS, RATES, method, stock_runs
from .target import Target

STAGES = ("stock", "best", "fit", "report")
DEFAULT_STAGES = {"numpyro": STAGES, "pyro": ("best", "fit", "report")}
WIDE = 200


class Stages:
    """The stages, for one posterior at a time."""

    def __init__(self, options: argparse.Namespace, cache: Cache) -> None:
        self.options = options
        self.cache = cache
        self._scorer: Scorer | None = None

    def scorer(self, name: str) -> Scorer:
        """The posterior's; compiled once for all its runs."""
        if self._scorer is None or self._scorer.target.name != name:
            jax.clear_caches()
            self._scorer = Scorer(Target.load(self.options.data_dir, name))
        return self._scorer

    def best(self, name: str) -> None:
        known = self.cache.best(name)
        if known and not self.options.again:
            return
        begin = time.perf_counter()
        scorer = self.scorer(name)
        stock = [
            run
            for run in self.cache.runs("numpyro", name)
            if run.method != FIT and np.isfinite(run.score.bound)
        ]
        starts = [
            ("stock", np.array(run.mean), np.array(run.cov))
            for run in sorted(stock, key=lambda run: run.score.bound)[-1:]
        ]
        best = careful_run(scorer.target, scorer.bound, starts)
        self.cache.save_best(name, best)
        say(f"{name}: {best.bound.value:.4f} +- {best.bound.error:.4f} nats", begin)

    def stock(self, name: str) -> None:
        settings = [
            (rate, seed)
            for rate in RATES
            for seed in self.options.seeds
            if not self._has(name, method(rate), seed)
        ]
        if settings:
            begin = time.perf_counter()
            steps = self.options.stock_steps
            for run in stock_runs(self.scorer(name), self.options.ppl, settings, steps):
                self._keep(run, begin)

    def fit(self, name: str) -> None:
        for seed in self.options.seeds:
            if not self._has(name, FIT, seed):
                begin = time.perf_counter()
                self._keep(fit_run(self.scorer(name), self.options.ppl, seed), begin)

    def _has(self, name: str, method: str, seed: int) -> bool:
        cached = self.cache.has_run(self.options.ppl, name, method, seed)
        return cached and not self.options.again

    def _keep(self, run: Run, begin: float) -> None:
        self.cache.save_run(run)
        known = self.cache.best(run.posterior)
        gap = f", {known.bound.value - run.score.bound:.3f} short" if known else ""
        say(
            f"{run.posterior}, {run.method}, seed {run.seed}: {run.score.bound:.3f} nats{gap}, "
            f"{run.evaluations:,} evaluations, {run.seconds:.1f} s",
            begin,
        )


def say(line: str, begin: float) -> None:
    print(f"{line} [{time.perf_counter() - begin:.0f} s]", flush=True)


def report(cache: Cache, ppl: str, names: list[str]) -> None:
    """Print it, and keep it."""
    comparison = Comparison.load(cache, ppl, names)
    with open(cache.folder / f"report-{ppl}.txt", "w") as file:
        for console in (Console(width=WIDE), Console(file=file, width=WIDE)):
            print_report(comparison, console)
    profile(comparison).savefig(cache.folder / f"profile-{ppl}.png", dpi=160)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="has index.csv")
    parser.add_argument("--ppl", choices=["numpyro", "pyro"], default="numpyro")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--posteriors", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--stage", nargs="+", choices=STAGES)
    parser.add_argument("--out", type=Path, default=Path("posteriordb-runs"))
    parser.add_argument("--again", action="store_true", help="run what has been run before")
    parser.add_argument("--stock-steps", type=int, default=NUM_STEPS)
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    if options.ppl == "pyro":
        import torch

        torch.set_default_dtype(torch.float64)

    names = sorted(set(load_index(options.data_dir)) & set(POSTERIORS))
    if unknown := set(options.posteriors or ()) - set(names):
        parser.error(f"no such posterior: {', '.join(sorted(unknown))}")
    names = options.posteriors or names
    wanted = options.stage or DEFAULT_STAGES[options.ppl]
    cache = Cache(options.out)
    stages = Stages(options, cache)
    print(describe(), flush=True)
    for name in names:
        for stage in STAGES[:-1]:
            if stage in wanted:
                getattr(stages, stage)(name)
    if "report" in wanted:
        report(cache, options.ppl, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
