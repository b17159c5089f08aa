"""Regressions with R's data as they come, in their own units."""

import numpy as np

from .entries import codes, columns, design, later


def _chicks() -> tuple:
    weight, time = columns("datasets", "ChickWeight", "weight", "Time")
    chick, diet = columns("datasets", "ChickWeight", "Chick", "Diet")
    return weight, time, codes(chick), codes(diet)


@later("raw_scale", _chicks)
def chicks(ppl, y, t, chick, diet):
    """A slope for each of four diets, and fifty chicks beside it; grams and days."""
    start = ppl.sample("start", ppl.Normal(0.0, 100.0))
    slope = ppl.normals("slope", 4, 50.0)
    tau, sigma = ppl.draws(tau=ppl.HalfCauchy(25.0), sigma=ppl.HalfCauchy(50.0))
    with ppl.plate("chicks", 50):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    ppl.rows(ppl.Normal(start + (slope[diet] + own[chick]) * t, sigma), y)


def _stack_loss() -> tuple:
    names = "stack.loss", "Air.Flow", "Water.Temp", "Acid.Conc."
    y, *inputs = columns("datasets", "stackloss", *names)
    return np.column_stack([np.ones(len(y)), *inputs]), y


@later("raw_scale", _stack_loss)
def student_noise(ppl, X, y):
    """Three inputs as they are, and learned degrees of freedom."""
    beta = ppl.normals("beta", 4, 1000.0)
    sigma, nu = ppl.draws(sigma=ppl.InverseGamma(1.0, 1.0), nu=ppl.Gamma(2.0, 0.1))
    ppl.rows(ppl.StudentT(nu, X @ beta, sigma), y)


def _employed() -> tuple:
    gnp, people, year = columns("datasets", "longley", "GNP", "Population", "Year")
    (employed,) = columns("datasets", "longley", "Employed")
    return np.column_stack([gnp, people, year]), employed * 1000


@later("raw_scale", _employed)
def raw_longley(ppl, X, y):
    """Inputs that are nearly one another, the year among them; the response in thousands."""
    start = ppl.sample("start", ppl.Normal(0.0, 1e6))
    beta = ppl.normals("beta", 3, 1e4)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1e4))
    ppl.rows(ppl.Normal(start + X @ beta, sigma), y)


def _wines() -> tuple:
    from sklearn.datasets import load_wine

    wines = load_wine()
    return wines.data, wines.target


@later("raw_scale", _wines)
def wines(ppl, X, y):
    """Three kinds by thirteen columns, from 0.1 to 1,700, none of them standardised."""
    weights = ppl.normals("weights", 39).reshape((13, 3))
    shift = ppl.normals("shift", 3, 10.0)
    ppl.rows(ppl.Categorical(logits=X @ weights / 10 + shift), y)


@later("raw_scale", lambda: (np.exp(1.5 * np.random.default_rng(3813).normal(size=30) + 9),))
def lomax(ppl, y):
    """Amounts of thousands with a power's tail."""
    power, scale = ppl.draws(power=ppl.Gamma(2.0, 1.0), scale=ppl.LogNormal(5.0, 5.0))
    terms = ppl.log(power / scale) - (power + 1) * ppl.log(1 + y / scale)
    ppl.factor("rows", terms.sum())


def _penicillin() -> tuple:
    y, plate, sample = columns("lme4", "Penicillin", "diameter", "plate", "sample")
    return y, codes(plate), codes(sample)


@later("plain", _penicillin)
def penicillin(ppl, y, plate, sample):
    """Crossed effects of plates and samples."""
    mu = ppl.sample("mu", ppl.Normal(0.0, 100.0))
    widths = ppl.sample("widths", ppl.HalfCauchy(5.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(5.0))
    with ppl.plate("plates", 24):
        a = ppl.sample("a", ppl.Normal(0.0, widths[0]))
    with ppl.plate("samples", 6):
        b = ppl.sample("b", ppl.Normal(0.0, widths[1]))
    ppl.rows(ppl.Normal(mu + a[plate] + b[sample], sigma), y)


def _herds() -> tuple:
    herd, cases, size, period = columns("lme4", "cbpp", "herd", "incidence", "size", "period")
    return codes(herd), cases, size, codes(period)


@later("plain", _herds)
def herds(ppl, herd, cases, size, period):
    """Fifteen herds of cattle, four periods."""
    beta = ppl.normals("beta", 4, 5.0)
    tau = ppl.sample("tau", ppl.HalfNormal(2.0))
    with ppl.plate("herds", 15):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    with ppl.plate("rows", len(cases)):
        rate = ppl.Binomial(total_count=size, logits=beta[period] + own[herd])
        ppl.sample("cases", rate, obs=cases)


def _cancers() -> tuple:
    age, alcohol, tobacco = columns("datasets", "esoph", "agegp", "alcgp", "tobgp")
    cases, controls = columns("datasets", "esoph", "ncases", "ncontrols")
    return codes(age), codes(alcohol), codes(tobacco), cases, cases + controls


@later("plain", _cancers)
def walks(ppl, age, alcohol, tobacco, cases, count):
    """Three random walks along ordered groups."""
    widths = ppl.sample("widths", ppl.HalfNormal(1.0).expand([3]).to_event(1))
    shift = ppl.sample("shift", ppl.Normal(0.0, 5.0))
    steps = [ppl.normals(name, size) for name, size in (("ages", 6), ("drinks", 4), ("smokes", 4))]
    one, two, three = (
        width * ppl.cumsum(step, 0) for width, step in zip(widths, steps, strict=True)
    )
    with ppl.plate("rows", len(cases)):
        logits = shift + one[age] + two[alcohol] + three[tobacco]
        ppl.sample("cases", ppl.Binomial(total_count=count, logits=logits), obs=cases)


def _survival() -> tuple:
    names = "time", "status", "age", "sex", "ph.ecog"
    t, status, *inputs = columns("survival", "cancer", *names)
    known = ~np.isnan(inputs[-1])
    X = np.column_stack([np.ones(len(t)), *inputs])
    return X[known], t[known], (status[known] == 2).astype(float)


@later("plain", _survival)
def weibull(ppl, X, t, died):
    """Days until death, some of them censored."""
    beta = ppl.normals("beta", 4, 10.0)
    shape = ppl.sample("shape", ppl.Gamma(2.0, 1.0))
    scaled = ppl.log(t) - X @ beta
    terms = died * (ppl.log(shape) + shape * scaled - ppl.log(t)) - ppl.exp(shape * scaled)
    ppl.factor("rows", terms.sum())


def _doubt() -> tuple:
    X = design(60, 12, 3804)
    beta = np.zeros(12)
    beta[2], beta[7] = 3, -2
    return X, X @ beta + np.random.default_rng(3803).standard_t(2, size=60)


@later("heavy_tails", _doubt)
def horseshoe_in_tails(ppl, X, y):
    """A horseshoe's prior, noise of few degrees of freedom."""
    tau = ppl.sample("tau", ppl.HalfCauchy(0.3))
    widths = ppl.sample("widths", ppl.HalfCauchy(1.0).expand([12]).to_event(1))
    z = ppl.normals("z", 12)
    nu, sigma = ppl.draws(nu=ppl.Gamma(2.0, 0.1), sigma=ppl.HalfCauchy(1.0))
    ppl.rows(ppl.StudentT(nu, X @ (z * widths * tau), sigma), y)


@later("heavy_tails", lambda: (np.array([3.2e4, 2.9e4, 8.1e5, 4.4e4, 3.9e4, 2.2e3]),))
def raw_cauchy(ppl, y):
    """Six amounts, one of them twenty times the others."""
    centre, scale = ppl.draws(centre=ppl.Cauchy(0.0, 1e5), scale=ppl.HalfCauchy(1e5))
    ppl.rows(ppl.Cauchy(centre, scale), y)


def _food() -> tuple:
    income, food = columns("quantreg", "engel", "income", "foodexp")
    return income, food


@later("kinks", _food)
def high_quantile(ppl, x, y):
    """Nine tenths of what families spend on food, in francs."""
    start, slope = ppl.draws(start=ppl.Normal(0.0, 1000.0), slope=ppl.Normal(0.0, 10.0))
    scale = ppl.sample("scale", ppl.HalfNormal(500.0))
    rest = (y - start - slope * x) / scale
    ppl.factor("rows", (-ppl.log(scale) - ppl.where(rest > 0, 0.9 * rest, -0.1 * rest)).sum())


@later("kinks", lambda: tuple(columns("datasets", "cars", "speed", "dist")))
def bent_line(ppl, x, y):
    """A bend at an unknown speed, Laplace's priors and noise."""
    bend = ppl.sample("bend", ppl.Normal(15.0, 5.0))
    beta = ppl.sample("beta", ppl.Laplace(0.0, 10.0).expand([3]).to_event(1))
    scale = ppl.sample("scale", ppl.HalfNormal(30.0))
    beyond = ppl.where(x > bend, x - bend, 0 * x)
    ppl.rows(ppl.Laplace(beta[0] + beta[1] * x + beta[2] * beyond, scale), y)


def _swiss() -> tuple:
    names = "Agriculture", "Examination", "Education", "Catholic", "Infant.Mortality"
    (y,) = columns("datasets", "swiss", "Fertility")
    return np.column_stack(columns("datasets", "swiss", *names)), y


@later("kinks", _swiss)
def raw_lasso(ppl, X, y):
    """Laplace's priors of one learned width, percentages as they are."""
    width, start = ppl.draws(width=ppl.HalfCauchy(1.0), start=ppl.Normal(0.0, 100.0))
    beta = ppl.sample("beta", ppl.Laplace(0.0, width).expand([5]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(10.0))
    ppl.rows(ppl.StudentT(4.0, start + X @ beta, sigma), y)


def _absent() -> tuple:
    days, *inputs = columns("MASS", "quine", "Days", "Eth", "Sex", "Age")
    return days, np.column_stack([np.ones(len(days)), *map(codes, inputs)]).astype(float)


@later("enumerated", _absent, enumerated=True)
def absences(ppl, y, X):
    """A negative binomial with more zeros."""
    beta = ppl.normals("beta", 4, 3.0)
    phi, gate = ppl.draws(phi=ppl.LogNormal(0.0, 1.0), gate=ppl.Beta(1.0, 5.0))
    with ppl.plate("rows", len(y)):
        never = ppl.sample("never", ppl.Bernoulli(gate), infer={"enumerate": "parallel"})
        mean = ppl.exp(X @ beta)
        mean = ppl.where(never == 1, 1e-4 + 0 * mean, mean)
        ppl.sample("y", ppl.GammaPoisson(phi, phi / mean), obs=y)


def _words() -> tuple:
    year, sex, education = columns("carData", "Vocab", "year", "sex", "education")
    (words,) = columns("carData", "Vocab", "vocabulary")
    rows = np.random.default_rng(3808).choice(len(year), 4000, replace=False)
    X = np.column_stack([np.ones(4000), year[rows], education[rows]])
    return X, codes(sex)[rows], words[rows]


@later("minibatches", _words, batch=200)
def words(ppl, X, sex, y, batch=None):
    """A test of words by education and the year, which is near 1990, 200 people at a time."""
    beta = ppl.normals("beta", 3, 10.0)
    shift = ppl.normals("shift", 2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(5.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = X[rows] @ beta / 10 + shift[sex[rows]]
        ppl.sample("y", ppl.Normal(mean, sigma), obs=y[rows])
