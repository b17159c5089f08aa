"""More posteriors that are no Gaussians: series, processes, shrinkage, curves."""

import numpy as np

from .entries import everyday, floats, levels, standard, table


def _mtcars() -> tuple:
    d = table("datasets", "mtcars").select_dtypes("number")
    return standard(d.drop(columns="mpg")), floats(d.mpg)


@everyday(_mtcars)
def horseshoe(ppl, X, y):
    """A regularised horseshoe, 32 rows."""
    a, s, tau = ppl.draws(a=ppl.Normal(20.0, 10.0), s=ppl.HalfNormal(5.0), tau=ppl.HalfCauchy(0.5))
    c2 = ppl.sample("c2", ppl.InverseGamma(2.0, 20.0))
    with ppl.plate("cols", X.shape[1]):
        lam, z = ppl.draws(lam=ppl.HalfCauchy(1.0), z=ppl.Normal(0.0, 1.0))
    b = z * tau * ppl.sqrt(c2 * lam**2 / (c2 + tau**2 * lam**2))
    ppl.rows(ppl.Normal(a + X @ b, s), y)


@everyday(lambda: (floats(table("AER", "MarkPound").iloc[:300, -1]),))
def garch(ppl, y):
    """GARCH(1, 1)."""
    m, w, a = ppl.draws(m=ppl.Normal(0.0, 1.0), w=ppl.HalfNormal(0.5), a=ppl.Uniform(0.0, 1.0))
    rest = ppl.sample("r", ppl.Uniform(0.0, 1.0))
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
        variances = ppl.stack(found)
    with ppl.plate("rows", len(y) - 1):
        ppl.sample("y", ppl.Normal(m, ppl.sqrt(variances)), obs=y[1:])


def _cars() -> tuple:
    d = table("datasets", "cars")
    return floats(d.speed) + 1e-3 * np.arange(len(d)), floats(d.dist) / 25 - 1.7


@everyday(_cars)
def process(ppl, x, y):
    """A Gaussian process, its hyperparameters."""
    length = ppl.sample("l", ppl.LogNormal(2.0, 1.0))
    a, s = ppl.draws(a=ppl.HalfNormal(2.0), s=ppl.HalfNormal(1.0))
    kernel = a**2 * ppl.exp(-0.5 * (x[:, None] - x) ** 2 / length**2)
    kernel = kernel + (s**2 + 1e-6) * ppl.eye(len(x))
    ppl.sample("y", ppl.MultivariateNormal(0 * x, covariance_matrix=kernel), obs=y)


def _bod() -> tuple:
    d = table("datasets", "BOD")
    return floats(d.Time), floats(d.demand)


@everyday(_bod)
def bod(ppl, t, y):
    """A curve through six points."""
    most = ppl.sample("A", ppl.HalfNormal(50.0))
    k, s = ppl.draws(k=ppl.HalfNormal(2.0), s=ppl.HalfCauchy(5.0))
    ppl.rows(ppl.Normal(most * (1 - ppl.exp(-k * t)), s), y)


@everyday(lambda: (table("psych", "lsat6").to_numpy(float)[:, -5:][2::5],))
def responses(ppl, y):
    """Item response with two parameters, 200 people."""
    m, sb = ppl.draws(m=ppl.Normal(0.0, 2.0), sb=ppl.HalfCauchy(2.0))
    with ppl.plate("items", 5, dim=-1):
        a = ppl.sample("disc", ppl.LogNormal(0.0, 0.5))
        b = ppl.sample("b", ppl.Normal(m, sb))
    with ppl.plate("people", len(y), dim=-2):
        theta = ppl.sample("th", ppl.Normal(0.0, 1.0))
        with ppl.plate("answers", 5, dim=-1):
            ppl.sample("y", ppl.Bernoulli(logits=a * theta + b), obs=y)


@everyday(lambda: (np.log10(floats(table("datasets", "lynx").value)),))
def lynx(ppl, y):
    """AR(2) with Student's t errors."""
    c, a1, a2 = ppl.draws(c=ppl.Normal(0.0, 5.0), a1=ppl.Normal(0.0, 1.0), a2=ppl.Normal(0.0, 1.0))
    s, nu = ppl.draws(s=ppl.HalfNormal(1.0), nu=ppl.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", ppl.StudentT(nu, c + a1 * y[1:-1] + a2 * y[:-2], s), obs=y[2:])


def _crohn() -> tuple:
    d = table("robustbase", "CrohnD")
    return standard(d[["BMI", "age"]]), floats(levels(d.sex)), levels(d.treat), floats(d.nrAdvE)


@everyday(_crohn)
def crohn(ppl, X, sex, treatment, y):
    """Counts with an effect for each row."""
    a, bs, s = ppl.draws(a=ppl.Normal(0.0, 3.0), bs=ppl.Normal(0.0, 2.0), s=ppl.HalfCauchy(1.0))
    with ppl.plate("cols", 2):
        b = ppl.sample("b", ppl.Normal(0.0, 2.0))
    with ppl.plate("treats", 3):
        g = ppl.sample("g", ppl.Normal(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        u = ppl.sample("u", ppl.Normal(0.0, s))
        rate = ppl.exp(a + X @ b + bs * sex + g[treatment] + u)
        ppl.sample("y", ppl.Poisson(rate), obs=y)
