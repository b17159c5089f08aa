"""Few latents with Student's and Cauchy's tails; every posterior is proper."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import columns, standard
from .registry import entry

GROUP = "heavy_tails"

_FIVE = np.array([-1.2, 0.3, 0.9, 1.1, 8.5])


@entry(GROUP, lambda: (_FIVE,))
def cauchy_location(ppl: Any, y: Any) -> None:
    dist = ppl.dist
    loc = ppl.sample("loc", dist.Cauchy(0.0, 10.0))
    scale = ppl.sample("scale", dist.HalfCauchy(2.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Cauchy(loc, scale), obs=y)


@entry(GROUP, lambda: (np.array([3.0]),))
def one_observation(ppl: Any, y: Any) -> None:
    """One normal response between a Cauchy mean and a half-Cauchy scale."""
    dist = ppl.dist
    loc = ppl.sample("loc", dist.Cauchy(0.0, 1.0))
    scale = ppl.sample("scale", dist.HalfCauchy(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(loc, scale + 0.1), obs=y)


def _starts() -> tuple:
    speed, distance = columns("datasets", "cars", "speed", "dist")
    return standard(speed), standard(distance)


@entry(GROUP, _starts)
def student_regression(ppl: Any, x: Any, y: Any) -> None:
    dist = ppl.dist
    a = ppl.sample("a", dist.Cauchy(0.0, 2.5))
    b = ppl.sample("b", dist.Cauchy(0.0, 2.5))
    sigma = ppl.sample("sigma", dist.HalfCauchy(1.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, a + b * x, sigma), obs=y)


@entry(GROUP, lambda: ())
def student_prior(ppl: Any) -> None:
    """No data: three latents as heavy as their priors."""
    for k, df in enumerate((1.5, 2.0, 3.0)):
        ppl.sample(f"x{k}", ppl.dist.StudentT(df, 0.0, 1.0))


@entry(GROUP, lambda: (np.array([0.5, -3.0, 4.0]),), held_out=True)
def horseshoe(ppl: Any, y: Any) -> None:
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfCauchy(1.0))
    with ppl.plate("means", 3):
        width = ppl.sample("width", dist.HalfCauchy(1.0))
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
        ppl.sample("y", dist.Normal(tau * width * z, 1.0), obs=y)


@entry(GROUP, lambda: (np.array([12.0, 1.5, 30.0, 4.0, 2.2]),), held_out=True)
def pareto(ppl: Any, y: Any) -> None:
    """Exponents of a power law from five responses above one, by an inverse-gamma prior."""
    dist, np = ppl.dist, ppl.np
    alpha = ppl.sample("alpha", dist.InverseGamma(1.0, 1.0))
    shift = ppl.sample("shift", dist.Cauchy(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(alpha, shift, 1.0), obs=np.log(y))


@entry(GROUP, lambda: (np.array([-4.0, -3.5, 5.0, 5.2]),))
def two_camps(ppl: Any, y: Any) -> None:
    """Responses with tails so heavy that the location may be with either half."""
    dist = ppl.dist
    loc = ppl.sample("loc", dist.StudentT(3.0, 0.0, 10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(2.0, loc, 0.5), obs=y)


def _separated() -> tuple:
    x = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    return x, (x > 0).astype(float)


@entry(GROUP, _separated)
def separated_logistic(ppl: Any, x: Any, y: Any) -> None:
    """All responses separated: only the Cauchy priors hold the slope."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Cauchy(0.0, 10.0))
    b = ppl.sample("b", dist.Cauchy(0.0, 2.5))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)
