"""Regressions and series of real data, as people write them."""

import numpy as np

from .entries import everyday, floats, table


def _smoking() -> tuple:
    d = table("asaur", "pharmacoSmoking")
    t = floats(d.ttr)
    return (
        np.maximum(t, 0.5),
        floats(d.relapse),
        floats(d.age),
        floats(d.grp == "combination"),
        floats(d.yearsSmoking),
    )


@everyday(_smoking)
def smoking(ppl, t, event, age, combo, years):
    """Time to relapse, Weibull with censoring, raw ages."""
    b0, ba = ppl.draws(b0=ppl.Normal(0.0, 10.0), ba=ppl.Normal(0.0, 1.0))
    bc, by, k = ppl.draws(bc=ppl.Normal(0.0, 2.0), by=ppl.Normal(0.0, 1.0), k=ppl.HalfNormal(2.0))
    scale = ppl.exp(b0 + ba * age + bc * combo + by * years)
    ppl.factor(
        "likelihood",
        (event * ppl.Weibull(scale, k).log_prob(t) - (1 - event) * (t / scale) ** k).sum(),
    )


def _housing() -> tuple:
    d = table("MASS", "housing")
    d = d.loc[d.index.repeat(d.Freq)]
    levels = {"Low": 0, "Medium": 1, "High": 2}
    return (
        np.column_stack(
            [
                floats(d.Infl == "Medium"),
                floats(d.Infl == "High"),
                floats(d.Type == "Apartment"),
                floats(d.Type == "Atrium"),
                floats(d.Type == "Terrace"),
                floats(d.Cont == "High"),
            ]
        ),
        d.Sat.map(levels).to_numpy(int),
    )


@everyday(_housing)
def housing(ppl, X, y):
    """Satisfaction, ordered logits."""
    with ppl.plate("cols", 6):
        b = ppl.sample("b", ppl.Normal(0.0, 5.0))
    c = ppl.sample(
        "c",
        ppl.TransformedDistribution(
            ppl.Normal(ppl.array(np.zeros(2)), 5.0).to_event(1), ppl.transforms.OrderedTransform()
        ),
    )
    ppl.rows(ppl.OrderedLogistic(X @ b, c), y)


def _phones() -> tuple:
    d = table("MASS", "phones")
    return floats(d.year), floats(d.calls)


@everyday(_phones)
def phones(ppl, x, y):
    """Calls by year with outliers."""
    a, b, s = ppl.draws(a=ppl.Normal(0.0, 500.0), b=ppl.Normal(0.0, 10.0), s=ppl.HalfCauchy(10.0))
    nu = ppl.sample("nu", ppl.Gamma(2.0, 0.1))
    ppl.rows(ppl.StudentT(nu, a + b * x, s), y)


def _puromycin() -> tuple:
    d = table("datasets", "Puromycin")
    return floats(d.conc), floats(d.rate), floats(d.state == "treated")


@everyday(_puromycin)
def puromycin(ppl, c, y, t):
    """Michaelis-Menten, raw."""
    v, k, dv = ppl.draws(v=ppl.HalfNormal(300.0), k=ppl.HalfNormal(1.0), dv=ppl.Normal(0.0, 50.0))
    dk, s = ppl.draws(dk=ppl.Normal(0.0, 0.1), s=ppl.HalfCauchy(10.0))
    ppl.rows(ppl.Normal((v + dv * t) * c / (k * ppl.exp(dk * t) + c), s), y)


def _zip_art() -> tuple:
    d = table("pscl", "bioChemists")
    return np.column_stack(
        [
            floats(d.fem == "Women"),
            floats(d.mar == "Married"),
            floats(d.kid5),
            floats(d.phd),
            floats(d.ment),
        ]
    ), floats(d.art)


@everyday(_zip_art)
def zip_art(ppl, X, y):
    """Articles, zero-inflated, raw covariates."""
    with ppl.plate("cols", 5):
        b, g = ppl.draws(b=ppl.Normal(0.0, 1.0), g=ppl.Normal(0.0, 1.0))
    b0, g0 = ppl.draws(b0=ppl.Normal(0.0, 2.0), g0=ppl.Normal(0.0, 2.0))
    ppl.rows(
        ppl.ZeroInflatedPoisson(gate=1 / (1 + ppl.exp(-(g0 + X @ g))), rate=ppl.exp(b0 + X @ b)), y
    )


def _melanoma() -> tuple:
    d = table("MASS", "Melanoma")
    return (
        floats(d.time) / 365.0,
        floats(d.status == 1),
        np.column_stack(
            [floats(d.sex), (floats(d.age) - 50) / 10, np.log(floats(d.thickness)), floats(d.ulcer)]
        ),
    )


@everyday(_melanoma)
def melanoma(ppl, t, event, X):
    """Survival, log-logistic with censoring."""
    with ppl.plate("cols", 4):
        b = ppl.sample("b", ppl.Normal(0.0, 2.0))
    b0, k = ppl.draws(b0=ppl.Normal(2.0, 2.0), k=ppl.LogNormal(0.0, 1.0))
    z = k * (ppl.log(t) - b0 - X @ b)
    ppl.factor(
        "likelihood",
        (event * (ppl.log(k) + z - ppl.log(t)) - (1 + event) * ppl.log1p(ppl.exp(z))).sum(),
    )


def _salaries() -> tuple:
    d = table("carData", "Salaries")
    return np.column_stack(
        [
            floats(d["rank"] == "AssocProf"),
            floats(d["rank"] == "Prof"),
            floats(d.discipline == "B"),
            floats(d["yrs.since.phd"]),
            floats(d["yrs.service"]),
            floats(d.sex == "Male"),
        ]
    ), floats(d.salary)


@everyday(_salaries)
def salaries(ppl, X, y):
    """Salaries in dollars."""
    b0, s = ppl.draws(b0=ppl.Normal(80000.0, 50000.0), s=ppl.HalfCauchy(20000.0))
    with ppl.plate("cols", 6):
        b = ppl.sample("b", ppl.Normal(0.0, 20000.0))
    ppl.rows(ppl.Normal(b0 + X @ b, s), y)


def _wage() -> tuple:
    d = table("wooldridge", "wage1")
    return np.column_stack(
        [floats(d[c]) for c in ("educ", "exper", "tenure", "female", "married")]
    ), floats(d.wage)


@everyday(_wage)
def wage(ppl, X, y):
    """Wages, a gamma regression on raw covariates."""
    with ppl.plate("cols", 5):
        b = ppl.sample("b", ppl.Normal(0.0, 1.0))
    b0, k = ppl.draws(b0=ppl.Normal(0.0, 5.0), k=ppl.HalfCauchy(5.0))
    ppl.rows(ppl.Gamma(k, k / ppl.exp(b0 + X @ b)), y)


def _menarche() -> tuple:
    d = table("MASS", "menarche")
    return floats(d.Age), floats(d.Total), floats(d.Menarche)


@everyday(_menarche)
def menarche(ppl, x, n, y):
    """Age of menarche, raw."""
    a, b = ppl.draws(a=ppl.Normal(0.0, 50.0), b=ppl.Normal(0.0, 10.0))
    ppl.rows(ppl.Binomial(n, logits=a + b * x), y)


def _ozone() -> tuple:
    d = table("datasets", "airquality").dropna()
    x = floats(d[["Solar.R", "Wind", "Temp"]])
    X = (x - x.mean(0)) / x.std(0)
    Z = np.column_stack([X, X**2, X[:, [0]] * X[:, 1:], X[:, 1] * X[:, 2]])
    return Z, floats(d.Ozone)


@everyday(_ozone)
def ozone(ppl, Z, y):
    """Ozone, Laplace prior on a quadratic."""
    lam, s = ppl.draws(lam=ppl.HalfCauchy(10.0), s=ppl.HalfCauchy(20.0))
    b0 = ppl.sample("b0", ppl.Normal(40.0, 40.0))
    with ppl.plate("cols", Z.shape[1]):
        b = ppl.sample("b", ppl.Laplace(0.0, lam))
    ppl.rows(ppl.Normal(b0 + Z @ b, s), y)


def _visits() -> tuple:
    d = table("AER", "DoctorVisits").iloc[::8]
    return np.column_stack(
        [
            floats(d.gender == "female"),
            floats(d.age),
            floats(d.income),
            floats(d.illness),
            floats(d.reduced),
            floats(d.health),
        ]
    ), floats(d.visits)


@everyday(_visits)
def visits(ppl, X, y):
    """Visits to doctors, negative binomial."""
    with ppl.plate("cols", 6):
        b = ppl.sample("b", ppl.Normal(0.0, 2.0))
    b0, c = ppl.draws(b0=ppl.Normal(0.0, 5.0), c=ppl.HalfCauchy(1.0))
    ppl.rows(ppl.GammaPoisson(c, c / ppl.exp(b0 + X @ b)), y)


def _huron() -> tuple:
    d = table("datasets", "LakeHuron")
    return (floats(d.value),)


@everyday(_huron)
def huron(ppl, y):
    """Level of Lake Huron, AR(2), raw."""
    c, a1 = ppl.draws(c=ppl.Normal(100.0, 300.0), a1=ppl.Normal(0.0, 1.0))
    a2, s = ppl.draws(a2=ppl.Normal(0.0, 1.0), s=ppl.HalfNormal(5.0))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", ppl.Normal(c + a1 * y[1:-1] + a2 * y[:-2], s), obs=y[2:])


def _discoveries() -> tuple:
    d = table("datasets", "discoveries")
    return (floats(d.value),)


@everyday(_discoveries)
def discoveries(ppl, y):
    """Great discoveries, a random walk not centred."""
    n = len(y)
    s, m = ppl.draws(s=ppl.HalfNormal(0.5), m=ppl.Normal(1.0, 1.0))
    with ppl.plate("steps", n):
        e = ppl.sample("e", ppl.Normal(0.0, 1.0))
    x = m + s * ppl.cumsum(e, 0)
    with ppl.plate("rows", n):
        ppl.sample("y", ppl.Poisson(ppl.exp(x)), obs=y)


def _mcycle() -> tuple:
    d = table("MASS", "mcycle").drop_duplicates("times")
    knots = np.linspace(2, 58, 15)
    B = np.exp(-0.5 * ((floats(d.times)[:, None] - knots) / 4.0) ** 2)
    return B, floats(d.accel)


@everyday(_mcycle)
def mcycle(ppl, B, y):
    """Acceleration of a helmet, radial basis functions."""
    s, sigma = ppl.draws(s=ppl.HalfNormal(100.0), sigma=ppl.HalfNormal(50.0))
    m = ppl.sample("m", ppl.Normal(0.0, 50.0))
    with ppl.plate("knots", 15):
        w = ppl.sample("w", ppl.Normal(0.0, s))
    ppl.rows(ppl.Normal(m + B @ w, sigma), y)
