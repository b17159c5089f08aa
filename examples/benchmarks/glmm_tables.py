"""Hierarchical models: a Gaussian over all latents, and the reparametrised one (Tan, Table 11).

Each model is fitted by a Gaussian over all latents (GVA), by ``ReparametrizedGaussianGuide`` (RVB2,
or RVB1 by ``--methods RVB1``), and by ``fit`` with its defaults, which chooses (fit). The bounds
of the paper leave out the constant of the globals' N(0, 100) prior, p log 10 with p globals, and
log y! of counts: the column ``paper's`` adds them where the model is the paper's.

    python examples/benchmarks/glmm_tables.py --data-dir DIR [--models radon seeds] [--seeds 5]

``DIR`` holds ``glmm/designs/*.npz`` (``y``, ``X``, ``Z``, ``group``) and
``misc/radon_minnesota.csv``; models whose data are not there are left out.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from machine import describe

from numpyro_ngvi import ReparametrizedGaussianGuide, fit

#: Gelman et al., Bayesian Data Analysis, table 5.2.
SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)

#: Crowder (1978), as in the BUGS examples: germinated seeds, seeds, and the 2 x 2 design.
SEEDS = np.array(
    [
        (10, 39, 0, 0), (23, 62, 0, 0), (23, 81, 0, 0), (26, 51, 0, 0), (17, 39, 0, 0),
        (5, 6, 0, 1), (53, 74, 0, 1), (55, 72, 0, 1), (32, 51, 0, 1), (46, 79, 0, 1),
        (10, 13, 0, 1), (8, 16, 1, 0), (10, 30, 1, 0), (8, 28, 1, 0), (23, 45, 1, 0),
        (0, 4, 1, 0), (3, 12, 1, 1), (22, 41, 1, 1), (15, 30, 1, 1), (32, 51, 1, 1),
        (3, 7, 1, 1),
    ],
    float,
)  # fmt: skip


def eight_schools(y: Any, sigma: Any) -> None:
    """Centred: the effects are not scaled by ``tau``."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def funnel(num: int = 9) -> None:
    """Neal (2003), whose log evidence is zero."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    with numpyro.plate("elements", num):
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)))


def seeds(r: Any, n: Any, x1: Any, x2: Any) -> None:
    """Random-effects logistic regression of the germination of seeds."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("plates", len(r)):
        b = numpyro.sample("b", dist.Normal(0.0, sigma))
        eta = alpha[0] + alpha[1] * x1 + alpha[2] * x2 + alpha[3] * x1 * x2 + b
        numpyro.sample("r", dist.Binomial(n.astype(int), logits=eta), obs=r)


def radon(y: Any, floor: Any, county: Any, slopes: bool) -> None:
    """Varying intercepts, and slopes, of 85 counties; centred (Gelman and Hill, 2007)."""
    num = int(county.max()) + 1
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0).expand([1 + slopes]).to_event(1))
    with numpyro.plate("counties", num):
        mean = numpyro.sample("a", dist.Normal(mu[0], tau[0]))[county]
        slope = mu[1]
        if slopes:
            slope = numpyro.sample("b", dist.Normal(mu[1], tau[1]))[county]
    with numpyro.plate("homes", len(y)):
        numpyro.sample("y", dist.Normal(mean + slope * floor, sigma), obs=y)


def glmm(y: Any, X: Any, Z: Any, group: Any, likelihood: Callable) -> None:
    """Tan's section 8.5: effects ``N(0, (W W^T)^-1)``; all globals ``N(0, 100)``."""
    p, r, num = X.shape[1], Z.shape[1], int(group.max()) + 1
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([p]).to_event(1))
    omega = numpyro.sample("omega", dist.Normal(0.0, 10.0).expand([r * (r + 1) // 2]).to_event(1))
    rows, columns = np.tril_indices(r)
    entries = jnp.where(rows == columns, jnp.exp(omega), omega)
    root = jnp.zeros((r, r)).at[rows, columns].set(entries)
    with numpyro.plate("subjects", num):
        # A Wishart's root: W^T theta is standard normal.
        theta = numpyro.sample(
            "theta", dist.ImproperUniform(dist.constraints.real_vector, (), (r,))
        )
        white = theta @ root
        numpyro.factor(
            "prior",
            -0.5 * jnp.sum(white**2, -1)
            + jnp.sum(jnp.log(jnp.abs(jnp.diag(root))))
            - 0.5 * r * math.log(2 * math.pi),
        )
    eta = X @ beta + jnp.sum(Z * theta[group], -1)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", likelihood(eta), obs=y)


def _poisson(eta: Any) -> Any:
    return dist.Poisson(jnp.exp(eta))


def _bernoulli(eta: Any) -> Any:
    return dist.Bernoulli(logits=eta)


def _problems(data_dir: Path | None) -> dict[str, tuple[Callable, tuple, dict, float]]:
    """By name: model, arguments, keyword arguments, and the constant of the paper's bounds."""
    found: dict[str, tuple] = {
        "eight schools, centred": (eight_schools, SCHOOLS, {}, 0.0),
        "funnel": (funnel, (), {}, 0.0),
        "seeds": (seeds, tuple(SEEDS.T), {}, 0.0),
    }
    if data_dir is None:
        return found
    table = data_dir / "misc" / "radon_minnesota.csv"
    if table.exists():
        frame = pd.read_csv(table)
        homes = (frame.log_radon.to_numpy(), frame.basement.to_numpy(float))
        county = pd.factorize(frame.county)[0]
        for slopes, name in ((False, "radon, intercepts"), (True, "radon, slopes")):
            found[name] = (radon, (*homes, county), {"slopes": slopes}, 0.0)
    for name, likelihood in {
        "epilepsy2": _poisson,
        "toenail": _bernoulli,
        "polypharmacy": _bernoulli,
        "hers": _bernoulli,
    }.items():
        path = data_dir / "glmm" / "designs" / f"{name}.npz"
        if path.exists():
            with np.load(path) as design:
                args = tuple(design[key] for key in ("y", "X", "Z", "group"))
            p, r = args[1].shape[1], args[2].shape[1]
            constant = (p + r * (r + 1) // 2) * math.log(10.0)
            if likelihood is _poisson:  # whose log y! is left out as well
                constant += sum(math.lgamma(1.0 + count) for count in args[0])
            found[name] = (glmm, args, {"likelihood": likelihood}, constant)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models", nargs="*", help="whose names begin so; by default all")
    parser.add_argument("--methods", nargs="*", default=["GVA", "RVB2", "fit"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--float32", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", not options.float32)
    print(describe())
    header = ("model", "method", "seed", "bound", "+-", "paper's", "steps", "gradients")
    header = (*header, "products", "seconds", "CPU s", "k-hat", "")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for name, problem in _problems(options.data_dir).items():
        if options.models and not any(name.startswith(wanted) for wanted in options.models):
            continue
        for seed in range(options.seeds):
            for method in options.methods:
                print(_row(name, method, seed, *problem), flush=True)


def _row(
    name: str, method: str, seed: int, model: Callable, args: tuple, kwargs: dict, constant: float
) -> str:
    start, processor = time.perf_counter(), time.process_time()
    options: dict[str, Any] = {"progress_bar": False, "rng_key": jax.random.key(seed)}
    if method.startswith("RVB"):
        options["guide"] = ReparametrizedGaussianGuide(model, order=int(method[-1]))
    elif method == "GVA":
        options["reparametrize"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(model, *args, **options, **kwargs)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    audit = result.diagnostics
    cells = [
        name,
        f"{method} ({_kind(result.guide)})",
        str(seed),
        f"{result.bound:.3f}",
        f"{result.bound_error:.3f}" if hasattr(result, "bound_error") else "",
        f"{result.bound + constant:.1f}" if constant else "",
        str(result.num_steps),
        str(result.num_gradients),
        str(result.num_hessian_products),
        f"{seconds:.1f}",
        f"{processor:.1f}",
        f"{audit.pareto_k:.2f}",
        "" if result.converged else "not converged",
    ]
    return "| " + " | ".join(cells) + " |"


def _kind(guide: Any) -> str:
    """Family and kind of a guide."""
    is_by_modes = isinstance(guide, ReparametrizedGaussianGuide)
    return guide.family.name + ", by modes" * is_by_modes


if __name__ == "__main__":
    main()
