"""A user's first minute with NumPyro: what a cold process spends before the first answer.

Each measurement is a process of its own, without a persistent compilation cache, and the cases
take turns, so that a drifting machine does not matter:

stock     AutoMultivariateNormal, Adam and Trace_ELBO: ``init`` and the first compiled ``update``
blr       NaturalGaussianGuide, BLR and NaturalELBO: the same
step      these, in the ``SVI`` of this package: ``init`` and the first ``step``
fit       a whole ``fit``

on German credit (logistic regression) and eight schools (README's model). The clock starts
when everything is imported and the data are on the device. The table has medians: seconds of
``init``, of the first step, of both, by the wall and of the processor; seconds of Python
tracing, of lowering to MLIR and of compiling, which are shares of the seconds by the wall; the
number of XLA programs; and ratios to stock's whole on German credit and on the same model.

    python -m benchmarks cold_start --data-dir DIR --rounds 5

``DIR`` holds ``logistic/german_credit_design.csv.gz`` (1000 x 49, the column ``y`` besides);
without it the data are the 4454 loans of the demo (d = 24).

Time: 15 minutes. Data: logistic/german_credit_design.csv.gz, or none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from examples.machine import describe

CASES = (
    ("stock", "german"),
    ("blr", "german"),
    ("step", "german"),
    ("fit", "german"),
    ("stock", "eight"),
    ("blr", "eight"),
    ("step", "eight"),
    ("fit", "eight"),
)
PRIOR_SCALE = 10.0
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


# -- one process ----------------------------------------------------------------------


def german(X, y) -> None:
    """Logistic regression."""
    import numpyro
    import numpyro.distributions as dist

    weights = numpyro.sample("w", dist.Normal(0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)


def eight() -> None:
    """Eight schools (Rubin, 1981), as the README has them."""
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * raw, ERRORS), obs=SCHOOLS)


def german_data(directory: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The design matrix and the response, single precision."""
    if directory is None:
        from examples.demo.credit import load

        return load()[:2]
    import pandas as pd

    frame = pd.read_csv(directory / "logistic" / "german_credit_design.csv.gz")
    y = frame.pop("y").to_numpy(np.float32)
    return frame.to_numpy(np.float32), y


class Spans:
    """When JAX traced, lowered and compiled, by its own account."""

    def __init__(self) -> None:
        import jax

        self._spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.programs: list[tuple[str, float]] = []
        jax.monitoring.register_event_time_span_listener(self._record)

    def _record(self, event: str, start: float, end: float, **details: object) -> None:
        stage = STAGES.get(event)
        if stage is not None:
            self._spans[stage].append((start, end))
            if stage == "compile":
                self.programs.append((str(details.get("fun_name")), end - start))

    def seconds(self, stage: str) -> float:
        """Of the union of the spans, which are nested; an inner one is its own stage's."""
        total, last = 0.0, 0.0
        for start, end in sorted(self._spans[stage]):
            total += max(0.0, end - max(start, last))
            last = max(last, end)
        return total


def measure_here(kind: str, name: str, directory: Path | None) -> dict:
    """One case, in this process."""
    begin = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer.autoguide import AutoMultivariateNormal

    stock_import = time.perf_counter() - begin
    import numpyro_ngvi

    imports = time.perf_counter() - begin
    model = {"german": german, "eight": eight}[name]
    args = tuple(map(jnp.asarray, german_data(directory))) if name == "german" else ()
    key = jax.random.key(0)
    jax.block_until_ready((args, key))
    spans = Spans()
    clock = [(time.perf_counter(), time.process_time())]

    def lap() -> None:
        clock.append((time.perf_counter(), time.process_time()))

    if kind == "fit":
        result = numpyro_ngvi.inference(model, *args, progress_bar=False, rng_key=key)
        lap()
        lap()
        answer = float(result.losses[-1])
    else:
        if kind == "stock":
            guide, optim = AutoMultivariateNormal(model), numpyro.optim.Adam(1e-3)
            loss = numpyro.infer.Trace_ELBO()
        else:
            guide, optim = numpyro_ngvi.NaturalGaussianGuide(model), numpyro_ngvi.BLR()
            loss = numpyro_ngvi.NaturalELBO()
        if kind == "step":
            svi = numpyro_ngvi.SVI(model, guide, optim, loss, rng_key=key)
            svi.state = jax.block_until_ready(svi.init(key, *args))
            lap()
            value = jax.block_until_ready(svi.step(*args))
        else:
            svi = numpyro.infer.SVI(model, guide, optim, loss)
            state = jax.block_until_ready(svi.init(key, *args))
            lap()
            state, value = jax.block_until_ready(jax.jit(svi.update)(state, *args))
        lap()
        answer = float(value)
    (wall0, cpu0), (wall1, cpu1), (wall2, cpu2) = clock
    return {
        "import": imports,
        "import stock": stock_import,
        "init": wall1 - wall0,
        "step": wall2 - wall1,
        "wall": wall2 - wall0,
        "init cpu": cpu1 - cpu0,
        "step cpu": cpu2 - cpu1,
        "cpu": cpu2 - cpu0,
        **{stage: spans.seconds(stage) for stage in STAGES.values()},
        "programs": len(spans.programs),
        "loss": answer,
        "names": spans.programs,
    }


# -- all processes --------------------------------------------------------------------


def measure(kind: str, name: str, directory: Path | None) -> dict:
    """One case, in a process of its own without a compilation cache."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))
    }
    command = [sys.executable, "-m", "benchmarks.cold_start", "--case", kind, name]
    if directory is not None:
        command += ["--data-dir", str(directory.resolve())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def report(results: dict[tuple[str, str], list[dict]]) -> None:
    """Medians by case, and ratios to stock's."""

    def median(case: tuple[str, str], of: Callable[[dict], float]) -> float:
        return statistics.median(of(run) for run in results[case])

    columns = ("init", "step", "wall", "init cpu", "step cpu", "cpu", "trace", "lower", "compile")
    print(f"{'':14s}" + "".join(f"{c:>9s}" for c in (*columns, "programs", "import")))
    for case, runs in results.items():
        if runs:
            cells = "".join(f"{median(case, lambda run, c=c: run[c]):9.2f}" for c in columns)
            print(
                f"{' '.join(case):14s}{cells}{median(case, lambda run: run['programs']):9.0f}"
                f"{median(case, lambda run: run['import']):9.2f}"
            )
    for clock in ("wall", "cpu"):
        _print_ratios(results, clock)


def _print_ratios(results: dict[tuple[str, str], list[dict]], clock: str) -> None:
    print(f"\nRatios ({clock}), by round: median (smallest, largest)")
    for (kind, name), runs in results.items():
        shares = {f"stock {yardstick}": clock for yardstick in ("german", name)}
        if kind in ("blr", "step"):
            shares = {
                f"the step of stock {name}": "step" if clock == "wall" else "step cpu",
                **shares,
            }
        for yardstick, key in shares.items() if kind != "stock" else ():
            of_stock = results.get(("stock", yardstick.split()[-1]), [])
            ratios = [ours[key] / stock[key] for ours, stock in zip(runs, of_stock, strict=False)]
            if ratios:
                low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
                print(f"  {kind} {name} to {yardstick}: {middle:.2f} ({low:.2f}, {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["stock", "blr", "step", "fit"], help="kinds")
    parser.add_argument("--models", nargs="+", default=["german", "eight"])
    parser.add_argument("--case", nargs=2, metavar=("KIND", "MODEL"), help="one, as JSON")
    parser.add_argument("--verbose", action="store_true", help="each run's slowest programs")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure_here(*options.case, options.data_dir)))
        return
    print(describe())
    cases = [case for case in CASES if case[0] in options.only and case[1] in options.models]
    results: dict[tuple[str, str], list[dict]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in cases:
            run = measure(*case, options.data_dir)
            results[case].append(run)
            print(
                f"  {' '.join(case):14s}{run['wall']:7.2f} s, {run['cpu']:6.2f} s of CPU",
                flush=True,
            )
            if options.verbose:
                for name, seconds in sorted(run["names"], key=lambda pair: -pair[1])[:12]:
                    print(f"      {seconds:6.3f} s  {name}")
    report(results)


if __name__ == "__main__":
    main()
