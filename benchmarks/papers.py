"""Tan's tables, and groups in minibatches: this package's methods beside Adam, in NumPyro.

- 7: a loglinear model of 100,000 simulated rows, minibatches of 5,000
- 8: logistic regressions of German credit, and of toxicity by 1,024 bits, by mean fields
- 9: LeNet-5 on MNIST, a mean field, minibatches of 128 of 10,000 images
- 11: seizures of 59 patients with an intercept each, by a sparse precision (GVA), and by
  standardised locals (RVB2)
- and 2,000 simulated groups of five rows with an intercept each, of which a step sees 100

All methods of a case take the same number of steps from the paper's start, a scale of
``1 / sqrt(n)`` (groups: 1); ``BLR()`` takes fewer with a rate of its own, ``fit`` chooses both. The
paper prints neither its rates nor its numbers of steps: here the best of the rates tried is shown,
by the bound at the end, which is a mean over fresh draws and all rows.

    python -m benchmarks papers --data-dir DIR [--cases german] [--methods Snngm]

writes ``papers.csv``: rows that are asked for, and keeps the others.
Table 10, with conjugate factors, is ``examples/deep_glm.py``.

Time: half an hour. Data: logistic/*, images/mnist.npz, glmm/designs/epilepsy1.npz.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import Trace_ELBO, autoguide, init_to_value

from examples.machine import describe
from numpyro_ngvi import (
    BLR,
    IVON,
    SVI,
    NaturalELBO,
    NaturalGaussianGuide,
    ReparametrizedGaussianGuide,
    Snngm,
    fit,
)
from numpyro_ngvi.optim import VOGN, Nagm

from . import lenet, pages
from .models.posteriors import MODELS as POSTERIORS

PRIOR_SCALE, NUM_DRAWS, NUM_GROUPS = 10.0, 1000, 2000


class Case(NamedTuple):
    """A column of the paper's tables."""

    table: str
    model: Callable
    data: Callable[[Path], tuple]
    gaussians: tuple[str, ...]  #: families, or ``"RVB2"``
    steps: int
    batch: int | None = None
    num_draws: int = NUM_DRAWS
    newton: int = 200  #: steps of ``BLR()``
    options: Mapping[str, Any] = MappingProxyType({})  #: of the guide


class Method(NamedTuple):
    """An optimiser with its ELBO, and the rates that are tried."""

    optimiser: Callable[[Any], Any]
    loss: Callable[[], Any]
    rates: tuple
    gaussians: tuple[str, ...] = ()  #: of no others, where there are some


of_rows = partial(NaturalELBO, 1, "gauss_newton", num_gradients=1)
METHODS = {
    "Adam": Method(optax.adam, Trace_ELBO, (1e-3, 1e-2)),
    "Snngm": Method(Snngm, Trace_ELBO, (1e-3, 5e-3)),
    "Snngm()": Method(Snngm, Trace_ELBO, ("auto",)),
    "Nagm": Method(Nagm, Trace_ELBO, (1e-2, 1e-1)),
    "VOGN": Method(VOGN, of_rows, (1e-2, 1e-1), ("diagonal", "covariance_cholesky")),
    "IVON": Method(IVON, partial(NaturalELBO, 1, "stein"), (1e-2, 1e-1), ("diagonal",)),
}
#: With settings of their own.
ALONE = ("BLR()", "fit")


def regression(family: Callable, X: jax.Array, y: jax.Array, batch: int | None = None) -> None:
    prior = dist.Normal(0.0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1)
    theta = numpyro.sample("theta", prior)
    with numpyro.plate("rows", len(y), subsample_size=batch) as rows:
        X, y = (X, y) if batch is None else (X[rows], y[rows])
        numpyro.sample("y", family(X @ theta), obs=y)


def counts(eta: jax.Array) -> Any:
    return dist.Poisson(jnp.exp(eta))


def chances(eta: jax.Array) -> Any:
    return dist.Bernoulli(logits=eta)


def network(images: jax.Array, labels: jax.Array, batch: int | None = None) -> None:
    if batch is not None:
        with numpyro.plate("images", len(labels), subsample_size=batch) as rows:
            images, labels = images[rows], labels[rows]
    lenet.numpyro_model()(images, labels)


def patients(y: jax.Array, X: jax.Array, group: jax.Array, num_groups: int) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1))
    zeta = numpyro.sample("zeta", dist.Normal(0.0, PRIOR_SCALE))  # minus the log sd of effects
    with numpyro.plate("patients", num_groups):
        effect = numpyro.sample("effect", dist.Normal(0.0, jnp.exp(-zeta)))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", counts(X @ beta + effect[group]), obs=y)


def plates(x: Any, y: Any, batch: int | None = None) -> Any:
    return numpyro.plate("groups", NUM_GROUPS, subsample_size=batch)


def groups(x: jax.Array, y: jax.Array, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with plates(x, y, batch) as some:
        a = numpyro.sample("a", dist.Normal(mu, tau))
        logits = a[:, None] + x[some] @ beta
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y[some])


def simulated(_: Path) -> tuple:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_GROUPS, 5, 2))
    logits = -0.5 + x @ [1.0, -0.5] + rng.normal(0.0, 1.5, NUM_GROUPS)[:, None]
    return x, (rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)


def loglinear(_: Path) -> tuple:
    """The paper's recipe."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(100_000), rng.random((100_000, 49))])
    return X, rng.poisson(np.exp(X @ np.linspace(-1, 1, 50))).astype(float)


def toxicity(folder: Path) -> tuple:
    with np.load(folder / "logistic" / "qsar_oral_toxicity.npz") as packed:
        bits = np.unpackbits(packed["X_packed"], axis=1)[:, :1024].astype(float)
        return np.column_stack([np.ones(len(bits)), bits]), packed["y"].astype(float)


def digits(folder: Path) -> tuple:
    with np.load(folder / "images" / "mnist.npz") as data:
        count = lenet.NUM_DATA
        return data["x_train"][:count] / 255.0, data["y_train"][:count].astype(int)


def seizures(folder: Path) -> tuple:
    with np.load(folder / "glmm" / "designs" / "epilepsy1.npz") as data:
        y, X, group = (data[key] for key in ("y", "X", "group"))
    return y.astype(float), X, group.astype(int), int(group.max()) + 1


DENSE = ("diagonal", "covariance_cholesky")
CASES = {
    "loglinear": Case("7", partial(regression, counts), loglinear, DENSE, 2000, 5000),
    "german": Case("8", partial(regression, chances), POSTERIORS["german"].data, DENSE, 10_000),
    "toxicity": Case("8", partial(regression, chances), toxicity, DENSE[:1], 2000, 450),
    "MNIST": Case("9", network, digits, DENSE[:1], 1000, 128, 10),
    "epilepsy": Case("11", patients, seizures, ("sparse_precision", "RVB2"), 10_000),
    "groups": Case(
        *("", groups, simulated, ("sparse_precision",), 10_000, 100, 100, 2000),
        {"create_plates": plates, "init_scale": 1.0},
    ),
}


class Problem:
    """A case with its data, by one Gaussian."""

    def __init__(self, case: Case, folder: Path, gaussian: str) -> None:
        self.case, self.gaussian = case, gaussian
        data = case.data(folder)
        self.args = tuple(
            part
            if isinstance(part, int)
            else jnp.asarray(part, int if np.asarray(part).dtype.kind == "i" else float)
            for part in data
        )
        self.kwargs = {} if case.batch is None else {"batch": case.batch}

    def guide(self, method: str) -> Any:
        """The guide at the paper's start: zeros, or of a network the prior's median."""
        num_groups = [part for part in self.args if isinstance(part, int)]
        scale = (num_groups or [len(self.args[0])])[0] ** -0.5
        model: Any = self.case.model
        options: dict[str, Any] = {"init_scale": scale, **self.case.options}
        if model is not network and "create_plates" not in options:
            options["init_loc_fn"] = self.start()
        if method == "Adam":
            stock = autoguide.AutoDiagonalNormal
            if self.gaussian != "diagonal":
                stock = autoguide.AutoMultivariateNormal
            return stock(model, **options)
        if self.gaussian == "RVB2":
            return ReparametrizedGaussianGuide(model, **options)
        return NaturalGaussianGuide(model, self.gaussian, **options)

    def start(self) -> Any:
        traced = numpyro.handlers.trace(numpyro.handlers.seed(self.case.model, 0))
        sites = traced.get_trace(*self.args, **self.kwargs).items()
        latent = {k: s["value"] for k, s in sites if s["type"] == "sample" and not s["is_observed"]}
        return init_to_value(values={name: jnp.zeros_like(v) for name, v in latent.items()})

    def run(self, method: str, guide: Any, optimiser: Any, loss: Any, steps: int) -> Any:
        """The parameters at the end."""
        svi = SVI(self.case.model, guide, optimiser, loss)
        run = svi.run(jax.random.key(0), steps, *self.args, progress_bar=False, **self.kwargs)
        return jax.block_until_ready(run.params)

    def bound(self, guide: Any, params: Any) -> float:
        """A mean over fresh draws, of all rows."""
        loss = Trace_ELBO(self.case.num_draws)
        value = -loss.loss(jax.random.key(1), params, self.case.model, guide, *self.args)
        return float(value) if math.isfinite(value) else -math.inf


def rows(name: str, folder: Path, methods: list[str]) -> Iterator[dict[str, str]]:
    """The rows of a case."""
    case = CASES[name]
    for gaussian in case.gaussians:
        problem = Problem(case, folder, gaussian)
        for method in methods:
            if method not in ALONE and gaussian not in (METHODS[method].gaussians or (gaussian,)):
                continue
            begin = time.process_time()
            if method == "Adam" and ("create_plates" in case.options or gaussian == "RVB2"):
                continue  # which no stock guide is
            bound, rate, steps = best(problem, method)
            cells = {"table": case.table, "case": name, "Gaussian": gaussian, "method": method}
            cells |= {"rate": rate, "steps": steps, "bound": f"{bound:,.1f}"}
            yield cells | {"CPU s": f"{time.process_time() - begin:.0f}"}


def best(problem: Problem, method: str) -> tuple[float, str, str]:
    """The best bound of a method, its rate, and the number of its steps."""
    case = problem.case
    if method == "fit":
        family = {} if problem.gaussian == "RVB2" else {"family": problem.gaussian}
        result = fit(case.model, *problem.args, progress_bar=False, allow_prior=True, **family)
        return result.bound, "", f"{result.cost.gradients:,} gradients, {result.verdict}"
    if method == "BLR()":
        guide = problem.guide(method)
        params = problem.run(method, guide, BLR(), NaturalELBO(), case.newton)
        return problem.bound(guide, params), "", f"{case.newton:,}"
    found, optimiser = [], METHODS[method]
    for rate in optimiser.rates:
        guide = problem.guide(method)
        params = problem.run(method, guide, optimiser.optimiser(rate), optimiser.loss(), case.steps)
        found.append((problem.bound(guide, params), f"{rate}", f"{case.steps:,}"))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, *ALONE])
    options = parser.parse_args()
    about = "`python -m benchmarks papers --data-dir DIR`, seed 0, float32"
    about = f"{about}; CPU s of all rates tried, with compilation; {describe()}"
    for name in options.cases:
        for row in rows(name, options.data_dir, options.methods):
            print(row, flush=True)
            pages.replace("papers.csv", [row], about, ("case", "Gaussian", "method"))


if __name__ == "__main__":
    main()
