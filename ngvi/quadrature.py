"""Expectations of a log density by its terms: quadrature in one or two dimensions.

What a term sees of the latents is affine, ``a = J theta + b``, and under ``q = N(mu, C C^T)`` a
Gaussian ``N(J mu + b, J C C^T J^T)`` of as many dimensions as the term has roots. Here is what
needs no tensor library of its own; a package differentiates (:class:`Calculus`).

Of two roots the rule is that of Gauss and Hermite. Of one, equidistant nodes are as good, and more
are taken where they miss a part: under a wide prior a probability goes from 0 to 1 between two of
them. Bonnet's and Price's theorems tell, ``s E[f'] = E[f z]`` and ``s^2 E[f''] = s E[f' z]`` for
``a = mu + s z``, of which by such nodes the sides differ by what these miss.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from ngvi.family import Array, Family
from ngvi.terms import NotASumError, Sum, Term, evaluate

#: Nodes along each of two dimensions. Even, so that none is at the mean: there functions such as
#: ``log(1 + exp(x))`` are spelt by cases.
NUM_NODES = 24
#: Nodes of less weight than this, relative to the largest, count for nothing.
LEAST_WEIGHT = 1e-18
#: Equidistant nodes of one dimension, the first half of a distance from the mean: so many, and how
#: far from each other; halved up to so often, or up to so many numbers of a term (what the nodes of
#: one row miss is where another of many has some), ...
NUM_EQUIDISTANT, DISTANCE, MAX_HALVINGS, MAX_NUMBERS = 66, 0.28, 8, 2**22
#: ... while they miss more than this of a term, in nats, beyond rounding of so many units.
MISSED, UNITS = 1e-3, 64.0

#: Kinks are looked for within so many standard deviations, and as far again as zero is, in so many
#: parts of the line, each halved so often. Of a jump this part is left after the last halvings, so
#: many, and it is more than rounding.
WIDTH, PARTS, HALVINGS, LAST, LEFT, ROUNDED = 8.0, 4, 30, 10, 0.3, 1e-3


@functools.cache
def nodes(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """For expectations under ``N(0, I)``.

    :return: the nodes, shape ``(Q, dim)``, and weights that sum to one, shape ``(Q,)``.
    """
    if dim == 1:
        at = (np.arange(NUM_EQUIDISTANT) - 0.5 * (NUM_EQUIDISTANT - 1)) * DISTANCE
        weights = np.exp(-0.5 * at**2)
        return at[:, None], weights / weights.sum()
    at, weights = hermegauss(NUM_NODES)
    points = np.array(list(itertools.product(at, repeat=dim)))
    together = np.array([np.prod(some) for some in itertools.product(weights, repeat=dim)])
    kept = together > LEAST_WEIGHT * together.max()
    return points[kept], together[kept] / together[kept].sum()


def max_halvings(size: int) -> int:
    """How often the distances of :func:`nodes` of one dimension may be halved.

    :param size: numbers of the term.
    """
    most = max(MAX_NUMBERS // (NUM_EQUIDISTANT * max(size, 1)), 1)
    return min(MAX_HALVINGS, most.bit_length() - 1)


class OfNodes(NamedTuple):
    """Sums over nodes of a function ``f`` of one root, element by element, with their weights."""

    value: Array
    first: Array
    second: Array
    kept: Array  #: weights of the nodes where all of these are finite
    all: Array  #: weights
    value_z: Array  #: of ``f z``
    first_z: Array
    size: Array  #: of what is rounded, in units of it

    @classmethod
    def at(cls, noise: Any, found: OfTerm, mean: Array, stddev: Array, xp: Any) -> OfNodes:
        """The summands of one node."""
        value, (first,), (second,) = found
        is_finite = xp.isfinite(value + first + second)
        value, first, second = (xp.where(is_finite, x, 0.0) for x in (value, first, second))
        weight = xp.exp(-0.5 * noise**2)
        slope = stddev * abs(first) + stddev**2 * abs(second)
        units = 1.0 + abs(mean) / xp.where(stddev > 0, stddev, 1.0)
        size = abs(noise) * (abs(value) + units * slope)
        parts = (value, first, second, is_finite, xp.ones_like(value))
        return cls(*(weight * part for part in (*parts, noise * value, noise * first, size)))

    def missed(self, stddev: Array, eps: float, xp: Any) -> Array:
        """What the nodes miss of all elements, in nats; of those that are finite everywhere."""
        of_slope = abs(stddev * self.first - self.value_z)
        of_curvature = stddev * abs(stddev * self.second - self.first_z)
        missed = (of_slope + of_curvature - UNITS * eps * self.size) / self.all
        is_counted = (missed > 0) & (self.kept == self.all)
        return xp.where(is_counted, missed, 0.0).sum()

    def mean(self) -> OfTerm:
        """NaN where nothing is finite."""
        return OfTerm(self.value / self.kept, [self.first / self.kept], [self.second / self.kept])


class OfTerm(NamedTuple):
    """Expectations of a term, element by element."""

    value: Array
    first: Sequence[Array]  #: derivatives, by root
    second: Sequence[Array]  #: by the pairs of :func:`pairs`


def pairs(count: int) -> list[tuple[int, int]]:
    """Those of roots, each once."""
    return list(itertools.combinations_with_replacement(range(count), 2))


class Calculus(Protocol):
    """What a package differentiates."""

    xp: Any  #: torch or ``jax.numpy``

    def jacobians(
        self, function: Callable[..., list[Array]], at: list[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Values of an affine function of vectors, and its Jacobians, with a last axis of all."""

    def value_and_gradient(
        self, function: Callable[[list[Array]], Array], at: list[Array]
    ) -> tuple[Array, list[Array]]:
        """Of a scalar function."""

    def mean(self, term: Term, means: list[Array], factor: list[list[Array]]) -> OfTerm:
        """Of the term and its derivatives, over the :func:`nodes` where all of them are finite.

        Those of one root are halved (:func:`max_halvings`) until they miss no more than
        :data:`MISSED`.

        Far out, where hardly any draw would be, ``exp`` overflows; what is finite before it does
        is large enough to be seen. NaN where nothing is finite.

        :param factor: rows of the Cholesky factors of the roots' covariances, element by element.
        """

    def line(
        self, term: Term, centre: list[Array], half: list[Array]
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """The term and its derivative along ``centre + t half``, by ``t``, element by element."""


class Expectations(NamedTuple):
    """Of all latents together."""

    value: Array  #: ``E[l]``
    gradient: Array  #: ``E[grad l]``, shape ``(d,)``
    hessian: Array  #: ``E[hess l]``, shape ``(d, d)``


class Places(NamedTuple):
    """Where the roots of all terms are under ``q``, one after another."""

    means: list[Array]
    slopes: list[Array]  #: ``J``, shapes ``(n, d)``
    spreads: list[Array]  #: ``J C``, likewise

    @classmethod
    def of(cls, terms: Sum, families: Sequence[Family], calculus: Calculus) -> Places:
        """The products with ``C`` take ``O(n d^2)``."""
        dim = sum(family.dim for family in families)

        def roots_at(*vectors: Array) -> list[Array]:
            return evaluate(terms.roots, dict(zip(map(id, terms.latents), vectors, strict=True)))

        means, slopes = calculus.jacobians(roots_at, [family.mean for family in families])
        slopes = [slope.reshape(-1, dim) for slope in slopes]
        return cls(means, slopes, [_times_scale(slope, families) for slope in slopes])


def expectations(terms: Sum, families: Sequence[Family], calculus: Calculus) -> Expectations:
    """``E[l]``, ``E[grad l]`` and ``E[hess l]`` under independent Gaussians.

    :param families: one for each vector of latents.
    """
    means, flat, spreads = Places.of(terms, families, calculus)
    index = terms.numbers()
    zeros = [0.0 * means[index[id(term.roots[0])]] for term in terms.terms]
    value, weights = calculus.value_and_gradient(terms.value, zeros)
    gradient, hessian = 0.0, 0.0
    for term, weight in zip(terms.terms, weights, strict=True):
        own = [index[id(root)] for root in term.roots]
        factor = _factor([spreads[k] for k in own], term.node.shape, calculus.xp)
        of_term = calculus.mean(term, [means[k] for k in own], factor)
        value = value + (weight * of_term.value).sum()
        for k, first in zip(own, of_term.first, strict=True):
            gradient = gradient + (weight * first).reshape(-1) @ flat[k]
        for (one, two), second in zip(pairs(len(own)), of_term.second, strict=True):
            left, right = flat[own[one]], flat[own[two]]
            part = left.T @ ((weight * second).reshape(-1)[:, None] * right)
            hessian = hessian + (part if one == two else part + part.T)
    return Expectations(value, gradient, hessian)


def check_smooth(terms: Sum, families: Sequence[Family], calculus: Calculus) -> None:
    """Refuse terms with kinks and jumps, for which quadrature is poor and second derivatives false.

    Each is followed along a line through all that ``q`` covers, into the half in which it, or its
    derivative, is bent more, until hardly anything is left of the line: what is left of the change
    of a smooth function is nothing as well.

    :raises NotASumError: if there is one.
    """
    places, index = Places.of(terms, families, calculus), terms.numbers()
    for term in terms.terms:
        own = [index[id(root)] for root in term.roots]
        centre: list[Array] = [places.means[k] for k in own]
        half: list[Array] = []
        for k, mean in zip(own, centre, strict=True):
            stddev = (places.spreads[k] ** 2).sum(-1).reshape(term.node.shape) ** 0.5
            half.append((WIDTH * stddev + 2.0 * abs(mean)) * (-0.7) ** len(half))
        line = calculus.line(term, centre, half)
        if any(_jumps(line, term.node.shape, part) for part in (0, 1)):
            raise NotASumError("it has a kink or a jump")


def _jumps(
    line: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], shape: tuple[int, ...], part: int
) -> bool:
    """:param part: 0 for the function, 1 for its derivative."""
    # Not from -1 to 1: at zero itself, where it may begin, a derivative by cases may be another.
    ends = [np.full(shape, t) for t in np.linspace(-1.0, 0.93, PARTS + 1)]

    def along(t: np.ndarray) -> np.ndarray:
        return line(t)[part]

    with np.errstate(all="ignore"):
        size = functools.reduce(np.fmax, (abs(along(t)) for t in ends))
        return any(_jumps_between(along, *two, size) for two in itertools.pairwise(ends))


def _jumps_between(
    line: Callable[[np.ndarray], np.ndarray], low: Array, high: Array, size: Array
) -> bool:
    """Halves go on that are less like a straight line, of which a jump is as far as it is high.

    :param size: of the function, of which a part is rounding.
    """
    at_low, at_middle, at_high = line(low), line(0.5 * (low + high)), line(high)
    change = [abs(at_high - at_low)]
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        below, above = line(0.5 * (low + middle)), line(0.5 * (middle + high))
        bent_below = abs(below - 0.5 * (at_low + at_middle))
        bent_above = abs(above - 0.5 * (at_middle + at_high))
        is_upper = ~(bent_below > bent_above)
        low, high = np.where(is_upper, middle, low), np.where(is_upper, high, middle)
        at_low = np.where(is_upper, at_middle, at_low)
        at_high = np.where(is_upper, at_high, at_middle)
        at_middle = np.where(is_upper, above, below)
        size = np.fmax(size, abs(at_middle))
        change.append(abs(at_high - at_low))
    return bool((change[-1] > np.fmax(LEFT * change[-1 - LAST], ROUNDED * size)).any())


def _times_scale(slope: Array, families: Sequence[Family]) -> Array:
    """``J C``; a family's draws from the rows of the identity are those of ``C^T``."""
    parts, start = [], 0
    for family in families:
        columns = family.centred().sample(family.ops.eye(family.dim, family.loc))
        parts.append(slope[:, start : start + family.dim] @ columns.T)
        start += family.dim
    if len(parts) == 1:
        return parts[0]
    return families[0].xp.concatenate(parts, -1)


def _factor(spreads: list[Array], shape: tuple[int, ...], xp: Any) -> list[list[Array]]:
    rows: list[list[Array]] = []
    for one, spread in enumerate(spreads):
        row: list[Array] = []
        for two in range(one):
            rest = sum(a * b for a, b in zip(row, rows[two], strict=False))
            covariance = (spread * spreads[two]).sum(-1).reshape(shape) - rest
            below = rows[two][two]
            is_safe = below > 0
            row.append(xp.where(is_safe, covariance / xp.where(is_safe, below, 1.0), 0.0))
        rest = (spread**2).sum(-1).reshape(shape) - sum(part**2 for part in row)
        row.append(xp.sqrt(xp.where(rest > 0, rest, 0.0)))
        rows.append(row)
    return rows
