"""Checks that the terms which a run shows are what quadrature takes them for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ngvi.estimators.additive_terms import AdditiveTerms, NotAdditiveError
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.quadrature import Calculus, PredictorMoments, num_probes, predictors_of, probes
from ngvi.families.base import Array, Family
from ngvi.latents.forest import Forest

#: All parts of a line are followed together if a term has at most this many numbers there.
NUMBERS_AT_ONCE = 2**17


def check_paths(terms: AdditiveTerms, families: Sequence[Family], calculus: Calculus) -> None:
    """Refuse a term that sees two locals.

    :class:`~ngvi.estimators.quadrature.PredictorMoments` would take them for one.

    Blocks that share columns are stretched, each with what is below it by a number of its own. Of
    an entry that sees one of them all slopes are stretched alike.

    :raises NotAdditiveError: if there is one.
    """
    means = [family.mean for family in families]

    @calculus.compiled
    def slopes_of(means: list[Array], rows: list[Array]) -> list[Array]:
        return calculus.linear(predictors_of(terms), means)[1](rows)

    for number, family in enumerate(families):
        forest = family.couples()
        if not isinstance(forest, Forest) or num_probes(family) == family.dim:
            continue
        columns = calculus.numpy(probes(family))
        nothing = [np.zeros((3 * len(columns), mean.shape[0])) for mean in means]
        for stretches in _stretches(forest, family.hessian_probes()):
            by_family = list(nothing)
            by_family[number] = np.concatenate([columns * stretch for stretch in stretches])
            rows = [
                family.ops.tensor(part, mean) for part, mean in zip(by_family, means, strict=True)
            ]
            found = list(map(calculus.numpy, slopes_of(means, rows)))
            if any(_sees_several([found[k] for k in own]) for own in terms.places):
                raise NotAdditiveError("a term sees several locals")


def _sees_several(slopes: list[np.ndarray]) -> bool:
    """Tell whether an entry's slopes change otherwise than by one factor, twice.

    :param slopes: by predictor, with a last axis of three times all columns.
    """
    thirds = [np.split(part, 3, -1) for part in slopes]
    plain, once, twice = (np.concatenate(parts, -1) for parts in zip(*thirds, strict=True))
    square = (plain**2).sum(-1)
    factor = (plain * once).sum(-1) / np.where(square > 0, square, 1.0)
    gaps = (once - factor[..., None] * plain) ** 2 + (twice - factor[..., None] * once) ** 2
    return bool((gaps.sum(-1) > DEFAULTS.same**2 * square).any())


def _stretches(forest: Forest, columns: np.ndarray) -> Iterator[np.ndarray]:
    """Yield ones, factors and squares of latents, for all blocks that share columns.

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


def check_smooth(terms: AdditiveTerms, families: Sequence[Family], calculus: Calculus) -> None:
    """Refuse terms with kinks and jumps, for which quadrature is poor and second derivatives false.

    Each is followed along a line through all that ``q`` covers, into the half in which it, or its
    derivative, is bent more, until hardly anything is left of the line. What is left of the change
    of a smooth function is nothing as well. A term of two predictors is followed along each of them
    as well: beside ``exp`` of one, which grows, a kink in the other is small.

    :raises NotAdditiveError: if there is one.
    """

    @calculus.compiled
    def moments(families: Sequence[Family]) -> tuple[list[Array], list[Array]]:
        found = PredictorMoments.of(terms, families, calculus)
        return found.means, [(spread**2).sum(-1) ** 0.5 for spread in found.spreads]

    means, stddevs = ([calculus.numpy(x) for x in part] for part in moments(list(families)))
    # And as far again as zero is, where many functions have their kink.
    widths = [
        DEFAULTS.line_width * stddev + 2.0 * abs(mean)
        for mean, stddev in zip(means, stddevs, strict=True)
    ]
    tensor, like = families[0].ops.tensor, families[0].loc
    of_terms = list(zip(terms.terms, terms.places, strict=True))
    for count in sorted(
        {len(own) for own in terms.places}
    ):  # all with this many predictors together
        some, places = zip(*(pair for pair in of_terms if len(pair[1]) == count), strict=True)
        half = [
            (-0.7) ** number * np.concatenate([widths[k].ravel() for k in own])
            for number, own in enumerate(zip(*places, strict=True))
        ]
        line = calculus.line(some, [[tensor(means[k], like) for k in own] for own in places])
        for wanted in ([True] * count, *(np.eye(count) if count > 1 else ())):
            steps = [x * w for x, w in zip(half, wanted, strict=True)]
            if _jumps(line, steps):
                raise NotAdditiveError("it has a kink or a jump")


def _jumps(
    line: Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]],
    steps: list[np.ndarray],
) -> bool:
    """Tell whether a function or its derivative jumps on some part of the line."""
    size_of_all = len(steps[0])
    # Not from -1 to 1: at zero itself, where it may begin, a derivative by cases may be another.
    ends = np.linspace(-1.0, 0.93, DEFAULTS.line_parts + 1)
    count = 2 * DEFAULTS.line_parts  # first the function's, then its derivative's
    lows, highs = (
        np.broadcast_to(np.tile(part, 2)[:, None], (count, size_of_all))
        for part in (ends[:-1], ends[1:])
    )
    is_small = count * size_of_all <= NUMBERS_AT_ONCE
    some = [slice(0, count)] if is_small else [slice(row, row + 1) for row in range(count)]

    def along(rows: slice, t: np.ndarray) -> np.ndarray:
        found = line(np.array(t), steps)
        parts = np.arange(count)[rows] // DEFAULTS.line_parts
        return np.stack([found[part][row] for row, part in enumerate(parts)])

    with np.errstate(all="ignore"):
        pairs = ((rows, end[rows]) for end in (lows, highs) for rows in some)
        sizes = [np.zeros(size_of_all), np.zeros(size_of_all)]
        for rows, t in pairs:
            for row, values in zip(range(count)[rows], along(rows, t), strict=True):
                part = row // DEFAULTS.line_parts
                sizes[part] = np.fmax(sizes[part], abs(values))
        size = np.repeat(np.stack(sizes), DEFAULTS.line_parts, 0)
        return any(
            _jumps_between(functools.partial(along, rows), lows[rows], highs[rows], size[rows])
            for rows in some
        )


def _jumps_between(
    line: Callable[[np.ndarray], np.ndarray], low: Array, high: Array, size: Array
) -> bool:
    """Tell whether a jump is left after following the halves that are least like a line.

    :param size: of the function, of which a part is rounding.
    """
    at_low, at_middle, at_high = line(low), line(0.5 * (low + high)), line(high)
    change = [abs(at_high - at_low)]
    for _ in range(DEFAULTS.line_halvings):
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
    earlier = change[-1 - DEFAULTS.line_halvings // 3]
    least = np.fmax(DEFAULTS.jump * earlier, DEFAULTS.same * size)
    return bool((change[-1] > least).any())
