"""Controls: ordinary models with ordinary data, and a few in raw units."""

import numpy as np

from .entries import codes, columns, design, entry, standard

GROUP = "plain"


def _schools() -> tuple:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return y, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@entry(GROUP, _schools)
def eight_schools(ppl, y, sigma):
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 5.0), tau=ppl.HalfCauchy(5.0))
    with ppl.plate("schools", len(y)):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Normal(mu + tau * z, sigma), obs=y)


def _sleep() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return codes(subject), days / 10, (reaction - 300) / 50


@entry(GROUP, _sleep)
def sleep(ppl, subject, days, y):
    mean = ppl.normals("mean", 2, 5.0)
    tau = ppl.sample("tau", ppl.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(2.0))
    with ppl.plate("subjects", 18):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0).expand([2]).to_event(1))
    effect = mean + tau * z
    mu = effect[subject, 0] + effect[subject, 1] * days
    ppl.rows(ppl.Normal(mu, sigma), y)


def _infertility() -> tuple:
    case, age, parity, induced, spontaneous = columns(
        "datasets", "infert", "case", "age", "parity", "induced", "spontaneous"
    )
    X = standard(np.column_stack([age, parity, induced, spontaneous]))
    return np.column_stack([np.ones(len(X)), X]), case


@entry(GROUP, _infertility)
def logistic(ppl, X, y):
    beta = ppl.normals("beta", X.shape[1], 2.5)
    ppl.rows(ppl.Bernoulli(logits=X @ beta), y)


def _breaks() -> tuple:
    breaks, wool, tension = columns("datasets", "warpbreaks", "breaks", "wool", "tension")
    return codes(wool), codes(tension), breaks


@entry(GROUP, _breaks)
def overdispersed(ppl, wool, tension, y):
    """A negative binomial with effects of two factors."""
    base = ppl.sample("base", ppl.Normal(0.0, 5.0))
    of_wool, of_tension = ppl.normals("of_wool", 2, 1.0), ppl.normals("of_tension", 3, 1.0)
    shape = ppl.sample("shape", ppl.Exponential(0.1))
    mean = ppl.exp(base + of_wool[wool] + of_tension[tension])
    ppl.rows(ppl.GammaPoisson(shape, shape / mean), y)


def _longley() -> tuple:
    names = ("GNP.deflator", "GNP", "Unemployed", "Armed.Forces", "Population", "Year")
    X = np.column_stack(columns("datasets", "longley", *names))
    (employed,) = columns("datasets", "longley", "Employed")
    return np.column_stack([np.ones(16), X]), employed


@entry(GROUP, _longley)
def longley(ppl, X, y):
    """The columns that broke the regression programs of 1967, as they are."""
    beta = ppl.normals("beta", 7, 100.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(10.0))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _seeds() -> tuple:
    rng = np.random.default_rng(131)
    return rng.integers(5, 60, 21).astype(float), design(21, 3, 132)


@entry(GROUP, lambda: (*_seeds(), _germinated()))
def germination(ppl, total, X, y):
    beta = ppl.normals("beta", 3, 3.0)
    tau = ppl.sample("tau", ppl.HalfNormal(1.0))
    with ppl.plate("plates", len(y)):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Binomial(total, logits=X @ beta + tau * z), obs=y)


def _germinated() -> np.ndarray:
    total, X = _seeds()
    rng = np.random.default_rng(133)
    eta = X @ np.array([-0.3, 0.6, 0.9]) + 0.4 * rng.normal(size=21)
    return rng.binomial(total.astype(int), 1 / (1 + np.exp(-eta))).astype(float)


def _lifetimes() -> tuple:
    rng = np.random.default_rng(134)
    x = rng.normal(size=60)
    time = np.exp(2 + 0.5 * x) * rng.weibull(1.5, 60)
    return x, np.minimum(time, 15.0), (time < 15).astype(float)


@entry(GROUP, _lifetimes)
def survival(ppl, x, time, died):
    """A Weibull regression with censoring."""
    shape = ppl.sample("shape", ppl.LogNormal(0.0, 0.5))
    beta = ppl.normals("beta", 2, 2.0)
    log_scale = beta[0] + beta[1] * x
    log_hazard = ppl.log(shape) - log_scale + (shape - 1) * (ppl.log(time) - log_scale)
    hazard_so_far = ppl.exp(shape * (ppl.log(time) - log_scale))
    ppl.factor("time", (died * log_hazard - hazard_so_far).sum())


def _orange() -> tuple:
    tree, age, girth = columns("datasets", "Orange", "Tree", "age", "circumference")
    return codes(tree), age / 1000, girth / 100


@entry(GROUP, _orange)
def orange_trees(ppl, tree, age, y):
    """Logistic growth with a limit for every tree."""
    limit, tau = ppl.draws(limit=ppl.Normal(2.0, 1.0), tau=ppl.HalfNormal(0.5))
    middle, width = ppl.draws(middle=ppl.LogNormal(0.0, 0.5), width=ppl.LogNormal(-1.0, 0.5))
    sigma = ppl.sample("sigma", ppl.HalfNormal(0.5))
    with ppl.plate("trees", 5):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
    mean = (limit + tau * z[tree]) / (1 + ppl.exp(-(age - middle) / width))
    ppl.rows(ppl.Normal(mean, sigma), y)
