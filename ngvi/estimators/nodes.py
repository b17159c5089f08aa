"""Quadrature of a term over its predictors, in one or two dimensions.

Nodes are equidistant, and more are taken where they miss a part: under a wide prior a probability
goes from 0 to 1 between two of them. Bonnet's and Price's theorems tell, for ``a = mu + L z`` and
each ``z_k``: ``E[f z_k] = sum_j L_jk E[f_j]`` and ``E[f_i z_k] = sum_j L_jk E[f_ij]``, of which by
such nodes the sides differ by what these miss.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.estimators.options import DEFAULTS
from ngvi.families.base import Array

#: Numbers of a term at all nodes: what one row needs, many shall not pay for.
MAX_NUMBERS = 2**22
#: What nodes seem to miss of this many units in the last place is rounding.
ROUNDING_UNITS = 64


@functools.cache
def nodes(dim: int) -> tuple[np.ndarray, float]:
    """Return nodes for expectations under ``N(0, I)``, to be weighted by its density.

    None is at the mean: there functions such as ``log(1 + exp(x))`` are spelt by cases.

    :return: the nodes, shape ``(Q, dim)``, and their distance.
    """
    distance = DEFAULTS.node_distances[dim - 1]
    return grid(dim, distance, DEFAULTS.farthest_node), distance


@functools.cache
def grid(dim: int, distance: float, farthest: float) -> np.ndarray:
    """Equidistant nodes within a distance from the mean, none of which is there."""
    count = math.ceil(farthest / distance)
    at = (np.arange(-count, count) + 0.5) * distance
    points = np.array(list(itertools.product(at, repeat=dim)))
    return points[np.sum(points**2, 1) <= farthest**2]


def halved_nodes(dim: int, halvings: int) -> np.ndarray:
    """Return nodes whose distances have been halved this often."""
    points, distance = nodes(dim)
    one = ((np.arange(2**halvings) + 0.5) / 2**halvings - 0.5) * distance
    shifts = np.stack(np.meshgrid(*[one] * dim), -1).reshape(-1, dim)
    return (points[:, None] + shifts).reshape(-1, dim)


def max_halvings(size: int, dim: int) -> int:
    """Return how often the distances of :func:`nodes` may be halved.

    :param size: numbers of the term.
    """
    most = max(MAX_NUMBERS // (len(nodes(dim)[0]) * max(size, 1)), 1)
    return min(DEFAULTS.max_halvings, (most.bit_length() - 1) // dim)


def pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs of predictors, each once."""
    return list(itertools.combinations_with_replacement(range(count), 2))


class TermMoments(NamedTuple):
    """Expectations of a term, or its values, element by element."""

    value: Array
    first: Sequence[Array]  #: Derivatives, by predictor.
    second: Sequence[Array]  #: Second derivatives, by the pairs of :func:`pairs`.


class PredictorCovariance(NamedTuple):
    """The covariance of a term's predictors, element by element."""

    factor: list[list[Array]]  #: Rows of ``L``, the Cholesky factors.
    stddevs: list[Array]

    @classmethod
    def of(cls, slopes: Sequence[Array], xp: Any) -> PredictorCovariance:
        """Factor the covariance, from ``J C`` by predictor with a last axis that it sums over."""
        factor: list[list[Array]] = []
        for one, slope in enumerate(slopes):
            row: list[Array] = []
            for two in range(one):
                rest = sum(a * b for a, b in zip(row, factor[two], strict=False))
                below, is_safe = factor[two][two], factor[two][two] > 0
                quotient = ((slope * slopes[two]).sum(-1) - rest) / xp.where(is_safe, below, 1.0)
                row.append(xp.where(is_safe, quotient, 0.0))
            rest = (slope**2).sum(-1) - sum(part**2 for part in row)
            row.append(xp.sqrt(xp.where(rest > 0, rest, 0.0)))
            factor.append(row)
        return cls(factor, [xp.sqrt(sum(part**2 for part in row)) for row in factor])

    def at(self, means: Sequence[Array], noise: Sequence[Any]) -> list[Array]:
        """``mu + L z``."""
        return [
            mean + sum(part * z for part, z in zip(row, noise, strict=False))
            for mean, row in zip(means, self.factor, strict=True)
        ]

    def along(self, parts: Sequence[Array], k: int) -> Array:
        """``sum_j L_jk x_j``."""
        return sum(row[k] * x for row, x in zip(self.factor[k:], parts[k:], strict=True))


class NodeSums(NamedTuple):
    """Sums over nodes of a function ``f`` of predictors, element by element, with their weights."""

    value: Array
    first: list[Array]  #: Derivatives, by predictor.
    second: list[Array]  #: Second derivatives, by the pairs of :func:`pairs`.
    kept: Array  #: Weights of the nodes where all of these are finite.
    value_z: list[Array]  #: Sums of ``f z_k``, by ``k``.
    first_z: list[Array]  #: Sums of ``f_i z_k``, by predictor and ``k``.
    size: Array  #: Size of what is rounded, in units of it.
    lost: Array  #: Weights of the others, which may be too small for a sum of all.

    @classmethod
    def at(
        cls,
        noise: Array,
        found: TermMoments,
        means: Sequence[Array],
        covariance: PredictorCovariance,
        xp: Any,
    ) -> NodeSums:
        """Return the sums over some nodes, which are products of matrices.

        :param noise: the nodes, shape ``(B, dim)``.
        :param found: at these, with a first axis of them.
        """
        is_finite = xp.isfinite(found.value + sum(found.first) + sum(found.second))

        def kept(part: Array) -> Array:
            return xp.where(is_finite, part, 0.0)

        def total(weights: Array, part: Array) -> Array:
            return xp.tensordot(weights, part, 1)

        value, first, second = kept(found.value), *(list(map(kept, x)) for x in found[1:])
        weight, dim = xp.exp(-0.5 * (noise**2).sum(-1)), noise.shape[-1]
        with_z = xp.stack([weight, *(weight * noise[:, k] for k in range(dim))])
        stddevs = covariance.stddevs
        slope = sum(s * abs(x) for s, x in zip(stddevs, first, strict=True))
        for (one, two), x in zip(pairs(dim), second, strict=True):
            slope = slope + stddevs[one] * stddevs[two] * abs(x)
        scaled = zip(means, stddevs, strict=True)
        units = 1.0 + sum(abs(mean) / xp.where(s > 0, s, 1.0) for mean, s in scaled)
        ones = xp.ones_like(value)
        of_value, *of_first = (total(with_z, part) for part in (value, *first))
        return cls(
            of_value[0],
            [part[0] for part in of_first],
            [total(weight, part) for part in second],
            total(weight, kept(ones)),
            [of_value[1 + k] for k in range(dim)],
            [part[1 + k] for part in of_first for k in range(dim)],
            total(weight * abs(noise).sum(-1), abs(value) + units * slope),
            total(weight, ones - kept(ones)),
        )

    def missed(self, covariance: PredictorCovariance, eps: float, xp: Any) -> Array:
        """Return the nats that nodes miss of each element that is finite everywhere."""
        count = len(self.first)
        second = dict(zip(pairs(count), self.second, strict=True))
        missed = -ROUNDING_UNITS * eps * self.size
        for k in range(count):
            missed = missed + abs(covariance.along(self.first, k) - self.value_z[k])
            for i in range(count):
                row = [second[min(i, j), max(i, j)] for j in range(count)]
                gap = abs(covariance.along(row, k) - self.first_z[count * i + k])
                missed = missed + covariance.stddevs[i] * gap
        is_counted = (missed > 0) & (self.lost == 0)
        return xp.where(is_counted, missed / xp.where(is_counted, self.kept, 1.0), 0.0)

    def misses(self, covariance: PredictorCovariance, eps: float, xp: Any) -> Array:
        """Tell whether the nodes miss too much of all elements."""
        return self.missed(covariance, eps, xp).sum() > DEFAULTS.max_missed

    def mean(self) -> TermMoments:
        """Return the means, NaN where nothing is finite."""
        first, second = ([x / self.kept for x in part] for part in (self.first, self.second))
        return TermMoments(self.value / self.kept, first, second)
