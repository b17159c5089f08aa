"""Tan's Figure 3: Adam and Snngm on the intercept-only Poisson model of the horseshoe crabs.

The number of satellites of 173 female crabs, y_i ~ Poisson(exp(theta)), theta ~ N(0, 100).
The bound of q = N(mu, sigma^2) and its derivatives are known exactly, as for Table 2
(``tan_table2.py``). From the paper's three starting points, until the bound is within a thousandth
of a nat of its maximum (the paper does not print its rule), with a constant rate of 0.001, by which
Snngm's steps have the length 0.001 sqrt(2):

- the paper's: Adam on Euclidean gradients of (mu, sigma^2), Adam on natural ones, and Snngm;
- NAdam and Snngm of both packages in the coordinates (mu, C), which their guides have by default,
  and ``BLR()``.

And what the PPLs' SVI makes of it, without closed forms: the guide, Snngm with a rate that falls,
and Trace_ELBO with one draw a step, with ``log q`` differentiated as the PPLs do it and, "STL",
without its own parameters: the paper's estimator ``grad h``, whose noise vanishes at the optimum.

    python -m benchmarks tan_figure3 [--max-steps 5000]

writes ``tan_figure3.csv``, ``tan_figure3_svi.csv`` and ``tan_figure3.png`` in ``docs/benchmarks``.

Time: a minute. Data: none.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.machine import describe

from . import pages
from .families import named
from .horseshoe_crabs import crabs, design
from .tan_table2 import (
    PRIOR_VARIANCE,
    STARTS,
    Poisson,
    Run,
    blr,
    picture,
)

OPTIMUM = -499.46526713715
TOLERANCE = 1e-3
STEP_SIZE = 1e-3
EXACT_STEPS = 8000
MODEL = Poisson(design("1"), crabs()[2])

#: What is moved by which rule, and whether a panel shows it.
METHODS = (
    ("Adam, Euclidean", "Covariance", True),
    ("Adam, natural", "Covariance", True),
    ("Snngm", "Covariance", True),
    ("NAdam", "CovarianceCholesky", False),
    ("Snngm", "CovarianceCholesky", False),
)
COORDINATES = {"Covariance": "(mu, sigma²)", "CovarianceCholesky": "(mu, C)", "Precision": "lambda"}


def gap(mean: float, variance: float) -> float:
    """Nats below the optimum; NaN where there is no Gaussian."""
    if not variance > 0:
        return math.nan
    return OPTIMUM - MODEL.bound(np.array([mean]), np.array([[variance]]))


def until_it_is_there(path: np.ndarray) -> Run:
    """The part of a path of means and variances that leads within :data:`TOLERANCE`."""
    for step, (mean, variance) in enumerate(path):  # noqa: B007
        if not gap(mean, variance) > TOLERANCE:
            break
    states = [(np.array([m]), np.array([[v]])) for m, v in path[: step + 1]]
    return Run(states, None, OPTIMUM - gap(mean, variance))


def exact_numpyro(method: str, family: str, num_steps: int) -> list[Run]:
    import jax
    import jax.numpy as jnp
    import optax

    from numpyro_ngvi import Snngm
    from numpyro_ngvi.tracing.compilation import enable_x64

    from .baselines.in_numpyro import NAdam
    from .tan_methods import euclidean_adam

    rules = {"Adam, Euclidean": euclidean_adam, "Adam, natural": optax.adam}
    rule = (rules | {"NAdam": NAdam, "Snngm": Snngm})[method](STEP_SIZE)
    total, num = MODEL.y.sum(), len(MODEL.y)

    def step(carry: Any, _: None) -> Any:
        q, state = carry
        variance = q.covariance_matrix[0, 0]
        rate = num * jnp.exp(q.mean[0] + variance / 2)
        gradient = total - rate - q.mean / PRIOR_VARIANCE
        direction = q.bonnet_price(gradient, -jnp.reshape(rate + 1 / PRIOR_VARIANCE, (1, 1)))
        updates, state = rule.update(jax.tree.map(jnp.negative, direction), state, q)
        return (optax.apply_updates(q, updates), state), jnp.stack([q.mean[0], variance])

    @jax.jit
    def paths(mean: jax.Array, scale: jax.Array) -> jax.Array:
        q = named("numpyro", family)().initial(mean, scale)
        return jax.lax.scan(step, (q, rule.init(q)), length=num_steps)[1]

    with enable_x64(True):
        starts = [(jnp.array([mean]), math.sqrt(variance)) for mean, variance in STARTS]
        return [until_it_is_there(np.asarray(paths(*start))) for start in starts]


def exact_pyro(method: str, family: str, num_steps: int) -> list[Run]:
    import torch

    from pyro_ngvi.families.coordinates import Coordinate, mark
    from pyro_ngvi.optim.snngm import SnngmOptimizer

    from .baselines.in_pyro import NAdamOptimizer

    rule, runs = {"NAdam": NAdamOptimizer, "Snngm": SnngmOptimizer}[method], []
    for mean, variance in STARTS:
        mu = torch.tensor([mean], dtype=torch.float64)
        q = named("pyro", family)().initial(mu, math.sqrt(variance))
        for name, tensor in q.coordinates().items():
            mark(tensor, Coordinate(q.specification(), "q", name))
        optimiser, path = rule(q.coordinates().values(), lr=STEP_SIZE), []
        while len(path) < num_steps:
            moments = q.mean.numpy(), q.covariance_matrix.numpy()
            path.append((moments[0][0].item(), moments[1][0, 0].item()))
            if gap(*path[-1]) < TOLERANCE:
                break
            direction = q.bonnet_price(*map(torch.as_tensor, MODEL.derivatives(*moments)))
            for name, tensor in q.coordinates().items():
                tensor.grad = -getattr(direction, name)
            optimiser.step()
        runs.append(until_it_is_there(np.array(path)))
    return runs


def exact_blr() -> list[Run]:
    from numpyro_ngvi.tracing.compilation import enable_x64

    with enable_x64(True):
        found = [blr(MODEL, np.array([mean]), variance).states for mean, variance in STARTS]
        paths = [[(q.mean[0], q.covariance_matrix[0, 0]) for q in states] for states in found]
        return [until_it_is_there(np.array(path, float)) for path in paths]


def cells(method: str, family: str, package: str, runs: list[Run]) -> dict[str, str]:
    """A row: how many steps from each start."""
    row = {"method": method, "coordinates": COORDINATES[family], "package": package}
    for (mean, variance), run in zip(STARTS, runs, strict=True):
        steps = len(run.states) - 1
        found = f"{steps}" if OPTIMUM - run.bound < TOLERANCE else f"not in {steps + 1}"
        if math.isnan(run.bound):
            found = f"variance negative after {steps}"
        row[f"from ({mean:g}; {variance:g})"] = found
    return row


def figure_3(num_steps: int) -> None:
    """Of exact gradients: the CSV and the picture."""
    rows, drawn = [], {}
    for method, family, is_drawn in METHODS:
        runs = exact_numpyro(method, family, num_steps)
        rows.append(cells(method, family, "numpyro", runs))
        if is_drawn:
            drawn[method] = runs
        if not method.startswith("Adam"):
            pyro = exact_pyro(method, family, num_steps)
            rows.append(cells(method, family, "pyro", pyro))
    drawn["BLR()"] = exact_blr()
    rows.append(cells("`BLR()`", "Precision", "numpyro", drawn["BLR()"]))
    about = "`python -m benchmarks tan_figure3`, float64, no randomness"
    pages.write("tan_figure3.csv", rows, f"{about}; {describe()}")
    picture(MODEL, drawn, "tan_figure3.png", num_marks=12)


# -- without closed forms -------------------------------------------------------------------------


def schedule(max_steps: int) -> Callable:
    """Constant for half of the run, then linearly down to a thousandth."""
    return lambda step: STEP_SIZE * (1.001 - 1.0 * _clip((2 * step - max_steps) / max_steps))


def _clip(value):
    # Of an int in Pyro, of a traced array in NumPyro.
    return value.clip(0, 1) if hasattr(value, "clip") else min(max(value, 0), 1)


def svi_numpyro(
    loc: float, scale: float, max_steps: int, seed: int, stl: bool
) -> tuple[float, float]:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.initialization import init_to_value

    from numpyro_ngvi import SVI, NaturalGaussianGuide, Snngm

    def model(counts: jax.Array) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, math.sqrt(PRIOR_VARIANCE)))
        with numpyro.plate("crabs", len(counts)):
            numpyro.sample("y", dist.Poisson(jax.numpy.exp(theta)), obs=counts)

    guide = NaturalGaussianGuide(
        model,
        init_loc_fn=init_to_value(values={"theta": loc}),
        init_scale=scale,
        sticking_the_landing=stl,
    )
    svi = SVI(model, guide, Snngm(schedule(max_steps)), Trace_ELBO())
    result = svi.run(jax.random.key(seed), max_steps, MODEL.y, progress_bar=False)
    posterior = result.params["auto_posterior"]
    return float(posterior.loc[0]), float(posterior.stddev[0])


def svi_pyro(loc: float, scale: float, max_steps: int, seed: int, stl: bool) -> tuple[float, float]:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import init_to_value

    from pyro_ngvi import SVI, NaturalGaussianGuide, Snngm

    def model(counts: torch.Tensor) -> None:
        theta = pyro.sample("theta", dist.Normal(0.0, math.sqrt(PRIOR_VARIANCE)))
        with pyro.plate("crabs", len(counts)):
            pyro.sample("y", dist.Poisson(theta.exp()), obs=counts)

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    counts = torch.tensor(MODEL.y, dtype=torch.float)
    start = init_to_value(values={"theta": torch.tensor(loc)})
    guide = NaturalGaussianGuide(
        model, init_loc_fn=start, init_scale=scale, sticking_the_landing=stl
    )
    svi = SVI(model, guide, Snngm({"lr": schedule(max_steps)}), Trace_ELBO())
    for _ in range(max_steps):
        svi.step(counts)
    posterior = guide.get_posterior()
    return posterior.mean.item(), posterior.stddev.item()


def with_svi(max_steps: int, seed: int) -> None:
    """Of one draw a step: the CSV."""
    rows = []
    for name, stl in (("as the PPLs have it", False), ("STL", True)):
        for package, run in (("numpyro", svi_numpyro), ("pyro", svi_pyro)):
            row = {"estimator": name, "package": package}
            for mean, variance in STARTS:
                loc, scale = run(mean, math.sqrt(variance), max_steps, seed, stl)
                row[f"from ({mean:g}; {variance:g})"] = f"{gap(loc, scale**2):.4f}"
            rows.append(row)
    about = f"`python -m benchmarks tan_figure3 --max-steps {max_steps}`, seed {seed}"
    about = f"{about}; nats below the optimum after {max_steps:,} steps; {describe()}"
    pages.write("tan_figure3_svi.csv", rows, about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--exact-steps", type=int, default=EXACT_STEPS, help="at most")
    parser.add_argument("--max-steps", type=int, default=2000, help="of SVI")
    parser.add_argument("--seed", type=int, default=0, help="of SVI")
    options = parser.parse_args()
    figure_3(options.exact_steps)
    with_svi(options.max_steps, options.seed)


if __name__ == "__main__":
    main()
