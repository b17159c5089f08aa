"""Leave-one-out by sites and by PSIS beside exact refits, on simulated data.

Each model is fitted, and its rows (or groups) are left out by ``result.loo()``. For up to 20 of
them, half of them those of the greatest leverage, the model is set up again without the row's data
and natural gradients are followed to the optimum (1e-8 nats): that posterior's log predictive
density is what both should give. All rows are left out once more by giving each the weight zero
and following natural gradients as far, for the total. ``cost`` is the CPU time of the first
``loo()``, when NumPyro compiles its programs, over that of the fit; what it finds is kept.
NumPyro's numbers are at NumPyro's own fit.

    python -m benchmarks leave_one_out [--ppl pyro] [--data separable]

writes ``leave_one_out.csv`` in ``docs/benchmarks``: rows that are asked for, and keeps the others.

Time: half an hour. Data: none.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from examples.machine import describe
from ngvi.estimators.nodes import PredictorCovariance
from ngvi.workflow.climb import climb, climb_all, polished
from ngvi.workflow.rows_result import known_target, of_rows
from tests.ppl import PPLS, load

from . import pages

NUM_REFITS, LEFT = 20, 1e-8
#: Draws for the densities of all rows, or groups, together: of eight groups 50,000 each.
NUM_DRAWS = 400_000


class Problem(NamedTuple):
    """A model, its data, and how data are made fewer.

    :param plate: whose elements are left out; None for rows.
    :param less: the arguments without a row, or group.
    """

    model: Callable
    args: tuple
    plate: str | None
    less: Callable[[int], tuple]


def _rows(model: Callable, *arrays: np.ndarray) -> Problem:
    def less(row: int) -> tuple:
        keep = np.arange(len(arrays[-1])) != row
        return tuple(array[keep] for array in arrays)

    return Problem(model, arrays, None, less)


def _beta(ppl: Any, count: int) -> Any:
    return ppl.sample("beta", ppl.dist.Normal(ppl.array(np.zeros(count)), 10.0).to_event(1))


def _glm(ppl: Any, response: Callable) -> Callable:
    def model(X, y):
        eta = X @ _beta(ppl, X.shape[1])
        with ppl.plate("rows", len(y)):
            ppl.sample("y", response(eta), obs=y)

    return model


def logistic(ppl: Any, rng: np.random.Generator, size: float = 1.0, n: int = 100, d: int = 5):
    X, beta = rng.normal(size=(n, d)), rng.normal(size=d) * size
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ beta))).astype(float)
    return _rows(_glm(ppl, lambda eta: ppl.dist.Bernoulli(logits=eta)), X, y)


def separable(ppl: Any, rng: np.random.Generator):
    return logistic(ppl, rng, 4.0, 60, 8)


def wide(ppl: Any, rng: np.random.Generator):
    return logistic(ppl, rng, 1.0, 120, 30)


def poisson(ppl: Any, rng: np.random.Generator, outlier: float | None = None):
    X = np.column_stack([np.ones(80), rng.normal(size=(80, 3))])
    y = rng.poisson(np.exp(X @ [0.5, 0.5, -0.3, 0.2])).astype(float)
    y[0] = y[0] if outlier is None else outlier
    return _rows(_glm(ppl, lambda eta: ppl.dist.Poisson(ppl.np.exp(eta))), X, y)


def outlying_count(ppl: Any, rng: np.random.Generator):
    return poisson(ppl, rng, 25.0)


def normal(ppl: Any, rng: np.random.Generator, outlier: float = 0.0):
    X = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    y = X @ [1.0, 0.5, -1.0] + 0.7 * rng.normal(size=40)
    y[3] += outlier

    def model(X, y):
        eta, sigma = X @ _beta(ppl, 3), ppl.sample("sigma", ppl.dist.HalfNormal(ppl.array(5.0)))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(eta, sigma), obs=y)

    return _rows(model, X, y)


def outlying_number(ppl: Any, rng: np.random.Generator):
    return normal(ppl, rng, 4.0)


def gaussian_process(ppl: Any, rng: np.random.Generator):
    x = np.sort(rng.uniform(0, 10, 40))
    kernel = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(40)
    root = np.linalg.cholesky(kernel)
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-root @ rng.normal(size=40)))).astype(float)

    def model(root, y):
        z = ppl.sample("z", ppl.dist.Normal(ppl.array(np.zeros(40)), 1.0).to_event(1))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=root @ z), obs=y)

    return _rows(model, root, y)


def _hierarchy(ppl: Any, rng: np.random.Generator, is_normal: bool, plate: str | None):
    groups, each = 8, 6
    group, effect = np.repeat(np.arange(groups), each), rng.normal(size=groups)
    noise, eta = rng.normal(size=groups * each), 0.5 + effect[group]
    y = eta + 0.8 * noise if is_normal else rng.poisson(np.exp(eta)).astype(float)
    log_normal = ppl.dist.LogNormal

    def model(group, y):
        dist, zero = ppl.dist, ppl.array(0.0)
        mu = ppl.sample("mu", dist.Normal(zero, 5.0))
        tau = ppl.sample("tau", log_normal(zero, 1.0))
        sigma = ppl.sample("sigma", log_normal(zero, 1.0)) if is_normal else None
        with ppl.plate("groups", groups):
            u = ppl.sample("u", dist.Normal(mu, tau))
        at = u[..., group]
        with ppl.plate("rows", len(y)):
            fn = dist.Normal(at, sigma) if is_normal else dist.Poisson(ppl.np.exp(at))
            ppl.sample("y", fn, obs=y)

    def less(left_out: int) -> tuple:
        by = np.arange(len(y)) if plate is None else group
        return group[by != left_out], y[by != left_out]

    return Problem(model, (group, y), plate, less)


def counts_over_time(ppl: Any, rng: np.random.Generator):
    t = np.linspace(0, 6, 50)
    root = np.linalg.cholesky(np.exp(-0.5 * (t[:, None] - t) ** 2) + 1e-6 * np.eye(50))
    y = rng.poisson(np.exp(1.0 + 0.7 * root @ rng.normal(size=50))).astype(float)

    def model(root, y):
        dist, zero = ppl.dist, ppl.array(0.0)
        mu = ppl.sample("mu", dist.Normal(zero, 2.0))
        z = ppl.sample("z", dist.Normal(ppl.array(np.zeros(50)), 1.0).to_event(1))
        with ppl.plate("times", len(y)):
            ppl.sample("y", dist.Poisson(ppl.np.exp(mu + 0.7 * root @ z)), obs=y)

    return _rows(model, root, y)


def hierarchy(ppl: Any, rng: np.random.Generator):
    return _hierarchy(ppl, rng, True, None)


def groups(ppl: Any, rng: np.random.Generator):
    return _hierarchy(ppl, rng, True, "groups")


def counts_in_groups(ppl: Any, rng: np.random.Generator):
    return _hierarchy(ppl, rng, False, "groups")


DATA = {
    one.__name__.replace("_", " "): one
    for one in (
        logistic,
        separable,
        wide,
        poisson,
        outlying_count,
        normal,
        outlying_number,
        gaussian_process,
        counts_over_time,
        hierarchy,
        groups,
        counts_in_groups,
    )
}


def refit(result: Any, problem: Problem, unit: int, args: tuple) -> float:
    """The log predictive density of a row, or group, under the posterior without its data."""
    with of_rows(result, problem.plate, "loo") as (known, units):
        whole, q, elements = known.target, known.q, units.elements(unit)
    fewer = result._with_fields(args=args)
    with fewer._ppl.running(fewer):
        steps = climb(known_target(fewer, "loo").target, q, 500, LEFT)
    return density(whole, steps.q, elements, units.count)


def density(whole: Any, q: Any, elements: np.ndarray, units: int) -> float:
    """The log predictive density of some elements together, one of so many units."""
    if whole.predictors is not None and len(elements) == 1:  # by quadrature
        own, num = whole.predictors.of(int(elements[0])), len(whole.weights)
        means, spreads = own.under(q)
        factor = PredictorCovariance.of([np.repeat(one, num, 0) for one in spreads], np).factor
        found = whole.predictors.log_mean(np.repeat(means, num, 1), factor)
        return float(found[elements[0]])
    noise = np.random.default_rng(1).standard_normal((NUM_DRAWS // 2 // units, q.dim))
    logs = whole.log_likelihood(q.sample(np.concatenate([noise, -noise])))[:, elements].sum(1)
    return float(np.logaddexp.reduce(logs) - np.log(len(logs)))


def all_exact(result: Any, problem: Problem) -> np.ndarray:
    """The same of all rows, or groups, by weights of zero."""
    with of_rows(result, problem.plate, "loo") as (known, units):
        whole, q = known.target, known.q
        weights = np.repeat(whole.weights[None], units.count, 0)
        for unit, own in enumerate(weights):
            own[units.elements(unit)] = 0.0
        steps = climb_all(whole, polished(whole, q), weights, 500, LEFT)
        count = units.count
        found = [density(whole, one.q, units.elements(u), count) for u, one in enumerate(steps)]
    return np.array(found)


def timed(run: Callable) -> tuple[Any, float]:
    """What it returns, and its CPU time."""
    start = time.process_time()
    return run(), time.process_time() - start


def compare(name: str, ppl: Any) -> dict[str, Any]:
    """One row of the CSV."""
    problem = DATA[name](ppl, np.random.default_rng(3))
    args = tuple(map(ppl.argument, problem.args))
    fitted, of_fit = timed(lambda: ppl.fit(problem.model, *args))
    found, of_loo = timed(lambda: fitted.loo(problem.plate))
    values = found.loo_i.values
    more = {key: found.loo_i.coords[key].values for key in ("leverage", "psis", "psis_k", "how")}
    total = all_exact(fitted, problem).sum()
    row = {
        "data": name,
        "ppl": ppl.name,
        "left out": problem.plate or "rows",
        "of": len(values),
        "k-hat > 0.7": int((more["psis_k"] > 0.7).sum()),
        "with steps": int((more["how"] == "steps").sum()),
        "elpd": f"{values.sum():.6f}",
        "exact": f"{total:.3f}",
        "se": f"{found.se:.2f}",
        "gap in se": f"{abs(values.sum() - total) / found.se:.3f}",
        "fit in s": f"{of_fit:.2f}",
        "loo in s": f"{of_loo:.2f}",
        "cost": f"{of_loo / of_fit:.2f}",
    }
    half = NUM_REFITS // 2
    some = np.argsort(-more["leverage"])[:half]
    rest = np.setdiff1d(np.arange(len(values)), some)
    others = np.random.default_rng(0).choice(rest, min(half, len(rest)), replace=False)
    some = np.concatenate([some, others])
    exact = np.array(
        [
            refit(fitted, problem, int(one), tuple(map(ppl.argument, problem.less(int(one)))))
            for one in (some if not ppl.is_numpyro else [])  # which would compile each anew
        ]
    )
    if not len(exact):
        return row
    by_sites, by_psis = values[some] - exact, more["psis"][some] - exact
    return {
        **row,
        "refits": len(some),
        "error of sites": f"{np.abs(by_sites).mean():.4f}",
        "its largest": f"{np.abs(by_sites).max():.3f}",
        "error of PSIS": f"{np.abs(by_psis).mean():.4f}",
        "PSIS's largest": f"{np.abs(by_psis).max():.3f}",
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ppl", choices=PPLS, action="append")
    parser.add_argument("--data", choices=list(DATA), action="append")
    arguments = parser.parse_args()
    import arviz.stats  # noqa: F401  which takes a second, once

    for name in arguments.data or DATA:
        for ppl in map(load, arguments.ppl or PPLS[::-1]):
            with ppl.float64(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = compare(name, ppl)
            print(row, flush=True)
            about = f"python -m benchmarks leave_one_out; seed 3; {describe()}"
            pages.replace("leave_one_out.csv", [row], about, ["data", "ppl"])


if __name__ == "__main__":
    main()
