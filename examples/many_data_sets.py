"""``fit`` in a plain loop over many data sets: calibration, a bootstrap, cross-validation.

- ``calibration``: parameters are drawn from the prior and data given these; the rank of each
  parameter among posterior draws is uniform if the posterior is right (Talts et al., 2018). In
  NumPyro the first fit compiles, and those of the other data sets compile nothing.
- ``bootstrap``: the posterior means of rows that are drawn anew, with replacement.
- ``folds``: K-fold cross-validation. Each fit goes on from that of all rows, ``init=result``.

The model is a regression with errors of Student's t, whose scale is unknown.

    pip install '.[examples]'
    python -m examples.many_data_sets calibration --ppl numpyro --count 1000 --picture ranks.png
    python -m examples.many_data_sets bootstrap --ppl pyro
    python -m examples.many_data_sets folds --ppl numpyro pyro

A calibration of 1,000 data sets takes some seven minutes of one processor in NumPyro.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAMES = ("intercept", "slope", "scale")
#: Rows of a data set, degrees of freedom of its errors, posterior draws that a rank is among.
ROWS, FREEDOM, DRAWS = 30, 5.0, 99


class Ppl(NamedTuple):
    """What the two spell differently."""

    model: Callable
    fit: Callable
    array: Callable[[np.ndarray], Any]
    #: The log density of some rows at draws, summed over the rows and averaged over the draws.
    expected: Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], float]


def ppl(name: str) -> Ppl:
    """By its name."""
    library, dist = importlib.import_module(name), importlib.import_module(f"{name}.distributions")
    fit = importlib.import_module(f"{name}_ngvi").fit
    if name == "numpyro":
        import jax.numpy as jnp

        array = jnp.asarray
    else:
        import torch

        def array(values: np.ndarray) -> Any:
            return torch.tensor(values, dtype=torch.get_default_dtype())

    def model(x: Any, y: Any) -> None:
        one = array(np.array(1.0))
        intercept = library.sample("intercept", dist.Normal(0.0 * one, one))
        slope = library.sample("slope", dist.Normal(0.0 * one, one))
        scale = library.sample("scale", dist.LogNormal(0.0 * one, 0.5 * one))
        with library.plate("rows", len(x)):
            mean = intercept + slope * x
            library.sample("y", dist.StudentT(FREEDOM, mean, scale), obs=y)

    def expected(draws: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
        from scipy.stats import t

        mean = draws["intercept"][:, None] + draws["slope"][:, None] * x
        density = t.logpdf(y, FREEDOM, mean, draws["scale"][:, None])
        return float(np.logaddexp.reduce(density, 0).sum() - len(y) * np.log(len(density)))

    return Ppl(model, fit, array, expected)


def simulated(rng: np.random.Generator, rows: int = ROWS) -> tuple[np.ndarray, ...]:
    """Parameters from the prior, and data given these."""
    truth = np.array([*rng.normal(size=2), np.exp(0.5 * rng.normal())])
    x = rng.normal(size=rows)
    return truth, x, truth[0] + truth[1] * x + truth[2] * rng.standard_t(FREEDOM, rows)


def fitted(own: Ppl, x: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    """The posterior of one data set; nobody asks for other optima of a regression."""
    run = own.array(x), own.array(y)
    return own.fit(own.model, *run, effort="quick", progress_bar=False, **options)


def draws_of(result: Any, count: int = DRAWS) -> dict[str, np.ndarray]:
    """Of the model's posterior, not of the Gaussian alone."""
    found = result.with_draws("corrected").sample(count)
    return {name: np.asarray(found[name], float) for name in NAMES}


def calibration(own: Ppl, count: int, seed: int = 0) -> np.ndarray:
    """Ranks of the true parameters among the draws, shape ``(count, 3)``, from 0 to 99."""
    rng, ranks = np.random.default_rng(seed), []
    for _ in range(count):
        truth, x, y = simulated(rng)
        draws = draws_of(fitted(own, x, y))
        ranks.append([(draws[name] < one).sum() for name, one in zip(NAMES, truth, strict=True)])
    return np.array(ranks)


def uniformity(ranks: np.ndarray, bins: int = 20) -> np.ndarray:
    """By parameter, the probability of counts as uneven as these if ranks are uniform."""
    from scipy.stats import chisquare

    edges = np.linspace(0, DRAWS + 1, bins + 1)
    return np.array([chisquare(np.histogram(column, edges)[0]).pvalue for column in ranks.T])


def bootstrap(own: Ppl, count: int, seed: int = 0) -> np.ndarray:
    """Posterior means of rows that are drawn anew, shape ``(count, 3)``."""
    rng = np.random.default_rng(seed)
    _, x, y = simulated(rng, 100)
    means = []
    for _ in range(count):
        rows = rng.integers(len(x), size=len(x))
        draws = draws_of(fitted(own, x[rows], y[rows]), 500)
        means.append([draws[name].mean() for name in NAMES])
    return np.array(means)


def folds(own: Ppl, count: int, seed: int = 0) -> np.ndarray:
    """The log predictive density of each fold given the others, in nats."""
    rng = np.random.default_rng(seed)
    _, x, y = simulated(rng, 100)
    whole, fold_of = fitted(own, x, y), rng.permutation(len(x)) % count
    found = []
    for fold in range(count):
        left = fold_of == fold
        result = fitted(own, x[~left], y[~left], init=whole)
        found.append(own.expected(draws_of(result, 500), x[left], y[left]))
    return np.array(found)


def draw(ranks: np.ndarray, path: Path, bins: int = 20) -> None:
    """Histograms of ranks, with what 99 % of bins are within if they are uniform."""
    import matplotlib.pyplot as plt
    from scipy.stats import binom

    figure, axes = plt.subplots(1, len(NAMES), figsize=(9, 2.6), sharey=True, layout="constrained")
    low, high = binom.ppf([0.005, 0.995], len(ranks), 1 / bins)
    for axis, name, column in zip(axes, NAMES, ranks.T, strict=True):
        axis.axhspan(low, high, color="0.88")
        axis.hist(column, np.linspace(0, DRAWS + 1, bins + 1), color="C0")
        axis.set(title=name, xlabel="rank")
    axes[0].set_ylabel(f"of {len(ranks)} data sets")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("calibration", "bootstrap", "folds"))
    parser.add_argument("--ppl", nargs="+", default=["numpyro"], choices=("numpyro", "pyro"))
    parser.add_argument("--count", type=int, help="data sets, or folds")
    parser.add_argument("--picture", type=Path, help="of the ranks")
    options = parser.parse_args()
    count = options.count or {"calibration": 1000, "bootstrap": 100, "folds": 10}[options.what]
    for name in options.ppl:
        start = time.process_time()
        found = globals()[options.what](ppl(name), count)
        print(f"{name}: {time.process_time() - start:.1f} s of CPU for {count}")
        if options.what == "calibration":
            print(
                "  p-value of uniform ranks:",
                {name: f"{p:.3f}" for name, p in zip(NAMES, uniformity(found), strict=True)},
            )
            if options.picture:
                draw(found, options.picture)
        elif options.what == "bootstrap":
            print("  standard errors:", ", ".join(f"{sd:.3f}" for sd in found.std(0)))
        else:
            print(f"  log predictive density: {found.sum():.2f} nats")


if __name__ == "__main__":
    main()
