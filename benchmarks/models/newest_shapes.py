"""Regressions, kinks, jumps, many latents, minibatches, mixtures."""

import numpy as np

from .entries import codes, columns, design, newest, numbers, standard, table, with_ones


def _ratings() -> tuple:
    frame = table("datasets", "attitude")
    names = ("complaints", "privileges", "learning", "raises", "critical", "advance")
    return with_ones(numbers(frame, *names)), frame["rating"].to_numpy(float)


@newest("regressions", _ratings)
def ratings(ppl, X, y):
    """Percentages as they are."""
    beta = ppl.normals("beta", 7, 50.0)
    sigma = ppl.sample("sigma", ppl.HalfCauchy(10.0))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _snails() -> tuple:
    frame = table("MASS", "snails")
    X = standard(numbers(frame, "Exposure", "Rel.Hum", "Temp"))
    X = with_ones(np.column_stack([X, codes(frame["Species"])]))
    return X, frame["N"].to_numpy(float), frame["Deaths"].to_numpy(float)


@newest("regressions", _snails)
def snails(ppl, X, total, y):
    """Deaths of snails, twenty in a cell."""
    beta = ppl.normals("beta", 5, 3.0)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.Binomial(total, logits=X @ beta), obs=y)


@newest("kinks", _ratings)
def deviations(ppl, X, y):
    """Least absolute deviations, with Laplace's priors."""
    beta = ppl.sample("beta", ppl.Laplace(0.0, 1.0).expand([6]).to_event(1))
    level, sigma = ppl.draws(level=ppl.Normal(0.0, 50.0), sigma=ppl.HalfCauchy(10.0))
    ppl.rows(ppl.Laplace(level + X[:, 1:] @ beta, sigma), y)


def _two_lines() -> tuple:
    x = np.linspace(-3, 3, 40)
    noise = np.random.default_rng(911).normal(size=40)
    return x, np.maximum(0.5 - x, 1.2 * x - 1) + 0.3 * noise


@newest("kinks", _two_lines)
def roof(ppl, x, y):
    """The larger of two lines, which may change places."""
    starts, slopes = ppl.normals("starts", 2, 2.0), ppl.normals("slopes", 2, 2.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    one, two = starts[0] + slopes[0] * x, starts[1] + slopes[1] * x
    ppl.rows(ppl.Normal(ppl.maximum(one, two), sigma), y)


def _tobin() -> tuple:
    durable, age, quant = columns("survival", "tobin", "durable", "age", "quant")
    return with_ones(standard(np.column_stack([age, quant]))), durable


@newest("kinks", _tobin)
def durables(ppl, X, y):
    """Expenses of twenty households, of which none is below zero."""
    beta = ppl.normals("beta", 3, 5.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(5.0))
    ppl.rows(ppl.Laplace((X @ beta).clip(0.0), sigma), y)


def _levels() -> tuple:
    noise = np.random.default_rng(912).laplace(size=(8, 3))
    return (np.repeat([0.0, 0.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0], 3) + 0.3 * noise.ravel(),)


@newest("kinks", _levels)
def levels(ppl, y):
    """Eight levels that are fused by Laplace's prior of their steps."""
    moves = ppl.sample("moves", ppl.Laplace(0.0, 0.5).expand([8]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    level = ppl.cumsum(moves, 0)[ppl.array(np.repeat(np.arange(8), 3))]
    ppl.rows(ppl.Laplace(level, sigma), y)


def _drivers() -> tuple:
    (deaths,) = columns("MASS", "drivers", "value")
    return (deaths[-60:],)


@newest("jumps", _drivers)
def belts(ppl, y):
    """Casualties of drivers by the month, with a law in one of them."""
    at = ppl.sample("at", ppl.Uniform(0.0, 60.0))
    levels = ppl.sample("levels", ppl.Normal(1500.0, 500.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(300.0))
    before = ppl.array(np.arange(60.0)) < at
    ppl.rows(ppl.Normal(ppl.where(before, levels[0], levels[1]), sigma), y)


def _tariff() -> tuple:
    x = np.linspace(0.1, 10, 50)
    return x, 3 + 0.8 * np.floor(x / 2.3) + 0.2 * np.random.default_rng(913).normal(size=50)


@newest("jumps", _tariff)
def tariff(ppl, x, y):
    """Fares by zones of unknown width."""
    fare, zone = ppl.draws(fare=ppl.Normal(0.0, 2.0), zone=ppl.LogNormal(1.0, 0.3))
    level, sigma = ppl.draws(level=ppl.Normal(0.0, 5.0), sigma=ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(level + fare * ppl.floor(x / zone), sigma), y)


def _speeds() -> tuple:
    (speed,) = columns("datasets", "morley", "Speed")
    return (np.round(speed[:40] / 20) * 20,)


@newest("jumps", _speeds)
def rounded(ppl, y):
    """Speeds that were rounded, by the rounded mean."""
    mu, sigma = ppl.draws(mu=ppl.Normal(800.0, 200.0), sigma=ppl.HalfNormal(100.0))
    ppl.rows(ppl.Normal(20.0 * ppl.floor(mu / 20.0), sigma), y)


def _answers() -> tuple:
    rng = np.random.default_rng(914)
    eta = rng.normal(size=(100, 1)) - rng.normal(size=12)
    return ((rng.uniform(size=(100, 12)) < 1 / (1 + np.exp(-eta))).astype(float),)


@newest("terms", _answers, name="wide_answers")
@newest("many", _answers)
def answers(ppl, y):
    """A hundred people answer twelve questions."""
    ability, hard = ppl.normals("ability", 100), ppl.normals("hard", 12, 2.0)
    eta = ability[:, None] - hard
    ppl.factor("y", (y * eta - ppl.logaddexp(0 * eta, eta)).sum())


def _shops() -> tuple:
    rng = np.random.default_rng(915)
    return (rng.poisson(np.exp(2 + 0.5 * rng.normal(size=110)), (3, 110)).astype(float),)


@newest("many", _shops)
def shops(ppl, y):
    """Three counts of each of 110 shops."""
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 2.0), tau=ppl.HalfNormal(1.0))
    eta = mu + tau * ppl.normals("z", 110)
    ppl.factor("y", (y * eta - ppl.exp(eta)).sum())


def _genes() -> tuple:
    X = design(120, 130, 916)
    beta = np.r_[0.5, 2.0, -2.0, 1.0, np.zeros(126)]
    return X, (X @ beta + np.random.default_rng(917).logistic(size=120) > 0).astype(float)


@newest("many", _genes)
def genes(ppl, X, y):
    """More inputs than rows, with a spread in common."""
    tau = ppl.sample("tau", ppl.HalfNormal(0.5))
    ppl.rows(ppl.Bernoulli(logits=X @ (tau * ppl.normals("beta", 130))), y)


def _diamonds() -> tuple:
    frame = table("ggplot2", "diamonds").iloc[::18]
    logs = np.log(numbers(frame, "carat", "price"))
    return with_ones(np.column_stack([logs[:, 0], standard(frame["depth"])])), logs[:, 1]


@newest("minibatches", _diamonds, batch=150)
def diamonds(ppl, X, y, batch=None):
    """Logarithms of prices, heavy tails."""
    beta = ppl.normals("beta", 3, 10.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", ppl.StudentT(4.0, X[rows] @ beta, sigma), obs=y[rows])


def _wives() -> tuple:
    frame = table("carData", "Mroz")
    X = np.column_stack([numbers(frame, "k5", "k618", "age", "lwg", "inc"), codes(frame["wc"])])
    return with_ones(standard(X)), codes(frame["lfp"]).astype(float)


@newest("minibatches", _wives, batch=50)
def wives(ppl, X, y, batch=None):
    """Who works."""
    beta = ppl.normals("beta", 7, 2.5)
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", ppl.Bernoulli(logits=X[rows] @ beta), obs=y[rows])


def _clinics() -> tuple:
    rng = np.random.default_rng(918)
    group, x = rng.integers(0, 12, 800), rng.normal(size=800)
    mean = np.exp(1 + 0.5 * rng.normal(size=12)[group] + 0.3 * x) * rng.gamma(3, 1 / 3, 800)
    return group, x, rng.poisson(mean).astype(float)


@newest("minibatches", _clinics, batch=40)
def clinics(ppl, group, x, y, batch=None):
    """Overdispersed counts of twelve clinics."""
    beta, tau = ppl.normals("beta", 2, 3.0), ppl.sample("tau", ppl.HalfNormal(1.0))
    shape = ppl.sample("shape", ppl.LogNormal(1.0, 1.0))
    with ppl.plate("clinics", 12):
        effect = ppl.sample("effect", ppl.Normal(0.0, tau))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = ppl.exp(beta[0] + effect[group[rows]] + beta[1] * x[rows])
        ppl.sample("y", ppl.GammaPoisson(shape, shape / mean), obs=y[rows])


@newest("mixtures", lambda: tuple(columns("datasets", "precip", "dat")))
def rain(ppl, y):
    """Two normals of rain in inches, which may change places."""
    share, means = ppl.sample("share", ppl.Beta(2.0, 2.0)), ppl.normals("means", 2, 20.0, 35.0)
    scales = ppl.sample("scales", ppl.LogNormal(2.0, 0.5).expand([2]).to_event(1))
    one = ppl.Normal(means[0], scales[0]).log_prob(y) + ppl.log(share)
    two = ppl.Normal(means[1], scales[1]).log_prob(y) + ppl.log(1 - share)
    ppl.factor("y", ppl.logaddexp(one, two).sum())


def _bugs() -> tuple:
    rng = np.random.default_rng(920)
    return (rng.poisson(np.where(rng.uniform(size=60) < 0.3, 12, 3)).astype(float),)


@newest("mixtures", _bugs)
def bugs(ppl, y):
    """Two rates of counts."""
    share = ppl.sample("share", ppl.Beta(1.0, 1.0))
    rates = ppl.sample("rates", ppl.Gamma(2.0, 0.2).expand([2]).to_event(1))
    one = ppl.Poisson(rates[0]).log_prob(y) + ppl.log(share)
    two = ppl.Poisson(rates[1]).log_prob(y) + ppl.log(1 - share)
    ppl.factor("y", ppl.logaddexp(one, two).sum())


@newest("mixtures", lambda: tuple(columns("MASS", "geyser", "waiting", "duration")))
def eruptions(ppl, x, y):
    """Two lines of durations by waits, with a width each."""
    starts, slopes = ppl.normals("starts", 2, 5.0), ppl.normals("slopes", 2)
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    scales = ppl.sample("scales", ppl.HalfNormal(1.0).expand([2]).to_event(1))
    z = (x - 72.0) / 14.0
    one = ppl.Normal(starts[0] + slopes[0] * z, scales[0]).log_prob(y) + ppl.log(share)
    two = ppl.Normal(starts[1] + slopes[1] * z, scales[1]).log_prob(y) + ppl.log(1 - share)
    ppl.factor("y", ppl.logaddexp(one, two).sum())


def _wide(noise, dim=110, num=160, seed=921):
    X = design(num, dim, seed)
    eta = X @ np.r_[0.5, 1.0, -1.0, np.zeros(dim - 3)]
    return X, noise(np.random.default_rng(seed + 1), eta).astype(float)


@newest("terms", lambda: _wide(lambda rng, eta: rng.logistic(size=160) < eta))
def wide_logistic(ppl, X, y):
    """Logits of 110 inputs."""
    ppl.rows(ppl.Bernoulli(logits=X @ ppl.normals("beta", 110, 0.5)), y)


@newest("terms", lambda: _wide(lambda rng, eta: rng.poisson(np.exp(1 + 0.5 * eta))))
def wide_counts(ppl, X, y):
    """Counts by 110 inputs."""
    ppl.rows(ppl.Poisson(ppl.exp(X @ ppl.normals("beta", 110))), y)


@newest("integrals", lambda: _wide(lambda rng, eta: eta + 0.3 * rng.laplace(size=160)))
def wide_deviations(ppl, X, y):
    """Absolute deviations of 110 inputs."""
    ppl.rows(ppl.Laplace(X @ ppl.normals("beta", 110), 0.3), y)


@newest("integrals", lambda: _wide(lambda rng, eta: np.sign(eta + rng.logistic(size=160))))
def wide_hinge(ppl, X, y):
    """The hinge of a support vector machine."""
    ppl.factor("y", -3 * (1 - y * (X @ ppl.normals("beta", 110, 0.5))).clip(0.0).sum())


@newest("integrals", lambda: _wide(lambda rng, eta: np.round(5 * eta + rng.normal(size=160))))
def wide_rounding(ppl, X, y):
    """Whole numbers of a predictor that is rounded down."""
    eta = 5 * (X @ ppl.normals("beta", 110))
    ppl.rows(ppl.Normal(eta - 0.5 * (eta - ppl.floor(eta)), 1.0), y)


def _rails() -> tuple:
    rail, travel = columns("nlme", "Rail", "Rail", "travel")
    return codes(rail), travel


@newest("own_parameters", _rails)
def rails(ppl, rail, y):
    """Both scales are parameters of the model."""
    positive, start = ppl.constraints.positive, ppl.array(1.0)
    tau, sigma = (ppl.param(name, start, constraint=positive) for name in ("tau", "sigma"))
    mu = ppl.sample("mu", ppl.Normal(50.0, 50.0))
    with ppl.plate("rails", 6):
        effect = ppl.sample("effect", ppl.Normal(0.0, 10.0 * tau))
    ppl.rows(ppl.Normal(mu + effect[rail], 3.0 * sigma), y)


@newest("own_parameters", _snails)
def snails_of_weights(ppl, X, total, y):
    """A parameter of the model for each input, and cells with noise of a scale of its own."""
    beta = ppl.param("beta", ppl.array(np.zeros(5)))
    tau = ppl.param("tau", ppl.array(1.0), constraint=ppl.constraints.positive)
    with ppl.plate("rows", len(y)):
        noise = ppl.sample("noise", ppl.Normal(0.0, tau))
        ppl.sample("y", ppl.Binomial(total, logits=X @ beta + noise), obs=y)
