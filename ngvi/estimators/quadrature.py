"""Expectations of a log density by its terms: quadrature in one or two dimensions.

What a term sees of the latents is affine, ``a = J theta + b``, and under ``q = N(mu, C C^T)`` a
Gaussian ``N(J mu + b, J C C^T J^T)`` of as many dimensions as the term has roots. Here is what
needs no tensor library of its own; a package differentiates (:class:`Calculus`).

Nodes are equidistant, and more are taken where they miss a part: under a wide prior a probability
goes from 0 to 1 between two of them. Bonnet's and Price's theorems tell, for ``a = mu + L z`` and
each ``z_k``: ``E[f z_k] = sum_j L_jk E[f_j]`` and ``E[f_i z_k] = sum_j L_jk E[f_ij]``, of which by
such nodes the sides differ by what these miss.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.estimators.additive_terms import NotASumError, Sum, Term, evaluate
from ngvi.estimators.kinds import num_products
from ngvi.families.base import Array, Family
from ngvi.latents.forest import Forest

#: Rows, one for each change of all vectors ``(m, d)``, to changes of the roots with a last axis of
#: all rows; and from such a change of the roots back to the rows of its gradient.
Push = Callable[[list[Array]], list[Array]]
Pull = Callable[[list[Array]], list[Array]]

#: How far nodes are from each other, by the number of roots, in standard deviations, and how far
#: out they go: beyond, they would count for less than 1e-18 of the first.
DISTANCES, FARTHEST = {1: 0.28, 2: 0.75}, 9.2
#: Distances are halved up to so often, or up to so many numbers of a term (what the nodes of one
#: row miss is where another of many has some), ...
MAX_HALVINGS, MAX_NUMBERS = 8, 2**22
#: ... while they miss more than this of a term, in nats, beyond rounding of so many units.
MISSED, UNITS = 1e-3, 64.0

#: What stretches all locals of an entry alike leaves less than this part of its slopes.
SAME_LOCAL = 1e-3

#: Kinks are looked for within so many standard deviations, and as far again as zero is, in so many
#: parts of the line, each halved so often. Of a jump this part is left after the last halvings, so
#: many, and it is more than rounding.
WIDTH, PARTS, HALVINGS, LAST, LEFT, ROUNDED = 8.0, 4, 30, 10, 0.3, 1e-3


@functools.cache
def nodes(dim: int) -> tuple[np.ndarray, float]:
    """For expectations under ``N(0, I)``, to be weighted by its density.

    None is at the mean: there functions such as ``log(1 + exp(x))`` are spelt by cases.

    :return: the nodes, shape ``(Q, dim)``, and their distance.
    """
    distance = DISTANCES[dim]
    count = math.ceil(FARTHEST / distance)
    at = (np.arange(-count, count) + 0.5) * distance
    points = np.array(list(itertools.product(at, repeat=dim)))
    return points[np.sum(points**2, 1) <= FARTHEST**2], distance


def max_halvings(size: int, dim: int) -> int:
    """How often the distances of :func:`nodes` may be halved.

    :param size: numbers of the term.
    """
    most = max(MAX_NUMBERS // (len(nodes(dim)[0]) * max(size, 1)), 1)
    return min(MAX_HALVINGS, (most.bit_length() - 1) // dim)


class OfNodes(NamedTuple):
    """Sums over nodes of a function ``f`` of some roots, element by element, with their weights."""

    value: Array
    first: list[Array]  #: derivatives, by root
    second: list[Array]  #: by the pairs of :func:`pairs`
    kept: Array  #: weights of the nodes where all of these are finite
    value_z: list[Array]  #: of ``f z_k``, by ``k``
    first_z: list[Array]  #: of ``f_i z_k``, by root and ``k``
    size: Array  #: of what is rounded, in units of it
    lost: Array  #: weights of the others, which may be too small to be seen in a sum of all

    @classmethod
    def at(
        cls, noise: Array, found: OfTerm, means: Sequence[Array], spread: Spread, xp: Any
    ) -> OfNodes:
        """The sums over some nodes, which are products of matrices.

        :param noise: the nodes, shape ``(B, dim)``.
        :param found: at these, with a first axis of them.
        """
        is_finite = xp.isfinite(found.value + sum(found.first) + sum(found.second))

        def kept(part: Array) -> Array:
            return xp.where(is_finite, part, 0.0)

        value, first, second = kept(found.value), *(list(map(kept, x)) for x in found[1:])
        weight, dim = xp.exp(-0.5 * (noise**2).sum(-1)), noise.shape[-1]
        with_z = xp.stack([weight, *(weight * noise[:, k] for k in range(dim))])

        def total(weights: Array, part: Array) -> Array:
            return xp.tensordot(weights, part, 1)

        slope = sum(s * abs(x) for s, x in zip(spread.stddevs, first, strict=True))
        for (one, two), x in zip(pairs(len(first)), second, strict=True):
            slope = slope + spread.stddevs[one] * spread.stddevs[two] * abs(x)
        units = 1.0 + sum(
            abs(mean) / xp.where(s > 0, s, 1.0)
            for mean, s in zip(means, spread.stddevs, strict=True)
        )
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

    def plus(self, other: OfNodes) -> OfNodes:
        """Over the nodes of both."""

        def both(one: Any, two: Any) -> Any:
            if not isinstance(one, list):
                return one + two
            return [a + b for a, b in zip(one, two, strict=True)]

        return OfNodes(*map(both, self, other))

    def missed(self, spread: Spread, eps: float, xp: Any) -> Array:
        """What the nodes miss of all elements, in nats; of those that are finite everywhere."""
        count = len(self.first)
        second = dict(zip(pairs(count), self.second, strict=True))
        missed = -UNITS * eps * self.size
        for k in range(count):
            missed = missed + abs(spread.along(self.first, k) - self.value_z[k])
            for i in range(count):
                row = [second[min(i, j), max(i, j)] for j in range(count)]
                gap = abs(spread.along(row, k) - self.first_z[count * i + k])
                missed = missed + spread.stddevs[i] * gap
        is_counted = (missed > 0) & (self.lost == 0)
        return xp.where(is_counted, missed / self.kept, 0.0).sum()

    def mean(self) -> OfTerm:
        """NaN where nothing is finite."""
        first, second = ([x / self.kept for x in part] for part in (self.first, self.second))
        return OfTerm(self.value / self.kept, first, second)


class Spread(NamedTuple):
    """Of the roots of a term about their means, element by element."""

    factor: list[list[Array]]  #: rows of ``L``, the Cholesky factors of their covariances
    stddevs: list[Array]

    @classmethod
    def of(cls, factor: list[list[Array]], xp: Any) -> Spread:
        """Of Cholesky factors."""
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

    def linear(
        self, function: Callable[..., list[Array]], at: list[Array]
    ) -> tuple[list[Array], Push, Pull]:
        """Values of an affine function of vectors, and what it does with changes of these."""

    def value_and_gradient(
        self, function: Callable[[list[Array]], Array], at: list[Array]
    ) -> tuple[Array, list[Array]]:
        """Of a scalar function."""

    def mean(self, term: Term, means: list[Array], spread: Spread) -> OfTerm:
        """Of the term and its derivatives, over the :func:`nodes` where all of them are finite.

        These are halved (:func:`max_halvings`) until they miss no more than :data:`MISSED`.

        Far out, where hardly any draw would be, ``exp`` overflows; what is finite before it does
        is large enough to be seen. NaN where nothing is finite.
        """

    def compiled(self, function: Callable) -> Callable:
        """A function of arrays and families that runs once, as one program."""

    def numpy(self, array: Array) -> np.ndarray:
        """An array whose operations are not compiled one by one."""

    def line(
        self, term: Term, centre: list[Array]
    ) -> Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
        """The term and its derivative along ``centre + t half``, by ``t`` and ``half``, element by
        element.
        """


class Expectations(NamedTuple):
    """Of a log density."""

    value: Array  #: ``E[l]``
    #: By family ``E[grad l]``, shape ``(d,)``, and ``E[hess l]`` as
    #: :meth:`~ngvi.families.base.Family.assemble_hessian` has it.
    parts: list[tuple[Array, Array]]
    is_finite: Array


class Places(NamedTuple):
    """Where the roots of all terms are under ``q``, one after another.

    Of a family whose latents are locals and their ancestors an entry of a root sees one local at
    most. Then columns of ``J`` are summed that no entry sees two of, those of a family's probes:
    what is left of a row is all of it, and products of two rows, of one entry, are what they were.
    """

    means: list[Array]
    slopes: list[Array]  #: ``J P^T``, with a last axis of all probes ``P``
    spreads: list[Array]  #: ``J C P^T``, likewise
    pull: Pull

    @classmethod
    def of(cls, terms: Sum, families: Sequence[Family], calculus: Calculus) -> Places:
        """In time that is linear in the numbers of the slopes, and in those of ``C P^T``."""
        roots_at = _roots_of(terms)
        means, push, pull = calculus.linear(roots_at, [family.mean for family in families])
        probes = [_probes(family) for family in families]
        columns = [q.centred().sample(own) for q, own in zip(families, probes, strict=True)]
        slopes, spreads = (push(_by_all(rows, calculus.xp)) for rows in (probes, columns))
        return cls(means, slopes, spreads, pull)


def expectations(terms: Sum, families: Sequence[Family], calculus: Calculus) -> Expectations:
    """``E[l]``, ``E[grad l]`` and ``E[hess l]`` under independent Gaussians.

    ``E[hess l] P^T = sum J^T E[f''] J P^T``, so that of a sparse Hessian there is what is needed.

    :param families: one for each vector of latents.
    """
    places, xp = Places.of(terms, families, calculus), calculus.xp
    means, slopes, index = places.means, places.slopes, terms.numbers()
    zeros = [0.0 * means[index[id(term.roots[0])]] for term in terms.terms]
    value, weights = calculus.value_and_gradient(terms.value, zeros)
    firsts = [0.0 * mean for mean in means]
    seconds = [0.0 * slope for slope in slopes]
    for term, weight in zip(terms.terms, weights, strict=True):
        own = [index[id(root)] for root in term.roots]
        factor = _factor([places.spreads[k] for k in own], xp)
        of_term = calculus.mean(term, [means[k] for k in own], Spread.of(factor, xp))
        value = value + (weight * of_term.value).sum()
        for k, first in zip(own, of_term.first, strict=True):
            firsts[k] = firsts[k] + weight * first
        for (one, two), second in zip(pairs(len(own)), of_term.second, strict=True):
            left, right, by = own[one], own[two], (weight * second)[..., None]
            seconds[left] = seconds[left] + by * slopes[right]
            if left != right:
                seconds[right] = seconds[right] + by * slopes[left]
    both = [
        xp.concatenate([first[..., None], second], -1)
        for first, second in zip(firsts, seconds, strict=True)
    ]
    parts, is_finite, start = [], xp.isfinite(value), 1
    for family, rows in zip(families, places.pull(both), strict=True):
        count = len(_probes(family))
        gradient, products = rows[0], rows[start : start + count]
        if count > num_products(family):
            some = family.ops.eye(num_products(family), products)[family.hessian_probes()]
            products = some.T @ products
        parts.append((gradient, family.assemble_hessian(products)))
        is_finite = is_finite & xp.isfinite(rows).all()
        start += count
    return Expectations(value, parts, is_finite)


def num_probes(family: Family) -> int:
    """How many columns there are of a Jacobian."""
    return num_products(family) if isinstance(family.couples(), Forest) else family.dim


def _probes(family: Family) -> Array:
    """Which latents share a column, shape ``(m, d)``; each has one of its own but in a forest."""
    count = num_probes(family)
    if count == family.dim:
        return family.ops.eye(family.dim, family.loc)
    return family.ops.eye(count, family.loc)[family.hessian_probes()].T


def _roots_of(terms: Sum) -> Callable[..., list[Array]]:
    """All roots as a function of the latent vectors."""

    def roots_at(*vectors: Array) -> list[Array]:
        return evaluate(terms.roots, dict(zip(map(id, terms.latents), vectors, strict=True)))

    return roots_at


def _by_all(parts: list[Array], xp: Any) -> list[Array]:
    """Rows of each family, zeros in the rows of the others; there are as many of all."""
    if len(parts) == 1:
        return parts
    before, found = 0, []
    after = sum(map(len, parts))
    for part in parts:
        after -= len(part)
        nothing = 0.0 * part[:1]
        found.append(xp.concatenate([*[nothing] * before, part, *[nothing] * after]))
        before += len(part)
    return found


def check_paths(terms: Sum, families: Sequence[Family], calculus: Calculus) -> None:
    """Refuse a term that sees two locals: :class:`Places` would take them for one.

    Blocks that share columns are stretched, each with what is below it by a number of its own. Of
    an entry that sees one of them all slopes are stretched alike.

    :raises NotASumError: if there is one.
    """
    means = [family.mean for family in families]
    index = terms.numbers()

    @calculus.compiled
    def slopes_of(means: list[Array], rows: list[Array]) -> list[Array]:
        return calculus.linear(_roots_of(terms), means)[1](rows)

    for number, family in enumerate(families):
        forest = family.couples()
        if not isinstance(forest, Forest) or num_probes(family) == family.dim:
            continue
        probes = _probes(family)
        probes = np.concatenate([calculus.numpy(probes)] * 3)
        nothing = [np.zeros((len(probes), mean.shape[0])) for mean in means]
        for stretches in _stretches(forest, family.hessian_probes()):
            by_family = list(nothing)
            by_family[number] = probes * np.repeat(stretches, len(probes) // 3, 0)
            rows = [
                family.ops.tensor(part, mean) for part, mean in zip(by_family, means, strict=True)
            ]
            found = list(map(calculus.numpy, slopes_of(means, rows)))
            for term in terms.terms:
                if _sees_several([found[index[id(root)]] for root in term.roots]):
                    raise NotASumError("a term sees several locals")


def _sees_several(slopes: list[np.ndarray]) -> bool:
    """Whether an entry's slopes, of all roots, change otherwise than by one factor, twice.

    :param slopes: by root, with a last axis of three times all columns.
    """
    thirds = [np.split(part, 3, -1) for part in slopes]
    plain, once, twice = (np.concatenate(parts, -1) for parts in zip(*thirds, strict=True))
    square = (plain**2).sum(-1)
    factor = (plain * once).sum(-1) / np.where(square > 0, square, 1.0)
    gaps = (once - factor[..., None] * plain) ** 2 + (twice - factor[..., None] * once) ** 2
    return bool((gaps.sum(-1) > SAME_LOCAL**2 * square).any())


def _stretches(forest: Forest, columns: np.ndarray) -> Iterator[np.ndarray]:
    """For all blocks that share columns, of the latents in and below them: ones, factors, squares.

    Those of a block and of what is below it have one factor; all others are zero.

    :param columns: of the latents.
    """
    rng, pieces = np.random.default_rng(0), forest.split_indices()
    siblings: dict[tuple, list[int]] = {}  # groups side by side have the columns of one another
    for index, group in enumerate(forest.groups):
        siblings.setdefault((group.parent, columns[pieces[index][0, 0]]), []).append(index)
    for together in siblings.values():
        shared = np.concatenate([columns[pieces[index]].ravel() for index in together])
        if len(np.unique(shared)) == len(shared):
            continue
        inside, factors = np.zeros(forest.dim), np.zeros(forest.dim)
        for index in together:
            num = forest.groups[index].num
            by_block = rng.uniform(0.5, 1.5, num) * rng.choice([-1.0, 1.0], num)
            for lower, piece in enumerate(pieces):
                if lower == index or index in forest.ancestors(lower):
                    inside[piece] = 1.0
                    factors[piece] = np.repeat(by_block, piece.shape[1] // num)
        yield np.array([inside, factors, factors**2])


def check_smooth(terms: Sum, families: Sequence[Family], calculus: Calculus) -> None:
    """Refuse terms with kinks and jumps, for which quadrature is poor and second derivatives false.

    Each is followed along a line through all that ``q`` covers, into the half in which it, or its
    derivative, is bent more, until hardly anything is left of the line: what is left of the change
    of a smooth function is nothing as well. A term of two roots is followed along each of them as
    well: beside ``exp`` of one, which grows, a kink in the other is small.

    :raises NotASumError: if there is one.
    """

    @calculus.compiled
    def places(families: Sequence[Family]) -> tuple[list[Array], list[Array]]:
        found = Places.of(terms, families, calculus)
        return found.means, [(spread**2).sum(-1) ** 0.5 for spread in found.spreads]

    means, stddevs = ([calculus.numpy(x) for x in part] for part in places(list(families)))
    index = terms.numbers()
    for term in terms.terms:
        own = [index[id(root)] for root in term.roots]
        centre = [families[0].ops.tensor(means[k], families[0].loc) for k in own]
        half = [
            (WIDTH * stddevs[k] + 2.0 * abs(means[k])) * (-0.7) ** number
            for number, k in enumerate(own)
        ]
        line = calculus.line(term, centre)
        for wanted in ([True] * len(own), *(np.eye(len(own)) if len(own) > 1 else ())):
            steps = [x * w for x, w in zip(half, wanted, strict=True)]
            if any(_jumps(line, steps, term.node.shape, part) for part in (0, 1)):
                raise NotASumError("it has a kink or a jump")


def _jumps(
    line: Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]],
    steps: list[np.ndarray],
    shape: tuple[int, ...],
    part: int,
) -> bool:
    """:param part: 0 for the function, 1 for its derivative."""
    # Not from -1 to 1: at zero itself, where it may begin, a derivative by cases may be another.
    ends = [np.full(shape, t) for t in np.linspace(-1.0, 0.93, PARTS + 1)]

    def along(t: np.ndarray) -> np.ndarray:
        return line(t, steps)[part]

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


def _factor(spreads: list[Array], xp: Any) -> list[list[Array]]:
    rows: list[list[Array]] = []
    for one, spread in enumerate(spreads):
        row: list[Array] = []
        for two in range(one):
            rest = sum(a * b for a, b in zip(row, rows[two], strict=False))
            covariance = (spread * spreads[two]).sum(-1) - rest
            below = rows[two][two]
            is_safe = below > 0
            row.append(xp.where(is_safe, covariance / xp.where(is_safe, below, 1.0), 0.0))
        rest = (spread**2).sum(-1) - sum(part**2 for part in row)
        row.append(xp.sqrt(xp.where(rest > 0, rest, 0.0)))
        rows.append(row)
    return rows
