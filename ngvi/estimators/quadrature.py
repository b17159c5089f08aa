"""Expectations of a log density by its additive terms.

What a term sees of the latents is affine, ``a = J theta + b``, and under ``q = N(mu, C C^T)`` a
Gaussian ``N(J mu + b, J C C^T J^T)`` of as many dimensions as the term has predictors
(:mod:`ngvi.estimators.nodes`). Here is what needs no tensor library of its own; a package
differentiates (:class:`Calculus`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.estimators.additive_terms import AdditiveTerms, Term, evaluate
from ngvi.estimators.nodes import PredictorCovariance, TermMoments, pairs
from ngvi.estimators.points import Families, num_products
from ngvi.families.base import Array, Family
from ngvi.families.gaussian import centred
from ngvi.latents.forest import Forest

#: Rows, one for each change of all vectors ``(m, d)``, to changes of the predictors with a last
#: axis of all rows; and from such a change of the predictors back to the rows of its gradient.
Push = Callable[[list[Array]], list[Array]]
Pull = Callable[[list[Array]], list[Array]]


class Integrand(NamedTuple):
    """A term, and where its predictors are under ``q``."""

    term: Term
    means: list[Array]
    covariance: PredictorCovariance


class Calculus(Protocol):
    """A package's derivatives and programs for quadrature."""

    xp: Any  #: Torch or ``jax.numpy``.

    def linear(
        self, function: Callable[..., list[Array]], at: list[Array]
    ) -> tuple[list[Array], Push, Pull]:
        """Values of an affine function of vectors, and what it does with changes of these."""

    def value_and_gradient(
        self, function: Callable[[list[Array]], Array], at: list[Array]
    ) -> tuple[Array, list[Array]]:
        """Return a scalar function's value and gradient."""

    def means(self, integrands: list[Integrand]) -> list[TermMoments]:
        """Return means of terms and their derivatives, over the nodes where all are finite.

        These are halved until they miss no more than a little of a term.

        Far out, where hardly any draw would be, ``exp`` overflows; what is finite before it does
        is large enough to be seen. NaN where nothing is finite.
        """

    def compiled(self, function: Callable) -> Callable:
        """Return a function of arrays and families that runs once, as one program."""

    def numpy(self, array: Array) -> np.ndarray:
        """Return an array whose operations are not compiled one by one."""

    def line(
        self, terms: Sequence[Term], centres: list[list[Array]]
    ) -> Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
        """Return terms and their derivatives along ``centre + t half``, element by element.

        The result is a function of ``t`` of shape ``(n, N)``, and of ``half`` of ``(N,)`` by
        predictor.

        :param terms: of as many predictors each, with ``N`` elements in all.
        """


class Expectations(NamedTuple):
    """Expectations of a log density and its derivatives."""

    value: Array  #: ``E[l]``.
    #: By family ``E[grad l]``, shape ``(d,)``, and ``E[hess l]`` as
    #: :meth:`~ngvi.families.base.Family.assemble_hessian` has it.
    parts: list[tuple[Array, Array]]
    is_finite: Array
    params: Any  #: Zero gradients of other parameters.


class PredictorMoments(NamedTuple):
    """Means and spreads of the predictors of all terms under ``q``, one after another.

    Of a family whose latents are locals and their ancestors an entry of a predictor sees one local
    at most. Then columns of ``J`` are summed that no entry sees two of, those of a family's probes:
    what is left of a row is all of it, and products of two rows, of one entry, are what they were.
    """

    means: list[Array]
    slopes: list[Array]  #: ``J P^T``, with a last axis of all probes ``P``.
    spreads: list[Array]  #: ``J C P^T``, likewise.
    pull: Pull

    @classmethod
    def of(
        cls, terms: AdditiveTerms, families: Sequence[Family], calculus: Calculus
    ) -> PredictorMoments:
        """Find them, in time that is linear in the numbers of the slopes and of ``C P^T``."""
        means, push, pull = calculus.linear(
            predictors_of(terms), [family.mean for family in families]
        )
        by_family = [probes(family) for family in families]
        columns = [centred(q).sample(own) for q, own in zip(families, by_family, strict=True)]
        slopes, spreads = (push(_by_all(rows, calculus.xp)) for rows in (by_family, columns))
        return cls(means, slopes, spreads, pull)


def expectations(
    terms: AdditiveTerms, families: Sequence[Family], calculus: Calculus, params: Any = ()
) -> Expectations:
    """``E[l]``, ``E[grad l]`` and ``E[hess l]`` under independent Gaussians.

    ``E[hess l] P^T = sum J^T E[f''] J P^T``, so that of a sparse Hessian there is what is needed.

    :param families: one for each vector of latents.
    :param params: zeros for other parameters.
    """
    moments, xp = PredictorMoments.of(terms, families, calculus), calculus.xp
    means, slopes = moments.means, moments.slopes
    places = terms.places
    integrands = [
        Integrand(
            term,
            [means[k] for k in own],
            PredictorCovariance.of([moments.spreads[k] for k in own], xp),
        )
        for term, own in zip(terms.terms, places, strict=True)
    ]
    # Of the terms the log density is a linear function.
    zeros = [0.0 * means[own[0]] for own in places]
    value, weights = calculus.value_and_gradient(terms.value, zeros)
    firsts = [0.0 * mean for mean in means]
    seconds = [0.0 * slope for slope in slopes]
    for own, weight, of_term in zip(places, weights, calculus.means(integrands), strict=True):
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
    for family, rows in zip(families, moments.pull(both), strict=True):
        stop = start + num_probes(family)
        parts.append((rows[0], _hessian(family, rows[start:stop])))
        is_finite = is_finite & xp.isfinite(rows).all()
        start = stop
    return Expectations(value, parts, is_finite, params)


def _hessian(family: Family, products: Array) -> Array:
    """Return a Hessian as the family has it, from products with all :func:`probes`."""
    count = num_products(family)
    if len(products) > count:
        some = family.ops.eye(count, products)[family.hessian_probes()]
        products = some.T @ products
    return family.assemble_hessian(products)


def find_terms(
    terms_of: Callable[..., AdditiveTerms], density: Callable, here: Families
) -> AdditiveTerms:
    """Find the terms of a log density.

    :param terms_of: the package's.
    :param density: of latent vectors by site.
    :raises NotAdditiveError: naming an operation, if it is no sum of such terms.
    """

    def of_vectors(*vectors: Array) -> Array:
        return density(dict(zip(here, vectors, strict=True)))

    found = terms_of(of_vectors, [family.mean for family in here.values()])
    found.check_size(sum(num_probes(family) for family in here.values()))
    return found


def num_probes(family: Family) -> int:
    """Return how many columns there are of a Jacobian."""
    return num_products(family) if isinstance(family.couples(), Forest) else family.dim


def probes(family: Family) -> Array:
    """Return which latents share a column, shape ``(m, d)``; only in a forest some do."""
    count = num_probes(family)
    eye = family.ops.eye(count, family.loc)
    return eye if count == family.dim else eye[family.hessian_probes()].T


def predictors_of(terms: AdditiveTerms) -> Callable[..., list[Array]]:
    """All predictors as a function of the latent vectors."""

    def at(*vectors: Array) -> list[Array]:
        return evaluate(terms.predictors, dict(zip(map(id, terms.latents), vectors, strict=True)))

    return at


def _by_all(parts: list[Array], xp: Any) -> list[Array]:
    """Rows of each family, zeros in the rows of the others; there are as many of all."""
    if len(parts) == 1:
        return parts
    ends = np.cumsum([len(part) for part in parts])

    def padded(part: Array, end: int) -> Array:
        nothing = 0.0 * part[:1]
        before, after = [nothing] * int(end - len(part)), [nothing] * int(ends[-1] - end)
        return xp.concatenate([*before, part, *after])

    return [padded(part, end) for part, end in zip(parts, ends, strict=True)]
