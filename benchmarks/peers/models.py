"""The models, in the words of Pyro and NumPyro at once, and in PyMC's.

Unconstrained scales are the same in all three: logarithms of what is positive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import tan_table8
from benchmarks.cold_start import ERRORS, SCHOOLS
from benchmarks.gauntlet.models.ppl import Ppl
from benchmarks.gauntlet.models.registry import Entry

PRIOR_SCALE = 10.0


def german(ppl: Ppl, X: Any, y: Any) -> None:
    """Logistic regression; by toxicity's rows too (d = 49 and 1025)."""
    w = ppl.normals("w", X.shape[1], PRIOR_SCALE)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Bernoulli(logits=X @ w), obs=y)


def eight_schools(ppl: Ppl, y: Any, sigma: Any) -> None:
    """Centred: the effects are not scaled by ``tau`` (d = 10)."""
    mu = ppl.sample("mu", ppl.dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.dist.HalfCauchy(ppl.array(5.0)))
    with ppl.plate("schools", len(y)):
        theta = ppl.sample("theta", ppl.dist.Normal(mu, tau))
        ppl.sample("y", ppl.dist.Normal(theta, sigma), obs=y)


def radon(ppl: Ppl, y: Any, floor: Any, county: Any) -> None:
    """Intercepts and slopes of 85 counties, centred (d = 175; Gelman and Hill, 2007)."""
    mu = ppl.normals("mu", 2, 10.0)
    sigma = ppl.sample("sigma", ppl.dist.HalfNormal(ppl.array(5.0)))
    tau_a = ppl.sample("tau_a", ppl.dist.HalfNormal(ppl.array(5.0)))
    tau_b = ppl.sample("tau_b", ppl.dist.HalfNormal(ppl.array(5.0)))
    with ppl.plate("counties", 85):
        a = ppl.sample("a", ppl.dist.Normal(mu[..., 0], tau_a))
        b = ppl.sample("b", ppl.dist.Normal(mu[..., 1], tau_b))
    with ppl.plate("homes", len(y)):
        ppl.sample("y", ppl.dist.Normal(a[county] + b[county] * floor, sigma), obs=y)


def epilepsy(ppl: Ppl, y: Any, X: Any, slope: Any, patient: Any) -> None:
    """Counts of seizures; an intercept and a slope of each of 59 patients, ``N(0, (W W^T)^-1)``
    (d = 127; Tan, section 8.5).
    """
    beta = ppl.normals("beta", X.shape[1], PRIOR_SCALE)
    omega = ppl.normals("omega", 3, PRIOR_SCALE)
    with ppl.plate("patients", 59):
        # A Wishart's root: W^T (a, b) is standard normal.
        b = ppl.sample("b", ppl.dist.Normal(0.0, ppl.np.exp(-omega[2])))
        mean = -omega[1] * b * ppl.np.exp(-omega[0])
        a = ppl.sample("a", ppl.dist.Normal(mean, ppl.np.exp(-omega[0])))
    eta = X @ beta + a[patient] + b[patient] * slope
    with ppl.plate("visits", len(y)):
        ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(eta)), obs=y)


def in_pymc(name: str, data: tuple) -> Any:
    """The same as a PyMC model."""
    import pymc as pm

    exp = pm.math.exp
    with pm.Model() as model:
        if name in ("german", "toxicity"):
            X, y = data
            w = pm.Normal("w", 0.0, PRIOR_SCALE, shape=X.shape[1])
            pm.Bernoulli("y", logit_p=pm.math.dot(X, w), observed=y)
        elif name == "eight schools":
            y, sigma = data
            mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
            pm.Normal("y", pm.Normal("theta", mu, tau, shape=len(y)), sigma, observed=y)
        elif name == "radon":
            y, floor, county = data
            mu, sigma = pm.Normal("mu", 0.0, 10.0, shape=2), pm.HalfNormal("sigma", 5.0)
            tau_a, tau_b = pm.HalfNormal("tau_a", 5.0), pm.HalfNormal("tau_b", 5.0)
            a = pm.Normal("a", mu[0], tau_a, shape=85)
            b = pm.Normal("b", mu[1], tau_b, shape=85)
            pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y)
        else:
            y, X, slope, patient = data
            beta = pm.Normal("beta", 0.0, PRIOR_SCALE, shape=X.shape[1])
            omega = pm.Normal("omega", 0.0, PRIOR_SCALE, shape=3)
            b = pm.Normal("b", 0.0, exp(-omega[2]), shape=59)
            a = pm.Normal("a", -omega[1] * b * exp(-omega[0]), exp(-omega[0]), shape=59)
            eta = pm.math.dot(X, beta) + a[patient] + b[patient] * slope
            pm.Poisson("y", exp(eta), observed=y)
    return model


def _radon(folder: Path) -> tuple:
    frame = pd.read_csv(folder / "misc" / "radon_minnesota.csv")
    return (
        frame.log_radon.to_numpy(),
        frame.basement.to_numpy(float),
        pd.factorize(frame.county)[0],
    )


def _epilepsy(folder: Path) -> tuple:
    with np.load(folder / "glmm" / "designs" / "epilepsy2.npz") as design:
        y, X, Z, patient = (design[key] for key in ("y", "X", "Z", "group"))
    if Z.shape[1] != 2 or not np.all(Z[:, 0] == 1.0):
        raise ValueError("epilepsy2.npz has no intercept and slope for each patient")
    return y.astype(float), X, Z[:, 1], patient.astype(int)


MODELS: dict[str, tuple[Callable, Callable[[Path], tuple]]] = {
    "eight schools": (eight_schools, lambda _: (SCHOOLS, ERRORS)),
    "german": (german, partial(tan_table8.load, "German", seed=0)),
    "epilepsy": (epilepsy, _epilepsy),
    "radon": (radon, _radon),
    "toxicity": (german, partial(tan_table8.load, "Toxicity", seed=0)),
}


def entry(name: str, folder: Path) -> Entry:
    """A model with its data."""
    function, read = MODELS[name]
    return Entry(f"peers/{name}", function, lambda: read(folder))
