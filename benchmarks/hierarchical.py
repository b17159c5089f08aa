"""Random intercepts by ``fit`` and Laplace's formula, beside NUTS, lme4 and glmmTMB.

Coefficients and the log sd of the groups' intercepts, of toenail (294 patients) and epilepsy (59).
lme4 and glmmTMB maximise Laplace's formula for the likelihood (or the likelihood by 25 nodes of
adaptive quadrature, "nAGQ = 25"); the rest has the prior N(0, 10^2) of each global:
NUTS with standardised intercepts, ``fit`` as users call it and its Gaussian alone, and, without a
prior, ``guide.laplace`` maximised by BFGS. Every method is a process of its own with one thread:
seconds are those of the processor after all imports until estimates and errors are there, and of a
second time in the same process ("warm"). Of NUTS they are those in which the means of all globals
have a Monte Carlo error of 0.05 posterior sds: the warm-up, and as much of the draws as gives 400
effective ones.

    python -m benchmarks hierarchical --data-dir DIR [--data toenail] [--methods glmmTMB]

writes ``hierarchical.csv`` and ``hierarchical_estimates.csv``: rows that are asked for, and keeps
the others. lme4 and glmmTMB are packages of R; without ``Rscript`` on the path their rows are kept.

Time: 15 minutes. Data: glmm/designs/*.npz; R for lme4 and glmmTMB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import pages
from benchmarks.models import Ppl
from examples.laplace import formula_of_guide
from examples.machine import describe

DATA = {
    "toenail": ("bernoulli", ["intercept", "treatment", "month", "treatment x month"]),
    "epilepsy": (
        "poisson",
        ["intercept", "log base", "treatment", "log base x treatment", "log age", "visit 4"],
    ),
}
R = {
    "lme4": "glmer(FORMULA, data = d, family = FAMILY, nAGQ = 1)",
    "lme4, nAGQ = 25": "glmer(FORMULA, data = d, family = FAMILY, nAGQ = 25)",
    "glmmTMB": "glmmTMB(FORMULA, data = d, family = FAMILY)",
}
REFERENCE = "NUTS, NumPyro"
OURS = ("`fit`, NumPyro", "`fit`, Pyro", "`fit`, Gaussian alone", "`laplace`, NumPyro",
        "`laplace`, Pyro")  # fmt: skip
METHODS = (*R, REFERENCE, *OURS)
TABLE, ESTIMATES, KEYS = "hierarchical.csv", "hierarchical_estimates.csv", ("data", "method")
#: Steps of the warm-up, draws, and effective draws whose means have an error of 0.05 sd.
WARM_UP, DRAWS, ENOUGH = 1000, 3000, 400
PRIOR_SCALE = 10.0


class Problem(NamedTuple):
    """Rows of a table, in groups."""

    likelihood: str
    y: np.ndarray
    X: np.ndarray
    group: np.ndarray

    def model(self, ppl: Ppl, standardised: bool = False, own: bool = False) -> Callable:
        """:param own: globals are parameters of the model's own, without a prior."""
        num = int(self.group.max()) + 1

        def model(y: Any, X: Any, group: Any) -> None:
            zero = ppl.array(0.0)
            if own:
                beta = ppl.param("beta", ppl.array(np.zeros(X.shape[1])))
                log_sd = ppl.param("log_sd", ppl.array(0.0))
            else:
                beta = ppl.normals("beta", X.shape[1], PRIOR_SCALE)
                log_sd = ppl.sample("log_sd", ppl.Normal(zero, PRIOR_SCALE))
            spread = ppl.exp(log_sd)
            with ppl.plate("groups", num):
                scale = zero + 1.0 if standardised else spread
                effect = ppl.sample("effect", ppl.Normal(zero, scale))
            eta = X @ beta + (effect * spread if standardised else effect)[..., group]
            bernoulli = self.likelihood == "bernoulli"
            ppl.rows(ppl.Bernoulli(logits=eta) if bernoulli else ppl.Poisson(ppl.exp(eta)), y)

        return model

    def args(self, ppl: Ppl) -> tuple:
        return tuple(map(ppl.array, (self.y, self.X, self.group)))


def load(name: str, directory: Path) -> Problem:
    file = {"epilepsy": "epilepsy1"}.get(name, name)
    with np.load(directory / "glmm" / "designs" / f"{file}.npz") as design:
        y, X, group = (design[key] for key in ("y", "X", "group"))
    return Problem(DATA[name][0], y.astype(float), X, group.astype(int))


# -- R -------------------------------------------------------------------------------------------

SCRIPT = """
suppressMessages(library(PACKAGE))
d <- read.csv("TABLE")
begin <- proc.time()
m <- suppressWarnings(CALL)
s <- summary(m)$coefficients
if (inherits(m, "glmmTMB")) {
  beta <- s$cond[, 1]; errors <- c(s$cond[, 2], sqrt(diag(m$sdr$cov.fixed))[length(beta) + 1])
  spread <- attr(VarCorr(m)$cond$g, "stddev")
} else {
  beta <- s[, 1]; errors <- c(s[, 2], NA); spread <- attr(VarCorr(m)$g, "stddev")
}
spent <- proc.time() - begin
cat(sprintf('{"estimates": [%s], "errors": [%s], "cpu": %f, "remark": "%s %s"}',
  paste(sprintf("%.8f", c(beta, log(spread))), collapse = ","),
  gsub("NA", "NaN", paste(sprintf("%.8f", errors), collapse = ",")),
  spent[1] + spent[2], "PACKAGE", packageVersion("PACKAGE")))
"""


def in_r(problem: Problem, method: str) -> dict[str, Any]:
    columns = [f"x{i}" for i in range(problem.X.shape[1])]
    family = {"bernoulli": "binomial", "poisson": "poisson"}[problem.likelihood]
    call = R[method].replace("FORMULA", f"y ~ 0 + {' + '.join(columns)} + (1 | g)")
    with tempfile.TemporaryDirectory() as folder:
        path, script = Path(folder) / "table.csv", Path(folder) / "fit.R"
        table = np.column_stack([problem.y, problem.X, problem.group])
        header = ",".join(["y", *columns, "g"])
        np.savetxt(path, table, "%.17g", delimiter=",", header=header, comments="")
        text = SCRIPT.replace("CALL", call.replace("FAMILY", family)).replace("TABLE", str(path))
        script.write_text(text.replace("PACKAGE", method.split(",")[0]))
        command = ["Rscript", "--vanilla", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_alone())
    return json.loads(done.stdout[done.stdout.index("{") :])


def _alone() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# -- Python --------------------------------------------------------------------------------------


def found(draws: dict[str, Any], remark: str) -> dict[str, Any]:
    """Estimates and errors of the globals, in the order of the table."""
    columns = np.column_stack([np.asarray(draws[name], float) for name in ("beta", "log_sd")])
    mean, sd = columns.mean(0), columns.std(0, ddof=1)
    return {"estimates": mean.tolist(), "errors": sd.tolist(), "remark": remark}


def nuts(problem: Problem, ppl: Ppl) -> dict[str, Any]:
    import arviz
    import jax
    from numpyro.infer import MCMC, NUTS

    model, args = problem.model(ppl, standardised=True), problem.args(ppl)
    sampler = MCMC(NUTS(model), num_warmup=WARM_UP, num_samples=DRAWS, progress_bar=False)
    begin = time.process_time()
    sampler.warmup(jax.random.key(1), *args)
    jax.block_until_ready(sampler.post_warmup_state.z)
    middle = time.process_time()
    sampler.run(sampler.post_warmup_state.rng_key, *args)
    draws = jax.block_until_ready(sampler.get_samples())
    warm, drawn = middle - begin, time.process_time() - middle
    columns = np.column_stack([draws["beta"], draws["log_sd"]]).astype(float)
    effective = min(float(arviz.ess(column[None], method="mean")) for column in columns.T)
    remark = f"{effective:.0f} effective draws of {DRAWS:,}"
    return found(draws, remark) | {"cpu": warm + drawn * ENOUGH / effective}


def fitted(problem: Problem, ppl: Ppl, draws: str) -> dict[str, Any]:
    fit = ppl.ours.fit
    begin = time.process_time()
    result = fit(problem.model(ppl), *problem.args(ppl), progress_bar=False, draws=draws)
    mine = result.sample(4000)
    spent = time.process_time() - begin
    said = f"{result.verdict}, draws {result.diagnostics.accuracy.verdict}"
    remark = f"{said}; {result.cost.gradients + result.cost.products:,} gradients"
    return found(mine, remark) | {"cpu": spent}


def laplace(problem: Problem, ppl: Ppl) -> dict[str, Any]:
    """The maximum of Laplace's formula, and errors by differences of its gradient."""
    from scipy.optimize import minimize

    begin, calls, dim = time.process_time(), 0, problem.X.shape[1] + 1
    formula = formula_of(problem, ppl)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1
        value, slope = formula(point)
        return -float(value), -np.asarray(slope)

    best = minimize(loss, np.zeros(dim), jac=True, method="BFGS", options={"gtol": 1e-3})
    steps = 1e-3 * np.eye(dim)
    curvature = [(loss(best.x + e)[1] - loss(best.x - e)[1]) / 2e-3 for e in steps]
    errors = np.sqrt(np.diag(np.linalg.inv(np.array(curvature))))
    spent, ends = time.process_time() - begin, {"estimates": best.x.tolist()}
    return ends | {"errors": errors.tolist(), "cpu": spent, "remark": f"{calls} gradients"}


def formula_of(problem: Problem, ppl: Ppl) -> Callable:
    """Laplace's formula and its gradient, a function of the globals."""
    model, args = problem.model(ppl, own=True), problem.args(ppl)
    if not ppl.is_numpyro:
        import pyro

        pyro.clear_param_store()
        guide = ppl.ours.ReparametrizedGaussianGuide(model)
        guide(*args)
        return formula_of_guide(guide)
    import jax
    import numpyro

    guide = ppl.ours.ReparametrizedGaussianGuide(model)
    with numpyro.handlers.seed(rng_seed=0):
        guide.set_up(*args)

    def formula(point: jax.Array) -> jax.Array:
        return guide.laplace({"beta": point[:-1], "log_sd": point[-1]})

    # A program that runs for half a millisecond, thirty times: be there soon.
    soon = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    return jax.jit(jax.value_and_grad(formula), compiler_options=soon)


def one(problem: Problem, method: str) -> dict[str, Any]:
    """In this process: what :func:`in_r` gives, and how long a second time of ours takes."""
    warnings.simplefilter("ignore")
    ppl = Ppl("pyro" if method.endswith(" Pyro") else "numpyro")
    assert ppl.ours, "is imported before the clock starts"
    if ppl.is_numpyro:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices()
    else:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)

    def run() -> dict[str, Any]:
        if method == REFERENCE:
            return nuts(problem, ppl)
        if method.startswith("`laplace`"):
            return laplace(problem, ppl)
        return fitted(problem, ppl, "gaussian" if "alone" in method else "auto")

    first = run()
    return first if method == REFERENCE else first | {"warm": run()["cpu"]}


def in_a_process(name: str, method: str, directory: Path) -> dict[str, Any]:
    """:func:`one` of a new process."""
    place = ["--data-dir", str(directory), "--data", name, "--methods", method, "--one"]
    command = [sys.executable, "-m", "benchmarks.hierarchical", *place]
    options = {"check": True, "env": _alone(), "cwd": pages.ROOT}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    return json.loads(done.stdout.strip().splitlines()[-1])


# -- all of them ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--one", action="store_true", help="in this process; print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(load(options.data[0], options.data_dir), options.methods[0])))
        return
    methods = list(options.methods)
    if shutil.which("Rscript") is None:
        methods = [method for method in methods if method not in R]
    for name in options.data:
        for method in methods:
            if method in R:
                ends = in_r(load(name, options.data_dir), method)
            else:
                ends = in_a_process(name, method, options.data_dir)
            print(name, method, ends, flush=True)
            write(name, method, ends)
    draw()


def write(name: str, method: str, ends: dict[str, Any]) -> None:
    """The rows of a run, in both tables."""
    about = (
        f"`python -m benchmarks hierarchical --data-dir DIR`: float64, one seed; "
        f"NUTS 1 chain, {WARM_UP:,} + {DRAWS:,}; {describe()}"
    )
    titles = [*dict.fromkeys(n for _, some in DATA.values() for n in some), "log sd"]
    row = {"data": name, "method": method} | dict.fromkeys(titles, "")
    pairs = zip(ends["estimates"], ends["errors"], strict=True)
    for title, (mean, error) in zip([*DATA[name][1], "log sd"], pairs, strict=True):
        row[title] = f"{mean:.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}")
    pages.replace(ESTIMATES, [row], about, KEYS)
    timed = {"data": name, "method": method, "farthest mean": "", "ratios of sds": ""}
    timed |= {
        "CPU s": f"{ends['cpu']:.1f}",
        "warm": f"{ends['warm']:.1f}" if "warm" in ends else "",
    }
    pages.replace(TABLE, [timed | {"remark": ends["remark"]}], about, KEYS)
    rows, estimates = pages.read(TABLE), pages.read(ESTIMATES)
    rows = [row | _compared(estimates, row) for row in rows]
    for file, some in ((TABLE, rows), (ESTIMATES, estimates)):
        some.sort(key=lambda row: (list(DATA).index(row["data"]), METHODS.index(row["method"])))
        pages.write(file, some, about)


def _compared(estimates: list[dict[str, str]], row: dict[str, str]) -> dict[str, str]:
    """A row's distances to NUTS."""
    of_data = {e["method"]: e for e in estimates if e["data"] == row["data"]}
    if REFERENCE not in of_data:
        return {}
    names = [*DATA[row["data"]][1], "log sd"]
    mine, exact = (_numbers(of_data[method], names) for method in (row["method"], REFERENCE))
    gaps = abs(mine[0] - exact[0]) / exact[1]
    ratios = (mine[1] / exact[1])[~np.isnan(mine[1])]
    return {
        "farthest mean": f"{gaps.max():.2f} ({names[int(gaps.argmax())]})",
        "ratios of sds": f"{ratios.min():.2f} to {ratios.max():.2f}",
    }


def _numbers(row: dict[str, str], names: list[str]) -> np.ndarray:
    """Estimates and errors, NaN where there is none."""
    pairs = [[float(part) for part in row[name].split(" ± ")] for name in names]
    return np.array([[*pair, np.nan][:2] for pair in pairs]).T


#: What is drawn: glmmTMB and ``guide.laplace`` maximise the same as lme4.
DRAWN = {
    "`fit`, NumPyro": "fit",
    "`fit`, Gaussian alone": "fit, Gaussian alone",
    "`laplace`, NumPyro": "Laplace's formula\n(lme4, glmmTMB,\nguide.laplace)",
    "lme4, nAGQ = 25": "likelihood by\nquadrature (lme4)",
}


def draw() -> None:
    """Estimates and errors of all globals, in posterior sds from the posterior mean."""
    estimates = pages.read(ESTIMATES)
    figure, (axes,) = pages.figure(1, len(DATA), (3.2, 3.2))
    for axis, (name, (_, names)) in zip(axes, DATA.items(), strict=True):
        of_data = {e["method"]: e for e in estimates if e["data"] == name}
        names = [*names, "log sd"]
        mean, sd = _numbers(of_data[REFERENCE], names)
        for row, method in enumerate(DRAWN):
            mine = _numbers(of_data[method], names)
            gaps, spreads = (mine[0] - mean) / sd, np.nan_to_num(mine[1] / sd)
            heights = row + np.linspace(-0.3, 0.3, len(names))
            for some, colour, label in (
                (slice(None, -1), "#0072b2", "coefficients"),
                (slice(-1, None), "#d55e00", "log sd of the intercepts"),
            ):
                bars = gaps[some], heights[some], None, spreads[some]
                style = {"fmt": "o", "markersize": 3, "lw": 1, "color": colour}
                axis.errorbar(*bars, **style, label="" if row else label)
        for edge in (-1, 0, 1):
            axis.axvline(edge, color="0.8", lw=0.8, zorder=0)
        axis.set_yticks(range(len(DRAWN)), DRAWN.values() if axis is axes[0] else [])
        axis.invert_yaxis()
        axis.set(title=name, xlabel="posterior sds from NUTS' mean")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    pages.save(figure, "hierarchical.png")


if __name__ == "__main__":
    main()
