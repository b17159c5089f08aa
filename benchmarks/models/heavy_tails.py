"""Few latents with Student's and Cauchy's tails; every posterior is proper."""

import numpy as np

from .entries import columns, entry, standard

GROUP = "heavy_tails"

_FIVE = np.array([-1.2, 0.3, 0.9, 1.1, 8.5])


@entry(GROUP, lambda: (_FIVE,))
def cauchy_location(ppl, y):
    loc, scale = ppl.draws(loc=ppl.Cauchy(0.0, 10.0), scale=ppl.HalfCauchy(2.0))
    ppl.rows(ppl.Cauchy(loc, scale), y)


@entry(GROUP, lambda: (np.array([3.0]),))
def one_observation(ppl, y):
    """One normal response between a Cauchy mean and a half-Cauchy scale."""
    loc, scale = ppl.draws(loc=ppl.Cauchy(0.0, 1.0), scale=ppl.HalfCauchy(1.0))
    ppl.rows(ppl.Normal(loc, scale + 0.1), y)


def _starts() -> tuple:
    speed, distance = columns("datasets", "cars", "speed", "dist")
    return standard(speed), standard(distance)


@entry(GROUP, _starts)
def student_regression(ppl, x, y):
    a, b = ppl.draws(a=ppl.Cauchy(0.0, 2.5), b=ppl.Cauchy(0.0, 2.5))
    sigma, nu = ppl.draws(sigma=ppl.HalfCauchy(1.0), nu=ppl.Gamma(2.0, 0.1))
    ppl.rows(ppl.StudentT(nu, a + b * x, sigma), y)


@entry(GROUP, lambda: ())
def student_prior(ppl):
    """No data: three latents as heavy as their priors."""
    for k, df in enumerate((1.5, 2.0, 3.0)):
        ppl.sample(f"x{k}", ppl.StudentT(df, 0.0, 1.0))


@entry(GROUP, lambda: (np.array([0.5, -3.0, 4.0]),))
def horseshoe(ppl, y):
    tau = ppl.sample("tau", ppl.HalfCauchy(1.0))
    with ppl.plate("means", 3):
        width, z = ppl.draws(width=ppl.HalfCauchy(1.0), z=ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Normal(tau * width * z, 1.0), obs=y)


@entry(GROUP, lambda: (np.array([12.0, 1.5, 30.0, 4.0, 2.2]),))
def pareto(ppl, y):
    """Exponents of a power law from five responses above one, by an inverse-gamma prior."""
    alpha, shift = ppl.draws(alpha=ppl.InverseGamma(1.0, 1.0), shift=ppl.Cauchy(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.StudentT(alpha, shift, 1.0), obs=ppl.log(y))


@entry(GROUP, lambda: (np.array([-4.0, -3.5, 5.0, 5.2]),))
def two_camps(ppl, y):
    """Responses with tails so heavy that the location may be with either half."""
    loc = ppl.sample("loc", ppl.StudentT(3.0, 0.0, 10.0))
    ppl.rows(ppl.StudentT(2.0, loc, 0.5), y)


def _separated() -> tuple:
    x = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    return x, (x > 0).astype(float)


@entry(GROUP, _separated)
def separated_logistic(ppl, x, y):
    """All responses separated: only the Cauchy priors hold the slope."""
    a, b = ppl.draws(a=ppl.Cauchy(0.0, 10.0), b=ppl.Cauchy(0.0, 2.5))
    ppl.rows(ppl.Bernoulli(logits=a + b * x), y)
