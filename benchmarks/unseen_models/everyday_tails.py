"""More posteriors that are no Gaussians: series, processes, shrinkage, curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from .everyday import codes, everyday, floats
from .everyday_skewed import standardised
from .registry import table


def _mtcars() -> tuple:
    d = table("datasets", "mtcars").select_dtypes("number")
    return standardised(d.drop(columns="mpg")), floats(d.mpg)


@everyday(_mtcars)
def horseshoe(ppl: Any, X, y):
    """A regularised horseshoe, 32 rows."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(20.0, 10.0))
    s = ppl.sample("s", dist.HalfNormal(5.0))
    tau = ppl.sample("tau", dist.HalfCauchy(0.5))
    c2 = ppl.sample("c2", dist.InverseGamma(2.0, 20.0))
    with ppl.plate("cols", X.shape[1]):
        lam = ppl.sample("lam", dist.HalfCauchy(1.0))
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
    b = z * tau * ppl.np.sqrt(c2 * lam**2 / (c2 + tau**2 * lam**2))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a + X @ b, s), obs=y)


def _marks() -> tuple:
    return (floats(table("AER", "MarkPound").iloc[:300, -1]),)


@everyday(_marks)
def garch(ppl: Any, y):
    """GARCH(1, 1)."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(0.0, 1.0))
    w = ppl.sample("w", dist.HalfNormal(0.5))
    a = ppl.sample("a", dist.Uniform(0.0, 1.0))
    rest = ppl.sample("r", dist.Uniform(0.0, 1.0))
    squares = (y - m) ** 2

    def scan(variance, square):
        new = w + a * square + rest * (1 - a) * variance
        return new, new

    variance = ((y - y.mean()) ** 2).mean()
    if ppl.is_numpyro:
        import jax

        variances = jax.lax.scan(scan, variance, squares[:-1])[1]
    else:
        found = []
        for square in squares[:-1]:
            variance, _ = scan(variance, square)
            found.append(variance)
        variances = ppl.np.stack(found)
    with ppl.plate("rows", len(y) - 1):
        ppl.sample("y", dist.Normal(m, ppl.np.sqrt(variances)), obs=y[1:])


def _cars() -> tuple:
    d = table("datasets", "cars")
    return floats(d.speed) + 1e-3 * np.arange(len(d)), floats(d.dist) / 25 - 1.7


@everyday(_cars)
def process(ppl: Any, x, y):
    """A Gaussian process, its hyperparameters."""
    dist = ppl.dist
    length = ppl.sample("l", dist.LogNormal(2.0, 1.0))
    a = ppl.sample("a", dist.HalfNormal(2.0))
    s = ppl.sample("s", dist.HalfNormal(1.0))
    kernel = a**2 * ppl.np.exp(-0.5 * (x[:, None] - x) ** 2 / length**2)
    kernel = kernel + (s**2 + 1e-6) * ppl.np.eye(len(x))
    ppl.sample("y", dist.MultivariateNormal(0 * x, covariance_matrix=kernel), obs=y)


def _bod() -> tuple:
    d = table("datasets", "BOD")
    return floats(d.Time), floats(d.demand)


@everyday(_bod)
def bod(ppl: Any, t, y):
    """A curve through six points."""
    dist = ppl.dist
    most = ppl.sample("A", dist.HalfNormal(50.0))
    k = ppl.sample("k", dist.HalfNormal(2.0))
    s = ppl.sample("s", dist.HalfCauchy(5.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(most * (1 - ppl.np.exp(-k * t)), s), obs=y)


def _lsat() -> tuple:
    return (table("psych", "lsat6").to_numpy(float)[:, -5:][2::5],)


@everyday(_lsat)
def responses(ppl: Any, y):
    """Item response with two parameters, 200 people."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(0.0, 2.0))
    sb = ppl.sample("sb", dist.HalfCauchy(2.0))
    with ppl.plate("items", 5, dim=-1):
        a = ppl.sample("disc", dist.LogNormal(0.0, 0.5))
        b = ppl.sample("b", dist.Normal(m, sb))
    with ppl.plate("people", len(y), dim=-2):
        theta = ppl.sample("th", dist.Normal(0.0, 1.0))
        with ppl.plate("answers", 5, dim=-1):
            ppl.sample("y", dist.Bernoulli(logits=a * theta + b), obs=y)


def _lynx() -> tuple:
    return (np.log10(floats(table("datasets", "lynx").value)),)


@everyday(_lynx)
def lynx(ppl: Any, y):
    """AR(2) with Student's t errors."""
    dist = ppl.dist
    c = ppl.sample("c", dist.Normal(0.0, 5.0))
    a1 = ppl.sample("a1", dist.Normal(0.0, 1.0))
    a2 = ppl.sample("a2", dist.Normal(0.0, 1.0))
    s = ppl.sample("s", dist.HalfNormal(1.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", dist.StudentT(nu, c + a1 * y[1:-1] + a2 * y[:-2], s), obs=y[2:])


def _crohn() -> tuple:
    d = table("robustbase", "CrohnD")
    return standardised(d[["BMI", "age"]]), floats(codes(d.sex)), codes(d.treat), floats(d.nrAdvE)


@everyday(_crohn)
def crohn(ppl: Any, X, sex, treatment, y):
    """Counts with an effect for each row."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(0.0, 3.0))
    bs = ppl.sample("bs", dist.Normal(0.0, 2.0))
    s = ppl.sample("s", dist.HalfCauchy(1.0))
    with ppl.plate("cols", 2):
        b = ppl.sample("b", dist.Normal(0.0, 2.0))
    with ppl.plate("treats", 3):
        g = ppl.sample("g", dist.Normal(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        u = ppl.sample("u", dist.Normal(0.0, s))
        rate = ppl.np.exp(a + X @ b + bs * sex + g[treatment] + u)
        ppl.sample("y", dist.Poisson(rate), obs=y)
