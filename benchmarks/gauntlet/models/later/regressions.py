"""Regressions with R's data as they come, in their own units."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns, design
from benchmarks.gauntlet.models.registry import later


def _chicks() -> tuple:
    weight, time = columns("datasets", "ChickWeight", "weight", "Time")
    chick, diet = columns("datasets", "ChickWeight", "Chick", "Diet")
    return weight, time, codes(chick), codes(diet)


@later("raw_scale", _chicks)
def chicks(ppl: Any, y: Any, t: Any, chick: Any, diet: Any) -> None:
    """A slope for each of four diets, and fifty chicks beside it; grams and days."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 100.0))
    slope = ppl.normals("slope", 4, 50.0)
    tau = ppl.sample("tau", dist.HalfCauchy(25.0))
    sigma = ppl.sample("sigma", dist.HalfCauchy(50.0))
    with ppl.plate("chicks", 50):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(start + (slope[diet] + own[chick]) * t, sigma), obs=y)


def _stack_loss() -> tuple:
    names = "stack.loss", "Air.Flow", "Water.Temp", "Acid.Conc."
    y, *inputs = columns("datasets", "stackloss", *names)
    return np.column_stack([np.ones(len(y)), *inputs]), y


@later("raw_scale", _stack_loss)
def student_noise(ppl: Any, X: Any, y: Any) -> None:
    """Three inputs as they are, and learned degrees of freedom."""
    dist = ppl.dist
    beta = ppl.normals("beta", 4, 1000.0)
    sigma = ppl.sample("sigma", dist.InverseGamma(1.0, 1.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, X @ beta, sigma), obs=y)


def _employed() -> tuple:
    gnp, people, year = columns("datasets", "longley", "GNP", "Population", "Year")
    (employed,) = columns("datasets", "longley", "Employed")
    return np.column_stack([gnp, people, year]), employed * 1000


@later("raw_scale", _employed)
def raw_longley(ppl: Any, X: Any, y: Any) -> None:
    """Inputs that are nearly one another, the year among them; the response in thousands."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 1e6))
    beta = ppl.normals("beta", 3, 1e4)
    sigma = ppl.sample("sigma", dist.HalfNormal(1e4))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(start + X @ beta, sigma), obs=y)


def _wines() -> tuple:
    from sklearn.datasets import load_wine

    wines = load_wine()
    return wines.data, wines.target


@later("raw_scale", _wines)
def wines(ppl: Any, X: Any, y: Any) -> None:
    """Three kinds by thirteen columns, from 0.1 to 1,700, none of them standardised."""
    weights = ppl.normals("weights", 39).reshape((13, 3))
    shift = ppl.normals("shift", 3, 10.0)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Categorical(logits=X @ weights / 10 + shift), obs=y)


@later("raw_scale", lambda: (np.exp(1.5 * np.random.default_rng(3813).normal(size=30) + 9),))
def lomax(ppl: Any, y: Any) -> None:
    """Amounts of thousands with a power's tail."""
    dist, np = ppl.dist, ppl.np
    power = ppl.sample("power", dist.Gamma(2.0, 1.0))
    scale = ppl.sample("scale", dist.LogNormal(5.0, 5.0))
    terms = np.log(power / scale) - (power + 1) * np.log(1 + y / scale)
    ppl.factor("rows", terms.sum())


def _penicillin() -> tuple:
    y, plate, sample = columns("lme4", "Penicillin", "diameter", "plate", "sample")
    return y, codes(plate), codes(sample)


@later("plain", _penicillin)
def penicillin(ppl: Any, y: Any, plate: Any, sample: Any) -> None:
    """Crossed effects of plates and samples."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 100.0))
    widths = ppl.sample("widths", dist.HalfCauchy(5.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfCauchy(5.0))
    with ppl.plate("plates", 24):
        a = ppl.sample("a", dist.Normal(0.0, widths[0]))
    with ppl.plate("samples", 6):
        b = ppl.sample("b", dist.Normal(0.0, widths[1]))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mu + a[plate] + b[sample], sigma), obs=y)


def _herds() -> tuple:
    herd, cases, size, period = columns("lme4", "cbpp", "herd", "incidence", "size", "period")
    return codes(herd), cases, size, codes(period)


@later("plain", _herds)
def herds(ppl: Any, herd: Any, cases: Any, size: Any, period: Any) -> None:
    """Fifteen herds of cattle, four periods."""
    dist = ppl.dist
    beta = ppl.normals("beta", 4, 5.0)
    tau = ppl.sample("tau", dist.HalfNormal(2.0))
    with ppl.plate("herds", 15):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    with ppl.plate("rows", len(cases)):
        rate = dist.Binomial(total_count=size, logits=beta[period] + own[herd])
        ppl.sample("cases", rate, obs=cases)


def _cancers() -> tuple:
    age, alcohol, tobacco = columns("datasets", "esoph", "agegp", "alcgp", "tobgp")
    cases, controls = columns("datasets", "esoph", "ncases", "ncontrols")
    return codes(age), codes(alcohol), codes(tobacco), cases, cases + controls


@later("plain", _cancers)
def walks(ppl: Any, age: Any, alcohol: Any, tobacco: Any, cases: Any, count: Any) -> None:
    """Three random walks along ordered groups."""
    dist, np = ppl.dist, ppl.np
    widths = ppl.sample("widths", dist.HalfNormal(1.0).expand([3]).to_event(1))
    shift = ppl.sample("shift", dist.Normal(0.0, 5.0))
    steps = [ppl.normals(name, size) for name, size in (("ages", 6), ("drinks", 4), ("smokes", 4))]
    one, two, three = (
        width * np.cumsum(step, 0) for width, step in zip(widths, steps, strict=True)
    )
    with ppl.plate("rows", len(cases)):
        logits = shift + one[age] + two[alcohol] + three[tobacco]
        ppl.sample("cases", dist.Binomial(total_count=count, logits=logits), obs=cases)


def _survival() -> tuple:
    names = "time", "status", "age", "sex", "ph.ecog"
    t, status, *inputs = columns("survival", "cancer", *names)
    known = ~np.isnan(inputs[-1])
    X = np.column_stack([np.ones(len(t)), *inputs])
    return X[known], t[known], (status[known] == 2).astype(float)


@later("plain", _survival)
def weibull(ppl: Any, X: Any, t: Any, died: Any) -> None:
    """Days until death, some of them censored."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 4, 10.0)
    shape = ppl.sample("shape", dist.Gamma(2.0, 1.0))
    scaled = np.log(t) - X @ beta
    terms = died * (np.log(shape) + shape * scaled - np.log(t)) - np.exp(shape * scaled)
    ppl.factor("rows", terms.sum())


def _doubt() -> tuple:
    X = design(60, 12, 3804)
    beta = np.zeros(12)
    beta[2], beta[7] = 3, -2
    return X, X @ beta + np.random.default_rng(3803).standard_t(2, size=60)


@later("heavy_tails", _doubt)
def horseshoe_in_tails(ppl: Any, X: Any, y: Any) -> None:
    """A horseshoe's prior, noise of few degrees of freedom."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfCauchy(0.3))
    widths = ppl.sample("widths", dist.HalfCauchy(1.0).expand([12]).to_event(1))
    z = ppl.normals("z", 12)
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    sigma = ppl.sample("sigma", dist.HalfCauchy(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, X @ (z * widths * tau), sigma), obs=y)


@later("heavy_tails", lambda: (np.array([3.2e4, 2.9e4, 8.1e5, 4.4e4, 3.9e4, 2.2e3]),))
def raw_cauchy(ppl: Any, y: Any) -> None:
    """Six amounts, one of them twenty times the others."""
    dist = ppl.dist
    centre = ppl.sample("centre", dist.Cauchy(0.0, 1e5))
    scale = ppl.sample("scale", dist.HalfCauchy(1e5))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Cauchy(centre, scale), obs=y)


def _food() -> tuple:
    income, food = columns("quantreg", "engel", "income", "foodexp")
    return income, food


@later("kinks", _food)
def high_quantile(ppl: Any, x: Any, y: Any) -> None:
    """Nine tenths of what families spend on food, in francs."""
    dist, np = ppl.dist, ppl.np
    start = ppl.sample("start", dist.Normal(0.0, 1000.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 10.0))
    scale = ppl.sample("scale", dist.HalfNormal(500.0))
    rest = (y - start - slope * x) / scale
    ppl.factor("rows", (-np.log(scale) - np.where(rest > 0, 0.9 * rest, -0.1 * rest)).sum())


@later("kinks", lambda: tuple(columns("datasets", "cars", "speed", "dist")))
def bent_line(ppl: Any, x: Any, y: Any) -> None:
    """A bend at an unknown speed, Laplace's priors and noise."""
    dist, np = ppl.dist, ppl.np
    bend = ppl.sample("bend", dist.Normal(15.0, 5.0))
    beta = ppl.sample("beta", dist.Laplace(0.0, 10.0).expand([3]).to_event(1))
    scale = ppl.sample("scale", dist.HalfNormal(30.0))
    beyond = np.where(x > bend, x - bend, 0 * x)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Laplace(beta[0] + beta[1] * x + beta[2] * beyond, scale), obs=y)


def _swiss() -> tuple:
    names = "Agriculture", "Examination", "Education", "Catholic", "Infant.Mortality"
    (y,) = columns("datasets", "swiss", "Fertility")
    return np.column_stack(columns("datasets", "swiss", *names)), y


@later("kinks", _swiss)
def raw_lasso(ppl: Any, X: Any, y: Any) -> None:
    """Laplace's priors of one learned width, percentages as they are."""
    dist = ppl.dist
    width = ppl.sample("width", dist.HalfCauchy(1.0))
    start = ppl.sample("start", dist.Normal(0.0, 100.0))
    beta = ppl.sample("beta", dist.Laplace(0.0, width).expand([5]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfCauchy(10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(4.0, start + X @ beta, sigma), obs=y)


def _absent() -> tuple:
    days, *inputs = columns("MASS", "quine", "Days", "Eth", "Sex", "Age")
    return days, np.column_stack([np.ones(len(days)), *map(codes, inputs)]).astype(float)


@later("enumerated", _absent, enumerated=True)
def absences(ppl: Any, y: Any, X: Any) -> None:
    """A negative binomial with more zeros."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 4, 3.0)
    phi = ppl.sample("phi", dist.LogNormal(0.0, 1.0))
    gate = ppl.sample("gate", dist.Beta(1.0, 5.0))
    with ppl.plate("rows", len(y)):
        never = ppl.sample("never", dist.Bernoulli(gate), infer={"enumerate": "parallel"})
        mean = np.exp(X @ beta)
        mean = np.where(never == 1, 1e-4 + 0 * mean, mean)
        ppl.sample("y", dist.GammaPoisson(phi, phi / mean), obs=y)


def _words() -> tuple:
    year, sex, education = columns("carData", "Vocab", "year", "sex", "education")
    (words,) = columns("carData", "Vocab", "vocabulary")
    rows = np.random.default_rng(3808).choice(len(year), 4000, replace=False)
    X = np.column_stack([np.ones(4000), year[rows], education[rows]])
    return X, codes(sex)[rows], words[rows]


@later("minibatches", _words, batch=200)
def words(ppl: Any, X: Any, sex: Any, y: Any, batch: int | None = None) -> None:
    """A test of words by education and the year, which is near 1990, 200 people at a time."""
    dist = ppl.dist
    beta = ppl.normals("beta", 3, 10.0)
    shift = ppl.normals("shift", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(5.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = X[rows] @ beta / 10 + shift[sex[rows]]
        ppl.sample("y", dist.Normal(mean, sigma), obs=y[rows])
