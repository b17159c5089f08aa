"""Hierarchical models in NumPyro; none of them is scaled or centred for a Gaussian's sake."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


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


def rats(y: Any, days: Any) -> None:
    """Growth of each rat by a line of its own, in raw units."""
    mean = numpyro.sample("mean", dist.Normal(jnp.array([200.0, 5.0]), jnp.array([100.0, 10.0])))
    spread = numpyro.sample("spread", dist.HalfNormal(jnp.array([50.0, 5.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20.0))
    with numpyro.plate("rats", len(y)):
        a = numpyro.sample("a", dist.Normal(mean[0], spread[0]))
        b = numpyro.sample("b", dist.Normal(mean[1], spread[1]))
        line = a[:, None] + b[:, None] * (days - days.mean())
        numpyro.sample("y", dist.Normal(line, sigma).to_event(1), obs=y)


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


def _log_prior(theta: Any, omega: Any, r: int) -> Any:
    rows, columns = np.tril_indices(r)
    entries = jnp.where(rows == columns, jnp.exp(omega), omega)
    root = jnp.zeros((r, r)).at[rows, columns].set(entries)
    volume = jnp.sum(jnp.log(jnp.abs(jnp.diag(root)))) - 0.5 * r * math.log(2 * math.pi)
    return volume - 0.5 * jnp.sum((theta @ root) ** 2, -1)


def glmm(y: Any, X: Any, Z: Any, group: Any, likelihood: Callable) -> None:
    """Tan's section 8.5: effects ``N(0, (W W^T)^-1)``; all globals ``N(0, 100)``."""
    p, r, num = X.shape[1], Z.shape[1], int(group.max()) + 1
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([p]).to_event(1))
    omega = numpyro.sample("omega", dist.Normal(0.0, 10.0).expand([r * (r + 1) // 2]).to_event(1))
    with numpyro.plate("subjects", num):
        if r == 1:
            scale = jnp.exp(-omega)
            theta = numpyro.sample("theta", dist.Normal(0.0, scale).to_event(1))
        else:
            # A Wishart's root: W^T theta is standard normal.
            theta = numpyro.sample(
                "theta", dist.ImproperUniform(dist.constraints.real_vector, (), (r,))
            )
            numpyro.factor("prior", _log_prior(theta, omega, r))
    eta = X @ beta + jnp.sum(Z * theta[group], -1)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", likelihood(eta), obs=y)


def poisson(eta: Any) -> Any:
    return dist.Poisson(jnp.exp(eta))


def bernoulli(eta: Any) -> Any:
    return dist.Bernoulli(logits=eta)


#: Of the designs that :func:`benchmarks.glmm.data.load` reads.
LIKELIHOODS = {
    "epilepsy2": poisson,
    "toenail": bernoulli,
    "polypharmacy": bernoulli,
    "hers": bernoulli,
    "diabetes": bernoulli,
}
