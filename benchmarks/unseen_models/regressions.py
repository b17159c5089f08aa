"""Regressions with real data: raw scales, counts, ratings, shares, limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import (
    labels,
    log_negative_binomial,
    log_sigmoid,
    new,
    numbers,
    real,
    scaled,
    sigmoid,
    special,
    table,
    with_ones,
)


def _houses() -> tuple:
    t = table("AER", "HousePrices").iloc[::2]
    X = numbers(t, "lotsize", "bedrooms", "bathrooms", "stories", "garage")
    return np.column_stack([X, t["aircon"] == "yes"]).astype(float), numbers(t, "price")[:, 0]


@real(_houses, "raw")
def house_prices(ppl: Any, X: Any, y: Any) -> None:
    """Dollars by square feet and rooms."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 5e4))
    slopes = ppl.normals("slopes", 6, 1e4)
    sigma = ppl.sample("sigma", dist.HalfNormal(5e4))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(start + X @ slopes, sigma), obs=y)


def _spending() -> tuple:
    t = table("sandwich", "PublicSchools").dropna()
    return numbers(t, "Income")[:, 0], numbers(t, "Expenditure")[:, 0]


@real(_spending, "raw")
def school_spending(ppl: Any, x: Any, y: Any) -> None:
    """Dollars for a pupil by dollars of income; both the mean and the width are lines."""
    dist, np = ppl.dist, ppl.np
    start = ppl.sample("start", dist.Normal(0.0, 500.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 1.0))
    width = ppl.sample("width", dist.Normal(4.0, 2.0))
    widening = ppl.sample("widening", dist.Normal(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        sigma = np.exp(width + widening * (x - 7500.0) / 1000)
        ppl.sample("y", dist.Normal(start + slope * x, sigma), obs=y)


def _crime() -> tuple:
    t = table("MASS", "UScrime")
    return scaled(t.drop(columns=["rownames", "y"])), numbers(t, "y")[:, 0]


@real(_crime, "tails")
def crime_horseshoe(ppl: Any, X: Any, y: Any) -> None:
    """Fifteen inputs of 47 states, most of them shrunk."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(900.0, 500.0))
    tau = ppl.sample("tau", dist.HalfCauchy(0.2))
    local = ppl.sample("local", dist.HalfCauchy(1.0).expand([15]).to_event(1))
    z = ppl.normals("z", 15)
    sigma = ppl.sample("sigma", dist.HalfNormal(500.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(start + sigma * tau * (X @ (local * z)), sigma), obs=y)


def _work() -> tuple:
    t = table("carData", "Womenlf")
    X = np.column_stack([t["hincome"], t["children"] == "present"]).astype(float)
    return with_ones(X), labels(t["region"]), labels(t["partic"])


@new(_work)
def womens_work(ppl: Any, X: Any, region: Any, y: Any) -> None:
    """Full time, none or part time: thousands of dollars, children, five regions."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 6, 2.0).reshape((3, 2))
    tau = ppl.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with ppl.plate("regions", 5):
        own = ppl.sample("own", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    eta = X @ beta + tau * own[region]
    logits = np.stack([0 * eta[:, 0], eta[:, 0], eta[:, 1]], -1)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Categorical(logits=logits), obs=y)


def _affairs() -> tuple:
    t = table("AER", "Affairs")
    X = numbers(t, "age", "yearsmarried", "religiousness", "occupation", "rating")
    X = with_ones(np.column_stack([X, t["gender"] == "male"]))
    y = numbers(t, "affairs")[:, 0]
    return X[y == 0], X[y > 0], y[y > 0]


@real(_affairs)
def affairs_tobit(ppl: Any, X_zero: Any, X: Any, y: Any) -> None:
    """Of 601 people 451 are at the limit, zero."""
    dist = ppl.dist
    beta = ppl.normals("beta", 7, 10.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(20.0))
    ppl.factor("zeros", special(ppl).log_ndtr(-(X_zero @ beta) / sigma).sum())
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _trips() -> tuple:
    t = table("AER", "RecreationDemand").iloc[::2]
    X = np.column_stack([t["quality"], t["ski"] == "yes", t["income"]]).astype(float)
    cost = numbers(t, "costC", "costS", "costH") / 100
    X, y = with_ones(np.column_stack([X, cost])), numbers(t, "trips")[:, 0]
    return X[:, :4], (y > 0).astype(float), X[y > 0], y[y > 0]


@real(_trips)
def trips_hurdle(ppl: Any, X_any: Any, some: Any, X: Any, y: Any) -> None:
    """Whether to go to a lake at all, and then how often: a truncated negative binomial."""
    dist, np = ppl.dist, ppl.np
    gate = ppl.normals("gate", 4, 2.0)
    beta = ppl.normals("beta", 7, 2.0)
    phi = ppl.sample("phi", dist.LogNormal(0.0, 1.0))
    with ppl.plate("all", len(some)):
        ppl.sample("some", dist.Bernoulli(logits=X_any @ gate), obs=some)
    mean = np.exp(X @ beta)
    above_zero = np.log(-np.expm1(-phi * np.log1p(mean / phi)))
    terms = log_negative_binomial(ppl, phi, mean, y) - above_zero
    ppl.factor("trips", terms.sum())


def _gasoline() -> tuple:
    t = table("betareg", "GasolineYield")
    return numbers(t, "temp")[:, 0], labels(t["batch"]), numbers(t, "yield")[:, 0]


@real(_gasoline, "raw")
def gasoline_yield(ppl: Any, degrees: Any, batch: Any, y: Any) -> None:
    """A beta regression: shares of gasoline by degrees Fahrenheit, ten batches of crude oil."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 10.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 0.1))
    tau = ppl.sample("tau", dist.HalfNormal(2.0))
    phi = ppl.sample("phi", dist.Gamma(2.0, 0.01))
    with ppl.plate("batches", 10):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    mean = 1e-4 + 0.9998 * sigmoid(ppl, start + slope * degrees + own[batch])
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Beta(mean * phi, (1 - mean) * phi), obs=y)


def _ratings() -> tuple:
    t = table("ordinal", "wine")
    X = np.column_stack([t["temp"] == "warm", t["contact"] == "yes"]).astype(float)
    return X, labels(t["judge"]), labels(t["rating"])


@real(_ratings, "groups")
def wine_ratings(ppl: Any, X: Any, judge: Any, y: Any) -> None:
    """Bitterness of wines in five ordered grades, by nine judges."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.Normal(0.0, 5.0))
    gaps = ppl.sample("gaps", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    beta = ppl.normals("beta", 2, 3.0)
    tau = ppl.sample("tau", dist.HalfNormal(2.0))
    with ppl.plate("judges", 9):
        own = ppl.sample("own", dist.Normal(0.0, 1.0))
    eta = X @ beta + tau * own[judge]
    cuts = first + np.stack([0 * first, gaps[0], gaps[0] + gaps[1], gaps.sum()])
    below = sigmoid(ppl, cuts - eta[:, None])
    zero = 0 * eta[:, None]
    below = np.concatenate([zero, below, 1 + zero], 1)
    probs = below[:, 1:] - below[:, :-1] + 1e-6
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Categorical(probs=probs / probs.sum(-1)[:, None]), obs=y)


def _weights() -> tuple:
    t = table("carData", "Davis").dropna().iloc[:60]
    return numbers(t, "weight")[:, 0], numbers(t, "repwt")[:, 0]


@real(_weights, "groups")
def reported_weights(ppl: Any, measured: Any, reported: Any) -> None:
    """True weights of sixty people, measured and told with error; one row is mixed up."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(65.0, 20.0))
    tau = ppl.sample("tau", dist.HalfNormal(20.0))
    bias = ppl.sample("bias", dist.Normal(0.0, 10.0))
    slope = ppl.sample("slope", dist.Normal(1.0, 0.3))
    errors = ppl.sample("errors", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    with ppl.plate("people", len(measured)):
        true = ppl.sample("true", dist.Normal(mu, tau))
        ppl.sample("measured", dist.StudentT(3.0, true, errors[0]), obs=measured)
        told = bias + slope * true
        ppl.sample("reported", dist.StudentT(3.0, told, errors[1]), obs=reported)


def _exhaust() -> tuple:
    t = table("lattice", "ethanol")
    E, C, y = (numbers(t, name)[:, 0] for name in ("E", "C", "NOx"))
    knots = np.linspace(E.min(), E.max(), 12)
    width = knots[1] - knots[0]
    B = np.exp(-0.5 * ((E[:, None] - knots) / width) ** 2)
    return B, C, y


@real(_exhaust)
def exhaust_spline(ppl: Any, B: Any, C: Any, y: Any) -> None:
    """Nitrogen oxides along twelve bumps whose heights walk, and a line of the compression."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.Normal(0.0, 2.0))
    tau = ppl.sample("tau", dist.HalfNormal(2.0))
    steps = ppl.normals("steps", 11)
    slope = ppl.sample("slope", dist.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    walk = first + tau * np.cumsum(np.concatenate([0 * steps[:1], steps]), 0)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(B @ walk + slope * (C - 12.0) / 5, sigma), obs=y)


def _roots() -> tuple:
    t = table("drc", "ryegrass")
    return numbers(t, "conc")[:, 0], numbers(t, "rootl")[:, 0]


@real(_roots, "ridge")
def ryegrass(ppl: Any, dose: Any, y: Any) -> None:
    """Lengths of roots fall with a herbicide's dose between two limits."""
    dist, np = ppl.dist, ppl.np
    top = ppl.sample("top", dist.Normal(8.0, 4.0))
    bottom = ppl.sample("bottom", dist.Normal(0.0, 2.0))
    half = ppl.sample("half", dist.LogNormal(1.0, 1.0))
    steep = ppl.sample("steep", dist.LogNormal(0.5, 0.7))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    share = sigmoid(ppl, steep * (np.log(half) - np.log(dose + 1e-3)))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(bottom + (top - bottom) * share, sigma), obs=y)


def _electricity() -> tuple:
    t = table("AER", "Electricity1955").iloc[:145]
    output, labor, capital, fuel = np.log(numbers(t, "output", "labor", "capital", "fuel")).T
    X = np.column_stack([output - 7, 0.5 * (output - 7) ** 2, labor - fuel, capital - fuel])
    return with_ones(X), np.log(numbers(t, "cost")[:, 0]) - fuel


@real(_electricity)
def cost_frontier(ppl: Any, X: Any, y: Any) -> None:
    """A stochastic frontier: firms cost more than they need, by a half-normal share."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 5, 5.0)
    noise = ppl.sample("noise", dist.HalfNormal(0.5))
    waste = ppl.sample("waste", dist.HalfNormal(0.5))
    total = np.sqrt(noise**2 + waste**2)
    rest = (y - X @ beta) / total
    terms = dist.Normal(0.0, 1.0).log_prob(rest) - np.log(total)
    terms = terms + special(ppl).log_ndtr(rest * waste / noise)
    ppl.factor("rows", terms.sum())


def _answers() -> tuple:
    items = [f"N{k}" for k in range(1, 6)]
    t = table("psych", "bfi")[items].dropna().iloc[:40]
    return ((t.to_numpy(float) >= 4).astype(float),)


@real(_answers, "groups")
def nervous_items(ppl: Any, y: Any) -> None:
    """Forty people answer five items: item response with two parameters of an item."""
    dist = ppl.dist
    level = ppl.normals("level", 5, 2.0)
    slope = ppl.sample("slope", dist.LogNormal(0.0, 0.5).expand([5]).to_event(1))
    ability = ppl.normals("ability", 40)
    logits = slope * (ability[:, None] - level)
    terms = y * log_sigmoid(ppl, logits) + (1 - y) * log_sigmoid(ppl, -logits)
    ppl.factor("y", terms.sum())
