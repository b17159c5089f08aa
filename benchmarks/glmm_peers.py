"""Random intercepts by lme4, glmmTMB and NUTS, beside fit and Laplace's formula.

Coefficients and the log sd of the groups' intercepts, of HERS (2031 women), toenail (294 patients)
and epilepsy (59). lme4 and glmmTMB maximise Laplace's formula for the likelihood (or the likelihood
by 25 nodes of adaptive quadrature, "nAGQ = 25"); the rest has the prior N(0, 10^2) of each
global, NUTS with the intercepts as they are (centred) or standardised; ours ``fit`` with a Gaussian
over all latents, with locals by their modes, and ``guide.laplace`` maximised by BFGS, without a
prior, in both PPLs. Every method is a process of its own with one thread of BLAS: seconds are
those after all imports, with compilation, until estimates and errors are there; ours go once more
in the same process ("again"), and in NumPyro in another one that finds the first one's programs in
JAX's cache on disk ("cached"). Of NUTS they are those in which the means of all globals have a
Monte Carlo error of 0.05 posterior sds: the warm-up, and as much of the draws as gives 400
effective ones.

    python -m benchmarks glmm_peers --data-dir DIR [--data hers] [--methods glmmTMB]

writes ``glmm_peers.csv`` and ``glmm_peers_estimates.csv``: rows that are
asked for, and keeps the others. ``DIR`` holds ``glmm/designs/*.npz`` (``y``, ``X``, ``group``).
lme4 and glmmTMB are of R (packages ``lme4``, ``glmmTMB``); without ``Rscript`` on the
path they are left out.

Time: 10 minutes. Data: glmm/designs/*.npz; R for lme4 and glmmTMB.
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
from examples.laplace import formula_of_guide
from examples.machine import describe

DATA = {
    "hers": ("bernoulli", ["intercept", "age", "bmi", "htn", "visit"]),
    "toenail": ("bernoulli", ["intercept", "treatment", "month", "treatment x month"]),
    "epilepsy1": (
        "poisson",
        ["intercept", "log base", "treatment", "log base x treatment", "log age", "visit 4"],
    ),
}
R = {
    "lme4": "glmer(FORMULA, data = d, family = FAMILY, nAGQ = 1)",
    "lme4, nAGQ = 25": "glmer(FORMULA, data = d, family = FAMILY, nAGQ = 25)",
    "glmmTMB": "glmmTMB(FORMULA, data = d, family = FAMILY)",
}
CHAINS = {"NUTS, centred": False, "NUTS, standardised": True}
FIT = {"`fit`, one Gaussian": False, "`fit`, by modes": True}
LAPLACE = {"`laplace`, NumPyro": "numpyro", "`laplace`, Pyro": "pyro"}
METHODS = (*R, *CHAINS, *FIT, *LAPLACE)
#: Of the chain: steps of its warm-up, and draws.
WARM_UP, DRAWS = 1000, 3000
#: Effective draws, whose mean has an error of 0.05 sd.
ENOUGH = 400
PRIOR_SCALE = 10.0


class Problem(NamedTuple):
    """Rows of a table, in groups."""

    likelihood: str
    names: list[str]
    y: np.ndarray
    X: np.ndarray
    group: np.ndarray


def load(name: str, directory: Path) -> Problem:
    likelihood, names = DATA[name]
    with np.load(directory / "glmm" / "designs" / f"{name}.npz") as design:
        y, X, group = (design[key] for key in ("y", "X", "group"))
    return Problem(likelihood, names, y.astype(float), X, group.astype(int))


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
cat(sprintf('{"estimates": [%s], "errors": [%s], "wall": %f, "cpu": %f, "process": %f,
 "remark": "log likelihood %.2f, %s %s"}',
  paste(sprintf("%.8f", c(beta, log(spread))), collapse = ","),
  gsub("NA", "NaN", paste(sprintf("%.8f", errors), collapse = ",")),
  spent[3], spent[1] + spent[2], sum(proc.time()[1:2]), as.numeric(logLik(m)),
  "PACKAGE", packageVersion("PACKAGE")))
"""


def in_r(problem: Problem, method: str) -> dict[str, Any]:
    columns = [f"x{i}" for i in range(problem.X.shape[1])]
    family = {"bernoulli": "binomial", "poisson": "poisson"}[problem.likelihood]
    call = R[method].replace("FORMULA", f"y ~ 0 + {' + '.join(columns)} + (1 | g)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table = np.column_stack([problem.y, problem.X, problem.group])
        header = ",".join(["y", *columns, "g"])
        np.savetxt(path, table, "%.17g", delimiter=",", header=header, comments="")
        script = Path(folder) / "fit.R"
        text = SCRIPT.replace("CALL", call.replace("FAMILY", family)).replace("TABLE", str(path))
        script.write_text(text.replace("PACKAGE", method.split(",")[0]))
        command = ["Rscript", "--vanilla", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_alone())
    found = json.loads(done.stdout[done.stdout.index("{") :])
    if "25" in method and problem.likelihood == "poisson":  # which is without log y!
        found["remark"] = found["remark"].partition(", ")[2]
    return found


def _alone() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# -- NumPyro -------------------------------------------------------------------------------------


def numpyro_model(problem: Problem, standardised: bool = False, own: bool = False) -> Callable:
    """:param own: globals are parameters of the model's own, without a prior."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    num = int(problem.group.max()) + 1
    prior = dist.Normal(0.0, PRIOR_SCALE)

    def model(y: Any, X: Any, group: Any) -> None:
        p = X.shape[1]
        if own:
            beta = numpyro.param("beta", jnp.zeros(p))
            log_sd = numpyro.param("log_sd", jnp.zeros(()))
        else:
            beta = numpyro.sample("beta", prior.expand([p]).to_event(1))
            log_sd = numpyro.sample("log_sd", prior)
        spread = jnp.exp(log_sd)
        with numpyro.plate("groups", num):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0 if standardised else spread))
        eta = X @ beta + (effect * spread if standardised else effect)[group]
        bernoulli = problem.likelihood == "bernoulli"
        with numpyro.plate("rows", len(y)):
            of_y = dist.Bernoulli(logits=eta) if bernoulli else dist.Poisson(jnp.exp(eta))
            numpyro.sample("y", of_y, obs=y)

    return model


def nuts(problem: Problem, method: str) -> Callable[[], dict[str, Any]]:
    import arviz
    import jax
    from numpyro.diagnostics import split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    model = numpyro_model(problem, CHAINS[method])

    def run() -> dict[str, Any]:
        sampler = MCMC(NUTS(model), num_warmup=WARM_UP, num_samples=DRAWS, progress_bar=False)
        clock = Clock()
        sampler.warmup(jax.random.key(1), *problem[2:])
        jax.block_until_ready(sampler.post_warmup_state.z)
        warm = clock.spent()
        sampler.run(sampler.post_warmup_state.rng_key, *problem[2:])
        found = jax.block_until_ready(sampler.get_samples())
        drawn = {key: value - warm[key] for key, value in clock.spent().items()}
        draws = np.column_stack([found["beta"], found["log_sd"]]).astype(float)
        effective = min(float(arviz.ess(column[None], method="mean")) for column in draws.T)
        rhat = max(float(split_gelman_rubin(column[None])) for column in draws.T)
        return {
            "estimates": draws.mean(0).tolist(),
            "errors": draws.std(0, ddof=1).tolist(),
            **{key: warm[key] + drawn[key] * ENOUGH / effective for key in warm},
            "remark": f"{effective:.0f} effective draws of {DRAWS:,}, R-hat {rhat:.3f}; "
            f"all of it {warm['cpu'] + drawn['cpu']:.0f} CPU s",
        }

    return run


def fitted(problem: Problem, method: str) -> Callable[[], dict[str, Any]]:
    from numpyro_ngvi import ReparametrizedGaussianGuide, fit

    model = numpyro_model(problem)

    def run() -> dict[str, Any]:
        options: dict[str, Any] = {"reparametrize": False}
        if FIT[method]:
            options = {"guide": ReparametrizedGaussianGuide(model)}
        clock = Clock()
        result = fit(model, *problem[2:], progress_bar=False, **options)
        q = result.posterior
        mean, sd = (np.asarray(part) for part in (q.mean, q.variance**0.5))
        spent = clock.spent()
        of = {site.name: slice(site.start, site.start + site.size) for site in result.guide.sites}
        gradients = f"bound {result.bound:.2f}, {result.cost.gradients:,} gradients"
        return {
            "estimates": [*mean[of["beta"]].tolist(), *mean[of["log_sd"]].tolist()],
            "errors": [*sd[of["beta"]].tolist(), *sd[of["log_sd"]].tolist()],
            **spent,
            "remark": gradients + ("" if result.converged else ", not converged"),
        }

    return run


def laplace(problem: Problem, method: str) -> Callable[[], dict[str, Any]]:
    """The maximum of Laplace's formula, and errors by differences of its gradient."""
    from scipy.optimize import minimize

    make = {"numpyro": formula_of_numpyro, "pyro": formula_of_pyro}[LAPLACE[method]]
    dim = problem.X.shape[1] + 1

    def run() -> dict[str, Any]:
        clock, calls = Clock(), 0
        formula = make(problem)

        def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal calls
            calls += 1
            value, slope = formula(point)
            return -float(value), -np.asarray(slope)

        loss(np.zeros(dim))
        ready = clock.spent()["cpu"]
        best = minimize(loss, np.zeros(dim), jac=True, method="BFGS", options={"gtol": 1e-3})
        steps = 1e-3 * np.eye(dim)
        curvature = [(loss(best.x + e)[1] - loss(best.x - e)[1]) / 2e-3 for e in steps]
        errors = np.sqrt(np.diag(np.linalg.inv(np.array(curvature))))
        spent = clock.spent()
        return {
            "estimates": best.x.tolist(),
            "errors": errors.tolist(),
            **spent,
            "remark": f"log likelihood {-best.fun:.2f}, {calls} gradients, of the CPU s "
            f"{ready:.1f} until the first of them",
        }

    return run


def formula_of_numpyro(problem: Problem) -> Callable:
    import jax
    import numpyro

    from numpyro_ngvi import ReparametrizedGaussianGuide

    guide = ReparametrizedGaussianGuide(numpyro_model(problem, own=True))
    with numpyro.handlers.seed(rng_seed=0):
        guide.set_up(*problem[2:])

    def formula(point: jax.Array) -> jax.Array:
        return guide.laplace({"beta": point[:-1], "log_sd": point[-1]})

    # A program that runs for half a millisecond, thirty times: be there soon.
    soon = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    return jax.jit(jax.value_and_grad(formula), compiler_options=soon)


def formula_of_pyro(problem: Problem) -> Callable:
    import pyro
    import pyro.distributions as dist
    import torch

    from pyro_ngvi import ReparametrizedGaussianGuide

    num = int(problem.group.max()) + 1
    pyro.clear_param_store()

    def model(y: Any, X: Any, group: Any) -> None:
        beta = pyro.param("beta", torch.zeros(X.shape[1]))
        log_sd = pyro.param("log_sd", torch.zeros(()))
        with pyro.plate("groups", num):
            effect = pyro.sample("effect", dist.Normal(0.0 * log_sd, log_sd.exp()))
        eta = X @ beta + effect[..., group]
        bernoulli = problem.likelihood == "bernoulli"
        with pyro.plate("rows", len(y)):
            of_y = dist.Bernoulli(logits=eta) if bernoulli else dist.Poisson(eta.exp())
            pyro.sample("y", of_y, obs=y)

    guide = ReparametrizedGaussianGuide(model)
    guide(*map(torch.as_tensor, problem[2:]))
    return formula_of_guide(guide)


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> dict[str, float]:
        return {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}


def one(problem: Problem, method: str, again: bool) -> dict[str, Any]:
    """In this process: what :func:`in_r` gives, and maybe how long a second time takes."""
    warnings.simplefilter("ignore")
    if method == "`laplace`, Pyro":
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
    else:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices()
    run = (nuts if method in CHAINS else fitted if method in FIT else laplace)(problem, method)
    if method == "`laplace`, NumPyro":
        import numpyro_ngvi  # noqa: F401  before the clock
    elif method == "`laplace`, Pyro":
        import pyro_ngvi  # noqa: F401
    found = run()
    found["process"] = time.process_time()
    if again:
        found["again"] = run()["cpu"]
    return found


def in_a_process(name: str, method: str, directory: Path) -> dict[str, Any]:
    """:func:`one` of a new process; of ours in JAX another one, with the first one's programs."""
    place = ["--data-dir", str(directory), "--data", name, "--methods", method, "--one"]
    command = [sys.executable, "-m", "benchmarks.glmm_peers", *place]
    is_ours = method in FIT or method in LAPLACE

    def run(how_often: int, **cache: str) -> dict[str, Any]:
        done = subprocess.run(
            [*command, str(how_often)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=_alone() | cache,
            cwd=pages.ROOT,
        )
        return json.loads(done.stdout.strip().splitlines()[-1])

    found = run(1 + is_ours)
    if is_ours and "Pyro" not in method.replace("NumPyro", ""):
        with tempfile.TemporaryDirectory() as folder:
            cache = {
                "JAX_COMPILATION_CACHE_DIR": folder,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "TF_CPP_MIN_LOG_LEVEL": "3",  # or XLA names all features of the processor
            }
            run(1, **cache)
            found["cached"] = run(1, **cache)["cpu"]
    return found


# -- all of them ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--one", type=int, default=0, help="so often in this process; print it")
    options = parser.parse_args()
    if options.one:
        problem = load(options.data[0], options.data_dir)
        print(json.dumps(one(problem, options.methods[0], again=options.one > 1)))
        return
    methods = list(options.methods)
    if shutil.which("Rscript") is None and set(methods) & set(R):
        print("Rscript is not on the path: lme4 and glmmTMB are left out.")
        methods = [method for method in methods if method not in R]
    for name in options.data:
        for method in methods:
            if method in R:
                found = in_r(load(name, options.data_dir), method)
            else:
                found = in_a_process(name, method, options.data_dir)
            print(name, method, {key: found[key] for key in ("wall", "cpu", "remark")}, flush=True)
            write(name, method, found)
    draw()


def write(name: str, method: str, found: dict[str, Any]) -> None:
    """The rows of a run, in both tables; distances are to standardised NUTS, if it is there."""
    about = (
        f"python -m benchmarks glmm_peers --data-dir DIR: float64, one seed; "
        f"NUTS 1 chain, {WARM_UP:,} + {DRAWS:,}; last run on {describe()}"
    )
    keys = ("data", "method")
    pairs = zip(found["estimates"], found["errors"], strict=True)
    names = [*DATA[name][1], "log sd"]
    row = {"data": name, "method": method} | {
        title: f"{mean:.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}")
        for title, (mean, error) in zip(names, pairs, strict=True)
    }
    titles = ["data", "method", *dict.fromkeys(n for _, some in DATA.values() for n in some)]
    row = {title: row.get(title, "") for title in [*titles, "log sd"]}
    pages.replace("glmm_peers_estimates.csv", [row], about, keys)
    timed = {
        "data": name,
        "method": method,
        "farthest mean": "",
        "ratios of sds": "",
        "CPU s": f"{found['cpu']:.1f}",
        "wall s": f"{found['wall']:.1f}",
        "CPU s again": f"{found['again']:.1f}" if "again" in found else "",
        "CPU s cached": f"{found['cached']:.1f}" if "cached" in found else "",
        "CPU s with imports": f"{found['process']:.1f}",
        "remark": found["remark"],
    }
    pages.replace("glmm_peers.csv", [timed], about, keys)
    rows = pages.read("glmm_peers.csv")
    estimates = pages.read("glmm_peers_estimates.csv")
    for timed in rows:
        timed |= _compared(estimates, timed)
    rows.sort(key=lambda row: (list(DATA).index(row["data"]), METHODS.index(row["method"])))
    estimates.sort(key=lambda row: (list(DATA).index(row["data"]), METHODS.index(row["method"])))
    pages.write("glmm_peers.csv", rows, about)
    pages.write("glmm_peers_estimates.csv", estimates, about)


def _compared(estimates: list[dict[str, str]], row: dict[str, str]) -> dict[str, str]:
    """A row's distances to NUTS."""
    of_data = {e["method"]: e for e in estimates if e["data"] == row["data"]}
    chains = [of_data[method] for method in reversed(CHAINS) if method in of_data]
    if not chains:
        return {}
    names = [*DATA[row["data"]][1], "log sd"]
    mine, exact = (_numbers(e, names) for e in (of_data[row["method"]], chains[0]))
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
    "NUTS, centred": "NUTS, centred",
    "lme4, nAGQ = 25": "likelihood by\nquadrature (lme4)",
    "`laplace`, NumPyro": "Laplace's formula\n(lme4, glmmTMB,\nguide.laplace)",
    "`fit`, one Gaussian": "fit, one Gaussian",
    "`fit`, by modes": "fit, by modes",
}


def draw() -> None:
    """Estimates and errors of all globals, in posterior sds from the posterior mean."""
    estimates = pages.read("glmm_peers_estimates.csv")
    figure, axes = pages.figure(1, len(DATA), (3.4, 3.6))
    for axis, (name, (_, names)) in zip(axes[0], DATA.items(), strict=True):
        of_data = {e["method"]: e for e in estimates if e["data"] == name}
        reference = of_data.get("NUTS, standardised")
        if reference is None:
            continue
        names = [*names, "log sd"]
        mean, sd = _numbers(reference, names)
        for row, method in enumerate(DRAWN):
            if method not in of_data:
                continue
            mine = _numbers(of_data[method], names)
            gaps, spreads = (mine[0] - mean) / sd, np.nan_to_num(mine[1] / sd)
            heights = row + np.linspace(-0.3, 0.3, len(names))
            colours = ["#0072b2"] * (len(names) - 1) + ["#d55e00"]
            axis.hlines(heights, gaps - spreads, gaps + spreads, colors=colours, lw=1)
            axis.scatter(gaps, heights, s=10, color=colours, zorder=3)
        for edge in (-1, 1):
            axis.axvline(edge, color="0.85", lw=0.8, zorder=0)
        axis.axvline(0, color="0.7", lw=0.8, zorder=0)
        axis.set_yticks(range(len(DRAWN)), DRAWN.values() if axis is axes[0][0] else [])
        axis.invert_yaxis()
        axis.set_title(name)
        axis.set_xlabel("posterior sds from NUTS' mean")
    pages.save(figure, "glmm_peers.png")


if __name__ == "__main__":
    main()
