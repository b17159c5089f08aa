"""The posteriors of :mod:`benchmarks.time_to_posterior`, in the words of Pyro and NumPyro at once.

Each has data and other data of the same shapes, as a loop over data sets has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gauntlet.models.later.changing import volatility
from benchmarks.gauntlet.models.ppl import Ppl
from benchmarks.peers.models import MODELS as OF_PEERS

Data = list[np.ndarray]


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


def non_centred(ppl: Any, y: Any, sigma: Any) -> None:
    """Eight schools, effects scaled by ``tau``."""
    mu = ppl.sample("mu", ppl.dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.dist.HalfCauchy(ppl.array(5.0)))
    with ppl.plate("schools", len(y)):
        raw = ppl.sample("raw", ppl.dist.Normal(ppl.array(0.0), 1.0))
        theta = ppl.deterministic("theta", mu + tau * raw)
        ppl.sample("y", ppl.dist.Normal(theta, sigma), obs=y)


def lotka_volterra(ppl: Any, y: Any) -> None:
    """Hares and lynxes of the Hudson Bay Company, 1900 to 1920 (d = 8; Howard, 2009)."""
    dist, np_ = ppl.dist, ppl.np
    typical = ppl.array(np.log([1.0, 0.05, 1.0, 0.05]))
    rates = ppl.sample("rates", dist.LogNormal(typical, 0.5).to_event(1))
    start = ppl.sample("start", dist.LogNormal(ppl.array(np.log([10.0, 10.0])), 1.0).to_event(1))
    sigma = ppl.sample("sigma", dist.LogNormal(ppl.array([-1.0, -1.0]), 1.0).to_event(1))

    def slope(s: Any) -> Any:
        hares, lynxes = np_.exp(s[0]), np_.exp(s[1])
        return np_.stack([rates[0] - rates[1] * lynxes, -rates[2] + rates[3] * hares])

    begin = np_.log(start)
    path = ppl.runge_kutta(slope, begin, 0.1, 10 * (y.shape[0] - 1))[9::10]
    path = np_.concatenate([begin[None], path])
    with ppl.plate("years", y.shape[0]):
        ppl.sample("y", dist.LogNormal(path, sigma).to_event(1), obs=y)


def process_counts(ppl: Any, x: Any, y: Any) -> None:
    """Counts whose log rate is a Gaussian process, standardised (d = 83)."""
    dist, np_ = ppl.dist, ppl.np
    mean = ppl.sample("mean", dist.Normal(0.0, 2.0))
    length = ppl.sample("length", dist.LogNormal(0.0, 0.5))
    amplitude = ppl.sample("amplitude", dist.HalfNormal(ppl.array(1.0)))
    white = ppl.normals("white", len(y))
    kernel = np_.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    root = np_.linalg.cholesky(kernel + 1e-5 * ppl.array(np.eye(len(y))))
    with ppl.plate("places", len(y)):
        ppl.sample("y", dist.Poisson(np_.exp(mean + amplitude * (root @ white))), obs=y)


def horseshoe(ppl: Any, X: Any, y: Any) -> None:
    """A hundred coefficients, of which five are not zero (d = 203; Carvalho et al., 2010)."""
    dist, size = ppl.dist, X.shape[1]
    intercept = ppl.sample("intercept", dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", dist.HalfCauchy(ppl.array(0.1)))
    sigma = ppl.sample("sigma", dist.HalfNormal(ppl.array(2.0)))
    width = ppl.sample("width", dist.HalfCauchy(ppl.array(1.0)).expand([size]).to_event(1))
    z = ppl.normals("z", size)
    w = ppl.deterministic("w", tau * width * z)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(intercept + X @ w, sigma), obs=y)


def media_mix(ppl: Any, spend: Any, sales: Any) -> None:
    """Twelve regions' sales by what was spent in four channels, which lasts (d = 81)."""
    dist, np_, one = ppl.dist, ppl.np, ppl.array(1.0)
    weeks, regions, channels = spend.shape
    retain = ppl.sample("retain", dist.Beta(3.0 * one, 3.0).expand([channels]).to_event(1))
    half = ppl.sample("half", dist.LogNormal(0.0, 0.5).expand([channels]).to_event(1))
    log_beta = ppl.normals("log_beta", channels, 1.0, -1.0)
    beta_sd = ppl.sample("beta_sd", dist.HalfNormal(0.5 * one).expand([channels]).to_event(1))
    base = ppl.sample("base", dist.Normal(3.0, 2.0))
    base_sd = ppl.sample("base_sd", dist.HalfNormal(one))
    fourier = ppl.normals("fourier", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(one))
    with ppl.plate("regions", regions):
        own_base = ppl.sample("own_base", dist.Normal(base, base_sd))
        z = ppl.sample("z", dist.Normal(0.0, one).expand([channels]).to_event(1))
    beta = np_.exp(log_beta + beta_sd * z)
    stock = _stock(ppl, spend, retain)
    angle = ppl.array(2 * np.pi * np.arange(weeks) / 52)
    season = fourier[0] * np_.sin(angle) + fourier[1] * np_.cos(angle)
    mean = own_base + season[:, None] + (beta * stock / (stock + half)).sum(-1)
    with ppl.plate("of_region", regions, dim=-1), ppl.plate("weeks", weeks, dim=-2):
        ppl.sample("sales", dist.Normal(mean, sigma), obs=sales)


def _stock(ppl: Any, spend: Any, retain: Any) -> Any:
    """What is left of earlier weeks' spending, and this week's."""
    if ppl.is_numpyro:
        import jax

        def step(stock: Any, now: Any) -> tuple[Any, Any]:
            return (stock := retain * stock + (1.0 - retain) * now), stock

        return jax.lax.scan(step, 0.0 * spend[0], spend)[1]
    stock, stocks = 0.0 * spend[0], []
    for now in spend:
        stocks.append(stock := retain * stock + (1.0 - retain) * now)
    return ppl.np.stack(stocks)


def weibull(ppl: Any, t: Any, group: Any, seen: Any) -> None:
    """Times of 2,500 rows in 100 groups with their own scale and shape, censored (d = 204)."""
    dist, np_, one = ppl.dist, ppl.np, ppl.array(1.0)
    mean_scale = ppl.sample("mean_scale", dist.Normal(4.0, 1.0))
    mean_shape = ppl.sample("mean_shape", dist.Normal(0.0, 1.0))
    sd_scale = ppl.sample("sd_scale", dist.HalfNormal(one))
    sd_shape = ppl.sample("sd_shape", dist.HalfNormal(one))
    with ppl.plate("groups", 100):
        z_scale = ppl.sample("z_scale", dist.Normal(0.0, one))
        z_shape = ppl.sample("z_shape", dist.Normal(0.0, one))
    scale, shape = mean_scale + sd_scale * z_scale, mean_shape + sd_shape * z_shape
    with ppl.plate("rows", len(t)):
        power = np_.exp(shape[group])
        u = np_.log(t) - scale[group]
        # The log density of what was seen, and of the others that it was later.
        seen_too = shape[group] + (power - 1.0) * u - scale[group]
        ppl.factor("time", seen * seen_too - np_.exp(power * u))


# -- data ------------------------------------------------------------------------------


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


def _of_peers(name: str) -> tuple[Callable, Callable]:
    return OF_PEERS[name]


NON_CENTRED = "eight schools, non-centred"
MODELS: dict[str, Row] = {
    "german": Row(*_of_peers("german"), _permuted, 1),
    "Lotka-Volterra": Row(lotka_volterra, _hares_and_lynxes, _scaled),
    "eight schools, centred": Row(*_of_peers("eight schools"), _noisy, 0, NON_CENTRED),
    NON_CENTRED: Row(non_centred, OF_PEERS["eight schools"][1], _noisy),
    "radon": Row(*_of_peers("radon"), _noisy),
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
