"""The table of exponential families that a site can be declared as.

Functions take the site, for its array library, and then the usual parameters of the family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose stats are imported when they are used


class Statistic(NamedTuple):
    """A function ``t(x)`` and its derivative, both of an array library and ``x``."""

    value: Callable
    slope: Callable


ITSELF = Statistic(lambda xp, x: x, lambda xp, x: xp.ones_like(x))
INVERSE = Statistic(lambda xp, x: 1 / x, lambda xp, x: -1 / x**2)
SQUARE = Statistic(lambda xp, x: x**2, lambda xp, x: 2 * x)
LOG = Statistic(lambda xp, x: xp.log(x), lambda xp, x: 1 / x)


class Exponential(NamedTuple):
    """A family with two statistics."""

    t: tuple[Statistic, Statistic]
    parameters: Callable  #: Return the usual parameters at the natural ones.
    is_proper: Callable  #: Say whether the natural parameters are in the domain.
    near: Callable  #: Return natural parameters of a broad density around values.
    mean: Callable
    expected: Callable  #: Return ``E_q[t(x)]``, a list.
    log_partition: Callable  #: Return ``A(lambda)``.
    points: Callable  #: Return the two points, for signs.
    draw: Callable  #: Draw by the ``gamma``, ``normal`` and ``uniform`` of a package.
    quantiles: Callable  #: Return quantiles by levels, with numpy.
    base: float  #: The factor of ``log x`` in ``h(x)``.
    support: str = "positive"  #: ``"positive"`` or ``"real"``.
    #: A point mass is checked by the points of this family, which are further apart.
    checked_as: str | None = None


#: Above it ``log a - digamma(a)`` is its asymptotic series, to 1e-15 (Abramowitz and Stegun,
#: 6.3.18); the difference of the two functions would lose all digits in float32.
LARGE = 15.0


def _log_minus_digamma(q: Any, a: Any) -> Any:
    """``log a - digamma(a)``, which is ``log E u - E log u`` of a Gamma density."""
    small, large = q.xp.where(a < LARGE, a, LARGE), q.xp.where(a < LARGE, LARGE, a)
    u = 1 / large**2
    series = 1 / 120 - u * (1 / 252 - u * (1 / 240 - u / 132))
    series = 1 / (2 * large) + u * (1 / 12 - u * series)
    return q.xp.where(a < LARGE, q.xp.log(small) - q.digamma(small), series)


def _log_points(q: Any, signs: Any, concentration: Any, rate: Any) -> Any:
    """``E log u +- b`` with ``cosh b = E u e^(-E log u)``, of a Gamma density of ``u``."""
    gap = _log_minus_digamma(q, concentration)
    spread = q.xp.arcsinh(q.xp.sqrt(q.xp.expm1(2 * gap)))
    return q.xp.log(concentration / rate) - gap + signs * spread


def _mean_log(q: Any, concentration: Any, rate: Any) -> Any:
    return q.xp.log(concentration / rate) - _log_minus_digamma(q, concentration)


def _points_of_mode(q: Any, signs: Any, mode: Any) -> Any:
    """Half their distance, in logarithms, is at the root of the precision."""
    width = float(np.finfo(str(mode.dtype).removeprefix("torch.")).eps ** 0.25)
    return mode * q.xp.exp(signs * width) / math.cosh(width)


def _points_of_inverse_gaussian(q: Any, signs: Any, m: Any, s: Any) -> Any:
    """``sqrt(E x / E[1/x]) e^(+-b)`` with ``cosh^2 b = E x E[1/x] = 1 + m / s``."""
    spread = q.xp.arcsinh(q.xp.sqrt(m / s))
    return q.xp.sqrt(m / (1 / m + 1 / s)) * q.xp.exp(signs * spread)


def _draw_inverse_gaussian(q: Any, random: Any, m: Any, s: Any) -> Any:
    """Draw by Michael, Schucany and Haas (1976)."""
    r = 0.5 * m / s * random.normal(m) ** 2
    small = m / (1 + r + q.xp.sqrt(r * (r + 2)))
    return q.xp.where(random.uniform(m) * (m + small) <= m, small, m**2 / small)


#: ``lambda = (concentration - 1, -rate)``; the parameters are the concentration and the rate.
GAMMA = Exponential(
    t=(LOG, ITSELF),
    parameters=lambda q, a, b: (a + 1, -b),
    is_proper=lambda a, b: (a + 1 > 0) & (b < 0),
    near=lambda x: [0.0 * x + 2.0, -3.0 / x],
    mean=lambda q, a, rate: a / rate,
    expected=lambda q, a, rate: [_mean_log(q, a, rate), a / rate],
    log_partition=lambda q, a, rate: q.lgamma(a) - a * q.xp.log(rate),
    points=lambda q, signs, a, rate: q.xp.exp(_log_points(q, signs, a, rate)),
    draw=lambda q, random, a, rate: random.gamma(a) / rate,
    quantiles=lambda levels, a, rate: scipy.stats.gamma.ppf(levels, a, scale=1 / rate),
    base=0.0,
)

#: By the name that a user declares a site by.
FAMILIES = {
    "gamma": GAMMA,
    # A point mass at the mode (concentration - 1) / rate of a Gamma density, its parameter: maximum
    # likelihood of type II where the prior is flat, and its MAP else. q is no density: log q is
    # lambda . (t(x) - t(mode)), which is zero at the mode, and whose mean over the two points takes
    # away what they differ from it. Its fixed point maximises the bound.
    "gamma_mode": GAMMA._replace(
        parameters=lambda q, a, b: (-a / b,),
        is_proper=lambda a, b: (a > 0) & (b < 0),
        near=lambda x: [0.0 * x + 2.0, -2.0 / x],
        mean=lambda q, mode: mode,
        expected=lambda q, mode: [q.xp.log(mode), mode],
        log_partition=lambda q, mode: q.natural[0] * q.xp.log(mode) + q.natural[1] * mode,
        points=_points_of_mode,
        draw=lambda q, random, mode: mode + 0.0 * random.uniform(mode),
        quantiles=lambda levels, mode: np.ones_like(levels) * mode,
        checked_as="gamma",
    ),
    # lambda = (-concentration - 1, -rate); 1/x has the Gamma density of the same parameters.
    "inverse_gamma": GAMMA._replace(
        t=(LOG, INVERSE),
        parameters=lambda q, a, b: (-(a + 1), -b),
        is_proper=lambda a, b: (a + 1 < 0) & (b < 0),
        near=lambda x: [0.0 * x - 4.0, -2.0 * x],
        mean=lambda q, a, rate: q.xp.where(a > 1, rate / (a - 1), math.inf),
        expected=lambda q, a, rate: [-_mean_log(q, a, rate), a / rate],
        points=lambda q, signs, a, rate: q.xp.exp(-_log_points(q, signs, a, rate)),
        draw=lambda q, random, a, rate: rate / random.gamma(a),
        quantiles=lambda levels, a, rate: scipy.stats.invgamma.ppf(levels, a, scale=rate),
    ),
    # lambda = (-s / (2 m^2), -s / 2); the parameters are the mean m and the shape s.
    "inverse_gaussian": Exponential(
        t=(ITSELF, INVERSE),
        parameters=lambda q, a, b: (q.xp.sqrt(b / a), -2 * b),
        is_proper=lambda a, b: (a < 0) & (b < 0),
        near=lambda x: [-1.0 / x, -1.0 * x],
        mean=lambda q, m, s: m,
        expected=lambda q, m, s: [m, 1 / m + 1 / s],
        log_partition=lambda q, m, s: -s / m - 0.5 * q.xp.log(s / (2 * math.pi)),
        points=_points_of_inverse_gaussian,
        draw=_draw_inverse_gaussian,
        quantiles=lambda levels, m, s: scipy.stats.invgauss.ppf(levels, m / s, scale=s),
        base=-1.5,
    ),
    # lambda = (m / s^2, -1 / (2 s^2)); the parameters are the mean m and the standard deviation s.
    "normal": Exponential(
        t=(ITSELF, SQUARE),
        parameters=lambda q, a, b: (a * (-0.5 / b), q.xp.sqrt(-0.5 / b)),
        is_proper=lambda a, b: b < 0,
        near=lambda x: [x, 0.0 * x - 0.5],
        mean=lambda q, m, s: m,
        expected=lambda q, m, s: [m, m**2 + s**2],
        log_partition=lambda q, m, s: 0.5 * ((m / s) ** 2 + math.log(2 * math.pi)) + q.xp.log(s),
        points=lambda q, signs, m, s: m + signs * s,
        draw=lambda q, random, m, s: m + s * random.normal(m),
        quantiles=lambda levels, m, s: scipy.stats.norm.ppf(levels, m, s),
        base=0.0,
        support="real",
    ),
}
