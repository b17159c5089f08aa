"""The exponential families that a site can be declared as."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from ngvi.conjugate.factor import Factor, Random
from ngvi.families.base import Array

#: Above it ``log a - digamma(a)`` is its asymptotic series, to 1e-15 (Abramowitz and Stegun,
#: 6.3.18); the difference of the two functions would lose all digits in float32.
LARGE = 15.0


def log_minus_digamma(kind: Any, a: Array) -> Array:
    """``log a - digamma(a)``, positive."""
    small = kind.xp.where(a < LARGE, a, LARGE)
    large = kind.xp.where(a < LARGE, LARGE, a)
    u = 1 / large**2
    series = 1 / 120 - u * (1 / 252 - u * (1 / 240 - u / 132))
    series = 1 / (2 * large) + u * (1 / 12 - u * series)
    return kind.xp.where(a < LARGE, kind.xp.log(small) - kind.digamma(small), series)


def _spread(xp: Any, excess: Array) -> Array:
    """``b`` of ``cosh b = sqrt(1 + excess)``, also where the excess is below rounding."""
    return xp.arcsinh(xp.sqrt(excess))


class _GammaLike(Factor):
    """Of ``u`` or of ``1 / u``, for ``u`` with a Gamma density."""

    parameter_names: ClassVar[tuple[str, ...]] = ("concentration", "rate")

    def _log_points(self, signs: Array) -> Array:
        """Logarithms of the points of ``u``: ``E log u +- b``, ``cosh b = E u e^(-E log u)``."""
        concentration, rate = self.parameters()
        gap = log_minus_digamma(self, concentration)
        middle = self.xp.log(concentration / rate) - gap
        return middle + signs * _spread(self.xp, self.xp.expm1(2 * gap))

    def log_partition(self) -> Array:
        concentration, rate = self.parameters()
        return self.lgamma(concentration) - concentration * self.xp.log(rate)

    def is_proper(self) -> Array:
        concentration, rate = self.parameters()
        return (concentration > 0) & (rate > 0)


class Gamma(_GammaLike):
    """``t = (log x, x)``, ``lambda = (concentration - 1, -rate)``."""

    name: ClassVar[str] = "gamma"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value + 2.0, -3.0 / value]

    def parameters(self) -> tuple[Array, ...]:
        return self.natural[0] + 1, -self.natural[1]

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x), x]

    def slopes(self, x: Array) -> list[Array]:
        return [1 / x, self.xp.ones_like(x)]

    def expected_statistics(self) -> list[Array]:
        concentration, rate = self.parameters()
        log_mean = self.xp.log(concentration / rate)
        return [log_mean - log_minus_digamma(self, concentration), concentration / rate]

    def points(self, signs: Array) -> Array:
        return self.xp.exp(self._log_points(signs))

    @property
    def mean(self) -> Array:
        concentration, rate = self.parameters()
        return concentration / rate

    def draw(self, random: Random) -> Array:
        concentration, rate = self.parameters()
        return random.gamma(concentration) / rate

    def marginals(self) -> Any:
        from scipy import stats

        concentration, rate = self.parameters()
        return stats.gamma(concentration, scale=1 / rate)


class InverseGamma(_GammaLike):
    """``t = (log x, 1/x)``, ``lambda = (-concentration - 1, -rate)``."""

    name: ClassVar[str] = "inverse_gamma"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value - 4.0, -2.0 * value]

    def parameters(self) -> tuple[Array, ...]:
        return -self.natural[0] - 1, -self.natural[1]

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x), 1 / x]

    def slopes(self, x: Array) -> list[Array]:
        return [1 / x, -1 / x**2]

    def expected_statistics(self) -> list[Array]:
        concentration, rate = self.parameters()
        log_mean = self.xp.log(concentration / rate)
        return [log_minus_digamma(self, concentration) - log_mean, concentration / rate]

    def points(self, signs: Array) -> Array:
        return self.xp.exp(-self._log_points(signs))

    @property
    def mean(self) -> Array:
        concentration, rate = self.parameters()
        return self.xp.where(concentration > 1, rate / (concentration - 1), math.inf)

    def draw(self, random: Random) -> Array:
        concentration, rate = self.parameters()
        return rate / random.gamma(concentration)

    def marginals(self) -> Any:
        from scipy import stats

        concentration, rate = self.parameters()
        return stats.invgamma(concentration, scale=rate)


class _Mode(Factor):
    """A point mass at the mode of the conditional: maximum likelihood of type II, or its MAP.

    ``q`` is no density: ``log q`` is ``lambda . (t(x) - t(mode))``, which is zero at the mode, and
    whose mean over the two points takes away what they differ from it. Its fixed point is the
    argument that maximises the bound.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("mode",)

    @property
    def _width(self) -> float:
        """Half the distance of the points, in logarithms; at the root of the precision."""
        return float(np.finfo(str(self.loc.dtype).removeprefix("torch.")).eps ** 0.25)

    def parameters(self) -> tuple[Array, ...]:
        return (self.mode,)

    @property
    def mode(self) -> Array:
        """Where the mass is."""
        raise NotImplementedError

    @property
    def mean(self) -> Array:
        return self.mode

    def draw(self, random: Random) -> Array:
        return self.mode + 0.0 * random.uniform(self.mode)

    def expected_statistics(self) -> list[Array]:
        return self.statistics(self.mode)

    def log_partition(self) -> Array:
        """``max_x lambda . t(x)``."""
        pairs = zip(self.natural, self.expected_statistics(), strict=True)
        return sum(a * t for a, t in pairs)

    def quantiles(self, levels: Any) -> np.ndarray:
        return np.ones((*np.shape(levels), *[1] * len(self.shape))) * np.asarray(self.mode)


class GammaMode(_Mode, Gamma):
    """The mode ``(concentration - 1) / rate`` of a Gamma density."""

    name: ClassVar[str] = "gamma_mode"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value + 2.0, -2.0 / value]

    @property
    def mode(self) -> Array:
        return -self.natural[0] / self.natural[1]

    def is_proper(self) -> Array:
        return (self.natural[0] > 0) & (self.natural[1] < 0)

    def points(self, signs: Array) -> Array:
        return self.mode * self.xp.exp(signs * self._width) / math.cosh(self._width)


class InverseGammaMode(_Mode, InverseGamma):
    """The mode ``rate / (concentration + 1)`` of an inverse Gamma density."""

    name: ClassVar[str] = "inverse_gamma_mode"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value - 4.0, -4.0 * value]

    @property
    def mode(self) -> Array:
        return self.natural[1] / self.natural[0]

    def is_proper(self) -> Array:
        return (self.natural[0] < 0) & (self.natural[1] < 0)

    def points(self, signs: Array) -> Array:
        return self.mode * self.xp.exp(-signs * self._width) * math.cosh(self._width)


class _InverseGaussianLike(Factor):
    """Of ``u`` or of ``1 / u``, for ``u`` inverse Gaussian; ``t = (x, 1/x)`` for both.

    ``u`` has mean ``m`` and shape ``s``, with ``E[1/u] = 1/m + 1/s``.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "shape")

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [-1.0 / value, -1.0 * value]  # m, or 1/m, is the value

    def statistics(self, x: Array) -> list[Array]:
        return [x, 1 / x]

    def slopes(self, x: Array) -> list[Array]:
        return [self.xp.ones_like(x), -1 / x**2]

    def log_partition(self) -> Array:
        m, s = self.parameters()
        return -s / m - 0.5 * self.xp.log(s / (2 * math.pi))

    def is_proper(self) -> Array:
        return (self.natural[0] < 0) & (self.natural[1] < 0)

    def points(self, signs: Array) -> Array:
        """``sqrt(E x / E[1/x]) e^(+-b)`` with ``cosh^2 b = E x E[1/x] = 1 + m / s``."""
        m, s = self.parameters()
        x, inverse = self.expected_statistics()
        return self.xp.sqrt(x / inverse) * self.xp.exp(signs * _spread(self.xp, m / s))

    @property
    def mean(self) -> Array:
        return self.expected_statistics()[0]

    def _draw(self, random: Random) -> Array:
        """Of ``u`` (Michael, Schucany and Haas, 1976)."""
        m, s = self.parameters()
        r = 0.5 * m / s * random.normal(m) ** 2
        small = m / (1 + r + self.xp.sqrt(r * (r + 2)))
        return self.xp.where(random.uniform(m) * (m + small) <= m, small, m**2 / small)


class InverseGaussian(_InverseGaussianLike):
    """``lambda = (-s / (2 m^2), -s / 2)``, ``h = -3/2 log x``."""

    name: ClassVar[str] = "inverse_gaussian"

    def parameters(self) -> tuple[Array, ...]:
        return self.xp.sqrt(self.natural[1] / self.natural[0]), -2 * self.natural[1]

    def log_base(self, x: Array) -> Array:
        return -1.5 * self.xp.log(x)

    def base_slope(self, x: Array) -> Array:
        return -1.5 / x

    def expected_statistics(self) -> list[Array]:
        m, s = self.parameters()
        return [m, 1 / m + 1 / s]

    def draw(self, random: Random) -> Array:
        return self._draw(random)

    def marginals(self) -> Any:
        from scipy import stats

        m, s = self.parameters()
        return stats.invgauss(m / s, scale=s)


class ReciprocalInverseGaussian(_InverseGaussianLike):
    """``1/x`` is inverse Gaussian: ``lambda = (-s / 2, -s / (2 m^2))``, ``h = -1/2 log x``.

    The scale ``tau`` of a normal-Gamma prior ``w ~ N(0, tau I_m)``, ``tau ~ Gamma((m + 1) / 2,
    rate)``, given ``w`` (Tan, S8).
    """

    name: ClassVar[str] = "reciprocal_inverse_gaussian"

    def parameters(self) -> tuple[Array, ...]:
        return self.xp.sqrt(self.natural[0] / self.natural[1]), -2 * self.natural[0]

    def log_base(self, x: Array) -> Array:
        return -0.5 * self.xp.log(x)

    def base_slope(self, x: Array) -> Array:
        return -0.5 / x

    def expected_statistics(self) -> list[Array]:
        m, s = self.parameters()
        return [1 / m + 1 / s, m]

    def draw(self, random: Random) -> Array:
        return 1 / self._draw(random)

    def quantiles(self, levels: Any) -> np.ndarray:
        return 1 / super().quantiles(1 - np.asarray(levels))

    def marginals(self) -> Any:
        """Of ``1 / x``."""
        from scipy import stats

        m, s = self.parameters()
        return stats.invgauss(m / s, scale=s)


class Normal(Factor):
    """``t = (x, x^2)``, ``lambda = (m / s^2, -1 / (2 s^2))``."""

    name: ClassVar[str] = "normal"
    support: ClassVar[str] = "real"
    parameter_names: ClassVar[tuple[str, ...]] = ("loc", "scale")

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [value, 0.0 * value - 0.5]

    def parameters(self) -> tuple[Array, ...]:
        variance = -0.5 / self.natural[1]
        return self.natural[0] * variance, self.xp.sqrt(variance)

    def statistics(self, x: Array) -> list[Array]:
        return [x, x**2]

    def slopes(self, x: Array) -> list[Array]:
        return [self.xp.ones_like(x), 2 * x]

    def expected_statistics(self) -> list[Array]:
        loc, scale = self.parameters()
        return [loc, loc**2 + scale**2]

    def log_partition(self) -> Array:
        loc, scale = self.parameters()
        return 0.5 * (loc / scale) ** 2 + self.xp.log(scale) + 0.5 * math.log(2 * math.pi)

    def is_proper(self) -> Array:
        return self.natural[1] < 0

    def points(self, signs: Array) -> Array:
        loc, scale = self.parameters()
        return loc + signs * scale

    @property
    def mean(self) -> Array:
        return self.parameters()[0]

    def draw(self, random: Random) -> Array:
        loc, scale = self.parameters()
        return loc + scale * random.normal(loc)

    def marginals(self) -> Any:
        from scipy import stats

        return stats.norm(*self.parameters())


def _logit_spread(xp: Any, halves: tuple[Array, Array], deficit: Array) -> Array:
    """``b`` of ``(P e^b + Q e^-b)(P e^-b + Q e^b) = 1``, where ``1 - P - Q`` is the deficit."""
    return _spread(xp, deficit * (2 - deficit) / (4 * halves[0] * halves[1]))


class Beta(Factor):
    """``t = (log x, log(1 - x))``, ``lambda = (a - 1, b - 1)``."""

    name: ClassVar[str] = "beta"
    support: ClassVar[str] = "unit_interval"
    parameter_names: ClassVar[tuple[str, ...]] = ("concentration1", "concentration0")

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [4 * value - 1, 3 - 4 * value]

    def parameters(self) -> tuple[Array, ...]:
        return self.natural[0] + 1, self.natural[1] + 1

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x), self.xp.log1p(-x)]

    def slopes(self, x: Array) -> list[Array]:
        return [1 / x, -1 / (1 - x)]

    def _losses(self) -> tuple[Array, Array, Array]:
        """``log E x - E log x``, that of ``1 - x``, and the mean."""
        a, b = self.parameters()
        of_sum = log_minus_digamma(self, a + b)
        return log_minus_digamma(self, a) - of_sum, log_minus_digamma(self, b) - of_sum, a / (a + b)

    def expected_statistics(self) -> list[Array]:
        left, right, mean = self._losses()
        return [self.xp.log(mean) - left, self.xp.log1p(-mean) - right]

    def log_partition(self) -> Array:
        a, b = self.parameters()
        return self.lgamma(a) + self.lgamma(b) - self.lgamma(a + b)

    def is_proper(self) -> Array:
        return (self.natural[0] > -1) & (self.natural[1] > -1)

    def points(self, signs: Array) -> Array:
        left, right, mean = self._losses()
        exp, expm1 = self.xp.exp, self.xp.expm1
        halves = mean * exp(-left), (1 - mean) * exp(-right)
        deficit = -mean * expm1(-left) - (1 - mean) * expm1(-right)
        shift = signs * _logit_spread(self.xp, halves, deficit)
        one, other = halves[0] * exp(shift), halves[1] * exp(-shift)
        return one / (one + other)

    @property
    def mean(self) -> Array:
        return self._losses()[2]

    def draw(self, random: Random) -> Array:
        one, other = map(random.gamma, self.parameters())
        return one / (one + other)

    def marginals(self) -> Any:
        from scipy import stats

        return stats.beta(*self.parameters())


class Dirichlet(Factor):
    """``t = log x``, ``lambda = concentration - 1``; an element is a vector of ``K`` numbers.

    The points are ``softmax(E log x +- b v)`` with ``v`` of alternating signs. What the model makes
    of a vector off the simplex is of no account: gradients are taken along it.
    """

    name: ClassVar[str] = "dirichlet"
    support: ClassVar[str] = "simplex"
    parameter_names: ClassVar[tuple[str, ...]] = ("concentration",)

    @property
    def elements(self) -> tuple[int, ...]:
        return self.shape[:-1]

    @property
    def natural(self) -> Array:
        return self.loc.reshape(self.shape[-1], *self.elements)

    @property
    def _vectors(self) -> Array:
        """``lambda``, of the site's shape."""
        return self.xp.moveaxis(self.natural, 0, -1)

    @property
    def _alternating(self) -> Array:
        ones = self.xp.ones_like(self._vectors)
        return ones - 2.0 * ((self.xp.cumsum(ones, -1) - 1) % 2)

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        size = value.shape[-1]
        return [2 * size * value[..., k] - 1 for k in range(size)]

    def parameters(self) -> tuple[Array, ...]:
        return (self._vectors + 1,)

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x[..., k]) for k in range(self.shape[-1])]

    def _losses(self) -> tuple[Array, Array]:
        """``log E x - E log x``, and the mean."""
        (a,) = self.parameters()
        total = a.sum(-1)[..., None]
        return log_minus_digamma(self, a) - log_minus_digamma(self, total), a / total

    def expected_statistics(self) -> list[Array]:
        losses, mean = self._losses()
        expected = self.xp.log(mean) - losses
        return [expected[..., k] for k in range(self.shape[-1])]

    def log_partition(self) -> Array:
        (a,) = self.parameters()
        return self.lgamma(a).sum(-1) - self.lgamma(a.sum(-1))

    def is_proper(self) -> Array:
        return (self._vectors > -1).all(-1)

    def points(self, signs: Array) -> Array:
        losses, mean = self._losses()
        log_weights, v = self.xp.log(mean) - losses, self._alternating
        weights = self.xp.exp(log_weights)
        halves = (weights * (1 + v) / 2).sum(-1), (weights * (1 - v) / 2).sum(-1)
        deficit = (-mean * self.xp.expm1(-losses)).sum(-1)
        shift = signs * _logit_spread(self.xp, halves, deficit)
        moved = weights * self.xp.exp(shift[..., None] * v)
        return moved / moved.sum(-1)[..., None]

    def inside(self, x: Array, gradient: Array) -> Array:
        """The gradient in ``log x``, up to a constant."""
        return x * (gradient - (x * gradient).sum(-1)[..., None])

    def coefficients(self, plus: Array, minus: Array) -> Array:
        ones, v = self.xp.ones_like(self.natural[0]), self._alternating
        x, y = self.points(ones), self.points(-ones)
        g, h = self.inside(x, plus), self.inside(y, minus)
        total = -(v * (g - h)).sum(-1) / (v * (x - y)).sum(-1)
        c = 0.5 * (g + h) + 0.5 * (x + y) * total[..., None]
        return self.xp.moveaxis(c, -1, 0)

    def predicted(self, c: Array, x: Array) -> tuple[Array, Array]:
        c = self.xp.moveaxis(c, 0, -1)
        total = c.sum(-1)[..., None]
        return c - total * x, abs(c) + abs(total) * x

    def displacement(self, change: Array, signs: Array) -> Array:
        """Along the simplex the gradient in ``log x``, up to a constant, is ``c - C x``.

        ``C = sum c`` from the difference of both, in the direction ``v``; then ``c`` from the mean.
        """
        plus, minus = self.points(abs(signs)), self.points(-abs(signs))
        here, v = self.points(signs), self._alternating
        change = self.xp.moveaxis(change, 0, -1)
        mean = 0.5 * (plus + minus)
        slope = (mean * change).sum(-1) / (v * (plus - minus)).sum(-1)
        moved = change - 2 * v * (signs * slope)[..., None]
        return here * (moved - (here * moved).sum(-1)[..., None])

    @property
    def mean(self) -> Array:
        return self._losses()[1]

    def draw(self, random: Random) -> Array:
        weights = random.gamma(*self.parameters())
        return weights / weights.sum(-1)[..., None]

    def marginals(self) -> Any:
        from scipy import stats

        (a,) = self.parameters()
        return stats.beta(a, a.sum(-1)[..., None] - a)
