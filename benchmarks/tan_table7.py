"""Tan's Table 7: the optimisers where no draws are needed, on a loglinear model.

Poisson regression of 10^5 rows by the paper's recipe: an intercept and covariates from U(0, 1),
coefficients evenly from -1 to 1, prior N(0, 10^2), minibatches of 5000, from mu = 0 and
C = I / sqrt(n). The bound and its derivatives are known in closed form, so that what differs is the
step, and the noise is that of the minibatches. The paper prints neither its data nor its rates nor
its number of epochs, so that gaps are compared, not bounds: ours to the exact optimum, the paper's
to the best of its column. ``BLR()`` has the same minibatches, or all rows; ``fit`` has the PPL's
model, gradients at draws and all rows; nothing of these two is tuned.

    python -m benchmarks tan_table7 [--covariances full] [--dims 50] [--methods VOGN]

writes ``tan_table7.csv`` and ``tan_table7.png`` in ``docs/benchmarks``: rows that are asked for,
and keeps the others; and of the same runs Figure 6, the bound by epoch, ``tan_figure6.csv`` and
``tan_figure6.png``.

Time: 20 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from examples.machine import describe
from numpyro_ngvi import BLR, fit
from numpyro_ngvi.families import CovarianceCholesky, Diagonal
from numpyro_ngvi.tracing.compilation import enable_x64

from . import pages
from .results import cost
from .tan_methods import (
    best_rate,
    draw_curves,
    draw_gaps,
    gaps_at,
    marks_until,
    replace_curve,
    run,
)
from .tan_table2 import PRIOR_VARIANCE, Poisson

NUM_ROWS, BATCH = 100_000, 5000
FULL_STEPS = 30
FAMILIES = {"diagonal": Diagonal, "full": CovarianceCholesky}
PAPER = {
    ("diagonal", 50): (-109491.4, -109198.6, -109568.6, -109114.5, -109063.8, -109118.4),
    ("diagonal", 100): (-119170.4, -115879.8, -125559.3, -115687.3, -115687.3, -115658.2),
    ("full", 50): (-109458.2, -109162.2, -121200.5, -109037.6, -109030.5, -109037.7),
    ("full", 100): (-119073.7, -115764.6, -377479.9, -115432.0, -115429.3, -115431.7),
}
#: The paper's first.
METHODS = (
    *("Adam", "PGA", "NAdam", "VOGN", "Snngm", "Nagm"),
    *("VOGN, auto", "`BLR()`", "`BLR()`, all rows", "`fit`"),
)
#: In float64: Adam's first steps leave a factor ``C`` with a condition of 1e4 and more, ``F`` with
#: the square of that, and of a natural gradient in float32 nothing is left when ``F`` makes a
#: Euclidean one of it. Their moving averages would remember that for thousands of steps.
DOUBLE = {("full", "Adam"), ("full", "PGA")}


def simulated(dim: int, seed: int) -> Poisson:
    """The paper's recipe."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(NUM_ROWS), rng.random((NUM_ROWS, dim - 1))])
    return Poisson(X, rng.poisson(np.exp(X @ np.linspace(-1, 1, dim))).astype(float))


def optimum(model: Poisson, is_diagonal: bool) -> float:
    """By the fixed point ``E[grad] = 0``, ``Sigma^-1 = -E[hess]`` (mean field: diagonal)."""
    dim = model.X.shape[1]
    mu, sigma = np.zeros(dim), np.zeros((dim, dim))
    best = -math.inf
    for _ in range(100):
        gradient, hessian = model.derivatives(mu, sigma)
        mu = mu - np.linalg.solve(hessian, gradient)
        precision = np.diag(-np.diag(hessian)) if is_diagonal else -hessian
        sigma = np.linalg.inv(precision)
        before, best = best, model.bound(mu, sigma)
        if abs(best - before) < 1e-7:
            break
    return best


def estimate(q: Any, _: jax.Array, X: jax.Array, y: jax.Array) -> Any:
    """The bound's natural gradient, exact but for the minibatch."""
    weight, is_diagonal = NUM_ROWS / len(y), isinstance(q, Diagonal)
    half = X * q.scale if is_diagonal else X @ q.scale_tril
    rates = jnp.exp(X @ q.loc + 0.5 * jnp.sum(half**2, 1))
    gradient = weight * (y - rates) @ X - q.loc / PRIOR_VARIANCE
    if is_diagonal:
        hessian = -weight * rates @ X**2 - 1 / PRIOR_VARIANCE
    else:
        hessian = -weight * (X.T * rates) @ X - jnp.eye(q.dim) / PRIOR_VARIANCE
    return q.bonnet_price(gradient, hessian)


def exact_bound(model: Poisson, q: Any) -> float:
    """In double precision, over all rows."""
    value = model.bound(*(np.asarray(x, float) for x in (q.mean, q.covariance_matrix)))
    return value if math.isfinite(value) else -math.inf


def fitted(model: Poisson, family: str, seed: int) -> Any:
    """``fit`` of the PPL's model."""

    def loglinear(X: jax.Array, y: jax.Array) -> None:
        prior = dist.Normal(0.0, math.sqrt(PRIOR_VARIANCE)).expand([X.shape[1]]).to_event(1)
        theta = numpyro.sample("theta", prior)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(jnp.exp(X @ theta)), obs=y)

    args = jnp.asarray(model.X, jnp.float32), jnp.asarray(model.y, jnp.float32)
    name = {"full": "covariance_cholesky"}.get(family, family)
    key = jax.random.key(seed)
    return fit(loglinear, *args, family=name, progress_bar=False, rng_key=key)


def column(
    family: str, dim: int, methods: list[str], epochs: int, seed: int
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The rows of one of the table's columns, and of the figure's."""
    model = simulated(dim, seed)
    best, paper = optimum(model, family == "diagonal"), PAPER[family, dim]

    def ascent(optimiser: Any, batch: int, passes: int) -> list[Any]:
        X, y = jnp.asarray(model.X, float), jnp.asarray(model.y, float)
        q = FAMILIES[family]().initial(jnp.zeros(dim), NUM_ROWS**-0.5)
        return run(optimiser, q, estimate, X, y, batch, marks_until(passes), seed)

    for name in methods:
        rate, passes, begin = "", epochs, time.process_time()
        if name == "`BLR()`":
            curve = ascent(BLR(), BATCH, passes)
        elif name == "`BLR()`, all rows":
            passes = FULL_STEPS
            curve = ascent(BLR(), NUM_ROWS, passes)
        elif name == "`fit`":
            result = fitted(model, family, seed)
            curve, passes = [result.params["auto_posterior"]], cost(result).gradients
        else:
            with enable_x64((family, name) in DOUBLE):
                rate, curve, seconds = best_rate(
                    name, lambda o: ascent(o, BATCH, epochs), lambda qs: exact_bound(model, qs[-1])
                )
            begin = time.process_time() - seconds
        seconds = time.process_time() - begin
        with enable_x64((family, name) in DOUBLE):
            bounds = [exact_bound(model, q) for q in curve]
        bound, of_paper = bounds[-1], dict(zip(METHODS, paper, strict=False)).get(name)
        cells = {"covariance": family, "d": str(dim), "method": name}
        marks = [] if name == "`fit`" else marks_until(passes)
        curve_cells = cells | gaps_at(marks, [best - bound for bound in bounds])
        cells |= {"rate": f"{rate}", "passes": f"{passes:,}", "bound": f"{bound:.1f}"}
        cells |= {"below the optimum": f"{best - bound:.2f}"}
        cells |= {"paper": "" if of_paper is None else f"{of_paper:.1f}"}
        cells |= {"paper's gap": "" if of_paper is None else f"{max(paper) - of_paper:.1f}"}
        yield cells | {"CPU s": f"{seconds:.1f}"}, curve_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--covariances", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--dims", type=int, nargs="+", choices=(50, 100), default=[50, 100])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = f"`python -m benchmarks tan_table7`, data and fits of seed {options.seed}"
    about = f"{about}, float32, Adam and PGA with full covariance float64"
    about = f"{about}; CPU s with compilation; {describe()}"
    of_figure = f"Nats below the optimum after so many passes; {about}"
    keys = ("covariance", "d", "method")
    for family in options.covariances:
        for dim in options.dims:
            for row, curve in column(family, dim, options.methods, options.epochs, options.seed):
                print(row, flush=True)
                pages.replace("tan_table7.csv", [row], about, keys)
                if len(curve) > len(keys):
                    replace_curve("tan_figure6.csv", curve, of_figure, keys)
    draw_gaps("tan_table7.csv", keys[:2], "tan_table7.png")
    draw_curves("tan_figure6.csv", keys[:2], "tan_figure6.png")


if __name__ == "__main__":
    main()
