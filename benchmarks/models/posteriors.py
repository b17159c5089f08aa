"""Posteriors of data that others know: what a posterior costs in time, gradients and draws.

Each has data and other data of the same shapes, as a loop over data sets has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .later_changing import volatility
from .ppl import Ppl

SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


class Row(NamedTuple):
    """A posterior of the table."""

    model: Callable[..., None]
    data: Callable[[Path], tuple]
    #: What the second data set has in the place of the response, and where that is.
    other: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    response: int = 0
    reference: str = ""  #: the row whose chains tell the moments, if not its own


# -- responses of second data sets -----------------------------------------------------


def _permuted(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    return rng.permutation(y)


def _noisy(rng: np.random.Generator, y: np.ndarray, scale: float = 0.3) -> np.ndarray:
    return y + scale * rng.normal(size=y.shape)


def _scaled(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    return y * np.exp(0.1 * rng.normal(size=y.shape))


def _counted(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    return rng.poisson(y + 0.5).astype(float)


# -- models ----------------------------------------------------------------------------


def non_centred(ppl, y, sigma):
    """Eight schools, effects scaled by ``tau``."""
    mu = ppl.sample("mu", ppl.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.HalfCauchy(ppl.array(5.0)))
    with ppl.plate("schools", len(y)):
        raw = ppl.sample("raw", ppl.Normal(ppl.array(0.0), 1.0))
        theta = ppl.deterministic("theta", mu + tau * raw)
        ppl.sample("y", ppl.Normal(theta, sigma), obs=y)


def lotka_volterra(ppl, y):
    """Hares and lynxes of the Hudson Bay Company, 1900 to 1920 (d = 8; Howard, 2009)."""
    typical = ppl.array(np.log([1.0, 0.05, 1.0, 0.05]))
    rates = ppl.sample("rates", ppl.LogNormal(typical, 0.5).to_event(1))
    start = ppl.sample("start", ppl.LogNormal(ppl.array(np.log([10.0, 10.0])), 1.0).to_event(1))
    sigma = ppl.sample("sigma", ppl.LogNormal(ppl.array([-1.0, -1.0]), 1.0).to_event(1))

    def slope(s: Any) -> Any:
        hares, lynxes = ppl.exp(s[0]), ppl.exp(s[1])
        return ppl.stack([rates[0] - rates[1] * lynxes, -rates[2] + rates[3] * hares])

    begin = ppl.log(start)
    path = ppl.runge_kutta(slope, begin, 0.1, 10 * (y.shape[0] - 1))[9::10]
    path = ppl.concatenate([begin[None], path])
    with ppl.plate("years", y.shape[0]):
        ppl.sample("y", ppl.LogNormal(path, sigma).to_event(1), obs=y)


def process_counts(ppl, x, y):
    """Counts whose log rate is a Gaussian process, standardised (d = 83)."""
    mean = ppl.sample("mean", ppl.Normal(0.0, 2.0))
    length = ppl.sample("length", ppl.LogNormal(0.0, 0.5))
    amplitude = ppl.sample("amplitude", ppl.HalfNormal(ppl.array(1.0)))
    white = ppl.normals("white", len(y))
    kernel = ppl.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    root = ppl.linalg.cholesky(kernel + 1e-5 * ppl.array(np.eye(len(y))))
    ppl.rows(ppl.Poisson(ppl.exp(mean + amplitude * (root @ white))), y, "places")


def horseshoe(ppl, X, y):
    """A hundred coefficients, of which five are not zero (d = 203; Carvalho et al., 2010)."""
    size = X.shape[1]
    intercept = ppl.sample("intercept", ppl.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.HalfCauchy(ppl.array(0.1)))
    sigma = ppl.sample("sigma", ppl.HalfNormal(ppl.array(2.0)))
    width = ppl.sample("width", ppl.HalfCauchy(ppl.array(1.0)).expand([size]).to_event(1))
    z = ppl.normals("z", size)
    w = ppl.deterministic("w", tau * width * z)
    ppl.rows(ppl.Normal(intercept + X @ w, sigma), y)


def media_mix(ppl, spend, sales):
    """Twelve regions' sales by what was spent in four channels, which lasts (d = 81)."""
    one = ppl.array(1.0)
    weeks, regions, channels = spend.shape
    retain = ppl.sample("retain", ppl.Beta(3.0 * one, 3.0).expand([channels]).to_event(1))
    half = ppl.sample("half", ppl.LogNormal(0.0, 0.5).expand([channels]).to_event(1))
    log_beta = ppl.normals("log_beta", channels, 1.0, -1.0)
    beta_sd = ppl.sample("beta_sd", ppl.HalfNormal(0.5 * one).expand([channels]).to_event(1))
    base = ppl.sample("base", ppl.Normal(3.0, 2.0))
    base_sd = ppl.sample("base_sd", ppl.HalfNormal(one))
    fourier = ppl.normals("fourier", 2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(one))
    with ppl.plate("regions", regions):
        own_base = ppl.sample("own_base", ppl.Normal(base, base_sd))
        z = ppl.sample("z", ppl.Normal(0.0, one).expand([channels]).to_event(1))
    beta = ppl.exp(log_beta + beta_sd * z)
    stock = _stock(ppl, spend, retain)
    angle = ppl.array(2 * np.pi * np.arange(weeks) / 52)
    season = fourier[0] * ppl.sin(angle) + fourier[1] * ppl.cos(angle)
    mean = own_base + season[:, None] + (beta * stock / (stock + half)).sum(-1)
    with ppl.plate("of_region", regions, dim=-1), ppl.plate("weeks", weeks, dim=-2):
        ppl.sample("sales", ppl.Normal(mean, sigma), obs=sales)


def _stock(ppl, spend, retain):
    """What is left of earlier weeks' spending, and this week's."""
    if ppl.is_numpyro:
        import jax

        def step(stock: Any, now: Any) -> tuple[Any, Any]:
            return (stock := retain * stock + (1.0 - retain) * now), stock

        return jax.lax.scan(step, 0.0 * spend[0], spend)[1]
    stock, stocks = 0.0 * spend[0], []
    for now in spend:
        stocks.append(stock := retain * stock + (1.0 - retain) * now)
    return ppl.stack(stocks)


def weibull(ppl, t, group, seen):
    """Times of 2,500 rows in 100 groups with their own scale and shape, censored (d = 204)."""
    one = ppl.array(1.0)
    mean_scale = ppl.sample("mean_scale", ppl.Normal(4.0, 1.0))
    mean_shape = ppl.sample("mean_shape", ppl.Normal(0.0, 1.0))
    sd_scale = ppl.sample("sd_scale", ppl.HalfNormal(one))
    sd_shape = ppl.sample("sd_shape", ppl.HalfNormal(one))
    with ppl.plate("groups", 100):
        z_scale = ppl.sample("z_scale", ppl.Normal(0.0, one))
        z_shape = ppl.sample("z_shape", ppl.Normal(0.0, one))
    scale, shape = mean_scale + sd_scale * z_scale, mean_shape + sd_shape * z_shape
    with ppl.plate("rows", len(t)):
        power = ppl.exp(shape[group])
        u = ppl.log(t) - scale[group]
        # The log density of what was seen, and of the others that it was later.
        seen_too = shape[group] + (power - 1.0) * u - scale[group]
        ppl.factor("time", seen * seen_too - ppl.exp(power * u))


def german(ppl, X, y):
    """Logistic regression; by toxicity's rows too (d = 49 and 1025)."""
    w = ppl.normals("w", X.shape[1], 10.0)
    ppl.rows(ppl.Bernoulli(logits=X @ w), y)


def eight_schools(ppl, y, sigma):
    """Centred: the effects are not scaled by ``tau`` (d = 10)."""
    mu = ppl.sample("mu", ppl.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.HalfCauchy(ppl.array(5.0)))
    with ppl.plate("schools", len(y)):
        theta = ppl.sample("theta", ppl.Normal(mu, tau))
        ppl.sample("y", ppl.Normal(theta, sigma), obs=y)


def radon(ppl, y, floor, county):
    """Intercepts and slopes of 85 counties, centred (d = 175; Gelman and Hill, 2007)."""
    mu = ppl.normals("mu", 2, 10.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(ppl.array(5.0)))
    tau_a = ppl.sample("tau_a", ppl.HalfNormal(ppl.array(5.0)))
    tau_b = ppl.sample("tau_b", ppl.HalfNormal(ppl.array(5.0)))
    with ppl.plate("counties", 85):
        a = ppl.sample("a", ppl.Normal(mu[..., 0], tau_a))
        b = ppl.sample("b", ppl.Normal(mu[..., 1], tau_b))
    ppl.rows(ppl.Normal(a[county] + b[county] * floor, sigma), y, "homes")


# -- data ------------------------------------------------------------------------------


def _schools(_: Path) -> tuple:
    return SCHOOLS, ERRORS


def _hares_and_lynxes(_: Path) -> tuple:
    hares = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 "
    hares += "14.6 16.2 24.7"
    lynxes = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 "
    lynxes += "8.6"
    return (np.array([hares.split(), lynxes.split()], float).T,)


def _returns(_: Path) -> tuple:
    rng, level = np.random.default_rng(3811), np.zeros(80)
    for t in range(1, 80):
        level[t] = 0.95 * level[t - 1] + 0.25 * rng.normal()
    return (0.01 * np.exp(level / 2) * rng.normal(size=80),)


def _places(_: Path) -> tuple:
    rng, x = np.random.default_rng(83), np.linspace(0.0, 8.0, 80)
    return x, rng.poisson(np.exp(1.0 + np.sin(1.5 * x) + 0.1 * x)).astype(float)


def _sparse(_: Path) -> tuple:
    rng = np.random.default_rng(203)
    X, w = rng.normal(size=(100, 100)), np.zeros(100)
    w[:5] = [3.0, -2.0, 2.0, 1.5, -1.0]
    return X, 1.0 + X @ w + rng.normal(size=100)


def _spends(_: Path) -> tuple:
    rng, (weeks, regions, channels) = np.random.default_rng(3), (104, 12, 4)
    shape = (weeks, regions, channels)
    spend = rng.gamma(1.5, 1.0, shape) * (rng.random(shape) < 0.7)
    retain, half = np.array([0.7, 0.1, 0.4, 0.5]), np.array([1.5, 0.8, 1.0, 2.0])
    stock, last = np.zeros(shape), np.zeros((regions, channels))
    for week in range(weeks):
        stock[week] = last = retain * last + (1 - retain) * spend[week]
    beta = np.array([0.5, 0.9, 0.3, 0.15]) * np.exp(0.3 * rng.normal(size=(regions, channels)))
    base, angle = 3 + 0.4 * rng.normal(size=regions), 2 * np.pi * np.arange(weeks) / 52
    season = 0.3 * np.sin(angle) + 0.1 * np.cos(angle)
    mean = base + season[:, None] + (beta * stock / (stock + half)).sum(-1)
    return spend, mean + 0.2 * rng.normal(size=(weeks, regions))


def _times(_: Path) -> tuple:
    rng = np.random.default_rng(99)
    group = rng.integers(0, 100, 2500)
    scale, shape = np.exp(rng.normal(4.0, 0.4, 100)), np.exp(rng.normal(0.3, 0.25, 100))
    t, limit = scale[group] * rng.weibull(shape[group]), rng.uniform(20, 120, 2500)
    return np.minimum(t, limit), group, (t <= limit).astype(float)


def _radon(folder: Path) -> tuple:
    frame = pd.read_csv(folder / "misc" / "radon_minnesota.csv")
    return (
        frame.log_radon.to_numpy(),
        frame.basement.to_numpy(float),
        pd.factorize(frame.county)[0],
    )


def _german(folder: Path) -> tuple:
    frame = pd.read_csv(folder / "logistic" / "german_credit_design.csv.gz")
    y = frame.pop("y").to_numpy(float)
    return frame.to_numpy(float), y


NON_CENTRED = "eight schools, non-centred"
MODELS: dict[str, Row] = {
    "german": Row(german, _german, _permuted, 1),
    "Lotka-Volterra": Row(lotka_volterra, _hares_and_lynxes, _scaled),
    "eight schools, centred": Row(eight_schools, _schools, _noisy, 0, NON_CENTRED),
    NON_CENTRED: Row(non_centred, _schools, _noisy),
    "radon": Row(radon, _radon, _noisy),
    "stochastic volatility": Row(volatility, _returns, _scaled),
    "process of counts": Row(process_counts, _places, _counted, 1),
    "horseshoe": Row(horseshoe, _sparse, _noisy, 1),
    "media mix": Row(media_mix, _spends, partial(_noisy, scale=0.1), 1),
    "Weibull, censored": Row(weibull, _times, _scaled),
}


def model_of(name: str, ppl_name: str, folder: Path, second: bool = False) -> tuple:
    """Model and arguments; a second data set is the first with other responses."""
    row, ppl = MODELS[name], Ppl(ppl_name)
    data = list(row.data(folder))
    if second:
        data[row.response] = row.other(np.random.default_rng(1), np.asarray(data[row.response]))
    return partial(row.model, ppl), tuple(map(ppl.array, data))
