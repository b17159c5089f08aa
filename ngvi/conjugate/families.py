"""The exponential families that a site can be declared as."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import scipy  # whose stats are imported when they are used

from ngvi.conjugate.site import ConjugateSite
from ngvi.families.base import Array


class Gamma(ConjugateSite):
    """``t = (log x, x)``, ``lambda = (concentration - 1, -rate)``.

    The parameters are the concentration and the rate of ``u = x^power``. Of ``log u`` the points
    are ``E log u +- b``, with ``cosh b = E u e^(-E log u)``.
    """

    name: ClassVar[str] = "gamma"
    power: ClassVar[int] = 1

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value + 2.0, -3.0 / value]

    def parameters(self) -> tuple[Array, ...]:
        return self.power * (self.natural[0] + 1), -self.natural[1]

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x), x**self.power]

    def slopes(self, x: Array) -> list[Array]:
        return [1 / x, self.power * x ** (self.power - 1)]

    def _gap_and_middle(self) -> tuple[Array, Array]:
        """``log E u - E log u``, and ``E log u``."""
        concentration, rate = self.parameters()
        gap = self.log_minus_digamma(concentration)
        return gap, self.xp.log(concentration / rate) - gap

    def expected_statistics(self) -> list[Array]:
        concentration, rate = self.parameters()
        return [self.power * self._gap_and_middle()[1], concentration / rate]

    def log_partition(self) -> Array:
        concentration, rate = self.parameters()
        return self.lgamma(concentration) - concentration * self.xp.log(rate)

    def is_proper(self) -> Array:
        concentration, rate = self.parameters()
        return (concentration > 0) & (rate > 0)

    def points(self, signs: Array) -> Array:
        gap, middle = self._gap_and_middle()
        spread = self.spread(self.xp.expm1(2 * gap))
        return self.xp.exp(self.power * (middle + signs * spread))

    @property
    def mean(self) -> Array:
        concentration, rate = self.parameters()
        return concentration / rate

    def draw(self, random: Any) -> Array:
        concentration, rate = self.parameters()
        return (random.gamma(concentration) / rate) ** self.power

    def marginals(self) -> Any:
        concentration, rate = self.parameters()
        return scipy.stats.gamma(concentration, scale=1 / rate)


class InverseGamma(Gamma):
    """``t = (log x, 1/x)``, ``lambda = (-concentration - 1, -rate)``."""

    name: ClassVar[str] = "inverse_gamma"
    power: ClassVar[int] = -1

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value - 4.0, -2.0 * value]

    @property
    def mean(self) -> Array:
        concentration, rate = self.parameters()
        return self.xp.where(concentration > 1, rate / (concentration - 1), math.inf)

    def marginals(self) -> Any:
        concentration, rate = self.parameters()
        return scipy.stats.invgamma(concentration, scale=rate)


class GammaMode(Gamma):
    """A point mass at the mode ``(concentration - 1) / rate`` of a Gamma density, its parameter.

    Maximum likelihood of type II where the prior is flat, and its MAP else. ``q`` is no density:
    ``log q`` is ``lambda . (t(x) - t(mode))``, which is zero at the mode, and whose mean over the
    two points takes away what they differ from it. Its fixed point is the argument that maximises
    the bound.
    """

    name: ClassVar[str] = "gamma_mode"
    checked_as: ClassVar[str | None] = "gamma"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [0.0 * value + 2.0, -2.0 / value]

    def parameters(self) -> tuple[Array, ...]:
        return (-self.natural[0] / self.natural[1],)

    @property
    def mean(self) -> Array:
        return self.parameters()[0]

    def expected_statistics(self) -> list[Array]:
        return self.statistics(self.mean)

    def log_partition(self) -> Array:
        """``max_x lambda . t(x)``."""
        pairs = zip(self.natural, self.expected_statistics(), strict=True)
        return sum(a * t for a, t in pairs)

    def is_proper(self) -> Array:
        return (self.natural[0] > 0) & (self.natural[1] < 0)

    def points(self, signs: Array) -> Array:
        """Half their distance, in logarithms, is at the root of the precision."""
        width = float(np.finfo(str(self.loc.dtype).removeprefix("torch.")).eps ** 0.25)
        return self.mean * self.xp.exp(signs * width) / math.cosh(width)

    def draw(self, random: Any) -> Array:
        return self.mean + 0.0 * random.uniform(self.mean)

    def quantiles(self, levels: Any) -> np.ndarray:
        return np.ones((*np.shape(levels), *[1] * len(self.shape))) * np.asarray(self.mean)


class InverseGaussian(ConjugateSite):
    """``t = (x, 1/x)``, ``lambda = (-s / (2 m^2), -s / 2)``, ``h = -3/2 log x``.

    The parameters are the mean ``m`` and the shape ``s``, with ``E[1/x] = 1/m + 1/s``.
    """

    name: ClassVar[str] = "inverse_gaussian"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [-1.0 / value, -1.0 * value]

    def parameters(self) -> tuple[Array, ...]:
        return self.xp.sqrt(self.natural[1] / self.natural[0]), -2 * self.natural[1]

    def statistics(self, x: Array) -> list[Array]:
        return [x, 1 / x]

    def slopes(self, x: Array) -> list[Array]:
        return [self.xp.ones_like(x), -1 / x**2]

    def log_base(self, x: Array) -> Array:
        return -1.5 * self.xp.log(x)

    def base_slope(self, x: Array) -> Array:
        return -1.5 / x

    def expected_statistics(self) -> list[Array]:
        m, s = self.parameters()
        return [m, 1 / m + 1 / s]

    def log_partition(self) -> Array:
        m, s = self.parameters()
        return -s / m - 0.5 * self.xp.log(s / (2 * math.pi))

    def is_proper(self) -> Array:
        return (self.natural[0] < 0) & (self.natural[1] < 0)

    def points(self, signs: Array) -> Array:
        """``sqrt(E x / E[1/x]) e^(+-b)`` with ``cosh^2 b = E x E[1/x] = 1 + m / s``."""
        m, s = self.parameters()
        x, inverse = self.expected_statistics()
        return self.xp.sqrt(x / inverse) * self.xp.exp(signs * self.spread(m / s))

    def draw(self, random: Any) -> Array:
        """By Michael, Schucany and Haas (1976)."""
        m, s = self.parameters()
        r = 0.5 * m / s * random.normal(m) ** 2
        small = m / (1 + r + self.xp.sqrt(r * (r + 2)))
        return self.xp.where(random.uniform(m) * (m + small) <= m, small, m**2 / small)

    def marginals(self) -> Any:
        m, s = self.parameters()
        return scipy.stats.invgauss(m / s, scale=s)


class Normal(ConjugateSite):
    """``t = (x, x^2)``, ``lambda = (m / s^2, -1 / (2 s^2))``; the parameters are ``m``, ``s``."""

    name: ClassVar[str] = "normal"
    support: ClassVar[str] = "real"

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

    def draw(self, random: Any) -> Array:
        loc, scale = self.parameters()
        return loc + scale * random.normal(loc)

    def marginals(self) -> Any:
        return scipy.stats.norm(*self.parameters())


class _Proportions(ConjugateSite):
    """Of ``K`` numbers ``x`` that sum to one ``t = log x``, ``lambda = concentration - 1``.

    The points are ``softmax(E log x +- b v)`` with ``v`` of alternating signs. Arrays of all ``K``
    have these last, ``(*elements, K)``.
    """

    @property
    def _concentration(self) -> Array:
        return self.xp.moveaxis(self.natural, 0, -1) + 1

    @property
    def _alternating(self) -> Array:
        """``v``."""
        ones = self.xp.ones_like(self._concentration)
        return ones - 2.0 * ((self.xp.cumsum(ones, -1) - 1) % 2)

    def _losses(self) -> tuple[Array, Array]:
        """``log E x - E log x``, and ``E x``."""
        a = self._concentration
        total = a.sum(-1)[..., None]
        return self.log_minus_digamma(a) - self.log_minus_digamma(total), a / total

    def expected_statistics(self) -> list[Array]:
        losses, mean = self._losses()
        return list(self.xp.moveaxis(self.xp.log(mean) - losses, -1, 0))

    def log_partition(self) -> Array:
        a = self._concentration
        return self.lgamma(a).sum(-1) - self.lgamma(a.sum(-1))

    def is_proper(self) -> Array:
        return (self._concentration > 0).all(-1)

    def _all_points(self, signs: Array) -> Array:
        """The points.

        ``(P e^b + Q e^-b)(P e^-b + Q e^b) = 1``, where ``P`` and ``Q`` are the sums of ``e^(E log
        x)`` over either sign of ``v``.
        """
        (losses, mean), v = self._losses(), self._alternating
        weights = mean * self.xp.exp(-losses)
        p, q = (weights * (1 + v) / 2).sum(-1), (weights * (1 - v) / 2).sum(-1)
        deficit = (-mean * self.xp.expm1(-losses)).sum(-1)  # 1 - P - Q
        shift = signs * self.spread(deficit * (2 - deficit) / (4 * p * q))
        moved = weights * self.xp.exp(shift[..., None] * v)
        return moved / moved.sum(-1)[..., None]


class Beta(_Proportions):
    """``t = (log x, log(1 - x))``, ``lambda = (a - 1, b - 1)``; the parameters are ``a``, ``b``."""

    name: ClassVar[str] = "beta"
    support: ClassVar[str] = "unit_interval"

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        return [4 * value - 1, 3 - 4 * value]

    def parameters(self) -> tuple[Array, ...]:
        return self.natural[0] + 1, self.natural[1] + 1

    def statistics(self, x: Array) -> list[Array]:
        return [self.xp.log(x), self.xp.log1p(-x)]

    def slopes(self, x: Array) -> list[Array]:
        return [1 / x, -1 / (1 - x)]

    def points(self, signs: Array) -> Array:
        return self._all_points(signs)[..., 0]

    @property
    def mean(self) -> Array:
        a, b = self.parameters()
        return a / (a + b)

    def draw(self, random: Any) -> Array:
        one, other = map(random.gamma, self.parameters())
        return one / (one + other)

    def marginals(self) -> Any:
        return scipy.stats.beta(*self.parameters())


class Dirichlet(_Proportions):
    """``t = log x``, ``lambda = concentration - 1``; an element is a vector of ``K`` numbers.

    What the model makes of a vector off the simplex is of no account: gradients are taken along it.
    """

    name: ClassVar[str] = "dirichlet"
    support: ClassVar[str] = "simplex"

    @property
    def elements(self) -> tuple[int, ...]:
        return self.shape[:-1]

    @classmethod
    def near(cls, value: Array) -> list[Array]:
        size = value.shape[-1]
        return [2 * size * value[..., k] - 1 for k in range(size)]

    def parameters(self) -> tuple[Array, ...]:
        return (self._concentration,)

    def statistics(self, x: Array) -> list[Array]:
        return list(self.xp.moveaxis(self.xp.log(x), -1, 0))

    def points(self, signs: Array) -> Array:
        return self._all_points(signs)

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

    def draw_jvp(self, change: Array, signs: Array) -> Array:
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

    def draw(self, random: Any) -> Array:
        weights = random.gamma(self._concentration)
        return weights / weights.sum(-1)[..., None]

    def marginals(self) -> Any:
        a = self._concentration
        return scipy.stats.beta(a, a.sum(-1)[..., None] - a)


#: By the name that a user declares a site by.
FAMILIES: dict[str, type[ConjugateSite]] = {
    family.name: family
    for family in (Beta, Dirichlet, Gamma, GammaMode, InverseGamma, InverseGaussian, Normal)
}
