r"""A conditionally conjugate site: its exponential family and its natural gradient.

A site ``x`` is conditionally conjugate if, given all other latents ``z``,

    log p(y, x, z) = c(z) . t(x) + h(x) + rest(z)                                     (1)

with the statistics ``t`` and the base measure ``h`` of a family ``q(x) = exp(lambda . t(x) + h(x) -
A(lambda))``. The natural gradient of the bound in ``lambda`` is then ``E_q[c(z)] - lambda`` (Khan
and Lin, 2017, *Conjugate-computation variational inference*), and a step of the Bayesian learning
rule

    lambda <- (1 - rho) lambda + rho E_q[c(z)],                                       (2)

the exact conditional for ``rho = 1``. Neither ``c`` nor a table of conjugate pairs is needed: the
model's log density is evaluated at *two points* ``x+`` and ``x-`` of each element, with

    (t(x+) + t(x-)) / 2 = E_q[t(x)].                                                  (3)

Because of (1), the mean of ``log p - log q`` over both is its expectation under ``q`` (``h``
cancels), in its value and in its derivative by whatever else the model depends on. And the two
gradients ``g = d(log p - log q)/dx = T (c - lambda)``, where ``t'(x+)`` and ``t'(x-)`` are the rows
of ``T``, give ``c - lambda = T^-1 g``: that is the derivative that :meth:`ConjugateSite.draw_jvp`
attaches to the points, so that the gradient of the bound *is* the natural gradient (2).

For a product of sites (1) is linear in the statistics of each. Points with signs from an
orthogonal array of strength three (:func:`signs_of_runs`) make (3) hold for products of up to
three.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import numpy as np
import scipy

from ngvi.conjugate.families import FAMILIES, Exponential
from ngvi.families.base import Array
from ngvi.families.path import Path
from ngvi.linalg.matrices import Matrices


@dataclasses.dataclass(frozen=True, eq=False)
class ConjugateSite:
    """The exponential density of one site, with numpy's arrays; a package's subclass has its own.

    Optimisers treat it as a direction, like any family: :mod:`ngvi.families.direction`.

    :ivar loc: the natural parameters ``lambda``, one statistic after another, shape ``(2 n,)`` for
        ``n`` elements.
    :ivar name: of the family, a row of :data:`.FAMILIES`.
    :ivar site: the name of the site.
    :ivar shape: of a value of the site.
    :ivar column: of the signs of its elements among all runs.
    :ivar relative_step_size: its step size, relative to that of the optimiser.
    """

    ops: ClassVar[Matrices] = Matrices()
    xp: ClassVar[Any] = np
    digamma: ClassVar[Any] = staticmethod(lambda x: scipy.special.digamma(x))
    lgamma: ClassVar[Any] = staticmethod(lambda x: scipy.special.gammaln(x))
    at: ClassVar[Callable]  #: Return the points of signs, whose derivative is :meth:`draw_jvp`.
    _jvp: ClassVar[Callable]  #: Differentiate a function at a point along a tangent.

    loc: Any
    name: str = dataclasses.field(metadata={"static": True})
    site: str = dataclasses.field(default="", metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    column: int = dataclasses.field(default=0, metadata={"static": True})
    relative_step_size: float = dataclasses.field(default=1.0, metadata={"static": True})

    @property
    def family(self) -> Exponential:
        """The row of the table of families."""
        return FAMILIES[self.name]

    @property
    def dim(self) -> int:
        """The number of natural parameters."""
        return self.loc.shape[-1]

    @property
    def natural(self) -> Array:
        """``lambda``: by statistic, of the shape of the site."""
        return self.loc.reshape((-1, *self.shape))

    @classmethod
    def initial(cls, name: str, site: str, value: Array) -> Self:
        """Return a broad density of a family around a value of the site."""
        loc = cls.xp.stack(FAMILIES[name].near(value)).reshape(-1)
        return cls(loc, name, site, tuple(value.shape))

    def coordinates(self) -> dict[str, Array]:
        """Return the coordinates of a family: all natural parameters are its means."""
        return {"loc": self.loc}

    def map(self, function: Callable[..., Array], *others: Self) -> Self:
        """Apply a function to the coordinates, and to those of ``others``."""
        return dataclasses.replace(self, loc=function(self.loc, *(one.loc for one in others)))

    # -- the density ------------------------------------------------------------------

    def parameters(self) -> tuple[Array, ...]:
        """Return the usual parameters, which the table of families names."""
        return self.family.parameters(self, *self.natural)

    @property
    def mean(self) -> Array:
        """``E_q[x]``."""
        return self.family.mean(self, *self.parameters())

    def statistics(self, x: Array) -> list[Array]:
        """``t(x)``."""
        return [one.value(self.xp, x) for one in self.family.t]

    def expected_statistics(self) -> list[Array]:
        """``E_q[t(x)]``."""
        return self.family.expected(self, *self.parameters())

    def is_proper(self) -> Array:
        """Say by element whether ``lambda`` is in the domain."""
        return self.family.is_proper(*self.natural)

    def log_prob(self, x: Array) -> Array:
        """``log q(x)`` in nats by elements; ``x`` may have leading axes."""
        inner = sum(a * t for a, t in zip(self.natural, self.statistics(x), strict=True))
        base = self.family.base * self.xp.log(x) if self.family.base else 0.0
        return inner + base - self.family.log_partition(self, *self.parameters())

    def draw(self, random: Any) -> Array:
        """Independent draws, by the ``gamma``, ``normal`` and ``uniform`` of a package."""
        return self.family.draw(self, random, *self.parameters())

    def quantiles(self, levels: Any) -> np.ndarray:
        """Quantiles of all elements, levels first, by numpy."""
        levels = np.asarray(levels)
        here = ConjugateSite(np.asarray(self.loc), self.name, shape=self.shape)
        levels = levels.reshape((*levels.shape, *[1] * len(self.shape)))
        return self.family.quantiles(levels, *here.parameters())

    # -- the two points ---------------------------------------------------------------

    def points(self, signs: Array) -> Array:
        """Return the points of (3) for signs; other numbers are of the same curve."""
        return self.family.points(self, signs, *self.parameters())

    def signs(self, runs: np.ndarray) -> np.ndarray:
        """Return the signs of all elements: ``(runs, C)`` to ``(runs, *shape)``."""
        own = runs[:, self.column].reshape(-1, *[1] * len(self.shape))
        return own * np.ones(self.shape)

    def _slopes(self, x: Array) -> list[Array]:
        """``t'(x)``."""
        return [one.slope(self.xp, x) for one in self.family.t]

    def draw_jvp(self, change: Array, signs: Array) -> Array:
        """Return how far the points move, so that gradients at them become ``c``.

        The transpose of ``g -> 2 T^-1 g``, the other sign's ``g`` being zero.

        :param change: of :attr:`natural`.
        :param signs: of the elements, with leading axes.
        """
        (a, b), (c, d) = self._slopes(self.points(signs)), self._slopes(self.points(-signs))
        return 2 * (d * change[0] - c * change[1]) / (a * d - b * c)

    def coefficients(self, plus: Array, minus: Array) -> Array:
        """``c`` from gradients of the log density at both points, ``T^-1 g``."""
        ones, base = self.xp.ones_like(self.natural[0]), self.family.base
        x, y = self.points(ones), self.points(-ones)
        (a, b), (c, d) = self._slopes(x), self._slopes(y)
        g, h = plus - base / x, minus - base / y
        return self.xp.stack([d * g - b * h, a * h - c * g]) / (a * d - b * c)

    def predicted(self, c: Array, x: Array) -> tuple[Array, Array]:
        """Return the gradient that (1) says is at ``x``, and the size of its parts."""
        parts = [a * s for a, s in zip(c, self._slopes(x), strict=True)]
        parts.append(self.family.base / x)
        return sum(parts), sum(map(abs, parts))

    # -- what rules ask of a family ---------------------------------------------------

    def euclidean_gradient(self, direction: Self) -> Self:
        """``F n``; ``F`` is the derivative of the expected statistics."""

        def expected(loc: Array) -> Array:
            here = dataclasses.replace(self, loc=loc)
            return self.xp.stack(here.expected_statistics()).reshape(-1)

        return dataclasses.replace(direction, loc=self._jvp(expected, self.loc, direction.loc))

    def along(self, direction: Self, of_mean: Any = 1.0) -> Path:
        """Return the steps of (2), of every size; all coordinates move ``of_mean`` times as far."""
        direction = dataclasses.replace(direction, loc=of_mean * direction.loc)
        return Path(self, lambda rho: self.natural_step(direction, rho))

    def natural_step(self, direction: Self, step_size: Any) -> Self:
        """Take the step (2). Elements that it would make improper stay what they are."""
        step_size = self.relative_step_size * step_size
        new = dataclasses.replace(self, loc=self.loc + step_size * direction.loc)
        loc = self.xp.where(new.is_proper(), new.natural, self.natural).reshape(-1)
        return dataclasses.replace(self, loc=loc)


def signs_of_runs(num_columns: int) -> np.ndarray:
    """Signs whose products in up to three columns sum to zero over the runs.

    One column takes two runs; more, the columns of a Hadamard matrix (Sylvester) and their
    negatives, an orthogonal array of strength three.

    :return: shape ``(runs, num_columns)``.
    """
    hadamard = np.ones((1, 1))
    while len(hadamard) < num_columns:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return np.concatenate([hadamard, -hadamard])[:, :num_columns]


def num_columns(sites: Iterable[ConjugateSite]) -> int:
    """Count the columns of signs that some sites have together."""
    return 1 + max(one.column for one in sites)
