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
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.families.base import Array
from ngvi.families.path import Path
from ngvi.linalg.matrices import Matrices

#: Above it ``log a - digamma(a)`` is its asymptotic series, to 1e-15 (Abramowitz and Stegun,
#: 6.3.18); the difference of the two functions would lose all digits in float32.
LARGE = 15.0


@dataclasses.dataclass(frozen=True, eq=False)
class ConjugateSite:
    """One site's exponential density; its subclasses are the families, in :mod:`.families`.

    To rules of optimisers it is a direction like any family: :mod:`ngvi.families.direction`.

    :ivar loc: the natural parameters ``lambda``, one statistic after another, shape ``(k n,)`` for
        ``n`` elements.
    :ivar site: the name of the site.
    :ivar shape: of a value of the site.
    :ivar columns: of the signs of its elements among all runs; one, or one for each element.
    :ivar relative_step_size: its step size, relative to that of the optimiser.
    """

    name: ClassVar[str]
    #: What values are: ``"positive"``, ``"real"``, ``"unit_interval"`` or ``"simplex"``.
    support: ClassVar[str] = "positive"
    #: Of a point mass the family by whose points, which are further apart, it is checked.
    checked_as: ClassVar[str | None] = None
    ops: ClassVar[Matrices] = Matrices()  #: its sums

    xp: ClassVar[Any]  #: torch, ``jax.numpy`` or numpy, for functions that all spell alike
    digamma: ClassVar[Any]
    lgamma: ClassVar[Any]

    # What a family writes; arrays are by element.
    near: ClassVar[Callable]  #: natural parameters of a broad density around values, a list
    parameters: ClassVar[Callable]  #: the usual ones, a tuple; the family's docstring names them
    statistics: ClassVar[Callable]  #: ``t(x)``, a list
    slopes: ClassVar[Callable]  #: ``t'(x)``, a list
    expected_statistics: ClassVar[Callable]  #: ``E_q[t(x)]``, a list
    log_partition: ClassVar[Callable]  #: ``A(lambda)``
    is_proper: ClassVar[Callable]  #: whether ``lambda`` is in the domain
    #: The point of (3) for the sign of each element; other numbers lie on the same curve.
    points: ClassVar[Callable]
    #: Independent draws, by the ``gamma``, ``normal`` and ``uniform`` of a package's ``Random``.
    draw: ClassVar[Callable]
    #: The marginal distributions of a site's values as scipy knows them, of the site's shape.
    marginals: ClassVar[Callable]

    # What a package writes.
    at: ClassVar[Callable]  #: the points of signs, whose derivative is :meth:`draw_jvp`
    _jvp: ClassVar[Callable]  #: of a function, at a point, along a tangent

    loc: Any
    site: str = dataclasses.field(default="", metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    columns: tuple[int, ...] = dataclasses.field(default=(0,), metadata={"static": True})
    relative_step_size: float = dataclasses.field(default=1.0, metadata={"static": True})

    # -- what some families write --------------------------------------------------------

    def log_base(self, x: Array) -> Array | float:
        """``h(x)``."""
        return 0.0

    def base_slope(self, x: Array) -> Array | float:
        """``h'(x)``."""
        return 0.0

    @property
    def mean(self) -> Array:
        """``E_q[x]``, of the site's shape; the first parameter of many families."""
        return self.parameters()[0]

    # -- functions that families share ------------------------------------------------

    def log_minus_digamma(self, a: Array) -> Array:
        """``log a - digamma(a)``, positive."""
        small = self.xp.where(a < LARGE, a, LARGE)
        large = self.xp.where(a < LARGE, LARGE, a)
        u = 1 / large**2
        series = 1 / 120 - u * (1 / 252 - u * (1 / 240 - u / 132))
        series = 1 / (2 * large) + u * (1 / 12 - u * series)
        return self.xp.where(a < LARGE, self.xp.log(small) - self.digamma(small), series)

    def spread(self, excess: Array) -> Array:
        """``b`` of ``cosh b = sqrt(1 + excess)``, also where the excess is below rounding."""
        return self.xp.arcsinh(self.xp.sqrt(excess))

    # -- shapes -----------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The number of natural parameters."""
        return self.loc.shape[-1]

    @property
    def elements(self) -> tuple[int, ...]:
        """The shape of what has a density of its own."""
        return self.shape

    @property
    def num_elements(self) -> int:
        """``n``."""
        return math.prod(self.elements)

    @property
    def natural(self) -> Array:
        """``lambda``: by statistic, of the shape of the elements."""
        return self.loc.reshape((-1, *self.elements))

    def coordinates(self) -> dict[str, Array]:
        """As of a family: all natural parameters are its means."""
        return {"loc": self.loc}

    @classmethod
    def initial(cls, site: str, value: Array) -> Self:
        """A broad density around a value of the site."""
        return cls(cls.xp.stack(cls.near(value)).reshape(-1), site, tuple(value.shape))

    def map(self, function: Callable[..., Array], *others: Self) -> Self:
        """``function`` of the coordinates, and of those of ``others``."""
        return dataclasses.replace(self, loc=function(self.loc, *(one.loc for one in others)))

    # -- densities --------------------------------------------------------------------

    def log_prob(self, x: Array) -> Array:
        """``log q(x)`` in nats by elements; ``x`` may have leading axes."""
        inner = sum(a * t for a, t in zip(self.natural, self.statistics(x), strict=True))
        return inner + self.log_base(x) - self.log_partition()

    def quantiles(self, levels: Any) -> np.ndarray:
        """Quantiles of the marginals, levels first, as a numpy array."""
        levels = np.asarray(levels)
        return self.marginals().ppf(levels.reshape((*levels.shape, *[1] * len(self.shape))))

    # -- the two points ---------------------------------------------------------------

    def signs(self, runs: np.ndarray) -> np.ndarray:
        """The signs of all elements: ``(runs, C)`` to ``(runs, *elements)``."""
        ones = np.ones((len(runs), self.num_elements))
        return (ones * runs[:, list(self.columns)]).reshape(len(runs), *self.elements)

    def draw_jvp(self, change: Array, signs: Array) -> Array:
        """How far the points move, so that gradients at them become ``c``.

        The transpose of ``g -> 2 T^-1 g``, the other sign's ``g`` being zero.

        :param change: of :attr:`natural`.
        :param signs: of the elements, with leading axes.
        """
        (a, b), (c, d) = self.slopes(self.points(signs)), self.slopes(self.points(-signs))
        return 2 * (d * change[0] - c * change[1]) / (a * d - b * c)

    # -- gradients of the model at the points -------------------------------------------

    def inside(self, x: Array, gradient: Array) -> Array:
        """The part of a gradient in ``x`` that is along the support."""
        return gradient

    def coefficients(self, plus: Array, minus: Array) -> Array:
        """``c`` from gradients of the log density at both points, ``T^-1 g``."""
        ones = self.xp.ones_like(self.natural[0])
        x, y = self.points(ones), self.points(-ones)
        (a, b), (c, d) = self.slopes(x), self.slopes(y)
        g, h = plus - self.base_slope(x), minus - self.base_slope(y)
        return self.xp.stack([d * g - b * h, a * h - c * g]) / (a * d - b * c)

    def predicted(self, c: Array, x: Array) -> tuple[Array, Array]:
        """:meth:`inside` of the gradient that (1) says is at ``x``, and the size of its parts."""
        parts = [a * s for a, s in zip(c, self.slopes(x), strict=True)]
        parts.append(self.base_slope(x) + 0.0 * x)
        return sum(parts), sum(map(abs, parts))

    # -- what rules ask of a family ---------------------------------------------------

    def euclidean_gradient(self, direction: Self) -> Self:
        """``F n``; ``F`` is the derivative of the expected statistics."""

        def expected(loc: Array) -> Array:
            here = dataclasses.replace(self, loc=loc)
            return self.xp.stack(here.expected_statistics()).reshape(-1)

        return dataclasses.replace(direction, loc=self._jvp(expected, self.loc, direction.loc))

    def along(self, direction: Self, of_mean: Any = 1.0) -> Path:
        """The steps of (2), of every size; all coordinates move ``of_mean`` times as far."""
        direction = dataclasses.replace(direction, loc=of_mean * direction.loc)
        return Path(self, lambda rho: self.natural_step(direction, rho))

    def natural_step(self, direction: Self, step_size: Any) -> Self:
        """The step (2). Elements that it would make improper stay what they are."""
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
    if num_columns == 1:
        return np.array([[1.0], [-1.0]])
    hadamard = np.ones((1, 1))
    while len(hadamard) < num_columns:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return np.concatenate([hadamard, -hadamard])[:, :num_columns]


def num_columns(sites: Iterable[ConjugateSite]) -> int:
    """How many columns of signs some sites have together."""
    return 1 + max(max(one.columns) for one in sites)
