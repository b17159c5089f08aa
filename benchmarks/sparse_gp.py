"""The inducing values of a sparse Gaussian process: ``BLR()`` and ``fit`` beside GPyTorch's NGD.

A Gaussian over the whitened values at 121 inducing points on a grid, of a function of two inputs
with an RBF kernel; the kernel, the points and the noise are fixed, so that the bound (Hensman et
al., 2013 and 2015) has one optimum: in closed form for normal noise, by Newton's iteration with
exact expectations for probit. GPyTorch has it as ``VariationalStrategy`` with ``NGD`` or, as stock
guides do, with Adam on a Cholesky factor; here it is a PPL's model, in which the conditional of the
function given the inducing values is integrated out: a constant where noise is normal, and the same
quadrature of 20 points as GPyTorch's for probit. All evaluate the kernel in every step, and have
all rows and double precision. One function of numpy scores every Gaussian.

    python -m benchmarks sparse_gp [--likelihoods probit] [--rows 2000]

writes ``sparse_gp.csv`` in ``docs/benchmarks``. Needs ``pip install 'ngvi[peers]'``. Each run is a
process of its own; seconds are of the processor, from data to Gaussian: compilation is in, imports
are not, nor what looking at a Gaussian takes.

Time: 10 minutes. Data: none; the extra peers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from examples.machine import describe

from . import pages
from .gauntlet.runs import moments

SIDE, LENGTH, NOISE, JITTER = 11, 0.2, 0.3, 1e-6
POINTS = 20  #: of a quadrature, GPyTorch's default
THERE = 0.01  #: nats below the optimum
LIMIT, MOST = 20.0, 2000  #: seconds of the processor, steps
RATES = {
    "ngvi BLR, NumPyro": (math.nan, 1.0),
    "ngvi BLR, Pyro": (math.nan, 1.0),
    "GPyTorch NGD": (1.0, 0.1),
    "GPyTorch Adam": (0.1, 0.03, 0.01),
}
IMPORTS = {
    "GPyTorch": ("gpytorch",),
    "NumPyro": ("numpyro.infer.autoguide", "numpyro_ngvi"),
    "Pyro": ("pyro.infer.autoguide", "pyro_ngvi"),
}


class Data:
    """Rows, and the inducing points."""

    def __init__(self, likelihood: str, rows: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.likelihood = likelihood
        self.x = rng.uniform(size=(rows, 2))
        ticks = (np.arange(SIDE) + 0.5) / SIDE
        self.points = np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)
        f = 2 * np.sin(6 * self.x[:, 0]) * np.cos(6 * self.x[:, 1])
        if likelihood == "normal":
            self.y = f + NOISE * rng.normal(size=rows)
        else:
            self.y = (rng.uniform(size=rows) < special.ndtr(f)).astype(float)


def projection(xp: Any, solve: Callable, x: Any, points: Any) -> tuple[Any, Any]:
    """What makes a row's function of the whitened values ``v``: mean ``A v``, variance given it."""

    def kernel(a: Any, b: Any) -> Any:
        return xp.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * LENGTH**2))

    root = xp.linalg.cholesky(kernel(points, points) + JITTER * xp.eye(len(points)))
    A = solve(root, kernel(points, x)).T
    return A, 1 + JITTER - (A**2).sum(-1)


# -- the bound, and its optimum -----------------------------------------------------------


class Exact:
    """The bound of a Gaussian over the whitened values, and the best one."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.A, self.variance = projection(np, np.linalg.solve, data.x, data.points)
        nodes, weights = np.polynomial.hermite.hermgauss(POINTS)
        self.nodes, self.weights = math.sqrt(2) * nodes, weights / math.sqrt(math.pi)
        self.optimum = self.bound(*self._best())

    def _terms(self, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of each row: the expected log likelihood, its slope, and minus its curvature."""
        A, y = self.A, self.data.y
        m, s2 = A @ mean, self.variance + np.einsum("ij,jk,ik->i", A, covariance, A)
        if self.data.likelihood == "normal":
            value = -((y - m) ** 2 + s2) / (2 * NOISE**2) - 0.5 * math.log(2 * math.pi * NOISE**2)
            return value, (y - m) / NOISE**2, np.full(len(y), NOISE**-2)
        sign = (2 * y - 1)[:, None]
        t = sign * (m[:, None] + np.sqrt(s2)[:, None] * self.nodes)
        log = special.log_ndtr(t)
        ratio = np.exp(-0.5 * t**2 - 0.5 * math.log(2 * math.pi) - log)
        of = (log, sign * ratio, ratio * (t + ratio))
        return tuple(part @ self.weights for part in of)

    def bound(self, mean: np.ndarray, factor: np.ndarray) -> float:
        """In nats, with all constants."""
        (value, *_), dim = self._terms(mean, factor @ factor.T), len(mean)
        log_det = 2 * np.log(np.abs(np.diag(factor))).sum()
        return value.sum() - 0.5 * (mean @ mean + (factor**2).sum() - dim - log_det)

    def _best(self) -> tuple[np.ndarray, np.ndarray]:
        """The iteration whose fixed point has no gradient left; one step where noise is normal."""
        mean, covariance = np.zeros(self.A.shape[1]), np.eye(self.A.shape[1])
        for _ in range(200):
            _, slope, curvature = self._terms(mean, covariance)
            new = np.linalg.inv(np.eye(len(mean)) + (self.A.T * curvature) @ self.A)
            step = new @ (self.A.T @ slope - mean)
            change = np.abs(step).max() + np.abs(new - covariance).max()
            mean, covariance = mean + step, new
            if change < 1e-11:
                return mean, np.linalg.cholesky(covariance)
        raise ArithmeticError("no fixed point in 200 steps")


# -- methods: after each step, how to look at the Gaussian ------------------------------------

Looks = Iterator[Callable[[], tuple[np.ndarray, np.ndarray]]]


def gpytorch(optimizer: str, data: Data, rate: float) -> Looks:
    import gpytorch
    import torch
    from gpytorch import variational

    torch.set_default_dtype(torch.float64)
    points = torch.tensor(data.points)
    kind = {
        "NGD": variational.NaturalVariationalDistribution,
        "Adam": variational.CholeskyVariationalDistribution,
    }[optimizer]

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(
                variational.VariationalStrategy(
                    self,
                    points,
                    kind(len(points)),
                    learn_inducing_locations=False,
                    jitter_val=JITTER,
                )
            )
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()
            self.covar_module.lengthscale = LENGTH

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Process()
    if data.likelihood == "normal":
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        likelihood.noise = NOISE**2
    else:
        likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    model.train(), likelihood.train()
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    parameters = model.variational_parameters()
    if optimizer == "NGD":
        steps = gpytorch.optim.NGD(parameters, num_data=len(y), lr=rate)
    else:
        steps = torch.optim.Adam(parameters, lr=rate)

    def look() -> tuple[np.ndarray, np.ndarray]:
        q = model.variational_strategy._variational_distribution()  # and not the kept one
        covariance = q.covariance_matrix.numpy(force=True)
        return q.mean.numpy(force=True), np.linalg.cholesky(covariance)

    while True:
        steps.zero_grad()
        loss = -bound(model(x), y)
        loss.backward()
        steps.step()
        yield look


def numpyro_model(x: Any, points: Any, y: Any, likelihood: str) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from jax.scipy.linalg import solve_triangular
    from jax.scipy.special import log_ndtr

    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([len(points)]).to_event(1))
    A, variance = projection(jnp, partial(solve_triangular, lower=True), x, points)
    with numpyro.plate("rows", len(y)):
        if likelihood == "normal":
            numpyro.sample("y", dist.Normal(A @ v, NOISE), obs=y)
            return
        nodes, weights = (jnp.asarray(part) for part in _quadrature())
        f = (A @ v)[:, None] + jnp.sqrt(variance)[:, None] * nodes
        numpyro.factor("y", log_ndtr((2 * y - 1)[:, None] * f) @ weights)


def pyro_model(x: Any, points: Any, y: Any, likelihood: str) -> None:
    import pyro
    import pyro.distributions as dist
    import torch

    v = pyro.sample("v", dist.Normal(torch.zeros(len(points)), 1.0).to_event(1))
    solve = partial(torch.linalg.solve_triangular, upper=False)
    A, variance = projection(torch, solve, x, points)
    f = v @ A.T  # draws may be a batch
    with pyro.plate("rows", len(y)):
        if likelihood == "normal":
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)
            return
        nodes, weights = (torch.as_tensor(part) for part in _quadrature())
        f = f[..., None] + variance.sqrt()[:, None] * nodes
        t = (2 * y - 1)[:, None] * f
        # torch.func has no batching rule for log_ndtr.
        pyro.factor("y", torch.log(0.5 * torch.erfc(-t / math.sqrt(2))) @ weights)


def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite.hermgauss(POINTS)
    return math.sqrt(2) * nodes, weights / math.sqrt(math.pi)


def numpyro_blr(data: Data, rate: float) -> Looks:
    import jax
    from numpyro.infer import SVI

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide

    args = (*map(jax.numpy.asarray, (data.x, data.points, data.y)), data.likelihood)
    guide = NaturalGaussianGuide(numpyro_model)
    rule = BLR() if math.isnan(rate) else BLR(rate)
    svi = SVI(numpyro_model, guide, rule, NaturalELBO())
    state = svi.init(jax.random.key(0), *args)
    update = jax.jit(lambda state, *arrays: svi.update(state, *arrays, data.likelihood)[0])

    def look() -> tuple[np.ndarray, np.ndarray]:
        return moments(guide.get_posterior(svi.get_params(state)), np.asarray)

    while True:
        state = jax.block_until_ready(update(state, *args[:-1]))
        yield look


def pyro_blr(data: Data, rate: float) -> Looks:
    import pyro
    import torch
    from pyro.infer import SVI

    from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    args = (*map(torch.as_tensor, (data.x, data.points, data.y)), data.likelihood)
    guide = NaturalGaussianGuide(pyro_model)
    rule = BLR() if math.isnan(rate) else BLR({"lr": rate})
    svi = SVI(pyro_model, guide, rule, NaturalELBO())
    while True:
        svi.step(*args)
        yield lambda: moments(guide.get_posterior(), lambda tensor: tensor.numpy(force=True))


def our_fit(ppl: str, data: Data, _: float) -> Looks:
    if ppl == "numpyro":
        import jax

        from numpyro_ngvi import fit

        arrays, numpy = jax.numpy.asarray, np.asarray
        model = numpyro_model
    else:
        import torch

        from pyro_ngvi import fit

        torch.set_default_dtype(torch.float64)
        arrays, numpy = torch.as_tensor, lambda tensor: tensor.numpy(force=True)
        model = pyro_model
    args = (*map(arrays, (data.x, data.points, data.y)), data.likelihood)
    result = fit(model, *args, progress_bar=False)
    yield lambda: moments(result.posterior, numpy)


METHODS: dict[str, Callable[[Data, float], Looks]] = {
    "ngvi fit, NumPyro": partial(our_fit, "numpyro"),
    "ngvi fit, Pyro": partial(our_fit, "pyro"),
    "ngvi BLR, NumPyro": numpyro_blr,
    "ngvi BLR, Pyro": pyro_blr,
    "GPyTorch NGD": partial(gpytorch, "NGD"),
    "GPyTorch Adam": partial(gpytorch, "Adam"),
}


def run(data: Data, method: str, rate: float) -> dict[str, Any]:
    """The row of one run, which ends when it is there, or not: steps and seconds till then."""
    exact = Exact(data)
    for part in method.split():
        for name in IMPORTS.get(part, ()):
            importlib.import_module(name)
    begin, paused, gap, steps, seconds = time.process_time(), 0.0, math.inf, 0, 0.0
    for steps, look in enumerate(METHODS[method](data, rate), 1):
        now = time.process_time()
        seconds = now - begin - paused
        try:
            gap = exact.optimum - exact.bound(*look())
        except (np.linalg.LinAlgError, ValueError):  # a covariance that rounding makes indefinite
            gap = math.nan
        paused += time.process_time() - now
        if gap <= THERE or seconds > LIMIT or steps == MOST:
            break
    is_there = gap <= THERE
    return {
        "likelihood": data.likelihood,
        "method": method,
        "rate": "" if math.isnan(rate) else f"{rate:g}",
        f"steps to {THERE} nats": f"{steps}" if is_there and "fit" not in method else "",
        f"seconds to {THERE} nats": f"{seconds:.2f}" if is_there else "",
        "nats below the optimum at the end": f"{gap:.2g}",
        "steps": "" if "fit" in method else f"{steps:,}",
        "seconds": f"{seconds:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--likelihoods", nargs="*", default=["normal", "probit"])
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # a process of its own
    options = parser.parse_args()
    if options.one:
        likelihood, method, rate = options.one
        import jax

        jax.config.update("jax_enable_x64", True)
        print(json.dumps(run(Data(likelihood, options.rows), method, float(rate))))
        return
    rows = []
    for likelihood in options.likelihoods:
        for method in options.methods:
            for rate in RATES.get(method, (math.nan,)):
                command = [sys.executable, "-m", __spec__.name, "--rows", str(options.rows)]
                command += ["--one", likelihood, method, str(rate)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                print(rows[-1], flush=True)
    about = (
        f"`python -m benchmarks sparse_gp`, {options.rows:,} rows, {SIDE * SIDE} inducing "
        f"points, data of seed 0, {LIMIT:g} s or {MOST:,} steps a run; {describe()}"
    )
    publish(rows, about)


def publish(rows: list[dict[str, Any]], about: str) -> None:
    """The rows that are there, with these, in the order of the methods."""
    name, keys = "sparse_gp.csv", ("likelihood", "method", "rate")
    old = pages.read(name) if (pages.FOLDER / name).exists() else []
    found = {tuple(row[key] for key in keys): row for row in [*old, *rows]}
    order = list(METHODS)
    pages.write(
        name,
        sorted(found.values(), key=lambda row: (row["likelihood"], order.index(row["method"]))),
        about,
    )


if __name__ == "__main__":
    main()
