"""Tan's Table 8: logistic regressions, derivatives of first and of second order.

One draw a step on a minibatch, from ``mu = 0`` and ``C = I / sqrt(n)``, prior N(0, 10^2), constant
rates: the estimators of Theorem 2, with derivatives of the first order (``grad h z^T``) or of the
second, and squares of the rows' gradients for VOGN, all in closed form. The paper prints neither
its rates nor its number of steps: here all take the same number, and each of ours has the best of
the rates tried. Bounds are exact, by quadrature, of the last Gaussian, and so is the optimum.
``BLR()`` with ``NaturalELBO()`` and ``fit`` have the PPL's model and all rows, and no rates.

    python -m benchmarks tan_table8 --data-dir DIR [--data German] [--methods VOGN]

writes ``tan_table8.csv`` and ``tan_table8.png`` in ``docs/benchmarks``: rows that are asked for,
and keeps the others; and of the same runs Figure 7, the bound by epoch, ``tan_figure7.csv`` and
``tan_figure7.png``. ``DIR`` holds ``logistic/german_credit_design.csv.gz`` (1000 x 49, the column
``y`` besides) and ``logistic/qsar_oral_toxicity.npz`` (8992 x 1024 bits, packed).

Time: an hour. Data: logistic/{german_credit_design.csv.gz,qsar_oral_toxicity.npz}.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro.infer.initialization import init_to_value

from examples.demo.bound import ExactBound
from examples.machine import describe
from numpyro_ngvi import BLR, SVI, NaturalELBO, NaturalGaussianGuide, fit
from numpyro_ngvi.families import CovarianceCholesky, Diagonal

from . import pages
from .results import num_gradients
from .tan_methods import (
    LOST,
    RATES,
    best_rate,
    draw_curves,
    draw_gaps,
    gaps_at,
    marks_until,
    replace_curve,
    run,
)

PRIOR_SCALE = 10.0
#: Of ``BLR()``.
NEWTON_STEPS = {"Simulation": 30, "German": 30, "Toxicity": 20}
FAMILIES = {"diagonal": Diagonal, "full": CovarianceCholesky}
#: Rows of a minibatch, and passes over the data.
PROBLEMS = {
    "Simulation": (5000, 60),
    "German": (1000, 2000),
    "Toxicity": (562, 200),
}
#: Steps after which 0.999 has forgotten a start at n to within 1e-6 of it.
LONGER = 15_000
#: Where rows are many, Nagm diverges at the rates that suit German credit.
OWN_RATES = RATES | {"Nagm": (1e-2, 3e-2, *RATES["Nagm"])}
METHODS = (
    *(
        (name, order)
        for order in ("first", "second")
        for name in ("Adam", "PGA", "NAdam", "Snngm", "Nagm")
    ),
    ("VOGN", "rows' squares"),
    ("VOGN, auto", "rows' squares"),
    ("VOGN, longer", "rows' squares"),
    ("`BLR()`", "`NaturalELBO()`"),
    ("`fit`", ""),
)
PAPER = {
    ("Simulation", "diagonal"): (
        -22936, -21969, -23841, -21951, -21901, -22765, -21958, -22096, -21903, -21899, -21949,
    ),
    ("Simulation", "full"): (
        -71165, -22444, -150095, -30260, -22703, -22769, -21959, -67414, -21898, -21946, -21932,
    ),
    ("German", "diagonal"): (
        -683.7, -655.3, -658.3, -641.7, -640.4, -680.8, -655.6, -662.3, -641.3, -640.2, -640.0,
    ),
    ("German", "full"): (
        -677.2, -649.5, -650.4, -631.1, -633.0, -666.8, -639.2, -652.2, -625.6, -626.0, -626.7,
    ),
    ("Toxicity", "diagonal"): (
        -4538, -4524, -4516, -4274, -4321, -4531, -4518, -4512, -4226, -4302, -4361,
    ),
    ("Toxicity", "full"): (
        -15150, -32245, -219930, -6846, -7044, -5469, -3985, None, -3518, -3893, -3609,
    ),
}  # fmt: skip


def load(name: str, directory: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Design matrix with an intercept, and responses 0 or 1."""
    if name == "Simulation":
        rng = np.random.default_rng(seed)
        X = np.column_stack([np.ones(100_000), rng.standard_normal((100_000, 99))])
        probability = 1 / (1 + np.exp(-X @ np.linspace(-1, 1, 100)))
        return X, (rng.random(len(X)) < probability).astype(float)
    if name == "German":
        frame = pd.read_csv(directory / "logistic" / "german_credit_design.csv.gz")
        y = frame.pop("y").to_numpy(float)
        return frame.to_numpy(float), y
    with np.load(directory / "logistic" / "qsar_oral_toxicity.npz") as packed:
        bits = np.unpackbits(packed["X_packed"], axis=1)[:, :1024]
        return np.column_stack([np.ones(len(bits)), bits]), packed["y"].astype(float)


def estimator(order: str, num_rows: int) -> Any:
    """Of the bound's natural gradient, from one draw."""

    def estimate(q: Any, key: jax.Array, X: jax.Array, y: jax.Array) -> Any:
        weight, z = num_rows / len(y), jax.random.normal(key, (q.dim,))

        def log_density(theta: jax.Array) -> jax.Array:
            logits = X @ theta
            likelihood = weight * jnp.sum(y * logits - jax.nn.softplus(logits))
            return likelihood + jnp.sum(dist.Normal(0.0, PRIOR_SCALE).log_prob(theta))

        def h(q: Any, hooked: Any) -> jax.Array:
            theta = hooked.sample(z)
            return log_density(theta) - q.detach().log_prob(theta)

        if order == "first":
            return jax.grad(lambda q: h(q, q.precondition()))(q)
        theta = q.sample(z)
        chances = jax.nn.sigmoid(X @ theta)
        weights = (y - chances) ** 2 if order != "second" else chances * (1 - chances)
        if isinstance(q, Diagonal):
            curvature = weight * weights @ X**2 + PRIOR_SCALE**-2
        else:
            curvature = weight * (X.T * weights) @ X + PRIOR_SCALE**-2 * jnp.eye(q.dim)
        gradient = weight * (y - chances) @ X - theta / PRIOR_SCALE**2
        return q.bonnet_price(gradient, -curvature)

    return estimate


def model(X: jax.Array, y: jax.Array) -> None:
    weights = numpyro.sample("w", dist.Normal(0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)


def newton(family: str, X: jax.Array, y: jax.Array, seed: int, num_steps: int) -> list[Any]:
    """``BLR()`` with ``NaturalELBO()`` in this package's SVI, from the same start."""
    start = init_to_value(values={"w": jnp.zeros(X.shape[1])})
    guide = NaturalGaussianGuide(model, family, init_loc_fn=start, init_scale=len(y) ** -0.5)
    svi = SVI(model, guide, BLR(), NaturalELBO(), rng_key=jax.random.key(seed))
    found = []
    for step in range(num_steps):
        svi.step(X, y)
        if step + 1 in marks_until(num_steps):
            found.append(svi.params["auto_posterior"])
    return found


def column(
    name: str,
    family: str,
    data: tuple[np.ndarray, np.ndarray],
    methods: list[str],
    seed: int,
    passes_of_all: int | None = None,
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The rows of one of the table's columns, and of the figure's."""
    exact = ExactBound(*data, PRIOR_SCALE)
    best = exact.optimum(is_diagonal=family == "diagonal")[0]
    X, y = (jnp.asarray(part, jnp.float32) for part in data)
    batch, usual = PROBLEMS[name]
    usual = passes_of_all or usual
    num_batches = len(y) // batch

    def bound(q: Any) -> float:
        return exact.value(*(np.asarray(part, float) for part in (q.mean, q.covariance_matrix)))

    for (method, order), paper in zip_longest(METHODS, PAPER[name, family]):
        if method not in methods:
            continue
        passes = LONGER // num_batches if method == "VOGN, longer" else usual
        rate, steps, begin = "", f"{passes * num_batches:,}", time.process_time()
        marks = marks_until(passes)
        if method == "`BLR()`":
            steps, marks = f"{NEWTON_STEPS[name]}", marks_until(NEWTON_STEPS[name])
            curve = newton(family, X, y, seed, NEWTON_STEPS[name])
        elif method == "`fit`":
            key = jax.random.key(seed)
            result = fit(model, X, y, family=family, rng_key=key, progress_bar=False)
            curve, marks = [result.params["auto_posterior"]], []
            steps = f"{num_gradients(result):,} gradients"
            steps += "" if result.converged else ", not converged"
        else:
            start = FAMILIES[family]().initial(jnp.zeros(X.shape[1]), len(y) ** -0.5)
            args = start, estimator(order, len(y)), X, y, batch, marks, seed
            rate, curve, seconds = best_rate(
                method, lambda o, a=args: run(o, *a), lambda qs: bound(qs[-1]), OWN_RATES
            )
            begin = time.process_time() - seconds
        seconds = time.process_time() - begin
        bounds = [bound(q) for q in curve]
        value = bounds[-1]
        cells = {"data": name, "covariance": family, "method": method, "derivatives": order}
        curve_cells = cells | gaps_at(marks, [best - value for value in bounds])
        is_lost = not best - value < LOST  # or not a number
        cells |= {"rate": f"{rate}", "steps": steps}
        cells |= {"bound": "diverged" if is_lost else f"{value:.1f}"}
        cells |= {"below the optimum": "" if is_lost else f"{best - value:.2f}"}
        cells |= {"paper": "" if paper is None else f"{paper:.1f}"}
        # The paper's data are ours, but where they are simulated.
        other = "" if paper is None or name == "Simulation" else f"{best - paper:.1f}"
        yield cells | {"paper's gap": other, "CPU s": f"{seconds:.1f}"}, curve_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--covariances", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    names = list(dict.fromkeys(method for method, _ in METHODS))
    parser.add_argument("--methods", nargs="+", choices=names, default=names)
    parser.add_argument("--passes", type=int, help="over the data, in place of the problem's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = f"`python -m benchmarks tan_table8`, seed {options.seed}, float32"
    about = f"{about}; CPU s with compilation; {describe()}"
    of_figure = f"Nats below the optimum after so many passes; {about}"
    keys = ("data", "covariance", "method", "derivatives")
    for name in options.data:
        data = load(name, options.data_dir, options.seed)
        for family in options.covariances:
            own = options.methods, options.seed, options.passes
            for row, curve in column(name, family, data, *own):
                print(row, flush=True)
                pages.replace("tan_table8.csv", [row], about, keys)
                if len(curve) > len(keys):
                    replace_curve("tan_figure7.csv", curve, of_figure, keys)
    draw_gaps("tan_table8.csv", keys[:2], "tan_table8.png")
    draw_curves("tan_figure7.csv", keys[:2], "tan_figure7.png")


if __name__ == "__main__":
    main()
